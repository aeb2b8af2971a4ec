"""Loads from one address at constant displacements, whose instructions have one register of it.

LLVM would have an index in a second register, or add constants to it by an ``or`` where low bits
are zeros. An instruction with three operands and two registers of an address is issued in two parts
(a blockwise GEMM with AMX: 4 % more time).
"""

from __future__ import annotations

from ..core._mlir import Value, ir
from ..numerics.element_types import I64, ElementType
from .operation import mlir_type, parse_attribute, value
from .values import ArrayLike, scalar


def load_elements(start: ArrayLike, count: int, element: ElementType) -> list[ArrayLike]:
    """Load consecutive elements from an address, i64."""
    type_ = ir.Type.parse("!llvm.ptr")
    base = value("llvm.inttoptr", [_opaque(start).value], type_)
    return [scalar(_load(base, number, element), element) for number in range(count)]


def _load(base: Value, number: int, element: ElementType) -> Value:
    attributes = {
        "rawConstantIndices": parse_attribute(f"array<i32: {number}>"),
        "elem_type": ir.TypeAttr.get(mlir_type(element)),
    }
    pointer = value("llvm.getelementptr", [base], base.type, attributes)
    return value("llvm.load", [pointer], mlir_type(element))


def _opaque(number: ArrayLike) -> ArrayLike:
    """An i64 of which LLVM knows nothing."""
    attributes = {
        "asm_string": ir.StringAttr.get(""),
        "constraints": ir.StringAttr.get("=r,0"),
    }
    return scalar(value("llvm.inline_asm", [number.value], mlir_type(I64), attributes), I64)
