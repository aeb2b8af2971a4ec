"""Forms of operations that IREE refuses as they are, against StableHLO's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES
from programs import share_of
from stablehlo_forms import PROGRAMS, QUANTIZED_PROGRAMS, Program
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
