"""Transposes of kernels' results, moved behind the operations that follow.

Kernels write images as NHWC, and the programs of ONNX and PyTorch have NCHW: a call is between
transposes. IREE moves those through elementwise operations only. Here they move through
concatenations, slices, padding, windows, and gathers along an axis, too, until they meet the
transpose ahead of the next kernel, and both are gone. Before::

    %a = stablehlo.transpose %x, dims = [0, 3, 1, 2] : ... -> tensor<1x64x56x56xf32>
    %b = stablehlo.transpose %y, dims = [0, 3, 1, 2] : ... -> tensor<1x32x56x56xf32>
    %c = stablehlo.concatenate %a, %b, dim = 1 : ... -> tensor<1x96x56x56xf32>

After::

    %c = stablehlo.concatenate %x, %y, dim = 3 : ... -> tensor<1x56x56x96xf32>
    %t = stablehlo.transpose %c, dims = [0, 3, 1, 2] : ... -> tensor<1x96x56x56xf32>

An operation is passed if each operand is transposed in the same way, is a constant of one number,
or is broadcast from fewer axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import splat_attribute
from ...dialects.quant import is_quantized
from ...emit import like
from ...emit import stablehlo as emit_stablehlo
from ...emit.gathers import AxisGather
from ...emit.operation import (
    dense,
    erase_unused,
    integers,
    is_used,
    producer_of,
    tensor_type,
    with_shape,
)
from ...emit.stablehlo_semantics import EVALUATED
from ...kernels.cpu.expression import DEQUANTIZE, QUANTIZE
from ..base import named

_TRANSPOSE, _BROADCAST = "stablehlo.transpose", "stablehlo.broadcast_in_dim"
_CONCATENATE, _GATHER = "stablehlo.concatenate", "stablehlo.gather"
_SLICE, _PAD = "stablehlo.slice", "stablehlo.pad"
_REDUCE_WINDOW = "stablehlo.reduce_window"
_BY_AXIS = {
    _SLICE: ("start_indices", "limit_indices", "strides"),
    _PAD: ("edge_padding_low", "edge_padding_high", "interior_padding"),
    QUANTIZE: ("block_sizes",),
    DEQUANTIZE: ("block_sizes",),
    _REDUCE_WINDOW: (
        *("window_dimensions", "window_strides", "window_dilations"),
        *("base_dilations", "padding"),
    ),
}
"""Attributes with numbers for each axis; elementwise operations have none."""
_ELEMENTWISE = frozenset(
    (
        *(name for name in EVALUATED if name.startswith("stablehlo.")),
        *("stablehlo.ceil", "stablehlo.exponential_minus_one", "stablehlo.log"),
        *("stablehlo.log_plus_one", "stablehlo.power", "stablehlo.rsqrt"),
        *("stablehlo.bitcast_convert", "math.erf"),
    )
)

_MOVED = frozenset((_TRANSPOSE, _BROADCAST, _CONCATENATE, _GATHER, *_BY_AXIS, *_ELEMENTWISE))
"""Operations that are erased when they are not used any more."""

_T = TypeVar("_T")


def sink_transposes(module: Operation) -> None:
    """Move the transposes of static tensors behind their users, as far as they can."""
    pending = named(module, [_TRANSPOSE])
    unused = list[Operation]()
    while pending:
        transpose = pending.pop()
        order = [int(axis) for axis in transpose.attributes["permutation"]]
        for user in dict.fromkeys(use.owner.operation for use in transpose.results[0].uses):
            if user.name in _MOVED and not is_used(user.results[0]):
                unused.append(user)  # it is replaced already, or a kernel computes it
                continue
            with ir.InsertionPoint(user), user.location:
                if user.name == _TRANSPOSE:
                    both = [order[int(axis)] for axis in user.attributes["permutation"]]
                    result = emit_stablehlo.transpose(transpose.operands[0], both)
                else:
                    moved = _moved(user, order)
                    if moved is None:
                        continue
                    result = emit_stablehlo.transpose(moved, order)
            user.results[0].replace_all_uses_with(result)
            unused.append(user)
            producer = producer_of(result)
            if producer is not None and producer.name == _TRANSPOSE:
                pending.append(producer)
        unused.append(transpose)
    erase_unused(*reversed(dict.fromkeys(unused)), also=lambda op: op.name in _MOVED)


def _moved(op: Operation, order: Sequence[int]) -> Value | None:
    """Emit an operation with its axes as before a transpose; None if it has no such form."""
    if len(op.results) != 1 or not isinstance(op.results[0].type, ir.RankedTensorType):
        return None
    result = op.results[0].type
    if not result.has_static_shape or result.rank != len(order):
        return None
    if is_quantized(result.element_type):  # its axis would have to move, too
        return None
    if op.name == _GATHER:
        return _gather(op, order)
    if op.name not in (_CONCATENATE, *_BY_AXIS, *_ELEMENTWISE):
        return None
    count = 1 if op.name in _BY_AXIS else len(op.operands)
    operands = [_operand(value, order) for value in list(op.operands)[:count]]
    if any(value is None for value in operands):
        return None
    parameters = list(op.operands)[count:]
    if op.name in (QUANTIZE, DEQUANTIZE) and any(
        math.prod(value.type.shape) != 1 for value in parameters
    ):
        return None
    sources = [value for value in operands if value is not None]
    if op.name == _CONCATENATE:
        return emit_stablehlo.concatenate(sources, order[int(op.attributes["dimension"])])
    attributes = {
        name: _attribute_before(op.attributes[name], order)
        for name in _BY_AXIS.get(op.name, ())
        if name in op.attributes
    }
    type_ = with_shape(result, _before([int(size) for size in result.shape], order))
    moved = like(op, [*sources, *parameters], [type_], attributes, take_bodies=True)
    value: Value = moved.results[0]
    return value


def _attribute_before(attribute: ir.Attribute, order: Sequence[int]) -> ir.Attribute:
    """An attribute with numbers, or pairs of numbers, for each axis, before a transpose."""
    if isinstance(attribute, ir.DenseIntElementsAttr):  # the padding of windows
        return dense(
            np.array(_before(list(np.array(attribute)), order)), attribute.type.element_type
        )
    return integers(_before([int(number) for number in attribute], order))


def _before(numbers: Sequence[_T], order: Sequence[int]) -> list[_T]:
    """Numbers of axes in the order before a transpose."""
    return [numbers[order.index(axis)] for axis in range(len(order))]


def _operand(value: Value, order: Sequence[int]) -> Value | None:
    """An operand before a transpose; None if it is neither transposed so nor broadcast."""
    op, type_ = producer_of(value), value.type
    if op is None or not isinstance(type_, ir.RankedTensorType):
        return None
    if not type_.rank:
        return value
    if op.name == _TRANSPOSE:
        own = [int(axis) for axis in op.attributes["permutation"]]
        return op.operands[0] if own == list(order) else None
    if not type_.has_static_shape or type_.rank != len(order):
        return None
    shape = _before([int(size) for size in type_.shape], order)
    attribute = splat_attribute(value, ())
    if attribute is not None:
        own_type = tensor_type(shape, type_.element_type)
        number = attribute.get_splat_value()
        return emit_stablehlo.constant_of(ir.DenseElementsAttr.get_splat(own_type, number))
    if op.name == _BROADCAST and op.operands[0].type.rank < len(order):
        axes = [order[int(axis)] for axis in op.attributes["broadcast_dimensions"]]
        return emit_stablehlo.broadcast(op.operands[0], with_shape(type_, shape), axes)
    return None


def _gather(op: Operation, order: Sequence[int]) -> Value | None:
    """Emit a gather along one axis before a transpose of the table."""
    gather = AxisGather.of(op)
    source = _operand(op.operands[0], order)
    if gather is None or source is None or gather.indices.type.rank > 2:
        return None
    remaining = [axis for axis in range(len(order)) if axis != gather.axis]
    size = math.prod(map(int, gather.indices.type.shape))
    if gather.offsets != remaining or op.results[0].type.shape[gather.axis] != size:
        return None
    indices = emit_stablehlo.reshape(gather.indices, [size])
    return emit_stablehlo.take(source, indices, order[gather.axis])
