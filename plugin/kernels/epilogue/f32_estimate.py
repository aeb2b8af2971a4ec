"""F32 estimates of requantizations to 8 bits, checked for nearness to ties.

Requantization to 8 bits and fewer costs more than a short accumulation where it is exact, but f32
nearly always rounds to the same result. With ``p = f32(d) * f32(M) + z``, rounded once or twice::

    clamp(round(p)) = clamp(round(d * M + z))     if |p - round(p)| < 1/2 - e

Rounding ``d``, ``M`` and their product is off by ``3 * 2**-24`` of it and a little, and so is
``p``, by ``2**-24`` of it: ``e = (3 R + S) * 2**-24 + 2**-19`` for a product of ``R`` and a result
of ``S`` at most exceeds the error and the ``2**-20`` that counts as a tie
(`subquant.numerics.requantization`); greater values are clamped, however they round. Fixed-point
multipliers are ``R * 2**-30`` off at most; a double rounding, whose first step rounds to multiples
of ``2**-(s - 31)`` for a shift ``s``, is off by ``2**-(s - 30)`` before its second step.

A kernel estimates several vectors together and narrows them to bytes together. Where an element is
nearer than ``e`` to a tie, the exact operations of its vector follow, as ``lower-requantization``
would emit them. N whose estimates are proved exact (`F32Requant`) need no check, and constants that
are added first become initial accumulators.

Models of TensorFlow Lite and of ONNX have their own roundings, as operations on integers. Those
that are proved to be a monotone requantization (`subquant.kernels.epilogue.requant_analysis`) are
estimated in the same way; near ties their operations run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...core._mlir import Operation
from ...dialects.integer_steps import RequantizedSum
from ...dialects.subquant import REQUANTIZE
from ...emit import ArrayLike
from ...emit.stablehlo_semantics import storage_element
from ...emit.vectors import reduce_lanes
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I8, I32, U8, Array
from ...numerics.fixed_point import multiplier_and_shift
from ...numerics.packed_integers import wrapped
from ...numerics.parameters import StorageType
from ..isa.base import InstructionSet
from .exact import ExactEpilogue, Operand, no_requantization
from .f32_requant_check import F32Requant
from .float_chain import FloatChain
from .matcher import EpilogueMatch
from .requant_analysis import MonotoneRequant, monotone_requant
from .tables import ChannelVectors, NotEmitted, Table

_DOUBLE_ROUNDINGS = ("gemmlowp", "tosa-double-round")
_SIGN_BIT = -(1 << 31)
"""The sign bit of an f32, as i32."""


@dataclass
class FastPathCheck:
    """Check that f32 estimates are far enough from ties.

    Attributes:
        needs_fallback: for each vector, True if some of its estimates are not proved exact.
        distances: distances of such estimates to the nearest integers.
        fallback_tolerance: the distance from a tie within which estimates may be wrong.
        is_exact: for each N, True if all estimates are proved exact.
        has_estimates: True after the first call of `round`.
    """

    isa: InstructionSet
    needs_fallback: Sequence[bool] = ()
    distances: list[ArrayLike] = field(default_factory=list)
    fallback_tolerance: float = 0.0
    is_exact: Array = field(default_factory=lambda: np.ones(1, bool))
    has_estimates: bool = False

    def fallback_by_vector(self, n: int, vectors: int) -> list[bool]:
        """For each of some vectors that are computed together, True if it has N to check."""
        lanes = self.isa.lanes
        is_exact = np.broadcast_to(self.is_exact, [n])
        padded = np.pad(is_exact, [(0, -n % (vectors * lanes))], constant_values=True)
        by_vector = padded.reshape((-1, vectors, lanes))
        return [not by_vector[:, vector].all() for vector in range(vectors)]

    def round(
        self, requant: F32Requant, forms: Sequence[ChannelVectors], operands: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Emit the estimates of some vectors, rounded to integers."""
        isa, rounded = self.isa, []
        for form, operand, needs_fallback in zip(forms, operands, self.needs_fallback, strict=True):
            x = convert(operand, F32)
            slope, offset = (form.known(n, F32) for n in (requant.f32_slope, requant.f32_offset))
            real = isa.fma(x, slope, offset)
            if requant.f32_sign_offset is not None:
                magnitude = bits_of(form.known(requant.f32_sign_offset, F32), I32)
                real = real + bits_of(magnitude | (bits_of(x, I32) & _SIGN_BIT), F32)
            real = isa.clamp_for_rounding(real, requant.max_real, requant.low, requant.high)
            rounded.append(isa.round_to_i32(real))
            if needs_fallback and not requant.is_exact.all():
                self.distances.append(isa.distance_to_integer(real))
        self.fallback_tolerance = max(self.fallback_tolerance, requant.fallback_tolerance)
        self.has_estimates = True
        self.is_exact = self.is_exact & requant.is_exact
        return rounded

    def is_near_tie(self, form: ChannelVectors) -> ArrayLike | None:
        """True if an estimate is too near to a tie; None if all are proved exact."""
        if not self.distances:
            return None
        greatest = self.isa.max_magnitude(self.distances)
        limit = form.known(np.full(1, 0.5 - self.fallback_tolerance, np.float32), F32)
        return reduce_lanes("or", greatest >= limit)


class F32Epilogue:
    """Emitter of f32 estimates of an epilogue, and the analysis that they rest on."""

    def __init__(self, match: EpilogueMatch) -> None:
        self.match, self.exact = match, ExactEpilogue(match)
        self.table_cache: dict[Hashable, Table | int | float] = {}
        self._requants: dict[Hashable, F32Requant | None] = {}

    @cached_property
    def initial_accumulators(self) -> Array | None:
        """Constants that accumulators start with, a grid; None for 0."""
        match = self.match
        if not match.folds_bias or storage_element(match.accumulators.type) != I32:
            return None
        if not self._has_requantize and self._monotone and self._monotone_f32:
            return wrapped(self._monotone.added.astype(np.int64), I32.bits)
        addend = self.exact.leading_addend
        return wrapped(addend, I32.bits) if addend.any() else None

    def emit(self, form: ChannelVectors, accumulators: ArrayLike) -> ArrayLike:
        """Emit the exact operations on a vector of accumulators."""
        return self.exact.emit(form, accumulators, self.initial_accumulators)

    def estimate(
        self,
        forms: Sequence[ChannelVectors],
        accumulators: Sequence[ArrayLike],
        isa: InstructionSet,
        needs_fallback: Sequence[bool],
    ) -> tuple[ArrayLike, FastPathCheck]:
        """Emit the estimates of vectors of accumulators.

        Args:
            forms: the N of each vector.
            accumulators: at most as many vectors as are narrowed together.
            needs_fallback: for each vector, True if some of its estimates are not proved exact.

        Returns:
            The results, concatenated, and the check that they are valid.

        Raises:
            NotEmitted: there is no estimate.
        """
        if self._chain is not None:
            return self._emit_chain(forms, accumulators, isa), FastPathCheck(isa)
        if not self._has_requantize:
            return self._estimate_monotone(forms, accumulators, isa, needs_fallback)
        check = FastPathCheck(isa, needs_fallback)

        def emit_requantize(op: Operation, operands: Sequence[Operand]) -> Operand:
            requant, vectors = self._requant_of(op, isa), operands[0]
            if requant is None or not isinstance(vectors, list) or len(vectors) != len(forms):
                raise NotEmitted
            storage = self.exact.requantizations[op].storage
            return [self._narrowed(check.round(requant, forms, vectors), storage, isa)]

        results = self.exact.apply(
            accumulators, self.match.operations, emit_requantize, self.initial_accumulators
        )
        if not check.has_estimates or len(results) > 1:
            raise NotEmitted
        return results[0], check

    @cached_property
    def _chain(self) -> FloatChain | None:
        return FloatChain.of(self.match, self.exact.leading_addend)

    def _emit_chain(
        self,
        forms: Sequence[ChannelVectors],
        accumulators: Sequence[ArrayLike],
        isa: InstructionSet,
    ) -> ArrayLike:
        """Emit a chain of f32 operations, which needs no check; see `estimate`."""
        chain = self._chain
        assert chain is not None  # `estimate`
        results = chain.emit(forms, accumulators, isa, self.initial_accumulators)
        if chain.storage is not None:
            element = storage_element(self.match.result.type)
            assert element is not None  # `EpilogueMatch.of`
            return bits_of(self._narrowed(results, chain.storage, isa), element)
        if len(results) > 1:
            raise NotEmitted
        return results[0]

    def _estimate_monotone(
        self,
        forms: Sequence[ChannelVectors],
        accumulators: Sequence[ArrayLike],
        isa: InstructionSet,
        needs_fallback: Sequence[bool],
    ) -> tuple[ArrayLike, FastPathCheck]:
        """Emit the estimates of a monotone requantization; see `estimate`."""
        monotone, requant = self._monotone, self._monotone_requant(isa)
        if monotone is None or requant is None:
            raise NotEmitted
        check, x = FastPathCheck(isa, needs_fallback), list(accumulators)
        if self.initial_accumulators is None:
            added = monotone.added.astype(np.int64)
            x = [each + form.known(added, I32) for form, each in zip(forms, x, strict=True)]
        integers = check.round(requant, forms, x)
        narrow, rest = self._head[-1].results[0], self.match.operations[len(self._head) :]
        element = storage_element(narrow.type)
        assert element is not None  # it has 8 bits
        storage = StorageType(8, monotone.low < 0, monotone.low, monotone.high)
        result = bits_of(self._narrowed(integers, storage, isa), element)
        if rest:
            [result] = self.exact.apply([result], rest, no_requantization, of=narrow)
        return result, check

    def _narrowed(
        self, integers: Sequence[ArrayLike], storage: StorageType, isa: InstructionSet
    ) -> ArrayLike:
        """Vectors of integers as one vector of bytes, clamped to the storage range."""
        packed = isa.narrow_to_8_bits(integers, I8 if storage.signed else U8)
        form = ChannelVectors(packed.form.lanes, self.match.n, _no_tables)
        bytes_ = form.emitted(packed.value, packed.element)
        low, high = (-128, 127) if storage.signed else (0, 255)
        if storage.minimum > low:
            bytes_ = np.maximum(bytes_, storage.minimum)
        if storage.maximum < high:
            bytes_ = np.minimum(bytes_, storage.maximum)
        return convert(bytes_, storage.element)

    @property
    def _has_requantize(self) -> bool:
        return any(op.name in REQUANTIZE for op in self.match.operations)

    # -- ``subquant.requantize`` -------------------------------------------------------------------

    def _requant_of(self, op: Operation, isa: InstructionSet) -> F32Requant | None:
        """The f32 requantization of an operation; None if there is no estimate."""
        key = op, isa.has_fma
        if key in self._requants:
            return self._requants[key]
        requantized, requant = self.exact.requantizations[op], None
        tolerance, storage = self._fallback_tolerance(requantized), requantized.storage
        if tolerance is not None:
            (term,) = requantized.terms
            clamp, bound = (storage.minimum, storage.maximum), min(term.bound, (1 << 31) - 1)
            x_range = np.array(-bound), np.array(bound)
            slope = term.multiplier.astype(np.float64)
            requant = F32Requant.of(slope, requantized.zero_points, None, clamp, x_range, tolerance)

            def evaluate(x: Array) -> Array:
                rounded = requantized.rounded([x], self.match.requantization)
                return np.asarray(np.clip(rounded.value, *clamp))

            if requant is not None and isa.has_fma:
                requant = requant.proved(evaluate)
        self._requants[key] = requant
        return requant

    def _fallback_tolerance(self, requantized: RequantizedSum) -> float | None:
        """The ``e`` of the module's text; None if there is no estimate."""
        is_8_bit = requantized.storage.width <= U8.bits
        if self.match.integer_only or len(requantized.terms) > 1 or not is_8_bit:
            return None
        (term,) = requantized.terms
        multiplier = term.multiplier.astype(np.float64)
        is_normal = multiplier.size and multiplier.min() > 2.0**-64 and multiplier.max() < 2.0**64
        if not is_normal or term.bound > 1 << 31:
            return None
        limits = (requantized.storage.minimum, requantized.storage.maximum)
        reach = 1 + max(int(np.abs(limit - requantized.zero_points).max()) for limit in limits)
        greatest = 1 + max(abs(limit) for limit in limits)
        tolerance = (3 * reach + greatest) * 2.0**-24 + 2.0**-19
        if self.match.requantization.kind == "fixed-point":
            _, shift = multiplier_and_shift(term.multiplier)
            tolerance += reach * 2.0**-30
            if self.match.requantization.rounding in _DOUBLE_ROUNDINGS:
                tolerance += 2.0 ** -min(int(shift.min()) - 30, 64)
        return tolerance

    # -- monotone requantization -------------------------------------------------------------------

    @cached_property
    def _head(self) -> tuple[Operation, ...]:
        """The integer operations up to the first result of 8 bits; none if there are none."""
        for index, op in enumerate(self.match.operations):
            element = storage_element(op.results[0].type)
            if element == F32:
                break
            if element in (I8, U8):
                return self.match.operations[: index + 1]
        return ()

    @cached_property
    def _monotone(self) -> MonotoneRequant | None:
        """The monotone requantization that `_head` is proved to be."""
        match, head = self.match, self._head
        if match.integer_only or match.accumulator_bounds is None or not head:
            return None
        shape = [1] * len(match.accumulators.type.shape)
        shape[match.axis] = match.n
        return monotone_requant(
            head,
            match.accumulators,
            match.constants,
            match.accumulator_bounds().reshape(shape),
            lambda value: storage_element(value.type),
            self._evaluate_head,
        )

    def _evaluate_head(self, accumulators: Array) -> Array:
        [result] = self.exact.apply([accumulators], self._head, no_requantization)
        return np.asarray(result)

    @cached_property
    def _monotone_f32(self) -> F32Requant | None:
        """The estimate of the monotone requantization, with the nearest floats."""
        monotone = self._monotone
        if monotone is None:
            return None
        clamp, added = (monotone.low, monotone.high), monotone.added.astype(np.int64)
        x_range = added - monotone.bounds, added + monotone.bounds
        # As in the module's text, ``3 R + S`` parts in ``2**24``; the offset is rounded too, and a
        # sign offset rounds the sum once more.
        reach = 1 + max(float(np.abs(limit - monotone.offset).max()) for limit in clamp)
        greatest = 1 + max(map(abs, clamp))
        units = 3 * reach + 2 * greatest + float(np.abs(monotone.offset).max())
        tolerance = units * 2.0**-24 + 2.0**-20 + monotone.fallback_tolerance
        sign_offset = monotone.sign_offset if monotone.sign_offset.any() else None
        requant = F32Requant.of(
            monotone.slope, monotone.offset, sign_offset, clamp, x_range, tolerance
        )
        fits_i32 = x_range[0].min() > -(1 << 31) and x_range[1].max() < 1 << 31
        return requant if fits_i32 else None

    def _monotone_requant(self, isa: InstructionSet) -> F32Requant | None:
        """The estimate of the monotone requantization, proved where FMA rounds once."""
        monotone, requant = self._monotone, self._monotone_f32
        if monotone is None or requant is None or not isa.has_fma:
            return requant
        if None not in self._requants:

            def evaluate(x: Array) -> Array:
                results = self._evaluate_head(x - monotone.added.astype(np.int64)).astype(np.int64)
                return results if monotone.low < 0 else results & 255

            self._requants[None] = requant.proved(evaluate)
        return self._requants[None]


def _no_tables(table: Table) -> ArrayLike:
    """Refuse to read a table: concatenated vectors are not consecutive N."""
    raise NotEmitted
