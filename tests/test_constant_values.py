"""Weights that are constants are laid out for kernels when a program is compiled."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import subquant
from ggml_blocks import moderate_blocks
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.emit.constant_evaluation import evaluate
from subquant.emit.constant_values import constant_elements, erase_unused, is_constant
from subquant.emit.parameters import ModuleGlobals
from subquant.errors import Remark
from subquant.kernels.pack.codebook import Codebook
from subquant.layouts import BlockAffineLayout, GgmlTensor, InferenceTensor, PlanarQuantizedTensor
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.numerics.parameters import StorageType
from subquant.ops import compile_function, linear, trace_function
from subquant.transforms.base import walk

TYPES = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
)


def weight(name: str) -> GgmlTensor:
    """Random blocks with moderate scales."""
    return moderate_blocks(name, (64, 512), np.random.default_rng(0))


def check_all_is_done(w: InferenceTensor, rows: int) -> None:
    """A product with a weight that is a constant is calls of kernels, and nothing else."""
    module = trace_function(lambda x: linear(x, w), np.zeros((rows, 512), np.float32))
    options = CompileOptions(
        activations="int8", kernels="portable", fuse_below_macs=0, explain=True
    )
    remarks: list[Remark] = []
    text = compile_to_bytes(module, options, emit="mlir", on_remark=remarks.append).decode()
    assert [remark.message for remark in remarks if "kernel" in remark.message] == [
        "is computed by a kernel (portable)"
    ]
    main = text[text.index("@main") :]
    assert "blockwise_gemm" in main
    assert set(re.findall(r'= "?((?:[a-z]+)\.\w+)', main)) <= {"arith.constant", "flow.dispatch"}


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("name", TYPES)
def test_nothing_is_left_to_do_for_a_constant_weight(name: str, rows: int) -> None:
    check_all_is_done(weight(name), rows)


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("storage", ["i4", "u4", "u5"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_nothing_is_left_to_do_for_integers_in_blocks(
    storage: str, symmetric: bool, rows: int
) -> None:
    rng, type_ = np.random.default_rng(0), StorageType.parse(storage)
    low, high = type_.minimum, type_.maximum + 1
    zeros = None if symmetric else rng.integers(low, high, (64, 16))
    stored, scales = rng.integers(low, high, (64, 512)), rng.uniform(0.5, 2, (64, 16))
    layout = BlockAffineLayout.of(
        stored.astype(type_.dtype), scales.astype(np.float32), zeros, (1, 32), type_
    )
    check_all_is_done(PlanarQuantizedTensor(layout, "w"), rows)


@pytest.mark.device
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.share(22)
def test_constant_weights_are_those_of_arguments(name: str) -> None:
    x = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
    w = weight(name)
    options: dict[str, Any] = {"activations": "int8"}
    constant = compile_function(lambda x: linear(x, w), x, **options)(x)
    argument = compile_function(linear, x, w, **options)(x, w)
    exact = x.astype(np.float64) @ w.unpack().dequant().astype(np.float64).T
    np.testing.assert_allclose(constant, argument, rtol=0, atol=1e-5 * np.abs(exact).max())
    assert np.abs(constant - exact).max() <= 0.02 * np.abs(exact).max()


PROGRAM = """
func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<4xi8>, tensor<2xf32>) {
  %p = stablehlo.constant dense<[[5, 18, 6, -1, 7]]> : tensor<1x5xi8>
  %c = stablehlo.slice %p [0:1, 1:5:2] : (tensor<1x5xi8>) -> tensor<1x2xi8>
  %k = stablehlo.constant dense<[[17, 17]]> : tensor<1x2xi8>
  %d = stablehlo.xor %c, %k : tensor<1x2xi8>
  %r = stablehlo.reshape %d : (tensor<1x2xi8>) -> tensor<2xi8>
  %u = "subquant.unpack"(%r) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>}
    : (tensor<2xi8>) -> tensor<4xi8>
  %f = stablehlo.constant dense<[0.5, 3.0]> : tensor<2xf32>
  %m = stablehlo.multiply %f, %f : tensor<2xf32>
  %n = stablehlo.multiply %f, %x : tensor<2xf32>
  return %m, %u, %n : tensor<2xf32>, tensor<4xi8>, tensor<2xf32>
}
"""


def test_what_is_known_is_computed() -> None:
    with create_context() as context, ir.Location.unknown():
        module = parse_text(PROGRAM, context)
        returned = next(op for op in walk(module.operation) if op.name == "func.return")
        m, u, n = returned.operands
        module_globals = ModuleGlobals(module.operation)
        assert constant_elements(m, module_globals).tolist() == [0.25, 9.0]  # type: ignore[union-attr]
        # 18 ^ 17 = 3, 255 ^ 17 = 0xee, whose nibbles are 14
        assert constant_elements(u, module_globals).tolist() == [3, 0, 14, 14]  # type: ignore[union-attr]
        assert not is_constant(n, module_globals)
        assert constant_elements(n, module_globals) is None


def test_quotients_and_broadcasts() -> None:
    """Axes of a broadcast may be in another order; quotients of integers are not evaluated."""
    text = """
func.func @main() -> (tensor<3x1x2xf32>, tensor<2xi32>) {
  %a = stablehlo.constant dense<[[1.0, 3.0, 1.0e30], [-7.0, 0.1, 0.0]]> : tensor<2x3xf32>
  %b = stablehlo.constant dense<3.0> : tensor<f32>
  %c = stablehlo.broadcast_in_dim %a, dims = [2, 0] : (tensor<2x3xf32>) -> tensor<3x1x2xf32>
  %d = stablehlo.broadcast_in_dim %b, dims = [] : (tensor<f32>) -> tensor<3x1x2xf32>
  %e = stablehlo.divide %c, %d : tensor<3x1x2xf32>
  %f = stablehlo.constant dense<[7, 9]> : tensor<2xi32>
  %g = stablehlo.divide %f, %f : tensor<2xi32>
  return %e, %g : tensor<3x1x2xf32>, tensor<2xi32>
}"""
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text, context)
        [returned] = [op for op in walk(module.operation) if op.name == "func.return"]
        quotients, of_integers = returned.operands
        module_globals = ModuleGlobals(module.operation)
        table = np.array([[1, 3, 1e30], [-7, 0.1, 0]], np.float32)
        expected = (table.T / np.float32(3))[:, None]
        np.testing.assert_array_equal(
            constant_elements(quotients, module_globals), expected, strict=True
        )
        assert not is_constant(of_integers, module_globals)


LOOKED_UP = """
func.func @main() -> tensor<2x4xi8> {
  %p = stablehlo.constant dense<[33, -2, 16, 127]> : tensor<4xi8>
  %t = stablehlo.constant dense<TABLE> : tensor<16xi8>
  %u = "subquant.unpack"(%p) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>}
    : (tensor<4xi8>) -> tensor<8xNUMBER>
  %c = stablehlo.convert %u : (tensor<8xNUMBER>) -> tensor<8xi32>
  %k = stablehlo.constant dense<MASK> : tensor<8xi32>
  %a = stablehlo.and %c, %k : tensor<8xi32>
  %g = "stablehlo.gather"(%t, %a) {dimension_numbers = #stablehlo.gather<
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1>} : (tensor<16xi8>, tensor<8xi32>) -> tensor<8xi8>
  %r = stablehlo.reshape %g : (tensor<8xi8>) -> tensor<2x4xi8>
  return %r : tensor<2x4xi8>
}
"""


@pytest.mark.parametrize(
    ("number", "mask", "is_found"),
    [
        ("i8", 255, True),
        ("i8", 15, True),
        ("i8", 7, False),
        ("i4", 15, False),
        ("i4", 255, False),  # integers from 8 on are negative, and those of 8 bits beyond the table
    ],
)
def test_entries_of_a_table(number: str, mask: int, is_found: bool) -> None:
    table = [int(n) for n in BLOCK_TYPES["IQ4_NL"].metadata["table"]]
    text = LOOKED_UP.replace("TABLE", str(table)).replace("MASK", str(mask))
    numbers = [1, 2, 14, 15, 0, 1, 15, 7]
    wide = [n - 16 if n > 7 and number == "i4" else n for n in numbers]
    expected = np.array([table[min(n & mask, 15)] for n in wide], np.int8).reshape((2, 4))
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text.replace("NUMBER", number), context)
        [returned] = [op for op in walk(module.operation) if op.name == "func.return"]
        [value] = returned.operands
        np.testing.assert_array_equal(
            constant_elements(value, ModuleGlobals(module.operation)), expected
        )
        module_globals = ModuleGlobals(module.operation)
        codebook = Codebook.of(value, module_globals)
        assert (codebook is not None) == is_found
        if codebook is not None:
            indices = codebook.indices(module_globals)
            np.testing.assert_array_equal(indices, np.reshape(numbers, (2, 4)))
            entries = codebook.entries(0, module_globals)
            np.testing.assert_array_equal(entries.view(np.int8), expected)
            shifted = expected.astype(np.int64) + 128
            np.testing.assert_array_equal(codebook.entries(128, module_globals), shifted)


def test_values_with_two_users_are_evaluated_once() -> None:
    """A chain of 60 doublings would take 2**60 evaluations else."""
    steps = [f"  %{n} = stablehlo.add %{n - 1}, %{n - 1} : tensor<2xf32>" for n in range(1, 61)]
    text = f"""
func.func @main() -> tensor<2xf32> {{
  %0 = stablehlo.constant dense<[0.5, -3.0]> : tensor<2xf32>
{chr(10).join(steps)}
  return %60 : tensor<2xf32>
}}"""
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text, context)
        [returned] = [op for op in walk(module.operation) if op.name == "func.return"]
        elements = constant_elements(returned.operands[0], ModuleGlobals(module.operation))
        assert elements is not None
        assert elements.tolist() == [2.0**59, -3 * 2.0**60]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add", [-106, 126, -2]), ("subtract", [50, -128, 0]), ("multiply", [-120, -127, 1])],
)
def test_integers_wrap_around(operation: str, expected: list[int]) -> None:
    """100 + 50 is 150, which is -106 in 8 bits; 100 * 50 is 19 * 256 + 136."""
    left, right = [100, -1, -1], [50, 127, -1]
    text = f"""
func.func @main() -> tensor<3xi8> {{
  %l = stablehlo.constant dense<{[each + 512 for each in left]}> : tensor<3xi64>
  %a = stablehlo.convert %l : (tensor<3xi64>) -> tensor<3xi8>
  %b = stablehlo.constant dense<{right}> : tensor<3xi8>
  %c = stablehlo.{operation} %a, %b : tensor<3xi8>
  return %c : tensor<3xi8>
}}"""
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text, context)
        [returned] = [op for op in walk(module.operation) if op.name == "func.return"]
        assert (
            constant_elements(returned.operands[0], ModuleGlobals(module.operation)).tolist()
            == expected
        )  # type: ignore[union-attr]


@pytest.mark.parametrize("types", [("f32", "i32"), ("ui8", "i32"), ("i1", "i32")])
def test_conversions_that_numpy_defines_otherwise_are_not_constant(types: tuple[str, str]) -> None:
    source, result = (f"tensor<2x{each}>" for each in types)
    text = f"""
func.func @main() -> {result} {{
  %a = stablehlo.constant dense<1> : {source}
  %b = stablehlo.convert %a : ({source}) -> {result}
  return %b : {result}
}}""".replace("dense<1> : tensor<2xf32>", "dense<1.5> : tensor<2xf32>")
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text, context)
        [returned] = [op for op in walk(module.operation) if op.name == "func.return"]
        assert not is_constant(returned.operands[0], ModuleGlobals(module.operation))


def test_what_nobody_uses_goes() -> None:
    text = PROGRAM.replace("%m, %u, %n :", "%m, %k2, %n :").replace(
        "  return", "  %k2 = stablehlo.constant dense<1> : tensor<4xi8>\n  return"
    )
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text, context)
        unpack = next(op for op in walk(module.operation) if op.name == "subquant.unpack")
        erase_unused(unpack.results[0])
        left = [op.name for op in walk(module.operation)]
        assert "subquant.unpack" not in left
        assert "stablehlo.xor" not in left
        assert "stablehlo.slice" not in left
        assert left.count("stablehlo.constant") == 2
        assert left.count("stablehlo.multiply") == 2


def test_constants_of_one_number_lie_in_the_executable(cpu: None) -> None:
    """IREE fills memory with a splat at each call, before a kernel may begin."""
    text = """
    func.func @main(%x: tensor<2x64xi8>) -> tensor<2x80xi32> {
      %w = stablehlo.constant dense<3> : tensor<64x80xi8>
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
           : (tensor<2x64xi8>, tensor<64x80xi8>) -> tensor<2x80xi32>
      return %y : tensor<2x80xi32>
    }"""
    module = parse_text(compile_to_bytes(text, emit="mlir").decode(), create_context())
    [call] = [op for op in walk(module.operation) if op.name == "flow.dispatch"]
    producers = [
        each.owner.operation for each in call.operands if not isinstance(each.owner, ir.Block)
    ]
    constants = [op.attributes["value"] for op in producers if op.name == "arith.constant"]
    assert len(constants) == 2  # the weight, and the initial accumulators
    assert not any(isinstance(each, ir.DenseElementsAttr) and each.is_splat for each in constants)
    x = np.random.default_rng(7).integers(-128, 128, (2, 64), np.int8)
    expected = x.astype(np.int64) @ np.full((64, 80), 3)
    np.testing.assert_array_equal(subquant.compile(text).main(x), expected)


def test_integers_are_evaluated_in_their_type() -> None:
    """A ui8 is extended with zeros, an i4 wraps, and a shift by all bits gives 0."""
    text = """
func.func @main() -> (tensor<2xi32>, tensor<2xi4>, tensor<2xi8>, tensor<2xf32>) {
  %u = stablehlo.constant dense<[200, 7]> : tensor<2xui8>
  %w = stablehlo.convert %u : (tensor<2xui8>) -> tensor<2xi32>
  %n = stablehlo.constant dense<[7, -8]> : tensor<2xi4>
  %o = stablehlo.add %n, %n : tensor<2xi4>
  %b = stablehlo.constant dense<[-100, -1]> : tensor<2xi8>
  %c = stablehlo.constant dense<[3, 8]> : tensor<2xi8>
  %s = stablehlo.shift_right_logical %b, %c : tensor<2xi8>
  %t = stablehlo.constant dense<[true, false]> : tensor<2xi1>
  %f = stablehlo.convert %t : (tensor<2xi1>) -> tensor<2xf32>
  return %w, %o, %s, %f : tensor<2xi32>, tensor<2xi4>, tensor<2xi8>, tensor<2xf32>
}"""
    with create_context() as context, ir.Location.unknown():
        module = parse_text(text, context)
        [returned] = [op for op in walk(module.operation) if op.name == "func.return"]
        arrays = [evaluate(operand.owner.operation) for operand in returned.operands]
    expected = [([200, 7], "i4"), ([-2, 0], "i1"), ([19, 0], "i1"), ([1, 0], "f4")]
    for array, (elements, dtype) in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, np.array(elements, dtype), strict=True)
