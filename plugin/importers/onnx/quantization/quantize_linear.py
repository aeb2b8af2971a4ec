"""Quantization, dequantization and casts between element types.

`subquant.importers.onnx.quantization.requantize` rounds.

Sources: ONNX, QuantizeLinear 10 to 28, DequantizeLinear 10 to 28, DynamicQuantizeLinear 11,
Cast 28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....numerics.array_functions import convert, is_known
from ....numerics.element_types import F32, I32, AnyArray, DType, ElementType
from ....numerics.parameters import EXPRESSED_TYPES
from ....numerics.small_floats import SMALL_FLOATS, PowerOfTwo
from ..call import Call, Operand, importer
from ..reading.model import ELEMENTS, element_of
from .expressed import ExpressedValue, Quantized, ScaledSum
from .requantize import add_zero_points, requantize_sum, round_to_steps

_STORAGE = frozenset(
    ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")
)


def grid(
    call: Call, operand: Operand, shape: Sequence[int], axis: int, block_size: int = 0
) -> tuple[AnyArray, tuple[int, ...]]:
    """Read scales or zero points with the rank of a tensor, and the block size along each axis.

    Args:
        operand: one number, one for each index of `axis`, or one for each block along it.
        shape: the shape of the tensor.
        axis: the quantized axis of the tensor.
        block_size: the block size along the axis; 0 for one number or a vector.
    """
    values, rank = operand.value, len(shape)
    count = math.prod(operand.shape)
    if block_size:
        axis = call.checked_axis(axis, rank)
        size = max(min(block_size, shape[axis]), 1)  # a block may be longer than the axis
        sizes = tuple(size if a == axis else 1 for a in range(rank))
        expected = tuple(-(-n // size) for n, size in zip(shape, sizes, strict=True))
        if operand.shape != expected:
            raise call.error(
                f"has {operand} of shape {list(operand.shape)}, expected {list(expected)} for "
                f"blocks of {block_size} along dimension {axis} of {list(shape)}"
            )
        return values, sizes
    if count == 1 and len(operand.shape) <= 1:
        return values.reshape((1,) * rank), tuple(shape)
    axis = call.checked_axis(axis, rank)
    if operand.shape != (shape[axis],):
        raise call.error(
            f"has {operand} of shape {list(operand.shape)}, expected [{shape[axis]}] for dimension "
            f"{axis} of {list(shape)}"
        )
    spread = values.reshape(tuple(n if a == axis else 1 for a, n in enumerate(shape)))
    return spread, tuple(1 if a == axis else n for a, n in enumerate(shape))


def parameters(
    call: Call, shape: Sequence[int], scale: int, zero_point: int, axis: int, block_size: int = 0
) -> tuple[AnyArray, AnyArray, tuple[int, ...]]:
    """Read scales, zero points (None for 0) and block sizes from inputs by their numbers."""
    scales, sizes = grid(call, call.input(scale), shape, axis, block_size)
    operand = call.optional(zero_point)
    if operand is None:
        return scales, None, sizes
    zero_points, zero_point_sizes = grid(call, operand, shape, axis, block_size)
    if zero_point_sizes != sizes:
        raise call.error(f"has scales of shape {list(call.input(scale).shape)} and zero points of "
                         f"shape {list(operand.shape)}")  # fmt: skip
    if is_known(zero_points) and not np.any(zero_points):
        return scales, None, sizes
    return scales, zero_points, sizes


def quantized(call: Call, index: int, scale: int, zero_point: int, axis: int = 1) -> Quantized:
    """Read a quantized operand: an input, and its parameters from further inputs."""
    operand = call.input(index)
    if operand.type not in _STORAGE:
        raise call.error(f"has {operand} of type {operand.type}, expected integers")
    scales, zero_points, sizes = parameters(call, operand.shape, scale, zero_point, axis)
    return Quantized(operand.value, operand.type, scales, zero_points, sizes)


def stored(call: Call, real: ExpressedValue, scale: int, zero_point: int) -> Operand:
    """Quantize a result with the scale, and the zero point if present, of further inputs.

    The zero point has the result's type. Without a zero point the result has the type of the first
    operand: the operators of ONNX Runtime have one type for both (``T`` in
    ``ContribOperators.md``).
    """
    type_ = call.input(0 if call.optional(zero_point) is None else zero_point).type
    if type_ not in _STORAGE or type_ == "INT32":
        raise call.unsupported(f"to {type_} is not lowered")
    total = real.as_sum() if isinstance(real, Quantized) else real
    shape = tuple((total if total is not None else real).shape)
    scales, zero_points, sizes = parameters(call, shape, scale, zero_point, 1)
    if isinstance(total, ScaledSum):
        if total.is_exact and is_known(scales):
            call.with_integers()
        else:
            call.with_floats(
                "a scale is an argument, or 0: integers are summed, and rounded as floats"
            )
        return Operand(type_, requantize_sum(total, scales.astype(np.float32), zero_points, type_))
    call.with_floats("its function of reals is computed with floats")
    steps = round_to_steps(call.floats(real), scales, sizes)
    return Operand(type_, add_zero_points(steps, zero_points, type_))


@importer("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_linear(call: Call) -> Operand:
    """QuantizeLinear-28: ``x, y_scale, y_zero_point``: per tensor, axis or block."""
    call = _with_float_scales(call)
    operand = call.input(0)
    shape, block_size = operand.shape, call.attribute("block_size", 0)
    type_ = _output_type(call)
    axis = call.attribute("axis", 1)
    if type_ in SMALL_FLOATS:
        return _quantized_to_small_float(call, type_)
    scales, zero_points, sizes = parameters(call, shape, 1, 2, axis, block_size)
    real, precision = operand.value, _precision(call)
    total = real.as_sum() if isinstance(real, Quantized) else real
    is_exact_sum = isinstance(total, ScaledSum) and total.is_exact and is_known(scales)
    if isinstance(total, ScaledSum) and is_exact_sum and not block_size and precision == np.float32:
        call.with_integers()
        return Operand(type_, requantize_sum(total, scales.astype(np.float32), zero_points, type_))
    reason = "its input is float"
    if block_size:
        reason = "it has scales for blocks"
    elif isinstance(total, ScaledSum):
        narrow = f"it divides in {precision.name}"
        reason = narrow if is_exact_sum else "a scale is an argument, or 0"
    call.with_floats(reason)
    floats = convert(call.floats(real), ElementType.of_dtype(precision))
    steps = round_to_steps(floats, scales, sizes)
    if block_size and zero_points is not None:
        zero_points = _per_element(zero_points, shape, sizes)
    return Operand(type_, add_zero_points(steps, zero_points, type_))


def _with_float_scales(call: Call) -> Call:
    """Return the node with scales as floats, where the file has powers of two as codes."""
    scale = call.input(1)
    small = SMALL_FLOATS.get(scale.type)
    if not isinstance(small, PowerOfTwo):
        return call
    decoded = Operand("FLOAT", small.decode(scale.value, np.float32), scale.name)
    return replace(call, inputs=[call.inputs[0], decoded, *call.inputs[2:]])


def _precision(call: Call) -> DType:
    """Return the dtype of the division: the attribute ``precision``, or that of the scales."""
    number = call.attribute("precision", 0)
    type_ = call.element_type_name(number) if number else call.input(1).type
    if call.node.operator.startswith("com.microsoft.") and type_ == "FLOAT16":
        type_ = "FLOAT"  # as ONNX Runtime divides
    if ELEMENTS.get(type_) not in EXPRESSED_TYPES:
        raise call.unsupported(f"divides in the precision {type_}, which is not lowered")
    return element_of(type_).dtype


def _per_element(grid_: AnyArray, shape: Sequence[int], sizes: Sequence[int]) -> AnyArray:
    """Repeat scales or zero points of blocks for each element."""
    for axis, (length, size) in enumerate(zip(shape, sizes, strict=True)):
        if size > 1:
            repeated = np.repeat(grid_, size, axis=axis)
            grid_ = repeated[(slice(None),) * axis + (slice(0, length),)]
    return grid_


def _output_type(call: Call) -> str:
    number, zero_point = call.attribute("output_dtype", 0), call.optional(2)
    stated = call.element_type_name(number) if number else ""
    type_ = stated or "UINT8"
    if zero_point is not None:
        type_ = zero_point.type
        if stated not in ("", type_):
            raise call.error(f"says {stated}, and has zero points of {type_}")
    if type_ not in SMALL_FLOATS and (type_ not in _STORAGE or type_ == "INT32"):
        raise call.unsupported(f"to {type_} is not lowered")
    return type_


def _quantized_to_small_float(call: Call, type_: str) -> Operand:
    """Quantize to floats of 4 or 8 bits.

    A zero point of 0 makes a negative zero of 4 bits positive, and none of 8 bits, as in
    `onnx.reference` and ONNX Runtime.
    """
    operand, small = call.input(0), SMALL_FLOATS[type_]
    if isinstance(small, PowerOfTwo):
        raise call.unsupported(f"to {type_} is not lowered")
    axis, block_size = call.attribute("axis", 1), call.attribute("block_size", 0)

    def parameter(index: int) -> AnyArray:
        values, sizes = grid(call, call.input(index), operand.shape, axis, block_size)
        return _per_element(values, operand.shape, sizes) if block_size else values

    scales = parameter(1)
    precision = ElementType.of_dtype(_precision(call))
    real = convert(convert(call.floats(operand.value), precision), F32)
    quotient = real / convert(convert(scales, precision), F32)
    quotient = convert(convert(quotient, precision), F32)
    if call.optional(2) is not None:
        zero_points = small.decode(parameter(2), np.float32)
        is_ignored = is_known(zero_points) and not np.any(zero_points) and "FLOAT8" in type_
        quotient = quotient if is_ignored else quotient + zero_points
    return Operand(type_, small.encode(quotient, bool(call.attribute("saturate", 1))))


@importer("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(call: Call) -> ExpressedValue:
    """DequantizeLinear-28: ``x, x_scale, x_zero_point``, as integers and scales."""
    is_power = call.input(1).type == "FLOAT8E8M0"
    call = _with_float_scales(call)
    operand = call.input(0)
    axis, block_size = call.attribute("axis", 1), call.attribute("block_size", 0)
    scales, zero_points, sizes = parameters(call, operand.shape, 1, 2, axis, block_size)
    number = call.attribute("output_dtype", 0)
    if is_power and not number:
        raise call.unsupported("has scales of FLOAT8E8M0 and no output_dtype")
    target = scales.dtype
    if number:
        stated = call.element_type_name(number)
        if ELEMENTS.get(stated) not in EXPRESSED_TYPES:
            raise call.unsupported(f"to {stated} is not lowered")
        target = element_of(stated).dtype
    if operand.type in SMALL_FLOATS:
        small = SMALL_FLOATS[operand.type]
        real = small.decode(operand.value, np.float32)
        if block_size:
            scales = _per_element(scales, operand.shape, sizes)
            if zero_points is not None:
                zero_points = _per_element(zero_points, operand.shape, sizes)
        if zero_points is not None:
            real = real - small.decode(zero_points, np.float32)
        return convert(real * convert(scales, F32), ElementType.of_dtype(target))
    if operand.type not in _STORAGE:
        raise call.unsupported(f"of {operand.type} is not lowered")
    zero_operand = call.optional(2)
    if zero_operand is not None and zero_operand.type != operand.type:
        raise call.error(f"has zero points of {zero_operand.type} for {operand.type}")
    if target not in (scales.dtype, np.float32):  # the product is rounded once
        call.with_floats(f"its scales are {scales.dtype.name}, and its result {target.name}")
        wide = convert(scales, F32)
        quantized_ = Quantized(operand.value, operand.type, wide, zero_points, sizes)
        return convert(quantized_.dequantize(call.graph.lift), ElementType.of_dtype(target))
    return Quantized(operand.value, operand.type, scales.astype(target), zero_points, sizes)


@importer("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> list[Operand]:
    """DynamicQuantizeLinear-11: ``x`` to uint8, its scale and its zero point."""
    return list(dynamically_quantized(call.array(0)))


def dynamically_quantized(real: AnyArray) -> tuple[Operand, Operand, Operand]:
    """Compute the storage, the scale and the zero point of f32 elements.

    If all elements are 0, or there are none, the specification's formula divides by a scale of 0.
    The scale is 1 then, as in other runtimes.
    """
    zero = np.float32(0)
    elements = np.zeros(1, np.float32) if 0 in real.shape else real
    low, high = np.minimum(-((-elements).max()), zero), np.maximum(elements.max(), zero)
    scale = (high - low) / np.float32(255)
    divisor = np.where(scale == zero, np.float32(1), scale)
    steps = np.rint(zero - low / divisor)
    zero_point = np.minimum(np.maximum(convert(steps, I32), 0), 255)
    rank = len(real.shape)
    rounded = round_to_steps(real, divisor.reshape((1,) * rank), tuple(real.shape))
    narrow = zero_point.astype(np.uint8)
    storage = add_zero_points(rounded, zero_point, "UINT8")
    return Operand("UINT8", storage), Operand("FLOAT", divisor), Operand("UINT8", narrow)


@importer("Cast", "CastLike")
def cast(call: Call) -> Operand:
    """Cast-28, CastLike-25: ``input`` as another type: floats are truncated, integers wrap."""
    operand = call.input(0)
    is_like = call.node.operator == "CastLike"
    type_ = call.input(1).type if is_like else call.element_type_name(call.integer("to"))
    if type_ == operand.type:
        return Operand(type_, operand.value)
    value = call.array(0)
    if operand.type in SMALL_FLOATS:
        value = SMALL_FLOATS[operand.type].decode(value, np.float32)
    if type_ in SMALL_FLOATS:
        small, is_saturating = SMALL_FLOATS[type_], bool(call.attribute("saturate", 1))
        real = convert(value, F32)
        if isinstance(small, PowerOfTwo):
            mode = call.attribute("round_mode", "up")
            return Operand(type_, small.encode(real, is_saturating, mode))
        return Operand(type_, small.encode(real, is_saturating))
    try:
        element = element_of(type_)
    except KeyError:
        raise call.unsupported(f"to {type_} is not lowered") from None
    if element.bits in (2, 4):  # a byte each: the lowest bits, sign-extended
        low, half = convert(value, I32) & ((1 << element.bits) - 1), 1 << (element.bits - 1)
        number = low if element.kind == "uint" else (low ^ half) - half
        return Operand(type_, number.astype(element.dtype))
    return Operand(type_, convert(value, element))
