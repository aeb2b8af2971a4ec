"""``quant-legalize-to-tosa-rescale``: quantized elementwise StableHLO as rescales and integers.

Each operand is rescaled to 32-bit integers of a scale that suits the operation, the integer
StableHLO operation follows, and its result is rescaled to the result's parameters. With ``d = q -
zero point``, scales ``s1``, ``s2`` of the operands and ``s`` of the result, and ``h`` bits of
headroom:

| operation | operands are rescaled by | the result by |
|---|---|---|
| abs | 1 | ``s1 / s`` |
| add, subtract | ``2**h s1 / M`` and ``2**h s2 / M``, ``M = 2 max(s1, s2)`` | ``M / s / 2**h`` |
| maximum, minimum | ``2**h s1 / M`` and ``2**h s2 / M``, ``M = max(s1, s2)`` | ``M / s / 2**h`` |
| compare | as maximum | |
| multiply | 1 and 1 | ``s1 * s2 / s`` |
| divide | ``2**h`` and 1 | ``s1 / (s2 * s) / 2**h`` |

``h`` is 20, or what 32 bits leave (15 for 16-bit operands); 12 with multipliers of 15 bits, whose
shift could not be TOSA's least otherwise. For divide it is as much as 32 bits leave; if that is
less than 20, the dividend is shifted left and divided in 64.

Accuracy. An operand's rounding is half of an intermediate step, which is ``2**-h`` of the greater
scale (a quotient is cut off: a whole one), and a multiplier is right to ``2**-31`` of itself (or
``2**-15``). The sum of these errors in steps of the result, and the half step of the last rounding,
bound the distance from the exact result: below 1.5 a result is at most one step away from the
rounded exact one. ``explain=true`` reports operations for whose scales it is more, as with 32-bit
storage.

* A product or quotient of more than 32 bits is taken in 64, and shifted right until what does not
  fit 32 bits saturates the result anyway; the multiplier makes up for the shift.
* Division by zero saturates with the sign of the dividend, ``0 / 0`` gives the storage value 0 (as
  a NaN does), and nothing is divided by zero.
* TOSA has zero points for 8 bits (and 32768 for unsigned 16), one a tensor, integers of 8, 16 and
  32 bits, and no ranges. Where the types need more, differences, zero points and clamps are
  StableHLO operations, and the rescale is from 32 bits to 32.
* Scales along an axis become a ``per_channel`` rescale, between transpositions if the axis is not
  the last one.

Left alone, as by the C++ pass of this purpose: other operations (``explain=true`` says why for
quantized ones), also operations in the bodies of reductions. The C++ pass has ``s1 * s2 / s`` for
divide, and divides integers without headroom; that is wrong.

Options: ``rounding``: ``single``, ``double`` or ``inexact``; ``scale32``: multipliers of 31 bits,
or of 15 (which have no double rounding); ``types=quantized``: rescales take and give values of
quantized types where TOSA's verifier accepts them, as the C++ pass writes them, and not storage,
which IREE needs; ``explain``.

Before::

    %r = stablehlo.add %x, %y : (tensor<4x!q1>, tensor<4x!q2>) -> tensor<4x!q3>

After::

    %a = tosa.rescale %xs, %m1, %k1, %z1, %zero {...} : (tensor<4xi8>, ...) -> tensor<4xi32>
    %b = tosa.rescale %ys, %m2, %k2, %z2, %zero {...} : (tensor<4xi8>, ...) -> tensor<4xi32>
    %c = stablehlo.add %a, %b : tensor<4xi32>
    %rs = tosa.rescale %c, %m3, %k3, %zero, %z3 {...} : (tensor<4xi32>, ...) -> tensor<4xi8>

Sources: TOSA specification 1.0, ``RESCALE``; StableHLO documentation, "Quantization", section on
TOSA; StableHLO specification for what each operation means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.grids import scale_grid, zero_point_grid
from ...dialects.quant import element_type, is_quantized, parameters_of, storage_mlir_type
from ...dialects.tosa import MIN_SHIFT
from ...emit import ArrayLike, as_quantized, linalg, stablehlo, stored, tensor, value
from ...emit.operation import mlir_type, with_element
from ...emit.tosa import create_rescale
from ...errors import Remark, UsageError
from ...numerics.array_functions import convert
from ...numerics.element_types import I32, I64, AnyArray, Array
from ...numerics.fixed_point import multiplier_and_shift
from ...numerics.parameters import QuantizationParameters
from ..base import ModulePass, NoMatch, walk
from ..quantization.math.operands import Operand, difference_of_blocks

__all__ = ["QuantLegalizeToTosaRescale"]

_MODES = {"single": "SINGLE_ROUND", "double": "DOUBLE_ROUND", "inexact": "INEXACT_ROUND"}
_HEADROOM = {31: 20, 15: 12}
_ENOUGH = 20  # bits below the last one of a dividend; with fewer it is divided in 64 bits
_I32_MAX = (1 << 31) - 1
_REPORTED = Fraction(3, 2)  # below, an integer is at most one step from the rounded exact one

_ADDITIVE = ("stablehlo.add", "stablehlo.subtract")
_EXTREMA = ("stablehlo.maximum", "stablehlo.minimum")
_OPERATIONS = (
    *_ADDITIVE,
    *_EXTREMA,
    "stablehlo.abs",
    "stablehlo.compare",
    "stablehlo.divide",
    "stablehlo.multiply",
)
_PLAIN_PARENTS = frozenset(
    ("builtin.module", "func.func", "stablehlo.case", "stablehlo.if", "stablehlo.while")
)


@dataclass(frozen=True)
class QuantLegalizeToTosaRescale(ModulePass):
    """Write quantized elementwise operations as ``tosa.rescale`` and integer operations.

    Args:
        rounding: ``single``, ``double`` or ``inexact``.
        scale32: whether multipliers have 31 bits and not 15.
        types: ``storage`` or ``quantized``: what rescales take and give.
        explain: return a remark on each quantized operation that is left alone, and on each whose
            result may be more than one step from the exact one.
    """

    name: ClassVar[str] = "quant-legalize-to-tosa-rescale"

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
            if not any(is_quantized(value.type) for value in op.operands):
                continue
            if not op.name.startswith("stablehlo."):
                continue
            with op.location, ir.InsertionPoint(op):
                outcome = _Elementwise(op, self).rewrite()
            if isinstance(outcome, NoMatch):
                remarks.append(Remark.about(op, f"is left alone: {outcome.reason}"))
                continue
            if outcome.bound >= _REPORTED:
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


# -- one operation --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rewritten:
    """The value that takes the operation's place, and its distance from the exact one in steps."""

    value: Value
    bound: Fraction = Fraction(0)


class _Elementwise:
    """The rewriting of one operation: decided first, then built.

    `Operand` is used for what it knows of the parameters; values are made when all is decided.
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
            Operand(value, found)
            for value, found in zip(op.operands, parameters, strict=True)
            if found is not None
        ]
        axes = {found.axes for found in (*parameters, target) if found is not None and found.axes}
        if len(axes) > 1:
            return NoMatch("its types are quantized along different axes")
        for side in (*inputs, *([Operand(op.results[0], target)] if target else [])):
            if side.bound > _I32_MAX and not _has_rescale(side.parameters):
                element = element_type(side.quantized.type)
                return NoMatch(f"'{element}' less its zero point needs more than 32 bits")
        plan = self._plan(inputs, target)
        if isinstance(plan, NoMatch):
            return plan
        return self._build(inputs, plan, target)

    # -- deciding ---------------------------------------------------------------------------------

    def _plan(
        self, inputs: list[Operand], target: QuantizationParameters | None
    ) -> _Plan | NoMatch:
        """Decide the factors of the rescales."""
        name, bounds = self.op.name, [side.bound for side in inputs]
        scales: list[AnyArray] = [side.scales() for side in inputs]
        wanted: AnyArray = 1 if target is None else scale_grid(target, inputs[0].rank)
        drop, raised, half = 0, 0, self.rounding_error
        if name == "stablehlo.abs":
            h = self._headroom(bounds[0], 0)
            factors, result = [_power(h)], scales[0] / wanted / _power(h)
            greatest, inner = bounds[0] * _power(h), half * (h < 0)
        elif name == "stablehlo.multiply":
            factors, result = [_power(0), _power(0)], scales[0] * scales[1] / wanted
            greatest = Fraction(bounds[0] * bounds[1])
            drop = self._dropped_bits(greatest, result, target)
            result = result * _power(drop)
            greatest, inner = min(greatest / _power(drop), Fraction(_I32_MAX)), half * (drop > 0)
        elif name == "stablehlo.divide":
            h = self._headroom(bounds[0], self.bits - 1 - MIN_SHIFT)
            result = scales[0] / (scales[1] * wanted)
            if h >= _ENOUGH:
                factors, raised = [_power(h), _power(0)], 0
            else:
                h = raised = 62 - bounds[0].bit_length()
                factors = [_power(0), _power(0)]
            result = result / _power(h)
            greatest = bounds[0] * _power(h)
            drop = self._dropped_bits(greatest, result, target)
            result = result * _power(drop)
            greatest = min(greatest / _power(drop), Fraction(_I32_MAX))
            inner = 1 / _power(drop) + half * (drop > 0)
        else:
            unit = np.maximum(scales[0], scales[1])
            unit = unit * 2 if name in _ADDITIVE else unit
            h = self._headroom(max(bounds), _HEADROOM[self.bits])
            factors = [scale / unit * _power(h) for scale in scales]
            result = unit / wanted / _power(h)
            greatest = max(bounds) * _power(h)
            inner = 2 * half + greatest * sum(self._relative_error(f) for f in factors)
        plan = _Plan(
            [np.asarray(f, object) for f in factors], np.asarray(result, object), raised, drop
        )
        for factor in (*plan.factors, *([plan.result] if target else [])):
            if (multiplier_and_shift(factor, self.bits)[1] < MIN_SHIFT).any():
                return NoMatch(
                    f"a factor of {float(max(factor.reshape(-1))):.3g} between its scales is more "
                    f"than a multiplier of {self.bits} bits and a shift of {MIN_SHIFT} can be"
                )
        if target is not None:
            unit = max(plan.result.reshape(-1))
            outer = min(greatest * unit, Fraction(_span(target)))
            plan.bound = unit * inner + outer * self._relative_error(plan.result) + half
        return plan

    def _relative_error(self, factor: AnyArray) -> Fraction:
        """The greatest error of the multipliers, relative to the factors they stand for."""
        exact = np.asarray(factor, object)
        multipliers, shifts = multiplier_and_shift(exact, self.bits)
        triples = zip(exact.flat, multipliers.flat, shifts.flat, strict=True)
        return max(abs(Fraction(int(m), 1 << int(s)) / Fraction(f) - 1) for f, m, s in triples)

    def _headroom(self, bound: int, most: int) -> int:
        """The greatest exponent, up to `most`, with which a difference stays below 2**31."""
        h = most
        while bound * _power(h) + 2 >= 1 << 31:
            h -= 1
        return h

    def _dropped_bits(
        self, greatest: Fraction, factor: AnyArray, target: QuantizationParameters | None
    ) -> int:
        """The bits to drop from a product, so that what is above 31 bits saturates the result."""
        assert target is not None  # only a comparison has none
        span = _span(target)
        least = min(np.asarray(factor, object).reshape(-1))
        drop = 0
        while greatest / _power(drop) > _I32_MAX and least * _power(drop) * _I32_MAX < span:
            drop += 1
        return drop

    # -- building ---------------------------------------------------------------------------------

    def _build(
        self, inputs: list[Operand], plan: _Plan, target: QuantizationParameters | None
    ) -> _Rewritten:
        op = self.op
        values = [
            self._rescale_input(side, factor)
            for side, factor in zip(inputs, plan.factors, strict=True)
        ]
        if target is None:
            return _Rewritten(self._compare(values))
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
        if (factor == 1).all():
            return difference
        return self._rescale(difference, i32, factor)

    def _rescale_result(self, given: Value, plan: _Plan, target: QuantizationParameters) -> Value:
        """The nearest storage values, as storage or in the quantized type."""
        storage = target.storage
        if _has_rescale(target) and not storage.is_narrowed:
            quantized = self._takes_quantized(target)
            type_ = self.op.results[0].type
            element = element_type(type_) if quantized else storage_mlir_type(storage)
            zero_point = int(target.zero_points.reshape(-1)[0])
            unsigned = (False, not storage.signed)
            return self._rescale(given, element, plan.result, (0, zero_point), unsigned)
        scaled = tensor(self._rescale(given, mlir_type(I32), plan.result))
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
        given: Value,
        element: ir.Type,
        factor: Array,
        zero_points: tuple[int, int] = (0, 0),
        unsigned: tuple[bool, bool] = (False, False),
    ) -> Value:
        """Create a rescale; factors along an axis that is not the last one need a transposition."""
        multipliers, shifts = multiplier_and_shift(factor, self.bits)
        axis = next((axis for axis, n in enumerate(factor.shape) if n != 1), None)
        rank = len(given.type.shape)
        order = list(range(rank))
        if axis is not None:
            order = [*order[:axis], *order[axis + 1 :], axis]
        moved = stablehlo.transpose(given, order)
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

    # -- the operations that need more than one integer operation ---------------------------------

    def _compare(self, values: list[Value]) -> Value:
        direction = str(self.op.attributes["comparison_direction"]).split()[-1].rstrip(">")
        left, right = values
        return stablehlo.compare(direction, "SIGNED", left, right, self.op.results[0].type)

    def _multiply(self, values: list[Value], inputs: list[Operand], drop: int) -> Value:
        left, right = (tensor(number) for number in values)
        if inputs[0].bound * inputs[1].bound <= _I32_MAX:
            return (left * right).value
        return _narrowed(convert(left, I64) * convert(right, I64), drop).value

    def _divide(self, values: list[Value], plan: _Plan, target: QuantizationParameters) -> Value:
        """The quotient, rescaled; what a divisor of zero gives is chosen afterwards."""
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
        known = nearest.form.known
        nan, highest, lowest = (
            known(number, storage.element)
            for number in (
                min(max(0, storage.minimum), storage.maximum),
                storage.maximum,
                storage.minimum,
            )
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
    return convert(np.minimum(np.maximum(wide, -_I32_MAX - 1), _I32_MAX), I32)


@dataclass
class _Plan:
    """The factors of the rescales, and what happens between them.

    Attributes:
        raised: bits that a dividend gets below its last one, in 64 bits.
        drop: bits that a product or quotient of 64 bits loses there.
        bound: the greatest distance from the exact result, in steps.
    """

    factors: list[Array]
    result: Array
    raised: int = 0
    drop: int = 0
    bound: Fraction = Fraction(0)


def _has_rescale(parameters: QuantizationParameters) -> bool:
    """True where TOSA rescales the storage type with this zero point, which must be one."""
    storage, zero_points = parameters.storage, parameters.zero_points.reshape(-1)
    if (zero_points != zero_points[0]).any():
        return False
    if storage.width == 16 and not storage.signed:
        return int(zero_points[0]) in (0, 1 << 15)
    if storage.width in (16, 32):
        return storage.signed and int(zero_points[0]) == 0
    return storage.width == 8


def _span(parameters: QuantizationParameters) -> int:
    """The greatest distance of a storage value from its zero point, and one."""
    storage, zero_points = parameters.storage, parameters.zero_points
    return 1 + max(
        storage.maximum - int(zero_points.min()), int(zero_points.max()) - storage.minimum
    )


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent
