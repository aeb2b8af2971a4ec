"""Translations of NumPy's functions, and of `numerics.array_functions`, for traced arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core._mlir import Value, ir
from ..dialects.quant import any_type_of
from ..errors import UnsupportedError, UsageError
from ..numerics import array_functions, attention, block_form, convolutions, packed_integers
from ..numerics.element_types import AnyArray, ElementType
from ..numerics.parameters import ExpressedType, StorageType
from ..numerics.symbolic_arrays import result_dtype
from . import stablehlo, subquant
from .operation import create, integers, like, mlir_type, tensor_type
from .traced_arrays import (
    FUNCTIONS,
    TracedArray,
    checked_axis,
    traced,
    traced_array,
    traced_constant,
)

__all__: list[str] = []


def _concatenate(arrays: Sequence[AnyArray], axis: int = 0) -> TracedArray:
    dtype = result_dtype(arrays)
    traced_arrays = [traced_array(array, dtype) for array in arrays]
    first = traced_arrays[0]
    values = [array.value for array in traced_arrays]
    return first._with(stablehlo.concatenate(values, checked_axis(axis, first.ndim)))


def _stack(arrays: Sequence[AnyArray], axis: int = 0) -> TracedArray:
    traced_arrays = [traced_array(array) for array in arrays]
    axis = checked_axis(axis, traced_arrays[0].ndim + 1)
    shape = list(traced_arrays[0].shape)
    shape.insert(axis, 1)
    return _concatenate([array.reshape(shape) for array in traced_arrays], axis)


def _repeat(array: TracedArray, repeats: int, axis: int) -> TracedArray:
    axis = checked_axis(axis, array.ndim)
    before, size, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    spread = array.reshape([*before, size, 1, *after]).broadcast_to(
        (*before, size, int(repeats), *after)
    )
    return spread.reshape([*before, size * int(repeats), *after])


def _take(table: AnyArray, indices: AnyArray, axis: int | None = None) -> TracedArray:
    source = traced_array(table)
    if axis is None and source.ndim != 1:
        raise UnsupportedError("np.take without an axis from several axes cannot be traced")
    positions = traced_array(indices, np.dtype(np.int32))
    checked = checked_axis(axis or 0, source.ndim)
    if not (source.shape[checked] or positions.size):  # StableHLO slices no axis without elements
        shape = (*source.shape[:checked], *positions.shape, *source.shape[checked + 1 :])
        return traced_constant(np.zeros(shape, source.element.dtype), source.element)
    return source._with(stablehlo.take(source.value, positions.value, checked))


def _put_slice(
    array: AnyArray, part: AnyArray, starts: AnyArray | Sequence[AnyArray]
) -> TracedArray:
    whole, inner = traced_array(array), traced_array(part)
    return whole._with(stablehlo.put_part(whole.value, inner.value, _offsets(starts, whole.ndim)))


def _take_slice(
    array: AnyArray, starts: AnyArray | Sequence[AnyArray], sizes: Sequence[int]
) -> TracedArray:
    whole = traced_array(array)
    return whole._with(stablehlo.take_part(whole.value, _offsets(starts, whole.ndim), sizes))


def _offsets(starts: AnyArray | Sequence[AnyArray], count: int) -> list[Value]:
    """Return the offsets along axes, scalar integers."""
    return [traced_array(starts[n]).value for n in range(count)]


def _scatter(
    array: AnyArray, indices: AnyArray, updates: AnyArray, function: str = "add"
) -> TracedArray:
    rows = traced_array(array)
    positions, values = traced_array(indices, np.dtype(np.int32)), traced_array(updates, rows.dtype)
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
    fill = traced_array(value, array.dtype).reshape(())
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
    shape = [sizes[axis] for axis in layout[0]]
    if min(shape) < 0:
        raise UsageError(f"has a convolution whose result would have the shape {shape}")
    type_ = tensor_type(shape, mlir_type(target))
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
    operand = traced_array(images)
    least = -np.inf if operand.element.is_float else np.iinfo(operand.dtype).min
    start = traced_array(np.array(0 if function == "add" else least, operand.dtype)).value
    window, steps, shape = [1] * operand.ndim, [1] * operand.ndim, list(operand.shape)
    for axis, size, step in zip(axes, sizes, strides, strict=True):
        window[axis], steps[axis] = size, step
        shape[axis] = (shape[axis] - size) // step + 1
    return operand._with(
        stablehlo.reduce_window(operand.value, shape, window, steps, function, start)
    )


def _divide_truncated(dividend: AnyArray, divisor: AnyArray) -> TracedArray:
    dtype = result_dtype((dividend, divisor))
    shape = np.broadcast_shapes(dividend.shape, getattr(divisor, "shape", ()))
    x, y = (traced_array(side, dtype).broadcast_to(shape) for side in (dividend, divisor))
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
    sides = [traced_array(side) for side in (left, right)]
    dtype = target.dtype
    if target.is_integer and all(side.element.kind == "int" for side in sides):
        dtype = max((side.dtype for side in sides), key=lambda each: each.itemsize)
    return [side.astype(dtype) for side in sides]


def _dequantize(
    storage: TracedArray, form: block_form.BlockForm, expressed: ExpressedType
) -> TracedArray:
    """Write a ``subquant.dequantize``; a constant if there are no elements."""
    if 0 in storage.shape:
        return traced_constant(np.zeros(storage.shape, expressed.element.dtype), expressed.element)
    planes = (form.scales, form.zero_points, form.offsets)
    values = [None if plane is None else traced_array(plane).value for plane in planes]
    real = subquant.dequantize(
        storage.value,
        values[0],
        form.block_sizes,
        ir.TypeAttr.get(any_type_of(form.storage_type, expressed)),
        mlir_type(expressed.element),
        *values[1:],
    )
    return traced(real, expressed.element)


def _quantize(
    values: AnyArray,
    scales: AnyArray,
    block_sizes: Sequence[int],
    storage: StorageType,
    expressed: ExpressedType,
) -> TracedArray:
    """A ``subquant.quantize``; a constant if there are no elements."""
    if 0 in values.shape:
        return traced_constant(np.zeros(values.shape, storage.element.dtype), storage.element)
    integers = subquant.quantize(
        traced_array(values).value,
        traced_array(scales).value,
        block_sizes,
        ir.TypeAttr.get(any_type_of(storage, expressed)),
        mlir_type(storage.element),
    )
    return traced(integers, storage.element)


def _unpack_planes(low: AnyArray, bits: Sequence[int], high: AnyArray | None = None) -> TracedArray:
    """A ``subquant.unpack``."""
    planes = [traced_array(plane) for plane in (low, high) if plane is not None]
    integers = subquant.unpack([plane.value for plane in planes], bits)
    return traced(integers, planes[0].element)


def _attention(
    query: AnyArray,
    keys: AnyArray,
    values: AnyArray,
    position: AnyArray,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
) -> TracedArray:
    """A ``subquant.attention``."""
    query_values = traced_array(query, np.dtype(np.float32))
    first = traced_array(position, np.dtype(np.int32)).reshape(())
    key, value = (traced_array(cache).value for cache in (keys, values))
    operands = query_values.value, key, value, first.value
    result = subquant.attention(*operands, scale, window, softcap, causal)
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
            branches.append([traced_array(value) for value in function()])
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
        traced(result, value.element)
        for result, value in zip(chosen.results, branches[0], strict=True)
    ]


def _repeat_while(
    condition: Callable[..., AnyArray],
    body: Callable[..., Sequence[AnyArray]],
    values: Sequence[AnyArray],
) -> list[TracedArray]:
    start = [traced_array(value) for value in values]
    types = [value.value.type for value in start]

    def inside(arguments: Sequence[Value]) -> list[TracedArray]:
        return [
            traced(argument, value.element)
            for argument, value in zip(arguments, start, strict=True)
        ]

    def checked(arguments: Sequence[Value]) -> list[Value]:
        return [traced_array(condition(*inside(arguments)), np.dtype(np.bool_)).reshape(()).value]

    def computed(arguments: Sequence[Value]) -> list[Value]:
        results = [
            result if isinstance(result, TracedArray) else traced_array(result, value.dtype)
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
    arrays = [traced_array(array) for array in sequences]
    count, first = arrays[0].shape[0], traced_array(carried[0])

    def body(index: TracedArray, results: TracedArray, *values: TracedArray) -> list[AnyArray]:
        slices = [
            array._with(stablehlo.slice_at(array.value, index.value)).reshape(array.shape[1:])
            for array in arrays
        ]
        following = list(step(*values, *slices))
        latest = traced_array(following[0], first.dtype)[None]
        written = stablehlo.put_slice(results.value, latest.value, index.value)
        return [index + 1, results._with(written), *following]

    results = traced_array(np.zeros((count, *first.shape), first.dtype))
    start = [traced_array(np.int32(0)), results, *carried]
    _, results, *values = _repeat_while(lambda index, *_: index < count, body, start)
    return values, results


FUNCTIONS.update(
    {
        array_functions.barrier: lambda value: value._with(stablehlo.barrier(value.value)),
        array_functions.beside: lambda value, array, element=None: (
            traced_array(array) if element is None else traced_constant(array, element)
        ),
        array_functions.choose: _choose,
        convolutions.contract: _contract,
        convolutions.convolve: _convolve,
        convolutions.convolve_last: functools.partial(_convolve, layout=_CHANNELS_LAST),
        convolutions.dilate: _dilate,
        array_functions.divide_truncated: _divide_truncated,
        array_functions.erf: _erf,
        array_functions.over_time: _over_time,
        convolutions.pool: _pool,
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
        np.flip: lambda array, axis=None: array._with(
            stablehlo.reverse(array.value, array._axes(axis))
        ),
        np.pad: _pad,
        np.repeat: _repeat,
        np.reshape: lambda array, shape: array.reshape(shape),
        np.stack: _stack,
        np.take: _take,
        np.transpose: lambda array, axes=(): array.transpose(*axes),
    }
)
