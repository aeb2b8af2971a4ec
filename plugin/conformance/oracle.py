"""Goldens of the suite: each operation's meaning in float64 NumPy, and nothing of the project.

An operation on quantized values means: dequantize the operands, compute, quantize the result
(StableHLO specification, ``dequantize_op_quantize``). Here the real value is computed in float64:

* dequantize: ``(q - z) * s``, with ``s`` rounded to the expressed type. The product is exact, but
  for operations that jump it is rounded to the expressed type (`ROUNDED`: ``floor(10 * f32(0.1))``
  is 1, because the specification dequantizes to f32).
* quantize: ``x / s + z`` in float64, clamped, rounded half to even; NaN gives 0, clamped.
* the casts themselves follow the specification literally, in the arithmetic of the expressed type.

The result of a right program is that value. Others are accepted, and counted:

* the *other reading*: the specification dequantizes operands to the expressed type and quantizes in
  its arithmetic, which for f16 and bf16, or for i32 storage over f32, is coarser than a step; to
  compute in a wider type is as good. So the value to the letter is accepted where the exact one is
  meant, and the other way round for `ROUNDED` operations on f16 and bf16. Of f16, which overflows
  at 65,520, it is accepted too that operands are rounded once, as products, and not before.
* the neighbour at a *near tie*.

An element is a *near tie* where ``x / s + z`` is within `TIE` of half a step: float32 arithmetic
that is right may give the neighbour there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from .program import DTYPES, Array, Program, Quantized, Tensor
from .semantics import OPERATIONS

TIE = 1e-6
"""Tie tolerance in quantization steps: within it the neighbor is accepted, too."""

_EPSILON = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
"""Relative error of a rounding, half a unit in the last place, by element type."""

Rounded = Literal["nothing", "all", "product"]
"""The rounded values of a dequantization: none, difference and product, or the product alone."""


@dataclass(frozen=True)
class Golden:
    """Expected value of a result.

    Args:
        value: storage values, integers, booleans or floats, in the dtype of the result.
        neighbour: for a quantized result, the other acceptable value (equal to `value` except at
            near ties).
        other: for a quantized result, the value of the other reading.
        once: likewise where products of f16 are rounded, and differences are not.
        bound: for a float result, the absolute difference that is accepted, per element; None if
            the bits must be equal.
        real: for a quantized result, the value in steps before it is rounded (for reports).
    """

    value: Array
    neighbour: Array | None = None
    other: Array | None = None
    once: Array | None = None
    bound: Array | None = None
    real: Array | None = None


# -- the casts ------------------------------------------------------------------------------------


def _parameters(element: Quantized, shape: Sequence[int]) -> tuple[Array, Array]:
    """Scales (rounded to the expressed type, as float64) and zero points, for every element."""
    scales = np.asarray(element.scale, np.float64)
    scales = scales.astype(DTYPES[element.expressed]).astype(np.float64)
    zero_points = np.broadcast_to(np.asarray(element.zero_point, np.int64), scales.shape)
    if element.blocks:
        for axis in range(len(shape)):
            size = dict(element.blocks).get(axis, max(shape[axis], 1))
            pick = np.arange(shape[axis]) // size
            scales, zero_points = scales.take(pick, axis), zero_points.take(pick, axis)
    elif element.axis is not None:
        form = [1] * len(shape)
        form[element.axis] = -1
        scales, zero_points = scales.reshape(form), zero_points.reshape(form)
    else:
        scales, zero_points = scales.reshape(()), zero_points.reshape(())
    return np.broadcast_to(scales, shape), np.broadcast_to(zero_points, shape)


def dequantize(stored: Array, element: Quantized, rounded: Rounded = "nothing") -> Array:
    """Return ``(q - z) * s`` in float64, with some values rounded to the expressed type."""
    scales, zero_points = _parameters(element, stored.shape)
    difference = stored.astype(np.int64) - zero_points
    factor = difference.astype(np.float64)
    if rounded == "all":
        factor = _in_expressed(difference, element)
    product = np.asarray(factor * scales)
    return product if rounded == "nothing" else _in_expressed(product, element)


def _in_expressed(values: Array, element: Quantized) -> Array:
    """Round to the expressed type.

    float64 holds quotients and sums of f32 well enough that rounding twice is rounding once.
    """
    dtype = DTYPES[element.expressed]
    with np.errstate(over="ignore", invalid="ignore"):
        if element.expressed == "bf16" and values.dtype.kind in "iu":
            values = values.astype(np.float32)  # as MLIR does: no integer becomes a bf16 directly
        return np.asarray(values.astype(dtype).astype(np.float64))


def quantize_real(real: Array, element: Quantized) -> Golden:
    """Quantize real values: in float64, with the neighbour at near ties."""
    scales, zero_points = _parameters(element, real.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        steps = real / scales + zero_points
    value = _store(steps, element)
    low, high = element.range
    with np.errstate(invalid="ignore"):
        clamped = np.clip(steps, low, high)
        down = np.floor(clamped)
        is_tie = np.abs(clamped - down - 0.5) < TIE
        other = np.where(is_tie, np.where(value == down, down + 1, down), value)
    neighbour = np.nan_to_num(other).astype(np.int64).astype(element.dtype)
    return Golden(value, neighbour, real=steps)


def quantize(values: Array, element: Quantized) -> Array:
    """``uniform_quantize`` to the letter: division and addition each in the expressed type."""
    scales, zero_points = _parameters(element, values.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        quotient = _in_expressed(values.astype(np.float64) / scales, element)
        zero = _in_expressed(zero_points, element)
        return _store(_in_expressed(quotient + zero, element), element)


def _store(steps: Array, element: Quantized) -> Array:
    low, high = element.range
    rounded = np.rint(np.clip(np.where(np.isnan(steps), 0.0, steps), low, high))
    return np.asarray(rounded.astype(np.int64).astype(element.dtype))


# -- programs -------------------------------------------------------------------------------------

ROUNDED = frozenset(
    ["ceil", "compare", "floor", "log_plus_one", "power", "reduce_precision", "remainder",
     "round_nearest_afz", "round_nearest_even", "sign"]
)  # fmt: skip
"""Operations that jump: they see the dequantized value as the expressed type holds it."""


def goldens(program: Program, inputs: list[Array]) -> list[Golden]:
    """Return the expected value of each result of a program."""
    if program.oracle == "uniform_quantize" and not program.arguments[0].is_quantized:
        element = program.results[0].element
        assert isinstance(element, Quantized)
        return [Golden(quantize(inputs[0], element))]
    if program.oracle == "uniform_dequantize":
        element = program.arguments[0].element
        assert isinstance(element, Quantized)
        real = dequantize(inputs[0], element, "all")
        return [Golden(real.astype(DTYPES[element.expressed]))]
    if program.oracle == "bitcast_convert":  # the stored bits under another dtype
        stored = inputs[0].view(program.attributes["dtype"])
        return [Golden(stored.reshape(inputs[0].shape))]
    exact, letter, once = (compute(program, inputs, each) for each in get_args(Rounded))
    return [
        _golden(program, inputs, tensor, *reals)
        for tensor, *reals in zip(program.results, exact, letter, once, strict=True)
    ]


def real_inputs(program: Program, inputs: list[Array], rounded: Rounded = "nothing") -> list[Array]:
    """Return the operands of the operation: float64 for quantized and float inputs.

    Quantized inputs are storage values, rounded as by `dequantize`.
    """
    reals = []
    for tensor, array in zip(program.arguments, inputs, strict=True):
        if isinstance(tensor.element, Quantized):
            reals.append(dequantize(array, tensor.element, rounded))
        else:
            is_float = array.dtype.kind == "f" or array.dtype == DTYPES["bf16"]
            reals.append(array.astype(np.float64) if is_float else array)
    return reals


def compute(program: Program, inputs: list[Array], rounded: Rounded = "nothing") -> list[Array]:
    """Return each result of a program as real numbers, before it is quantized."""
    with np.errstate(all="ignore"):
        reals = real_inputs(program, inputs, rounded)
        return OPERATIONS[program.oracle](reals, program.attributes)


def _golden(
    program: Program, inputs: list[Array], tensor: Tensor, exact: Array, letter: Array, once: Array
) -> Golden:
    element = tensor.element
    jumps = program.oracle in ROUNDED
    if isinstance(element, Quantized):
        other = quantize(_in_expressed(letter, element), element)
        if jumps and element.expressed in ("f16", "bf16"):
            other = quantize_real(exact, element).value
        golden = replace(quantize_real(letter if jumps else exact, element), other=other)
        if element.expressed != "f16":
            return golden
        return replace(golden, once=quantize(_in_expressed(once, element), element))
    value = (letter if jumps else exact).astype(DTYPES[element])
    if element not in _EPSILON:
        return Golden(value)
    magnitudes = [np.abs(array) for array in real_inputs(program, inputs)]
    # A sum of n products in any order: n roundings of it, and one of each dequantized factor.
    terms = int(program.attributes.get("terms", 1)) + 2
    with np.errstate(all="ignore"):
        (total,) = OPERATIONS[program.oracle](magnitudes, program.attributes)
    return Golden(value, bound=np.asarray(terms * _EPSILON[element] * np.abs(total)))
