"""Forms of operations that IREE refuses as they are, against StableHLO's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES
from programs import share_of
from stablehlo_forms import PROGRAMS, QUANTIZED_PROGRAMS, Program
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.conformance.interpreter import interpret
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.runtime import Device
from together import Together

Interpreter = Callable[[str, Sequence[np.ndarray]], Sequence[Any]]


KINDS: dict[str, tuple[dict[str, Program], Interpreter]] = {
    "plain": (PROGRAMS, interpret),
    "quantized": (
        QUANTIZED_PROGRAMS,
        lambda text, inputs: InterpretedModule(text)["main"].invoke(inputs),
    ),
}
NAMES = {kind: share_of(programs, 3) for kind, (programs, _) in KINDS.items()}
TOGETHER = {
    kind: Together({name: KINDS[kind][0][name][0] for name in names})
    for kind, names in NAMES.items()
}


@ON_DEVICES
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names]
)
def test_a_form_gives_what_the_interpreter_gives(
    device: Device, device_name: str, kind: str, name: str
) -> None:
    programs, interpreter = KINDS[kind]
    text, inputs = programs[name]
    actual = TOGETHER[kind].function(name, device).invoke(inputs)
    for got, expected in zip(actual, interpreter(text, inputs), strict=True):
        np.testing.assert_array_equal(got, expected)


GROUPS_WITHOUT_IMAGES = """
func.func @main(%x: tensor<0x5x5x4xi8>, %w: tensor<3x3x2x4xi8>) -> tensor<0x3x3x4xi32> {
  %y = stablehlo.convolution(%x, %w)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
      : (tensor<0x5x5x4xi8>, tensor<3x3x2x4xi8>) -> tensor<0x3x3x4xi32>
  return %y : tensor<0x3x3x4xi32>
}
"""


def test_slices_without_elements_are_no_slices_on_vulkan() -> None:
    """MLIR refuses their offset; the groups of a convolution without images are such slices."""
    lowered = compile_to_bytes(GROUPS_WITHOUT_IMAGES, CompileOptions(target="vulkan"), emit="mlir")
    assert b"slice" not in lowered
