"""``quant-legalize-to-tosa-rescale``: lower quantized elementwise StableHLO to rescales.

Each operand is rescaled to 32-bit integers of a common scale, the integer StableHLO operation
follows, and its result is rescaled to the result's parameters. With ``d = q - zero point``, scales
``s1``, ``s2`` of the operands and ``s`` of the result, and ``h`` bits of headroom:

| operation | operands are rescaled by | the result by |
|---|---|---|
| abs | 1 | ``s1 / s`` |
| add, subtract | ``2**h s1 / M`` and ``2**h s2 / M``, ``M = 2 max(s1, s2)`` | ``M / s / 2**h`` |
| maximum, minimum | ``2**h s1 / M`` and ``2**h s2 / M``, ``M = max(s1, s2)`` | ``M / s / 2**h`` |
| compare | as maximum | |
| multiply | 1 and 1 | ``s1 * s2 / s`` |
| divide | ``2**h`` and 1 | ``s1 / (s2 * s) / 2**h`` |

``h`` is 20, or the remaining bits of 32 (15 for 16-bit operands); 12 with multipliers of 15 bits,
whose shift would be below TOSA's minimum otherwise. For divide ``h`` is all remaining bits of 32;
if these are fewer than 20, the dividend is shifted left and divided in 64 bits.

Accuracy. An operand's rounding error is half of an intermediate step, which is ``2**-h`` of the
greater scale (a quotient is truncated: a whole step), and a multiplier has a relative error of
``2**-31`` (or ``2**-15``). The sum of the errors in steps of the result, and the half step of the
last rounding, bound the distance from the exact result: below 1.5 a result is at most one step away
from the rounded exact one. ``explain=true`` reports operations with a larger bound, as with 32-bit
storage.

* A product or quotient of more than 32 bits is computed in 64, and shifted right until values
  beyond 32 bits saturate the result anyway; the multiplier compensates the shift.
* Division by zero saturates with the sign of the dividend, ``0 / 0`` is the storage value 0 (as NaN
  is), and the division itself never divides by zero.
* TOSA has zero points for 8 bits (and 32768 for unsigned 16), one per tensor, integers of 8, 16 and
  32 bits, and no ranges. If the types need more, differences, zero points and clamps are StableHLO
  operations, and the rescale is from 32 bits to 32.
* Scales along an axis become a ``per_channel`` rescale, between transpositions if the axis is not
  the last one.

Other operations stay, as in the C++ pass of this purpose (``explain=true`` reports why for
quantized ones), also operations in the bodies of reductions. The C++ pass has ``s1 * s2 / s`` for
divide, and divides integers without headroom; that is wrong.

Before::

    %r = stablehlo.add %x, %y : (tensor<4x!q1>, tensor<4x!q2>) -> tensor<4x!q3>

After::

    %a = tosa.rescale %xs, %m1, %k1, %z1, %zero {...} : (tensor<4xi8>, ...) -> tensor<4xi32>
    %b = tosa.rescale %ys, %m2, %k2, %z2, %zero {...} : (tensor<4xi8>, ...) -> tensor<4xi32>
    %c = stablehlo.add %a, %b : tensor<4xi32>
    %rs = tosa.rescale %c, %m3, %k3, %zero, %z3 {...} : (tensor<4xi32>, ...) -> tensor<4xi8>

Sources: TOSA specification 1.0, ``RESCALE``; StableHLO documentation, "Quantization", section on
TOSA; StableHLO specification, sections of the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.grids import zero_point_grid
from ...dialects.quant import element_type, is_quantized, parameters_of, storage_mlir_type
from ...emit import ArrayLike, as_quantized, linalg, stablehlo, stored, tensor, value
from ...emit.operation import mlir_type, with_element
from ...emit.stablehlo_semantics import comparison_direction
from ...emit.tosa import create_rescale
from ...errors import Remark, UsageError
from ...numerics.array_functions import convert
from ...numerics.element_types import I32, I64, Array
from ...numerics.fixed_point import multiplier_and_shift
from ...numerics.parameters import QuantizationParameters
from ..base import ModulePass, NoMatch, walk
from ..quantization.math.operands import Operand, difference_of_blocks
from .rescale_plan import I32_MAX, RescalePlan, RescalePlanner

_MODES = {"single": "SINGLE_ROUND", "double": "DOUBLE_ROUND", "inexact": "INEXACT_ROUND"}
_MIN_REPORTED_BOUND = Fraction(3, 2)
"""Steps; below it an integer is at most one step from the rounded exact one."""
_OPERATIONS = frozenset(
    f"stablehlo.{name}"
    for name in ("abs", "add", "compare", "divide", "maximum", "minimum", "multiply", "subtract")
)
_PLAIN_PARENTS = frozenset(
    ("builtin.module", "func.func", "stablehlo.case", "stablehlo.if", "stablehlo.while")
)


@dataclass(frozen=True)
class QuantLegalizeToTosaRescale(ModulePass):
    """Write quantized elementwise operations as ``tosa.rescale`` and integer operations.

    Options:
        rounding: ``single``, ``double`` or ``inexact``.
        scale32: True for multipliers of 31 bits, False for 15, which have no double rounding.
        types: the types of the operands and results of rescales: ``storage``, which IREE needs, or
            ``quantized`` as the C++ pass writes them, if TOSA's verifier accepts them.
        explain: return a remark on each quantized operation that stays, and on each whose result
            may be more than one step from the exact one.
    """

    rounding: Literal["single", "double", "inexact"] = "single"
    scale32: bool = True
    types: Literal["storage", "quantized"] = "storage"
    explain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounding == "double" and not self.scale32:
            raise UsageError("TOSA has no double rounding with scale32=false; use rounding=single")

    def run(self, module: ir.Operation) -> Sequence[Remark]:
        """Rewrite `module`; never fails."""
        remarks = []
        for op in walk(module):
            has_quantized = any(is_quantized(value.type) for value in op.operands)
            if not has_quantized or not op.name.startswith("stablehlo."):
                continue
            with op.location, ir.InsertionPoint(op):
                outcome = _Elementwise(op, self).rewrite()
            if isinstance(outcome, NoMatch):
                remarks.append(Remark.about(op, f"is left alone: {outcome.reason}"))
                continue
            if outcome.bound >= _MIN_REPORTED_BOUND:
                remarks.append(
                    Remark.about(
                        op,
                        f"may differ from the exact result by up to {float(outcome.bound):.3g} "
                        "steps: 32 bits leave no more headroom for these scales",
                    )
                )
            op.results[0].replace_all_uses_with(outcome.value)
            op.erase()
        return remarks if self.explain else []


@dataclass(frozen=True)
class _Rewritten:
    """The replacement of an operation, and its distance from the exact result in steps."""

    value: Value
    bound: Fraction = Fraction(0)


class _Elementwise:
    """The rewriting of one operation: planned first, then built.

    Planning only reads the parameters of each `Operand`; building emits values.
    """

    def __init__(self, op: Operation, options: QuantLegalizeToTosaRescale) -> None:
        self.op = op
        self.types = options.types
        self.mode = _MODES[options.rounding]
        self.bits = 31 if options.scale32 else 15
        self.rounding_error = Fraction(3, 4) if options.rounding == "double" else Fraction(1, 2)

    def rewrite(self) -> _Rewritten | NoMatch:
        op = self.op
        if op.name not in _OPERATIONS:
            return NoMatch("it is not one that this pass rescales")
        if op.parent.operation.name not in _PLAIN_PARENTS:
            return NoMatch(f"it is in the body of '{op.parent.operation.name}'")
        parameters = [parameters_of(value.type, op) for value in op.operands]
        target = parameters_of(op.results[0].type, op)
        is_compare = op.name == "stablehlo.compare"
        if None in parameters or (target is None and not is_compare):
            return NoMatch("it has operands or a result that are not quantized")
        inputs = [
            Operand(value, each)
            for value, each in zip(op.operands, parameters, strict=True)
            if each is not None
        ]
        axes = {each.axes for each in (*parameters, target) if each is not None and each.axes}
        if len(axes) > 1:
            return NoMatch("its types are quantized along different axes")
        for side in (*inputs, *([Operand(op.results[0], target)] if target else [])):
            if side.bound > I32_MAX and not _has_rescale(side.parameters):
                element = element_type(side.quantized.type)
                return NoMatch(f"'{element}' less its zero point needs more than 32 bits")
        plan = RescalePlanner(op.name, self.bits, self.rounding_error).plan(inputs, target)
        return plan if isinstance(plan, NoMatch) else self._build(inputs, plan, target)

    def _build(
        self, inputs: list[Operand], plan: RescalePlan, target: QuantizationParameters | None
    ) -> _Rewritten:
        op = self.op
        values = [
            self._rescale_input(side, factor)
            for side, factor in zip(inputs, plan.factors, strict=True)
        ]
        if target is None:
            (left, right), type_ = values, op.results[0].type
            direction = comparison_direction(op)
            return _Rewritten(stablehlo.compare(direction, "SIGNED", left, right, type_))
        if op.name == "stablehlo.multiply":
            result = self._multiply(values, inputs, plan.drop)
        elif op.name == "stablehlo.divide":
            return _Rewritten(self._divide(values, plan, target), plan.bound)
        else:
            result = value(op.name, values, values[0].type)
        return _Rewritten(self._as_result(self._rescale_result(result, plan, target)), plan.bound)

    def _as_result(self, result: Value) -> Value:
        """A rescaled value, of storage or quantized elements, with the operation's type."""
        type_ = self.op.results[0].type
        if not is_quantized(result.type):
            return as_quantized(result, type_)
        return linalg.cast(result, type_)

    def _rescale_input(self, operand: Operand, factor: Array) -> Value:
        """The integers nearest to the differences times a factor, as i32."""
        parameters, i32 = operand.parameters, mlir_type(I32)
        if _has_rescale(parameters):
            quantized = operand.quantized
            source = quantized if self._takes_quantized(parameters) else operand.stored.value
            zero_point = int(parameters.zero_points.reshape(-1)[0])
            unsigned = (not parameters.storage.signed, False)
            return self._rescale(source, i32, factor, (zero_point, 0), unsigned)
        difference = difference_of_blocks(operand).value
        return difference if (factor == 1).all() else self._rescale(difference, i32, factor)

    def _rescale_result(
        self, accumulator: Value, plan: RescalePlan, target: QuantizationParameters
    ) -> Value:
        """The nearest storage values, as storage or in the quantized type."""
        storage = target.storage
        if _has_rescale(target) and not storage.is_narrowed:
            quantized = self._takes_quantized(target)
            type_ = self.op.results[0].type
            element = element_type(type_) if quantized else storage_mlir_type(storage)
            zero_point = int(target.zero_points.reshape(-1)[0])
            unsigned = (False, not storage.signed)
            return self._rescale(accumulator, element, plan.result, (0, zero_point), unsigned)
        scaled = tensor(self._rescale(accumulator, mlir_type(I32), plan.result))
        zero_points = zero_point_grid(target, scaled.form.rank)
        scaled = np.maximum(scaled, storage.minimum - zero_points)
        scaled = np.minimum(scaled, storage.maximum - zero_points)
        if zero_points.any():
            scaled = scaled + zero_points
        return convert(scaled, storage.element).value

    def _takes_quantized(self, parameters: QuantizationParameters) -> bool:
        return self.types == "quantized" and not parameters.axes

    def _rescale(
        self,
        source: Value,
        element: ir.Type,
        factor: Array,
        zero_points: tuple[int, int] = (0, 0),
        unsigned: tuple[bool, bool] = (False, False),
    ) -> Value:
        """Create a rescale; factors along an axis that is not the last one need a transposition."""
        multipliers, shifts = multiplier_and_shift(factor, self.bits)
        axis = next((axis for axis, n in enumerate(factor.shape) if n != 1), None)
        rank = len(source.type.shape)
        order = list(range(rank))
        if axis is not None:
            order = [*order[:axis], *order[axis + 1 :], axis]
        moved = stablehlo.transpose(source, order)
        scale = (multipliers.reshape(-1), shifts.reshape(-1))
        result = create_rescale(
            moved,
            with_element(moved.type, element),
            (scale[0][0], scale[1][0]) if axis is None else scale,
            zero_points,
            mode=self.mode,
            scale32=self.bits == 31,
            unsigned=unsigned,
        )
        return stablehlo.transpose(result, [order.index(axis) for axis in range(rank)])

    def _multiply(self, values: list[Value], inputs: list[Operand], drop: int) -> Value:
        left, right = (tensor(number) for number in values)
        if inputs[0].bound * inputs[1].bound <= I32_MAX:
            return (left * right).value
        return _narrowed(convert(left, I64) * convert(right, I64), drop).value

    def _divide(
        self, values: list[Value], plan: RescalePlan, target: QuantizationParameters
    ) -> Value:
        """The rescaled quotient; the results of zero divisors are selected afterwards."""
        storage = target.storage
        dividend, divisor = (tensor(number) for number in values)
        by_zero = divisor == 0
        divisor = np.where(by_zero, 1, divisor)
        if plan.raised:
            wide = convert(dividend, I64) << plan.raised
            quotient = _narrowed(_truncated(wide, convert(divisor, I64)), plan.drop)
        else:
            quotient = _truncated(dividend, divisor)
        result = self._rescale_result(quotient.value, plan, target)
        if is_quantized(result.type):
            result = stored(result)
        nearest = tensor(result, storage.element)
        zero = min(max(0, storage.minimum), storage.maximum)
        nan, highest, lowest = (
            nearest.form.known(number, storage.element)
            for number in (zero, storage.maximum, storage.minimum)
        )
        special = np.where(dividend > 0, highest, np.where(dividend < 0, lowest, nan))
        return self._as_result(np.where(by_zero, special, nearest).value)


def _truncated(dividend: ArrayLike, divisor: ArrayLike) -> ArrayLike:
    """``dividend / divisor`` of integers, towards zero."""
    quotient = value("stablehlo.divide", [dividend.value, divisor.value], dividend.value.type)
    return dividend.form.emitted(quotient)


def _narrowed(wide: ArrayLike, drop: int) -> ArrayLike:
    """A 64-bit value without its lowest `drop` bits, rounded and saturated to 32 bits."""
    if drop:
        wide = (wide + (1 << (drop - 1))) >> drop
    return convert(np.minimum(np.maximum(wide, -I32_MAX - 1), I32_MAX), I32)


def _has_rescale(parameters: QuantizationParameters) -> bool:
    """True if TOSA can rescale the storage type with its zero point, which must be uniform."""
    storage, zero_points = parameters.storage, parameters.zero_points.reshape(-1)
    if (zero_points != zero_points[0]).any():
        return False
    if storage.width == 16 and not storage.signed:
        return int(zero_points[0]) in (0, 1 << 15)
    if storage.width in (16, 32):
        return storage.signed and int(zero_points[0]) == 0
    return storage.width == 8
