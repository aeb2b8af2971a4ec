"""``legalize-quant-to-math``: StableHLO on quantized values becomes StableHLO on integers.

What is linear in the reals is computed on differences of storage values and zero points, which are
integers, and requantized once at the end, exactly (`requantization`): add, subtract, multiply,
negate, abs, contractions (`quantized_contraction`), reductions (`quantized_reduction`), changes of
parameters. What only compares or moves values works on the storage, after a change of parameters
where operands have others than the result. Any other function is a table where its operands have
few values (`lookup_tables`); else it is computed in the expressed type, between a dequantization
and a quantization, as the specification defines it.

Quantized values and their storage are connected by ``subquant.scast``; operations that only move
data are checked here and keep their quantized types until ``convert-quantized-to-storage``.

Before::

    %s = stablehlo.add %x, %y : (tensor<4x!quant.uniform<i8:f32, 0.5:3>>,
                                 tensor<4x!quant.uniform<i8:f32, 0.25>>)
           -> tensor<4x!quant.uniform<i8:f32, 1.0:-1>>

After (``0.5 * (x - 3) + 0.25 * y``, rounded half to even, minus 1, saturated)::

    %0 = "subquant.scast"(%x) : (tensor<4x!quant.uniform<i8:f32, 0.5:3>>) -> tensor<4xi8>
    %1 = stablehlo.convert %0 : (tensor<4xi8>) -> tensor<4xi32>
    %2 = stablehlo.subtract %1, %c3 : tensor<4xi32>
    ...
    %q = stablehlo.convert %9 : (tensor<4xi32>) -> tensor<4xi8>
    %s = "subquant.scast"(%q) : (tensor<4xi8>) -> tensor<4x!quant.uniform<i8:f32, 1.0:-1>>

Sources: StableHLO specification, "Quantization computations" and each operation's section.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from .._mlir import ir
from ..dialects.quant import element_type, is_quantized, parameters_of, storage_mlir_type
from ..errors import UnsupportedError
from ..numerics.element_types import Array
from ..numerics.fixed_point import FixedPointRounding
from ..numerics.parameters import ExpressedType, QuantizationParameters
from ..options import RequantizationForm, ZeroPoints
from . import lookup_tables
from .arithmetic import Division
from .base import ModulePass, NoMatch, Pattern, apply_patterns, walk
from .quantized_contraction import Contractions
from .quantized_reduction import ELEMENTWISE_BODIES, legalize_reductions
from .quantized_values import (
    Operand,
    as_quantized,
    dequantize,
    dequantize_as,
    dequantize_blocks,
    finish,
    float_type,
    quantize,
    quantize_blocks,
    same_values,
    scale_grid,
    split_blocks,
    stored,
    zero_point_grid,
)
from .requantization import Requantization, Term, resize
from .tensor_builder import TensorBuilder

__all__ = ["LegalizeQuantToMath"]

_LT, _GT = 2, 4  # arith.cmpi predicates
_OEQ, _OGE, _OLT = 1, 3, 4  # arith.cmpf predicates
_F16_OVERFLOW = 65520  # what rounds to infinity in f16


@dataclass(frozen=True)
class LegalizeQuantToMath(ModulePass):
    """Write every StableHLO operation on quantized values with integers.

    Options:
        division: as of ``lower-quant-casts``.
        casts: what becomes of ``quant`` casts: ``keep`` leaves them to ``lower-quant-casts``,
            ``stablehlo`` writes them in operations that StableHLO's interpreter knows.
        requantization: ``exact``, or ``fixed-point``: one 31-bit multiplier and shift a factor, at
            most one step from exact.
        fixed_point_rounding: one of `subquant.numerics.fixed_point.ROUNDINGS`.
        zero_points: ``after`` corrects a contraction by the sums of rows and columns, ``inside``
            contracts storage values minus zero points, ``mixed`` does so where the right operand
            has no zero point.
        steps: leave ``subquant.subtract_zero_point`` at the operands of contractions, and
            ``subquant.requantize`` at results, for ``correct-zero-points``,
            ``lower-requantization`` and ``lower-saturation``. What is wider than f64 can express
            exactly (products of f64 scales) is written at once.
    """

    name: ClassVar[str] = "legalize-quant-to-math"

    division: Division = "native"
    casts: Literal["keep", "stablehlo"] = "keep"
    requantization: RequantizationForm = "exact"
    fixed_point_rounding: FixedPointRounding = "half-up"
    zero_points: ZeroPoints = "after"
    steps: bool = False

    def run(self, module: ir.Operation) -> None:
        """Legalize `module`.

        Raises:
            UnsupportedError: an operation that has no meaning for its quantized types.
        """
        operations = walk(module)
        roots = ("stablehlo.", *_CASTS) if self.casts == "stablehlo" else "stablehlo."
        if not any(op.name.startswith(roots) for op in operations):
            return
        legalize_reductions(operations)
        apply_patterns(module, _Legalizer(self).patterns())


_CASTS = ("quant.", "subquant.")


class _Legalizer:
    """The patterns of one run."""

    def __init__(self, options: LegalizeQuantToMath) -> None:
        self._division = options.division
        self._casts = options.casts
        self._requantization = Requantization(
            options.requantization == "exact",
            options.fixed_point_rounding,
            "requantize" if options.steps else "nothing",
        )
        self._contractions = Contractions(
            options.division,
            self._requantization,
            None if options.steps else options.zero_points,
        )

    def patterns(self) -> dict[str, Pattern]:
        """Operation name to pattern."""
        named: dict[str, Callable[[Any], Any]] = {
            "abs": self.absolute,
            "add": self.add,
            "clamp": self.clamp,
            "compare": self.compare,
            "composite": self.composite,
            "convolution": self._contractions.legalize,
            "dot": self._contractions.legalize,
            "dot_general": self._contractions.legalize,
            "dynamic_conv": self._contractions.legalize,
            "dynamic_iota": self.iota,
            "iota": self.iota,
            "is_finite": self.is_finite,
            "maximum": self.extremum,
            "minimum": self.extremum,
            "multiply": self.multiply,
            "negate": self.negate,
            "reduce_precision": self.reduce_precision,
            "select": self.select,
            "sign": self.sign,
            "subtract": self.subtract,
            "uniform_dequantize": self.uniform_dequantize,
            "uniform_quantize": self.uniform_quantize,
        }
        named |= dict.fromkeys(lookup_tables.UNARY_FUNCTIONS, self.unary)
        named |= dict.fromkeys(lookup_tables.BINARY_FUNCTIONS, self.binary)
        named |= dict.fromkeys(_THROUGH_FLOAT, self.through_float)
        named |= dict.fromkeys(_MOVES_DATA, self.move)
        named |= dict.fromkeys(_REFUSED, self.refuse)
        patterns = {f"stablehlo.{name}": self._pattern(f) for name, f in named.items()}
        if self._casts == "stablehlo":
            casts = {"qcast": self.quant_qcast, "dcast": self.quant_dcast}
            for dialect in ("quant", "subquant"):
                patterns |= {f"{dialect}.{n}": self._pattern(f) for n, f in casts.items()}
        return patterns

    @staticmethod
    def _pattern(lower: Callable[[Any], Any]) -> Pattern:
        """A pattern for operations that touch quantized values; `lower` returns the new results."""

        def pattern(op: Any, rewriter: Any) -> NoMatch | None:
            if not any(is_quantized(value.type) for value in (*op.operands, *op.results)):
                return NoMatch("touches no quantized value")
            results = lower(op)
            if results is None:
                return NoMatch("keeps its quantized types")
            rewriter.replace_op(op, results if isinstance(results, list) else [results])
            return None

        return pattern

    # -- casts ------------------------------------------------------------------------------------

    def uniform_quantize(self, op: Any) -> Any:
        """Quantize reals, or change parameters."""
        (source,), target = op.operands, _result(op)
        if is_quantized(source.type):
            operand = Operand.of(source, op)
            return as_quantized(
                operand.requantized(target, self._requantization), op.results[0].type
            )
        return as_quantized(quantize(source, target, op, self._division), op.results[0].type)

    def uniform_dequantize(self, op: Any) -> Any:
        """``(storage - zero point) * scale`` in the expressed type."""
        return _cast(dequantize(op.operands[0], op, self._division), op.results[0].type)

    def quant_qcast(self, op: Any) -> Any:
        """``quant.qcast`` of any granularity, on a ranked tensor of a static shape."""
        target = parameters_of(op.results[0].type, op)
        assert target is not None  # verified before
        value, restore = split_blocks(op.operands[0], target, op)
        return as_quantized(
            restore(quantize_blocks(value, target, op, self._division)), op.results[0].type
        )

    def quant_dcast(self, op: Any) -> Any:
        """``quant.dcast`` of any granularity, on a ranked tensor of a static shape."""
        source = parameters_of(op.operands[0].type, op)
        assert source is not None  # verified before
        value, restore = split_blocks(stored(op.operands[0]), source, op)
        return _cast(
            restore(dequantize_blocks(value, source, op, self._division)), op.results[0].type
        )

    # -- linear operations ------------------------------------------------------------------------

    def add(self, op: Any) -> Any:
        """``x + y``."""
        return self._linear(op, [1, 1])

    def subtract(self, op: Any) -> Any:
        """``x - y``."""
        return self._linear(op, [1, -1])

    def negate(self, op: Any) -> Any:
        """``-x``."""
        return self._linear(op, [-1])

    def absolute(self, op: Any) -> Any:
        """``|x|``: scales are positive, so it is that of the difference."""
        operand, b = _operands(op)[0], _builder(op)
        difference = operand.difference(b)
        zero = b.constant(0, difference.type)
        negated = b.op("arith.subi", [zero, difference], difference.type)
        magnitude = b.op("arith.maxsi", [difference, negated], difference.type)
        return self._finished(op, b, [Term(magnitude, operand.bound, operand.scales())])

    def multiply(self, op: Any) -> Any:
        """``x * y``: the product of the differences, times both scales."""
        left, right = _operands(op)
        b = _builder(op)
        scales = left.scales() * right.scales()
        terms = []
        for value, bound, factor in _parts(b, right):
            wide = b.i64 if left.bound * bound >= 1 << 31 else b.i32
            factors = [resize(b, v, wide) for v in (left.difference(b), value)]
            product = b.op("arith.muli", factors, wide)
            terms.append(Term(product, left.bound * bound, scales * Fraction(factor)))
        return self._finished(op, b, terms)

    def sign(self, op: Any) -> Any:
        """-1, 0 or 1, of which the result's storage has one value each."""
        operand, b, target = _operands(op)[0], _builder(op), _result(op)
        difference = operand.difference(b)
        zero = b.constant(0, difference.type)
        values = []
        for real in (-1, 0, 1):
            grid = scale_grid(target, b.rank)
            numbers = [
                round(real / s + z) for s, z in _pairs(grid, zero_point_grid(target, b.rank))
            ]
            storage = target.storage
            clamped = [min(max(n, storage.minimum), storage.maximum) for n in numbers]
            array = np.array(clamped, np.int64).reshape(grid.shape)
            values.append(b.grid(array, storage_mlir_type(storage)))
        below, above = b.compare(_LT, difference, zero), b.compare(_GT, difference, zero)
        result = b.op("arith.select", [above, values[2], values[1]], values[0].type)
        result = b.op("arith.select", [below, values[0], result], values[0].type)
        return as_quantized(result, op.results[0].type)

    def _linear(self, op: Any, signs: list[int]) -> Any:
        b = _builder(op)
        terms = [operand.term(b, sign) for operand, sign in zip(_operands(op), signs, strict=True)]
        return self._finished(op, b, terms)

    def _finished(self, op: Any, b: TensorBuilder, terms: list[Term]) -> Any:
        result = finish(b, terms, _result(op), self._requantization)
        return as_quantized(result, op.results[0].type)

    # -- order ------------------------------------------------------------------------------------

    def extremum(self, op: Any) -> Any:
        """The greater or lesser of the operands in the result's parameters.

        A change of parameters does not reverse the order of two reals, so it may come first.
        """
        target, b = _result(op), _builder(op)
        values = self._in_parameters(b, _operands(op), target)
        name = "arith.maxsi" if op.name.endswith("maximum") else "arith.minsi"
        return _narrowed(op, b, b.op(name, values, values[0].type))

    def clamp(self, op: Any) -> Any:
        """``min(max(x, low), high)``, the bounds of rank 0 or of the operand's shape."""
        target, b = _result(op), TensorBuilder(op.operands[1])
        values = []
        for operand in _operands(op):
            own = TensorBuilder(operand.value)
            values += self._in_parameters(own, [operand], target)
        result = b.op("stablehlo.clamp", values, element_type(values[1].type))
        return _narrowed(op, b, result)

    def select(self, op: Any) -> Any:
        """Storage of the one or the other, in the result's parameters."""
        target = _result(op)
        chosen = [
            Operand.of(v, op).requantized(target, self._requantization)
            for v in list(op.operands)[1:]
        ]
        b = TensorBuilder(chosen[0])
        result = b.op("stablehlo.select", [op.operands[0], *chosen], element_type(chosen[0].type))
        return as_quantized(result, op.results[0].type)

    def compare(self, op: Any) -> Any:
        """Compare integers of one scale, else the reals ("dequantize_compare")."""
        left, right = _operands(op)
        b = _builder(op)
        attributes = {name: op.attributes[name] for name in op.attributes}
        if left.parameters == right.parameters:
            kind, values = "SIGNED", [left.widened(b), right.widened(b)]
        else:
            kind = "FLOAT"
            values = [dequantize(value, op, self._division) for value in op.operands]
        attributes["compare_type"] = ir.Attribute.parse(f"#stablehlo<comparison_type {kind}>")
        return ir.Operation.create(
            op.name, results=[op.results[0].type], operands=values, attributes=attributes
        ).results[0]

    def _in_parameters(
        self, b: TensorBuilder, operands: list[Operand], target: QuantizationParameters
    ) -> list[Any]:
        """Storage in the target's parameters, widened where the storage is unsigned."""
        values = [
            Operand(operand.requantized(target, self._requantization), target)
            for operand in operands
        ]
        if target.storage.signed:
            return [operand.value for operand in values]
        return [operand.widened(b) for operand in values]

    # -- functions --------------------------------------------------------------------------------

    def unary(self, op: Any) -> Any:
        """A table of the storage values, or the function of the reals."""
        name, operand, target = _short(op), parameters_of(op.operands[0].type, op), _result(op)
        assert operand is not None  # unary operations keep quantized to quantized
        if not _takes_table(op, operand, target):
            return self.through_float(op)
        return self._lookup(op, lookup_tables.unary_table(name, operand, target))

    def binary(self, op: Any) -> Any:
        """A table of the pairs of storage values, or the function of the reals."""
        parameters = [parameters_of(value.type, op) for value in op.operands]
        known = [p for p in parameters if p is not None]
        target = _result(op)
        if not _takes_table(op, *known, target):
            return self.through_float(op)
        return self._lookup(op, lookup_tables.binary_table(_short(op), known[0], known[1], target))

    def reduce_precision(self, op: Any) -> Any:
        """As `unary`, with the numbers of bits from the attributes."""
        operand, target = parameters_of(op.operands[0].type, op), _result(op)
        assert operand is not None  # the verifier wants quantized to quantized
        if not _takes_table(op, operand, target):
            return self.through_float(op)
        bits = [int(op.attributes[f"{part}_bits"].value) for part in ("exponent", "mantissa")]
        table = lookup_tables.reduce_precision_table(bits[0], bits[1], operand, target)
        return self._lookup(op, table)

    def _lookup(self, op: Any, table: Array) -> Any:
        b, operands = _builder(op), _operands(op)
        index = None
        for operand in operands:
            storage = operand.parameters.storage
            offset = b.constant(-storage.type_range[0], b.i32)
            position = b.op("arith.addi", [operand.widened(b), offset], b.i32)
            if index is not None:
                amount = b.constant(storage.width, b.i32)
                index = b.op("arith.shli", [index, amount], b.i32)
                position = b.op("arith.addi", [index, position], b.i32)
            index = position
        target = _result(op)
        element = storage_mlir_type(target.storage)
        container = ir.IntegerType.get_signless(target.storage.container_width)
        result = b.look_up(table, index, container)
        return as_quantized(resize(b, result, element), op.results[0].type)

    def through_float(self, op: Any) -> Any:
        """Dequantize, apply the operation, quantize ("dequantize_op_quantize").

        f16 and bf16 are computed in f32 from end to end: a result rounded to 8 bits on the way
        would be several steps off.
        """
        operands = [
            self._single(v, op) if is_quantized(v.type) else _in_single(v) for v in op.operands
        ]
        if _short(op) in _PERIODIC:
            operands = [self._angle(op.operands[0], operands[0], op)]
        types = [_single_type(r.type) for r in op.results]
        if op.name in _WITH_GAPS:
            values = [_WITH_GAPS[op.name](*operands)]
        else:
            attributes = {name: op.attributes[name] for name in op.attributes}
            created = ir.Operation.create(
                op.name, results=types, operands=operands, attributes=attributes
            )
            values = list(created.results)
        results = []
        for value, result in zip(values, op.results, strict=True):
            target = parameters_of(result.type, op)
            if target is None:
                results.append(_cast_float(value, result.type))
            else:
                storage = quantize(value, _with_single(target), op, self._division)
                results.append(as_quantized(storage, result.type))
        return results

    def _single(self, value: Any, op: Any) -> Any:
        operand = Operand.of(value, op)
        b = TensorBuilder(operand.value)
        real = dequantize_as(b, operand, _with_single(operand.parameters), op, self._division)
        return _overflowing(b, operand, real)

    def _angle(self, value: Any, real: Any, op: Any) -> Any:
        """The angle of a large real, less whole turns.

        A device's sine of 10**9 is garbage. The number of turns is ``d * s / (2 pi)``; its
        fraction, in units of ``2**-64`` of a turn, is what a product of 64-bit integers leaves.
        """
        operand = Operand.of(value, op)
        parameters = operand.parameters
        largest = operand.bound * float(parameters.scales.max(initial=0))
        if largest < _LARGEST_ANGLE or parameters.granularity != "per-tensor":
            return real
        b = TensorBuilder(operand.value)
        turn = Fraction(float(parameters.scales)) / (2 * _PI) * (1 << 64)
        step = round(turn) % (1 << 64)
        step -= (1 << 64) if step >> 63 else 0
        difference = resize(b, operand.difference(b), b.i64)
        turns = b.op("arith.muli", [difference, b.constant(step, b.i64)], b.i64)
        element = element_type(real.type)
        fraction = b.op("arith.sitofp", [turns], element)
        unit = b.constant(float(2 * _PI / (1 << 64)), element)
        return b.op("arith.mulf", [fraction, unit], element)

    def is_finite(self, op: Any) -> Any:
        """True, unless a wide storage value times a scale can be infinite (in f16)."""
        source, b = _operands(op)[0], _builder(op)
        largest = source.bound * max((Fraction(s) for s in source.scales().reshape(-1)), default=0)
        if largest <= Fraction(source.parameters.expressed.largest):
            return b.constant(1, b.i1)
        operand = dequantize(op.operands[0], op, self._division)
        return ir.Operation.create(
            op.name, results=[op.results[0].type], operands=[operand]
        ).results[0]

    def iota(self, op: Any) -> Any:
        """The position along an axis, quantized."""
        target = _result(op)
        type_ = op.results[0].type
        integers = ir.RankedTensorType.get(
            list(type_.shape), ir.IntegerType.get_signless(32), type_.encoding
        )
        position = ir.Operation.create(
            op.name,
            results=[integers],
            operands=list(op.operands),
            attributes={name: op.attributes[name] for name in op.attributes},
        ).results[0]
        axis = int(op.attributes["iota_dimension"].value)
        extent = (1 << 31) - 1 if type_.is_dynamic_dim(axis) else int(type_.shape[axis])
        b = TensorBuilder(position)
        term = Term(position, extent, np.array(Fraction(1), object))
        return as_quantized(finish(b, [term], target, self._requantization), type_)

    # -- data movement ----------------------------------------------------------------------------

    def move(self, op: Any) -> Any:
        """Give moved operands the result's parameters; the operation itself stays."""
        name = _short(op)
        moved = _MOVES_DATA[name]
        quantized = [r.type for r in op.results if is_quantized(r.type)]
        if moved is None or not quantized:
            return None
        numbers = range(len(op.operands))[moved]
        for number in numbers:
            value = op.operands[number]
            if not is_quantized(value.type):
                continue
            source, target = parameters_of(value.type, op), parameters_of(quantized[0], op)
            assert source is not None and target is not None  # both are quantized
            if same_values(source, target) or _one_block(source, target):
                continue
            if source.granularity != "per-tensor" or target.granularity != "per-tensor":
                raise UnsupportedError(
                    f"moves values of '{element_type(value.type)}' to a result of "
                    f"'{element_type(quantized[0])}', whose scales or zero points differ; "
                    "requantize with stablehlo.uniform_quantize first",
                    op,
                )
            changed = Operand.of(value, op).requantized(target, self._requantization)
            wanted = ir.RankedTensorType.get(
                list(value.type.shape), element_type(quantized[0]), value.type.encoding
            )
            op.operands[number] = as_quantized(changed, wanted)
        return None

    def composite(self, op: Any) -> Any:
        """A call of the function that says what it computes."""
        return list(
            ir.Operation.create(
                "func.call",
                results=[result.type for result in op.results],
                operands=list(op.operands),
                attributes={"callee": op.attributes["decomposition"]},
            ).results
        )

    def refuse(self, op: Any) -> Any:
        """Raise for an operation that has no meaning here."""
        raise UnsupportedError(_REFUSED[_short(op)], op)


_PERIODIC = ("cosine", "sine", "tan")
_LARGEST_ANGLE = 1000.0
_PI = Fraction(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
)

_THROUGH_FLOAT = (
    "batch_norm_grad",
    "batch_norm_inference",
    "batch_norm_training",
    "cholesky",
    "triangular_solve",
)
_ALL = slice(None)
_FIRST = slice(0, 1)
_MOVES_DATA: dict[str, slice | None] = {
    "broadcast": _FIRST,
    "broadcast_in_dim": _FIRST,
    "concatenate": _ALL,
    "dynamic_broadcast_in_dim": _FIRST,
    "dynamic_gather": _FIRST,
    "dynamic_pad": slice(0, 2),
    "dynamic_reshape": _FIRST,
    "dynamic_slice": _FIRST,
    "dynamic_update_slice": slice(0, 2),
    "gather": _FIRST,
    "pad": slice(0, 2),
    "real_dynamic_slice": _FIRST,
    "reshape": _FIRST,
    "reverse": _FIRST,
    "slice": _FIRST,
    "torch_index_select": _FIRST,
    "transpose": _FIRST,
}
"""Operations whose result holds elements of some of the operands: which operands."""

_REFUSED = {
    "convert": "has a quantized operand or result, which the specification forbids; use "
    "stablehlo.uniform_quantize or stablehlo.uniform_dequantize",
    "custom_call": "has quantized operands or results, and nothing says what its target does with "
    "their scales; dequantize before and quantize after it",
    "get_tuple_element": "takes quantized values out of a tuple, which IREE does not have; pass "
    "the values themselves",
    "tuple": "puts quantized values into a tuple, which IREE does not have; pass the values "
    "themselves",
}


# -- pieces ---------------------------------------------------------------------------------------


def _takes_table(op: Any, *parameters: QuantizationParameters) -> bool:
    """True for few enough operand values, a per-tensor result, and no body of scalar code."""
    *operands, result = parameters
    parent = op.parent.operation
    return (
        lookup_tables.fits_table(*operands)
        and result.granularity == "per-tensor"
        and parent.name not in ELEMENTWISE_BODIES
    )


def _short(op: Any) -> str:
    return str(op.name).removeprefix("stablehlo.")


def _result(op: Any) -> QuantizationParameters:
    parameters = parameters_of(op.results[0].type, op)
    if parameters is None:
        raise UnsupportedError(
            f"has quantized operands and a result of '{op.results[0].type}', expected a quantized "
            "result; dequantize the operands (stablehlo.uniform_dequantize) for a real one",
            op,
        )
    if parameters.granularity == "sub-channel":
        Operand.of(op.results[0], op)
    return parameters


def _operands(op: Any) -> list[Operand]:
    operands = []
    for number, value in enumerate(op.operands):
        if not is_quantized(value.type):
            raise UnsupportedError(
                f"has a quantized operand or result and operand {number} of '{value.type}', "
                "expected a quantized one; quantize it (stablehlo.uniform_quantize)",
                op,
            )
        operands.append(Operand.of(value, op))
    return operands


def _builder(op: Any) -> TensorBuilder:
    """A builder of the shape of the operand that has the fewest dynamic extents."""
    ranked = [value for value in op.operands if isinstance(value.type, ir.RankedTensorType)]
    if len(ranked) != len(op.operands):
        raise UnsupportedError("has an unranked operand; expected ranked tensors", op)

    def dynamic(value: Any) -> int:
        type_ = value.type
        return sum(type_.is_dynamic_dim(axis) for axis in range(len(type_.shape)))

    return TensorBuilder(min(ranked, key=dynamic))


def _parts(b: TensorBuilder, operand: Operand) -> list[tuple[Any, int, int]]:
    """An operand's difference as (integers, bound, factor), each of at most 31 bits."""
    difference, bound = operand.difference(b), operand.bound
    if bound < 1 << 17:
        return [(difference, bound, 1)]
    type_ = difference.type
    high = b.op("arith.shrsi", [difference, b.constant(16, type_)], type_)
    low = b.op("arith.andi", [difference, b.constant((1 << 16) - 1, type_)], type_)
    return [(high, (bound >> 16) + 1, 1 << 16), (low, (1 << 16) - 1, 1)]


def _narrowed(op: Any, b: TensorBuilder, value: Any) -> Any:
    narrow = resize(b, value, storage_mlir_type(_result(op).storage))
    return as_quantized(narrow, op.results[0].type)


def _pairs(scales: Array, zero_points: Array) -> list[tuple[Fraction, int]]:
    flat = zip(scales.reshape(-1), zero_points.reshape(-1), strict=True)
    return [(Fraction(scale), int(zero)) for scale, zero in flat]


def _one_block(source: QuantizationParameters, target: QuantizationParameters) -> bool:
    """True if one scale of the source, broadcast, is every scale of the target."""
    return (
        source.storage == target.storage
        and source.expressed == target.expressed
        and source.scales.size == 1
        and bool((target.scales == source.scales.reshape(-1)[0]).all())
        and bool((target.zero_points == source.zero_points.reshape(-1)[0]).all())
    )


_HALVES = (ExpressedType.F16, ExpressedType.BF16)


def _with_single(parameters: QuantizationParameters) -> QuantizationParameters:
    """The same parameters with f32 for f16 and bf16."""
    if parameters.expressed not in _HALVES:
        return parameters
    return dataclasses.replace(
        parameters, expressed=ExpressedType.F32, scales=parameters.scales.astype(np.float32)
    )


def _single_type(type_: Any) -> ir.Type:
    """A tensor type of reals, quantized or not, with f32 for f16 and bf16."""
    real = float_type(type_) if is_quantized(type_) else type_
    if not isinstance(real.element_type, (ir.F16Type, ir.BF16Type)):
        return real
    return ir.RankedTensorType.get(list(real.shape), ir.F32Type.get(), real.encoding)


def _in_single(value: Any) -> Any:
    return _cast_float(value, _single_type(value.type))


def _cast_float(value: Any, type_: Any) -> Any:
    if value.type == type_:
        return value
    return ir.Operation.create("stablehlo.convert", results=[type_], operands=[value]).results[0]


def _power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``, for negative bases too, where IREE gives NaN for every exponent.

    A negative base has a power if the exponent is an integer, negative if that is odd.
    """
    b = TensorBuilder(base)
    element = element_type(base.type)

    def apply(name: str, *values: Any) -> Any:
        return b.op(f"stablehlo.{name}", list(values), element)

    zero, one = b.constant(0.0, element), b.constant(1.0, element)
    magnitude = apply("power", apply("abs", base), exponent)
    is_integer = b.compare_float(_OEQ, apply("floor", exponent), exponent)
    half = apply("multiply", exponent, b.constant(0.5, element))
    is_even = b.compare_float(_OEQ, apply("floor", half), half)
    negated = apply("negate", magnitude)
    of_integer = b.op("arith.select", [is_even, magnitude, negated], element)
    not_a_number = b.constant(float("nan"), element)
    of_negative = b.op("arith.select", [is_integer, of_integer, not_a_number], element)
    is_negative = b.compare_float(_OLT, base, zero)
    result = b.op("arith.select", [is_negative, of_negative, magnitude], element)
    is_zero = b.compare_float(_OEQ, exponent, zero)
    return b.op("arith.select", [is_zero, one, result], element)


def _overflowing(b: TensorBuilder, operand: Operand, real: Any) -> Any:
    """The f32 value of an f16 operand, infinite where f16 is: at the half beyond its greatest."""
    parameters = operand.parameters
    largest = max((Fraction(s) for s in operand.scales().reshape(-1)), default=Fraction(0))
    if parameters.expressed is not ExpressedType.F16 or operand.bound * largest < _F16_OVERFLOW:
        return real
    element = element_type(real.type)
    limit = b.constant(float(_F16_OVERFLOW), element)
    magnitude = b.op("stablehlo.abs", [real], element)
    beyond = b.compare_float(_OGE, magnitude, limit)
    infinite = b.op("arith.mulf", [real, b.constant(float("inf"), element)], element)
    return b.op("arith.select", [beyond, infinite, real], element)


def _remainder(dividend: Any, divisor: Any) -> Any:
    """``dividend - trunc(dividend / divisor) * divisor``; by 0 NaN, where IREE gives a number."""
    b = TensorBuilder(dividend)
    element = element_type(dividend.type)
    value = b.op("stablehlo.remainder", [dividend, divisor], element)
    is_zero = b.compare_float(_OEQ, divisor, b.constant(0.0, element))
    return b.op("arith.select", [is_zero, b.constant(float("nan"), element), value], element)


_WITH_GAPS: dict[str, Callable[..., Any]] = {
    "stablehlo.power": _power,
    "stablehlo.remainder": _remainder,
}
"""Functions that IREE does not compute for all operands."""


def _cast(value: Any, type_: ir.Type) -> Any:
    if value.type == type_:
        return value
    return ir.Operation.create("tensor.cast", results=[type_], operands=[value]).results[0]
