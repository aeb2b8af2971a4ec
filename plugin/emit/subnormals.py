"""``ceil`` and ``floor`` of values of a program, on devices that flush subnormals to 0.

IREE's devices compute with 0 instead of a subnormal. Its bits tell that it is not 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..numerics.array_functions import bits_of
from ..numerics.element_types import ElementType
from .values import ArrayLike

_MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
"""Bits of the significand without the leading one."""


def ceil(x: ArrayLike, ordinary: Callable[[ArrayLike], ArrayLike]) -> ArrayLike:
    """Return ``ceil``; a positive subnormal, detected by its bits, gives 1."""
    bits = bits_of(x, ElementType.parse(f"i{x.element.bits}"))
    is_subnormal = (bits > 0) & (bits < _least_normal(x))
    return np.where(is_subnormal, 1.0, ordinary(x))


def floor(x: ArrayLike, ordinary: Callable[[ArrayLike], ArrayLike]) -> ArrayLike:
    """Return ``floor``; a negative subnormal, detected by its bits, gives -1."""
    bits = bits_of(x, ElementType.parse(f"i{x.element.bits}"))
    least = -1 << (x.element.bits - 1)
    is_subnormal = (bits > least) & (bits < least + _least_normal(x))
    return np.where(is_subnormal, -1.0, ordinary(x))


def _least_normal(x: ArrayLike) -> int:
    """The bits of the least normal number."""
    return 1 << _MANTISSA[str(x.element)]
