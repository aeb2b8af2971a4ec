"""Arrays that record what is done to them as StableHLO operations.

A `TracedArray` takes part in NumPy's protocols: operators, universal functions and functions like
``np.concatenate`` work on it as on an array, with NumPy's rules for dtypes and broadcasting. So a
function that is written for arrays runs on arrays, and `trace` turns the same function into an MLIR
module. Shapes are static. What has no translation raises `UnsupportedError` with its name.

IREE computes a product and a sum after it with one rounding where NumPy has two: a result differs
by at most half a unit in the last place of the product. Everything else is the same to the bit,
sums of floats aside, whose order is the compiler's.

Unsigned integers are signless in the module (StableHLO's unsigned types do not reach every device)
and extended with zeros where that matters.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from .._mlir import ir
from ..dialects import create_context
from ..dialects.dense import dense_of_array
from ..errors import UnsupportedError, UsageError

__all__ = ["TracedArray", "contract_traced", "convolve_traced", "take_traced", "trace"]

_FLOATS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
_COMPARISONS = {
    "equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT",
    "greater_equal": "GE",
}  # fmt: skip
_BINARY = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "maximum": "maximum", "minimum": "minimum", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "left_shift": "shift_left", "right_shift": "shift_right_arithmetic",
}  # fmt: skip
_UNARY = {
    "absolute": "abs", "exp": "exponential", "floor": "floor", "log": "log", "negative": "negate",
    "rint": "round_nearest_even", "sqrt": "sqrt", "tanh": "tanh", "invert": "not",
}  # fmt: skip
_ORDERED = ("maximum", "minimum", "divide", *_COMPARISONS)


def trace(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Sequence[int], npt.DTypeLike]],
    name: str = "main",
) -> str:
    """Write a function of arrays as an MLIR module.

    Args:
        function: takes arrays, and returns one or a sequence of them.
        arguments: shape and dtype of each.
        name: of the function in the module.

    Returns:
        The module's text. Unsigned arguments and results are signless there.

    Raises:
        UnsupportedError: the function does what has no translation.
    """
    context = create_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        types = [_tensor(shape, np.dtype(dtype)) for shape, dtype in arguments]
        with ir.InsertionPoint(module.body):
            signature = ir.TypeAttr.get(ir.FunctionType.get(types, []))
            attributes = {"sym_name": ir.StringAttr.get(name), "function_type": signature}
            func = ir.Operation.create("func.func", attributes=attributes, regions=1)
        block = func.regions[0].blocks.append(*types)
        with ir.InsertionPoint(block):
            inputs = [
                TracedArray(value, np.dtype(dtype))
                for value, (_, dtype) in zip(block.arguments, arguments, strict=True)
            ]
            results = function(*inputs)
            outputs = list(results) if isinstance(results, (tuple, list)) else [results]
            values = [_traced(output, None).value for output in outputs]
            ir.Operation.create("func.return", operands=values)
        whole = ir.FunctionType.get(types, [value.type for value in values])
        func.attributes["function_type"] = ir.TypeAttr.get(whole)
        module.operation.verify()
        return str(module)


def _element(dtype: np.dtype[Any]) -> ir.Type:
    if dtype == np.bool_:
        return ir.IntegerType.get_signless(1)
    if dtype.name in _FLOATS:
        return ir.Type.parse(_FLOATS[dtype.name])
    if dtype.kind in "iu":
        return ir.IntegerType.get_signless(8 * dtype.itemsize)
    raise UnsupportedError(f"arrays of {dtype.name} have no MLIR type here")


def _tensor(shape: Sequence[int], dtype: np.dtype[Any]) -> ir.RankedTensorType:
    return ir.RankedTensorType.get([int(extent) for extent in shape], _element(dtype))


def _op(
    name: str,
    operands: Sequence[ir.Value],
    result: ir.Type,
    attributes: dict[str, ir.Attribute] | None = None,
) -> Any:
    return ir.Operation.create(
        f"stablehlo.{name}", results=[result], operands=list(operands), attributes=attributes or {}
    ).results[0]


def _integers(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([int(value) for value in values])


def _constant(array: npt.NDArray[Any]) -> TracedArray:
    array = np.ascontiguousarray(array).reshape(array.shape)
    dtype = array.dtype
    element = _element(dtype)
    stored = array.view(f"i{dtype.itemsize}") if dtype.kind == "u" else array
    attribute = dense_of_array(stored, element)
    return TracedArray(_op("constant", [], attribute.type, {"value": attribute}), dtype)


def _traced(value: Any, dtype: np.dtype[Any] | None) -> TracedArray:
    if isinstance(value, TracedArray):
        return value if dtype is None else value.astype(dtype)
    return _constant(np.asarray(value, dtype))


def _result_type(values: Sequence[Any]) -> np.dtype[Any]:
    """NumPy's, in which bare Python numbers do not widen."""
    known = [v if isinstance(v, numbers.Number) else np.dtype(v.dtype) for v in values]
    return np.result_type(*known)  # type: ignore[arg-type]


class TracedArray(NDArrayOperatorsMixin):
    """A value of a module that is being traced.

    Args:
        value: a ranked tensor of a static shape.
        dtype: NumPy's; signless integers of the module may be unsigned.
    """

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, value: Any, dtype: npt.DTypeLike) -> None:
        self.value = value
        self.dtype = np.dtype(dtype)
        self.shape = tuple(int(extent) for extent in value.type.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

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

    # -- conversions ------------------------------------------------------------------------------

    def astype(self, dtype: npt.DTypeLike) -> TracedArray:
        """Convert the elements; integers that do not fit wrap, as in NumPy."""
        target = np.dtype(dtype)
        if target == self.dtype:
            return self
        source = self
        both = self.dtype.kind in "iu" and target.kind in "iu"
        if both and self.dtype.itemsize == target.itemsize:
            return TracedArray(self.value, target)
        if target == np.bool_:
            return self != 0  # type: ignore[no-any-return]
        if self.dtype.kind == "u" and (target.kind not in "iu" or both):
            source = self._extended(target)
            if source.dtype == target:
                return source
        if target.kind == "u" and self.dtype.kind not in "iub":
            # The bits of a wider signed integer.
            wide = np.dtype(np.int32 if target.itemsize < 4 else np.int64)
            return source.astype(wide).astype(target)
        return TracedArray(_op("convert", [source.value], _tensor(self.shape, target)), target)

    def _extended(self, target: np.dtype[Any]) -> TracedArray:
        """Unsigned integers in a wider integer type that holds them."""
        if target.kind in "iu":
            if target.itemsize < self.dtype.itemsize:
                return self
            wide = target
        else:
            wide = np.dtype(np.int32 if self.dtype.itemsize < 4 else np.int64)
        value = _op("convert", [self.value], _tensor(self.shape, wide))
        mask = _constant(np.array((1 << (8 * self.dtype.itemsize)) - 1).astype(wide))
        spread = mask.broadcast_to(self.shape)
        return TracedArray(_op("and", [value, spread.value], value.type), wide)

    # -- shapes -----------------------------------------------------------------------------------

    def reshape(self, *shape: Any) -> TracedArray:
        """Another shape of as many elements; one extent may be -1."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        wanted = np.empty(self.shape, np.bool_).reshape(tuple(given)).shape
        if wanted == self.shape:
            return self
        return TracedArray(_op("reshape", [self.value], _tensor(wanted, self.dtype)), self.dtype)

    def transpose(self, *axes: Any) -> TracedArray:
        """Permute the axes; reverse them if none are given."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = [int(a) % self.ndim for a in given] or list(reversed(range(self.ndim)))
        type_ = _tensor([self.shape[axis] for axis in order], self.dtype)
        value = _op("transpose", [self.value], type_, {"permutation": _integers(order)})
        return TracedArray(value, self.dtype)

    def broadcast_to(self, shape: Sequence[int]) -> TracedArray:
        """As ``np.broadcast_to``."""
        if tuple(shape) == self.shape:
            return self
        np.broadcast_shapes(self.shape, tuple(shape))
        offset = len(shape) - self.ndim
        kept = [axis for axis, extent in enumerate(self.shape) if extent != 1]
        squeezed = self.reshape([self.shape[axis] for axis in kept])
        dims = {"broadcast_dimensions": _integers([axis + offset for axis in kept])}
        value = _op("broadcast_in_dim", [squeezed.value], _tensor(shape, self.dtype), dims)
        return TracedArray(value, self.dtype)

    def __getitem__(self, key: Any) -> TracedArray:
        """Basic indexing: integers, slices, ``...`` and None."""
        keys = list(key) if isinstance(key, tuple) else [key]
        used = sum(k is not None and k is not Ellipsis for k in keys)
        if used > self.ndim or keys.count(Ellipsis) > 1:
            raise UsageError(f"an index of {used} entries into an array of {self.ndim} axes")
        fill = [slice(None)] * (self.ndim - used)
        place = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
        keys[place : place + 1 if Ellipsis in keys else place] = fill
        starts, limits, strides, shape, axis = [], [], [], [], 0
        for k in keys:
            if k is None:
                shape.append(1)
                continue
            if isinstance(k, slice):
                start, stop, step = k.indices(self.shape[axis])
                if step < 1:
                    raise UnsupportedError("slices with negative steps cannot be traced")
                extent = max(-(-(stop - start) // step), 0)
                stop = start if not extent else stop
                shape.append(extent)
            elif isinstance(k, (int, np.integer)):
                start, step = int(k) % self.shape[axis], 1
                stop = start + 1
            else:
                raise UnsupportedError(f"an index of type {type(k).__name__} cannot be traced")
            starts.append(start)
            limits.append(stop)
            strides.append(step)
            axis += 1
        attributes = {
            "start_indices": _integers(starts),
            "limit_indices": _integers(limits),
            "strides": _integers(strides),
        }
        extents = [
            -(-(limit - start) // stride)
            for start, limit, stride in zip(starts, limits, strides, strict=True)
        ]
        value = _op("slice", [self.value], _tensor(extents, self.dtype), attributes)
        return TracedArray(value, self.dtype).reshape(shape)

    # -- reductions -------------------------------------------------------------------------------

    def sum(
        self, axis: Any = None, dtype: npt.DTypeLike | None = None, keepdims: bool = False
    ) -> TracedArray:
        """Add along axes; narrow integers in `dtype`, by default NumPy's int64 for them."""
        target = np.dtype(dtype or np.add.reduce(np.zeros(1, self.dtype)).dtype)
        return self.astype(target)._reduced("add", np.zeros((), target), axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> TracedArray:
        """The greatest along axes."""
        if self.dtype.kind == "u":
            raise UnsupportedError("the maximum of unsigned integers cannot be traced")
        is_integer = self.dtype.kind == "i"
        least: Any = np.iinfo(self.dtype).min if is_integer else -np.inf
        return self._reduced("maximum", np.array(least, self.dtype), axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> TracedArray:
        """The sum, divided by the number of elements."""
        axes = self._axes(axis)
        count = math.prod(self.shape[a] for a in axes)
        total = self.sum(axis, self.dtype, keepdims)
        return total / np.asarray(count, self.dtype)  # type: ignore[no-any-return]

    def _axes(self, axis: Any) -> list[int]:
        if axis is None:
            return list(range(self.ndim))
        given = axis if isinstance(axis, (tuple, list)) else (axis,)
        return sorted(int(a) % self.ndim for a in given)

    def _reduced(
        self, name: str, start: npt.NDArray[Any], axis: Any, keepdims: bool
    ) -> TracedArray:
        axes = self._axes(axis)
        kept = [extent for a, extent in enumerate(self.shape) if a not in axes]
        scalar = _tensor([], self.dtype)
        reduce = ir.Operation.create(
            "stablehlo.reduce",
            results=[_tensor(kept, self.dtype)],
            operands=[self.value, _constant(start).value],
            attributes={"dimensions": _integers(axes)},
            regions=1,
        )
        block = reduce.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            value = _op(name, list(block.arguments), scalar)
            ir.Operation.create("stablehlo.return", operands=[value])
        result = TracedArray(reduce.results[0], self.dtype)
        if not keepdims:
            return result
        return result.reshape([1 if a in axes else n for a, n in enumerate(self.shape)])

    # -- NumPy's protocols ------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Elementwise functions."""
        name = "divide" if ufunc.__name__ == "true_divide" else ufunc.__name__
        if method != "__call__" or options:
            raise UnsupportedError(f"np.{name} with these options cannot be traced")
        if name in _UNARY and len(inputs) == 1:
            return self._unary(name)
        if (name in _BINARY or name in _COMPARISONS) and len(inputs) == 2:
            return _binary(name, inputs[0], inputs[1])
        raise UnsupportedError(f"np.{name} cannot be traced")

    def _unary(self, name: str) -> TracedArray:
        if self.dtype.kind != "f" and self.dtype != ml_dtypes.bfloat16 and name not in (
            "absolute", "negative", "invert"
        ):  # fmt: skip
            raise UnsupportedError(f"np.{name} of {self.dtype.name} cannot be traced")
        return TracedArray(_op(_UNARY[name], [self.value], self.value.type), self.dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """``np.concatenate`` and its like."""
        implementation = _FUNCTIONS.get(function.__name__)
        if implementation is None:
            raise UnsupportedError(f"np.{function.__name__} cannot be traced")
        return implementation(*args, **options)


def _binary(name: str, left: Any, right: Any) -> TracedArray:
    dtype = _result_type([left, right])
    if name == "divide" and dtype.kind in "iub":
        dtype = np.dtype(np.float64)
    sides = [_traced(side, dtype) for side in (left, right)]
    result = dtype
    if dtype.kind == "u" and name in _ORDERED:
        wide = np.dtype(np.int32 if dtype.itemsize < 4 else np.int64)
        sides = [side.astype(wide) for side in sides]
    shape = np.broadcast_shapes(sides[0].shape, sides[1].shape)
    values = [side.broadcast_to(shape).value for side in sides]
    if name in _COMPARISONS:
        kind = "FLOAT" if sides[0].dtype.kind not in "iub" else "SIGNED"
        attributes = {
            "comparison_direction": ir.Attribute.parse(
                f"#stablehlo<comparison_direction {_COMPARISONS[name]}>"
            ),
            "compare_type": ir.Attribute.parse(f"#stablehlo<comparison_type {kind}>"),
        }
        value = _op("compare", values, _tensor(shape, np.dtype(np.bool_)), attributes)
        return TracedArray(value, np.bool_)
    operation = _BINARY[name]
    if name == "right_shift" and dtype.kind == "u":
        operation = "shift_right_logical"
    value = _op(operation, values, values[0].type)
    return TracedArray(value, sides[0].dtype).astype(result)


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> TracedArray:
    dtype = _result_type(list(arrays))
    parts = [_traced(array, dtype) for array in arrays]
    axis %= parts[0].ndim
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    attributes = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)}
    values = [part.value for part in parts]
    return TracedArray(_op("concatenate", values, _tensor(shape, dtype), attributes), dtype)


def _stack(arrays: Sequence[Any], axis: int = 0) -> TracedArray:
    parts = [array if isinstance(array, TracedArray) else _traced(array, None) for array in arrays]
    axis %= parts[0].ndim + 1
    shape = list(parts[0].shape)
    shape.insert(axis, 1)
    return _concatenate([part.reshape(shape) for part in parts], axis)


def _repeat(array: Any, repeats: int, axis: int) -> TracedArray:
    axis %= array.ndim
    shape = list(array.shape)
    widened = array.reshape([*shape[: axis + 1], 1, *shape[axis + 1 :]])
    spread = widened.broadcast_to([*shape[: axis + 1], int(repeats), *shape[axis + 1 :]])
    shape[axis] *= int(repeats)
    return spread.reshape(shape)  # type: ignore[no-any-return]


def take_traced(table: Any, indices: Any, axis: int | None = None) -> TracedArray:
    """As ``np.take``, with indices that are in range."""
    source = _traced(table, None)
    if axis is None and source.ndim != 1:
        raise UnsupportedError("np.take without an axis from several axes cannot be traced")
    axis = (axis or 0) % source.ndim
    positions = _traced(indices, None).astype(np.int32)
    others = [extent for a, extent in enumerate(source.shape) if a != axis]
    shape = [*source.shape[:axis], *positions.shape, *source.shape[axis + 1 :]]
    offsets = [*range(axis), *range(axis + positions.ndim, len(shape))]
    numbers_ = (
        f"#stablehlo.gather<{f'offset_dims = {offsets}, ' if offsets else ''}"
        f"collapsed_slice_dims = [{axis}], start_index_map = [{axis}], "
        f"index_vector_dim = {positions.ndim}>"
    )
    sizes = [1 if a == axis else extent for a, extent in enumerate(source.shape)]
    attributes = {
        "dimension_numbers": ir.Attribute.parse(numbers_),
        "slice_sizes": _integers(sizes),
        "indices_are_sorted": ir.BoolAttr.get(False),
    }
    assert len(others) == len(offsets)
    operands = [source.value, positions.value]
    value = _op("gather", operands, _tensor(shape, source.dtype), attributes)
    return TracedArray(value, source.dtype)


def _where(condition: Any, left: Any, right: Any) -> TracedArray:
    dtype = _result_type([left, right])
    parts = [_traced(condition, np.dtype(np.bool_)), _traced(left, dtype), _traced(right, dtype)]
    shape = np.broadcast_shapes(*(part.shape for part in parts))
    values = [part.broadcast_to(shape).value for part in parts]
    return TracedArray(_op("select", values, values[1].type), dtype)


def _pad(
    array: TracedArray, widths: Sequence[Sequence[int]], mode: str = "constant", **options: Any
) -> TracedArray:
    value = options.pop("constant_values", 0)
    if mode != "constant" or options:
        raise UnsupportedError("np.pad with these options cannot be traced")
    low, high = ([int(pair[end]) for pair in widths] for end in (0, 1))
    shape = [a + n + b for a, n, b in zip(low, array.shape, high, strict=True)]
    fill = _traced(value, array.dtype).reshape(())
    attributes = {
        "edge_padding_low": _integers(low),
        "edge_padding_high": _integers(high),
        "interior_padding": _integers([0] * len(shape)),
    }
    padded = _op("pad", [array.value, fill.value], _tensor(shape, array.dtype), attributes)
    return TracedArray(padded, array.dtype)


def _transpose(array: TracedArray, axes: Sequence[int] = ()) -> TracedArray:
    return array.transpose(*axes)


_FUNCTIONS: dict[str, Callable[..., TracedArray]] = {
    "broadcast_to": lambda array, shape: array.broadcast_to(shape),
    "concatenate": _concatenate,
    "pad": _pad,
    "repeat": _repeat,
    "reshape": lambda array, shape: array.reshape(shape),
    "stack": _stack,
    "take": take_traced,
    "transpose": _transpose,
    "where": _where,
}


def contract_traced(
    left: Any, right: Any, axes: Sequence[Sequence[int]], batch: Sequence[Sequence[int]], dtype: Any
) -> TracedArray:
    """A ``dot_general``; see `subquant.tracing.contract`."""
    target = np.dtype(dtype)
    x, y = _factors(left, right, target)
    numbers_ = (
        f"#stablehlo.dot<lhs_batching_dimensions = {list(batch[0])}, "
        f"rhs_batching_dimensions = {list(batch[1])}, "
        f"lhs_contracting_dimensions = {list(axes[0])}, "
        f"rhs_contracting_dimensions = {list(axes[1])}>"
    )
    shape = [x.shape[axis] for axis in batch[0]]
    for side, own, own_batch in ((x, axes[0], batch[0]), (y, axes[1], batch[1])):
        shape += [n for a, n in enumerate(side.shape) if a not in (*own, *own_batch)]
    attributes = {"dot_dimension_numbers": ir.Attribute.parse(numbers_)}
    value = _op("dot_general", [x.value, y.value], _tensor(shape, target), attributes)
    return TracedArray(value, target)


def convolve_traced(
    images: Any,
    kernels: Any,
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    dtype: Any,
) -> TracedArray:
    """A ``convolution``; see `subquant.tracing.convolve`."""
    target = np.dtype(dtype)
    x, y = _factors(images, kernels, target)
    extents = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], y.shape[2:], dilations, strides, strict=True)
    ]
    i64 = ir.IntegerType.get_signless(64)
    attributes = {
        "window_strides": _integers(strides),
        "rhs_dilation": _integers(dilations),
        "dimension_numbers": ir.Attribute.parse(
            "#stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>"
        ),
        "feature_group_count": ir.IntegerAttr.get(i64, groups),
        "batch_group_count": ir.IntegerAttr.get(i64, 1),
    }
    type_ = _tensor([x.shape[0], y.shape[0], *extents], target)
    return TracedArray(_op("convolution", [x.value, y.value], type_, attributes), target)


def _factors(left: Any, right: Any, target: np.dtype[Any]) -> list[TracedArray]:
    """Operands of a contraction: floats as they are summed, integers in one signed type."""
    sides = [_traced(side, None) for side in (left, right)]
    if target.kind not in "iu":
        return [side.astype(target) for side in sides]
    if all(side.dtype.kind == "i" for side in sides):
        return [
            side.astype(max((s.dtype for s in sides), key=lambda d: d.itemsize)) for side in sides
        ]
    return [side.astype(target) for side in sides]
