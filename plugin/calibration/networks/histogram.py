"""Histogram of the values of a tensor, over a range that grows with them."""

from __future__ import annotations

import numpy as np

from ...numerics.element_types import Array

BINS = 1 << 13
"""Bins of a histogram: at least 1,024 on the greatest magnitude, and 16 for each of 256 steps."""
_LEAST_LIMIT = 2.0**-120
"""Smaller magnitudes share the two innermost bins."""


class Histogram:
    """Counts of values in `BINS` bins of equal width on ``[-limit, limit)``.

    The limit is a power of two. It doubles when a value exceeds it; pairs of bins are then merged,
    so that the counts do not depend on the order of the values.

    Attributes:
        minimum, maximum: of all values; infinities for none.
        zeros: the number of values that are 0.
    """

    def __init__(self) -> None:
        self.limit = _LEAST_LIMIT
        self.counts = np.zeros(BINS, np.int64)
        self.minimum, self.maximum = np.inf, -np.inf
        self.zeros = 0

    def add(self, values: Array) -> None:
        """Count finite values."""
        flat = np.asarray(values, np.float32).reshape(-1)
        if not flat.size:
            return
        self.minimum = min(self.minimum, float(flat.min()))
        self.maximum = max(self.maximum, float(flat.max()))
        self.zeros += flat.size - int(np.count_nonzero(flat))
        greatest = max(-self.minimum, self.maximum)
        while self.limit <= greatest:
            self._double()
        positions = flat * np.float64(BINS / 2 / self.limit)
        indices = np.floor(positions, out=positions).astype(np.int32) + BINS // 2
        self.counts += np.bincount(indices, minlength=BINS)

    @property
    def width(self) -> float:
        """The width of a bin."""
        return 2 * self.limit / BINS

    def centers_and_counts(self) -> tuple[Array, Array]:
        """Return the centers of the bins that have values, clipped to the range, and the counts."""
        used = np.flatnonzero(self.counts)
        centers = (used - BINS // 2 + 0.5) * self.width
        return np.clip(centers, self.minimum, self.maximum), self.counts[used]

    def _double(self) -> None:
        merged = self.counts.reshape((-1, 2)).sum(1)
        self.counts = np.zeros(BINS, np.int64)
        self.counts[BINS // 4 : BINS // 4 * 3] = merged
        self.limit *= 2
