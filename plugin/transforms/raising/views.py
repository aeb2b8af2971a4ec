"""Views: reshape, transpose and broadcast of a tensor as strides.

A view has for each axis a list of sizes with strides, the slowest first; its elements are those
of a flat tensor at the sum of each position times its stride::

    shape 64x8 of a tensor 2x8x32 with its last two axes swapped, then its first two joined:
    axis 0: (2, 256) (32, 1)        64 = 2 * 32, element (i, j) is at i * 256 + j
    axis 1: (8, 32)

A stride of 0 is a broadcast. Sizes of 1 are left out. Reshapes that would split a size
unevenly (6 into 4 x 3 beside 2 x 6) have no such form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...numerics.element_types import Array

Part = tuple[int, int]
"""A size, and the stride of its positions."""


@dataclass(frozen=True)
class View:
    """Elements of a flat tensor in a shape, whose axes have parts, the slowest first."""

    axes: tuple[tuple[Part, ...], ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> View:
        """A tensor of a shape as it is."""
        axes: list[tuple[Part, ...]] = []
        stride = math.prod(shape)
        for size in shape:
            stride //= size
            axes.append(_merged([(size, stride)]))
        return cls(tuple(axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(math.prod(size for size, _ in axis) for axis in self.axes)

    @property
    def repeats(self) -> bool:
        """True if elements are in it more than once."""
        return any(not stride for axis in self.axes for _, stride in axis)

    def transposed(self, order: Sequence[int]) -> View:
        """Return the view with axis ``order[i]`` at position ``i``."""
        return View(tuple(self.axes[axis] for axis in order))

    def broadcast(self, positions: Sequence[int], shape: Sequence[int]) -> View:
        """Return the view broadcast to a shape, whose axis ``positions[i]`` is axis ``i``."""
        axes: list[tuple[Part, ...]] = [_merged([(size, 0)]) for size in shape]
        for position, axis in zip(positions, self.axes, strict=True):
            if axis:  # one element is repeated
                axes[position] = axis
        return View(tuple(axes))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return the view in another shape, or None if strides cannot express it."""
        factors = _merged(part for axis in self.axes for part in axis)
        # For each axis of the new shape, the number of elements of the axes after it.
        ends = {math.prod(shape[axis:]) for axis in range(len(shape) + 1)}
        split = _split(factors, ends | _steps(factors))
        if split is None:
            return None
        axes, position = [], 0
        for size in shape:
            merged: list[Part] = []
            while math.prod(n for n, _ in merged) < size:
                merged.append(split[position])
                position += 1
            axes.append(_merged(merged))
        return View(tuple(axes))

    def indices(self) -> Array:
        """The position of each element in the flat tensor."""
        total = np.zeros((), np.int64)
        for axis in self.axes:
            positions = np.zeros(1, np.int64)
            for size, stride in axis:
                positions = np.add.outer(positions, np.arange(size) * stride).reshape(-1)
            total = np.add.outer(total, positions)
        return total


def aligned(views: Sequence[View]) -> list[list[list[Part]]] | None:
    """Parts of equal sizes for each view and axis; None if sizes do not divide each other."""
    result: list[list[list[Part]]] = [[] for _ in views]
    for axes in zip(*(view.axes for view in views), strict=True):
        steps = set().union(*(_steps(each) for each in axes))
        for number, each in enumerate(axes):
            split = _split(each, steps)
            if split is None:
                return None
            result[number].append(split)
    return result


def _steps(pieces: Iterable[Part]) -> set[int]:
    """Return the number of elements of one step of each part, and of all parts."""
    sizes = [size for size, _ in pieces]
    return {math.prod(sizes[start:]) for start in range(len(sizes) + 1)}


def _split(pieces: Sequence[Part], steps: set[int]) -> list[Part] | None:
    """Split parts at the given steps, which include the steps of the parts."""
    ordered = sorted(steps)
    if any(large % small for small, large in itertools.pairwise(ordered)):
        return None
    result: list[Part] = []
    step = math.prod(size for size, _ in pieces)
    for size, stride in pieces:
        end = step // size
        inside = [each for each in reversed(ordered) if end <= each <= step]
        for large, small in itertools.pairwise(inside):
            result.append((large // small, stride * (small // end)))
        step = end
    return result


def _merged(pieces: Iterable[Part]) -> tuple[Part, ...]:
    """Return the fewest parts with the same positions."""
    result: list[Part] = []
    for size, stride in pieces:
        if size == 1:
            continue
        if result and result[-1][1] == size * stride:
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return tuple(result)
