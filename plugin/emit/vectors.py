"""Emission of the vectors, memory accesses and loops of a kernel.

`vector` wraps a vector value for elementwise formulas, as `subquant.emit.scalar` wraps an element.
`loop` and `when` take functions that emit the bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..core._mlir import Value, ir
from ..numerics.array_functions import rounded_by_addition
from ..numerics.element_types import BOOL, F32, I32, ElementType
from . import operation
from .linalg import constant_index
from .operation import (
    cached,
    cached_with_constants,
    computed_once,
    create,
    element_of,
    index_type,
    integers,
    mlir_type,
    value,
)
from .values import ArrayLike, Scalars, scalar

CACHE_LINE_BYTES = 64
"""The bytes of a cache line, which one prefetch loads."""
MAX_SCRATCH_BYTES = 30 << 10
"""Scratch memory of a kernel, at most.

IREE refuses a CPU dispatch with more than 32 KiB of stack; 2 KiB are left for other values.
"""

Index: TypeAlias = int | Value
"""An integer, or a value of type ``index``."""


class Vectors(Scalars):
    """Elementwise ``arith`` and ``math`` operations on vectors."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes

    def type(self, element: ElementType) -> Any:
        """The vector type with an element type."""
        return vector_type(self.lanes, element)

    def apply(self, name: str, element: ElementType, operands: Sequence[Any]) -> Any:
        """Write an operation; IREE expands ``math.roundeven`` to 30 operations on integers."""
        if name == "rint" and element == F32:
            return rounded_by_addition(self.emitted(operands[0], element)).value
        return super().apply(name, element, operands)

    def _constant(self, number: float | int, element: ElementType) -> Any:
        return operation.constant(operation.splat(number, self.type(element)))


@computed_once
def vector_type(lanes: int, element: ElementType) -> ir.Type:
    """``vector<lanes x element>``."""
    return ir.VectorType.get([lanes], mlir_type(element))


def memref_type(shape: Sequence[int | None], element: ElementType) -> ir.Type:
    """``memref<shape x element>``; None is a dynamic dimension."""
    dynamic = ir.ShapedType.get_dynamic_size()
    sizes = [dynamic if size is None else int(size) for size in shape]
    return ir.MemRefType.get(sizes, mlir_type(element))


def subspan_type(size: int | None, element: ElementType, lanes: int) -> ir.Type:
    """``memref<size x vector<lanes x element>, strided<[1], offset: ?>>``; scalars for 1 lane."""
    count = ir.ShapedType.get_dynamic_size() if size is None else size
    element_type = mlir_type(element) if lanes == 1 else vector_type(lanes, element)
    layout = ir.Attribute.parse("strided<[1], offset: ?>")
    return ir.MemRefType.get([count], element_type, layout)


def vector(operand: Value, element: ElementType | None = None) -> ArrayLike:
    """Wrap a vector for elementwise formulas; integers are signed unless `element` is unsigned."""
    type_ = operand.type
    own_element = element or element_of(type_.element_type)
    return cached_with_constants(Vectors, _lanes_of(type_)).emitted(operand, own_element)


@computed_once
def _lanes_of(type_: ir.Type) -> int:
    return int(type_.shape[0])


def _indices(indices: Sequence[Index]) -> list[Value]:
    return [constant_index(index) if isinstance(index, int) else index for index in indices]


# -- memory ---------------------------------------------------------------------------------------


def load(memory: Value, indices: Sequence[Index], lanes: int, element: ElementType) -> ArrayLike:
    """``vector.load``: the vector at an index of a memref, along its last axis."""
    loaded = value("vector.load", [memory, *_indices(indices)], vector_type(lanes, element))
    return vector(loaded, element)


def store(operand: ArrayLike, memory: Value, indices: Sequence[Index]) -> None:
    """``vector.store``: write a vector to an index of a memref, along its last axis."""
    create("vector.store", [operand.value, memory, *_indices(indices)])


def prefetch(memory: Value, indices: Sequence[Index]) -> None:
    """``memref.prefetch`` of an index, which may be out of bounds."""
    attributes = {
        "isWrite": ir.BoolAttr.get(False),
        "localityHint": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 3),
        "isDataCache": ir.BoolAttr.get(True),
    }
    create("memref.prefetch", [memory, *_indices(indices)], attributes=attributes)


def load_element(memory: Value, indices: Sequence[Index]) -> ArrayLike:
    """``memref.load``: an element of a memref, which may be a vector."""
    type_ = memory.type.element_type
    loaded = value("memref.load", [memory, *_indices(indices)], type_)
    return vector(loaded) if isinstance(type_, ir.VectorType) else scalar(loaded)


def store_element(operand: ArrayLike, memory: Value, indices: Sequence[Index]) -> None:
    """``memref.store``: write an element of a memref."""
    create("memref.store", [operand.value, memory, *_indices(indices)])


def scratch(shape: Sequence[int], element: ElementType) -> Value:
    """``memref.alloca``: scratch memory of a workgroup, which is on its stack until it ends."""
    attributes = {
        "alignment": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64),
        "operandSegmentSizes": operation.parse_attribute("array<i32: 0, 0>"),
    }
    return value("memref.alloca", [], memref_type(shape, element), attributes)


def view(memory: Value, start: Index, type_: ir.Type) -> Value:
    """``memref.view``: the bytes of a memref from ``start`` on, as a memref of another type."""
    return value("memref.view", [memory, *_indices([start])], type_)


# -- vectors --------------------------------------------------------------------------------------


def broadcast(element: ArrayLike, lanes: int) -> ArrayLike:
    """``vector.broadcast``: a vector with an element in each lane."""
    type_ = vector_type(lanes, element.element)
    return vector(value("vector.broadcast", [element.value], type_), element.element)


def bitcast(operand: ArrayLike, element: ElementType) -> ArrayLike:
    """``vector.bitcast``: the bits of a vector as elements of another width, in memory order.

    Narrower integers come from ``llvm.bitcast``: IREE's code generation for CPUs loses the sign in
    ``arith.extsi`` of a ``vector.bitcast``, which it rewrites to masks and shifts
    (`RewriteExtOfBitCast` of MLIR).
    """
    lanes = int(operand.value.type.shape[0]) * operand.element.bits // element.bits
    is_narrower = element.is_integer and element.bits < operand.element.bits
    name = "llvm.bitcast" if is_narrower else "vector.bitcast"
    return vector(value(name, [operand.value], vector_type(lanes, element)), element)


def interleave_lanes(operands: Sequence[ArrayLike]) -> ArrayLike:
    """Interleave 1, 2 or 4 vectors: lane 0 of each, then lane 1 of each, and so on."""
    lanes, count = int(operands[0].value.type.shape[0]), len(operands)
    vectors = list(operands)
    while len(vectors) > 2:
        vectors = [
            shuffle_lanes(left, right, range(int(left.value.type.shape[0]) * 2))
            for left, right in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    order = [number * lanes + lane for lane in range(lanes) for number in range(count)]
    return vectors[0] if count == 1 else shuffle_lanes(vectors[0], vectors[1], order)


def shuffle_lanes(left: ArrayLike, right: ArrayLike, order: Sequence[int]) -> ArrayLike:
    """``vector.shuffle``: lanes of the concatenation of two vectors, by their numbers."""
    attributes = {"mask": integers(order)}
    type_ = vector_type(len(order), left.element)
    shuffled = value("vector.shuffle", [left.value, right.value], type_, attributes)
    return vector(shuffled, left.element)


def slice_lanes(operand: ArrayLike, first: int, lanes: int) -> ArrayLike:
    """The ``lanes`` lanes of a vector from ``first`` on."""
    if lanes == operand.form.lanes:
        return operand
    return shuffle_lanes(operand, operand, range(first, first + lanes))


def reduce_lanes(kind: str, operand: ArrayLike) -> ArrayLike:
    """``vector.reduction`` of a kind such as ``add``, ``maximumf`` or ``maxui``."""
    attributes = {"kind": operation.parse_attribute(f"#vector.kind<{kind}>")}
    type_ = mlir_type(operand.element)
    return scalar(value("vector.reduction", [operand.value], type_, attributes), operand.element)


def transpose_lanes(vectors: Sequence[ArrayLike]) -> list[ArrayLike]:
    """The vectors of the first lanes, of the second ones, ...; as many as they have lanes.

    Step ``s`` exchanges the lanes ``l`` with ``l & s`` of the vector ``i``, and those without of
    the vector ``i + s``.
    """
    result, lanes, step = list(vectors), range(len(vectors)), 1
    while step < len(vectors):
        for low in (index for index in lanes if not index & step):
            pair, size = (result[low], result[low + step]), len(vectors)
            orders = (
                [size + lane - step if lane & step else lane for lane in lanes],
                [size + lane if lane & step else lane + step for lane in lanes],
            )
            result[low], result[low + step] = (shuffle_lanes(*pair, order) for order in orders)
        step *= 2
    return result


def lane_sums(vectors: Sequence[ArrayLike]) -> ArrayLike:
    """The sums of the lanes of 2, 4, ... vectors, as a vector of one lane for each."""
    vectors, size = list(vectors), int(vectors[0].value.type.shape[0])
    # Each vector has the partial sums of as many inputs as were combined, in `size` lanes each.
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_add_halves(*pair, size) for pair in pairs]
        size //= 2
    [result] = vectors
    while size > 1:
        result, size = _add_halves(result, result, size, once=True), size // 2
    return result


def _add_halves(left: ArrayLike, right: ArrayLike, size: int, *, once: bool = False) -> ArrayLike:
    """Add the halves of each run of `size` lanes, of the left vector and then of the right."""
    lanes = int(left.value.type.shape[0])
    half = size // 2
    runs = range(0, lanes if once else 2 * lanes, size)
    low, high = (
        shuffle_lanes(left, right, [run + offset + n for run in runs for n in range(half)])
        for offset in (0, half)
    )
    return low + high


def constant_vector(numbers: Sequence[float], element: ElementType) -> ArrayLike:
    """A constant vector of integers or floats."""
    type_ = vector_type(len(numbers), element)
    attribute = ir.DenseElementsAttr.get(
        [operation.number_of(mlir_type(element), number) for number in numbers], type_
    )
    return vector(operation.constant(attribute), element)


def element_at(operand: ArrayLike, lane: int) -> ArrayLike:
    """``vector.extract``: the element in a lane."""
    attributes = {"static_position": integers([lane])}
    type_ = mlir_type(operand.element)
    return scalar(value("vector.extract", [operand.value], type_, attributes), operand.element)


def fma(left: ArrayLike, right: ArrayLike, addend: ArrayLike) -> ArrayLike:
    """``math.fma``: ``left * right + addend``, rounded once."""
    operands = [left.value, right.value, addend.value]
    result = value("math.fma", operands, addend.value.type)
    return addend.form.emitted(result, addend.element)


def remainder(dividend: ArrayLike, divisor: int, name: str = "arith.remui") -> ArrayLike:
    """``arith.remui`` of an index by a constant."""
    return scalar(value(name, [dividend.value, constant_index(divisor)], index_type()))


def quotient(dividend: ArrayLike, divisor: int) -> ArrayLike:
    """``arith.divui`` of an index by a constant."""
    return remainder(dividend, divisor, "arith.divui")


def constant_word(number: int) -> ArrayLike:
    """An ``arith.constant`` of type i32."""
    return scalar(operation.constant(operation.number_of(mlir_type(I32), number)))


def from_elements(elements: Sequence[ArrayLike]) -> ArrayLike:
    """``vector.from_elements``: a vector of scalars."""
    type_ = vector_type(len(elements), elements[0].element)
    values = [each.value for each in elements]
    return vector(value("vector.from_elements", values, type_), elements[0].element)


def intrinsic(
    name: str, operands: Sequence[ArrayLike], result: ElementType, lanes: int
) -> ArrayLike:
    """A call of an LLVM intrinsic with a vector as its result, which the target must support."""
    return vector(_intrinsic(name, operands, vector_type(lanes, result)), result)


def _intrinsic(name: str, operands: Sequence[ArrayLike], result: ir.Type) -> Value:
    attributes = {
        "intrin": cached(ir.StringAttr.get, name),
        "op_bundle_sizes": operation.parse_attribute("array<i32>"),
        "operandSegmentSizes": operation.parse_attribute(f"array<i32: {len(operands)}, 0>"),
    }
    values = [operand.value for operand in operands]
    return value("llvm.call_intrinsic", values, result, attributes)


def arithmetic_fence(operand: ArrayLike) -> ArrayLike:
    """Round floats before they are used: LLVM fuses no operation across the fence."""
    fenced = _intrinsic("llvm.arithmetic.fence", [operand], operand.value.type)
    return operand.form.emitted(fenced, operand.element)


def scheduling_barrier(operand: ArrayLike, register: str) -> ArrayLike:
    """Pin a vector in registers of a class: LLVM's scheduler moves neither it nor its uses."""
    attributes = {
        "asm_string": cached(ir.StringAttr.get, ""),
        "constraints": cached(ir.StringAttr.get, f"={register},0"),
        "has_side_effects": cached(ir.UnitAttr.get),
    }
    pinned = value("llvm.inline_asm", [operand.value], operand.value.type, attributes)
    return vector(pinned, operand.element)


# -- the grid -------------------------------------------------------------------------------------


def workgroup_id(axis: int) -> Value:
    """The number of the running workgroup along an axis of the grid."""
    attributes = {"dimension": ir.IntegerAttr.get(index_type(), axis)}
    return value("stream.dispatch.workgroup.id", [], index_type(), attributes)


def workgroup_range(
    workgroup: ArrayLike, workgroups: int, items: int | ArrayLike
) -> tuple[ArrayLike, ArrayLike]:
    """The range ``[first, end)`` of a workgroup's items; sizes of ranges differ by 1 at most."""
    first, end = (quotient(number * items, workgroups) for number in (workgroup, workgroup + 1))
    return first, end


# -- control flow ---------------------------------------------------------------------------------


def loop(
    start: Index,
    stop: Index,
    step: Index,
    body: Callable[..., Sequence[ArrayLike] | None],
    carried: Sequence[ArrayLike] = (),
) -> list[ArrayLike]:
    """``scf.for`` with loop-carried values.

    Args:
        body: maps the induction variable (of type ``index``) and the carried values to the next
            carried values.
    """
    initial = [formula.value for formula in carried]
    types = [each.type for each in initial]
    for_op = create("scf.for", [*_indices([start, stop, step]), *initial], types, regions=1)
    block = for_op.regions[0].blocks.append(index_type(), *types)

    def wrap(values: Sequence[Value]) -> list[ArrayLike]:
        return [
            formula.form.emitted(each, formula.element)
            for formula, each in zip(carried, values, strict=True)
        ]

    with ir.InsertionPoint(block):
        position, *values = block.arguments
        create("scf.yield", [formula.value for formula in body(position, *wrap(values)) or ()])
    return wrap(for_op.results)


def when(
    condition: ArrayLike, body: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:
    """``scf.if`` without results."""
    if_op = create("scf.if", [condition.value], regions=2)
    for region, emit in zip(if_op.regions, (body, otherwise), strict=True):
        if emit is not None:
            with ir.InsertionPoint(region.blocks.append()):
                emit()
                create("scf.yield")


def store_with_tail(
    operand: ArrayLike, memory: Value, row: Sequence[Value], n: int, column: ArrayLike, nr: int
) -> None:
    """Store a vector to a row of ``M x N`` memory, without the lanes at N or beyond.

    Args:
        memory: the memref, whose last axis has size N.
        n: N.
        column: the column of lane 0, a multiple of the lanes.
        nr: columns are computed in tiles of this size.
    """
    lanes = operand.form.lanes
    if n % nr == 0:
        store(operand, memory, [*row, column.value])
        return
    when(column + lanes <= n, lambda: store(operand, memory, [*row, column.value]))
    whole, tail = divmod(n, lanes)
    if not tail:
        return

    def store_tail() -> None:
        for lane in range(tail):
            store_element(element_at(operand, lane), memory, [*row, (column + lane).value])

    when(column == whole * lanes, store_tail)


def store_vectors_with_tail(
    operands: Sequence[ArrayLike], memory: Value, row: Sequence[Value], n: int, column: ArrayLike
) -> None:
    """Store consecutive vectors to a row of ``M x N`` memory, without the lanes at N or beyond.

    The lanes of the last vector that are before N are stored with a mask.

    Args:
        memory: the memref, whose last axis has size N.
        n: N.
        column: the column of lane 0 of the first vector, a multiple of the lanes of all vectors.
    """
    lanes = operands[0].form.lanes
    width = lanes * len(operands)

    def store_vectors(count: int, masked: int) -> None:
        for number, operand in enumerate(operands[: count + bool(masked)]):
            index = [*row, (column + number * lanes).value]
            if number < count:
                store(operand, memory, index)
                continue
            mask = constant_vector([lane < masked for lane in range(lanes)], BOOL)
            create("vector.maskedstore", [memory, *index, mask.value, operand.value])

    rest = divmod(n % width, lanes)
    if n < width:
        store_vectors(*rest)
    elif n % width:
        is_whole = column + width <= n
        when(is_whole, lambda: store_vectors(len(operands), 0), lambda: store_vectors(*rest))
    else:
        store_vectors(len(operands), 0)
