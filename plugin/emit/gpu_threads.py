"""Emission of the threads of a GPU's workgroup: shared memory, barriers, dot products of bytes."""

from __future__ import annotations

from collections.abc import Callable

from ..core._mlir import Value, ir
from ..numerics.element_types import ElementType
from .linalg import constant_index
from .operation import create, index_type, mlir_type, parse_attribute, value
from .values import ArrayLike, scalar
from .vectors import element_at, from_elements, vector_type


def for_each_thread(count: int, body: Callable[[Value], None]) -> None:
    """Run a body on each thread of a workgroup, with the thread's number.

    This emits a loop that IREE distributes over threads. (The bindings' MLIR prints
    ``gpu.thread_id`` in a form that IREE's MLIR does not parse.)
    """
    for_op = create(
        "scf.for",
        [constant_index(bound) for bound in (0, count, 1)],
        attributes={"iree.gpu.distribute_dim": ir.IntegerAttr.get(index_type(), 0)},
        regions=1,
    )
    block = for_op.regions[0].blocks.append(index_type())
    with ir.InsertionPoint(block):
        body(block.arguments[0])
        create("scf.yield")


def barrier() -> None:
    """``gpu.barrier``: the threads of a workgroup wait for one another and see their stores."""
    create("gpu.barrier")


def workgroup_memory(count: int, element: ElementType, lanes: int) -> Value:
    """``memref.alloc`` of memory that the threads of a workgroup share; elements may be vectors."""
    element_type = mlir_type(element) if lanes == 1 else vector_type(lanes, element)
    space = ir.Attribute.parse("#gpu.address_space<workgroup>")
    type_ = ir.MemRefType.get([count], element_type, memory_space=space)
    attributes = {"operandSegmentSizes": parse_attribute("array<i32: 0, 0>")}
    return value("memref.alloc", [], type_, attributes)


def byte_dot(signed: ArrayLike, unsigned: ArrayLike) -> ArrayLike:
    """``spirv.SUDot``: the sum of four products of signed and unsigned bytes of words, exact."""
    format_ = parse_attribute("#spirv.packed_vector_format<PackedVectorFormat4x8Bit>")
    operands = [signed.value, unsigned.value]
    return scalar(value("spirv.SUDot", operands, operands[0].type, {"format": format_}))


def byte_dots(signed: ArrayLike, unsigned: ArrayLike) -> ArrayLike:
    """The `byte_dot` of a word and each lane of a vector, as a vector."""
    lanes = range(unsigned.form.lanes)
    return from_elements([byte_dot(signed, element_at(unsigned, lane)) for lane in lanes])
