"""Importers of matrix products.

Sources: LiteRT, ``reference/integer_ops/fully_connected.h``, ``reference/batch_matmul.h``,
``Prepare`` of ``batch_matmul.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, AnyArray
from ..arithmetic.requantization import rescale, rescale_int64
from ..call import Call, importer
from ..operand import Operand
from . import dynamic_range
from .integer_contraction import IntegerContraction, add_float_bias, bias_operand


@importer("FULLY_CONNECTED")
def fully_connected(call: Call) -> AnyArray:
    """Import FULLY_CONNECTED, with weights ``[N, K]``; all other dimensions of the input are M."""
    operand, weights = call.input(0), call.input(1)
    if call.options.weights_format:
        raise call.error("has shuffled weights", UnsupportedError)
    if len(weights.shape) != 2:
        raise call.error(f"has weights of shape {list(weights.shape)}, expected 2 dimensions")
    n, k = weights.shape
    bias = bias_operand(call, 2, n)
    count = math.prod(operand.shape)
    if not k or count % k:
        raise call.error(f"has {count} elements for weights of {k} columns")
    rows = operand.value.reshape((count // k, k))

    if operand.is_float and dynamic_range.applies(call, weights):
        product = dynamic_range.multiply_rows(call, rows, weights)
        result = call.activated(add_float_bias(product, bias))
    elif operand.is_float:
        product = contract(rows.astype(np.float32), call.expressed(weights, rows), ((1,), (1,)))
        result = call.activated(add_float_bias(product, bias))
    else:
        contraction = IntegerContraction(call, Operand(operand.tensor, rows), weights, bias, 0)
        result = contraction.compute(
            lambda x, w, _, dtype: contract(x, w, ((1,), (1,)), dtype=dtype)
        )
    if call.options.keep_num_dims:
        return result.reshape((*operand.shape[:-1], n))
    return result


@importer("BATCH_MATMUL")
def batch_matmul(call: Call) -> AnyArray:
    """Import BATCH_MATMUL of ``[..., M, K]`` and ``[..., K, N]``.

    ``adj_x`` and ``adj_y`` swap the last two dimensions. LiteRT treats several scales of the right
    operand as a scale of 0, and returns zero points; here each column has its own scale.
    """
    left, right = call.input(0), call.input(1)
    adjoint = (bool(call.options.adj_x), bool(call.options.adj_y))
    if min(len(left.shape), len(right.shape)) < 2:
        raise call.error(f"has operands of shapes {list(left.shape)} and {list(right.shape)}")
    if left.is_float and dynamic_range.applies(call, right):
        rows = left.value
        if adjoint[0]:
            rows = rows.transpose(*range(rows.ndim - 2), -1, -2)
        return dynamic_range.matmul(
            call, rows, right, lambda x, w, dtype: _matmul((x, w), (False, adjoint[1]), dtype)
        )
    if left.is_float:
        values = [call.expressed(operand, left.value) for operand in (left, right)]
        return _matmul(values, adjoint, np.float32)
    x, y = call.per_tensor(left.tensor), call.per_tensor(call.output)
    w = call.parameters(right.tensor)
    columns = len(right.shape) - (2 if adjoint[1] else 1)
    if not w.is_per_tensor and (w.axis != columns or w.zero_points.any()):
        raise call.error(
            f"needs scales of {right.tensor} along dimension {columns} and zero points of 0, and "
            f"they are along {w.axis}"
        )
    centered = [call.centered(left), convert(right.value, I32)]
    if w.is_per_tensor:
        centered[1] = call.centered(right)
    k = left.shape[-2 if adjoint[0] else -1]
    bits = sum(operand.value.dtype.itemsize * 8 for operand in (left, right))
    is_int16 = left.tensor.type == "INT16"
    dtype = np.int64 if is_int16 and k << bits >= 1 << 31 else np.int32
    total = _matmul(centered, adjoint, dtype)
    factors = np.float64(x.scale) * w.scales.reshape(-1).astype(np.float64) / np.float64(y.scale)
    return call.to_storage((rescale_int64 if is_int16 else rescale)(total, factors))


def _matmul(operands: Sequence[AnyArray], adjoint: tuple[bool, bool], dtype: type) -> AnyArray:
    batch = np.broadcast_shapes(*(operand.shape[:-2] for operand in operands))
    left, right = (
        np.broadcast_to(
            operand.reshape((1,) * (len(batch) + 2 - operand.ndim) + operand.shape),
            (*batch, *operand.shape[-2:]),
        )
        for operand in operands
    )
    rank = len(batch)
    axes = tuple(range(rank))
    reduced = (rank if adjoint[0] else rank + 1, rank + 1 if adjoint[1] else rank)
    return contract(left, right, ((reduced[0],), (reduced[1],)), (axes, axes), dtype=dtype)
