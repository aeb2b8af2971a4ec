"""Quantization of floats to GGML's blocks, bit-equal to llama.cpp's (``ggml_quantize_chunk``).

An importance matrix has the mean square of each input of a layer. With it, an element ``x`` of the
input ``k`` has the weight ``importance[k] sqrt(v + x**2)`` in the search for scales, where ``v`` is
the mean square of the row (Q4_0 to Q5_1), or twice that of the block (the others). Q6_K
has ``importance[k]`` alone.

Types with two levels of scales search the scale (and minimum) of each sub-block, then the integers
that stand for these, then round the elements by the resulting scales.

Source: ggml-quants.c of llama.cpp, ``quantize_q4_0`` to ``quantize_iq4_xs``, with and without
``quant_weights``; llama-quant.cpp, ``tensor_type_fallback``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..numerics.element_types import Array
from .ggml import BLOCK_TYPES, IQ4_NL_LEVELS
from .ggml_encoding import check_k, pack_runs, set_integers, set_six_bit_scales
from .ggml_searches import (
    NO_MAGNITUDE,
    Codebook,
    fit_positive,
    fit_symmetric,
    fit_symmetric_by_descent,
    fit_with_minimum,
    nearest_int,
    peaks,
    range_factors,
    sequential_sum,
)
from .ggml_tensor import GgmlTensor

_STEP_ELEMENTS = 1 << 16
"""Elements that are quantized in one step, whose arrays fit the L2 cache."""

_SUPER_BLOCK = 256
"""Elements of a block with two levels of scales."""

_FACTORS_START, _FACTORS_STEP, _FACTORS_COUNT = -0.9, 0.05, 36
"""Ranges that the search with an importance matrix tries, for types with minimums."""

_CODEBOOK = Codebook(IQ4_NL_LEVELS)
_CODEBOOK_TRIES = 7
"""Ranges that the search for a codebook's scale tries, on either side of the first."""


_FALLBACKS = {
    "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
}  # fmt: skip
"""Types with blocks of 32 in place of types with blocks of 256 (``tensor_type_fallback``)."""


def type_for(ggml_type: str, k: int) -> str:
    """Return the type for rows of `k` elements: a fallback if 256 does not divide them."""
    fits = k % BLOCK_TYPES[ggml_type].size == 0
    return ggml_type if fits else _FALLBACKS.get(ggml_type, ggml_type)


def quantize_blocks(
    weight: Array, ggml_type: str, importance: Array | None = None, name: str = ""
) -> GgmlTensor:
    """Quantize floats ``[..., K]`` to a type of GGML.

    Args:
        ggml_type: one of `QUANTIZED_TYPES`.
        importance: the mean squares of the inputs, float32 ``[K]``, or None.

    Raises:
        InputError: the type's blocks do not divide ``K``.
    """
    k = weight.shape[-1]
    check_k(k, ggml_type, name)
    kind, quantize = BLOCK_TYPES[ggml_type], _QUANTIZERS[ggml_type]
    rows = weight.reshape((-1, k))
    blocks = np.zeros((len(rows), k // kind.size), kind.block)
    step = max(1, _STEP_ELEMENTS // k)
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float32)
        quantize(part, importance, blocks[start : start + step].reshape(-1))
    return GgmlTensor(blocks.view(np.uint8).reshape(-1), ggml_type, weight.shape, name)


def _columns(rows: Array, size: int) -> Array:
    """Return the elements of blocks along axis 0, ``[size, n]``."""
    return np.ascontiguousarray(rows.reshape((-1, size)).T)


def _by_importance(x: Array, importance: Array, variance: Array) -> Array:
    """Return the weights of elements ``[B, n]``; `variance` has one value for some blocks each."""
    blocks = x.shape[1]
    repeated = np.repeat(variance, blocks // len(variance))
    weights: Array = _repeated(x, importance) * np.sqrt(repeated + x * x)
    return weights


def _repeated(x: Array, importance: Array) -> Array:
    """Return the importance of each element of blocks ``[B, n]``."""
    columns = importance.astype(np.float32).reshape((-1, len(x))).T
    return np.tile(columns, (1, x.shape[1] // columns.shape[1]))


def _mean_squares(rows: Array, size: int) -> Array:
    """Return the mean square of each `size` elements."""
    columns = _columns(rows, size)
    return sequential_sum(columns * columns) / np.float32(size)


def _rounded(x: Array, scales: Array, q: Array, low: int, high: int) -> Array:
    """Return the nearest integers of ``x / scales``; `q` where the scale is 0."""
    with np.errstate(all="ignore"):
        nearest = np.clip(nearest_int(x / scales), low, high)
    return np.where(scales == 0, q, (nearest - low).astype(np.float32))


def _store(blocks: Array, ggml_type: str, q: Array) -> None:
    """Write integers ``[B, n]`` of blocks or sub-blocks."""
    set_integers(blocks, ggml_type, q.T.astype(np.uint8).reshape((len(blocks), -1)))


def _sub_blocks(values: Array, count: int) -> Array:
    """Return the values of sub-blocks ``[n]`` as ``[count, blocks]``."""
    return np.ascontiguousarray(values.reshape((-1, count)).T)


# -- blocks of 32 elements -------------------------------------------------------------------------


def _symmetric(
    ggml_type: str, half: int, rows: Array, importance: Array | None, blocks: Array
) -> None:
    x = _columns(rows, 32)
    if importance is not None:
        weights = _by_importance(x, importance, _mean_squares(rows, rows.shape[1]))
        d, q = fit_symmetric(x, weights, half)
    else:
        d = peaks(x) / np.float32(-half)
        q = np.minimum(np.trunc(x * _inverse(d) + np.float32(half + 0.5)), 2 * half - 1)
    blocks["d"] = d
    _store(blocks, ggml_type, q)


def _inverse(d: Array) -> Array:
    """Return ``1 / d``, and 0 for 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _with_offset(
    ggml_type: str, most: int, rows: Array, importance: Array | None, blocks: Array
) -> None:
    x = _columns(rows, 32)
    if importance is not None:
        weights = _by_importance(x, importance, _mean_squares(rows, rows.shape[1]))
        d, minimum, q = fit_with_minimum(x, weights, most, _factors(most))
        blocks["m"] = -minimum
    else:
        low = x.min(0)
        d = (x.max(0) - low) / np.float32(most)
        q = np.minimum(np.trunc((x - low) * _inverse(d) + np.float32(0.5)), most)
        blocks["m"] = low
    blocks["d"] = d
    _store(blocks, ggml_type, q)


def _factors(most: int) -> list[np.float32]:
    return range_factors(_FACTORS_START, _FACTORS_STEP, _FACTORS_COUNT, most)


def _q8_0(rows: Array, importance: Array | None, blocks: Array) -> None:
    x = _columns(rows, 32)  # the importance is not used
    d = np.abs(x).max(0) / np.float32(127)
    scaled = x * _inverse(d)
    whole = np.trunc(scaled)
    away = np.abs(scaled - whole) >= np.float32(0.5)  # ties away from zero
    blocks["d"] = d
    blocks["qs"] = (whole + np.where(away, np.copysign(np.float32(1), scaled), 0)).T


def _iq4_nl(rows: Array, importance: Array | None, blocks: Array) -> None:
    x = _columns(rows, 32)
    scales = _codebook_scales(rows, x, importance, 32)
    blocks["d"] = scales
    _store(blocks, "IQ4_NL", _CODEBOOK.nearest(_inverse(scales) * x))


def _codebook_scales(rows: Array, x: Array, importance: Array | None, size: int) -> Array:
    if importance is None:
        weights = x * x
    else:
        weights = _by_importance(x, importance, 2 * _mean_squares(rows, size))
    return _CODEBOOK.fit(x, weights, _CODEBOOK_TRIES)


# -- blocks of 256 elements, with two levels of scales ---------------------------------------------


def _with_minimums(
    ggml_type: str,
    most: int,
    factors: list[np.float32],
    rows: Array,
    importance: Array | None,
    blocks: Array,
) -> None:
    """Q4_K and Q5_K: 8 sub-blocks of 32; `factors` are those without an importance matrix."""
    x = _columns(rows, 32)
    if importance is None:
        weights = np.sqrt(_mean_squares(rows, 32)) + np.abs(x)
    else:
        weights = _by_importance(x, importance, 2 * _mean_squares(rows, _SUPER_BLOCK))
        factors = _factors(most)
    scale, minimum, q = fit_with_minimum(x, weights, most, factors)
    levels = [_sub_blocks(each, 8) for each in (scale, minimum)]
    if importance is None:
        fits = [_to_greatest(each, 63) for each in levels]
    else:
        totals = _sub_blocks(sequential_sum(weights), 8)
        fits = [fit_positive(each, totals, 63) for each in levels]
    products = []
    for name, (d, integers) in zip(("d", "dmin"), fits, strict=True):
        blocks[name] = d
        products.append((blocks[name].astype(np.float32) * integers).T.reshape(-1))
    set_six_bit_scales(blocks, *(integers.T for _, integers in fits))
    _store(blocks, ggml_type, _rounded(x + products[1], products[0], q, 0, most))


def _to_greatest(values: Array, most: int) -> tuple[Array, Array]:
    """Return ``d``, and integers for which ``d`` times the greatest is the greatest value."""
    greatest = np.maximum(values.max(0), np.float32(0))
    with np.errstate(divide="ignore"):
        inverse = np.where(greatest > 0, np.float32(most) / greatest, np.float32(0))
    integers = np.minimum(nearest_int(inverse * values).astype(np.uint8), most)
    return greatest / np.float32(most), integers.astype(np.uint8)


def _q3_k(rows: Array, importance: Array | None, blocks: Array) -> None:
    """Q3_K: 16 sub-blocks of 16, with scales of 6 bits."""
    x = _columns(rows, 16)
    if importance is None:
        scales, q = fit_symmetric_by_descent(x, 4)
        d, integers = _to_peak(_sub_blocks(scales, 16), 32)
    else:
        weights = _by_importance(x, importance, 2 * _mean_squares(rows, _SUPER_BLOCK))
        scales, q = fit_symmetric(x, weights, 4)
        totals = _sub_blocks(sequential_sum(weights), 16)
        d, integers = fit_symmetric(_sub_blocks(scales, 16), totals, 32)
    blocks["d"] = d
    products = blocks["d"].astype(np.float32) * (integers - np.float32(32))
    stored = integers.T.astype(np.uint8)
    low, high = pack_runs(stored, 4, 8), pack_runs(stored >> np.uint8(4), 2, 4)
    blocks["scales"] = np.concatenate([low, high], axis=1)
    _store(blocks, "Q3_K", _rounded(x, products.T.reshape(-1), q, -4, 3))


def _to_peak(values: Array, half: int) -> tuple[Array, Array]:
    """Return ``d``, and integers plus `half`: the value of the greatest magnitude is -`half`."""
    peak = peaks(values)
    with np.errstate(all="ignore"):
        inverse = np.float32(-half) / peak
        integers = np.clip(nearest_int(inverse * values), -half, half - 1) + half
        d = np.float32(1) / inverse
    is_zero = peak == 0
    integers[:, is_zero] = 0
    return np.where(is_zero, np.float32(0), d), integers.astype(np.float32)


def _q6_k(rows: Array, importance: Array | None, blocks: Array) -> None:
    """Q6_K: 16 sub-blocks of 16, with scales of 8 bits."""
    x = _columns(rows, 16)
    scales, q = fit_symmetric(x, x * x if importance is None else _repeated(x, importance), 32)
    d, integers = _to_peak(_sub_blocks(scales, 16), 128)
    signed = (integers - np.float32(128)).astype(np.int8)
    is_zero = np.abs(peaks(_sub_blocks(scales, 16))) < NO_MAGNITUDE
    d[is_zero], signed[:, is_zero] = 0, 0
    blocks["d"], blocks["scales"] = d, signed.T
    products = (blocks["d"].astype(np.float32) * signed).T.reshape(-1)
    rounded = _rounded(x, products, q, -32, 31)
    rounded[:, np.repeat(is_zero, 16)] = 0
    _store(blocks, "Q6_K", rounded)


def _iq4_xs(rows: Array, importance: Array | None, blocks: Array) -> None:
    """IQ4_XS: 8 sub-blocks of 32 indices of a codebook, with scales of 6 bits."""
    x = _columns(rows, 32)
    scales = _sub_blocks(_codebook_scales(rows, x, importance, _SUPER_BLOCK), 8)
    d = peaks(scales) / np.float32(-32)
    integers = np.clip(nearest_int(_inverse(d) * scales), -32, 31)
    products = (d * integers.astype(np.float32)).T.reshape(-1)
    stored = (integers + 32).T.astype(np.uint8)
    blocks["d"] = d
    blocks["scales_l"] = pack_runs(stored, 4, 1)
    blocks["scales_h"] = pack_runs(stored >> np.uint8(4), 2, 1)
    _store(blocks, "IQ4_XS", _CODEBOOK.nearest(_inverse(products) * x))


_QUANTIZERS: dict[str, Callable[[Array, Array | None, Array], None]] = {
    "Q4_0": partial(_symmetric, "Q4_0", 8),
    "Q4_1": partial(_with_offset, "Q4_1", 15),
    "Q5_0": partial(_symmetric, "Q5_0", 16),
    "Q5_1": partial(_with_offset, "Q5_1", 31),
    "Q8_0": _q8_0,
    "Q3_K": _q3_k,
    "Q4_K": partial(_with_minimums, "Q4_K", 15, range_factors(-1, 0.1, 20, 15)),
    "Q5_K": partial(_with_minimums, "Q5_K", 31, range_factors(-0.5, 0.1, 15, 31)),
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}

QUANTIZED_TYPES = tuple(_QUANTIZERS)
"""The types that `quantize_blocks` makes."""
