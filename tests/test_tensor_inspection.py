"""Inspected quantized tensors: records, JSON and table, with values worked out by hand."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from inspected import PER_AXIS, PER_TENSOR, SUB_CHANNEL, argument, inspect, show
from subquant.commands.scale_plots import render_scales
from subquant.commands.tables import render_table
from subquant.compiler import mlir_client
from subquant.compiler.inspected_tensors import to_json
from subquant.compiler.pipeline import run_pipeline
from subquant.compiler.tensor_inspection import inspect_module
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.errors import Place, UnsupportedError, UsageError, VerificationError
from subquant.transforms.quantization.verify_quantization import VerifyQuantization


def test_records_from_a_child(tmp_path: Path) -> None:
    """Arrays of any length come over as they are; names are those of the file."""
    scales = np.random.default_rng(1).uniform(0.01, 1, (2, 50)).astype(np.float32)
    rows = (", ".join(f"{scale:.9g}:-{n}" for n, scale in enumerate(row)) for row in scales)
    text = ", ".join(f"{{{row}}}" for row in rows)
    file = tmp_path / "x.mlir"
    file.write_text(
        f"!q = !quant.uniform<i8:f32:{{0:1, 1:2}}, {{{text}}}>\n"
        "func.func @f(%x: tensor<2x100xf32>) {\n"
        "  %named = quant.qcast %x : tensor<2x100xf32> to tensor<2x100x!q>\n"
        "  %too = quant.qcast %x : tensor<2x100xf32> to tensor<2x100x!q>\n  return\n}\n"
    )
    named, too = mlir_client.inspect(file)
    assert (named.name, too.name) == ("%named", "%too")
    for tensor in (named, too):
        np.testing.assert_array_equal(tensor.parameters.scales, scales)
        np.testing.assert_array_equal(tensor.parameters.zero_points, [-np.arange(50)] * 2)


def test_many_parameters_take_less_time_than_the_parser_of_them() -> None:
    def lap() -> float:
        nonlocal before
        before, since = time.process_time(), before
        return before - since

    text = ", ".join(f"{0.5 + n / 2**20}:{n % 16 - 8}" for n in range(200_000))
    text = f"func.func private @f(tensor<200000x!quant.uniform<i4:f32:{{0:1}}, {{{text}}}>>)"
    context = create_context()
    before = time.process_time()
    module = ir.Module.parse(text, context)
    parsed = lap()
    run_pipeline(module, [VerifyQuantization()])
    (tensor,) = inspect_module(module)
    assert lap() < parsed / 4
    assert tensor.scale_count == 200_000


def test_per_tensor() -> None:
    tensor = argument(PER_TENSOR)
    assert (tensor.name, tensor.function, tensor.where) == ("%arg0", "f", "argument")
    assert tensor.place == Place("-", 1, 14)
    assert tensor.parameters.granularity == "per-tensor"
    assert (tensor.shape, tensor.block_shape, tensor.elements) == ((4, 6), (4, 6), 24)
    assert (tensor.scale_type, tensor.scale_count, tensor.scale_bits) == ("f32", 1, 40)
    assert (tensor.scale_range, tensor.zero_point_range) == ((0.5, 0.5), (128, 128))
    assert (tensor.storage_bytes, tensor.scale_bytes) == (24, 5)
    assert tensor.bits_per_element == 8 + 40 / 24


def test_per_axis_without_zero_points() -> None:
    tensor = argument(PER_AXIS)
    assert tensor.parameters.granularity == "per-axis"
    assert tensor.block_shape == (1, 8)
    assert (tensor.scale_type, tensor.scale_count, tensor.scale_range) == ("f16", 3, (1.0, 4.0))
    assert (tensor.storage_bytes, tensor.scale_bytes) == (24, 6)
    assert tensor.bits_per_element == 10.0


def test_sub_channel_over_two_axes() -> None:
    tensor = argument(SUB_CHANNEL)
    assert str(tensor.parameters.storage) == "i4<-7:7>"
    assert (tensor.block_shape, tensor.scale_count) == ((2, 3), 4)
    assert (tensor.scale_range, tensor.zero_point_range) == ((0.5, 4.0), (-7, 3))
    assert (tensor.storage_bytes, tensor.scale_bytes) == (12, 18)
    assert tensor.bits_per_element == 4 + 36 * 4 / 24


@pytest.mark.parametrize("type_", [PER_TENSOR, PER_AXIS, SUB_CHANNEL])
def test_bits_agree_with_the_parameters(type_: str) -> None:
    tensor = argument(type_)
    assert tensor.shape is not None
    shape = [extent or 0 for extent in tensor.shape]
    assert tensor.bits_per_element == tensor.parameters.bits_per_element(shape)


def test_unranked() -> None:
    quantized = "tensor<*x!quant.uniform<i8:f32:{1:2}, {1.0, 2.0}>>"
    (tensor,) = inspect(
        f"""func.func @f(%x: tensor<*xf32>) -> {quantized} {{
          %q = "subquant.qcast"(%x) : (tensor<*xf32>) -> {quantized}
          return %q : {quantized}
        }}"""
    )
    assert (tensor.name, tensor.where) == ("%0", "result of 'subquant.qcast'")
    assert tensor.place == Place("-", 2, 16)
    assert (tensor.shape, tensor.block_shape, tensor.elements) == (None, None, None)
    assert (tensor.storage_bytes, tensor.bits_per_element) == (None, None)
    assert (tensor.scale_count, tensor.scale_bytes) == (2, 8)
    assert "axis 1: 2" in show(render_table([tensor]))


def test_ragged_last_block() -> None:
    quantized = "tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>"
    (tensor,) = inspect(
        f"""func.func @f(%x: tensor<5xf32>) {{
          %q = "subquant.qcast"(%x) : (tensor<5xf32>) -> {quantized}
          return
        }}"""
    )
    assert (tensor.block_shape, tensor.scale_count, tensor.elements) == ((2,), 3, 5)
    assert tensor.bits_per_element == 8 + 32 * 3 / 5


def test_dynamic_dimension() -> None:
    tensor = argument("tensor<?x4x!quant.uniform<i8:f32:1, {1.0, 2.0, 3.0, 4.0}>>")
    assert (tensor.shape, tensor.block_shape) == ((None, 4), (None, 1))
    assert (tensor.elements, tensor.storage_bytes, tensor.bits_per_element) == (None, None, None)
    assert tensor.scale_bytes == 16
    assert "?x4" in show(render_table([tensor]))


def test_scalars() -> None:
    bare = argument("!quant.uniform<i8:f32, 0.5>")
    for tensor in (bare, argument("tensor<!quant.uniform<i8:f32, 0.5>>")):
        assert (tensor.shape, tensor.block_shape, tensor.elements) == ((), (), 1)
        assert tensor.bits_per_element == 40
    assert "scalar" in show(render_table([bare]))


def test_each_value_once_in_program_order() -> None:
    tensors = inspect(
        f"""func.func @f(%c: i1, %x: {PER_TENSOR}) -> {PER_TENSOR} {{
          %s = "quant.scast"(%x) : ({PER_TENSOR}) -> tensor<4x6xi8>
          %r = "t.loop"(%x) ({{
          ^bb0(%b: {PER_TENSOR}):
            "t.end"(%b) : ({PER_TENSOR}) -> ()
          }}) : ({PER_TENSOR}) -> {PER_TENSOR}
          cf.br ^next(%r : {PER_TENSOR})
        ^next(%n: {PER_TENSOR}):
          return %n : {PER_TENSOR}
        }}
        func.func private @g({PER_AXIS}, f32) -> (f32, {PER_TENSOR})"""
    )
    assert [(tensor.function, tensor.name, tensor.where) for tensor in tensors] == [
        ("f", "%arg1", "argument"),
        ("f", "%2", "block argument of 'func.func'"),
        ("f", "%1", "result of 't.loop'"),
        ("f", "%arg2", "block argument of 't.loop'"),
        ("g", "argument 0", "argument"),
        ("g", "result 1", "function result"),
    ]


def test_refuses_types_without_uniform_parameters() -> None:
    with pytest.raises(UnsupportedError, match="must have uniform parameters"):
        argument("tensor<4x!quant.any<i8:f32>>")


ATTRIBUTES = "{block_sizes = array<i64: 1, 4>, quantized_type = !quant.any<%s:f32>%s}"


def operands_there(zero_points: int = 0, offsets: int = 0) -> str:
    return f", operandSegmentSizes = array<i32: 1, 1, {zero_points}, {offsets}>"


def test_operands_with_constant_scales() -> None:
    attributes = ATTRIBUTES % ("u4", "")
    described = ATTRIBUTES % ("u4", operands_there(zero_points=1))
    (tensor,) = inspect(
        f"""func.func @f(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {{
          %s = arith.constant dense<[[0.5, 1.0], [2.0, 4.0]]> : tensor<2x2xf16>
          %z = arith.constant dense<[[0, 1], [7, -1]]> : tensor<2x2xi4>
          %q = "subquant.quantize"(%x, %s, %z) {attributes}
            : (tensor<2x8xf32>, tensor<2x2xf16>, tensor<2x2xi4>) -> tensor<2x8xi4>
          %y = "subquant.dequantize"(%q, %s, %z) {described}
            : (tensor<2x8xi4>, tensor<2x2xf16>, tensor<2x2xi4>) -> tensor<2x8xf32>
          return %y : tensor<2x8xf32>
        }}"""
    )
    assert (tensor.name, tensor.where) == ("%0", "result of 'subquant.quantize'")
    assert (tensor.shape, tensor.block_shape) == ((2, 8), (1, 4))
    assert (tensor.parameters.axes, tensor.parameters.block_sizes) == ((0, 1), (1, 4))
    assert tensor.parameters.granularity == "sub-channel"
    assert str(tensor.parameters.storage) == "u4"
    assert (tensor.scale_type, tensor.scale_count, tensor.scale_bits) == ("f16", 4, 20)
    assert (tensor.scale_range, tensor.zero_point_range) == ((0.5, 4.0), (0, 15))
    assert tensor.bits_per_element == 4 + 20 * 4 / 16
    np.testing.assert_array_equal(tensor.parameters.scales, [[0.5, 1], [2, 4]])


def test_operands_from_arguments() -> None:
    (tensor,) = inspect(
        f"""func.func @f(%q: tensor<2x8xi4>, %s: tensor<2x2xf32>) -> tensor<2x8xf32> {{
          %y = "subquant.dequantize"(%q, %s) {ATTRIBUTES % ("i4", operands_there())}
            : (tensor<2x8xi4>, tensor<2x2xf32>) -> tensor<2x8xf32>
          return %y : tensor<2x8xf32>
        }}"""
    )
    assert (tensor.name, tensor.where) == ("%arg0", "operand of 'subquant.dequantize'")
    assert (tensor.scale_range, tensor.zero_point_range) == (None, (0, 0))
    assert np.isnan(tensor.parameters.scales).all()
    assert (tensor.scale_count, tensor.bits_per_element) == (4, 4 + 32 * 4 / 16)
    assert to_json([tensor])[0]["scales"]["minimum"] is None
    assert "at run time" in show(render_table([tensor]))
    with pytest.raises(UsageError, match="known at run time only"):
        render_scales(tensor)


@pytest.mark.parametrize(
    ("sizes", "scales", "granularity", "axes"),
    [("4, 8", "1x1", "per-tensor", ()), ("1, 8", "4x1", "per-axis", (0,))],
)
def test_operands_are_given_their_simplest_granularity(
    sizes: str, scales: str, granularity: str, axes: tuple[int, ...]
) -> None:
    (tensor,) = inspect(
        f"""func.func @f(%q: tensor<4x8xi8>, %z: tensor<{scales}xi8>) {{
          %s = arith.constant dense<0.5> : tensor<{scales}xf32>
          %y = "subquant.dequantize"(%q, %s, %z)
            {{block_sizes = array<i64: {sizes}>, quantized_type = !quant.any<i8:f32>
              {operands_there(zero_points=1)}}}
            : (tensor<4x8xi8>, tensor<{scales}xf32>, tensor<{scales}xi8>) -> tensor<4x8xf32>
          return
        }}"""
    )
    assert (tensor.parameters.granularity, tensor.parameters.axes) == (granularity, axes)
    assert (tensor.scale_range, tensor.zero_point_range) == ((0.5, 0.5), None)
    show(render_scales(tensor))


def test_super_blocks_count_scales_with_their_own_bits() -> None:
    tensors = inspect(
        """func.func @f(%q: tensor<2x64xi4>, %s: tensor<2x8xi6>, %d: tensor<2x1xf16>) {
          %scales = "subquant.dequantize"(%s, %d)
            {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>,
             quantized_type = !quant.any<u6:f32>}
            : (tensor<2x8xi6>, tensor<2x1xf16>) -> tensor<2x8xf32>
          %y = "subquant.dequantize"(%q, %scales)
            {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>,
             quantized_type = !quant.any<i4:f32>}
            : (tensor<2x64xi4>, tensor<2x8xf32>) -> tensor<2x64xf32>
          return
        }"""
    )
    inner, outer = tensors
    assert (inner.holds_scales, outer.holds_scales) == (True, False)
    assert inner.bits_per_element == 6 + 16 * 2 / 16
    assert outer.bits_per_element == 4 + 8 * 16 / 128
    assert outer.scale_bytes == 16
    table = show(render_table(tensors))
    assert re.search(r"total +128 .* 5\.00 ", table)
    assert "1 of 2 tensors" in table


def test_operation_without_attributes() -> None:
    with pytest.raises(VerificationError, match=r"-:2:.*'subquant.dequantize' op must have"):
        inspect(
            """func.func @f(%q: tensor<2x8xi4>, %s: tensor<2x2xf32>) {
              %y = "subquant.dequantize"(%q, %s) {block_sizes = 1, quantized_type = i4,
                operandSegmentSizes = array<i32: 1, 1, 0, 0>}
                : (tensor<2x8xi4>, tensor<2x2xf32>) -> tensor<2x8xf32>
              return
            }"""
        )


def test_json_is_exact() -> None:
    (records,) = to_json([argument(SUB_CHANNEL)])
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    assert records == {
        "name": "%arg0",
        "function": "f",
        "where": "argument",
        "shape": [4, 6],
        "block_shape": [2, 3],
        "place": {"file": "-", "line": 1, "column": 14},
        "granularity": "sub-channel",
        "axes": [0, 1],
        "block_sizes": [2, 3],
        "storage": {"width": 4, "signed": True, "minimum": -7, "maximum": 7},
        "expressed": "f32",
        "elements": 24,
        "bits_per_element": 10.0,
        "storage_bytes": 12,
        "scale_bytes": 18,
        "holds_scales": False,
        "scales": {"type": "f32", "count": 4, "minimum": 0.5, "maximum": 4.0},
        "zero_points": {"count": 4, "minimum": -7, "maximum": 3},
    }


@pytest.mark.parametrize("width", [80, 100])
def test_table_groups_and_totals(width: int) -> None:
    tensors = inspect(
        f"""func.func @f(%x: {PER_AXIS}, %w: {SUB_CHANNEL}) {{ return }}
        func.func @g(%x: {PER_TENSOR}) {{ return }}"""
    )
    printed = [line.rstrip() for line in show(render_table(tensors), width).splitlines()]
    assert max(map(len, printed)) <= width
    squeezed = [" ".join(line.split()) for line in printed]
    assert "@f" in squeezed
    assert "%arg1 4x6 i4<-7:7>:f32 10.00 4 -7..3" in squeezed
    assert "argument 2x3 sub-channel 30 bytes 0.5..4" in squeezed
    assert "total 48 36 bytes 10.00 7" in squeezed
    assert "module total 72 60 bytes 9.89 8" in squeezed
    assert "3 tensors elements storage 89 bytes 29 bytes" in squeezed


def test_table_of_nothing() -> None:
    assert show(render_table([])) == "no quantized tensors\n"
