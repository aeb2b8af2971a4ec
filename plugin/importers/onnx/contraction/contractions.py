"""Convolutions and matrix products of integers, and of weights in blocks.

Products of storage less zero points are summed in 32 bits, in 64 where 32 could overflow; a product
of scales becomes the scale of the sum. ``MatMulInteger`` and ``ConvInteger`` wrap in 32 bits, which
the specification forbids models to reach.

Sources: ONNX, MatMulInteger 10, ConvInteger 10, QLinearMatMul 10 and 21, QLinearConv 10; ONNX
Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import contract, convert, convolve, is_known, unpack_bits
from ....numerics.block_form import BlockForm
from ....numerics.element_types import AnyArray, Array, DType, ElementType
from ....numerics.parameters import ExpressedType, StorageType
from ..call import Call, Operand, Typed, importer
from ..elementwise.arithmetic import broadcast_shapes
from ..quantization.expressed import (
    ExpressedValue,
    Quantized,
    ScaledSum,
    ScaledTerm,
    factor_of,
    product_of,
)
from ..quantization.quantize_linear import dynamically_quantized, grid, quantized, stored

__all__ = ["bias_of", "convolution", "matmul", "padding", "per_row", "summed_product"]

_WIDE = 1 << 31


# -- matrix products ------------------------------------------------------------------------------


def matmul(call: Call, left: AnyArray, right: AnyArray, dtype: DType) -> AnyArray:
    """As ``np.matmul``, summed in a dtype; a right operand of two axes is not repeated."""
    shapes = (tuple(left.shape), tuple(right.shape))
    if min(left.ndim, right.ndim) < 1:
        raise call.error(f"multiplies tensors of shapes {[list(s) for s in shapes]}")
    is_row, is_column = left.ndim == 1, right.ndim == 1
    left = left.reshape((1, *shapes[0])) if is_row else left
    right = right.reshape((*shapes[1], 1)) if is_column else right
    if left.shape[-1] != right.shape[-2]:
        raise call.error(f"multiplies tensors of shapes {[list(s) for s in shapes]}")
    if right.ndim == 2:
        product = contract(left, right, ((left.ndim - 1,), (0,)), dtype=dtype)
    else:
        try:
            batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except ValueError:
            raise call.error(f"multiplies tensors of shapes {[list(s) for s in shapes]}") from None
        rank = len(batch)
        sides = [
            np.broadcast_to(
                side.reshape((1,) * (rank + 2 - side.ndim) + tuple(side.shape)),
                (*batch, *side.shape[-2:]),
            )
            for side in (left, right)
        ]
        axes = tuple(range(rank))
        product = contract(sides[0], sides[1], ((rank + 1,), (rank,)), (axes, axes), dtype=dtype)
    if is_row:
        product = product.reshape((*product.shape[:-2], product.shape[-1]))
    return product.reshape(product.shape[:-1]) if is_column else product


def _bound(weights: AnyArray, bound: int, other: int, axes: tuple[int, ...]) -> int:
    """The greatest magnitude of sums of products over axes of weights."""
    if is_known(weights):
        sums = np.abs(weights.astype(np.int64)).sum(axis=axes)
        return int(sums.max(initial=0)) * other
    return int(math.prod(weights.shape[a] for a in axes)) * bound * other


def summed_product(call: Call, left: Quantized, right: Quantized) -> ScaledSum | None:
    """The product of two matrices; None where scales differ along what is summed."""
    if not (left.broadcasts and right.broadcasts):
        call.with_floats("an operand has scales for blocks")
        return None
    if min(len(left.shape), len(right.shape)) < 2:
        call.with_floats("an operand is a vector")
        return None
    if left.scales.shape[-1] != 1 or right.scales.shape[-2] != 1:
        call.with_floats("scales differ along the dimension that is summed")
        return None
    if left.dtype != right.dtype or left.dtype not in (np.float32, np.float16):
        call.with_floats(f"scales are {left.dtype.name} and {right.dtype.name}")
        return None
    (x, x_bound), (w, w_bound) = left.centered(), right.centered()
    bound = _bound(w, w_bound, x_bound, (w.ndim - 2,))
    dtype = np.dtype(np.int64 if bound >= _WIDE else np.int32)
    total = matmul(call, x, w, dtype)
    return ScaledSum(
        (ScaledTerm(total, bound, _product_factor(left.scales, right.scales, total.ndim)),)
    )


def _product_factor(left: AnyArray, right: AnyArray, rank: int) -> AnyArray:
    factors = [
        factor_of(scales).reshape((1,) * (rank - len(scales.shape)) + tuple(scales.shape))
        for scales in (left, right)
    ]
    return product_of(*factors)


def per_row(call: Call, index: int, scale: int, zero_point: int, *, rows: bool) -> Quantized:
    """An operand of a product, with a scale for each row or column if there are several."""
    operand = call.input(index)
    shape = operand.shape
    axis = max(len(shape) - (2 if rows else 1), 0)
    scales, sizes = _matrix_grid(call, scale, shape, axis)
    zero_points = None
    if call.optional(zero_point) is not None:
        zero_points, other = _matrix_grid(call, zero_point, shape, axis)
        if other != sizes and math.prod(zero_points.shape) != 1:
            scales = np.broadcast_to(scales, zero_points.shape)
            sizes = other
        elif other != sizes:
            zero_points = np.broadcast_to(zero_points, scales.shape)
    return Quantized(operand.value, operand.type, scales, zero_points, sizes)


def _matrix_grid(
    call: Call, index: int, shape: Sequence[int], axis: int
) -> tuple[AnyArray, tuple[int, ...]]:
    """As `grid`, and as ``[..., 1, N]`` or ``[..., M, 1]``."""
    operand = call.input(index)
    if len(operand.shape) != len(shape) or len(shape) < 2:
        return grid(call, operand, shape, axis)
    expected = tuple(n if a != len(shape) - 1 - (axis == len(shape) - 1) else 1
                     for a, n in enumerate(shape))  # fmt: skip
    if any(n not in (1, extent) for n, extent in zip(operand.shape, expected, strict=True)):
        raise call.error(f"has {operand} of shape {list(operand.shape)} for {list(shape)}")
    sizes = tuple(extent if n == 1 else 1 for n, extent in zip(operand.shape, shape, strict=True))
    return operand.value, sizes


@importer("QLinearMatMul")
def qlinear_matmul(call: Call) -> Typed:
    """``a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point``."""
    left = per_row(call, 0, 1, 2, rows=True)
    right = per_row(call, 3, 4, 5, rows=False)
    total = summed_product(call, left, right)
    if total is None:
        raise call.error("has scales along the dimension that is summed", UnsupportedError)
    return stored(call, total, 6, 7)


@importer("MatMulInteger")
def matmul_integer(call: Call) -> AnyArray:
    """``A, B, a_zero_point, b_zero_point`` to int32."""
    sides = []
    for index, rows in ((0, True), (1, False)):
        operand = call.input(index)
        ones = np.ones((1,) * len(operand.shape), np.float32)
        zero_points = None
        if call.optional(index + 2) is not None:
            axis = max(len(operand.shape) - (2 if rows else 1), 0)
            zero_points, _ = _matrix_grid(call, index + 2, operand.shape, axis)
        side = Quantized(operand.value, operand.type, ones, zero_points, operand.shape)
        sides.append(side.centered()[0])
    call.with_integers()
    return matmul(call, sides[0], sides[1], np.dtype(np.int32))


@importer("MatMul")
def float_matmul(call: Call) -> ScaledSum | AnyArray:
    """A sum of integer products where both operands are quantized; else of the operands' type."""
    left, right = call.input(0).value, call.input(1).value
    if isinstance(left, Quantized) and isinstance(right, Quantized):
        total = summed_product(call, left, right)
        if total is not None:
            return total
    call.with_floats(_mixed(left, right))
    x, w = call.floats(left), call.floats(right)
    return _product(call, x, w)


def _product(call: Call, x: AnyArray, w: AnyArray) -> AnyArray:
    """A matrix product of the operands' type; f16 and bf16 are summed in f32, integers wrap."""
    element = ElementType.of_dtype(np.dtype(x.dtype))
    wide = np.dtype(np.float32) if element.is_float and element.bits < 32 else element.dtype
    return convert(matmul(call, x, w, wide), element)


def _mixed(left: ExpressedValue, right: ExpressedValue) -> str:
    """Why a product is not one of integers."""
    real = [side for side in (left, right) if not isinstance(side, Quantized)]
    if any(isinstance(side, ScaledSum) for side in real):
        return "an operand is a sum that nothing rounded to storage"
    return "one operand is float, the other a dequantized weight or activation"


@importer("Gemm")
def gemm(call: Call) -> ScaledSum | AnyArray:
    """``alpha * A @ B + beta * C``: a sum of integer products where A and B are quantized."""
    sides: list[ExpressedValue] = [call.input(index).value for index in (0, 1)]
    if any(len(side.shape) != 2 for side in sides):
        raise call.error(f"multiplies tensors of shapes {[list(side.shape) for side in sides]}")
    for index, name in enumerate(("transA", "transB")):
        if call.attribute(name, 0):
            side = sides[index]
            is_quantized = isinstance(side, Quantized)
            sides[index] = side.transposed((1, 0)) if is_quantized else call.floats(side).T
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    left, right = sides
    bias, shape = call.optional(2), (left.shape[0], right.shape[1])
    if bias is not None and broadcast_shapes(call, [shape, bias.shape]) != shape:
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {list(shape)}")
    if isinstance(left, Quantized) and isinstance(right, Quantized) and alpha == beta == 1.0:
        total = summed_product(call, left, right)
        if total is not None:
            return total if bias is None else _with_bias(call, total, bias.value, axis=1)
    call.with_floats("alpha or beta is not 1" if alpha != 1 or beta != 1 else _mixed(left, right))
    product = _product(call, call.floats(left), call.floats(right))
    if alpha != 1.0:
        product = product * np.asarray(alpha, product.dtype)
    if bias is None:
        return product
    added = call.floats(bias.value)
    return product + (added if beta == 1.0 else added * np.asarray(beta, product.dtype))


def _with_bias(call: Call, total: ScaledSum, bias: AnyArray, axis: int) -> ScaledSum | AnyArray:
    """A sum and a bias for each index of an axis, or of the shape of the last axes."""
    rank = len(total.shape)
    if len(bias.shape) == 1 and bias.shape[0] == total.shape[axis]:
        shape = tuple(n if a == axis else 1 for a, n in enumerate(total.shape))
    else:
        shape = (1,) * (rank - len(bias.shape)) + tuple(bias.shape)
    if isinstance(bias, Quantized):
        scale_shape = tuple(1 if math.prod(bias.scales.shape) == 1 else n for n in shape)
        if math.prod(scale_shape) == math.prod(bias.scales.shape):
            planes = [bias.scales, bias.zero_points]
            scales, zeros = (None if p is None else p.reshape(scale_shape) for p in planes)
            sizes = tuple(n if s == 1 else 1 for n, s in zip(shape, scale_shape, strict=True))
            term = Quantized(bias.storage.reshape(shape), bias.type, scales, zeros, sizes).sum()
            found = None if term is None else total.plus(term)
            if found is not None:
                return found
    call.with_floats("the bias is float, or of no shape that is added to each result")
    lift = call.graph.lift
    return total.dequantize(lift) + call.floats(bias).reshape(shape)


# -- convolutions ---------------------------------------------------------------------------------


def _spatial(call: Call, images: Sequence[int], kernels: Sequence[int]) -> tuple[
    list[tuple[int, int]], tuple[int, ...], tuple[int, ...], int
]:  # fmt: skip
    """Padding, strides, dilations and groups, checked."""
    rank = len(images) - 2
    if rank < 1 or len(kernels) != rank + 2:
        raise call.error(
            f"convolves images of shape {list(images)} with kernels of shape {list(kernels)}",
            UnsupportedError,
        )
    groups = call.attribute("group", 1)
    strides = tuple(call.attribute("strides", [1] * rank))
    dilations = tuple(call.attribute("dilations", [1] * rank))
    sizes = call.attribute("kernel_shape", list(kernels[2:]))
    if list(sizes) != list(kernels[2:]):
        raise call.error(f"has kernels of shape {list(kernels)}, and says {list(sizes)}")
    if (
        groups < 1
        or kernels[1] * groups != images[1]
        or kernels[0] % groups
        or len(strides) != rank
        or len(dilations) != rank
        or min(*strides, *dilations) < 1
    ):
        raise call.error(
            f"convolves images of shape {list(images)} with kernels of shape {list(kernels)} in "
            f"{groups} groups, with the strides {list(strides)} and the dilations {list(dilations)}"
        )
    spans = [(n - 1) * d + 1 for n, d in zip(kernels[2:], dilations, strict=True)]
    pads = padding(call, images[2:], spans, strides)
    for extent, pair, span in zip(images[2:], pads, spans, strict=True):
        if extent + sum(pair) < span:
            raise call.error(f"has windows of {spans} in images of {list(images[2:])}")
    return pads, strides, dilations, groups


def bias_of(call: Call, index: int, channels: int) -> Operand | None:
    """Return the bias of a convolution, which has an element for each output channel."""
    bias = call.optional(index)
    if bias is not None and bias.shape != (channels,):
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {channels} channels")
    return bias


def padding(
    call: Call, extents: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """How many elements are added before and after each axis of images."""
    rank, auto = len(extents), call.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for extent, span, stride in zip(extents, spans, strides, strict=True):
            total = max((-(-extent // stride) - 1) * stride + span - extent, 0)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return pairs
    pads = [0] * (2 * rank) if auto == "VALID" else call.attribute("pads", [0] * (2 * rank))
    if len(pads) != 2 * rank or min(pads, default=0) < 0 or auto not in ("NOTSET", "VALID"):
        raise call.error(f"has the padding {list(pads)} ({auto})")
    return [(int(pads[a]), int(pads[a + rank])) for a in range(rank)]


def convolution(call: Call, images: AnyArray, kernels: AnyArray, dtype: DType) -> AnyArray:
    """``[N, C, ...]`` by ``[F, C / groups, ...]``; padding is 0."""
    pads, strides, dilations, groups = _spatial(call, images.shape, kernels.shape)
    is_line = len(pads) == 1  # IREE has named operations of two spatial dimensions, fast ones
    if is_line:
        images = images.reshape((*images.shape[:2], 1, images.shape[2]))
        kernels = kernels.reshape((*kernels.shape[:2], 1, kernels.shape[2]))
        pads, strides, dilations = [(0, 0), *pads], (1, *strides), (1, *dilations)
    if any(map(any, pads)):
        images = np.pad(images, ((0, 0), (0, 0), *pads))
    result = convolve(images, kernels, strides, dilations, groups, dtype)
    return result.reshape((*result.shape[:2], result.shape[3])) if is_line else result


def summed_convolution(call: Call, images: Quantized, kernels: Quantized) -> ScaledSum | None:
    """None where images have several scales, or kernels others than one for each feature."""
    if not images.is_per_tensor:
        call.with_floats("the images have more than one scale")
        return None
    if not kernels.broadcasts or math.prod(kernels.scales.shape[1:]) != 1:
        call.with_floats("the kernels have other scales than one for each feature")
        return None
    if images.dtype != np.float32:
        call.with_floats(f"the scale of the images is {images.dtype.name}")
        return None
    (x, x_bound), (w, w_bound) = images.centered(), kernels.centered()
    bound = _bound(w, w_bound, x_bound, tuple(range(1, w.ndim)))
    total = convolution(call, x, w, np.dtype(np.int64 if bound >= _WIDE else np.int32))
    rank = total.ndim
    features = kernels.scales.reshape((1, -1, *(1,) * (rank - 2)))
    factor = _product_factor(images.scales.reshape((1,) * rank), features, rank)
    return ScaledSum((ScaledTerm(total, bound, factor),))


@importer("ConvInteger")
def conv_integer(call: Call) -> AnyArray:
    """``x, w, x_zero_point, w_zero_point`` to int32."""
    sides = []
    for index in (0, 1):
        operand = call.input(index)
        ones = np.ones((1,) * len(operand.shape), np.float32)
        zero_points = None
        if call.optional(index + 2) is not None:
            zero_points, _ = grid(call, call.input(index + 2), operand.shape, 0)
        side = Quantized(operand.value, operand.type, ones, zero_points, operand.shape)
        sides.append(side.centered()[0])
    call.with_integers()
    return convolution(call, sides[0], sides[1], np.dtype(np.int32))


@importer("QLinearConv", "com.microsoft.QLinearConv")
def qlinear_conv(call: Call) -> Typed:
    """``x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, B``: B is in units of x and w."""
    images, kernels = quantized(call, 0, 1, 2), quantized(call, 3, 4, 5, axis=0)
    rank, is_last = len(images.shape), bool(call.attribute("channels_last", 0))
    if is_last:
        images = images.transposed((0, rank - 1, *range(1, rank - 1)))
    total = summed_convolution(call, images, kernels)
    if total is None:
        raise call.error("has scales other than one for each feature", UnsupportedError)
    bias = bias_of(call, 8, kernels.shape[0])
    if bias is not None:
        (term,) = total.terms
        bound = 1 << 31
        if bias.is_constant:
            bound = int(np.abs(np.asarray(bias.value, np.int64)).max(initial=0))
        dtype = np.int64 if term.bound + bound >= _WIDE else np.int32
        spread = bias.value.astype(dtype).reshape((1, -1, *(1,) * (len(images.shape) - 2)))
        value = term.value.astype(dtype) + spread
        total = ScaledSum((ScaledTerm(value, term.bound + bound, term.factor),))
    if is_last:
        (term,) = total.terms
        order = (0, *range(2, rank), 1)
        moved = (plane.transpose(order) for plane in (term.value, term.factor))
        value, factor = moved
        total = ScaledSum((ScaledTerm(value, term.bound, factor),))
    return stored(call, total, 6, 7)


@importer("Conv")
def conv(call: Call) -> ScaledSum | AnyArray:
    """A sum of integer products where both operands are quantized; else of the operands' type."""
    images, kernels = call.input(0).value, call.input(1).value
    bias = bias_of(call, 2, kernels.shape[0])
    if isinstance(images, Quantized) and isinstance(kernels, Quantized):
        total = summed_convolution(call, images, kernels)
        if total is not None:
            return total if bias is None else _with_bias(call, total, bias.value, axis=1)
    call.with_floats(_mixed(images, kernels))
    x, w = call.floats(images), call.floats(kernels)
    element = ElementType.of_dtype(np.dtype(x.dtype))
    wide = np.dtype(np.float32) if element.bits < 32 else element.dtype
    result = convolution(call, x, w, wide)
    if bias is not None:
        added = convert(call.floats(bias.value), ElementType.of_dtype(wide))
        result = result + added.reshape((1, -1, *(1,) * (result.ndim - 2)))
    return convert(result, element)


# -- ONNX Runtime's -------------------------------------------------------------------------------


@importer("com.microsoft.QGemm")
def qgemm(call: Call) -> Typed | AnyArray:
    """``A, a_scale, a_zero, B, b_scale, b_zero, C, y_scale, y_zero``: C is in units of A and B."""
    left, right = quantized(call, 0, 1, 2), quantized(call, 3, 4, 5, axis=1 - bool(
        call.attribute("transB", 0)))  # fmt: skip
    if len(left.shape) != 2 or len(right.shape) != 2:
        raise call.error(f"multiplies tensors of shapes {[list(left.shape), list(right.shape)]}")
    if call.attribute("transA", 0):
        left = left.transposed((1, 0))
    if call.attribute("transB", 0):
        right = right.transposed((1, 0))
    total = summed_product(call, left, right)
    if total is None:
        raise call.error("has scales along the dimension that is summed", UnsupportedError)
    (term,) = total.terms
    factor = product_of(
        factor_of(np.float32(call.attribute("alpha", 1.0)).reshape(1, 1)), term.factor
    )
    value, bound = term.value, term.bound
    bias = call.optional(6)
    if bias is not None:
        bound += 1 << 31
        shape = (1,) * (2 - len(bias.shape)) + bias.shape
        if len(shape) != 2 or any(n not in (1, m) for n, m in zip(shape, value.shape, strict=True)):
            raise call.error(f"adds {bias} of shape {list(bias.shape)} to {list(value.shape)}")
        value = value.astype(np.int64) + bias.value.reshape(shape).astype(np.int64)
    total = ScaledSum((ScaledTerm(value, bound, factor),))
    if call.optional(7) is None:
        call.with_integers()
        return total
    return stored(call, total, 7, 8)


@importer("com.microsoft.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(call: Call) -> AnyArray:
    """``A, B, b_scale, b_zero_point, bias``: A is quantized as DynamicQuantizeLinear does."""
    real = call.array(0)
    storage, scale, zero_point = dynamically_quantized(real)
    ones = (1,) * len(real.shape)
    left = Quantized(
        storage.value, "UINT8", scale.value.reshape(ones), zero_point.value.reshape(ones),
        tuple(real.shape),
    )  # fmt: skip
    right = per_row(call, 1, 2, 3, rows=False)
    return _float_product(call, left, right, 4)


@importer("com.microsoft.MatMulIntegerToFloat")
def matmul_integer_to_float(call: Call) -> AnyArray:
    """``A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias``."""
    left, right = per_row(call, 0, 2, 4, rows=True), per_row(call, 1, 3, 5, rows=False)
    return _float_product(call, left, right, 6)


def _float_product(call: Call, left: Quantized, right: Quantized, bias: int) -> AnyArray:
    total = summed_product(call, left, right)
    if total is None:
        raise call.error("has scales along the dimension that is summed", UnsupportedError)
    call.with_integers()
    real = total.dequantize(call.graph.lift)
    return real if call.optional(bias) is None else real + call.array(bias)


@importer("com.microsoft.MatMulNBits")
def matmul_nbits(call: Call) -> AnyArray:
    """``A, B, scales, zero_points, g_idx, bias``: B is ``[N, K]`` in blocks along K, packed.

    Zero points are packed as B is, or of the type of A; without any they are half of the range.
    """
    rows = call.array(0)
    bits, size = call.attribute("bits", 4), call.integer("block_size")
    depth, features = call.integer("K"), call.integer("N")
    if call.optional(4) is not None:
        raise call.error(f"has {call.input(4)} as g_idx, an order of rows", UnsupportedError)
    if bits not in (2, 4, 8):
        raise call.error(f"has weights of {bits} bits, expected 2, 4 or 8", UnsupportedError)
    if min(depth, features) < 1 or size < 16 or size & (size - 1):
        raise call.error(f"has K = {depth}, N = {features} and blocks of {size}")
    if rows.shape[-1] != depth:
        raise call.error(f"multiplies rows of {rows.shape[-1]} elements, and says K = {depth}")
    blocks = -(-depth // size)
    packed = call.constant(1)
    if packed.dtype != np.uint8 or packed.size != features * blocks * size * bits // 8:
        raise call.error(f"has {packed.size} bytes of weights, expected "
                         f"{features * blocks * size * bits // 8}")  # fmt: skip
    storage = _unpacked(packed.reshape(features, -1), bits)[:, :depth]
    scales = call.input(2).value
    if math.prod(scales.shape) != features * blocks:
        raise call.error(f"has {math.prod(scales.shape)} scales, expected {features * blocks}")
    scales = scales.reshape((features, blocks)).astype(rows.dtype)
    half = 1 << (bits - 1)
    zero_points: AnyArray = None
    offsets: AnyArray = None
    held = StorageType(bits, signed=True)
    operand = call.optional(3)
    if operand is None:
        storage = (storage.astype(np.int16) - half).astype(np.int8)
    elif operand.type == "UINT8":
        row = -(-blocks * bits // 8)
        given = call.constant(3)
        if given.size != features * row:
            raise call.error(f"has {given.size} bytes of zero points, expected {features * row}")
        zero_points = _unpacked(given.reshape(features, row), bits)[:, :blocks]
        held = StorageType(bits, signed=False)
    else:  # reals: storage * scale - zero_point * scale
        if math.prod(operand.shape) != features * blocks:
            raise call.error(f"has {math.prod(operand.shape)} zero points, expected "
                             f"{features * blocks}")  # fmt: skip
        storage = (storage.astype(np.int16) - half).astype(np.int8)
        shifted = np.asarray(half, rows.dtype) - operand.value.reshape((features, blocks)).astype(
            rows.dtype)  # fmt: skip
        offsets = shifted * scales
    lift = call.graph.lift
    form = BlockForm(
        lift(storage, held.element),
        held,
        (1, min(size, depth)),
        scales,
        None if zero_points is None else lift(zero_points, held.element),
        offsets,
    )
    weights = form.dequantize(ExpressedType.of_dtype(rows.dtype))
    call.with_floats("the weights are integers in blocks, the activations floats")
    product = contract(rows, weights, ((len(rows.shape) - 1,), (1,)), dtype=rows.dtype)
    bias = call.optional(5)
    return product if bias is None else product + call.array(5)


def _unpacked(packed: Array, bits: int) -> Array:
    return packed if bits == 8 else np.asarray(unpack_bits(packed, bits))
