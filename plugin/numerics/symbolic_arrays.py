"""Tensors of a program with the properties and the type promotion of NumPy's arrays."""

from __future__ import annotations

import numbers
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from .array_functions import Symbolic
from .element_types import AnyArray, DType
from .shapes import Shaped


class SymbolicArray(Shaped, Symbolic):
    """A tensor that a program computes, in formulas over arrays."""

    __slots__ = ()

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """The dtype in NumPy."""

    @abstractmethod
    def transpose(self, *axes: Any) -> Any:
        """Permute the axes; reverse them if none are given."""

    @property
    def T(self) -> Any:  # noqa: N802  (NumPy's name)
        """The axes reversed."""
        return self.transpose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype.name}{list(self.shape)})"


def result_dtype(values: Sequence[AnyArray]) -> DType:
    """Return NumPy's dtype for operands, among which bare Python numbers do not widen."""
    known = [v if isinstance(v, numbers.Number) else np.dtype(v.dtype) for v in values]
    return np.result_type(*known)  # type: ignore[arg-type]


def function_dtype(function: np.ufunc, values: Sequence[AnyArray]) -> DType:
    """Return the dtype in which NumPy computes an elementwise function of operands."""
    dtype = result_dtype(values)
    is_wider = function is np.true_divide and dtype.kind in "iub"
    return np.dtype(np.float64) if is_wider else dtype
