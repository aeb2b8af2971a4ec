"""Evaluation of elementwise operations for each of the 256 values of a byte.

Exact operations are computed as a program computes them, transcendental functions in f64 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import constant_array, constant_attribute
from ...dialects.integer_steps import read_requantize
from ...dialects.quant import SCASTS, is_quantized, parameters_of, storage_of_any
from ...dialects.subquant import REQUANTIZE
from ...emit.constant_values import uniform_number
from ...emit.gathers import AxisGather
from ...emit.stablehlo_semantics import EVALUATED, storage_element
from ...numerics.array_functions import bits_of, erf
from ...numerics.casts import Cast
from ...numerics.element_types import Array, ElementType
from ...numerics.fixed_point import saturate
from ...numerics.parameters import ExpressedType
from ...numerics.requantization import Requantization
from ..cpu.expression import DEQUANTIZE, QUANTIZE
from ..epilogue.matcher import OPERATIONS

_ELEMENTS = frozenset(("f16", "f32", "i1", "i8", "i16", "i32", "i64", "ui8"))
"""Element types of operations; quantized types are allowed, too."""
_GATHER, _SUBTRACT_ZERO_POINT = "stablehlo.gather", "subquant.subtract_zero_point"

_EXACT = {
    **{
        f"stablehlo.{name}": EVALUATED[f"stablehlo.{name}"]
        for name in (
            *("abs", "add", "and", "clamp", "compare", "convert", "floor", "maximum", "minimum"),
            *("multiply", "negate", "not", "or", "round_nearest_even", "select", "shift_left"),
            *("shift_right_arithmetic", "subtract", "xor"),
        )
    },
    **{name: OPERATIONS[name] for name in (*SCASTS, _SUBTRACT_ZERO_POINT, "subquant.saturate")},
}
_EXACT_OF_FLOATS = {name: EVALUATED[name] for name in ("stablehlo.divide", "stablehlo.sqrt")}
_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "math.erf": erf,
    "stablehlo.exponential": np.exp,
    "stablehlo.exponential_minus_one": np.expm1,
    "stablehlo.log": np.log,
    "stablehlo.log_plus_one": np.log1p,
    "stablehlo.logistic": lambda x: 1 / (1 + np.exp(-x)),
    "stablehlo.rsqrt": lambda x: 1 / np.sqrt(x),
    "stablehlo.tanh": np.tanh,
}
"""Functions of floats, computed in f64."""
EXPENSIVE = frozenset((QUANTIZE, _GATHER, *REQUANTIZE, *_EXACT_OF_FLOATS, *_ROUNDED))
"""Operations that take more time than a look-up."""


def _gather(op: Operation, table: Array, indices: Array) -> Array:
    return np.take(table, indices, mode="clip")


def _cast(op: Operation, value: Array, scale: Array, *zero_points: Array) -> Array:
    described = storage_of_any(op.attributes["quantized_type"].value, op)
    assert described is not None  # `_has_one_scale`
    storage, cast = described[0], Cast(*described)

    def with_sign(integers: Array) -> Array:
        unsigned = ElementType.parse(f"u{integers.dtype.itemsize * 8}")
        return integers if storage.signed else bits_of(integers, unsigned)

    signed_zero_points = map(with_sign, zero_points)
    if op.name == QUANTIZE:
        return np.asarray(cast.quantize(value, scale, *signed_zero_points))
    return np.asarray(cast.dequantize(with_sign(value), scale, *signed_zero_points))


def _in_f64(function: Callable[[Array], Array]) -> Callable[[Operation, Array], Array]:
    return lambda op, x: function(x.astype(np.float64))


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **_EXACT,
    **_EXACT_OF_FLOATS,
    **{name: _in_f64(function) for name, function in _ROUNDED.items()},
    _GATHER: _gather,
    **dict.fromkeys((QUANTIZE, DEQUANTIZE), _cast),
}
"""Functions of an operation and its operands; `ByteEvaluation` has requantizations."""


def is_evaluated(op: Operation) -> bool:
    """True for an operation of static tensors whose results `ByteEvaluation` can compute.

    An element of the result is computed from those at its place in other tensors of its shape, from
    `uniform_number`s, and from parameters (`is_parameter`).
    """
    if (op.name not in _FUNCTIONS and op.name not in REQUANTIZE) or len(op.results) != 1:
        return False
    [result] = op.results
    values = [result, *(value for value in op.operands if not is_parameter(value, op))]
    elements = list(map(_static_element, values))
    if None in elements:
        return False
    if any(
        value.type.shape != result.type.shape and uniform_number(value) is None for value in values
    ):
        return False
    if op.name in (QUANTIZE, DEQUANTIZE):
        return _has_one_scale(op)
    if op.name in REQUANTIZE:
        step = read_requantize(op)
        grids = [*(term.multiplier for term in step.terms), step.zero_points]
        return all(np.size(each) == 1 for each in grids)
    if op.name == _SUBTRACT_ZERO_POINT:
        parameters = parameters_of(op.operands[0].type)
        return parameters is not None and parameters.granularity == "per-tensor"
    if op.name == _GATHER:
        gather = AxisGather.of(op)
        table = constant_attribute(op.operands[0])
        return gather is not None and gather.is_of_elements and table is not None
    is_float = all(each is not None and each.is_float for each in elements)
    return is_float or (op.name not in _EXACT_OF_FLOATS and op.name not in _ROUNDED)


def is_parameter(value: Value, op: Operation) -> bool:
    """True for the scale and the zero point of a cast, and for the table of a gather."""
    if op.name in (QUANTIZE, DEQUANTIZE):
        return value in list(op.operands)[1:]
    return bool(op.name == _GATHER and value == op.operands[0])


def _static_element(value: Value) -> ElementType | None:
    """The element type that stores a static tensor; None for other values."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return None
    element = type_.element_type
    is_known = is_quantized(element) or str(element) in _ELEMENTS
    return storage_element(type_) if is_known else None


def _has_one_scale(op: Operation) -> bool:
    """True for a cast between f32 and integers with one constant scale and no offsets."""
    described = storage_of_any(op.attributes["quantized_type"].value, op)
    if described is None or described[1] is not ExpressedType.F32:
        return False
    has_offset = op.name == DEQUANTIZE and int(op.attributes["operandSegmentSizes"][3]) > 0
    numbers = map(uniform_number, list(op.operands)[1:])
    return not has_offset and all(number is not None for number in numbers)


class ByteEvaluation:
    """The results of operations for each of the 256 values of the bytes of a tensor.

    Args:
        operand: the tensor, i8.
        requantization: the form of requantizations.
    """

    def __init__(self, operand: Value, requantization: Requantization) -> None:
        self._requantization = requantization
        self._arrays = {operand: np.arange(256, dtype=np.uint8).view(np.int8)}

    def add(self, op: Operation) -> Array:
        """Compute the result of an operation that `is_evaluated`, and return it.

        It has 256 elements, or one if they are equal.
        """
        operands = [self._elements(value) for value in op.operands]
        element = _static_element(op.results[0])
        assert element is not None  # `is_evaluated`
        with np.errstate(all="ignore"):  # infinity * 0 is NaN, as it is when a program runs
            if op.name in REQUANTIZE:
                result = self._requantized(op, operands)
            else:
                result = _FUNCTIONS[op.name](op, *operands)
            array = np.asarray(result).astype(element.dtype, copy=False)
        self._arrays[op.results[0]] = array
        return array

    def _elements(self, value: Value) -> Array:
        if value in self._arrays:
            return self._arrays[value]
        elements = uniform_number(value)
        if elements is None:
            elements = constant_array(value)
        assert elements is not None  # `is_evaluated`
        return elements

    def _requantized(self, op: Operation, operands: Sequence[Array]) -> Array:
        step = read_requantize(op)
        terms = [replace(each, multiplier=each.multiplier.reshape(())) for each in step.terms]
        step = replace(step, terms=terms, zero_points=step.zero_points.reshape(()))
        rounded = step.rounded(operands, self._requantization)
        return np.asarray(saturate(rounded.value, step.storage, rounded.bound))
