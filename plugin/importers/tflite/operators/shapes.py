"""Importers that change the shape of tensors, read it, or fill a shape; storage is unchanged.

Sources: LiteRT, ``reshape.cc``, ``squeeze.cc``, ``expand_dims.cc``, ``bitcast.cc``,
``broadcast_args.cc``, ``broadcast_to.cc``, ``fill.cc``, ``shape.cc``, ``rank.cc``, ``range.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ....numerics.array_functions import bits_of, convert
from ....numerics.element_types import AnyArray, ElementType
from ..call import Call, importer


def _batched_shape(call: Call, shape: Sequence[int], count: int) -> tuple[int, ...]:
    """Return a shape that the file states for its sizes, for the actual number of elements.

    These differ where a batch or another dimension size was set.
    """
    sizes, options = [int(n) for n in shape], call.context.options
    may_differ = bool(options.batch or options.dims)
    if may_differ and -1 not in sizes and math.prod(sizes) != count:
        signature = call.output.shape_signature
        sizes = list(signature) if len(signature) == len(sizes) else sizes
        if -1 not in sizes and sizes and sizes[0] == 1:  # the file states a batch of 1
            sizes[0] = -1
        if -1 in sizes and not _keeps_elements(call, sizes):
            raise call.error(
                f"gives {list(call.input(0).shape)} the shape {sizes}, which mixes elements of the "
                "dimension whose size was set"
            )
    rest = math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) > 1 or (rest and count % rest) or (-1 not in sizes and rest != count):
        raise call.error(f"cannot give {count} elements the shape {sizes}")
    return tuple(count // rest if n == -1 and rest else max(n, 0) for n in sizes)


def _keeps_elements(call: Call, sizes: Sequence[int]) -> bool:
    """Return False if elements of the operand are in others of the result, whose sizes have a -1.

    The operand is ``[outer, N * a, inner]`` and has ``[outer, a, inner]`` in the file, the result
    ``[outer', N * b, inner']`` and ``[outer', b, inner']``. The elements along N are the same if
    ``a * inner == b * inner'``.
    """
    shape, stated = call.input(0).shape, call.input(0).tensor.shape
    if len(shape) != len(stated) or len(sizes) != len(call.output.shape):
        return True
    axis = next((axis for axis, size in enumerate(shape) if size != stated[axis]), None)
    return axis is None or (
        math.prod(stated[axis:]) == math.prod(call.output.shape[sizes.index(-1) :])
    )


@importer("RESHAPE")
def reshape(call: Call) -> AnyArray:
    """Import RESHAPE: the shape is input 1, or an option, or the output's."""
    operand = call.input(0)
    return operand.value.reshape(reshaped_sizes(call, math.prod(operand.shape)))


def reshaped_sizes(call: Call, count: int) -> tuple[int, ...]:
    """Return the shape that a RESHAPE gives a number of elements; InputError if it has none."""
    shape = list(getattr(call.options, "new_shape", ()))  # input 1 has precedence
    if call.optional(1) is not None and call.input(1).is_constant:
        shape = call.constant_list(1)
    elif not shape or call.optional(1) is not None:
        shape = list(call.output.shape_signature)
    return _batched_shape(call, shape, count)


@importer("SQUEEZE")
def squeeze(call: Call) -> AnyArray:
    """Import SQUEEZE: removes the dimensions of size 1 in the options, or all of them."""
    operand, rank = call.input(0), len(call.input(0).shape)
    axes = {call.checked_axis(int(axis), rank) for axis in call.options.squeeze_dims}
    if not axes:
        axes = {axis for axis, size in enumerate(operand.shape) if size == 1}
    if any(operand.shape[axis] != 1 for axis in axes):
        raise call.error(f"removes the dimensions {sorted(axes)} of {list(operand.shape)}")
    return operand.value.reshape(
        tuple(size for axis, size in enumerate(operand.shape) if axis not in axes)
    )


@importer("EXPAND_DIMS")
def expand_dims(call: Call) -> AnyArray:
    """Import EXPAND_DIMS: inserts a dimension of size 1 at the axis in input 1."""
    shape = call.input(0).shape
    axis = call.constant_axis(1, len(shape) + 1)
    return call.input(0).value.reshape((*shape[:axis], 1, *shape[axis:]))


@importer("BITCAST")
def bitcast(call: Call) -> AnyArray:
    """Import BITCAST; narrower elements are a new last axis, the lowest bits first."""
    value, target = call.input(0).value, ElementType.parse(call.output.element)
    source = ElementType.of_dtype(value.dtype)
    if target.bits == source.bits:
        return bits_of(value, target)
    narrow, wide = (ElementType.parse(f"i{n}") for n in sorted((source.bits, target.bits)))
    count = wide.bits // narrow.bits
    if narrow.bits < 8:
        raise call.unsupported_type(call.input(0))
    if target.bits < source.bits:
        bits = bits_of(value, wide)
        elements = [convert(bits >> (n * narrow.bits), narrow) for n in range(count)]
        return bits_of(np.stack(elements, axis=-1), target)
    if value.shape[-1] != count:
        raise call.error(f"makes {target} of {value.shape[-1]} elements of {narrow.bits} bits")
    bits = convert(bits_of(value, narrow), wide) & ((1 << narrow.bits) - 1)
    total = bits[..., 0]
    for n in range(1, count):
        total = total | (bits[..., n] << (n * narrow.bits))
    return bits_of(total, target)


@importer("BROADCAST_ARGS")
def broadcast_args(call: Call) -> AnyArray:
    """Import BROADCAST_ARGS: the broadcast of two shapes."""
    shapes = (tuple(call.constant_list(index)) for index in range(2))
    return np.array(np.broadcast_shapes(*shapes), call.dtype(call.output))


_OF_SHAPES: dict[str, Callable[[Call], AnyArray]] = {
    "BROADCAST_TO": lambda call: np.broadcast_to(call.input(0).value, call.constant_list(1)),
    # The reader has densified the sparse constant.
    "DENSIFY": lambda call: call.input(0).value,
    # The scalar in input 1, in the shape in input 0.
    "FILL": lambda call: np.broadcast_to(call.input(1).value.reshape(()), call.constant_list(0)),
    "RANK": lambda call: np.array(len(call.input(0).shape), call.dtype(call.output)),
    # Of a quantized tensor, LiteRT writes zeros of its storage.
    "ZEROS_LIKE": lambda call: np.zeros(call.input(0).shape, call.input(0).value.dtype),
}


@importer(*_OF_SHAPES)
def shape_function(call: Call) -> AnyArray:
    """Import BROADCAST_TO, DENSIFY, FILL, RANK and ZEROS_LIKE."""
    return _OF_SHAPES[call.operator.name](call)


@importer("SHAPE")
def shape(call: Call) -> AnyArray:
    """Import SHAPE."""
    call.check_type("out_type")
    return np.array(call.input(0).shape, call.dtype(call.output))


@importer("RANGE")
def range_(call: Call) -> AnyArray:
    """Import RANGE, from input 0 to input 1 (exclusive) in steps of input 2."""
    start, limit, delta = (call.constant(index).reshape(()) for index in range(3))
    if not delta:
        raise call.error("has the step 0")
    count = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    kind = call.dtype(call.output).type
    return np.array(kind(start) + np.arange(count).astype(kind) * kind(delta), kind)
