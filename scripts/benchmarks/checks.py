"""Data of cases with exact results, and bounds of the error of a result.

A result is compared with NumPy's result from the same weights in float64:

* Block matmul, ``y = x @ w.T`` with float ``x [M, K]``: activations are rounded to 8 bits at run
  time, with a step ``s`` for some of them along K. So ``|y - exact| <= sum_k |w| s / 2``, and if
  the errors are independent, ``rms(y - exact)`` is ``sqrt(sum_k w**2 s**2 / 12)``. Both are
  checked, with a tenth of the first on top, and ``3 / sqrt(M)`` of the second, because the errors
  of a row of ``x`` are the same in all of a row of ``y``; and ``2**-10`` of ``sum_k |w x|`` for
  scales that are rounded to 16 bits. Where activations stay float, that alone is allowed.
* int8: the integer that is nearest to ``(x - zero point) @ w * scales + zero point``, clamped. It
  must be, up to 1/32 of a step for multipliers of 32 bits. How many values are not the nearest
  integers themselves is counted.
* A language model: the cosine of its logits and those of the forward pass in NumPy, with weights
  that are dequantized, has to be above 0.999.
* A module of PyTorch: the cosine of its results and eager PyTorch's has to be above 0.995; those
  of quantizations at run time are compared with the module of floats.
* A model: the integers of its NumPy evaluation, which are LiteRT's reference kernels'. Other
  kernels round elsewhere, and in front of a softmax: of 8 bits 16 steps are allowed, of a float 3 %
  of the rms; 10 % behind the 53 layers of a network of random weights, where a step more or less
  at one place moves others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MIN_COSINE = 0.995
"""Least cosine of a module: a rounding error may become a step of a later quantization."""


@dataclass(frozen=True)
class Data:
    """A case with its data.

    Args:
        name: as in the report.
        values: the parameters of the case; see `benchmarks.peers`.
        arrays: by name. ``x``; ``weights`` of a block matmul; ``w``, ``w_scales``, ``bias`` of
            integers.
        exact: the result in 64 bits; of integers before rounding and clamping.
        reals: the weights of a block matmul.
        products: multiplications that have to be done.
        bytes: of the weights.
        rotated: True if each call reads the weights from memory: another copy of them, unless they
            are a model's, which no cache holds.
    """

    name: str
    values: dict[str, Any]
    arrays: Mapping[str, Array]
    exact: Array
    reals: Array | None = None
    products: int = 0
    bytes: int = 0
    rotated: bool = False


@dataclass(frozen=True)
class Check:
    """Verdict on a result."""

    is_right: bool
    text: str


def check(data: Data, result: Array, notes: Mapping[str, Any]) -> Check:
    """Compare a result with the exact one."""
    if result.shape != data.exact.shape:
        return Check(False, f"has shape {result.shape}, not {data.exact.shape}")
    if not np.isfinite(result.astype(np.float64)).all():
        return Check(False, "is not finite")
    if data.values["kind"] == "block matmul":
        return _check_blocks(data, result, notes.get("activations"))
    if data.values["kind"] == "model":
        return _check_model(data.exact, result)
    if data.values["kind"] == "network":
        return _check_model(data.exact, result, 0.1)
    if data.values["kind"] == "module":
        return _check_cosine(data.exact, result)
    if data.values["kind"] == "language model":
        return _check_logits(data.exact, result.astype(np.float64))
    return _check_integers(data.exact, result)


def _check_blocks(data: Data, result: Array, activations: Mapping[str, int] | None) -> Check:
    assert data.reals is not None
    x, w = data.arrays["x"].astype(np.float64), data.reals
    error = np.abs(result - data.exact)
    bound = 2**-10 * (np.abs(x) @ np.abs(w).T)
    expected = 0.0
    if activations is not None:
        size, steps = activations["block"], activations["steps"]
        blocks = x.reshape(len(x), -1, size)
        width = 2 * np.abs(blocks).max(2)
        if steps == 255:  # with a zero point
            width = np.maximum(blocks.max(2), 0) - np.minimum(blocks.min(2), 0)
        step = width / steps
        grouped = np.abs(w).reshape(len(w), -1, size)
        bound += 1.1 * step / 2 @ grouped.sum(2).T
        expected = float(np.sqrt((step**2 / 12 @ (grouped**2).sum(2).T).mean()))
    rms, scale = np.sqrt((error**2).mean()), np.sqrt((data.exact**2).mean())
    chance = 1 + 3 / len(x) ** 0.5
    is_right = bool((error <= bound).all() and rms <= chance * expected + 2**-11 * scale)
    return Check(is_right, f"rms error {rms / scale:.2%}")


def _check_integers(exact: Array, result: Array) -> Check:
    clamped = np.clip(exact, -128, 127)
    distance = np.abs(result - clamped)
    differ = int((result != np.rint(clamped)).sum())
    text = "exact" if not differ else f"{differ:,} of {result.size:,} differ"
    return Check(bool((distance <= 0.5 + 1 / 32).all()), text)


def _check_model(exact: Array, result: Array, part: float = 0.03) -> Check:
    difference = np.abs(result.astype(np.float64) - exact)
    if result.dtype.kind == "f":
        rms, scale = np.sqrt((difference**2).mean()), np.sqrt((exact**2).mean())
        return Check(
            bool(rms <= part * scale), "exact" if not rms else f"rms error {rms / scale:.2%}"
        )
    differ = int((difference > 0).sum())
    text = f"{differ:,} of {result.size:,} differ, by {difference.max():.0f} at most"
    return Check(bool((difference <= 16).all()), text if differ else "exact")


def _check_cosine(exact: Array, result: Array) -> Check:
    left, right = (array.astype(np.float64).ravel() for array in (exact, result))
    cosine = float(left @ right / np.sqrt((left @ left) * (right @ right)))
    return Check(cosine > _MIN_COSINE, f"cosine {cosine:.5f}")


def _check_logits(exact: Array, logits: Array) -> Check:
    cosine = float(exact @ logits / np.sqrt((exact @ exact) * (logits @ logits)))
    same = "the same" if exact.argmax() == logits.argmax() else "another"
    return Check(cosine > 0.999, f"cosine {cosine:.5f}, {same} next token")
