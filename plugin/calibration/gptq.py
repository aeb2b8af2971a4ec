"""GPTQ: integers of a weight that keep the layer's outputs.

A layer has inputs ``X [T, K]`` and a weight ``w [N, K]``. GPTQ chooses the integers ``q`` of each
row for a small error of the outputs::

    ||X (w - w')^T||^2 = (w - w') H (w - w')^T,    H = X^T X,    w' = d q + m

Columns are rounded one after the other, and the columns that are left take up the error of each:
with ``H + damping = R R^T`` for an upper triangular ``R``, and ``U = R^-1``,

    e = (w[:, k] - w'[:, k]) / U[k, k]
    w[:, j] -= e U[k, j]    for j > k

Columns with great inputs come first (``act-order``), while the blocks of the grid stay those of the
weight.

Source: "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
Algorithm 1, which has the Cholesky factor of the inverse; `U` is the same matrix.
"""

from __future__ import annotations

import numpy as np

from ..numerics.element_types import Array
from .grids import Grid, nearest

DAMPING_OF_DEPTH = 0.2
"""Damping by the depth: this times ``K / T``, times the mean of ``H``'s diagonal.

Fewer tokens say less of the products of two inputs, which then count less.
"""
MIN_DAMPING = 0.01
"""The least damping, times the mean of ``H``'s diagonal, as in the paper."""

_PANEL_COLUMNS = 128
"""Columns that are rounded before the columns after them are updated, by one GEMM."""


def damped(moments: Array, tokens: int) -> Array:
    """Return the moments of `tokens` inputs with the damping on their diagonal, float32 ``[K, K]``.

    An input that is always 0 counts as one of the mean magnitude.
    """
    result = moments.copy()
    diagonal = np.diag(result).copy()
    mean = float(diagonal.mean(dtype=np.float64)) or 1.0
    damping = max(MIN_DAMPING, DAMPING_OF_DEPTH * len(moments) / tokens)
    np.fill_diagonal(result, np.where(diagonal == 0, mean, diagonal) + damping * mean)
    return result


def gptq(weight: Array, moments: Array, grid: Grid) -> Array:
    """Return the integers of a weight on a grid, float32 ``[N, K]``.

    Args:
        weight: float32 ``[N, K]``.
        moments: ``H``, or a multiple of it, with damping, float32 ``[K, K]``.
    """
    rows, depth = weight.shape
    order = np.argsort(-np.diag(moments), kind="stable")
    factor = _inverse_factor(moments[np.ix_(order, order)])
    scales, offsets = (each[:, order].T.copy() for each in grid.columns(depth))
    left = weight[:, order].astype(np.float32)
    integers = np.empty((rows, depth), np.float32)
    for start in range(0, depth, _PANEL_COLUMNS):
        end = min(start + _PANEL_COLUMNS, depth)
        panel, errors = left[:, start:end].T.copy(), np.empty((end - start, rows), np.float32)
        for number in range(end - start):
            column = start + number
            scale, offset = scales[column], offsets[column]
            rounded = nearest(panel[number], scale, offset, grid.storage)
            integers[:, column] = rounded
            error = (panel[number] - rounded * scale - offset) / factor[column, column]
            panel[number + 1 :] -= factor[column, column + 1 : end, None] * error
            errors[number] = error
        left[:, end:] -= errors.T @ factor[start:end, end:]
    result = np.empty_like(integers)
    result[:, order] = integers
    return result


def _inverse_factor(moments: Array) -> Array:
    """Return ``R^-1`` of ``moments = R R^T``, upper triangular, float32."""
    # The Cholesky factor of the matrix with its rows and columns reversed is lower triangular.
    reversed_factor = np.linalg.cholesky(moments[::-1, ::-1].astype(np.float64))
    inverse: Array = np.linalg.inv(reversed_factor)[::-1, ::-1].astype(np.float32)
    return inverse


def refit_scales(weight: Array, moments: Array, grid: Grid, integers: Array) -> Grid:
    """Return the grid with the scales of the least output error for given integers.

    A row's error is quadratic in its scales ``d [G]``. With ``p = q - z`` and ``r = w`` for zero
    points, else ``p = q`` and ``r = w - m``, and sums over the columns of blocks ``g`` and ``h``,

        (sum over k in g, l in h of p[k] H[k, l] p[l]) d = sum over k in g of p[k] (H r^T)[k]

    A scale that changes its sign, or by more than a factor of two, keeps its value.
    """
    rows, depth = weight.shape
    blocks = grid.scales.shape[1]
    size = depth // blocks
    if grid.kind == "zero points":
        factors, target = integers - np.repeat(grid.zero_points, size, axis=1), weight
    else:
        factors, target = integers, weight - grid.columns(depth)[1]
    system = np.empty((rows, blocks, blocks), np.float32)
    for block in range(blocks):
        columns = slice(block * size, (block + 1) * size)
        products = (factors[:, columns] @ moments[columns]) * factors
        system[:, block] = products.reshape((rows, blocks, size)).sum(-1)
    constants = ((target @ moments) * factors).reshape((rows, blocks, size)).sum(-1)
    diagonal = np.einsum("nii->ni", system)  # a view
    diagonal[diagonal == 0] = 1  # the block's values do not depend on its scale
    solution = np.linalg.solve(system, constants[..., None])[..., 0]
    ratio = solution / grid.scales
    changes = (ratio > 0.5) & (ratio < 2)
    return grid.with_scales(np.where(changes, solution, grid.scales).astype(np.float32))


def output_error(weight: Array, values: Array, moments: Array) -> float:
    """Return the root mean square error of a layer's outputs, relative to the outputs'."""
    difference = values - weight
    noise = float(np.sum((difference @ moments) * difference, dtype=np.float64))
    power = float(np.sum((weight @ moments) * weight, dtype=np.float64))
    return float(np.sqrt(max(noise, 0.0) / power)) if power else 0.0
