"""Between reals and integers, as ONNX's specification says.

``QuantizeLinear`` is ``saturate(round_half_even(x / scale) + zero_point)``: the zero point is added
after rounding, so an odd one does not decide ties.

Sources: ONNX, operators QuantizeLinear 10 to 28, DequantizeLinear 10 to 28, DynamicQuantizeLinear
11, Cast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, is_known
from ....numerics.element_types import F32, I32, AnyArray, DType, ElementType
from ....numerics.parameters import EXPRESSED_TYPES
from ....numerics.small_floats import SMALL_FLOATS, PowerOfTwo
from ..call import Call, Operand, Typed, importer
from ..reading.model import ELEMENTS, element_of
from .expressed import ExpressedValue, Quantized, ScaledSum, clamped, requantize_sum, rounded

__all__ = ["parameters", "quantized", "stored", "type_name"]

_STORAGE = frozenset(
    ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")
)


def type_name(call: Call, number: int) -> str:
    """Return ONNX's name of an element type with a number."""
    from onnx import TensorProto

    try:
        return str(TensorProto.DataType.Name(number))
    except ValueError:
        raise call.error(f"is to the unknown type {number}") from None


def grid(
    call: Call, operand: Operand, shape: Sequence[int], axis: int, block_size: int = 0
) -> tuple[AnyArray, tuple[int, ...]]:
    """Scales or zero points with an axis for each of a tensor, and the sizes of blocks.

    Args:
        call: the node.
        operand: one number, one for each index of `axis`, or one for each block along it.
        shape: of the tensor.
        axis: of the tensor.
        block_size: 0 for one or a vector.
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
    """Scales, zero points (None for 0), and the sizes of blocks, of inputs by their numbers."""
    scales, sizes = grid(call, call.input(scale), shape, axis, block_size)
    operand = call.optional(zero_point)
    if operand is None:
        return scales, None, sizes
    zero_points, other = grid(call, operand, shape, axis, block_size)
    if other != sizes:
        raise call.error(f"has scales of shape {list(call.input(scale).shape)} and zero points of "
                         f"shape {list(operand.shape)}")  # fmt: skip
    if is_known(zero_points) and not np.any(zero_points):
        return scales, None, sizes
    return scales, zero_points, sizes


def quantized(call: Call, index: int, scale: int, zero_point: int, axis: int = 1) -> Quantized:
    """An input with its parameters, of further inputs."""
    operand = call.input(index)
    if operand.type not in _STORAGE:
        raise call.error(f"has {operand} of type {operand.type}, expected integers")
    scales, zero_points, sizes = parameters(call, operand.shape, scale, zero_point, axis)
    return Quantized(operand.value, operand.type, scales, zero_points, sizes)


def stored(call: Call, real: ExpressedValue, scale: int, zero_point: int) -> Typed:
    """A real in the parameters of one or two further inputs, with one scale.

    The zero point says the type. Without one it is that of the first operand: the operators of ONNX
    Runtime have one type for both (``T`` in ``ContribOperators.md``).
    """
    type_ = call.input(0 if call.optional(zero_point) is None else zero_point).type
    if type_ not in _STORAGE or type_ == "INT32":
        raise call.error(f"to {type_} is not lowered", UnsupportedError)
    total = real.sum() if isinstance(real, Quantized) else real
    shape = tuple((total if total is not None else real).shape)
    scales, zero_points, sizes = parameters(call, shape, scale, zero_point, 1)
    if isinstance(total, ScaledSum):
        _say_how(call, total, scales)
        steps = requantize_sum(total, scales.astype(np.float32))
    else:
        call.with_floats("its function of reals is computed with floats")
        whole = call.floats(real)
        steps = rounded(whole, scales, sizes)
    return Typed(type_, clamped(steps, zero_points, type_))


def _say_how(call: Call, total: ScaledSum, scales: AnyArray) -> None:
    """Integers are summed as such; they are rounded as such where all scales are known."""
    if total.is_exact and is_known(scales):
        call.with_integers()
    else:
        call.with_floats("a scale is an argument, or 0: integers are summed, and rounded as floats")


# -- operators ------------------------------------------------------------------------------------


@importer("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_linear(call: Call) -> Typed:
    """Per tensor, per axis, or in blocks along an axis."""
    call = _with_plain_scales(call)
    operand = call.input(0)
    shape, block_size = operand.shape, call.attribute("block_size", 0)
    type_ = _output_type(call)
    axis = call.attribute("axis", 1)
    if type_ in SMALL_FLOATS:
        return _small(call, type_)
    scales, zero_points, sizes = parameters(call, shape, 1, 2, axis, block_size)
    real, precision = operand.value, _precision(call, scales)
    total = real.sum() if isinstance(real, Quantized) else real
    is_known_sum = isinstance(total, ScaledSum) and total.is_exact and is_known(scales)
    if isinstance(total, ScaledSum) and is_known_sum and not block_size and precision == np.float32:
        call.with_integers()
        steps = requantize_sum(total, scales.astype(np.float32))
    else:
        if block_size:
            call.with_floats("it has scales for blocks")
        elif isinstance(total, ScaledSum):
            call.with_floats(
                f"it divides in {precision.name}"
                if is_known_sum
                else "a scale is an argument, or 0"
            )
        else:
            call.with_floats("its input is float")
        floats = convert(call.floats(real), ElementType.of_dtype(precision))
        steps = rounded(floats, scales, sizes)
        if block_size and zero_points is not None:
            zero_points = _spread(zero_points, shape, sizes)
    return Typed(type_, clamped(steps, zero_points, type_))


def _with_plain_scales(call: Call) -> Call:
    """The same node with scales as floats, where the file has powers of two as their codes."""
    scale = call.input(1)
    small = SMALL_FLOATS.get(scale.type)
    if not isinstance(small, PowerOfTwo):
        return call
    plain = Operand(scale.name, "FLOAT", small.decode(scale.value, np.float32))
    return replace(call, inputs=[call.inputs[0], plain, *call.inputs[2:]])


def _precision(call: Call, scales: AnyArray) -> DType:
    """What the division is computed in: what the node says, or the type of the scales."""
    asked = call.attribute("precision", 0)
    type_ = type_name(call, asked) if asked else call.input(1).type
    if call.node.operator.startswith("com.microsoft.") and type_ == "FLOAT16":
        type_ = "FLOAT"  # as ONNX Runtime divides
    if ELEMENTS.get(type_) not in EXPRESSED_TYPES:
        raise call.error(
            f"divides in the precision {type_}, which is not lowered", UnsupportedError
        )
    return element_of(type_).dtype


def _spread(grid_: AnyArray, shape: Sequence[int], sizes: Sequence[int]) -> AnyArray:
    """One number for each element."""
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if size > 1:
            repeated = np.repeat(grid_, size, axis=axis)
            grid_ = repeated[(slice(None),) * axis + (slice(0, extent),)]
    return grid_


def _output_type(call: Call) -> str:
    asked = call.attribute("output_dtype", 0)
    zero_point = call.optional(2)
    if zero_point is not None:
        type_ = zero_point.type
        if asked and type_name(call, asked) != type_:
            raise call.error(f"says {type_name(call, asked)}, and has zero points of {type_}")
    else:
        type_ = type_name(call, asked) if asked else "UINT8"
    if type_ not in SMALL_FLOATS and (type_ not in _STORAGE or type_ == "INT32"):
        raise call.error(f"to {type_} is not lowered", UnsupportedError)
    return type_


def _small(call: Call, type_: str) -> Typed:
    """To floats of 4 or 8 bits; a zero point of 0 makes a negative zero positive."""
    operand, small = call.input(0), SMALL_FLOATS[type_]
    if isinstance(small, PowerOfTwo):
        raise call.error(f"to {type_} is not lowered", UnsupportedError)
    axis, block_size = call.attribute("axis", 1), call.attribute("block_size", 0)

    def spread(index: int) -> AnyArray:
        values, sizes = grid(call, call.input(index), operand.shape, axis, block_size)
        return _spread(values, operand.shape, sizes) if block_size else values

    scales = spread(1)
    precision = ElementType.of_dtype(_precision(call, scales))
    real = convert(convert(call.floats(operand.value), precision), F32)
    quotient = real / convert(convert(scales, precision), F32)
    quotient = convert(convert(quotient, precision), F32)
    if call.optional(2) is not None:
        quotient = quotient + small.decode(spread(2), np.float32)
    return Typed(type_, small.encode(quotient, bool(call.attribute("saturate", 1))))


@importer("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(call: Call) -> ExpressedValue:
    """Integers and scales for now; small floats by a table."""
    is_power = call.input(1).type == "FLOAT8E8M0"
    call = _with_plain_scales(call)
    operand = call.input(0)
    axis, block_size = call.attribute("axis", 1), call.attribute("block_size", 0)
    scales, zero_points, sizes = parameters(call, operand.shape, 1, 2, axis, block_size)
    asked = call.attribute("output_dtype", 0)
    if is_power and not asked:
        raise call.error("has scales of FLOAT8E8M0 and no output_dtype", UnsupportedError)
    target = scales.dtype
    if asked:
        if ELEMENTS.get(type_name(call, asked)) not in EXPRESSED_TYPES:
            raise call.error(f"to {type_name(call, asked)} is not lowered", UnsupportedError)
        target = element_of(type_name(call, asked)).dtype
    if operand.type in SMALL_FLOATS:
        small = SMALL_FLOATS[operand.type]
        real = small.decode(operand.value, np.float32)
        if block_size:
            scales = _spread(scales, operand.shape, sizes)
            if zero_points is not None:
                zero_points = _spread(zero_points, operand.shape, sizes)
        if zero_points is not None:
            real = real - small.decode(zero_points, np.float32)
        return convert(real * convert(scales, F32), ElementType.of_dtype(target))
    if operand.type not in _STORAGE:
        raise call.error(f"of {operand.type} is not lowered", UnsupportedError)
    zero_operand = call.optional(2)
    if zero_operand is not None and zero_operand.type != operand.type:
        raise call.error(f"has zero points of {zero_operand.type} for {operand.type}")
    if np.dtype(target).itemsize < np.dtype(scales.dtype).itemsize:  # the product is rounded once
        call.with_floats(f"its scales are {scales.dtype.name}, and its result {target.name}")
        wide = Quantized(operand.value, operand.type, scales, zero_points, sizes)
        return convert(wide.dequantize(call.graph.lift), ElementType.of_dtype(target))
    return Quantized(operand.value, operand.type, scales.astype(target), zero_points, sizes)


@importer("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> list[Typed]:
    """To uint8, with the scale that the least and the greatest element ask for, and 0."""
    return list(dynamically_quantized(call.array(0)))


def dynamically_quantized(real: AnyArray) -> tuple[Typed, Typed, Typed]:
    """The storage, the scale and the zero point of f32 reals.

    All 0: the scale is 0 in the formula of the specification, and a division by it; like others
    this takes 1 for it then.
    """
    zero = np.float32(0)
    low, high = np.minimum(-((-real).max()), zero), np.maximum(real.max(), zero)
    scale = (high - low) / np.float32(255)
    divisor = np.where(scale == zero, np.float32(1), scale)
    steps = np.rint(zero - low / divisor)
    zero_point = np.minimum(np.maximum(convert(steps, I32), 0), 255)
    rank = len(real.shape)
    bounded = rounded(real, divisor.reshape((1,) * rank), tuple(real.shape))
    narrow = zero_point.astype(np.uint8)
    storage = clamped(bounded, zero_point, "UINT8")
    return Typed("UINT8", storage), Typed("FLOAT", divisor), Typed("UINT8", narrow)


@importer("Cast", "CastLike")
def cast(call: Call) -> Typed:
    """Between element types: floats are cut towards zero, integers wrap."""
    operand = call.input(0)
    is_like = call.node.operator == "CastLike"
    type_ = call.input(1).type if is_like else type_name(call, call.integer("to"))
    if type_ == operand.type:
        return Typed(type_, operand.value)
    if type_ in SMALL_FLOATS:
        small, is_saturating = SMALL_FLOATS[type_], bool(call.attribute("saturate", 1))
        value = call.array(0)
        if operand.type in SMALL_FLOATS:
            value = SMALL_FLOATS[operand.type].decode(value, np.float32)
        real = convert(value, F32)
        if isinstance(small, PowerOfTwo):
            mode = call.attribute("round_mode", "up")
            if mode not in ("up", "down", "nearest"):
                raise call.error(f"rounds {mode!r}")
            return Typed(type_, small.encode(real, is_saturating, mode))
        return Typed(type_, small.encode(real, is_saturating))
    try:
        element = element_of(type_)
    except KeyError:
        raise call.error(f"to {type_} is not lowered", UnsupportedError) from None
    value = call.array(0)
    if operand.type in SMALL_FLOATS:
        value = SMALL_FLOATS[operand.type].decode(value, np.float32)
    if element.bits in (2, 4):  # of a byte each: the lowest bits, with their sign
        low, half = convert(value, I32) & ((1 << element.bits) - 1), 1 << (element.bits - 1)
        number = low if element.kind == "uint" else (low ^ half) - half
        return Typed(type_, number.astype(element.dtype))
    return Typed(type_, convert(value, element))
