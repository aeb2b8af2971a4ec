"""Ranges of quantized activations, from the histograms of their values.

* *min-max*: all values.
* *percentile*: without the outermost values of both ends.
* *mse*: the range with the least mean square error of quantization.
* *kl*: the range whose quantized distribution has the least Kullback-Leibler divergence from that
  of the values.

Source of *kl*: Migacz, "8-bit Inference with TensorRT", GTC 2017; ONNX Runtime, ``calibrate.py``,
`get_entropy_threshold`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from .histogram import BINS, Histogram

RangeMethod = Literal["percentile", "mse", "kl", "min-max"]

ACTIVATIONS = StorageType(8, True)
"""Storage of quantized activations."""
_CLIPPINGS = tuple(1 - step / 64 for step in range(52))
"""Fractions of a range that *mse* tries."""
_KL_STEP = 16
"""Bins between the thresholds that *kl* tries."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny) * 4
"""Ranges of a smaller scale are those of a tensor of zeros."""


def parameters_of_range(low: float, high: float) -> QuantizationParameters:
    """Return the scale and the zero point of a range, which is extended to 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    levels = ACTIVATIONS.maximum - ACTIVATIONS.minimum
    scale = (high - low) / levels
    if not scale > _LEAST_SCALE:
        scale = 1.0
    zero_point = int(np.clip(np.rint(ACTIVATIONS.minimum - low / scale), -128, 127))
    return QuantizationParameters(
        ACTIVATIONS, ExpressedType.F32, (), (), np.array(scale), np.array(zero_point)
    )


def range_of(
    histogram: Histogram, method: RangeMethod, percentile: float = 99.99
) -> tuple[float, float]:
    """Return the least and the greatest value of the range that a method chooses."""
    if not histogram.counts.any():
        return 0.0, 0.0
    if method == "percentile":
        return _percentile(histogram, percentile)
    if method == "mse":
        return _least_square_error(histogram)
    if method == "kl":
        return _least_divergence(histogram)
    return histogram.minimum, histogram.maximum


def _percentile(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Cut half of the values beyond the percentile at each end, to the edges of bins."""
    cumulative = np.cumsum(histogram.counts)
    cut = cumulative[-1] * (1 - percentile / 100) / 2
    first = int(np.searchsorted(cumulative, cut, "right"))
    last = int(np.searchsorted(cumulative, cumulative[-1] - cut, "left"))
    low = (first - BINS // 2) * histogram.width
    high = (last + 1 - BINS // 2) * histogram.width
    return max(low, histogram.minimum), min(high, histogram.maximum)


def _least_square_error(histogram: Histogram) -> tuple[float, float]:
    """Try smaller ranges: of both ends together, then of each."""
    centers, counts = histogram.centers_and_counts()

    def error(bounds: tuple[float, float]) -> float:
        parameters = parameters_of_range(*bounds)
        scale, zero_point = float(parameters.scales), int(parameters.zero_points)
        stored = np.clip(np.rint(centers / scale) + zero_point, -128, 127)
        return float(counts @ np.square((stored - zero_point) * scale - centers))

    low, high = min(histogram.minimum, 0.0), max(histogram.maximum, 0.0)
    low, high = min(((low * each, high * each) for each in _CLIPPINGS), key=error)
    low, high = min(((low, high * each) for each in _CLIPPINGS), key=error)
    low, high = min(((low * each, high) for each in _CLIPPINGS), key=error)
    return low, high


def _least_divergence(histogram: Histogram) -> tuple[float, float]:
    """Clip magnitudes at the threshold of the least divergence.

    Values of one sign have all 256 levels; of both signs the magnitudes have 128. Zeros, which each
    range has exactly, do not count: a ReLU has many.
    """
    half = BINS // 2
    has_both_signs = histogram.minimum < 0 < histogram.maximum
    magnitudes = histogram.counts[half:] + histogram.counts[:half][::-1]
    magnitudes[0] -= histogram.zeros
    if not magnitudes.any():
        return 0.0, 0.0
    levels = 128 if has_both_signs else 256
    used = int(np.flatnonzero(magnitudes)[-1]) + 1
    thresholds = [*range(levels, used, _KL_STEP), used] if used > levels else [used]
    best = min(thresholds, key=lambda count: _divergence(magnitudes, count, levels))
    threshold = best * histogram.width
    return max(histogram.minimum, -threshold), min(histogram.maximum, threshold)


def _divergence(magnitudes: Array, count: int, levels: int) -> float:
    """Return the divergence of `count` bins, quantized to `levels`, from the clipped values.

    Bins of few values differ by chance. The divergence of ``n`` values in ``b`` bins from their
    means in ``l`` levels is expected to be ``(b - l) / 2 n`` then, which is subtracted.
    """
    clipped = magnitudes[:count].astype(np.float64)
    clipped[-1] += magnitudes[count:].sum()
    level = np.arange(count) * levels // count
    within, present = magnitudes[:count], clipped > 0
    level_counts = np.bincount(level, within, levels)
    filled = np.bincount(level, present, levels)
    quantized = np.where(present, (level_counts / np.maximum(filled, 1))[level], 0.0)
    total, values = quantized.sum(), clipped.sum()
    if not total:
        return float("inf")
    p, q = clipped[present] / values, quantized[present] / total
    expected = (np.count_nonzero(present) - np.count_nonzero(filled)) / (2 * values)
    # The last bin may have clipped values only, and then no share of the quantized ones.
    return float(np.sum(p * np.log(p / np.maximum(q, 1e-12))) - expected)
