"""Creating operations: the one place that does, and the types and attributes that they take.

Operations are known by name: creating one from a name, types and attributes takes 6 us, and by the
bindings' class of its own 24 us. They are created at the current insertion point, with the current
location.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import dense_of_array
from ..dialects.quant import element_type, is_quantized
from ..numerics.element_types import Array, ElementType

_Entry = TypeVar("_Entry")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_recorders: list[list[Operation]] = []
_pools: list[tuple[ir.Block, dict[Any, Any]]] = []
_caches: list[dict[Any, Any]] = []


def create(
    name: str,
    operands: Sequence[Value] = (),
    results: Sequence[ir.Type] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
    *,
    regions: int = 0,
    detached: bool = False,
) -> Operation:
    """Create an operation; a detached one is outside of every block, and the caller keeps it."""
    created = ir.Operation.create(
        name,
        results=results,
        operands=operands,
        attributes=None if attributes is None else dict(attributes),
        regions=regions,
        ip=False if detached else None,
    )
    if _recorders:
        _recorders[-1].append(created)
    return created


def value(
    name: str,
    operands: Sequence[Value],
    result: ir.Type,
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> Value:
    """Create an operation of one result, and return that."""
    return create(name, operands, [result], attributes).result


def constant(attribute: ir.Attribute) -> Value:
    """A constant that is not a tensor; inside `constants_of` one for all that are equal."""
    type_ = attribute.type
    if not _pools:
        return value("arith.constant", [], type_, {"value": attribute})
    block, pool = _pools[-1]
    result = pool.get(attribute)
    if result is None:
        with ir.InsertionPoint.at_block_begin(block):
            result = pool[attribute] = value("arith.constant", [], type_, {"value": attribute})
    return result


@contextlib.contextmanager
def _entered(stack: list[_Entry], entry: _Entry) -> Iterator[_Entry]:
    """Push an entry for the time of the context."""
    stack.append(entry)
    try:
        yield entry
    finally:
        stack.pop()


def constants_of(block: ir.Block) -> contextlib.AbstractContextManager[object]:
    """Share equal constants, at the start of the block that is being written.

    Without sharing a third of a kernel's operations are constants.
    """
    return _entered(_pools, (block, {}))


def cached_with_constants(make: Callable[..., Any], *arguments: Hashable) -> Any:
    """Return the result of a function, computed once in the innermost `constants_of`."""
    return _computed_once(_pools[-1][1] if _pools else None, make, arguments)


def _computed_once(
    pool: dict[Any, Any] | None, make: Callable[..., Any], arguments: tuple[Hashable, ...]
) -> Any:
    if pool is None:
        return make(*arguments)
    key = (make, arguments)
    result = pool.get(key)
    if result is None:
        result = pool[key] = make(*arguments)
    return result


def constants_block() -> ir.Block:
    """The block that constants are written into: that of `constants_of`, or the current one."""
    block: ir.Block = _pools[-1][0] if _pools else ir.InsertionPoint.current.block
    return block


def types_cached() -> contextlib.AbstractContextManager[object]:
    """Cache types and attributes of the current context while a kernel is written.

    Creating them takes a third of the time of writing a kernel. The cache ends with the block: its
    entries keep their context alive.
    """
    return _entered(_caches, {})


def cached(make: Callable[..., Any], *arguments: Hashable) -> Any:
    """Return the result of a function, computed once inside `types_cached`."""
    return _computed_once(_caches[-1] if _caches else None, make, arguments)


def computed_once(make: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function compute each result once inside `types_cached`."""

    @functools.wraps(make)
    def call(*arguments: _P.args, **options: _P.kwargs) -> _R:
        if options:
            return make(*arguments, **options)
        result: _R = _computed_once(_caches[-1] if _caches else None, make, arguments)
        return result

    return call


def like(
    op: Operation,
    operands: Sequence[Value] | None = None,
    results: Sequence[ir.Type] | None = None,
    attributes: Mapping[str, ir.Attribute] | None = None,
    *,
    name: str | None = None,
    take_bodies: bool = False,
) -> Operation:
    """Create a copy of an operation with some properties replaced; None keeps those of `op`.

    With `take_bodies` the blocks of `op`'s regions are moved into the new operation.
    """
    created = create(
        op.name if name is None else name,
        list(op.operands) if operands is None else operands,
        [result.type for result in op.results] if results is None else results,
        {**attributes_of(op), **(attributes or {})},
        regions=len(op.regions),
    )
    if take_bodies:
        for old, new in zip(op.regions, created.regions, strict=True):
            for block in list(old.blocks):
                block.append_to(new)
    return created


def attributes_of(op: Operation) -> dict[str, ir.Attribute]:
    """An operation's attributes by name."""
    return {name: op.attributes[name] for name in op.attributes}


def values_read(op: Operation) -> list[Value]:
    """Return the operands of an operation, and the values of its block that its regions capture."""
    read = list(op.operands)
    if len(op.regions):

        def visit(inner: Operation) -> ir.WalkResult:
            for operand in inner.operands:
                owner = operand.owner
                block = owner if isinstance(owner, ir.Block) else owner.operation.block
                if inner.operation != op and block == op.block:
                    read.append(operand)
            return ir.WalkResult.ADVANCE

        op.walk(visit, ir.WalkOrder.PRE_ORDER)
    return read


def is_used(value: Value) -> bool:
    """True if an operation reads a value."""
    return next(iter(value.uses), None) is not None


def only_user(value: Value) -> Any:
    """Return the operation that reads a value once, if nothing else reads it; None otherwise."""
    uses = list(value.uses)
    return uses[0].owner.operation if len(uses) == 1 else None


def producer_of(value: Value) -> Any:
    """Return the operation that defines a value; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def producer_named(value: Value, *names: str) -> Any:
    """Return the operation that defines a value if it has one of the names, else None."""
    producer = producer_of(value)
    return producer if producer is not None and producer.name in names else None


def value_before(value: Value, *names: str) -> Value:
    """Return the value before a chain of operations that have one of `names`."""
    while (producer := producer_named(value, *names)) is not None:
        value = producer.operands[0]
    return value


def erase_unused(*ops: Operation, also: Callable[[Operation], bool] = lambda _: True) -> None:
    """Erase operations without uses, and their producers that lose their last use.

    One call erases operations that produce operands of each other; several calls would refer to
    erased ones.
    """
    pending = list(dict.fromkeys(ops))
    while pending:
        op = pending.pop()
        if any(map(is_used, op.results)):
            continue
        owners = [v.owner.operation for v in op.operands if not isinstance(v.owner, ir.Block)]
        op.erase()
        pending += [each for each in dict.fromkeys(owners) if each not in pending and also(each)]


def all_producers(value: Value, accepts: Callable[[Value], bool | None]) -> bool:
    """Return True if a value and the values that it is computed from are accepted.

    Args:
        accepts: True or False for a value, None if its producer's operands decide. It is called
            once for each value.
    """
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        is_accepted = accepts(current)
        if is_accepted is False:
            return False
        if is_accepted is None:
            operands = [each for each in current.owner.operation.operands if each not in seen]
            pending += operands
            seen.update(operands)
    return True


def backward_slice(
    op: Operation, includes: Callable[[Operation], bool] = lambda _: True
) -> list[Operation]:
    """List an operation and the producers of its operands, each after its own producers."""
    order: dict[Operation, None] = {}
    pending = [op]
    while pending:
        owners = (operand.owner for operand in pending[-1].operands)
        producers = [each.operation for each in owners if not isinstance(each, ir.Block)]
        missing = [each for each in producers if each not in order and includes(each)]
        if missing:
            pending += missing
        else:
            order[pending.pop()] = None
    return list(order)


def function_blocks(module: Operation) -> Iterator[ir.Block]:
    """The blocks of a module's functions, without those of operations inside of them."""
    for each in module.regions[0].blocks[0].operations:
        if each.operation.name == "func.func":
            yield from each.regions[0].blocks


def clone_computation(value: Value, clones: dict[Value, Value]) -> Value:
    """Clone the operations, of one result each, that compute a value from `clones`; return it."""
    if value not in clones:
        op = value.owner.operation
        operands = [clone_computation(operand, clones) for operand in op.operands]
        clone = op.clone().operation
        for number, operand in enumerate(operands):
            clone.operands[number] = operand
        clones[value] = clone.results[0]
    return clones[value]


def recorded() -> contextlib.AbstractContextManager[list[Operation]]:
    """List the operations that are created meanwhile, in order, those of inner `recorded` aside."""
    return _entered(_recorders, [])


# -- types ----------------------------------------------------------------------------------------

INDEX = ElementType("index", "int", 64, np.dtype(np.int64))
"""Sizes and positions, which MLIR keeps apart from the integers of any width."""

_FLOAT_TYPES = {"f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "f64": ir.F64Type}


@computed_once
def mlir_type(element: ElementType) -> ir.Type:
    """The MLIR type of an element: signless where it is an integer."""
    if element.is_float:
        return _FLOAT_TYPES[element.name].get()
    if element == INDEX:
        return index_type()
    return ir.IntegerType.get_signless(element.bits)


@computed_once
def element_of(type_: ir.Type, signed: bool = True) -> ElementType:
    """Return the element type of a type; `signed` decides for signless integers."""
    element = element_type(type_)
    if isinstance(element, ir.IndexType):
        return INDEX
    if isinstance(element, ir.IntegerType):
        unsigned = element.is_unsigned or (element.is_signless and not signed)
        return ElementType.parse(f"{'u' if unsigned and element.width > 1 else 'i'}{element.width}")
    return ElementType.parse(str(element))


@computed_once
def index_type() -> ir.Type:
    """The type ``index``."""
    return ir.IndexType.get()


def tensor_type(
    shape: Sequence[int | None], element: ir.Type, encoding: ir.Attribute | None = None
) -> ir.RankedTensorType:
    """A ranked tensor type; a size of None is dynamic."""
    dynamic = ir.ShapedType.get_dynamic_size()
    sizes = [dynamic if size is None else int(size) for size in shape]
    return ir.RankedTensorType.get(sizes, element, encoding)


def with_element(type_: ir.Type, element: ir.Type) -> ir.Type:
    """A tensor type with other elements; the element type for a type of one element."""
    if isinstance(type_, ir.RankedTensorType):
        return ir.RankedTensorType.get(list(type_.shape), element, type_.encoding)
    if isinstance(type_, ir.UnrankedTensorType):
        return ir.UnrankedTensorType.get(element)
    return element


def with_shape(type_: ir.Type, shape: Sequence[int | None]) -> ir.RankedTensorType:
    """A ranked tensor type of another shape; a size of None is dynamic."""
    return tensor_type(shape, type_.element_type, type_.encoding)


def dynamic_dims(type_: ir.RankedTensorType) -> int:
    """Return the number of dynamic sizes of a ranked tensor type."""
    return sum(type_.is_dynamic_dim(axis) for axis in range(len(type_.shape)))


def byte_size(type_: ir.ShapedType) -> int:
    """Return the bytes of the elements of a static type, or of its storage, packed."""
    element = element_type(type_)
    if is_quantized(type_):
        bits = int(element.storage_type_integral_width)
    elif isinstance(element, ir.ComplexType):
        bits = 2 * element.element_type.width
    elif isinstance(element, ir.FloatType):
        bits = element.width
    else:
        bits = element_of(type_).bits
    return math.prod(int(size) for size in type_.shape) * bits // 8


def is_dynamic(size: int) -> bool:
    """True for a size, as a type's shape has it, that is known at run time only."""
    return size < 0


# -- attributes -----------------------------------------------------------------------------------


def integers(numbers: Sequence[int]) -> ir.Attribute:
    """``array<i64: ...>``."""
    return ir.DenseI64ArrayAttr.get([int(number) for number in numbers])


def integer(number: int) -> ir.Attribute:
    """A number of type i64."""
    return _integer(int(number))


@computed_once
def _integer(number: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def number_of(element: ir.Type, number: float | int) -> ir.Attribute:
    """A number of a float type, of ``index``, or of an integer type, whose bits it is cut to."""
    if isinstance(element, ir.IntegerType):
        bits = int(number) & ((1 << element.width) - 1)
        negative = not element.is_unsigned and element.width > 1 and bits >> (element.width - 1)
        return ir.IntegerAttr.get(element, bits - (1 << element.width) if negative else bits)
    if isinstance(element, ir.IndexType):
        return ir.IntegerAttr.get(element, int(number))
    return ir.FloatAttr.get(element, float(number))


def splat(number: float | int, type_: ir.Type) -> ir.DenseElementsAttr:
    """A dense attribute of a static type whose elements are equal."""
    return ir.DenseElementsAttr.get_splat(type_, number_of(type_.element_type, number))


def dense(values: Array | float | int, element: ir.Type) -> ir.DenseElementsAttr:
    """A dense attribute of the shape of `values`."""
    return dense_of_array(np.asarray(values), element)


@computed_once
def parse_attribute(text: str) -> ir.Attribute:
    """An attribute of a dialect whose classes the bindings do not have."""
    return ir.Attribute.parse(text)
