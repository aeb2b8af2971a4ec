"""Operators that move elements: storage values stay what they are.

Source: LiteRT, ``reshape.cc``, ``concatenation.cc``, ``pad.cc``, ``strided_slice.cc`` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import bits_of, convert, lookup, take_slice
from ....numerics.element_types import I32, AnyArray, ElementType
from ..arithmetic import requantization
from ..call import Call, Operand, kernel

__all__ = ["padded_or_cut", "spread"]


def _of_batch(call: Call, shape: Sequence[int], count: int) -> tuple[int, ...]:
    """A shape that the file says for one batch, for as many elements as there are."""
    known = [int(n) for n in shape]
    if -1 not in known and math.prod(known) != count:
        signature = call.output.known_shape
        known = list(signature) if len(signature) == len(known) else known
        if -1 not in known and known and known[0] == 1:  # a batch of 1, as the file says it
            known[0] = -1
    rest = math.prod(n for n in known if n != -1)
    if known.count(-1) > 1 or (rest and count % rest) or (-1 not in known and rest != count):
        raise call.error(f"cannot give {count} elements the shape {known}")
    return tuple(count // rest if n == -1 and rest else max(n, 0) for n in known)


@kernel("RESHAPE")
def reshape(call: Call) -> AnyArray:
    """The shape is input 1, or an option, or the output's."""
    operand, count = call.input(0), math.prod(call.input(0).shape)
    shape = list(getattr(call.options, "new_shape", ()))  # input 1 has precedence
    if call.optional(1) is not None and call.input(1).is_constant:
        shape = call.constant(1).reshape(-1).tolist()
    elif not shape or call.optional(1) is not None:
        shape = list(call.output.known_shape)
    return operand.value.reshape(_of_batch(call, shape, count))


@kernel("SQUEEZE")
def squeeze(call: Call) -> AnyArray:
    """Without the dimensions of one element that the options name, or without all of them."""
    operand, rank = call.input(0), len(call.input(0).shape)
    axes = {call.checked_axis(int(axis), rank) for axis in call.options.squeeze_dims}
    if not axes:
        axes = {axis for axis, extent in enumerate(operand.shape) if extent == 1}
    if any(operand.shape[axis] != 1 for axis in axes):
        raise call.error(f"takes the dimensions {sorted(axes)} of {list(operand.shape)} away")
    return operand.value.reshape(
        tuple(extent for axis, extent in enumerate(operand.shape) if axis not in axes)
    )


@kernel("EXPAND_DIMS")
def expand_dims(call: Call) -> AnyArray:
    """With a dimension of one element at the place that input 1 says."""
    shape = call.input(0).shape
    axis = call.constant_axis(1, len(shape) + 1)
    return call.input(0).value.reshape((*shape[:axis], 1, *shape[axis:]))


@kernel("DENSIFY")
def densify(call: Call) -> AnyArray:
    """A constant that is stored sparse: it was densified when the file was read."""
    return call.input(0).value


@kernel("BITCAST")
def bitcast(call: Call) -> AnyArray:
    """The bits read as another type: narrower ones along a new last axis, the lowest first."""
    value, target = call.input(0).value, ElementType.parse(call.output.element)
    source = ElementType.of_dtype(value.dtype)
    if target.bits == source.bits:
        return bits_of(value, target)
    narrow, wide = (ElementType.parse(f"i{n}") for n in sorted((source.bits, target.bits)))
    count = wide.bits // narrow.bits
    if narrow.bits < 8:
        raise call.error(f"of {call.input(0).tensor.type} is not lowered", UnsupportedError)
    if target.bits < source.bits:
        bits = bits_of(value, wide)
        parts = [convert(bits >> (n * narrow.bits), narrow) for n in range(count)]
        return bits_of(np.stack(parts, axis=-1), target)
    if value.shape[-1] != count:
        raise call.error(f"makes {target} of {value.shape[-1]} elements of {narrow.bits} bits")
    bits = convert(bits_of(value, narrow), wide) & ((1 << narrow.bits) - 1)
    total = bits[..., 0]
    for n in range(1, count):
        total = total | (bits[..., n] << (n * narrow.bits))
    return bits_of(total, target)


@kernel("BROADCAST_ARGS")
def broadcast_shapes(call: Call) -> AnyArray:
    """The shape that tensors of two shapes have together."""
    shapes = [call.constant(index).reshape(-1).tolist() for index in range(2)]
    return np.array(np.broadcast_shapes(*map(tuple, shapes)), call.dtype(call.output))


@kernel("TRANSPOSE")
def transpose(call: Call) -> AnyArray:
    """The order is input 1."""
    return call.input(0).value.transpose(*map(int, call.constant(1).reshape(-1)))


def requantized(call: Call, operand: Operand) -> AnyArray:
    """An operand of a CONCATENATION, in the parameters of the result.

    LiteRT wants operands to have them, but for uint8, whose values it scales in f32: here by a
    table, so that a product and a sum are rounded each.
    """
    if operand.tensor.quantization is None or call.output.quantization is None:
        return operand.value
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    if x.scale == y.scale and x.zero_point == y.zero_point:
        return operand.value
    if operand.tensor.type != "UINT8":
        raise call.error(
            f"joins {operand.tensor} of another scale than the result", UnsupportedError
        )
    scale = x.scale * (np.float32(1) / y.scale)
    bias = np.float32(-x.zero_point) * scale
    reals = np.arange(256, dtype=np.float32) * scale + bias
    table = requantization.round_away(reals).astype(np.int64) + y.zero_point
    return lookup(np.clip(table, 0, 255).astype(np.uint8), convert(operand.value, I32))


@kernel("CONCATENATION")
def concatenation(call: Call) -> AnyArray:
    """Along an axis."""
    operands = [call.input(index) for index in range(len(call.inputs))]
    values = [requantized(call, operand) for operand in operands]
    axis = call.checked_axis(call.options.axis, len(operands[0].shape))
    joined = np.concatenate(values, axis=axis)
    return call.activated(joined) if operands[0].is_float else joined


@kernel("PAD", "PADV2")
def pad(call: Call) -> AnyArray:
    """With input 2, or the zero point."""
    operand = call.input(0)
    fill: AnyArray | int
    widths = [tuple(map(int, pair)) for pair in call.constant_integers(1, len(operand.shape), 2)]
    if any(n < 0 for pair in widths for n in pair):
        raise call.error(f"has the paddings {widths}")
    if call.optional(2) is not None:
        fill = call.input(2).value.reshape(())
    elif operand.tensor.quantization is not None:
        fill = call.per_tensor(call.output).zero_point
    else:
        fill = 0
    return np.pad(operand.value, widths, constant_values=fill)


@kernel("STABLEHLO_PAD")
def stablehlo_pad(call: Call) -> AnyArray:
    """Input 1 between elements, and around them; negative widths take elements away."""
    operand, options = call.input(0), call.options
    value, fill = operand.value, call.input(1).value.reshape(())
    widths = (options.edge_padding_low, options.edge_padding_high, options.interior_padding)
    for axis, (low, high, between) in enumerate(
        zip(*(map(int, each) for each in widths), strict=True)
    ):
        if between < 0:
            raise call.error(f"has {between} elements between others")
        if (value.shape[axis] - 1) * (between + 1) + 1 + min(low, 0) + min(high, 0) < 0:
            raise call.error(f"takes {-min(low, 0) - min(high, 0)} elements away")
        value = spread(value, axis, between + 1, fill)
        value = padded_or_cut(value, axis, low, high, fill)
    return value


@kernel("DILATE")
def dilate(call: Call) -> AnyArray:
    """Input 2 between elements, so that they are as far apart as input 1 says."""
    value, fill = call.input(0).value, call.input(2).value.reshape(())
    for axis, distance in enumerate(call.constant(1).reshape(-1).tolist()):
        if distance < 1:
            raise call.error(f"has elements {distance} apart")
        value = spread(value, axis, distance, fill)
    return value


def spread(value: AnyArray, axis: int, stride: int, fill: AnyArray | float) -> AnyArray:
    """Put ``stride - 1`` elements between any two along an axis."""
    if stride == 1 or not value.shape[axis]:
        return value
    shape = value.shape
    apart = value.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    widths = [(0, 0)] * (len(shape) + 1)
    widths[axis + 1] = (0, stride - 1)
    spread = np.pad(apart, widths, constant_values=fill)
    spread = spread.reshape((*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
    return spread[(slice(None),) * axis + (slice(0, (shape[axis] - 1) * stride + 1),)]


def padded_or_cut(
    value: AnyArray, axis: int, low: int, high: int, fill: AnyArray | float
) -> AnyArray:
    """Negative widths take elements away."""
    extent = value.shape[axis]
    inside = slice(min(max(-low, 0), extent), max(extent + min(high, 0), 0))
    value = value[(slice(None),) * axis + (inside,)]
    widths = [(0, 0)] * len(value.shape)
    widths[axis] = (max(low, 0), max(high, 0))
    return np.pad(value, widths, constant_values=fill) if any(widths[axis]) else value


@kernel("SPLIT")
def split(call: Call) -> list[AnyArray]:
    """In equal parts along the axis that is input 0."""
    operand = call.input(1)
    axis, count = call.constant_axis(0, len(operand.shape)), len(call.operator.outputs)
    call.check_count("num_splits", count)
    if not count or operand.shape[axis] % count:
        raise call.error(f"cannot split {operand.shape[axis]} elements in {count} parts")
    size = operand.shape[axis] // count
    return [_part(operand.value, axis, n * size, size) for n in range(count)]


@kernel("SPLIT_V")
def split_v(call: Call) -> list[AnyArray]:
    """In parts of the sizes that are input 1, one of which may be -1."""
    operand = call.input(0)
    sizes = [int(n) for n in call.constant(1).reshape(-1)]
    axis = call.constant_axis(2, len(operand.shape))
    call.check_count("num_splits", len(call.operator.outputs))
    rest = operand.shape[axis] - sum(n for n in sizes if n >= 0)
    sizes = [rest if n < 0 else n for n in sizes]
    if sum(sizes) != operand.shape[axis] or min(sizes, default=0) < 0:
        raise call.error(f"cannot split {operand.shape[axis]} elements in {sizes}")
    starts = np.cumsum([0, *sizes[:-1]])
    return [_part(operand.value, axis, int(s), n) for s, n in zip(starts, sizes, strict=True)]


def _part(value: AnyArray, axis: int, start: int, size: int) -> AnyArray:
    return value[(slice(None),) * axis + (slice(start, start + size),)]


@kernel("PACK")
def pack(call: Call) -> AnyArray:
    """Along a new axis."""
    values = [call.input(index).value for index in range(len(call.inputs))]
    call.check_count("values_count", len(values))
    axis = call.checked_axis(call.options.axis, len(call.input(0).shape) + 1)
    return np.stack(values, axis=axis)


@kernel("UNPACK")
def unpack(call: Call) -> list[AnyArray]:
    """Along an axis that goes."""
    operand = call.input(0)
    axis = call.checked_axis(call.options.axis, len(operand.shape))
    call.check_count("num", operand.shape[axis])
    shape = operand.shape[:axis] + operand.shape[axis + 1 :]
    return [_part(operand.value, axis, n, 1).reshape(shape) for n in range(operand.shape[axis])]


@kernel("SLICE")
def slice_(call: Call) -> AnyArray:
    """From the starts of input 1, of the sizes of input 2 (-1 for the rest).

    Starts that are computed are moved so that the part is inside; LiteRT refuses others.
    """
    operand = call.input(0)
    if not call.input(1).is_constant:
        extents = [int(n) for n in call.constant(2).reshape(-1)]
        if len(extents) != len(operand.shape) or any(
            not 0 <= n <= extent for n, extent in zip(extents, operand.shape, strict=True)
        ):
            raise call.error(f"takes {extents} of {list(operand.shape)} from computed starts")
        room = np.array(operand.shape, np.int32) - np.array(extents, np.int32)
        inside = np.minimum(np.maximum(convert(call.input(1).value, I32), 0), room)
        return take_slice(operand.value, inside.reshape(-1), extents)
    starts, sizes = (call.constant(index).reshape(-1) for index in (1, 2))
    index = []
    for extent, start, size in zip(operand.shape, map(int, starts), map(int, sizes), strict=True):
        stop = extent if size < 0 else start + size
        if not 0 <= start <= stop <= extent:
            raise call.error(f"takes elements {start} to {stop} of {extent}")
        index.append(slice(start, stop))
    return operand.value[tuple(index)]


@kernel("STRIDED_SLICE")
def strided_slice(call: Call) -> AnyArray:
    """Python's slices, with masks of dimensions that are whole, new, or taken at one position."""
    operand, options = call.input(0), call.options
    stops_are_counts = options.offset
    starts, stops, steps = (call.constant(index).reshape(-1).tolist() for index in (1, 2, 3))
    # All masks are read, also where one hides another: a dimension that is taken away has no end.
    begin_mask, end_mask = options.begin_mask, options.end_mask
    ellipsis_mask, new_axis_mask = options.ellipsis_mask, options.new_axis_mask
    shrink_axis_mask = options.shrink_axis_mask

    def has(mask: int, entry: int) -> bool:
        return bool(mask >> entry & 1)

    used = sum(not has(ellipsis_mask | new_axis_mask, entry) for entry in range(len(starts)))
    ellipses = sum(has(ellipsis_mask, entry) for entry in range(len(starts)))
    if ellipses > 1:
        raise call.error(f"has {ellipses} ellipses in its ellipsis_mask, expected one at most")
    if ellipses and used == len(operand.shape):
        raise call.error(
            f"has {used} slices beside the ellipsis for {used} dimensions (ellipsis_mask = "
            f"{ellipsis_mask}, new_axis_mask = {new_axis_mask}); LiteRT takes one of them for the "
            "ellipsis",
            UnsupportedError,
        )
    if used > len(operand.shape):
        raise call.error(
            f"has {used} slices of {len(operand.shape)} dimensions (ellipsis_mask = "
            f"{ellipsis_mask}, new_axis_mask = {new_axis_mask})"
        )
    index: list[slice | int | None] = []
    turned: list[int] = []
    extents = iter(enumerate(operand.shape))
    for entry, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        if has(ellipsis_mask, entry):
            index += [slice(None) for _ in range(len(operand.shape) - used)]
            for _ in range(len(operand.shape) - used):
                next(extents)
        elif has(new_axis_mask, entry):
            index.append(None)
        elif not step:
            raise call.error("has the stride 0")
        else:
            axis, extent = next(extents)
            first = None if has(begin_mask, entry) else start
            if has(shrink_axis_mask, entry):
                if not -extent <= (first or 0) < extent:
                    raise call.error(f"takes element {first} of {extent}")
                index.append(first or 0)
                continue
            last = None if has(end_mask, entry) else stop + (start * stops_are_counts)
            places = range(*slice(first, last, step).indices(extent))
            if step > 0:
                index.append(slice(places.start, max(places.stop, places.start), step))
                continue
            turned.append(axis)
            low, high = (extent - 1 - places[0], extent - places[-1]) if len(places) else (0, 0)
            index.append(slice(low, high, -step))
    value = np.flip(operand.value, tuple(turned)) if turned else operand.value
    return value[tuple(index)]
