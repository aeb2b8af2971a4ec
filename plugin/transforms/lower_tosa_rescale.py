"""``lower-tosa-rescale``: ``tosa.rescale`` as integer arithmetic, element by element.

IREE 3.13 does not parse the ``tosa.rescale`` of newer MLIR, and upstream's lowering refuses
``scale32 = false`` with DOUBLE_ROUND or INEXACT_ROUND. Here every form is one ``linalg.generic``
with `subquant.transforms.fixed_point_arithmetic`::

    value  = extend(x, input_unsigned) - extend(input_zp, input_unsigned)
    scaled = apply_scale(value, multiplier[c], shift[c])
    y      = clamp(scaled + extend(output_zp, output_unsigned), lowest, greatest of y's type)

in 64-bit words: a value has up to 32 bits with multipliers of 31 (``scale32 = true``), or 48 with
15. TOSA leaves open what happens when the scaled value has more than 32 bits; here it saturates.

Before::

    %y = tosa.rescale %x, %m, %s, %xz, %yz {rounding_mode = DOUBLE_ROUND, scale32 = true,
           per_channel = true, ...} : (tensor<1x2xi32>, ...) -> tensor<1x2xi8>

After::

    %y = linalg.generic {indexing_maps = [(d0, d1) -> (d0, d1), (d0, d1) -> (d1), ...]}
           ins(%x, dense<[1073741824, ...]>, dense<[38, ...]>) outs(tensor.empty) {
           // extsi, muli, addi, shrsi, clamp, trunci
         } -> tensor<1x2xi8>

Source: TOSA specification, ``RESCALE``, ``apply_scale_32`` and ``apply_scale_16``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import ir
from ..dialects.dense import array_of_dense, dense_of_array
from ..errors import UnsupportedError, VerificationError
from ..numerics.element_types import Array
from ..numerics.fixed_point import MAX_SHIFT
from ..numerics.parameters import StorageType
from .base import Builder, ModulePass, NoMatch, apply_patterns
from .fixed_point_arithmetic import emit_scale, emit_shift
from .requantization import saturate

__all__ = ["LowerTosaRescale"]

_SGT, _SGE = 4, 5  # arith.cmpi predicates


@dataclass(frozen=True)
class LowerTosaRescale(ModulePass):
    """Write every ``tosa.rescale`` as a loop of integer operations."""

    name: ClassVar[str] = "lower-tosa-rescale"

    def run(self, module: ir.Operation) -> None:
        """Rewrite `module`.

        Raises:
            UnsupportedError: an unranked tensor.
            VerificationError: a multiplier or shift that TOSA does not have.
        """
        apply_patterns(module, {"tosa.rescale": _lower})


def _lower(op: Any, rewriter: Any) -> NoMatch | None:
    source, multiplier, shift, input_zp, output_zp = op.operands
    result_type = op.results[0].type
    for type_ in (source.type, result_type):
        if not isinstance(type_, ir.RankedTensorType):
            raise UnsupportedError(f"has the type '{type_}'; expected a ranked tensor", op)
        element = type_.element_type
        if not (isinstance(element, ir.IntegerType) and element.is_signless):
            raise UnsupportedError(
                f"has elements of type '{element}'; run convert-tosa-to-storage first", op
            )
    flag = {name: bool(op.attributes[name].value) for name in _FLAGS}
    # TOSA has no double rounding with multipliers of 15 bits.
    is_double = flag["scale32"] and "DOUBLE_ROUND" in str(op.attributes["rounding_mode"])
    _check_range(op, multiplier, (1 << (31 if flag["scale32"] else 15)) - 1, "multiplier")
    _check_range(op, shift, MAX_SHIFT, "shift")

    b = Builder()
    loop = _Loop(b, source)
    axis = source.type.rank - 1 if flag["per_channel"] else None
    m, s = loop.parameter(multiplier, axis), loop.parameter(shift, axis)
    xz = loop.parameter(input_zp, unsigned=flag["input_unsigned"])
    yz = loop.parameter(output_zp, unsigned=flag["output_unsigned"])

    def rescale(x: Any) -> Any:
        value = _extend(b, x, flag["input_unsigned"])
        value = _add(b, "arith.subi", value, xz())
        scale = _double_round if is_double else _single_round
        scaled = _add(b, "arith.addi", scale(b, value, m(), s()), yz())
        return saturate(b, scaled, _range(result_type.element_type, flag["output_unsigned"]))

    rewriter.replace_op(op, [loop.build(result_type, rescale)])
    return None


def _single_round(b: Builder, value: Any, multiplier: Any, shift: Any) -> Any:
    return emit_scale(b, value, multiplier, shift, "tosa-single-round")


def _double_round(b: Builder, value: Any, multiplier: Any, shift: Any) -> Any:
    """TOSA's own: for shifts above 31, whatever the multiplier, half of the first rounding."""
    if isinstance(shift, int) and shift <= 31:
        return _single_round(b, value, multiplier, shift)
    zero, up = b.constant(0, b.i64), b.constant(1 << 30, b.i64)
    down = b.constant(-(1 << 30), b.i64)
    nudge = b.op("arith.select", [b.compare(_SGE, value, zero), up, down], b.i64)
    if not isinstance(shift, int):
        is_large = b.compare(_SGT, shift, b.constant(31, b.i64))
        nudge = b.op("arith.select", [is_large, nudge, zero], b.i64)
    product = b.op("arith.muli", [value, _value(b, multiplier)], b.i64)
    nudged = b.op("arith.addi", [product, nudge], b.i64)
    return emit_shift(b, nudged, shift, "tosa-single-round")


def _add(b: Builder, name: str, value: Any, zero_point: Any) -> Any:
    """Add or subtract a zero point, unless it is known to be 0."""
    if isinstance(zero_point, int) and not zero_point:
        return value
    return b.op(name, [value, _value(b, zero_point)], b.i64)


def _value(b: Builder, number: Any) -> Any:
    return b.constant(number, b.i64) if isinstance(number, int) else number


def _check_range(op: Any, vector: Any, greatest: int, what: str) -> None:
    constant = _constant(vector)
    if constant is None:
        return
    wrong = constant[(constant < 0) | (constant > greatest)]
    if wrong.size:
        raise VerificationError(f"has a {what} of {int(wrong[0])}; expected 0 to {greatest}", op)


_FLAGS = ("scale32", "per_channel", "input_unsigned", "output_unsigned")


def _range(element: Any, unsigned: bool) -> StorageType:
    width = element.width
    if unsigned:
        return StorageType(width, False, 0, (1 << width) - 1)
    return StorageType(width, True, -(1 << (width - 1)), (1 << (width - 1)) - 1)


def _extend(b: Builder, value: Any, unsigned: bool = False) -> Any:
    return b.op("arith.extui" if unsigned else "arith.extsi", [value], b.i64)


class _Loop:
    """A parallel loop over one tensor, with parameters: constants, or further inputs."""

    def __init__(self, b: Builder, source: Any) -> None:
        self._b = b
        self._inputs = [source]
        self._maps = [ir.AffineMap.get_identity(source.type.rank)]
        self._arguments: list[Any] = []

    def parameter(
        self, vector: Any, axis: int | None = None, unsigned: bool = False
    ) -> Callable[[], Any]:
        """Return what gives, inside the body, a vector's element at the index of `axis`.

        Without an axis it is the first element. It is an int if it is known and the only one, else
        a value of type i64.
        """
        b = self._b
        constant = _constant(vector)
        if constant is not None:
            if unsigned:
                constant = constant & ((1 << vector.type.element_type.width) - 1)
            if constant.size == 1:
                number = int(constant[0])
                return lambda: number
            # 32 bits for all: a load of i8 costs Vulkan devices a conversion of its own
            vector = b.dense(dense_of_array(constant, b.i32))
        index = ir.AffineConstantExpr.get(0)
        if axis is not None and int(vector.type.shape[0]) != 1:
            index = ir.AffineDimExpr.get(axis)
        self._inputs.append(vector)
        self._maps.append(ir.AffineMap.get(self._maps[0].n_dims, 0, [index]))
        position = len(self._inputs) - 1
        return lambda: _extend(b, self._arguments[position], unsigned)

    def build(self, result_type: Any, body: Callable[[Any], Any]) -> Any:
        """Create the loop; `body` gives the result's element for the source's."""
        b, source = self._b, self._inputs[0]
        extents = [
            b.dim(source, axis)
            for axis in range(result_type.rank)
            if result_type.is_dynamic_dim(axis)
        ]
        output = b.op("tensor.empty", extents, result_type)
        maps = [*self._maps, self._maps[0]]
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        generic = ir.Operation.create(
            "linalg.generic",
            results=[result_type],
            operands=[*self._inputs, output],
            attributes={
                "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
                "iterator_types": ir.ArrayAttr.get([parallel] * result_type.rank),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(self._inputs), 1]),
            },
            regions=1,
        )
        elements = [value.type.element_type for value in (*self._inputs, output)]
        location = ir.Location.current
        block = generic.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
        self._arguments = list(block.arguments)
        with ir.InsertionPoint(block):
            b.op("linalg.yield", [body(self._arguments[0])])
        return generic.results[0]


def _constant(vector: Any) -> Array | None:
    if isinstance(vector.owner, ir.Block):
        return None
    owner = vector.owner.operation
    name = {"tosa.const": "values", "arith.constant": "value"}.get(owner.name)
    attribute = owner.attributes[name] if name else None
    return array_of_dense(attribute) if isinstance(attribute, ir.DenseElementsAttr) else None
