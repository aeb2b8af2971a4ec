"""Semantics of contractions and linear algebra on real numbers, for `semantics`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .program import Array, Attributes


def cholesky(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Return the Cholesky factor of a matrix."""
    lower = attributes["lower"]
    triangle = np.tril(inputs[0]) if lower else np.swapaxes(np.triu(inputs[0]), -1, -2)
    whole = triangle + np.swapaxes(np.tril(triangle, -1), -1, -2)
    factor = np.linalg.cholesky(whole)
    return [factor if lower else np.swapaxes(factor, -1, -2)]


def dot_general(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Return ``dot_general`` of two arrays."""
    lhs, rhs = inputs
    batch = list(zip(*attributes.get("batch", ((), ())), strict=True))
    contract = list(zip(*attributes["contract"], strict=True))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in range(lhs.ndim)]
    right = [next(letters) for _ in range(rhs.ndim)]
    for i, j in [*batch, *contract]:
        right[j] = left[i]
    batches = [left[i] for i, _ in batch]
    free_left = [n for i, n in enumerate(left) if i not in [p[0] for p in [*batch, *contract]]]
    free_right = [n for j, n in enumerate(right) if j not in [p[1] for p in [*batch, *contract]]]
    out = "".join([*batches, *free_left, *free_right])
    return [np.asarray(np.einsum(f"{''.join(left)},{''.join(right)}->{out}", lhs, rhs))]


def dilate(x: Array, axis: int, step: int, fill: float = 0.0) -> Array:
    """Insert elements between those of an axis."""
    if step == 1 or not x.shape[axis]:
        return x
    shape = list(x.shape)
    shape[axis] = (shape[axis] - 1) * step + 1
    spread = np.full(shape, fill, x.dtype)
    spread[(slice(None),) * axis + (slice(None, None, step),)] = x
    return spread


def pad_axis(x: Array, axis: int, ends: Sequence[int], fill: float) -> Array:
    """Add, or with negative numbers cut, elements at both ends of an axis."""
    low, high = ends
    cut = [slice(None)] * x.ndim
    cut[axis] = slice(max(-low, 0), x.shape[axis] - max(-high, 0))
    widths = [(0, 0)] * x.ndim
    widths[axis] = (max(low, 0), max(high, 0))
    return np.pad(x[tuple(cut)], widths, constant_values=fill)


def convolution(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Source: StableHLO specification, convolution; attributes under its names."""
    lhs, rhs = inputs[:2]
    spatial = lhs.ndim - 2
    (in_layout, kernel_layout, out_layout) = attributes["layout"]  # "b01f", "01io", "b01f"
    axes = "".join(str(n) for n in range(spatial))
    x = lhs.transpose([in_layout.index(c) for c in f"bf{axes}"])
    w = rhs.transpose([kernel_layout.index(c) for c in f"oi{axes}"])
    strides = attributes.get("strides", (1,) * spatial)
    padding = attributes.get("padding", ((0, 0),) * spatial)
    lhs_dilation = attributes.get("lhs_dilation", (1,) * spatial)
    rhs_dilation = attributes.get("rhs_dilation", (1,) * spatial)
    reversal = attributes.get("reversal", (False,) * spatial)
    for n in range(spatial):
        x = dilate(x, n + 2, lhs_dilation[n])
        x = pad_axis(x, n + 2, padding[n], 0.0)
        w = np.flip(w, n + 2) if reversal[n] else w
        w = dilate(w, n + 2, rhs_dilation[n])
    groups, batch_groups = attributes.get("groups", 1), attributes.get("batch_groups", 1)
    groups_out = []
    count = max(groups, batch_groups)
    for g in range(count):
        if batch_groups > 1:
            group = np.array_split(x, batch_groups, 0)[g]
        else:
            group = np.array_split(x, groups, 1)[g]
        groups_out.append(_correlate(group, np.array_split(w, count, 0)[g], strides))
    out = np.concatenate(groups_out, 1)
    return [out.transpose([f"bf{axes}".index(c) for c in out_layout])]


def _correlate(x: Array, w: Array, strides: Sequence[int]) -> Array:
    """``(b, i, ...) * (o, i, ...) -> (b, o, ...)`` without padding."""
    window = w.shape[2:]
    extents, slices = window_slices(x.shape[2:], window, strides, (1,) * len(window))
    out = np.zeros((x.shape[0], w.shape[0], *extents))
    everything: tuple[slice, ...] = (slice(None), slice(None))
    for offset, cut in slices.items():
        out += np.einsum("bi...,oi->bo...", x[everything + cut], w[everything + offset])
    return out


def window_slices(
    shape: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], dict[tuple[int, ...], tuple[slice, ...]]]:
    """Return the number of windows along each axis, and for each offset in a window its slices."""
    spans = [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]
    extents = [
        (n - span) // s + 1 if n >= span else 0
        for n, span, s in zip(shape, spans, strides, strict=True)
    ]
    slices = {
        offset: tuple(
            slice(o * d, o * d + (n - 1) * s + 1 if n else o * d, s)
            for o, d, n, s in zip(offset, dilations, extents, strides, strict=True)
        )
        for offset in itertools.product(*map(range, sizes))
    }
    return extents, slices


def triangular_solve(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Return the solution of a triangular system."""
    a, b = inputs
    a = np.tril(a) if attributes["lower"] else np.triu(a)
    if attributes.get("unit_diagonal"):
        a = a - np.diag(np.diag(a)) + np.eye(a.shape[-1])
    if attributes.get("transpose"):
        a = np.swapaxes(a, -1, -2)
    if attributes["left_side"]:
        return [np.linalg.solve(a, b)]
    return [np.swapaxes(np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)]
