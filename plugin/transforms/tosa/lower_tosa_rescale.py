"""``lower-tosa-rescale``: lower ``tosa.rescale`` to elementwise integer arithmetic.

IREE 3.13 does not parse the ``tosa.rescale`` of newer MLIR, and upstream's lowering refuses
``scale32 = false`` with DOUBLE_ROUND or INEXACT_ROUND. Here every form is one ``linalg.generic``
with the formula of `subquant.numerics.fixed_point.rescale`::

    value  = extend(x, input_unsigned) - extend(input_zp, input_unsigned)
    scaled = apply_scale(value, multiplier[c], shift[c])
    y      = clamp(scaled + extend(output_zp, output_unsigned), lowest, greatest of y's type)

in 64-bit words: a value has up to 32 bits with multipliers of 31 bits (``scale32 = true``), or 48
with 15. TOSA does not define scaled values of more than 32 bits; here they saturate.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...core.option_fields import FixedPointRounding
from ...dialects.dense import constant_array
from ...emit import ArrayLike, Scalars, linalg
from ...emit.operation import dense, mlir_type
from ...errors import Remark, UnsupportedError, VerificationError
from ...numerics.element_types import I32, ElementType
from ...numerics.fixed_point import MAX_SHIFT, rescale, saturate
from ...numerics.parameters import StorageType
from ..base import ModulePass, Replacement, apply_patterns

_CONSTANTS = ("tosa.const", "arith.constant")
_FLAGS = ("scale32", "per_channel", "input_unsigned", "output_unsigned")


@dataclass(frozen=True)
class LowerTosaRescale(ModulePass):
    """Write every ``tosa.rescale`` as a loop of integer operations."""

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Rewrite `module`.

        Raises:
            UnsupportedError: an unranked tensor.
            VerificationError: a multiplier or shift that TOSA does not have.
        """
        return apply_patterns(module, {"tosa.rescale": _lower})


def _lower(op: Operation) -> Replacement:
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

    rounding: FixedPointRounding = "tosa-double-round" if is_double else "tosa-single-round"
    loop = _Loop(source, result_type.rank)
    axis = source.type.rank - 1 if flag["per_channel"] else None
    m, s = loop.parameter(multiplier, axis), loop.parameter(shift, axis)
    input_zero = loop.parameter(input_zp, unsigned=flag["input_unsigned"])
    output_zero = loop.parameter(output_zp, unsigned=flag["output_unsigned"])
    storage = StorageType(result_type.element_type.width, not flag["output_unsigned"])
    element = _element(source.type, flag["input_unsigned"])

    def body(x: Value, *parameters: Value) -> Value:
        form = Scalars()
        number = form.emitted(x, element)
        scale = [parameter(form, parameters) for parameter in (m, s, input_zero, output_zero)]
        scaled = rescale(number, scale[0], scale[1], (scale[2], scale[3]), rounding)
        return saturate(scaled, storage).value

    sizes = [
        linalg.dim(source, a) if result_type.is_dynamic_dim(a) else int(n)
        for a, n in enumerate(result_type.shape)
    ]
    output = linalg.empty(sizes, result_type.element_type)
    maps = [*loop.maps, loop.maps[0]]
    result = linalg.generic(loop.inputs, output, maps, body)
    return linalg.cast(result, result_type)


def _check_range(op: Operation, vector: Value, greatest: int, what: str) -> None:
    """Refuse constants beyond the range that TOSA allows."""
    constant = constant_array(vector, _CONSTANTS)
    if constant is None:
        return
    wrong = constant[(constant < 0) | (constant > greatest)]
    if wrong.size:
        raise VerificationError(f"has a {what} of {int(wrong[0])}; expected 0 to {greatest}", op)


def _element(type_: ir.RankedTensorType, unsigned: bool) -> ElementType:
    return ElementType.parse(f"{'u' if unsigned else 'i'}{type_.element_type.width}")


Parameter = Callable[[Scalars, tuple[Value, ...]], int | ArrayLike]
"""A function that returns, in the body, a constant or the value of a further input."""


class _Loop:
    """The inputs of a parallel loop over one tensor: itself, and its variable parameters."""

    def __init__(self, source: Value, rank: int) -> None:
        self.inputs = [source]
        self.maps = [linalg.identity_map(rank)]

    def parameter(
        self, vector: Value, axis: int | None = None, unsigned: bool = False
    ) -> Parameter:
        """A vector's element at the index of `axis`, or its first element."""
        constant, element = constant_array(vector, _CONSTANTS), _element(vector.type, unsigned)
        if constant is not None:
            if unsigned:
                constant = constant & ((1 << element.bits) - 1)
            if constant.size == 1:
                number = int(constant[0])
                return lambda form, parameters: number
            # In 32 bits: a load of i8 costs Vulkan devices a conversion.
            vector, element = linalg.constant(dense(constant, mlir_type(I32))), I32
        index = ir.AffineConstantExpr.get(0)
        if axis is not None and int(vector.type.shape[0]) != 1:
            index = ir.AffineDimExpr.get(axis)
        position = len(self.inputs) - 1
        self.inputs.append(vector)
        self.maps.append(ir.AffineMap.get(self.maps[0].n_dims, 0, [index]))
        return lambda form, parameters: form.emitted(parameters[position], element)
