"""Functions of arrays, written as MLIR modules.

A `TracedArray` is a `TracedValue` tensor with NumPy's type promotion, broadcasting and shape
functions. So one function runs on arrays, and `trace` writes it as a module. Shapes are static. A
function without a translation raises `UnsupportedError` with its name.

IREE computes a product and a sum after it with one rounding where NumPy has two: a result differs
by at most half a unit in the last place of the product. Everything else is the same to the bit,
sums of floats aside, whose order is the compiler's.

Unsigned integers are signless in the module: StableHLO's unsigned types do not reach every device.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..core._mlir import Value, ir
from ..dialects import create_context
from ..dialects.quant import any_type_of
from ..errors import UnsupportedError, UsageError
from ..numerics import array_functions, attention, block_form, packed_integers
from ..numerics.element_types import AnyArray, DType, ElementType
from ..numerics.parameters import ExpressedType, StorageType
from . import stablehlo, subquant
from .functions import write_function
from .operation import create, element_of, integers, like, mlir_type, tensor_type
from .values import ByBlock, Tensors, TracedValue

__all__ = ["TracedArray", "trace", "traced"]

Axis: TypeAlias = int | Sequence[int] | None
"""Axes of an array; None for all."""

Index: TypeAlias = int | slice | EllipsisType | None
"""An entry of a basic index."""


def trace(
    function: Callable[..., AnyArray],
    arguments: Sequence[tuple[Sequence[int], npt.DTypeLike]],
    name: str = "main",
) -> ir.Module:
    """Write a function of arrays as an MLIR module, in a context of its own.

    Args:
        function: takes arrays, and returns one or a sequence of them.
        arguments: shape and dtype of each.
        name: of the function in the module.

    Returns:
        The module. Unsigned arguments and results are signless there.

    Raises:
        UnsupportedError: an operation of the function has no translation.
    """
    elements = [ElementType.of_dtype(np.dtype(dtype)) for _, dtype in arguments]
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [
            tensor_type(shape, mlir_type(element))
            for (shape, _), element in zip(arguments, elements, strict=True)
        ]

        def body(values: Sequence[Value]) -> list[Value]:
            inputs = [
                _Arrays(value).emitted(value, element)
                for value, element in zip(values, elements, strict=True)
            ]
            results = function(*inputs)
            outputs = list(results) if isinstance(results, (tuple, list)) else [results]
            return [_traced(output).value for output in outputs]

        with ir.InsertionPoint(module.body):
            write_function(name, types, body)
        module.operation.verify()
        return module


class _Arrays(ByBlock, Tensors):
    """The form of tensors that are traced arrays."""

    def emitted(
        self, value: Value, element: ElementType | None = None, like: ElementType | None = None
    ) -> TracedArray:
        """A value of this form, or of the form of its own shape."""
        form = self if list(value.type.shape) == self.shape else _Arrays(value)
        return TracedArray(form, value, element or element_of(value.type), like)


def _traced(value: AnyArray, dtype: DType | None = None) -> TracedArray:
    """An array or number as a constant of its own shape; a traced array converted."""
    if isinstance(value, TracedArray):
        return value if dtype is None else value.astype(dtype)
    array = np.asarray(value, dtype)
    element = ElementType.of_dtype(array.dtype)
    constant = stablehlo.constant(array, mlir_type(element))
    return _Arrays(constant).emitted(constant, element)


def _constant(array: AnyArray, element: ElementType) -> TracedArray:
    constant = stablehlo.constant(array, mlir_type(element))
    return _Arrays(constant).emitted(constant, element)


def traced(value: Value, element: ElementType | None = None) -> TracedArray:
    """A ranked tensor of static shape for functions of arrays.

    Args:
        value: the tensor.
        element: how its elements are read; signed integers by default.
    """
    return _Arrays(value).emitted(value, element)


def _result_dtype(values: Sequence[AnyArray]) -> DType:
    """NumPy's, in which bare Python numbers do not widen."""
    known = [v if isinstance(v, numbers.Number) else np.dtype(v.dtype) for v in values]
    return np.result_type(*known)  # type: ignore[arg-type]


class TracedArray(TracedValue):
    """A tensor of a module that is being traced, with the methods of NumPy's arrays."""

    __slots__ = ()

    form: _Arrays

    @property
    def dtype(self) -> DType:
        """NumPy's; signless integers of the module may be unsigned."""
        return self.element.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return tuple(self.form.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.form.rank

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> TracedArray:  # noqa: N802  (NumPy's name)
        """The axes reversed."""
        return self.transpose()

    def __repr__(self) -> str:
        return f"TracedArray({self.dtype.name}{list(self.shape)})"

    def _with(self, value: Value) -> TracedArray:
        """Another value whose elements are read as these are."""
        return self.form.emitted(value, self.element)

    # -- shapes -----------------------------------------------------------------------------------

    def reshape(self, *shape: int | Sequence[int]) -> TracedArray:
        """Another shape of as many elements; one extent may be -1."""
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
        wide = [axis for axis, extent in enumerate(self.shape) if extent != 1]
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
        target = np.dtype(dtype or np.add.reduce(np.zeros(1, self.dtype)).dtype)
        summed: TracedArray = self.astype(target)
        return summed._reduced("add", 0, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        """The greatest along axes."""
        if self.element.kind not in ("int", "float"):
            raise UnsupportedError(f"the maximum of {self.dtype.name} cannot be traced")
        least = -np.inf if self.element.is_float else np.iinfo(self.dtype).min
        return self._reduced("maximum", least, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        """The least along axes."""
        if self.element.kind not in ("int", "float"):
            raise UnsupportedError(f"the minimum of {self.dtype.name} cannot be traced")
        most = np.inf if self.element.is_float else np.iinfo(self.dtype).max
        return self._reduced("minimum", most, axis, keepdims)

    def prod(
        self, axis: Axis = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False
    ) -> TracedArray:
        """Multiply along axes; narrow integers in `dtype`, by default NumPy's int64 for them."""
        target = np.dtype(dtype or np.multiply.reduce(np.ones(1, self.dtype)).dtype)
        factors: TracedArray = self.astype(target)
        return factors._reduced("multiply", 1, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> TracedArray:
        """The sum, divided by the number of elements."""
        count = math.prod(self.shape[a] for a in self._axes(axis))
        total = self.sum(axis, self.dtype, keepdims)
        return total / np.asarray(count, self.dtype)  # type: ignore[no-any-return]

    def _axes(self, axis: Axis) -> list[int]:
        if axis is None:
            return list(range(self.ndim))
        requested = axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = sorted(_checked_axis(int(a), self.ndim) for a in requested)
        if len(set(axes)) != len(axes):
            raise UsageError(f"has the axes {list(requested)}, one of which is there twice")
        return axes

    def _reduced(self, function: str, start: float, axis: Axis, keepdims: bool) -> TracedArray:
        axes = self._axes(axis)
        first = _traced(np.array(start, self.dtype)).value
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
        dtype = _result_dtype(inputs)
        if ufunc is np.true_divide and dtype.kind in "iub":
            dtype = np.dtype(np.float64)
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
        implementation = _FUNCTIONS.get(function)
        if implementation is not None:
            return implementation(*args, **options)
        if function is np.where and len(args) == 3:
            dtype = _result_dtype(args[1:])
            arrays = [_traced(args[0], np.dtype(np.bool_)), *(_traced(v, dtype) for v in args[1:])]
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            args = [array.broadcast_to(shape) for array in arrays]
        return super().__array_function__(function, types, args, options)


def _aligned(value: AnyArray, dtype: DType, shape: tuple[int, ...]) -> AnyArray:
    """An operand of a dtype and shape; a known one with as many axes, which broadcast."""
    if isinstance(value, TracedArray):
        return value.astype(dtype).broadcast_to(shape)
    array = np.asarray(value, dtype)
    return array.reshape((1,) * (len(shape) - array.ndim) + array.shape)


def _bounds(key: Index | tuple[Index, ...], extent: int) -> tuple[int, int, int]:
    """First, limit and step of an index into an axis."""
    if isinstance(key, slice):
        start, stop, step = key.indices(extent)
        if step < 1:
            raise UnsupportedError("slices with negative steps cannot be traced")
        return start, max(start, stop), step
    if isinstance(key, (int, np.integer)):
        first = int(key) % extent
        return first, first + 1, 1
    raise UnsupportedError(f"an index of type {type(key).__name__} cannot be traced")


# -- functions ------------------------------------------------------------------------------------


def _checked_axis(axis: int, rank: int) -> int:
    """An axis counted from 0, of one that may be negative."""
    if not -rank <= axis < rank:
        raise UsageError(f"has the axis {axis} of an array of {rank} dimensions")
    return axis % rank


def _concatenate(arrays: Sequence[AnyArray], axis: int = 0) -> TracedArray:
    dtype = _result_dtype(arrays)
    traced_arrays = [_traced(array, dtype) for array in arrays]
    first = traced_arrays[0]
    values = [array.value for array in traced_arrays]
    return first._with(stablehlo.concatenate(values, _checked_axis(axis, first.ndim)))


def _stack(arrays: Sequence[AnyArray], axis: int = 0) -> TracedArray:
    traced_arrays = [_traced(array) for array in arrays]
    axis = _checked_axis(axis, traced_arrays[0].ndim + 1)
    shape = list(traced_arrays[0].shape)
    shape.insert(axis, 1)
    return _concatenate([array.reshape(shape) for array in traced_arrays], axis)


def _repeat(array: TracedArray, repeats: int, axis: int) -> TracedArray:
    axis = _checked_axis(axis, array.ndim)
    before, extent, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    spread = array.reshape([*before, extent, 1, *after]).broadcast_to(
        (*before, extent, int(repeats), *after)
    )
    return spread.reshape([*before, extent * int(repeats), *after])


def _take(table: AnyArray, indices: AnyArray, axis: int | None = None) -> TracedArray:
    source = _traced(table)
    if axis is None and source.ndim != 1:
        raise UnsupportedError("np.take without an axis from several axes cannot be traced")
    positions = _traced(indices, np.dtype(np.int32))
    checked = _checked_axis(axis or 0, source.ndim)
    return source._with(stablehlo.take(source.value, positions.value, checked))


def _flip(array: TracedArray, axis: Axis = None) -> TracedArray:
    return array._with(stablehlo.reverse(array.value, array._axes(axis)))


def _put_slice(
    array: AnyArray, part: AnyArray, starts: AnyArray | Sequence[AnyArray]
) -> TracedArray:
    whole, inner = _traced(array), _traced(part)
    return whole._with(stablehlo.put_part(whole.value, inner.value, _offsets(starts, whole.ndim)))


def _take_slice(
    array: AnyArray, starts: AnyArray | Sequence[AnyArray], sizes: Sequence[int]
) -> TracedArray:
    whole = _traced(array)
    return whole._with(stablehlo.take_part(whole.value, _offsets(starts, whole.ndim), sizes))


def _offsets(starts: AnyArray | Sequence[AnyArray], count: int) -> list[Value]:
    """Return the offsets along axes, scalar integers."""
    return [_traced(starts[n]).value for n in range(count)]


def _scatter(
    array: AnyArray, indices: AnyArray, updates: AnyArray, function: str = "add"
) -> TracedArray:
    rows = _traced(array)
    positions, values = _traced(indices, np.dtype(np.int32)), _traced(updates, rows.dtype)
    if rows.element.kind not in ("int", "float") and function != "set":
        raise UnsupportedError(f"a scatter of {rows.dtype.name} cannot be traced")
    return rows._with(stablehlo.scatter(rows.value, positions.value, values.value, function))


def _dilate(array: TracedArray, steps: Sequence[int]) -> TracedArray:
    nothing = [0] * array.ndim
    return array._with(
        stablehlo.pad(array.value, nothing, nothing, [int(step) - 1 for step in steps])
    )


def _pad(
    array: TracedArray, widths: Sequence[Sequence[int]], mode: str = "constant", **options: Any
) -> TracedArray:
    value = options.pop("constant_values", 0)
    if mode != "constant" or options:
        raise UnsupportedError("np.pad with these options cannot be traced")
    low, high = ([int(pair[end]) for pair in widths] for end in (0, 1))
    fill = _traced(value, array.dtype).reshape(())
    return array._with(stablehlo.pad(array.value, low, high, fill=fill.value))


def _contract(
    left: AnyArray,
    right: AnyArray,
    axes: Sequence[Sequence[int]],
    batch: Sequence[Sequence[int]] = ((), ()),
    dtype: npt.DTypeLike = np.float32,
) -> TracedArray:
    target = ElementType.of_dtype(np.dtype(dtype))
    x, y = _factors(left, right, target)
    shape = [x.shape[axis] for axis in batch[0]]
    for side, own, own_batch in ((x, axes[0], batch[0]), (y, axes[1], batch[1])):
        shape += [n for a, n in enumerate(side.shape) if a not in (*own, *own_batch)]
    type_ = tensor_type(shape, mlir_type(target))
    product = stablehlo.dot_general(x.value, y.value, type_, axes, batch)
    return x.form.emitted(product, target)


def _convolve(
    images: AnyArray,
    kernels: AnyArray,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
    layout: tuple[str, str] | None = None,
) -> TracedArray:
    target = ElementType.of_dtype(np.dtype(dtype))
    x, y = _factors(images, kernels, target)
    spatial = "".join(str(axis) for axis in range(x.ndim - 2))
    layout = layout or (f"bf{spatial}", f"oi{spatial}")
    x_shape, y_shape = (
        dict(zip(names, side.shape, strict=True))
        for names, side in zip(layout, (x, y), strict=True)
    )
    sizes = {"b": x_shape["b"], "f": y_shape["o"]} | {
        axis: (x_shape[axis] - (y_shape[axis] - 1) * d - 1) // s + 1
        for axis, d, s in zip(spatial, dilations, strides, strict=True)
    }
    extents = [sizes[axis] for axis in layout[0]]
    if min(extents) < 0:
        raise UsageError(f"has a convolution whose result would have the shape {extents}")
    type_ = tensor_type(extents, mlir_type(target))
    window = {"window_strides": integers(strides), "rhs_dilation": integers(dilations)}
    sides = [f"[{', '.join(names)}]" for names in layout]
    numbers = f"{sides[0]}x{sides[1]}->{sides[0]}"
    result = stablehlo.convolution(x.value, y.value, type_, numbers, window, groups)
    return x.form.emitted(result, target)


_CHANNELS_LAST = ("b01f", "01io")


def _pool(
    images: AnyArray,
    sizes: Sequence[int],
    strides: Sequence[int],
    function: str,
    axes: Sequence[int] = (1, 2),
) -> TracedArray:
    operand = _traced(images)
    least = -np.inf if operand.element.is_float else np.iinfo(operand.dtype).min
    start = _traced(np.array(0 if function == "add" else least, operand.dtype)).value
    window, steps, shape = [1] * operand.ndim, [1] * operand.ndim, list(operand.shape)
    for axis, size, step in zip(axes, sizes, strides, strict=True):
        window[axis], steps[axis] = size, step
        shape[axis] = (shape[axis] - size) // step + 1
    return operand._with(
        stablehlo.reduce_window(operand.value, shape, window, steps, function, start)
    )


def _divide_truncated(dividend: AnyArray, divisor: AnyArray) -> TracedArray:
    dtype = _result_dtype((dividend, divisor))
    shape = np.broadcast_shapes(dividend.shape, getattr(divisor, "shape", ()))
    x, y = (_traced(side, dtype).broadcast_to(shape) for side in (dividend, divisor))
    if x.element.kind != "uint":
        return x._with(x.form.apply("divide", x.element, [x.value, y.value]))
    if x.element.bits < 64:  # division reads signless integers as signed
        wide = np.int32 if x.element.bits < 32 else np.int64
        return _divide_truncated(x.astype(wide), y.astype(wide)).astype(dtype)  # type: ignore[no-any-return]
    # Half of the dividend fits; the last bit of the quotient is found by comparison. A divisor of
    # 2**63 or more is contained once or not at all.
    half, signed = x >> 1, np.int64
    quotient = _divide_truncated(half.astype(signed), np.maximum(y.astype(signed), 1))
    doubled = quotient.astype(dtype) << 1
    rest = x - doubled * y
    small = doubled + (rest >= y).astype(dtype)
    return np.where(y.astype(signed) < 0, (x >= y).astype(dtype), small)  # type: ignore[no-any-return]


def _erf(value: TracedArray) -> TracedArray:
    """``math.erf``, which IREE approximates in f32."""
    if value.dtype.itemsize > 4:
        raise UnsupportedError("the error function of f64 is not lowered; cast the operand to f32")
    wide = value.astype(np.float32)
    result = wide._with(create("math.erf", [wide.value], [wide.value.type]).results[0])
    return result.astype(value.dtype)  # type: ignore[no-any-return]


def _factors(left: AnyArray, right: AnyArray, target: ElementType) -> list[TracedArray]:
    """Return the operands of a contraction in the accumulator's float type, or one integer type."""
    sides = [_traced(side) for side in (left, right)]
    dtype = target.dtype
    if target.is_integer and all(side.element.kind == "int" for side in sides):
        dtype = max((side.dtype for side in sides), key=lambda each: each.itemsize)
    return [side.astype(dtype) for side in sides]


def _dequantize(
    storage: TracedArray, form: block_form.BlockForm, expressed: ExpressedType
) -> TracedArray:
    """Write a ``subquant.dequantize``; a constant if there are no elements."""
    if 0 in storage.shape:
        return _constant(np.zeros(storage.shape, expressed.element.dtype), expressed.element)
    planes = (form.scales, form.zero_points, form.offsets)
    values = [None if plane is None else _traced(plane).value for plane in planes]
    real = subquant.dequantize(
        storage.value,
        values[0],
        form.block_sizes,
        ir.TypeAttr.get(any_type_of(form.storage_type, expressed)),
        mlir_type(expressed.element),
        *values[1:],
    )
    return _Arrays(real).emitted(real, expressed.element)


def _quantize(
    values: AnyArray,
    scales: AnyArray,
    block_sizes: Sequence[int],
    storage: StorageType,
    expressed: ExpressedType,
) -> TracedArray:
    """A ``subquant.quantize``; a constant if there are no elements."""
    if 0 in values.shape:
        return _constant(np.zeros(values.shape, storage.element.dtype), storage.element)
    integers = subquant.quantize(
        _traced(values).value,
        _traced(scales).value,
        block_sizes,
        ir.TypeAttr.get(any_type_of(storage, expressed)),
        mlir_type(storage.element),
    )
    return _Arrays(integers).emitted(integers, storage.element)


def _unpack_planes(low: AnyArray, bits: Sequence[int], high: AnyArray | None = None) -> TracedArray:
    """A ``subquant.unpack``."""
    planes = [_traced(plane) for plane in (low, high) if plane is not None]
    integers = subquant.unpack([plane.value for plane in planes], bits)
    return _Arrays(integers).emitted(integers, planes[0].element)


def _attention(
    query: AnyArray,
    keys: AnyArray,
    values: AnyArray,
    position: AnyArray,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> TracedArray:
    """A ``subquant.attention``."""
    query_values = _traced(query, np.dtype(np.float32))
    first = _traced(position, np.dtype(np.int32)).reshape(())
    key, value = (_traced(cache).value for cache in (keys, values))
    result = subquant.attention(query_values.value, key, value, first.value, scale, window, softcap)
    return query_values._with(result)


def _choose(
    condition: TracedArray,
    yes: Callable[[], Sequence[AnyArray]],
    no: Callable[[], Sequence[AnyArray]],
) -> list[TracedArray]:
    # The types of the results are known once the branches are written.
    draft = create("stablehlo.if", [condition.reshape(()).value], [], regions=2)
    branches: list[list[TracedArray]] = []
    for region, function in zip(draft.regions, (yes, no), strict=True):

        def body(function: Callable[[], Sequence[AnyArray]] = function) -> list[Value]:
            branches.append([_traced(value) for value in function()])
            return [value.value for value in branches[-1]]

        try:
            stablehlo.fill_body(region, [], body)
        except BaseException:
            draft.erase()
            raise
    signatures = [[(value.shape, value.dtype) for value in branch] for branch in branches]
    if signatures[0] != signatures[1]:
        raise UnsupportedError(f"branches compute {signatures[0]} and {signatures[1]}")
    types = [value.value.type for value in branches[0]]
    chosen = like(draft, results=types, take_bodies=True)
    draft.erase()
    return [
        _Arrays(result).emitted(result, value.element)
        for result, value in zip(chosen.results, branches[0], strict=True)
    ]


def _repeat_while(
    condition: Callable[..., AnyArray],
    body: Callable[..., Sequence[AnyArray]],
    values: Sequence[AnyArray],
) -> list[TracedArray]:
    start = [_traced(value) for value in values]
    types = [value.value.type for value in start]

    def inside(arguments: Sequence[Value]) -> list[TracedArray]:
        return [
            _Arrays(argument).emitted(argument, value.element)
            for argument, value in zip(arguments, start, strict=True)
        ]

    def checked(arguments: Sequence[Value]) -> list[Value]:
        return [_traced(condition(*inside(arguments)), np.dtype(np.bool_)).reshape(()).value]

    def computed(arguments: Sequence[Value]) -> list[Value]:
        results = [
            result if isinstance(result, TracedArray) else _traced(result, value.dtype)
            for result, value in zip(body(*inside(arguments)), start, strict=True)
        ]
        for result, value in zip(results, start, strict=True):
            if (result.shape, result.dtype) != (value.shape, value.dtype):
                raise UnsupportedError(
                    f"a loop makes {result.dtype.name} of shape {list(result.shape)} of a value "
                    f"that is {value.dtype.name} of shape {list(value.shape)}"
                )
        return [result.value for result in results]

    loop = create("stablehlo.while", [value.value for value in start], types, regions=2)
    try:
        for region, function in zip(loop.regions, (checked, computed), strict=True):
            stablehlo.fill_body(
                region, types, lambda *arguments, function=function: function(arguments)
            )
    except BaseException:
        loop.erase()
        raise
    return inside(loop.results)


def _over_time(
    step: Callable[..., Sequence[AnyArray]],
    carried: Sequence[AnyArray],
    sequences: Sequence[AnyArray],
) -> tuple[list[TracedArray], TracedArray]:
    arrays = [_traced(array) for array in sequences]
    count, first = arrays[0].shape[0], _traced(carried[0])

    def body(index: TracedArray, results: TracedArray, *values: TracedArray) -> list[AnyArray]:
        slices = [
            array._with(stablehlo.slice_at(array.value, index.value)).reshape(array.shape[1:])
            for array in arrays
        ]
        following = list(step(*values, *slices))
        latest = _traced(following[0], first.dtype)[None]
        written = stablehlo.put_slice(results.value, latest.value, index.value)
        return [index + 1, results._with(written), *following]

    results = _traced(np.zeros((count, *first.shape), first.dtype))
    start = [_traced(np.int32(0)), results, *carried]
    _, results, *values = _repeat_while(lambda index, *_: index < count, body, start)
    return values, results


_FUNCTIONS: dict[Callable[..., AnyArray], Callable[..., AnyArray]] = {
    array_functions.beside: lambda value, array, element=None: (
        _traced(array) if element is None else _constant(array, element)
    ),
    array_functions.choose: _choose,
    array_functions.contract: _contract,
    array_functions.convolve: _convolve,
    array_functions.convolve_last: functools.partial(_convolve, layout=_CHANNELS_LAST),
    array_functions.dilate: _dilate,
    array_functions.divide_truncated: _divide_truncated,
    array_functions.erf: _erf,
    array_functions.lookup: _take,
    array_functions.over_time: _over_time,
    array_functions.pool: _pool,
    array_functions.put_slice: _put_slice,
    array_functions.repeat_while: _repeat_while,
    block_form.dequantize: _dequantize,
    block_form.quantize: _quantize,
    array_functions.scatter: _scatter,
    array_functions.take: lambda table, indices, axis=0: _take(table, indices, axis),
    array_functions.take_slice: _take_slice,
    attention.attend: _attention,
    packed_integers.unpack_planes: _unpack_planes,
    np.broadcast_to: lambda array, shape: array.broadcast_to(shape),
    np.concatenate: _concatenate,
    np.flip: _flip,
    np.pad: _pad,
    np.repeat: _repeat,
    np.reshape: lambda array, shape: array.reshape(shape),
    np.stack: _stack,
    np.take: _take,
    np.transpose: lambda array, axes=(): array.transpose(*axes),
}
"""Functions of arrays, and their translations."""
