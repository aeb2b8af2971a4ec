"""Where the windows of a convolution are, on its activations as one row of positions."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ...emit import Formula
from ...emit.vectors import quotient

__all__ = ["Axis", "Windows"]


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of a picture.

    Args:
        extent: of the picture.
        taps: positions of a window.
        step: positions from a window to the next.
        apart: positions from a tap to the next.
        before, after: positions outside of the picture that windows read.
    """

    extent: int
    taps: int
    step: int
    apart: int
    before: int
    after: int

    @property
    def span(self) -> int:
        """From the first position of a window to the one behind its last."""
        return (self.taps - 1) * self.apart + 1

    @property
    def count(self) -> int:
        """How many windows there are."""
        return (self.before + self.extent + self.after - self.span) // self.step + 1

    def inside(self, window: Formula) -> tuple[Formula, Formula]:
        """The first tap of a window that is in the picture, and the one behind the last.

        Those are all between: taps are side by side.
        """
        first = self.before - window * self.step
        return np.maximum(first, 0), np.minimum(first + self.extent, self.taps)

    @property
    def least_inside(self) -> int:
        """How many taps of a window are in the picture, at least; 0 where taps are apart."""
        first, end = self.inside(np.arange(self.count))
        return int((end - first).min()) if self.apart == 1 else 0

    @property
    def share_outside(self) -> float:
        """Which share of the taps of all windows are not in the picture."""
        first, end = self.inside(np.arange(self.count))
        return 1 - float((end - first).mean()) / self.taps

    @property
    def most_outside(self) -> tuple[int, int]:
        """How many taps of a window are before the picture, and behind it, at most."""
        first, end = self.inside(np.arange(self.count))
        return int(first.max()), self.taps - int(end.min())


@dataclass(frozen=True)
class Windows:
    """Windows of the lines of images; those of matrices are single positions.

    Args:
        images, lines, count: how many there are: lines of an image, windows of a line.
        positions: of all images.
        image_step, line_step, step: positions from an image, line or window to the next.
        taps: of a window: how many there are along each axis, and how many positions apart.
    """

    images: int
    lines: int
    count: int
    positions: int
    image_step: int
    line_step: int
    step: int
    taps: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many positions a window has."""
        return math.prod(count for count, _ in self.taps)

    def distances(self) -> list[int]:
        """From the first position of a window to each of its positions, in order."""
        axes = [range(0, count * apart, apart) for count, apart in self.taps]
        return [sum(place) for place in itertools.product(*axes)]

    def start(self, line: Formula, window: Formula) -> Formula:
        """The first position of a window, by the number of its line among those of all images."""
        start = line * self.line_step + window * self.step
        if self.images == 1:
            return start
        image = quotient(line, self.lines)
        return start + image * (self.image_step - self.lines * self.line_step)
