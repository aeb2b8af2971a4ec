"""Arrays in pieces, so that a large one is made and written in the memory of a piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from .element_types import Array, DType


@dataclass(frozen=True)
class ArrayPieces:
    """An array as pieces that follow one another along its first axis.

    Attributes:
        pieces: each is made when it is asked for; the iteration is possible once.
    """

    shape: tuple[int, ...]
    dtype: DType
    pieces: Iterable[Array]

    @classmethod
    def of(cls, array: Array) -> ArrayPieces:
        """Return an array as one piece."""
        return cls(array.shape, array.dtype, [array])

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def map(self, function: Callable[[Array], Array]) -> ArrayPieces:
        """Return the results of a function of each piece, which keeps its shape."""
        dtype = function(np.empty((0, *self.shape[1:]), self.dtype)).dtype
        return ArrayPieces(self.shape, dtype, map(function, self.pieces))

    def whole(self) -> Array:
        """Return the array."""
        array, start = np.empty(self.shape, self.dtype), 0
        for piece in self.pieces:
            array[start : start + len(piece)] = piece
            start += len(piece)
        return array
