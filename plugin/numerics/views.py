"""What reshape, transpose and broadcast make of a tensor: which element of it is where.

A view has for each axis a list of extents with strides, the slowest first; its elements are those
of a flat tensor at the sum of each position times its stride::

    shape 64x8 of a tensor 2x8x32 with its last two axes swapped, then its first two joined:
    axis 0: (2, 256) (32, 1)        64 = 2 * 32, element (i, j) is at i * 256 + j
    axis 1: (8, 32)

A stride of 0 is a broadcast. Extents of 1 are left out. Reshapes that would split an extent
unevenly (6 into 4 x 3 beside 2 x 6) have no such form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .element_types import Array

__all__ = ["Part", "View", "aligned"]

Part = tuple[int, int]
"""An extent, and the stride of its positions."""


@dataclass(frozen=True)
class View:
    """Elements of a flat tensor in a shape.

    Attributes:
        axes: the parts of each axis, the slowest first.
    """

    axes: tuple[tuple[Part, ...], ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> View:
        """A tensor of a shape as it is."""
        axes: list[tuple[Part, ...]] = []
        stride = math.prod(shape)
        for extent in shape:
            stride //= extent
            axes.append(_merged([(extent, stride)]))
        return cls(tuple(axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return tuple(math.prod(extent for extent, _ in axis) for axis in self.axes)

    @property
    def repeats(self) -> bool:
        """True if elements are in it more than once."""
        return any(not stride for axis in self.axes for _, stride in axis)

    def transposed(self, order: Sequence[int]) -> View:
        """With axis ``order[i]`` at place ``i``."""
        return View(tuple(self.axes[axis] for axis in order))

    def broadcast(self, places: Sequence[int], shape: Sequence[int]) -> View:
        """Repeated to a shape, in which axis ``i`` is at ``places[i]``."""
        axes: list[tuple[Part, ...]] = [_merged([(extent, 0)]) for extent in shape]
        for place, axis in zip(places, self.axes, strict=True):
            if axis:  # one element is repeated
                axes[place] = axis
        return View(tuple(axes))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """In another shape of as many elements, or None if that has no such form."""
        parts = _merged(part for axis in self.axes for part in axis)
        # Of each extent of the old and the new shape, how many elements are beyond its end.
        wanted = {math.prod(shape[axis:]) for axis in range(len(shape) + 1)}
        split = _split(parts, wanted | _steps(parts))
        if split is None:
            return None
        axes, position = [], 0
        for extent in shape:
            taken: list[Part] = []
            while math.prod(n for n, _ in taken) < extent:
                taken.append(split[position])
                position += 1
            axes.append(_merged(taken))
        return View(tuple(axes))

    def indices(self) -> Array:
        """The position of each element in the flat tensor."""
        total = np.zeros((), np.int64)
        for axis in self.axes:
            positions = np.zeros(1, np.int64)
            for extent, stride in axis:
                positions = np.add.outer(positions, np.arange(extent) * stride).reshape(-1)
            total = np.add.outer(total, positions)
        return total


def aligned(views: Sequence[View]) -> list[list[list[Part]]] | None:
    """Views of one shape with the same extents: for each view and axis its parts.

    Returns:
        None if the extents of an axis do not divide each other.
    """
    found: list[list[list[Part]]] = [[] for _ in views]
    for parts in zip(*(view.axes for view in views), strict=True):
        steps = set().union(*(_steps(each) for each in parts))
        for number, each in enumerate(parts):
            split = _split(each, steps)
            if split is None:
                return None
            found[number].append(split)
    return found


def _steps(parts: Iterable[Part]) -> set[int]:
    """How many elements of an axis are one step of each part, and all of them."""
    extents = [extent for extent, _ in parts]
    return {math.prod(extents[start:]) for start in range(len(extents) + 1)}


def _split(parts: Sequence[Part], steps: set[int]) -> list[Part] | None:
    """Parts whose steps are just these, which are those of `parts` and more."""
    ordered = sorted(steps)
    if any(large % small for small, large in itertools.pairwise(ordered)):
        return None
    result: list[Part] = []
    step = math.prod(extent for extent, _ in parts)
    for extent, stride in parts:
        end = step // extent
        inside = [each for each in reversed(ordered) if end <= each <= step]
        for large, small in itertools.pairwise(inside):
            result.append((large // small, stride * (small // end)))
        step = end
    return result


def _merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same positions in as few parts as there can be."""
    result: list[Part] = []
    for extent, stride in parts:
        if extent == 1:
            continue
        if result and result[-1][1] == extent * stride:
            result[-1] = (result[-1][0] * extent, stride)
        else:
            result.append((extent, stride))
    return tuple(result)
