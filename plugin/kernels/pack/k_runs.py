"""K of an AMX kernel, as it lies in memory: runs of consecutive bytes, read in equal pieces.

Taps of the last filter axis whose pixels are consecutive in memory form a *run*. A run is read in
*pieces* of up to 64 bytes, a row of an AMX tile. Where the last piece overlaps the one before, the
packed weight has zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...emit.amx import TILE_ROW_BYTES
from ...numerics.element_types import AnyArray
from ..conv_geometry import ConvGeometry


@dataclass(frozen=True)
class KRuns:
    """The runs of an output pixel, whose lengths are multiples of 4.

    The geometry has the input pixels that output pixels read; C is `channels`.
    """

    geometry: ConvGeometry
    channels: int

    @property
    def _has_consecutive_taps(self) -> bool:
        return bool(self.geometry.taps) and self.geometry.taps[-1][1] == 1

    @property
    def length(self) -> int:
        """Bytes of a run."""
        return self.channels * (self.geometry.taps[-1][0] if self._has_consecutive_taps else 1)

    @property
    def outer(self) -> list[tuple[int, int]]:
        """The count of runs along each axis, and their distance in bytes."""
        taps = self.geometry.taps[:-1] if self._has_consecutive_taps else self.geometry.taps
        return [(count, distance * self.channels) for count, distance in taps]

    @property
    def pieces(self) -> int:
        """Pieces of a run."""
        return -(-self.length // TILE_ROW_BYTES)

    @property
    def piece(self) -> int:
        """Bytes of a piece, a multiple of 4."""
        return -(-self.length // self.pieces // 4) * 4

    @property
    def padded_k(self) -> int:
        """K with the overlaps: bytes of all pieces."""
        return math.prod(count for count, _ in self.outer) * self.pieces * self.piece

    def pack(self, rows: AnyArray) -> AnyArray:
        """Insert zeros into a weight ``N x K`` where a piece overlaps the one before."""
        overlap = self.pieces * self.piece - self.length
        if not overlap:
            return rows
        n, last = rows.shape[0], (self.pieces - 1) * self.piece
        runs = rows.reshape((n, rows.shape[1] // self.length, self.length))
        before = np.pad(runs[:, :, :last], [(0, 0), (0, 0), (0, overlap)])
        return np.concatenate([before, runs[:, :, last:]], 2).reshape((n, self.padded_k))
