"""Traced arrays: tensor values with NumPy's type promotion, broadcasting and shape functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..core._mlir import Value
from ..errors import UnsupportedError, UsageError
from ..numerics.element_types import AnyArray, DType, ElementType
from ..numerics.symbolic_arrays import SymbolicArray, function_dtype, result_dtype
from . import stablehlo
from .operation import element_of, mlir_type, tensor_type
from .tensors import Tensors
from .values import ByBlock, TracedValue

Axis: TypeAlias = int | Sequence[int] | None
"""Axes of an array; None for all."""

Index: TypeAlias = int | slice | EllipsisType | None
"""An entry of a basic index."""


FUNCTIONS: dict[Callable[..., AnyArray], Callable[..., AnyArray]] = {}
"""Functions of arrays and their translations, which `traced_functions` registers."""


class ArrayForm(ByBlock, Tensors):
    """The form of tensors that are traced arrays."""

    def emitted(
        self, value: Value, element: ElementType | None = None, like: ElementType | None = None
    ) -> TracedArray:
        """A value of this form, or of the form of its own shape."""
        form = self if list(value.type.shape) == self.shape else ArrayForm(value)
        return TracedArray(form, value, element or element_of(value.type), like)


def traced_array(value: AnyArray, dtype: DType | None = None) -> TracedArray:
    """An array or number as a constant of its own shape; a traced array converted."""
    if isinstance(value, TracedArray):
        return value if dtype is None else value.astype(dtype)
    array = np.asarray(value, dtype)
    return traced_constant(array, ElementType.of_dtype(array.dtype))


def traced_constant(array: AnyArray, element: ElementType) -> TracedArray:
    """Return a constant of an element type."""
    return traced(stablehlo.constant(array, mlir_type(element)), element)


def traced(value: Value, element: ElementType | None = None) -> TracedArray:
    """A ranked tensor of static shape for functions of arrays; integers are signed by default."""
    return ArrayForm(value).emitted(value, element)


class TracedArray(SymbolicArray, TracedValue):
    """A tensor of a module that is being traced, with the methods of NumPy's arrays."""

    __slots__ = ()

    form: ArrayForm

    @property
    def dtype(self) -> DType:
        """NumPy's; signless integers of the module may be unsigned."""
        return self.element.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(self.form.shape)

    def _with(self, value: Value) -> TracedArray:
        """Another value whose elements are read as these are."""
        return self.form.emitted(value, self.element)

    # -- shapes -----------------------------------------------------------------------------------

    def reshape(self, *shape: int | Sequence[int]) -> TracedArray:
        """Another shape of as many elements; one size may be -1."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        new = np.broadcast_to(np.empty(()), self.shape).reshape(tuple(sizes)).shape
        return self if new == self.shape else self._with(stablehlo.reshape(self.value, new))

    def transpose(self, *axes: Any) -> TracedArray:
        """Permute the axes; reverse them if none are given."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        np.broadcast_to(np.empty(()), self.shape).transpose(*order)  # or it raises
        order = [int(a) % self.ndim for a in order] or list(reversed(range(self.ndim)))
        return self._with(stablehlo.transpose(self.value, order))

    def broadcast_to(self, shape: Sequence[int]) -> TracedArray:
        """Return ``np.broadcast_to``."""
        if tuple(shape) == self.shape:
            return self
        np.broadcast_to(np.broadcast_to(np.empty(()), self.shape), tuple(shape))  # or it raises
        offset = len(shape) - self.ndim
        wide = [axis for axis, size in enumerate(self.shape) if size != 1]
        squeezed = self.reshape([self.shape[axis] for axis in wide])
        type_ = tensor_type(shape, mlir_type(self.element))
        axes = [axis + offset for axis in wide]
        return self._with(stablehlo.broadcast(squeezed.value, type_, axes))

    def __getitem__(self, key: Index | tuple[Index, ...]) -> TracedArray:
        """Basic indexing: integers, slices, ``...`` and None."""
        keys = list(key) if isinstance(key, tuple) else [key]
        used = sum(k is not None and k is not Ellipsis for k in keys)
        if used > self.ndim or sum(k is Ellipsis for k in keys) > 1:
            raise UsageError(f"an index of {used} entries into an array of {self.ndim} axes")
        ellipsis = next((n for n, k in enumerate(keys) if k is Ellipsis), len(keys))
        keys[ellipsis : ellipsis + 1] = [slice(None)] * (self.ndim - used)
        starts, limits, strides, shape = [], [], [], []
        axes = iter(self.shape)
        for k in keys:
            if k is None:
                shape.append(1)
                continue
            start, stop, step = _bounds(k, next(axes))
            if isinstance(k, slice):
                shape.append(-(-(stop - start) // step))
            starts.append(start)
            limits.append(stop)
            strides.append(step)
        return self._with(stablehlo.slice_(self.value, starts, limits, strides)).reshape(shape)

    # -- reductions -------------------------------------------------------------------------------

    def sum(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False
    ) -> TracedArray:
        """Add along axes; narrow integers in `dtype`, by default NumPy's int64 for them."""
        return self._accumulated(np.add, 0, axis, dtype, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        """The greatest along axes."""
        return self._extreme("maximum", axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        """The least along axes."""
        return self._extreme("minimum", axis, keepdims)

    def prod(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False
    ) -> TracedArray:
        """Multiply along axes; narrow integers in `dtype`, by default NumPy's int64 for them."""
        return self._accumulated(np.multiply, 1, axis, dtype, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        """The sum, divided by the number of elements."""
        count = math.prod(self.shape[a] for a in self._axes(axis))
        total = self.sum(axis, self.dtype, keepdims)
        return total / np.asarray(count, self.dtype)  # type: ignore[no-any-return]

    def _axes(self, axis: Axis) -> list[int]:
        if axis is None:
            return list(range(self.ndim))
        requested = axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = sorted(checked_axis(int(a), self.ndim) for a in requested)
        if len(set(axes)) != len(axes):
            raise UsageError(f"has the axes {list(requested)}, one of which is there twice")
        return axes

    def _accumulated(
        self, function: np.ufunc, start: int, axis: Axis, dtype: Any, keepdims: bool
    ) -> TracedArray:
        target = np.dtype(dtype or function.reduce(np.ones(1, self.dtype)).dtype)
        operand: TracedArray = self.astype(target)
        return operand._reduced(function.__name__, start, axis, keepdims)

    def _extreme(self, function: str, axis: Axis, keepdims: bool) -> TracedArray:
        if self.element.kind not in ("int", "float"):
            raise UnsupportedError(f"the {function} of {self.dtype.name} cannot be traced")
        bounds = (-np.inf, np.inf)
        if not self.element.is_float:
            bounds = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        return self._reduced(function, bounds[function == "minimum"], axis, keepdims)

    def _reduced(self, function: str, start: float, axis: Axis, keepdims: bool) -> TracedArray:
        axes = self._axes(axis)
        first = traced_array(np.array(start, self.dtype)).value
        result = self._with(stablehlo.reduce(self.value, axes, function, first))
        if not keepdims:
            return result
        return result.reshape([1 if a in axes else n for a, n in enumerate(self.shape)])

    # -- NumPy's protocols ------------------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: AnyArray, **options: object
    ) -> AnyArray:
        """Elementwise functions, of one dtype and shape as in NumPy."""
        if method != "__call__" or options:
            return super().__array_ufunc__(ufunc, method, *inputs, **options)
        dtype = function_dtype(ufunc, inputs)
        shape = np.broadcast_shapes(*(getattr(value, "shape", ()) for value in inputs))
        aligned = [_aligned(value, dtype, shape) for value in inputs]
        return super().__array_ufunc__(ufunc, method, *aligned)

    def __array_function__(
        self,
        function: Callable[..., AnyArray],
        types: Iterable[type],
        args: Sequence[AnyArray],
        options: Mapping[str, object],
    ) -> AnyArray:
        """NumPy's functions of arrays, and those of `subquant.numerics.array_functions`."""
        implementation = FUNCTIONS.get(function)
        if implementation is not None:
            return implementation(*args, **options)
        if function is np.where and len(args) == 3:
            dtype = result_dtype(args[1:])
            arrays = [
                traced_array(args[0], np.dtype(np.bool_)),
                *(traced_array(v, dtype) for v in args[1:]),
            ]
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            args = [array.broadcast_to(shape) for array in arrays]
        return super().__array_function__(function, types, args, options)


def _aligned(value: AnyArray, dtype: DType, shape: tuple[int, ...]) -> AnyArray:
    """An operand of a dtype and shape; a known one with as many axes, which broadcast."""
    if isinstance(value, TracedArray):
        return value.astype(dtype).broadcast_to(shape)
    array = np.asarray(value, dtype)
    return array.reshape((1,) * (len(shape) - array.ndim) + array.shape)


def _bounds(key: Index | tuple[Index, ...], size: int) -> tuple[int, int, int]:
    """First, limit and step of an index into an axis."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        if step < 1:
            raise UnsupportedError("slices with negative steps cannot be traced")
        return start, max(start, stop), step
    if isinstance(key, (int, np.integer)):
        first = int(key) % size
        return first, first + 1, 1
    raise UnsupportedError(f"an index of type {type(key).__name__} cannot be traced")


# -- functions ------------------------------------------------------------------------------------


def checked_axis(axis: int, rank: int) -> int:
    """An axis counted from 0, of one that may be negative; refuse one beyond the rank."""
    if not -rank <= axis < rank:
        raise UsageError(f"has the axis {axis} of an array of {rank} dimensions")
    return axis % rank
