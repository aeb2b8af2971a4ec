"""Functions for formulas over arrays, where NumPy's own depend on what holds an element.

Each takes NumPy's arrays, or values of a program (`subquant.emit.Emitted`), which bring their own
meaning as methods of these names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .element_types import ElementType

__all__ = ["Symbolic", "bits_of", "convert", "is_known", "is_zero", "truncate"]


class Symbolic:
    """A value that a program computes; `subquant.emit` says how."""

    __slots__ = ()

    def convert(self, element: ElementType) -> Any:
        """As the function `convert`."""
        raise NotImplementedError

    def bits_of(self, element: ElementType) -> Any:
        """As the function `bits_of`."""
        raise NotImplementedError


def is_known(value: Any) -> bool:
    """True for a number or an array: a value that is known when a program is written."""
    return not isinstance(value, Symbolic)


def is_zero(value: Any) -> bool:
    """True for a value that is known to be 0 everywhere."""
    return is_known(value) and not np.any(value)


def convert(value: Any, element: ElementType) -> Any:
    """Convert elements: integers are extended or cut, floats rounded to nearest even.

    Args:
        value: numbers, an array, or a value of a program.
        element: the new element type. Floats become integers as `truncate` says.
    """
    if isinstance(value, Symbolic):
        return value.convert(element)
    array = np.asarray(value)
    if element.is_integer and array.dtype.kind not in "biuO":
        return truncate(array, element)
    return array.astype(element.dtype)


def truncate(value: Any, element: ElementType) -> Any:
    """Convert floats to integers towards zero.

    What does not fit is left to the device in a program, and saturates in NumPy; NaN is 0 there.
    """
    if isinstance(value, Symbolic):
        return value.convert(element)
    info = np.iinfo(element.dtype)
    wide = np.trunc(np.asarray(value).astype(np.float64))
    inside = np.clip(np.where(np.isnan(wide), 0.0, wide), info.min, info.max)
    return inside.astype(element.dtype)


def bits_of(value: Any, element: ElementType) -> Any:
    """The bits of elements, read as another type of the same width."""
    if isinstance(value, Symbolic):
        return value.bits_of(element)
    return np.asarray(value).view(element.dtype)
