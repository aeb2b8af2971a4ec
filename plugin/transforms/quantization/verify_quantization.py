"""``verify-quantization``: the rules of quantized types, checked where upstream does not.

Upstream checks a sub-channel type only at ``quant`` casts. This pass checks every value of a
module (results, block arguments) and every function signature, against the *containing* tensor:

1. ``1 <= block size <= dimension``
2. every quantized dimension is less than the rank, and named once
3. ``dimension % block size == 0``, unless a ``subquant`` cast uses the type (ragged last block)
4. ``shape(scales) == shape(zero points) == ceil(shape / block size)``
5. zero points are in the storage range
6. scales are positive, finite, and not zero in the expressed type

and the operands and attributes of the ``subquant`` operations. Numbers 1 to 6 are the RFC's "Type
Constraints", with what StableHLO's C5 to C7 add; an element type of scales or zero points that
differs from the expressed or storage type (RFC, 5 and 6) is refused by upstream's type itself.
The module is not changed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core._mlir import Operation, ir
from ...dialects import subquant
from ...dialects.attention import check_attention
from ...dialects.block_contraction_checks import check_block_contraction, check_unpack
from ...dialects.integer_steps import check_requantize, check_saturate, check_subtract_zero_point
from ...dialects.quant import (
    described_type,
    element_type,
    is_quantized,
    parameters_of,
    parts_of,
    raw_scales,
)
from ...dialects.reduction_rules import REDUCTION_CHECKS
from ...errors import Remark, VerificationError
from ...numerics.element_types import Array, ElementType
from ...numerics.parameters import EXPRESSED_TYPES, ExpressedType, QuantizationParameters
from ..base import UNCHANGED, ModulePass, walk

__all__ = ["OPERATION_CHECKS", "VerifyQuantization", "check_type"]


@dataclass(frozen=True)
class VerifyQuantization(ModulePass):
    """Raise a located VerificationError for the first quantized type or operation that is wrong."""

    name: ClassVar[str] = "verify-quantization"

    def run(self, module: ir.Operation) -> Sequence[Remark]:
        """Check `module`; see the file's text for the rules."""
        operations = list(walk(module))
        lenient = _types_of_subquant_casts(operations)
        verified: set[ir.Type] = set()

        def check(type_: ir.Type, op: Operation, what: str) -> None:
            if type_ in verified:
                return
            for part in _quantized_parts(type_):
                check_type(part, op, what, lenient=element_type(part) in lenient)
            verified.add(type_)

        for op in operations:
            for number, result in enumerate(op.results):
                what = f"result {number}" if len(op.results) > 1 else "result"
                check(result.type, op, what)
            for region in op.regions:
                for block in region:
                    for number, argument in enumerate(block.arguments):
                        check(argument.type, op, f"block argument {number}")
            if "function_type" in op.attributes:
                _check_signature(op, check)
            verify = OPERATION_CHECKS.get(op.name)
            if verify is not None:
                for number, operand in enumerate(op.operands):  # may be defined below
                    check(operand.type, op, f"operand {number}")
                with _readable_attributes(op):
                    verify(op)
        return UNCHANGED


@contextlib.contextmanager
def _readable_attributes(op: Operation) -> Iterator[None]:
    """Refuse arrays of element types that the bindings have no class for, ``array<ui8: 1>``."""
    try:
        yield
    except TypeError as error:
        if "DenseArrayAttr" not in str(error):
            raise
        unread = str(error).partition("(Attribute(")[2].removesuffix("))")
        raise VerificationError(
            f"attribute '{unread}' has another element type than i64", op
        ) from None


def _types_of_subquant_casts(operations: list[Operation]) -> set[ir.Type]:
    types = set()
    for op in operations:
        if op.name in subquant.CASTS:
            types |= {element_type(value.type) for value in (*op.operands, *op.results)}
    return types


def _quantized_parts(type_: ir.Type) -> list[ir.Type]:
    """The quantized types (with their container) inside a type, each once."""
    return [part for part in parts_of(type_) if is_quantized(part)]


def _check_signature(op: Operation, check: Callable[[ir.Type, Operation, str], None]) -> None:
    type_ = getattr(op.attributes["function_type"], "value", None)
    if not isinstance(type_, ir.FunctionType):
        return
    for number, input_type in enumerate(type_.inputs):
        check(input_type, op, f"argument {number}")
    for number, result_type in enumerate(type_.results):
        check(result_type, op, f"result {number}")


# -- types ----------------------------------------------------------------------------------------


def check_type(type_: ir.Type, op: Operation, what: str, *, lenient: bool) -> None:
    """Check one quantized type with its container.

    Args:
        type_: a quantized type, or a shaped type of quantized elements.
        op: the operation to name in an error.
        what: what has the type, for the error ("result", "argument 0").
        lenient: accept a ragged last block, scales without the dimensions of size 1, and an
            unranked container of a sub-channel type.

    Raises:
        VerificationError: a rule is broken.
        UnsupportedError: a type that `parameters_of` does not accept.
    """
    parameters = parameters_of(type_, op)
    assert parameters is not None  # the caller asks only for quantized types
    _check_values(type_, parameters, op, what)
    _check_axes(parameters, op, what)
    if not isinstance(type_, ir.ShapedType):
        if parameters.granularity != "per-tensor":
            raise VerificationError(
                f"{what} is a scalar with a {parameters.granularity} type; expected a per-tensor "
                "type",
                op,
            )
        return
    if not type_.has_rank:
        if not lenient and parameters.granularity == "sub-channel":
            raise VerificationError(
                f"{what} is an unranked tensor with a sub-channel type, which only subquant.qcast, "
                "subquant.dcast and subquant.scast accept",
                op,
            )
        _check_collapsed(parameters, op, what)
        return
    shape = [None if type_.is_dynamic_dim(axis) else n for axis, n in enumerate(_shape(type_))]
    _check_shape(parameters, shape, op, what, lenient)


def _shape(type_: ir.ShapedType) -> list[int]:
    return [int(extent) for extent in type_.shape]


def _check_values(
    type_: ir.Type, parameters: QuantizationParameters, op: Operation, what: str
) -> None:
    written = raw_scales(type_)
    rounded = parameters.scales.astype(np.float64)
    expressed = parameters.expressed.value
    index = _first(~(_is_scale(written) & _is_scale(rounded)))
    if index is not None:
        place, got = _place("scale", index, what), _number(float(written[index]))
        if not _is_scale(written[index]):
            raise VerificationError(f"{place} must be positive and finite, got {got}", op)
        raise VerificationError(
            f"{place} must be positive and finite in {expressed}, got {got}, which rounds to "
            f"{_number(float(rounded[index]))}",
            op,
        )
    with np.errstate(over="ignore"):
        finite = np.isfinite(parameters.zero_points.astype(parameters.expressed.dtype))
    if not finite.all():
        found = int(parameters.zero_points[~finite].reshape(-1)[0])
        raise VerificationError(
            f"zero point {found} of {what} is beyond the greatest {expressed} number; expected a "
            "wider expressed type or a smaller zero point",
            op,
        )
    low, high = parameters.storage.minimum, parameters.storage.maximum
    index = _first((parameters.zero_points < low) | (parameters.zero_points > high))
    if index is not None:
        raise VerificationError(
            f"{_place('zero point', index, what)} must be in the storage range {low}:{high}, got "
            f"{parameters.zero_points[index]}",
            op,
        )


def _is_scale(values: Array) -> Array:
    return np.asarray(np.isfinite(values) & (values > 0))


def _first(wrong: Array) -> tuple[int, ...] | None:
    """The index of the first True; None if there is none."""
    if not wrong.any():
        return None
    return tuple(int(n) for n in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _place(name: str, index: tuple[int, ...], what: str) -> str:
    return f"{name}{list(index)} of {what}" if index else f"the {name} of {what}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:g}"


def _check_axes(parameters: QuantizationParameters, op: Operation, what: str) -> None:
    seen: set[int] = set()
    for axis, block in zip(parameters.axes, parameters.block_sizes, strict=True):
        if axis < 0:
            raise VerificationError(f"quantized dimension of {what} is negative, got {axis}", op)
        if axis in seen:
            raise VerificationError(
                f"quantized dimension {axis} of {what} is named twice; expected each once", op
            )
        if block < 1:
            raise VerificationError(
                f"block size along axis {axis} of {what} must be at least 1, got {block}", op
            )
        count = max(parameters.scales.shape, default=1)
        if block * count >= 1 << 63:
            raise VerificationError(
                f"block size {block} along axis {axis} of {what} is too large: {count} blocks have "
                "more elements than an index can count",
                op,
            )
        seen.add(axis)


def _check_collapsed(parameters: QuantizationParameters, op: Operation, what: str) -> None:
    """Check the scales of an unranked container: a dimension for each quantized axis, or full."""
    if parameters.granularity != "sub-channel":
        return
    rank = parameters.scales.ndim
    if rank == len(parameters.axes) or parameters.full_grid_shape(rank) is not None:
        return
    raise VerificationError(
        f"scales of {what} have the shape {_dims(parameters.scales.shape)}; expected one dimension "
        f"for each of the {len(parameters.axes)} quantized dimensions",
        op,
    )


def _dims(shape: Sequence[int | None]) -> str:
    return "x".join("?" if n is None else str(n) for n in shape) or "scalar"


def _check_shape(
    parameters: QuantizationParameters,
    shape: list[int | None],
    op: Operation,
    what: str,
    lenient: bool,
) -> None:
    rank = len(shape)
    tensor = f"{what} of shape {_dims(shape)}"
    for axis, block in zip(parameters.axes, parameters.block_sizes, strict=True):
        if axis >= rank:
            raise VerificationError(
                f"quantized dimension {axis} must be less than the rank {rank} of {tensor}", op
            )
        extent = shape[axis]
        if extent is None or parameters.granularity == "per-axis":
            continue
        if block > extent:
            raise VerificationError(
                f"block size {block} along axis {axis} must be at most the dimension {extent} of "
                f"{tensor}",
                op,
            )
        if extent % block and not lenient:
            raise VerificationError(
                f"dimension {extent} along axis {axis} of {tensor} must be divisible by the block "
                f"size {block}; subquant.qcast, subquant.dcast and subquant.scast accept a ragged "
                "last block",
                op,
            )
    if parameters.granularity == "per-tensor":
        return
    if any(extent == 0 for extent in shape) and parameters.granularity == "sub-channel":
        raise VerificationError(f"{tensor} has a dimension of size 0 and a sub-channel type", op)
    grid = parameters.full_grid_shape(rank)
    if parameters.granularity == "sub-channel" and parameters.scales.ndim != rank and not lenient:
        raise VerificationError(
            f"scales have rank {parameters.scales.ndim}, expected the rank {rank} of {tensor}; "
            "subquant.qcast, subquant.dcast and subquant.scast accept scales without the "
            "dimensions of size 1",
            op,
        )
    expected = _expected_grid(parameters, shape)
    if grid is None or any(e is not None and g != e for g, e in zip(grid, expected, strict=True)):
        shown = parameters.scales.shape if grid is None else grid
        raise VerificationError(
            f"scales and zero points have the shape {_dims(shown)}, expected {_dims(expected)}, "
            f"one for each block of {tensor}",
            op,
        )


def _expected_grid(parameters: QuantizationParameters, shape: list[int | None]) -> list[int | None]:
    grid: list[int | None] = []
    for axis, extent in enumerate(shape):
        block = parameters.block_size_of(axis)
        if block is None:
            grid.append(1)
        else:
            grid.append(None if extent is None else -(-extent // block))
    return grid


# -- operations of the dialect subquant -----------------------------------------------------------


def _container(type_: ir.Type) -> str:
    """A type's shape in words, to compare containers: "scalar", "unranked" or "4x?"."""
    if isinstance(type_, ir.UnrankedTensorType):
        return "unranked"
    if not isinstance(type_, ir.RankedTensorType):
        return str(type_) if isinstance(type_, ir.ShapedType) else "scalar"
    return _dims([None if type_.is_dynamic_dim(a) else n for a, n in enumerate(_shape(type_))])


def _check_same_container(op: Operation) -> None:
    operand, result = _container(op.operands[0].type), _container(op.results[0].type)
    if operand != result:
        raise VerificationError(
            f"operand and result must have one shape, got {operand} and {result}", op
        )


def _check_cast(
    op: Operation, real: ir.Type, quantized: ir.Type, role: str, quantized_role: str
) -> None:
    if not is_quantized(quantized):
        raise VerificationError(
            f"{quantized_role} must be quantized or a tensor of quantized elements, "
            f"got '{quantized}'",
            op,
        )
    expressed = element_type(quantized).expressed_type
    if element_type(real) != expressed:
        raise VerificationError(
            f"{role} must have the expressed type '{expressed}', got '{element_type(real)}'", op
        )
    _check_same_container(op)


def _check_qcast(op: Operation) -> None:
    _check_cast(op, op.operands[0].type, op.results[0].type, "operand", "result")


def _check_dcast(op: Operation) -> None:
    _check_cast(op, op.results[0].type, op.operands[0].type, "result", "operand")


def _check_scast(op: Operation) -> None:
    source, target = op.operands[0].type, op.results[0].type
    if is_quantized(source) == is_quantized(target):
        raise VerificationError(
            f"must cast between a storage type and a quantized type, got '{source}' and '{target}'",
            op,
        )
    quantized, stored = (source, target) if is_quantized(source) else (target, source)
    expected = element_type(quantized).storage_type
    if element_type(stored) != expected:
        raise VerificationError(
            f"storage must have the type '{expected}', got '{element_type(stored)}'", op
        )
    _check_same_container(op)


def _check_operand_op(op: Operation) -> None:
    quantize = op.name == "subquant.quantize"
    storage, expressed = described_type(op)
    real = op.operands[0].type if quantize else op.results[0].type
    stored = op.results[0].type if quantize else op.operands[0].type
    for type_, what in ((real, "real"), (stored, "stored")):
        if not isinstance(type_, ir.RankedTensorType):
            raise VerificationError(f"{what} value must be a ranked tensor, got '{type_}'", op)
    if str(element_type(real)) != expressed.value:
        raise VerificationError(
            f"real value must have the expressed type '{expressed.value}', got "
            f"'{element_type(real)}'",
            op,
        )
    if str(element_type(stored)) != f"i{storage.width}":
        raise VerificationError(
            f"stored value must have the storage type 'i{storage.width}', got "
            f"'{element_type(stored)}'",
            op,
        )
    _check_same_container(op)
    blocks = _block_sizes(op)
    shape = [None if real.is_dynamic_dim(a) else n for a, n in enumerate(_shape(real))]
    if len(blocks) != len(shape):
        raise VerificationError(
            f"attribute 'block_sizes' must have an entry for each of the {len(shape)} dimensions, "
            f"got {len(blocks)}",
            op,
        )
    for axis, (block, extent) in enumerate(zip(blocks, shape, strict=True)):
        if block < 1 or (extent is not None and block > max(extent, 1)):
            limit = "" if extent is None else f" and at most {extent}"
            raise VerificationError(
                f"block size along axis {axis} must be at least 1{limit}, got {block}", op
            )
    expected = [None if n is None else -(-n // b) for n, b in zip(shape, blocks, strict=True)]
    scales = op.operands[1].type
    _check_parameter_operand(op, scales, "scales", expected)
    _check_float_parameter(op, scales, "scales", expressed)
    operands = subquant.operands_of(op)
    if "offsets" in operands:
        offsets = operands["offsets"].type
        _check_parameter_operand(op, offsets, "offsets", expected)
        _check_float_parameter(op, offsets, "offsets", expressed)
    if "zero_points" in operands:
        zero_points = operands["zero_points"].type
        _check_parameter_operand(op, zero_points, "zero points", expected)
        zero_type = element_type(zero_points)
        if not isinstance(zero_type, ir.IntegerType) or not 2 <= zero_type.width <= storage.width:
            raise VerificationError(
                f"zero points must have an integer type of 2 to {storage.width} bits, not wider "
                f"than the storage type, got '{zero_type}'",
                op,
            )


def _block_sizes(op: Operation) -> list[int]:
    attribute = op.attributes["block_sizes"]
    if not isinstance(attribute, ir.DenseI64ArrayAttr):
        raise VerificationError(
            f"attribute 'block_sizes' must be array<i64: ...>, got '{attribute}'", op
        )
    return [int(block) for block in attribute]


def _check_parameter_operand(
    op: Operation, type_: ir.Type, what: str, expected: list[int | None]
) -> None:
    if not isinstance(type_, ir.RankedTensorType):
        raise VerificationError(f"{what} must be a ranked tensor, got '{type_}'", op)
    shape = [None if type_.is_dynamic_dim(a) else n for a, n in enumerate(_shape(type_))]
    fits = len(shape) == len(expected) and all(
        n is None or e is None or n == e for n, e in zip(shape, expected, strict=True)
    )
    if not fits:
        raise VerificationError(
            f"{what} have the shape {_dims(shape)}, expected {_dims(expected)}, one for each block",
            op,
        )


def _check_float_parameter(
    op: Operation, type_: ir.Type, what: str, expressed: ExpressedType
) -> None:
    found = str(element_type(type_))
    narrower = found in EXPRESSED_TYPES and ElementType.parse(found).bits < expressed.element.bits
    if not narrower and found != expressed.value:
        raise VerificationError(
            f"{what} must have a floating-point type not wider than the expressed type "
            f"'{expressed.value}', got '{found}'",
            op,
        )


def _check_requantize(op: Operation) -> None:
    check_type(check_requantize(op), op, "attribute 'quantized_type'", lenient=False)


_OF_GLOBALS = {
    "util.global": {"sym_name": ir.StringAttr, "type": ir.TypeAttr},
    "util.global.load": {"global": ir.FlatSymbolRefAttr},
    "util.global.store": {"global": ir.FlatSymbolRefAttr},
}


_SPOKEN = {ir.StringAttr: "a string", ir.TypeAttr: "a type", ir.FlatSymbolRefAttr: "a symbol"}


def _check_global(op: Operation) -> None:
    """The attributes of IREE's globals that passes read: the bindings do not know the dialect."""
    for name, kind in _OF_GLOBALS[op.name].items():
        if name not in op.attributes or not isinstance(op.attributes[name], kind):
            raise VerificationError(f"must have the attribute '{name}', {_SPOKEN[kind]}", op)


OPERATION_CHECKS = {
    **dict.fromkeys(_OF_GLOBALS, _check_global),
    "subquant.qcast": _check_qcast,
    "subquant.dcast": _check_dcast,
    "subquant.scast": _check_scast,
    "subquant.quantize": _check_operand_op,
    "subquant.dequantize": _check_operand_op,
    subquant.ATTENTION: check_attention,
    subquant.BLOCK_CONTRACTION: check_block_contraction,
    subquant.UNPACK: check_unpack,
    "subquant.subtract_zero_point": check_subtract_zero_point,
    "subquant.saturate": check_saturate,
    **dict.fromkeys(subquant.REQUANTIZE, _check_requantize),
    **REDUCTION_CHECKS,
}
