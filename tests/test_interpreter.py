"""StableHLO's reference interpreter on subquant's lowering, and ``exec --interpret``.

Conformance programs are compared with the oracle, which computes in float64, and shares no code
with the passes.
"""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from command_line import call, succeed
from programs import LONG
from subquant.compiler.pipeline import parse_pipeline
from subquant.conformance import oracle, suite
from subquant.conformance.cases import compare
from subquant.conformance.program import Program
from subquant.conformance.suite_random import random_programs
from subquant.errors import SignatureError, UnsupportedError, UsageError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType

ADD = """
!q = !quant.uniform<i8:f32, 0.5:3>
!r = !quant.uniform<u8:f32, 1.0:20>
func.func @main(%x: tensor<4x!q>, %y: tensor<4x!q>) -> tensor<4x!r> {
  %0 = stablehlo.add %x, %y : tensor<4x!q>
  %1 = stablehlo.uniform_quantize %0 : (tensor<4x!q>) -> tensor<4x!r>
  return %1 : tensor<4x!r>
}
"""
BLOCKS = """
!q = !quant.uniform<i4:f32:{0:2, 1:1}, {{0.5:1, 0.25:-2}, {2.0, 0.125:7}}>
func.func @main(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %q = quant.qcast %x : tensor<4x2xf32> to tensor<4x2x!q>
  %y = quant.dcast %q : tensor<4x2x!q> to tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}
"""


def test_storage_and_reals() -> None:
    module = InterpretedModule(ADD)
    x, y = np.array([3, 4, -128, 127], np.int8), np.array([3, 5, -128, 127], np.int8)
    # 0.5 * (x - 3) + 0.5 * (y - 3), saturated to i8 on the way, then in steps of 1 from 20.
    totals = np.clip(x.astype(int) + y - 3, -128, 127)
    expected = np.clip(np.rint((totals - 3) * 0.5 + 20), 0, 255)
    (stored,) = module["main"].invoke([x, y])
    assert stored.dtype == np.uint8
    np.testing.assert_array_equal(stored, expected)
    (reals,) = module["main"].invoke([[0.0, 0.5, -65.5, 62.0]] * 2, quantized_io=True)
    np.testing.assert_array_equal(reals, [0.0, 1.0, -20.0, 62.0])


def test_sub_channel_casts() -> None:
    x = np.random.default_rng(0).uniform(-4, 4, (4, 2)).astype(np.float32)
    (evaluated,) = InterpretedModule(BLOCKS)["main"].invoke([x])
    scales, zeros = [[0.5, 0.25], [2.0, 0.125]], [[1, -2], [0, 7]]
    types = StorageType(4), ExpressedType.F32
    parameters = QuantizationParameters(*types, (0, 1), (2, 1), scales, zeros)
    np.testing.assert_array_equal(evaluated, dequantize(quantize(x, parameters), parameters))


def test_dynamic_shapes_are_those_of_the_arguments() -> None:
    module = InterpretedModule(ADD.replace("4x!", "?x!"))
    for extent in (1, 5):
        x = np.arange(extent).astype(np.int8)
        (evaluated,) = module["main"].invoke([x, x])
        np.testing.assert_array_equal(evaluated, np.rint((2 * x.astype(int) - 6) * 0.5 + 20))


def test_any_public_function_can_be_evaluated() -> None:
    text = """
func.func @main(%x: tensor<2xi8>) -> tensor<2xi8> { return %x : tensor<2xi8> }
func.func @twice(%x: tensor<2xi8>) -> tensor<2xi8> {
  %0 = func.call @main(%x) : (tensor<2xi8>) -> tensor<2xi8>
  %1 = func.call @helper(%0) : (tensor<2xi8>) -> tensor<2xi8>
  return %1 : tensor<2xi8>
}
func.func private @helper(%x: tensor<2xi8>) -> tensor<2xi8> {
  %0 = stablehlo.add %x, %x : tensor<2xi8>
  return %0 : tensor<2xi8>
}"""
    module = InterpretedModule(text)
    assert list(module.functions) == ["main", "twice"]
    assert module["twice"].invoke([np.array([3, -4], np.int8)])[0].tolist() == [6, -8]
    assert module["main"].invoke([np.array([3, -4], np.int8)])[0].tolist() == [3, -4]
    with pytest.raises(UsageError, match="expected one of: main, twice"):
        module["helper"]


@pytest.mark.parametrize("element", ["i1", "i4", "i8", "ui8", "i64", "f16", "bf16", "f32", "f64"])
def test_element_types_come_back(element: str) -> None:
    type_ = f"tensor<3x{element}>"
    text = f"func.func @main(%x: {type_}) -> {type_} {{ return %x : {type_} }}"
    values = {"i1": np.array([True, False, True]), "bf16": np.array([1, 2, 3], ml_dtypes.bfloat16)}
    dtypes = {"i4": "i1", "ui8": "u1", "f16": "f2", "f32": "f4", "f64": "f8", "i64": "i8"}
    x = values.get(element)
    if x is None:
        x = np.array([1, 2, 3], dtypes.get(element, "i1"))
    (evaluated,) = InterpretedModule(text)["main"].invoke([x])
    assert evaluated.dtype == x.dtype
    np.testing.assert_array_equal(evaluated, x)


def test_unsupported_programs() -> None:
    with pytest.raises(UnsupportedError, match=r"'arith\.addi' op is not an operation that"):
        InterpretedModule(
            "func.func @f(%x: tensor<2xi8>) -> tensor<2xi8> {\n"
            "  %0 = arith.addi %x, %x : tensor<2xi8>\n  return %0 : tensor<2xi8>\n}"
        )
    module = InterpretedModule("func.func @f(%x: f32) -> f32 { return %x : f32 }")
    with pytest.raises(UnsupportedError, match="the interpreter takes ranked tensors only"):
        module["f"].invoke([1.0])
    with pytest.raises(SignatureError, match="takes 2 arguments, got 1"):
        InterpretedModule(ADD)["main"].invoke([np.zeros(4, np.int8)])


def test_the_pipeline_has_a_name() -> None:
    (shown,) = re.findall(r"interpreter +the pipeline (.+)", call("opt", "--list-passes").output)
    assert "legalize-quant-to-math{casts=stablehlo}" in shown
    assert parse_pipeline(shown) == parse_pipeline("interpreter")


# -- conformance programs -------------------------------------------------------------------------

CONTRACTIONS = ("convolution", "dot", "dot_general", "dynamic_conv")
CASTS = ("uniform_dequantize", "uniform_quantize")
REDUCTIONS = ("reduce", "reduce_window", "select_and_scatter")


def group_of(program: Program) -> str:
    if program.op in CONTRACTIONS:
        return "contractions"
    if program.op in CASTS:
        return "casts"
    return "reductions" if program.op in REDUCTIONS else "others"


@pytest.mark.parametrize("group", ["casts", "contractions", "reductions", "others"])
@pytest.mark.share(4)
def test_lowered_programs_give_what_the_oracle_says(group: str) -> None:
    checked, wrong = 0, []
    chosen = [p for p in [*suite.programs(), *random_programs(120)] if group_of(p) == group]
    steps = {"others": 3} if LONG else {"casts": 3, "contractions": 6, "others": 12}
    for program in chosen[:: steps.get(group, 1)]:
        if not program.runs:
            continue
        inputs = program.make_inputs()
        try:
            results = InterpretedModule(program.text())["main"].invoke(inputs)
        except UnsupportedError:
            continue  # an operation or type that the interpreter does not know
        checked += 1
        for result, golden in zip(results, oracle.goldens(program, inputs), strict=True):
            message = compare(result, golden).message
            wrong += [f"{program.name}: {message}"] if message else []
    assert not wrong, "\n".join(wrong)
    assert checked >= 30, checked


# -- the command line -----------------------------------------------------------------------------


INPUTS = ("--input", "4xi8=3,4,-128,127", "--input", "4xi8=3,5,-128,127")


def test_exec_says_that_both_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "add.mlir"
    file.write_text(ADD)
    output = succeed("exec", file, "--interpret", *INPUTS).output
    assert "result[0]: 4xu8=20 22 0 82" in output
    assert "interpreter[0]: the same" in output
    output = succeed("exec", file, "--interpret-only", *INPUTS).output
    assert output == "result[0]: 4xu8=20 22 0 82\n"


@pytest.mark.long
def test_exec_fails_where_they_differ(tmp_path: Path) -> None:
    """A sum of floats that the two add in another order, to the bit."""
    file = tmp_path / "sum.mlir"
    file.write_text("""
func.func @main(%x: tensor<4096xf32>) -> tensor<f32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<4096xf32>, tensor<f32>) -> tensor<f32>
  return %r : tensor<f32>
}""")
    x = tmp_path / "x.npy"
    np.save(x, np.random.default_rng(0).standard_normal(4096).astype(np.float32))
    arguments = ("exec", file, "--interpret", "--input", f"@{x}")
    result = call(*arguments)
    assert result.exit_code == 1
    assert "interpreter[0]: differs" in result.output
    assert "error: result 0 differs from StableHLO's interpreter" in result.output
    assert "interpreter[0]: the same" in succeed(*arguments, "--atol", "1e-3").output
