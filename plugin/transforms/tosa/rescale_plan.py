"""Rescale factors, headroom and error bound of ``quant-legalize-to-tosa-rescale``.

`quant_legalize_to_tosa_rescale` derives the factors and the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...dialects.grids import scale_grid
from ...dialects.tosa import MIN_SHIFT
from ...numerics.element_types import AnyArray, Array
from ...numerics.fixed_point import multiplier_and_shift
from ...numerics.parameters import QuantizationParameters
from ..base import NoMatch
from ..quantization.math.operands import Operand

I32_MAX = (1 << 31) - 1
"""The greatest i32."""
_HEADROOM_BITS = {31: 20, 15: 12}
"""Headroom of operands, by the bits of multipliers."""
_MIN_DIVIDEND_BITS = 20
"""Headroom of a dividend below which it is divided in 64 bits."""
_ADDITIVE = ("stablehlo.add", "stablehlo.subtract")


@dataclass
class RescalePlan:
    """The factors of the rescales, and the integer steps between them.

    Attributes:
        factors: the factor of each operand's rescale.
        result: the factor of the result's rescale.
        raised: bits by which a dividend is shifted left, in 64 bits.
        drop: low bits that are dropped from a product or quotient of 64 bits.
        bound: the greatest distance from the exact result, in steps.
    """

    factors: list[Array]
    result: Array
    raised: int = 0
    drop: int = 0
    bound: Fraction = Fraction(0)


@dataclass(frozen=True)
class RescalePlanner:
    """The planning of the operation `name`, with multipliers of `bits` bits.

    `rounding_error` is the greatest error of a rescale's rounding, in steps.
    """

    name: str
    bits: int
    rounding_error: Fraction

    def plan(
        self, inputs: list[Operand], target: QuantizationParameters | None
    ) -> RescalePlan | NoMatch:
        """Choose the factors of the rescales of one operation; a comparison has no `target`."""
        name, bounds = self.name, [side.bound for side in inputs]
        scales: list[AnyArray] = [side.scales() for side in inputs]
        result_scale: AnyArray = 1 if target is None else scale_grid(target, inputs[0].rank)
        drop, raised, half = 0, 0, self.rounding_error
        if name == "stablehlo.abs":
            h = self._headroom(bounds[0], 0)
            factors, result = [_power(h)], scales[0] / result_scale / _power(h)
            greatest, inner = bounds[0] * _power(h), half * (h < 0)
        elif name == "stablehlo.multiply":
            factors, result = [_power(0), _power(0)], scales[0] * scales[1] / result_scale
            greatest = Fraction(bounds[0] * bounds[1])
            drop = self._dropped_bits(greatest, result, target)
            result = result * _power(drop)
            greatest, inner = min(greatest / _power(drop), Fraction(I32_MAX)), half * (drop > 0)
        elif name == "stablehlo.divide":
            h = self._headroom(bounds[0], self.bits - 1 - MIN_SHIFT)
            result = scales[0] / (scales[1] * result_scale)
            if h >= _MIN_DIVIDEND_BITS:
                factors, raised = [_power(h), _power(0)], 0
            else:
                h = raised = 62 - bounds[0].bit_length()
                factors = [_power(0), _power(0)]
            result = result / _power(h)
            greatest = bounds[0] * _power(h)
            drop = self._dropped_bits(greatest, result, target)
            result = result * _power(drop)
            greatest = min(greatest / _power(drop), Fraction(I32_MAX))
            inner = 1 / _power(drop) + half * (drop > 0)
        else:
            unit = np.maximum(scales[0], scales[1])
            unit = unit * 2 if name in _ADDITIVE else unit
            h = self._headroom(max(bounds), _HEADROOM_BITS[self.bits])
            factors = [scale / unit * _power(h) for scale in scales]
            result = unit / result_scale / _power(h)
            greatest = max(bounds) * _power(h)
            inner = 2 * half + greatest * sum(self._relative_error(f) for f in factors)
        plan = RescalePlan(
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
        """The greatest relative error of the multipliers of a factor."""
        exact = np.asarray(factor, object)
        multipliers, shifts = multiplier_and_shift(exact, self.bits)
        triples = zip(exact.flat, multipliers.flat, shifts.flat, strict=True)
        return max(abs(Fraction(int(m), 1 << int(s)) / Fraction(f) - 1) for f, m, s in triples)

    def _headroom(self, bound: int, limit: int) -> int:
        """The greatest exponent, up to `limit`, with which a difference stays below 2**31."""
        h = limit
        while bound * _power(h) + 2 >= 1 << 31:
            h -= 1
        return h

    def _dropped_bits(
        self, greatest: Fraction, factor: AnyArray, target: QuantizationParameters | None
    ) -> int:
        """The bits to drop from a product, so that values above 31 bits saturate the result."""
        assert target is not None  # only a comparison has none
        span = _span(target)
        least = min(np.asarray(factor, object).reshape(-1))
        drop = 0
        while greatest / _power(drop) > I32_MAX and least * _power(drop) * I32_MAX < span:
            drop += 1
        return drop


def _span(parameters: QuantizationParameters) -> int:
    """The greatest distance of a storage value from its zero point, and one."""
    storage, zero_points = parameters.storage, parameters.zero_points
    return 1 + max(
        storage.maximum - int(zero_points.min()), int(zero_points.max()) - storage.minimum
    )


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent
