"""Importers that rearrange elements: transposes, reversals, blocks of space, diagonals.

Sources: LiteRT, ``transpose.cc``, ``reverse.cc``, ``reverse_sequence.cc``,
``reference/depth_to_space.h``, ``space_to_batch_nd.h``, ``matrix_diag.cc``,
``matrix_set_diag.cc``.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import convert, take
from ....numerics.element_types import I32, AnyArray
from ..call import Call, importer


@importer("TRANSPOSE", "REVERSE_V2")
def transpose(call: Call) -> AnyArray:
    """Import TRANSPOSE by the permutation in input 1, REVERSE_V2 along the axes in input 1."""
    value = call.input(0).value
    if call.operator.name == "TRANSPOSE":
        return value.transpose(*call.constant_list(1))
    return np.flip(value, call.constant_axes(1, value.ndim))


@importer("REVERSE_SEQUENCE")
def reverse_sequence(call: Call) -> AnyArray:
    """Import REVERSE_SEQUENCE: reverses the first elements of each row, counted by input 1."""
    operand, lengths, options = call.input(0), call.input(1), call.options
    rank = len(operand.shape)
    batch, time = options.batch_dim, options.seq_dim
    if not (0 <= batch < rank and 0 <= time < rank):
        raise call.error(f"has the dimensions {batch} and {time} for {list(operand.shape)}")
    if batch == time or lengths.shape != (operand.shape[batch],):
        raise call.error(f"has lengths of shape {list(lengths.shape)} for {list(operand.shape)}")
    rest = [axis for axis in range(rank) if axis not in (batch, time)]
    order = [batch, time, *rest]
    sequences = operand.value.transpose(*order)
    rows, steps = sequences.shape[:2]
    step = np.arange(steps, dtype=np.int32)
    length = convert(lengths.value, I32)[:, None]
    index = np.where(step < length, length - 1 - step, step)
    index = index + np.arange(rows, dtype=np.int32)[:, None] * steps
    flat = sequences.reshape((rows * steps, *sequences.shape[2:]))
    result = take(flat, index.reshape(-1), 0).reshape(sequences.shape)
    return result.transpose(*(order.index(axis) for axis in range(rank)))


@importer("DEPTH_TO_SPACE")
def depth_to_space(call: Call) -> AnyArray:
    """Import DEPTH_TO_SPACE: channels become blocks of pixels."""
    batch, height, width, channels = call.input(0).shape
    size = call.options.block_size
    if size < 1 or channels % (size * size):
        raise call.error(f"cannot make blocks of {size} of {channels} channels")
    depth = channels // (size * size)
    blocks = call.input(0).value.reshape((batch, height, width, size, size, depth))
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape((batch, height * size, width * size, depth))


@importer("SPACE_TO_DEPTH")
def space_to_depth(call: Call) -> AnyArray:
    """Import SPACE_TO_DEPTH: blocks of pixels become channels."""
    batch, height, width, channels = call.input(0).shape
    size = call.options.block_size
    if size < 1 or height % size or width % size:
        raise call.error(f"cannot take blocks of {size} of an image of {height} x {width}")
    rows, columns = height // size, width // size
    blocks = call.input(0).value.reshape((batch, rows, size, columns, size, channels))
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(
        (batch, rows, columns, size * size * channels)
    )


@importer("SPACE_TO_BATCH_ND")
def space_to_batch(call: Call) -> AnyArray:
    """Import SPACE_TO_BATCH_ND: blocks of axes, padded with the zero point, become the batch."""
    operand, blocks = call.input(0), call.constant_list(1)
    count = len(blocks)
    pads = [tuple(map(int, pair)) for pair in call.constant_integers(2, count, 2)]
    rest = operand.shape[1 + count :]
    if any(n < 0 for pair in pads for n in pair):
        raise call.error(f"has the paddings {pads}")
    fill = call.per_tensor(call.output).zero_point if operand.is_quantized else 0
    value = np.pad(operand.value, [(0, 0), *pads, *[(0, 0)] * len(rest)], constant_values=fill)
    sizes = value.shape[1 : 1 + count]
    if min(blocks, default=1) < 1 or any(n % b for n, b in zip(sizes, blocks, strict=True)):
        raise call.error(f"cannot take blocks of {blocks} of {list(sizes)}")
    counts = [n // b for n, b in zip(sizes, blocks, strict=True)]
    split = [each for pair in zip(counts, blocks, strict=True) for each in pair]
    value = value.reshape((value.shape[0], *split, *rest))
    inner, outer = range(2, 2 * count + 1, 2), range(1, 2 * count + 1, 2)
    value = value.transpose(*inner, 0, *outer, *range(2 * count + 1, value.ndim))
    return value.reshape((operand.shape[0] * math.prod(blocks), *counts, *rest))


@importer("BATCH_TO_SPACE_ND")
def batch_to_space(call: Call) -> AnyArray:
    """Import BATCH_TO_SPACE_ND: the batch becomes blocks of axes, which are cropped."""
    operand, blocks = call.input(0), call.constant_list(1)
    count, block_elements = len(blocks), math.prod(blocks)
    crops = [tuple(map(int, pair)) for pair in call.constant_integers(2, count, 2)]
    if any(n < 0 for pair in crops for n in pair):
        raise call.error(f"has the crops {crops}")
    if not block_elements or operand.shape[0] % block_elements:
        raise call.error(f"cannot make blocks of {blocks} of a batch of {operand.shape[0]}")
    sizes, rest = operand.shape[1 : 1 + count], operand.shape[1 + count :]
    batch = operand.shape[0] // block_elements
    value = operand.value.reshape((*blocks, batch, *sizes, *rest))
    pairs = [each for axis in range(count) for each in (count + 1 + axis, axis)]
    value = value.transpose(count, *pairs, *range(2 * count + 1, value.ndim))
    value = value.reshape((batch, *(n * b for n, b in zip(sizes, blocks, strict=True)), *rest))
    cropped = [slice(low, value.shape[axis] - high) for axis, (low, high) in enumerate(crops, 1)]
    return value[(slice(None), *cropped)]


@importer("MATRIX_DIAG")
def matrix_diag(call: Call) -> AnyArray:
    """Import MATRIX_DIAG: the last axis on the diagonals of zero matrices."""
    value = call.input(0).value
    size = value.shape[-1]
    return np.where(np.eye(size, dtype=bool), value[..., None, :], value.dtype.type(0))


@importer("MATRIX_SET_DIAG")
def matrix_set_diag(call: Call) -> AnyArray:
    """Import MATRIX_SET_DIAG: input 1 on the diagonals of the matrices in input 0."""
    matrices, diagonal = call.input(0).value, call.input(1).value
    rows, columns = matrices.shape[-2:]
    if diagonal.shape != (*matrices.shape[:-2], min(rows, columns)):
        raise call.error(f"has diagonals of {list(diagonal.shape)} in {list(matrices.shape)}")
    widths = [(0, 0)] * diagonal.ndim
    widths[-1] = (0, columns - diagonal.shape[-1])
    padded = np.pad(diagonal, widths) if any(widths[-1]) else diagonal
    return np.where(np.eye(rows, columns, dtype=bool), padded[..., None, :], matrices)
