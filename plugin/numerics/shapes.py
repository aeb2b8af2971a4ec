"""Base of arrays, and of stand-ins for arrays, that have a shape."""

from __future__ import annotations

import math
from abc import abstractmethod


class Shaped:
    """An array with the number of axes and of elements that its shape tells."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The dimension sizes."""

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)
