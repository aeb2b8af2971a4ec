"""``raise-linalg``: dequantizations and integer contractions that are written in linalg."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from devices import ON_DEVICES
from instruction_sets import EVERY
from linalg_programs import PROGRAMS, LinalgProgram
from programs import run_passes, share_of
from subquant.compiler import mlir_client
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.dense import dense_of_array
from subquant.errors import ParseError
from subquant.runtime import Device
from together import Together

PASSES = "pack-narrow-storage,raise-linalg{explain=true},raise-dequantization{explain=true}"


def with_constant_weights(program: LinalgProgram) -> str:
    """The program with its tensors as constants, but the activations."""
    constants = {}
    with create_context(), ir.Location.unknown():
        for name, array in program.inputs().items():
            if name != "x" and array.ndim:
                element = ir.Type.parse(program.arguments[name].rpartition("x")[2])
                constants[name] = str(dense_of_array(array, element))
    return program.text(constants)


CONSTANT = ", constant weights"
VARIANTS = {name: each.text({}) for name, each in PROGRAMS.items()} | {
    f"{name}{CONSTANT}": with_constant_weights(each) for name, each in PROGRAMS.items()
}
EXECUTED = share_of(VARIANTS, 3)
"""Programs that run in the short suite; all are raised, and the long suite runs all."""
COMPILED = Together({name: VARIANTS[name] for name in EXECUTED})


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_a_contraction_is_raised(name: str) -> None:
    program = PROGRAMS[name.removesuffix(CONSTANT)]
    module, remarks = run_passes(VARIANTS[name], PASSES)
    text = str(module)
    assert not remarks
    assert all(operation in text for operation in program.raised)
    assert "linalg.generic" not in text
    assert not re.search("linalg.*(matmul|conv)", text)


def check(name: str, compiled: Together, device: Device) -> None:
    """Compare a program with float64, or with integers."""
    program = PROGRAMS[name.removesuffix(CONSTANT)]
    arrays = program.inputs()
    arguments = [
        array
        for key, array in arrays.items()
        if key == "x" or not array.ndim or not name.endswith(CONSTANT)
    ]
    result = compiled.function(name, device)(*arguments)
    expected = program.expected(arrays)
    if program.is_exact:
        assert (result == expected).all()
    else:
        assert np.abs(result - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("name", EXECUTED)
@ON_DEVICES
def test_a_result_is_that_of_float64(name: str, device: Device) -> None:
    check(name, COMPILED, device)


WITH_KERNELS = [f"{name}{CONSTANT}" for name in share_of(PROGRAMS, 6)]


@functools.cache
def compiled_for(kernels: str) -> Together:
    """The programs with constant weights, with the kernels of an instruction set."""
    return Together({name: VARIANTS[name] for name in WITH_KERNELS}, kernels=kernels)


@pytest.mark.parametrize("name", WITH_KERNELS)
@pytest.mark.parametrize("kernels", EVERY)
@pytest.mark.share(36)
def test_every_instruction_set_has_the_same_result(name: str, kernels: str, cpu: Device) -> None:
    check(name, compiled_for(kernels), cpu)


def test_a_global_is_the_weight() -> None:
    """A parameter, in the generic form of IREE's operations, stays packed."""
    name = "matmul with indexing maps"
    program = PROGRAMS[name]
    attributes = (
        'sym_name = "w", sym_visibility = "private", type = tensor<128x4x32xi4>, '
        'initial_value = #flow.parameter.named<"model"::"w"> : tensor<128x4x32xi4>'
    )
    text = f'"util.global"() {{{attributes}}} : () -> ()\n' + program.text({"w": "W"}).replace(
        "arith.constant W", '"util.global.load"() {global = @w} : () -> tensor<128x4x32xi4>'
    )
    module, _ = run_passes(text, f"{PASSES},fuse-block-contractions")
    assert "type = tensor<128x4x16xi8>" in str(module)
    assert "subquant.block_contraction" in str(module)
    assert "plane_bits = array<i64: 4>" in str(module)


def test_inspect_reads_int4_in_groups_of_32_as_5_bits() -> None:
    [weight] = mlir_client.inspect(VARIANTS[f"matmul with indexing maps{CONSTANT}"])
    assert weight.bits_per_element == 5.0


def test_an_operation_that_newer_mlir_lacks_is_explained() -> None:
    program = PROGRAMS["a named operation converts"]
    text = program.text({}).replace("linalg.matmul", "linalg.matmul_transpose_b")
    with pytest.raises(ParseError) as info:
        run_passes(text, PASSES)
    assert "with indexing_maps" in str(info.value.notes)
