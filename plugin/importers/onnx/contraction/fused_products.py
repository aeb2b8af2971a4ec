"""ONNX Runtime's products with an epilogue or packed weights, and the embeddings of transformers.

They are formulas of floats, of operands that may be dequantized; sums are f32, also of f16.

Source: ONNX Runtime 1.32, ``ContribOperators.md``.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ....numerics.array_functions import convert, take, unpack_bits
from ....numerics.block_form import BlockForm
from ....numerics.convolutions import contract
from ....numerics.element_types import F32, I32, AnyArray, Array
from ....numerics.parameters import ExpressedType, StorageType
from ..call import Call, Operand, importer
from ..elementwise.activations import activated
from ..elementwise.float_operands import as_input_type, float_input
from ..movement.gather import rows_of
from ..quantization.expressed import Quantized
from ..reduction.normalizations import normalized
from .matrix_products import integer_matmul, matmul


@importer("com.microsoft.FusedMatMul")
def fused_matmul(call: Call) -> Any:
    """FusedMatMul-1: ``alpha * A @ B``, of transposed operands.

    ``transA`` exchanges the last two axes; ``transBatchA`` moves the first axis before the last.
    """
    sides = []
    for index, letter in ((0, "A"), (1, "B")):
        value = call.input(index).value
        order = list(range(len(value.shape)))
        if call.attribute(f"transBatch{letter}", 0) and len(order) > 2:
            order = [*order[1:-1], 0, order[-1]]
        if call.attribute(f"trans{letter}", 0) and len(order) > 1:
            order[-2:] = [order[-1], order[-2]]
        is_quantized = isinstance(value, Quantized)
        sides.append(
            value.transposed(order) if is_quantized else call.floats(value).transpose(order)
        )
    alpha = np.float32(call.attribute("alpha", 1.0))
    total = None
    if all(isinstance(side, Quantized) for side in sides) and alpha == 1:
        total = integer_matmul(call, sides[0], sides[1])
    if total is not None:
        return total
    call.with_floats("an operand is float, or alpha is not 1")
    left, right = (call.floats(side) for side in sides)
    product = matmul(call, left, right, np.dtype(left.dtype))
    return product if alpha == 1 else product * alpha.astype(left.dtype)


@importer("com.microsoft.FusedGemm")
def fused_gemm(call: Call) -> AnyArray:
    """FusedGemm-1: ``Gemm`` and an activation."""
    attributes = _present(call, "alpha", "beta", "transA", "transB")
    (product,) = call.apply("Gemm", [call.optional(index) for index in range(3)], **attributes)
    names = [f"activation_{name}" for name in ("alpha", "beta", "gamma")]
    parameters = [each for name in names if (each := call.attribute(name)) is not None]
    return activated(call, call.floats(product.value), parameters)


@importer("com.microsoft.FusedConv")
def fused_conv(call: Call) -> AnyArray:
    """FusedConv-1: ``Conv``, the sum with ``Z``, and an activation."""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    (image,) = call.apply(
        "Conv", [call.optional(index) for index in range(3)], **_present(call, *names)
    )
    value = call.floats(image.value)
    if call.optional(3) is not None:
        value = value + call.array(3)
    return activated(call, value, call.attribute("activation_params") or [])


def _present(call: Call, *names: str) -> dict[str, Any]:
    """Return those attributes that the node has."""
    values = {name: call.attribute(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


@importer("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(call: Call) -> list[Any]:
    """EmbedLayerNormalization-1: normalized sums of embeddings; lengths of rows."""

    def rows(index: int, indices: AnyArray, name: str) -> AnyArray:
        return rows_of(call, float_input(call, index, F32), indices, name)

    positions = None if call.optional(8) is None else call.array(8)
    total = _summed_embeddings(call, rows, positions)
    result, lengths = _normalized_embeddings(
        call, total, float_input(call, 5, F32), float_input(call, 6, F32)
    )
    return [as_input_type(call, 2, result), lengths, as_input_type(call, 2, total)]


@importer("com.microsoft.QEmbedLayerNormalization")
def quantized_embed_layer_normalization(call: Call) -> list[Any]:
    """QEmbedLayerNormalization-1: as EmbedLayerNormalization, of tables with one scale each.

    Inputs 8 to 12 are scales, 13 to 17 zero points: of the three tables, gamma and beta.
    """

    def dequantized(index: int, storage: AnyArray) -> AnyArray:
        planes = [call.scalar(index + distance) for distance in (6, 11)]
        ones = (1,) * len(storage.shape)
        scale, zero_point = (plane.reshape(ones) for plane in planes)
        type_, sizes = call.input(index).type, tuple(storage.shape)
        return call.floats(Quantized(storage, type_, scale, zero_point, sizes))

    def rows(index: int, indices: AnyArray, name: str) -> AnyArray:
        return dequantized(index, rows_of(call, call.array(index), indices, name))

    total = _summed_embeddings(call, rows, None)
    gamma, beta = (dequantized(index, call.array(index)) for index in (5, 6))
    return list(_normalized_embeddings(call, total, gamma, beta))


def _summed_embeddings(
    call: Call, rows: Callable[[int, AnyArray, str], AnyArray], positions: AnyArray | None
) -> AnyArray:
    """Sum the embeddings of words, positions and segments.

    Args:
        rows: returns the rows of the table in an input, by indices; the name is for errors.
        positions: the positions of words; None for their order.
    """
    words = call.array(0)
    if len(words.shape) != 2:
        raise call.error(f"has input_ids of shape {list(words.shape)}")
    if positions is None:
        length = words.shape[1]
        positions = np.arange(length, dtype=np.int32)
    tables = [(2, words, "word_embedding"), (3, positions, "position_embedding")]
    if call.optional(1) is not None:
        tables.append((4, call.array(1), "segment_embedding"))
    return functools.reduce(operator.add, itertools.starmap(rows, tables))


def _normalized_embeddings(
    call: Call, total: AnyArray, gamma: AnyArray, beta: AnyArray
) -> tuple[AnyArray, Operand]:
    """Normalize the sums; return them, and the number of words of each row by the mask."""
    result, _, _ = normalized(total, [total.ndim - 1], call.attribute("epsilon", 1e-12))
    lengths: AnyArray = np.zeros(total.shape[0], np.int32)
    if call.optional(7) is not None:
        lengths = convert(call.array(7), I32).sum(axis=1, dtype=np.int32)
    return result * gamma + beta, Operand("INT32", lengths)


@importer("com.microsoft.MatMulNBits")
def matmul_nbits(call: Call) -> AnyArray:
    """MatMulNBits-1: ``A, B, scales, zero_points, g_idx, bias``; B is ``[N, K]``, packed.

    B has blocks along K. Zero points are packed as B is, or of the type of A; without any they are
    half of the range. ``g_idx`` has the block of each column of B, for blocks that are not
    contiguous: columns of A and of B are then sorted by block.
    """
    activations = call.array(0)
    bits, size = call.attribute("bits", 4), call.integer("block_size")
    k, n = call.integer("K"), call.integer("N")
    if call.attribute("weight_prepacked", 0):
        raise call.unsupported(
            "has weights packed for a GPU (weight_prepacked); write the model without"
        )
    if bits not in (2, 4, 8):
        raise call.unsupported(f"has weights of {bits} bits, expected 2, 4 or 8")
    if min(k, n) < 1 or size < 16 or size & (size - 1):
        raise call.error(f"has K = {k}, N = {n} and blocks of {size}")
    if activations.shape[-1] != k:
        raise call.error(f"multiplies rows of {activations.shape[-1]} elements, and says K = {k}")
    blocks = -(-k // size)
    packed, byte_count = call.constant(1), n * blocks * size * bits // 8
    if packed.dtype != np.uint8 or packed.size != byte_count:
        raise call.error(f"has {packed.size} bytes of weights, expected {byte_count}")
    storage = _unpacked(packed.reshape(n, -1), bits)[:, :k]
    order = None if call.optional(4) is None else _block_order(call, k, size)
    if order is not None:
        storage, activations = storage[:, order], take(activations, order, activations.ndim - 1)
    scales = call.input(2).value
    if math.prod(scales.shape) != n * blocks:
        raise call.error(f"has {math.prod(scales.shape)} scales, expected {n * blocks}")
    scales = scales.reshape((n, blocks)).astype(activations.dtype)
    half = 1 << (bits - 1)
    zero_points: AnyArray = None
    offsets: AnyArray = None
    operand = call.optional(3)
    storage_type = StorageType(bits, signed=operand is None or operand.type != "UINT8")
    if storage_type.signed:
        storage = (storage.astype(np.int16) - half).astype(np.int8)
    if operand is not None and not storage_type.signed:
        row_bytes, packed = -(-blocks * bits // 8), call.constant(3)
        if packed.size != n * row_bytes:
            raise call.error(f"has {packed.size} bytes of zero points, expected {n * row_bytes}")
        zero_points = _unpacked(packed.reshape(n, row_bytes), bits)[:, :blocks]
    elif operand is not None:  # floats: storage * scale - zero_point * scale
        if math.prod(operand.shape) != n * blocks:
            raise call.error(f"has {math.prod(operand.shape)} zero points, expected {n * blocks}")
        dtype = activations.dtype
        difference = np.asarray(half, dtype) - operand.value.reshape((n, blocks)).astype(dtype)
        offsets = difference * scales
    lift = call.graph.lift
    form = BlockForm(
        lift(storage, storage_type.element),
        storage_type,
        (1, min(size, k)),
        scales,
        None if zero_points is None else lift(zero_points, storage_type.element),
        offsets,
    )
    weights = form.dequantize(ExpressedType.of_dtype(activations.dtype))
    call.with_floats("the weights are integers in blocks, the activations floats")
    axes = ((len(activations.shape) - 1,), (1,))
    product = contract(activations, weights, axes, dtype=activations.dtype)
    return product if call.optional(5) is None else product + call.array(5)


def _block_order(call: Call, k: int, size: int) -> Array | None:
    """Return the columns of B sorted by their block in ``g_idx``; None if they are sorted.

    Raises:
        UnsupportedError: blocks differ in size, so that sorting does not make them contiguous.
    """
    blocks = call.constant(4).reshape(-1).astype(np.int64)
    if blocks.size != k or (blocks < 0).any() or (blocks >= -(-k // size)).any():
        raise call.error(
            f"has a g_idx of {blocks.size} elements from {blocks.min(initial=0)} to "
            f"{blocks.max(initial=0)}, expected {k} from 0 to {-(-k // size) - 1}"
        )
    contiguous = np.arange(k) // size
    if (np.sort(blocks) != contiguous).any():
        raise call.unsupported(
            f"has a g_idx with blocks of other sizes than {size}; dequantize the weight"
        )
    order = np.argsort(blocks, kind="stable").astype(np.int32)
    return None if (blocks == contiguous).all() else order


def _unpacked(packed: Array, bits: int) -> Array:
    return packed if bits == 8 else np.asarray(unpack_bits(packed, bits))
