"""Loops and the shapes around them: ``linalg.generic``, ``tensor`` operations, checks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from ..core._mlir import Operation, Value, ir, place_of
from . import operation
from .operation import create, index_type, integer, integers, is_dynamic, tensor_type, value

BARRIER = "util.optimization_barrier"
"""IREE's operation that keeps operations around it apart in optimizations."""
APART = "iree_tensor_ext.compute_barrier.start"
"""IREE's operation that keeps operations around it in separate dispatches."""
TIE_SHAPE = "flow.tensor.tie_shape"
"""IREE's operation that gives a tensor its dynamic sizes."""
IN_PLACE = "subquant.in_place"
"""The attribute of an ``scf.for`` that carries buffers (`iree_workarounds.buffer_iter_args`)."""
Iterator = Literal["parallel", "reduction"]
DimSize: TypeAlias = int | Value
"""Size of an axis: a number, or a value of type ``index``."""


# -- indices and constants ------------------------------------------------------------------------


def constant_index(number: int) -> Value:
    """A constant of type ``index``."""
    return operation.constant(_index(int(number)))


@operation.computed_once
def _index(number: int) -> ir.Attribute:
    return ir.IntegerAttr.get(index_type(), number)


def constant(attribute: ir.Attribute) -> Value:
    """A constant of a dense attribute."""
    return value("arith.constant", [], attribute.type, {"value": attribute})


def dim(tensor: Value, axis: DimSize) -> Value:
    """The size of an axis (a number, or a value of type ``index``), as an ``index``.

    IREE 3.13 refuses to ask it of unsigned integers: it is asked of their bits.
    """
    if _is_unsigned(tensor):
        signless = ir.IntegerType.get_signless(tensor.type.element_type.width)
        type_ = operation.with_element(tensor.type, signless)
        tensor = value("stablehlo.bitcast_convert", [tensor], type_)
    number = constant_index(axis) if isinstance(axis, int) else axis
    return value("tensor.dim", [tensor, number], index_type())


def sizes(tensor: Value) -> list[DimSize]:
    """The sizes of a tensor's axes: an int if static, else an index."""
    return [
        dim(tensor, axis) if tensor.type.is_dynamic_dim(axis) else int(size)
        for axis, size in enumerate(tensor.type.shape)
    ]


def _is_unsigned(tensor: Value) -> bool:
    """True for unsigned integers, which IREE's operations refuse."""
    element = getattr(tensor.type, "element_type", None)
    return isinstance(element, ir.IntegerType) and bool(element.is_unsigned)


def block_count(axis_size: Value, size: int) -> Value:
    """Return the number of blocks of an axis; the last block may be shorter."""
    return value("arith.ceildivsi", [axis_size, constant_index(size)], index_type())


def block_of(position: Value, size: int) -> Value:
    """The number of the block of a size that a position is in."""
    if size == 1:
        return position
    return value("arith.divui", [position, constant_index(size)], index_type())


def check(condition: Value, message: str) -> None:
    """Fail at run time with `message` unless `condition` holds."""
    create("cf.assert", [condition], [], {"msg": ir.StringAttr.get(message)})


def name_and_place(op: Operation) -> str:
    """An operation's name and location, for messages at run time."""
    location = place_of(op.location)
    return f"'{op.name}' op" + (f" at {location}" if location else "")


# -- tensors --------------------------------------------------------------------------------------


def cast(tensor: Value, type_: ir.Type) -> Value:
    """A tensor as a compatible type, that has more or fewer static sizes."""
    return tensor if tensor.type == type_ else value("tensor.cast", [tensor], type_)


def empty(
    shape: Sequence[DimSize], element: ir.Type, encoding: ir.Attribute | None = None
) -> Value:
    """A tensor to write to."""
    dynamic = [size for size in shape if not isinstance(size, int)]
    return value("tensor.empty", dynamic, tensor_type(_static(shape), element, encoding))


def filled(shape: Sequence[DimSize], scalar: Value) -> Value:
    """A tensor of equal elements."""
    return fill(scalar, empty(shape, scalar.type))


def fill(scalar: Value, output: Value) -> Value:
    """The tensor `output` with `scalar` in all places."""
    filling = create(
        "linalg.fill",
        [scalar, output],
        [output.type],
        {"operandSegmentSizes": segments(1, 1)},
        regions=1,
    )
    _fill_body(filling, [scalar.type] * 2, lambda number, _: number)
    return filling.results[0]


def from_elements(elements: Sequence[Value], type_: ir.Type | None = None) -> Value:
    """A tensor of scalars, in order: of one axis, or of the static type `type_`."""
    if type_ is None:
        type_ = tensor_type([len(elements)], elements[0].type)
    return value("tensor.from_elements", elements, type_)


def concatenate(tensors: Sequence[Value], axis: int, type_: ir.Type) -> Value:
    """Tensors one after another along an axis, as a value of `type_`."""
    return value("tensor.concat", tensors, type_, {"dim": integer(axis)})


def with_barrier(tensor: Value) -> Value:
    """Return a tensor behind IREE's optimization barrier, with its dynamic sizes tied again."""
    name = "stablehlo.optimization_barrier" if _is_unsigned(tensor) else BARRIER
    barrier = value(name, [tensor], tensor.type)
    dynamic = [axis for axis, size in enumerate(tensor.type.shape) if is_dynamic(int(size))]
    if not dynamic:
        return barrier
    return value(TIE_SHAPE, [barrier, *(dim(tensor, axis) for axis in dynamic)], tensor.type)


def in_separate_dispatch(tensor: Value) -> Value:
    """Return a tensor whose producer is in another dispatch than its consumer.

    With an optimization barrier the caller waits between the two dispatches (IREE 3.13). The
    operation used here is removed when dispatches are formed, and the device does not wait. IREE
    folds through it and asks for sizes, so constant and dynamic tensors get a barrier.
    """
    is_static = tensor.type.has_static_shape
    if _is_unsigned(tensor) or not is_static or not depends_on_arguments(tensor):
        return with_barrier(tensor)
    return value(APART, [tensor], tensor.type)


def separate_operands(op: Operation, numbers: Iterable[int]) -> bool:
    """Compute operands in other dispatches than the operation; False if all are so already."""
    changed = [number for number in numbers if not _is_separate(op.operands[number])]
    with ir.InsertionPoint(op), op.location:
        for number in changed:
            op.operands[number] = in_separate_dispatch(op.operands[number])
    return bool(changed)


def _is_separate(tensor: Value) -> bool:
    """True for a tensor that no other dispatch computes: it is in memory, or behind a barrier."""
    producer = operation.producer_of(tensor)
    barriers = (APART, BARRIER, TIE_SHAPE, "stablehlo.optimization_barrier")
    return producer is None or not list(producer.operands) or producer.name in barriers


def depends_on_arguments(tensor: Value) -> bool:
    """Return True if IREE cannot know a tensor when it compiles: it depends on an argument, say."""

    def may_be_known(value: Value) -> bool | None:
        is_argument = isinstance(value.owner, ir.Block)
        return False if is_argument or value.owner.operation.name in (APART, BARRIER) else None

    return not operation.all_producers(tensor, may_be_known)


def extract(tensor: Value, indices: Sequence[Value]) -> Value:
    """One element."""
    return value("tensor.extract", [tensor, *indices], tensor.type.element_type)


def expand(tensor: Value, groups: Sequence[Sequence[int]], shape: Sequence[DimSize]) -> Value:
    """Split axes of a tensor into the axes of `shape`.

    `groups` has for each axis of the tensor the axes of the result that it becomes, in order.
    """
    if len(groups) == len(shape):
        return tensor
    static = _static(shape)
    dynamic = [size for size in shape if not isinstance(size, int)]
    attributes = {
        "reassociation": _reassociation(groups),
        "static_output_shape": integers(
            [ir.ShapedType.get_dynamic_size() if n is None else n for n in static]
        ),
    }
    type_ = tensor_type(static, tensor.type.element_type)
    return value("tensor.expand_shape", [tensor, *dynamic], type_, attributes)


def collapse(
    tensor: Value, groups: Sequence[Sequence[int]], shape: Sequence[int | None] | None = None
) -> Value:
    """Join axes.

    Args:
        groups: for each axis of the result the axes of `tensor` that it joins.
        shape: the result's shape, None for a dynamic size; by default computed from `tensor`.
    """
    sizes = [None if is_dynamic(int(n)) else int(n) for n in tensor.type.shape]
    if len(groups) == len(sizes):
        return tensor
    if shape is None:
        shape = []
        for group in groups:
            of_group = [sizes[axis] for axis in group]
            static = [size for size in of_group if size is not None]
            shape.append(math.prod(static) if len(static) == len(of_group) else None)
    type_ = tensor_type(shape, tensor.type.element_type)
    attributes = {"reassociation": _reassociation(groups)}
    return value("tensor.collapse_shape", [tensor], type_, attributes)


def _static(shape: Sequence[DimSize]) -> list[int | None]:
    """The shape of a type: None for dynamic sizes."""
    return [size if isinstance(size, int) else None for size in shape]


def _reassociation(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.ArrayAttr.get([integer(n) for n in group]) for group in groups])


# -- loops ----------------------------------------------------------------------------------------


def consecutive(counts: Iterable[int]) -> list[list[int]]:
    """Return consecutive numbers from 0 in groups of the given sizes."""
    numbers = itertools.count()
    return [[next(numbers) for _ in range(count)] for count in counts]


def identity_map(rank: int) -> ir.AffineMap:
    """Each loop indexes the axis of its number."""
    return ir.AffineMap.get_identity(rank)


def affine_maps(maps: Sequence[ir.AffineMap]) -> ir.Attribute:
    """The attribute ``indexing_maps`` of a loop nest."""
    return ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])


def segments(inputs: int, outputs: int) -> ir.Attribute:
    """Return ``operandSegmentSizes``: the numbers of inputs and outputs."""
    return ir.DenseI32ArrayAttr.get([inputs, outputs])


def loop_index(number: int) -> Value:
    """In the body of a loop nest: the index of a loop."""
    return value("linalg.index", [], index_type(), {"dim": integer(number)})


def generic(
    inputs: Sequence[Value],
    output: Value,
    maps: Sequence[ir.AffineMap],
    body: Callable[..., Value],
    iterators: Sequence[Iterator] | None = None,
) -> Value:
    """Create a ``linalg.generic`` with one output, and return its result.

    It starts from the value of `output`; `maps` index the inputs and the output.
    """
    loops = ["parallel"] * maps[-1].n_dims if iterators is None else list(iterators)
    kinds = {kind: ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in set(loops)}
    attributes = {
        "indexing_maps": affine_maps(maps),
        "iterator_types": ir.ArrayAttr.get([kinds[kind] for kind in loops]),
        "operandSegmentSizes": segments(len(inputs), 1),
    }
    nest = create("linalg.generic", [*inputs, output], [output.type], attributes, regions=1)
    elements = [getattr(v.type, "element_type", v.type) for v in (*inputs, output)]
    _fill_body(nest, elements, body)
    return nest.results[0]


def fold(
    first: Value,
    end: Value,
    start: Sequence[Value],
    body: Callable[..., Sequence[Value]],
    *,
    in_place: bool = False,
) -> list[Value]:
    """Create an ``scf.for`` with iter_args, and return its results.

    Args:
        first, end: the half-open range of the loop, values of type ``index``.
        start: the initial iter_args.
        body: returns the next iter_args from the index and the iter_args.
        in_place: True to update tensors in place: see
            `subquant.transforms.iree_workarounds.buffer_iter_args`.
    """
    carried = [each.type for each in start]
    attributes: dict[str, ir.Attribute] = {IN_PLACE: ir.UnitAttr.get()} if in_place else {}
    operands = [first, end, constant_index(1), *start]
    loop = create("scf.for", operands, carried, attributes, regions=1)
    types = [index_type(), *carried]
    block = loop.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block), operation.recorded():
        create("scf.yield", list(body(*block.arguments)))
    return list(loop.results)


def take_slice(tensor: Value, position: Value, type_: ir.Type) -> Value:
    """The slice of a type at a position of the first axis, whole along the others."""
    attributes = _slice_attributes(type_, [1, 1, 0, 0])
    return value("tensor.extract_slice", [tensor, position], type_, attributes)


def take_first(flat: Value, count: Value, shape: Sequence[DimSize]) -> Value:
    """The first elements of a tensor of one axis, in another shape, as a copy of memory.

    IREE's own operations: it makes a dispatch of a ``tensor.extract_slice`` of dynamic size,
    which Vulkan does not run without elements (IREE 3.13).

    Args:
        flat: of static size.
        count: the number of elements, a value of type ``index``.
        shape: of the result: ints, or values of type ``index``; as many elements.
    """
    element = flat.type.element_type
    elements = value(
        "flow.tensor.slice",
        [flat, constant_index(0), count, count],
        tensor_type([None], element),
        {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 1, 1, 1])},
    )
    sizes = [size for size in shape if not isinstance(size, int)]
    return value(
        "flow.tensor.reshape",
        [elements, count, *sizes],
        tensor_type(_static(shape), element),
        {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, len(sizes)])},
    )


def put_slice(part: Value, tensor: Value, *starts: Value) -> Value:
    """A tensor with a part of it replaced, from a position along each of the first axes."""
    sizes = [dim(part, axis) for axis, n in enumerate(part.type.shape) if is_dynamic(int(n))]
    attributes = _slice_attributes(part.type, [1, 1, len(starts), len(sizes), 0], len(starts))
    operands = [part, tensor, *starts, *sizes]
    return value("tensor.insert_slice", operands, tensor.type, attributes)


def _slice_attributes(
    type_: ir.Type, operands: Sequence[int], offsets: int = 1
) -> dict[str, ir.Attribute]:
    """The attributes of a slice with computed offsets along the first axes, and 0 along others."""
    rank, dynamic = type_.rank, ir.ShapedType.get_dynamic_size()
    return {
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get(list(operands)),
        "static_offsets": integers([dynamic] * offsets + [0] * (rank - offsets)),
        "static_sizes": integers([int(n) for n in type_.shape]),
        "static_strides": integers([1] * rank),
    }


def _fill_body(nest: Operation, elements: Sequence[ir.Type], body: Callable[..., Value]) -> None:
    locations = [ir.Location.current] * len(elements)
    block = nest.regions[0].blocks.append(*elements, arg_locs=locations)
    with ir.InsertionPoint(block), operation.recorded():  # the body belongs to the nest
        create("linalg.yield", [body(*block.arguments)])
