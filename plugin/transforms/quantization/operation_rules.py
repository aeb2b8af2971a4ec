"""Rules of the operands and attributes of ``subquant`` operations, and of IREE's globals."""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...dialects import subquant
from ...dialects.attention import check_attention
from ...dialects.block_contraction_checks import check_block_contraction, check_unpack
from ...dialects.integer_steps import (
    check_requantize,
    check_saturate,
    check_subtract_zero_point,
    requantized_type,
)
from ...dialects.quant import described_type, element_type, is_quantized, shape_of
from ...dialects.reduction_rules import REDUCTION_CHECKS
from ...errors import VerificationError, shape_text
from ...numerics.element_types import ElementType
from ...numerics.parameters import EXPRESSED_TYPES, ExpressedType
from .type_rules import check_type


def _container(type_: ir.Type) -> str:
    """A type's shape in words, to compare containers: "scalar", "unranked" or "4x?"."""
    if isinstance(type_, ir.UnrankedTensorType):
        return "unranked"
    if not isinstance(type_, ir.RankedTensorType):
        return str(type_) if isinstance(type_, ir.ShapedType) else "scalar"
    return shape_text(shape_of(type_))


def _check_same_container(op: Operation) -> None:
    """Refuse operand and result of different shapes."""
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
    shape = shape_of(real)
    if len(blocks) != len(shape):
        raise VerificationError(
            f"attribute 'block_sizes' must have an entry for each of the {len(shape)} dimensions, "
            f"got {len(blocks)}",
            op,
        )
    for axis, (block, size) in enumerate(zip(blocks, shape, strict=True)):
        if block < 1 or (size is not None and block > max(size, 1)):
            limit = "" if size is None else f" and at most {size}"
            raise VerificationError(
                f"block size along axis {axis} must be at least 1{limit}, got {block}", op
            )
    expected = [None if n is None else -(-n // b) for n, b in zip(shape, blocks, strict=True)]
    operands = subquant.operands_of(op)
    for name in ("scales", "offsets"):
        if name in operands:
            _check_parameter_operand(op, operands[name].type, name, expected)
            _check_float_parameter(op, operands[name].type, name, expressed)
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
    shape = shape_of(type_)
    fits = len(shape) == len(expected) and all(
        n is None or e is None or n == e for n, e in zip(shape, expected, strict=True)
    )
    if not fits:
        raise VerificationError(
            f"{what} have the shape {shape_text(shape)}, expected {shape_text(expected)}, one for "
            "each block",
            op,
        )


def _check_float_parameter(
    op: Operation, type_: ir.Type, what: str, expressed: ExpressedType
) -> None:
    element = str(element_type(type_))
    is_narrower = (
        element in EXPRESSED_TYPES and ElementType.parse(element).bits < expressed.element.bits
    )
    if not is_narrower and element != expressed.value:
        raise VerificationError(
            f"{what} must have a floating-point type not wider than the expressed type "
            f"'{expressed.value}', got '{element}'",
            op,
        )


def _check_requantize(op: Operation) -> None:
    check_requantize(op)
    check_type(requantized_type(op), op, "attribute 'quantized_type'", lenient=False)


_GLOBAL_ATTRIBUTES = {
    "util.global": {"sym_name": ir.StringAttr, "type": ir.TypeAttr},
    "util.global.load": {"global": ir.FlatSymbolRefAttr},
    "util.global.store": {"global": ir.FlatSymbolRefAttr},
}
_ATTRIBUTE_KINDS = {
    ir.StringAttr: "a string",
    ir.TypeAttr: "a type",
    ir.FlatSymbolRefAttr: "a symbol",
}


def _check_global(op: Operation) -> None:
    """Check the attributes of IREE's globals: the bindings do not register the dialect."""
    for name, kind in _GLOBAL_ATTRIBUTES[op.name].items():
        if name not in op.attributes or not isinstance(op.attributes[name], kind):
            raise VerificationError(
                f"must have the attribute '{name}', {_ATTRIBUTE_KINDS[kind]}", op
            )


OPERATION_CHECKS = {
    **dict.fromkeys(_GLOBAL_ATTRIBUTES, _check_global),
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
"""Checks of operations, by name."""
