"""MatMulNBits: a matrix product with block-quantized weights that are bit-packed.

Source: ONNX Runtime 1.32, ``ContribOperators.md``.
"""

from __future__ import annotations

import math

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import unpack_bits
from ....numerics.block_form import BlockForm
from ....numerics.convolutions import contract
from ....numerics.element_types import AnyArray, Array
from ....numerics.parameters import ExpressedType, StorageType
from ..call import Call, importer


@importer("com.microsoft.MatMulNBits")
def matmul_nbits(call: Call) -> AnyArray:
    """MatMulNBits-1: ``A, B, scales, zero_points, g_idx, bias``; B is ``[N, K]``, packed.

    B has blocks along K. Zero points are packed as B is, or of the type of A; without any they are
    half of the range.
    """
    activations = call.array(0)
    bits, size = call.attribute("bits", 4), call.integer("block_size")
    k, n = call.integer("K"), call.integer("N")
    if call.optional(4) is not None:
        raise call.error(f"has {call.input(4)} as g_idx, an order of rows", UnsupportedError)
    if bits not in (2, 4, 8):
        raise call.error(f"has weights of {bits} bits, expected 2, 4 or 8", UnsupportedError)
    if min(k, n) < 1 or size < 16 or size & (size - 1):
        raise call.error(f"has K = {k}, N = {n} and blocks of {size}")
    if activations.shape[-1] != k:
        raise call.error(f"multiplies rows of {activations.shape[-1]} elements, and says K = {k}")
    blocks = -(-k // size)
    packed, byte_count = call.constant(1), n * blocks * size * bits // 8
    if packed.dtype != np.uint8 or packed.size != byte_count:
        raise call.error(f"has {packed.size} bytes of weights, expected {byte_count}")
    storage = _unpacked(packed.reshape(n, -1), bits)[:, :k]
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


def _unpacked(packed: Array, bits: int) -> Array:
    return packed if bits == 8 else np.asarray(unpack_bits(packed, bits))
