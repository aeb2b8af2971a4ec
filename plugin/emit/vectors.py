"""Vectors and the memory they are read from: what the loops of a kernel are written with.

`vector` takes a vector for formulas on its elements, as `subquant.emit.scalar` does an element.
Loops and conditions are functions that write their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..core._mlir import Value, ir
from ..numerics.element_types import ElementType
from . import operation
from .linalg import constant_index
from .operation import (
    create,
    element_of,
    index_type,
    integers,
    kept,
    kept_with_constants,
    mlir_type,
    value,
)
from .values import Formula, Scalars, scalar

__all__ = [
    "Index",
    "Vectors",
    "broadcast",
    "element_at",
    "fence",
    "fused",
    "interleaved",
    "intrinsic",
    "load",
    "load_element",
    "loop",
    "memref_type",
    "numbers",
    "of_threads",
    "part_of",
    "part_type",
    "prefetch",
    "quotient",
    "reduced",
    "remainder",
    "reread",
    "scratch",
    "shuffled",
    "store",
    "store_element",
    "vector",
    "vector_of",
    "vector_type",
    "view",
    "when",
    "workgroup_number",
]

Index: TypeAlias = int | Value
"""A position: a number, or a value of type ``index``."""


class Vectors(Scalars):
    """All elements of a vector: ``arith`` and ``math`` operations.

    Args:
        lanes: how many elements a vector has.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes

    def type(self, element: ElementType) -> Any:
        """The type of a value of this form."""
        return vector_type(self.lanes, element)

    def _constant(self, number: float | int, element: ElementType) -> Any:
        return operation.constant(operation.splat(number, self.type(element)))


def vector_type(lanes: int, element: ElementType) -> ir.Type:
    """``vector<lanes x element>``."""
    return kept(_vector_type, lanes, element)


def _vector_type(lanes: int, element: ElementType) -> ir.Type:
    return ir.VectorType.get([lanes], mlir_type(element))


def memref_type(shape: Sequence[int | None], element: ElementType) -> ir.Type:
    """``memref<shape x element>``; an extent of None is dynamic."""
    dynamic = ir.ShapedType.get_dynamic_size()
    extents = [dynamic if extent is None else int(extent) for extent in shape]
    return ir.MemRefType.get(extents, mlir_type(element))


def part_type(extent: int | None, element: ElementType, lanes: int) -> ir.Type:
    """The type of a part of a buffer, whose elements are vectors of so many, or are no vectors."""
    count = ir.ShapedType.get_dynamic_size() if extent is None else extent
    held = mlir_type(element) if lanes == 1 else vector_type(lanes, element)
    layout = ir.Attribute.parse("strided<[1], offset: ?>")
    return ir.MemRefType.get([count], held, layout)


def vector(given: Value, element: ElementType | None = None) -> Formula:
    """A vector for formulas on its elements; signed unless `element` says otherwise."""
    type_ = given.type
    found = element or element_of(type_.element_type)
    return kept_with_constants(Vectors, kept(_lanes_of, type_)).emitted(given, found)


def _lanes_of(type_: ir.Type) -> int:
    return int(type_.shape[0])


def _indices(indices: Sequence[Index]) -> list[Value]:
    return [constant_index(index) if isinstance(index, int) else index for index in indices]


# -- memory ---------------------------------------------------------------------------------------


def load(memory: Value, indices: Sequence[Index], lanes: int, element: ElementType) -> Formula:
    """The vector that begins at a position of a memref, along its last axis."""
    loaded = value("vector.load", [memory, *_indices(indices)], vector_type(lanes, element))
    return vector(loaded, element)


def store(given: Formula, memory: Value, indices: Sequence[Index]) -> None:
    """Write a vector to a position of a memref, along its last axis."""
    create("vector.store", [given.value, memory, *_indices(indices)])


def prefetch(memory: Value, indices: Sequence[Index]) -> None:
    """Ask for what will be read from a position, which may be outside of the memref."""
    attributes = {
        "isWrite": ir.BoolAttr.get(False),
        "localityHint": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 3),
        "isDataCache": ir.BoolAttr.get(True),
    }
    create("memref.prefetch", [memory, *_indices(indices)], attributes=attributes)


def load_element(memory: Value, indices: Sequence[Index]) -> Formula:
    """The element at a position of a memref, which may be a vector."""
    type_ = memory.type.element_type
    loaded = value("memref.load", [memory, *_indices(indices)], type_)
    return vector(loaded) if isinstance(type_, ir.VectorType) else scalar(loaded)


def store_element(given: Formula, memory: Value, indices: Sequence[Index]) -> None:
    """Write an element to a position of a memref."""
    create("memref.store", [given.value, memory, *_indices(indices)])


def scratch(shape: Sequence[int], element: ElementType) -> Value:
    """Memory of a workgroup, which is given back when it ends."""
    attributes = {
        "alignment": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64),
        "operandSegmentSizes": operation.parse_attribute("array<i32: 0, 0>"),
    }
    return value("memref.alloca", [], memref_type(shape, element), attributes)


def view(memory: Value, start: int, type_: ir.Type) -> Value:
    """What a memref of bytes holds from one on, as a memref of another type."""
    return value("memref.view", [memory, constant_index(start)], type_)


# -- vectors --------------------------------------------------------------------------------------


def broadcast(element: Formula, lanes: int) -> Formula:
    """An element in each place of a vector."""
    type_ = vector_type(lanes, element.element)
    return vector(value("vector.broadcast", [element.value], type_), element.element)


def numbers(given: Sequence[int], element: ElementType) -> Formula:
    """A vector of known integers."""
    type_ = vector_type(len(given), element)
    attribute = ir.DenseElementsAttr.get(np.array(given, element.dtype), type=type_)
    return vector(operation.constant(attribute), element)


def reread(given: Formula, element: ElementType) -> Formula:
    """The bits of a vector as elements of another width, in the order of memory."""
    lanes = int(given.value.type.shape[0]) * given.element.bits // element.bits
    return vector(value("vector.bitcast", [given.value], vector_type(lanes, element)), element)


def interleaved(given: Sequence[Formula]) -> Formula:
    """The first element of each of 1, 2 or 4 vectors, then the second of each, and so on."""
    lanes, count = int(given[0].value.type.shape[0]), len(given)
    parts = list(given)
    while len(parts) > 2:
        parts = [
            shuffled(left, right, range(int(left.value.type.shape[0]) * 2))
            for left, right in zip(parts[::2], parts[1::2], strict=True)
        ]
    order = [part * lanes + lane for lane in range(lanes) for part in range(count)]
    return parts[0] if count == 1 else shuffled(parts[0], parts[1], order)


def shuffled(left: Formula, right: Formula, order: Sequence[int]) -> Formula:
    """Elements of two vectors, by their places in one behind the other."""
    attributes = {"mask": integers(order)}
    type_ = vector_type(len(order), left.element)
    made = value("vector.shuffle", [left.value, right.value], type_, attributes)
    return vector(made, left.element)


def part_of(given: Formula, first: int, lanes: int) -> Formula:
    """So many elements of a vector, from one on."""
    if lanes == given.form.lanes:
        return given
    return shuffled(given, given, range(first, first + lanes))


def reduced(kind: str, given: Formula) -> Formula:
    """The sum (``add``) or the greatest (``maximumf``, ``maxui``) of a vector's elements."""
    attributes = {"kind": operation.parse_attribute(f"#vector.kind<{kind}>")}
    type_ = mlir_type(given.element)
    return scalar(value("vector.reduction", [given.value], type_, attributes), given.element)


def vector_of(numbers: Sequence[int], element: ElementType) -> Formula:
    """A constant with these integers as its elements."""
    type_ = vector_type(len(numbers), element)
    attribute = ir.DenseElementsAttr.get(
        [operation.number_of(mlir_type(element), n) for n in numbers], type_
    )
    return vector(operation.constant(attribute), element)


def element_at(given: Formula, place: int) -> Formula:
    """An element of a vector."""
    attributes = {"static_position": integers([place])}
    type_ = mlir_type(given.element)
    return scalar(value("vector.extract", [given.value], type_, attributes), given.element)


def fused(left: Formula, right: Formula, total: Formula) -> Formula:
    """``left * right + total``, rounded once."""
    operands = [left.value, right.value, total.value]
    made = value("math.fma", operands, total.value.type)
    return total.form.emitted(made, total.element)


def remainder(dividend: Formula, divisor: int) -> Formula:
    """Of a position that is divided by a number."""
    operands = [dividend.value, constant_index(divisor)]
    return scalar(value("arith.remui", operands, index_type()))


def quotient(dividend: Formula, divisor: int) -> Formula:
    """Of a position that is divided by a number."""
    operands = [dividend.value, constant_index(divisor)]
    return scalar(value("arith.divui", operands, index_type()))


def intrinsic(name: str, operands: Sequence[Formula], result: ElementType, lanes: int) -> Formula:
    """A call of one of LLVM's intrinsics, which the target must have."""
    attributes = {
        "intrin": kept(ir.StringAttr.get, name),
        "op_bundle_sizes": operation.parse_attribute("array<i32>"),
        "operandSegmentSizes": operation.parse_attribute(f"array<i32: {len(operands)}, 0>"),
    }
    type_ = vector_type(lanes, result)
    given = [operand.value for operand in operands]
    return vector(value("llvm.call_intrinsic", given, type_, attributes), result)


def fence(given: Formula, register: str) -> Formula:
    """The vector, computed before and read after this place: LLVM's scheduler moves neither.

    Args:
        given: the vector.
        register: the constraint of inline assembly for a vector register.
    """
    attributes = {
        "asm_string": kept(ir.StringAttr.get, ""),
        "constraints": kept(ir.StringAttr.get, f"={register},0"),
        "has_side_effects": kept(ir.UnitAttr.get),
    }
    held = value("llvm.inline_asm", [given.value], given.value.type, attributes)
    return vector(held, given.element)


# -- positions ------------------------------------------------------------------------------------


def workgroup_number(axis: int) -> Value:
    """The number of the workgroup that runs, along an axis of the grid."""
    attributes = {"dimension": ir.IntegerAttr.get(index_type(), axis)}
    return value("stream.dispatch.workgroup.id", [], index_type(), attributes)


def of_threads(count: int, body: Callable[[Value], None]) -> None:
    """Have each thread of a workgroup run a body, which is called with its number.

    This is a loop that IREE gives to threads. (``gpu.thread_id`` is written in one way by the
    bindings' MLIR, and read in another by IREE's.)
    """
    made = create(
        "scf.for",
        _indices([0, count, 1]),
        attributes={"iree.gpu.distribute_dim": ir.IntegerAttr.get(index_type(), 0)},
        regions=1,
    )
    block = made.regions[0].blocks.append(index_type())
    with ir.InsertionPoint(block):
        body(block.arguments[0])
        create("scf.yield")


# -- control --------------------------------------------------------------------------------------


def loop(
    start: Index,
    stop: Index,
    step: Index,
    body: Callable[..., Sequence[Formula] | None],
    carried: Sequence[Formula] = (),
) -> list[Formula]:
    """``scf.for``: what the body returns is what it is called with the next time.

    Args:
        start, stop, step: of the positions that the body is called with.
        body: called with a position (a value of type ``index``) and what is carried.
        carried: what the body is called with the first time.

    Returns:
        What the last call returned.
    """
    given = [formula.value for formula in carried]
    types = [each.type for each in given]
    made = create("scf.for", [*_indices([start, stop, step]), *given], types, regions=1)
    block = made.regions[0].blocks.append(index_type(), *types)
    with ir.InsertionPoint(block):
        position, *values = block.arguments
        again = [
            formula.form.emitted(each, formula.element)
            for formula, each in zip(carried, values, strict=True)
        ]
        create("scf.yield", [formula.value for formula in body(position, *again) or ()])
    return [
        formula.form.emitted(each, formula.element)
        for formula, each in zip(carried, made.results, strict=True)
    ]


def when(
    condition: Formula, body: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:
    """``scf.if`` without a value."""
    made = create("scf.if", [condition.value], regions=2)
    for region, written in zip(made.regions, (body, otherwise), strict=True):
        if written is not None:
            with ir.InsertionPoint(region.blocks.append()):
                written()
                create("scf.yield")
