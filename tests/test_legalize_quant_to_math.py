"""``legalize-quant-to-math``: results beside StableHLO's own pass, and kinds of operations."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import test_integer_steps as integer_steps
from devices import ON_DEVICES, compile_for
from programs import PRODUCT, convolution_of, one_operation
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.conformance.suite import programs
from subquant.core._mlir import in_context_of, ir, stablehlo
from subquant.dialects import create_context
from subquant.dialects.dense import array_of_dense, dense_of_array
from subquant.dialects.quant import element_type
from subquant.dialects.stablehlo import OPERATIONS
from subquant.errors import UnsupportedError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.runtime import Device
from subquant.transforms.base import walk
from together import Together

LOWERED = (
    "verify-quantization,canonicalize-reductions,legalize-quant-to-math,correct-zero-points,"
    "lower-requantization,lower-saturation,convert-quantized-to-storage"
)
UPSTREAM = (
    "stablehlo-legalize-quant-to-math,chlo-legalize-to-stablehlo,canonicalize,"
    "shape-legalize-to-stablehlo,func.func(stablehlo-canonicalize-dynamism)"
)


def lower(text: str) -> ir.Module:
    return integer_steps.lower(text, LOWERED)


def upstream(text: str, *arguments: np.ndarray) -> list[np.ndarray]:
    """Results of StableHLO's own pass and interpreter for storage values."""
    module = parse_text(text, create_context())
    run_pipeline(module, parse_pipeline(UPSTREAM))
    with in_context_of(module.operation):
        (function,) = module.body.operations
        types = function.operation.attributes["function_type"].value.inputs
        dense = [
            dense_of_array(np.asarray(array), type_.element_type)
            for array, type_ in zip(arguments, types, strict=True)
        ]
        return [array_of_dense(result) for result in stablehlo.eval_module(module, dense)]


def on_device(text: str, device: Device, *arguments: np.ndarray) -> np.ndarray:
    result: np.ndarray = compile_for(text, device).main(*arguments)
    return result


# -- where StableHLO's own pass is wrong ----------------------------------------------------------


def dot(left: str, right: str, result: str, shapes: tuple[str, str, str]) -> str:
    types = [f"{shape}x{e}" for shape, e in zip(shapes, (left, right, result), strict=True)]
    return one_operation(PRODUCT, types[:2], types[2])


ONE = "!quant.uniform<i8:f32, 1.0>"
WRONG_UPSTREAM = {
    "wraps": (
        dot(ONE, ONE, "!quant.uniform<i8:f32, 4.0>", ("1x4", "4x1", "1x1")),
        (np.full((1, 4), 100, np.int8), np.full((4, 1), 100, np.int8)),
        [[16]],  # 4 * 100 * 100 / 4 = 10000, modulo 256
        [[127]],
    ),
    "truncates": (
        dot(ONE, ONE, "!quant.uniform<i8:f32, 4.0>", ("1x1", "1x1", "1x1")),
        (np.full((1, 1), 7, np.int8), np.full((1, 1), 1, np.int8)),
        [[1]],  # 7 / 4 = 1.75
        [[2]],
    ),
    "uses the first channel's scale": (
        dot(ONE, "!quant.uniform<i8:f32:1, {1.0, 2.0}>", "!quant.uniform<i32:f32:1, {0.5, 2.0}>",
            ("1x2", "2x2", "1x2")),
        (np.full((1, 2), 2, np.int8), np.full((2, 2), 4, np.int8)),
        [[32, 32]],
        [[32, 16]],
    ),
    "drops a ratio near one": (
        dot(ONE, "!quant.uniform<i8:f32, 1.0005>", "!quant.uniform<i32:f32, 1.0>",
            ("1x4", "4x1", "1x1")),
        (np.full((1, 4), 100, np.int8), np.full((4, 1), 100, np.int8)),
        [[40000]],
        [[40020]],
    ),
    "leaves the range": (
        one_operation("stablehlo.uniform_quantize %0", ["2xf32"], "2x!quant.uniform<i32:f32, 1.0>"),
        (np.array([1e10, -1e10], np.float32),),
        None,  # the conversion of 2**31 to i32 is not defined
        [2**31 - 1, -(2**31)],
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", WRONG_UPSTREAM)
@ON_DEVICES
def test_where_upstream_is_wrong(case: str, device: Device, device_name: str) -> None:
    text, arguments, theirs, right = WRONG_UPSTREAM[case]
    np.testing.assert_array_equal(on_device(text, device, *arguments), right)
    np.testing.assert_array_equal(InterpretedModule(text)["main"].invoke(arguments)[0], right)
    if theirs is not None:
        actual = upstream(text, *arguments)[0]
        np.testing.assert_array_equal(
            actual, theirs, "upstream changed: update docs/guide/stablehlo.md too"
        )


# -- where it is right ----------------------------------------------------------------------------

I8 = "!quant.uniform<i8:f32, 0.5:3>"
I8B = "!quant.uniform<i8:f32, 0.25:-7>"
SYMMETRIC = "!quant.uniform<i8:f32, 0.125>"
I32 = "!quant.uniform<i32:f32, 0.0625:5>"


def unary(name: str, source: str, target: str) -> str:
    return one_operation(f'"stablehlo.{name}"(%0)', [f"16x{source}"], f"16x{target}")


def binary(name: str, left: str, right: str, target: str) -> str:
    operation = f'"stablehlo.{name}"(%0, %1)'
    return one_operation(operation, [f"16x{left}", f"16x{right}"], f"16x{target}")


CONVOLUTION = one_operation(
    convolution_of("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]", "pad = [[1, 1], [0, 0]]"),
    [f"1x4x5x2x{I8}", f"3x2x2x3x{SYMMETRIC}"],
    f"1x4x4x3x{I32}",
)

RIGHT_UPSTREAM = {
    "add": binary("add", I8, I8, I8),
    "add, one scale": binary("add", I32, I32, I32),
    "subtract": binary("subtract", I8, I8B, I8),
    "multiply": binary("multiply", I8, I8B, I8),
    "maximum": binary("maximum", I8, I8, I8),
    "minimum": binary("minimum", I8, I8, I8),
    "negate": unary("negate", I8, I8B),
    "abs": unary("abs", I8, I8B),
    "sign": unary("sign", I8, I8B),
    "requantize": unary("uniform_quantize", I8, I8B),
    "dot": dot(I8, SYMMETRIC, I32, ("3x4", "4x5", "3x5")),
    "convolution": CONVOLUTION,
}


RIGHT_TOGETHER = Together(RIGHT_UPSTREAM)


@pytest.mark.long
@pytest.mark.parametrize("case", RIGHT_UPSTREAM)
def test_where_upstream_is_right(case: str, cpu: Device) -> None:
    text = RIGHT_UPSTREAM[case]
    shapes = re.findall(r"%\w+: tensor<((?:\d+x)+)!", text)
    rng = np.random.default_rng(len(case))
    wide = "i32" in text.partition("->")[0]
    dtype = np.int32 if wide and case.startswith("add,") else np.int8
    extents = [[int(n) for n in shape[:-1].split("x")] for shape in shapes]
    arguments = [rng.integers(-100, 100, shape).astype(dtype) for shape in extents]
    theirs = upstream(text, *arguments)[0]
    np.testing.assert_array_equal(InterpretedModule(text)["main"].invoke(arguments)[0], theirs)
    np.testing.assert_array_equal(RIGHT_TOGETHER.function(case, cpu)(*arguments), theirs)


# -- integers -------------------------------------------------------------------------------------

INTEGER = frozenset(re.findall(r"\w+", """
    abs add clamp concatenate convolution dot_general dynamic_conv maximum minimum multiply
    negate pad reduce reduce_window scatter select select_and_scatter sign subtract
"""))  # fmt: skip
"""Operations with an integer form, for every type that quantized operands of theirs can have."""


def quantized_programs() -> list[Any]:
    """The suite's programs of the operations above whose arguments and results are quantized."""
    chosen = []
    for program in programs():
        tensors = (*program.arguments, *program.results)
        real = [t for t in tensors if not t.is_quantized and str(t.element).strip("b")[0] == "f"]
        if program.op in INTEGER and not real:
            chosen.append(program)
    return chosen


def test_linear_operations_are_integer_only() -> None:
    """The contraction, both zero points, padding, add, max, min and requantization: no float."""
    checked: dict[str, int] = {}
    for program in quantized_programs():
        text = program.text()
        if "uniform_quantize" in text or "uniform_dequantize" in text:
            continue
        try:
            module = lower(text)
        except UnsupportedError:
            continue
        floats = list(integer_steps.float_values(module))
        assert not floats, f"{program.name}\n" + "\n".join(floats[:5])
        checked[program.op] = checked.get(program.op, 0) + 1
    assert set(checked) == INTEGER, sorted(INTEGER - set(checked))
    assert sum(checked.values()) >= 300, checked


def test_contractions_accumulate_in_integers() -> None:
    for program in quantized_programs():
        if program.op not in ("dot_general", "convolution", "dynamic_conv"):
            continue
        names = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.dynamic_conv")
        module = lower(program.text())
        contractions = [op for op in walk(module.operation) if op.name in names]
        assert contractions, program.name
        for op in contractions:
            width = element_type(op.results[0].type).width
            assert width in (32, 64), str(op)
            operands = [element_type(value.type).width for value in list(op.operands)[:2]]
            assert max(operands) <= width, str(op)


def test_a_long_contraction_does_not_overflow(cpu: Device) -> None:
    """2**17 products of 2**14 are 2**31: one more than an i32 holds."""
    length = 1 << 17
    text = dot(ONE, ONE, "!quant.uniform<i32:f32, 2.0>", (f"1x{length}", f"{length}x1", "1x1"))
    ones = np.full((1, length), -128, np.int8)
    assert on_device(text, cpu, ones, ones.T.copy()).tolist() == [[1 << 30]]
    module = lower(text)
    (contraction,) = (op for op in walk(module.operation) if op.name.endswith("dot_general"))
    assert str(element_type(contraction.results[0].type)) == "i64"


# -- refused programs ------------------------------------------------------------------------------

REFUSED = {
    "custom_call": (
        one_operation(
            '"stablehlo.custom_call"(%0) {call_target_name = "f"}', [f"4x{I8}"], f"4x{I8}"
        ),
        "nothing says what its target does with their scales",
    ),
    "tuple": (
        f"""
func.func @main(%x: tensor<4x{I8}>) {{
  %r = "stablehlo.tuple"(%x) : (tensor<4x{I8}>) -> tuple<tensor<4x{I8}>>
  return
}}""",
        "puts quantized values into a tuple, which IREE does not have",
    ),
    "dot of a quantized and a real operand": (
        one_operation('"stablehlo.dot"(%0, %1)', [f"2x2x{I8}", "2x2xf32"], "2x2xf32"),
        "expected all quantized, or a real left operand and result",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_with_its_place(case: str) -> None:
    text, reason = REFUSED[case]
    with pytest.raises(UnsupportedError, match=reason) as error:
        lower(text)
    assert error.value.place is not None


def test_composites_are_what_they_are_made_of(cpu: Device) -> None:
    text = f"""
func.func @main(%x: tensor<4x{I8}>) -> tensor<4x{I8}> {{
  %r = stablehlo.composite "my.negate" %x {{decomposition = @negate}}
      : (tensor<4x{I8}>) -> tensor<4x{I8}>
  return %r : tensor<4x{I8}>
}}
func.func private @negate(%x: tensor<4x{I8}>) -> tensor<4x{I8}> {{
  %r = stablehlo.negate %x : tensor<4x{I8}>
  return %r : tensor<4x{I8}>
}}"""
    x = np.array([3, 4, -128, 127], np.int8)
    assert on_device(text, cpu, x).tolist() == [3, 2, 127, -121]


def test_the_suite_has_every_operation() -> None:
    in_suite = {program.op for program in programs()}
    quantized = {name.removeprefix("stablehlo.") for name in OPERATIONS}
    assert quantized - in_suite <= {"triangular_solve"}
