"""Semantics of each operation on real numbers: float64 NumPy, from StableHLO's specification.

Every function takes a list of arrays and the operation's attributes, under the specification's
names where it has them, and returns a list of arrays. No quantized type is known here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .program import Array, Attributes
from .semantics_contractions import (
    cholesky,
    convolution,
    dilate,
    dot_general,
    pad_axis,
    triangular_solve,
    window_slices,
)

Operation = Callable[[list[Array], Attributes], list[Array]]


# -- element by element ---------------------------------------------------------------------------


def _elementwise(function: Callable[..., npt.ArrayLike]) -> Operation:
    return lambda inputs, attributes: [np.asarray(function(*inputs))]


def _round_afz(x: Array) -> Array:
    return np.asarray(np.trunc(x + np.copysign(0.5, x)))


def _reduce_precision(inputs: list[Array], attributes: Attributes) -> list[Array]:
    (x,) = inputs
    exponent_bits, mantissa_bits = attributes["exponent_bits"], attributes["mantissa_bits"]
    mantissa, exponent = np.frexp(x)
    rounded = np.rint(np.ldexp(mantissa, mantissa_bits + 1))
    value = np.ldexp(rounded, exponent - mantissa_bits - 1)
    bias = 2 ** (exponent_bits - 1) - 1
    value = np.where(np.abs(value) >= 2.0 ** (bias + 1), np.copysign(np.inf, x), value)
    return [np.where(np.abs(value) < 2.0 ** (1 - bias), np.copysign(0.0, x), value)]


_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip


def _compare(inputs: list[Array], attributes: Attributes) -> list[Array]:
    return [np.asarray(_COMPARE[attributes["direction"]](*inputs))]


# -- reductions -----------------------------------------------------------------------------------

_BODIES: dict[str, np.ufunc] = {
    "add": np.add, "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply,
}  # fmt: skip


def _reduce(inputs: list[Array], attributes: Attributes) -> list[Array]:
    half = len(inputs) // 2
    axes = tuple(attributes["dimensions"])
    if attributes["body"] == "argmax":
        values, indices = inputs[0], inputs[1]
        (axis,) = axes
        best = np.argmax(values, axis)
        return [
            np.maximum(values.max(axis), inputs[2]),
            np.take_along_axis(indices, np.expand_dims(best, axis), axis).squeeze(axis),
        ]
    function = _BODIES[attributes["body"]]
    return [
        np.asarray(function.reduce(x, axis=axes, initial=float(init)))
        for x, init in zip(inputs[:half], inputs[half:], strict=True)
    ]


def _reduce_window(inputs: list[Array], attributes: Attributes) -> list[Array]:
    half, sizes = len(inputs) // 2, attributes["window_dimensions"]
    ones = (1,) * len(sizes)
    strides = attributes.get("window_strides", ones)
    dilations = attributes.get("window_dilations", ones)
    base_dilations = attributes.get("base_dilations", ones)
    padding = attributes.get("padding", ((0, 0),) * len(sizes))
    results = []
    for x, init in zip(inputs[:half], inputs[half:], strict=True):
        for axis, (dilation, ends) in enumerate(zip(base_dilations, padding, strict=True)):
            x = pad_axis(dilate(x, axis, dilation, float(init)), axis, ends, float(init))
        extents, slices = window_slices(x.shape, sizes, strides, dilations)
        total = np.full(extents, float(init))
        for cut in slices.values():
            total = _BODIES[attributes["body"]](total, x[cut])
        results.append(total)
    return results


def _select_and_scatter(inputs: list[Array], attributes: Attributes) -> list[Array]:
    operand, source, init = inputs
    rank = operand.ndim
    strides = attributes.get("window_strides", (1,) * rank)
    padding = attributes.get("padding", ((0, 0),) * rank)
    dims = attributes["window_dimensions"]
    select = _COMPARE[attributes["select"]]
    scatter = _BODIES[attributes["body"]]
    result = np.full(operand.shape, float(init))
    for index_of_result in np.ndindex(*source.shape):
        best: tuple[int, ...] | None = None
        for offset in itertools.product(*(range(k) for k in dims)):
            index = tuple(
                p * s + o - low
                for p, s, o, (low, _) in zip(index_of_result, strides, offset, padding, strict=True)
            )
            if any(not 0 <= i < n for i, n in zip(index, operand.shape, strict=True)):
                continue
            if best is None or not select(operand[best], operand[index]):
                best = index
        if best is not None:
            result[best] = scatter(result[best], source[index_of_result])
    return [result]


def _batch_norm_inference(inputs: list[Array], attributes: Attributes) -> list[Array]:
    operand, scale, offset, mean, variance = inputs
    form = [1] * operand.ndim
    form[attributes["feature_index"]] = -1
    scale, offset, mean, variance = (v.reshape(form) for v in (scale, offset, mean, variance))
    return [scale * (operand - mean) / np.sqrt(variance + attributes["epsilon"]) + offset]


def _batch_norm_training(inputs: list[Array], attributes: Attributes) -> list[Array]:
    operand, scale, offset = inputs
    feature = attributes["feature_index"]
    axes = tuple(axis for axis in range(operand.ndim) if axis != feature)
    mean, variance = operand.mean(axes), operand.var(axes)
    (output,) = _batch_norm_inference([operand, scale, offset, mean, variance], attributes)
    return [output, mean, variance]


def _batch_norm_grad(inputs: list[Array], attributes: Attributes) -> list[Array]:
    operand, scale, mean, variance, grad = inputs
    feature = attributes["feature_index"]
    axes = tuple(axis for axis in range(operand.ndim) if axis != feature)
    form = [1] * operand.ndim
    form[feature] = -1
    count = operand.size / operand.shape[feature]
    centred = operand - mean.reshape(form)
    deviation = np.sqrt(variance.reshape(form) + attributes["epsilon"])
    grad_scale = (grad * centred / deviation).sum(axes)
    grad_offset = grad.sum(axes)
    inner = count * grad - grad_offset.reshape(form)
    inner -= centred * (grad * centred).sum(axes).reshape(form) / deviation**2
    return [scale.reshape(form) / deviation / count * inner, grad_scale, grad_offset]


# -- moving data ----------------------------------------------------------------------------------


def _broadcast_in_dim(inputs: list[Array], attributes: Attributes) -> list[Array]:
    x, shape = inputs[0], attributes["shape"]
    form = [1] * len(shape)
    for axis, target in enumerate(attributes["dimensions"]):
        form[target] = x.shape[axis]
    return [np.broadcast_to(x.reshape(form), shape)]


def _pad(inputs: list[Array], attributes: Attributes) -> list[Array]:
    x, fill = inputs[0], float(inputs[1])
    for axis, (low, high, inside) in enumerate(attributes["padding"]):
        x = pad_axis(dilate(x, axis, inside + 1, fill), axis, (low, high), fill)
    return [x]


def _clamped_slices(x: Array, starts: Sequence[Array], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return slices of the sizes, with starts clamped so that each slice is inside."""
    bounded = [
        min(max(int(start), 0), n - size)
        for start, n, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return tuple(slice(start, start + n) for start, n in zip(bounded, sizes, strict=True))


def _dynamic_slice(inputs: list[Array], attributes: Attributes) -> list[Array]:
    return [inputs[0][_clamped_slices(inputs[0], inputs[1:], attributes["sizes"])]]


def _dynamic_update_slice(inputs: list[Array], attributes: Attributes) -> list[Array]:
    x, update = inputs[0].copy(), inputs[1]
    x[_clamped_slices(x, inputs[2:], update.shape)] = update
    return [x]


def _gather(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Gather slices. Source: StableHLO specification, gather (without batching dimensions)."""
    operand, indices = inputs[:2]
    offset_dims = attributes["offset_dims"]
    collapsed = attributes["collapsed_slice_dims"]
    index_map = attributes["start_index_map"]
    vector = attributes["index_vector_dim"]
    sizes = attributes["slice_sizes"]
    indices = indices[..., None] if vector == indices.ndim else indices
    batch = [n for axis, n in enumerate(indices.shape) if axis != vector]
    window_axes = [axis for axis in range(operand.ndim) if axis not in collapsed]
    rank = len(batch) + len(offset_dims)
    batch_dims = [axis for axis in range(rank) if axis not in offset_dims]
    shape = [0] * rank
    for axis, n in zip(batch_dims, batch, strict=True):
        shape[axis] = n
    for axis, source in zip(offset_dims, window_axes, strict=True):
        shape[axis] = sizes[source]
    result = np.zeros(shape, operand.dtype)
    for position in np.ndindex(*shape):
        at = tuple(position[axis] for axis in batch_dims)
        start = _start_index(np.moveaxis(indices, vector, -1)[at], index_map, operand.ndim)
        whole = zip(start, operand.shape, sizes, strict=True)
        index = [min(max(value, 0), n - size) for value, n, size in whole]
        for axis, source in zip(offset_dims, window_axes, strict=True):
            index[source] += position[axis]
        result[position] = operand[tuple(index)]
    return [result]


def _scatter(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Scatter updates. Source: StableHLO specification, scatter (without batching dimensions)."""
    operand, indices, updates = inputs
    window_dims = attributes["update_window_dims"]
    inserted = attributes["inserted_window_dims"]
    index_map = attributes["scatter_dims_to_operand_dims"]
    vector = attributes["index_vector_dim"]
    body = attributes["body"]
    indices = indices[..., None] if vector == indices.ndim else indices
    window_axes = [axis for axis in range(operand.ndim) if axis not in inserted]
    scatter_dims = [axis for axis in range(updates.ndim) if axis not in window_dims]
    result = operand.copy()
    for position in np.ndindex(*updates.shape):
        at = tuple(position[axis] for axis in scatter_dims)
        index = _start_index(np.moveaxis(indices, vector, -1)[at], index_map, operand.ndim)
        for axis, target in zip(window_dims, window_axes, strict=True):
            index[target] += position[axis]
        if all(0 <= i < n for i, n in zip(index, operand.shape, strict=True)):
            old, new = result[tuple(index)], updates[position]
            result[tuple(index)] = new if body == "assign" else _BODIES[body](old, new)
    return [result]


def _start_index(start: Array, index_map: Sequence[int], rank: int) -> list[int]:
    """Return the index of an operand whose axes `index_map` have the values `start`."""
    index = [0] * rank
    for value, axis in zip(start, index_map, strict=True):
        index[axis] = int(value)
    return index


def _sort(inputs: list[Array], attributes: Attributes) -> list[Array]:
    axis = attributes["dimension"]
    sign = -1.0 if attributes["direction"] == "GT" else 1.0
    order = np.argsort(sign * inputs[0], axis, kind="stable")
    return [np.take_along_axis(x, order, axis) for x in inputs]


def _iota(inputs: list[Array], attributes: Attributes) -> list[Array]:
    shape, axis = attributes["shape"], attributes["dimension"]
    form = [1] * len(shape)
    form[axis] = -1
    return [np.broadcast_to(np.arange(shape[axis], dtype=np.float64).reshape(form), shape)]


def _case(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Return the result of a branch; an index outside the branches takes the last one."""
    index, branches = int(inputs[0]), inputs[1:]
    return [branches[index if 0 <= index < len(branches) else -1]]


def _while(inputs: list[Array], attributes: Attributes) -> list[Array]:
    """Run the loop of the test programs: ``x = x + x``, ``attributes['count']`` times."""
    x = inputs[0]
    for _ in range(attributes["count"]):
        x = x + x
    return [x]


OPERATIONS: dict[str, Operation] = {
    # element by element
    "abs": _elementwise(np.abs),
    "add": _elementwise(np.add),
    "atan2": _elementwise(np.arctan2),
    "cbrt": _elementwise(np.cbrt),
    "ceil": _elementwise(np.ceil),
    "clamp": _elementwise(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "compare": _compare,
    "cosine": _elementwise(np.cos),
    "divide": _elementwise(np.divide),
    "exponential": _elementwise(np.exp),
    "exponential_minus_one": _elementwise(np.expm1),
    "floor": _elementwise(np.floor),
    "is_finite": _elementwise(np.isfinite),
    "log": _elementwise(np.log),
    "log_plus_one": _elementwise(np.log1p),
    "logistic": _elementwise(lambda x: 1.0 / (1.0 + np.exp(-x))),
    "maximum": _elementwise(np.maximum),
    "minimum": _elementwise(np.minimum),
    "multiply": _elementwise(np.multiply),
    "negate": _elementwise(np.negative),
    "power": _elementwise(np.power),
    "reduce_precision": _reduce_precision,
    "remainder": _elementwise(np.fmod),
    "round_nearest_afz": _elementwise(_round_afz),
    "round_nearest_even": _elementwise(np.rint),
    "rsqrt": _elementwise(lambda x: 1.0 / np.sqrt(x)),
    "select": _elementwise(np.where),
    "sign": _elementwise(np.sign),
    "sine": _elementwise(np.sin),
    "sqrt": _elementwise(np.sqrt),
    "subtract": _elementwise(np.subtract),
    "tan": _elementwise(np.tan),
    "tanh": _elementwise(np.tanh),
    # contractions
    "cholesky": cholesky,
    "convolution": convolution,
    "dot_general": dot_general,
    "triangular_solve": triangular_solve,
    # reductions
    "batch_norm_grad": _batch_norm_grad,
    "batch_norm_inference": _batch_norm_inference,
    "batch_norm_training": _batch_norm_training,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _select_and_scatter,
    # moving data
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda inputs, attributes: [np.concatenate(inputs, attributes["dimension"])],
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "get_dimension_size": lambda inputs, attributes: [
        np.asarray(inputs[0].shape[attributes["dimension"]], np.int32)
    ],
    "identity": lambda inputs, attributes: inputs,
    "iota": _iota,
    "pad": _pad,
    "reshape": lambda inputs, attributes: [inputs[0].reshape(attributes["shape"])],
    "reverse": lambda inputs, attributes: [np.flip(inputs[0], attributes["dimensions"])],
    "scatter": _scatter,
    "slice": lambda inputs, attributes: [
        inputs[0][tuple(slice(*triple) for triple in attributes["slices"])]
    ],
    "sort": _sort,
    "transpose": lambda inputs, attributes: [inputs[0].transpose(attributes["permutation"])],
    "values": lambda inputs, attributes: [np.asarray(attributes["value"], np.float64)],
    # control flow
    "case": _case,
    "if": lambda inputs, attributes: [inputs[1] if bool(inputs[0]) else inputs[2]],
    "while": _while,
}  # fmt: skip
"""The meaning of each operation: float64 arrays and attributes to float64 arrays."""
