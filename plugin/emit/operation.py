"""Creating operations: the one place that does, and the types and attributes that they take.

Operations are known by name: creating one from a name, types and attributes takes 6 us, and by the
bindings' class of its own 24 us. They are created at the current insertion point, with the current
location.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..dialects.dense import dense_of_array
from ..dialects.quant import element_type, is_quantized
from ..numerics.element_types import Array, ElementType

__all__ = [
    "INDEX",
    "attributes_of",
    "byte_size",
    "constant",
    "constants_block",
    "constants_of",
    "create",
    "dense",
    "dynamic_extents",
    "element_of",
    "erase_unused",
    "index_type",
    "integer",
    "integers",
    "is_dynamic",
    "is_used",
    "kept",
    "kept_with_constants",
    "like",
    "mlir_type",
    "number_of",
    "parse_attribute",
    "recorded",
    "splat",
    "tensor_type",
    "types_kept",
    "value",
    "values_read",
    "with_element",
    "with_shape",
]

_recorders: list[list[Operation]] = []
_pools: list[tuple[ir.Block, dict[Any, Any]]] = []
_kept: list[dict[Any, Any]] = []


def create(
    name: str,
    operands: Sequence[Value] = (),
    results: Sequence[ir.Type] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
    *,
    regions: int = 0,
    detached: bool = False,
) -> Operation:
    """Create an operation.

    Args:
        name: with its dialect, ``stablehlo.add``.
        operands: the values that it takes.
        results: the types of its results.
        attributes: by name.
        regions: how many empty regions it has.
        detached: leave it outside of every block; the caller keeps it.

    Returns:
        The operation.
    """
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
    block, held = _pools[-1]
    found = held.get(attribute)
    if found is None:
        with ir.InsertionPoint.at_block_begin(block):
            found = held[attribute] = value("arith.constant", [], type_, {"value": attribute})
    return found


@contextlib.contextmanager
def constants_of(block: ir.Block) -> Iterator[None]:
    """Have equal constants be one, at the begin of a block that all is written into meanwhile.

    A third of the operations of a kernel would be constants else.
    """
    _pools.append((block, {}))
    try:
        yield
    finally:
        _pools.pop()


def kept_with_constants(make: Callable[..., Any], *arguments: Hashable) -> Any:
    """What a function makes of its arguments, once inside the innermost `constants_of`."""
    if not _pools:
        return make(*arguments)
    held = _pools[-1][1]
    key = (make, arguments)
    found = held.get(key)
    if found is None:
        found = held[key] = make(*arguments)
    return found


def constants_block() -> ir.Block:
    """The block that constants are written into: that of `constants_of`, or the current one."""
    block: ir.Block = _pools[-1][0] if _pools else ir.InsertionPoint.current.block
    return block


@contextlib.contextmanager
def types_kept() -> Iterator[None]:
    """Keep types and attributes that are asked for again, all of the context that is current.

    They are a third of what it takes to write the operations of a kernel. No longer: what is kept
    keeps its context.
    """
    _kept.append({})
    try:
        yield
    finally:
        _kept.pop()


def kept(make: Callable[..., Any], *arguments: Hashable) -> Any:
    """What a function makes of its arguments, once inside `types_kept`."""
    if not _kept:
        return make(*arguments)
    held = _kept[-1]
    key = (make, arguments)
    found = held.get(key)
    if found is None:
        found = held[key] = make(*arguments)
    return found


def like(
    op: Operation,
    operands: Sequence[Value] | None = None,
    results: Sequence[ir.Type] | None = None,
    attributes: Mapping[str, ir.Attribute] | None = None,
    *,
    name: str | None = None,
    take_bodies: bool = False,
) -> Operation:
    """Create an operation as another one is, but for what is given.

    Args:
        op: the other operation; it stays where it is.
        operands, results, name: what differs.
        attributes: added to those of `op`, or instead of them.
        take_bodies: move the blocks of `op`'s regions into the new operation.

    Returns:
        The operation.
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
    """The operands of an operation, and the values of its block that its regions read besides."""
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


def erase_unused(op: Operation, also: Callable[[Operation], bool] = lambda _: True) -> None:
    """Erase an operation if nobody reads its results, and what then nobody reads.

    Args:
        op: the operation.
        also: says of each operation behind its operands whether it may go too.
    """
    pending = [op]
    while pending:
        op = pending.pop()
        if any(map(is_used, op.results)):
            continue
        owners = [v.owner.operation for v in op.operands if not isinstance(v.owner, ir.Block)]
        op.erase()
        pending += [each for each in dict.fromkeys(owners) if each not in pending and also(each)]


def all_behind(value: Value, accepts: Callable[[Value], bool | None]) -> bool:
    """True if a value, and what it is computed of, is accepted; each is looked at once.

    Args:
        value: the value.
        accepts: says of a value whether it is; None if that depends on the operands of its
            operation.
    """
    pending, seen = [value], {value}
    while pending:
        given = pending.pop()
        is_accepted = accepts(given)
        if is_accepted is False:
            return False
        if is_accepted is None:
            operands = [each for each in given.owner.operation.operands if each not in seen]
            pending += operands
            seen.update(operands)
    return True


def computed_again(value: Value, known: dict[Value, Value]) -> Value:
    """Copy what computes a value to the insertion point, and return what the copy gives.

    Args:
        value: the first result of operations of one result each, behind which there are no
            arguments but those that are known.
        known: what stands for values; what is copied is added.
    """
    if value not in known:
        op = value.owner.operation
        operands = [computed_again(operand, known) for operand in op.operands]
        made = op.clone().operation
        for number, operand in enumerate(operands):
            made.operands[number] = operand
        known[value] = made.results[0]
    return known[value]


@contextlib.contextmanager
def recorded() -> Iterator[list[Operation]]:
    """List the operations that are created meanwhile, in order, those of inner `recorded` aside."""
    operations: list[Operation] = []
    _recorders.append(operations)
    try:
        yield operations
    finally:
        _recorders.pop()


# -- types ----------------------------------------------------------------------------------------

INDEX = ElementType("index", "int", 64, np.dtype(np.int64))
"""Extents and positions, which MLIR keeps apart from the integers of any width."""

_FLOAT_TYPES = {"f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "f64": ir.F64Type}


def mlir_type(element: ElementType) -> ir.Type:
    """The MLIR type of an element: signless where it is an integer."""
    return kept(_mlir_type, element)


def _mlir_type(element: ElementType) -> ir.Type:
    if element.is_float:
        return _FLOAT_TYPES[element.name].get()
    if element == INDEX:
        return index_type()
    return ir.IntegerType.get_signless(element.bits)


def element_of(type_: ir.Type, *, signed: bool = True) -> ElementType:
    """How the elements of a type are read; `signed` says it of signless integers."""
    found: ElementType = kept(_element_of, type_, signed)
    return found


def _element_of(type_: ir.Type, signed: bool) -> ElementType:
    element = element_type(type_)
    if isinstance(element, ir.IndexType):
        return INDEX
    if isinstance(element, ir.IntegerType):
        unsigned = element.is_unsigned or (element.is_signless and not signed)
        return ElementType.parse(f"{'u' if unsigned and element.width > 1 else 'i'}{element.width}")
    return ElementType.parse(str(element))


def index_type() -> ir.Type:
    """The type ``index``."""
    return kept(ir.IndexType.get)


def tensor_type(
    shape: Sequence[int | None], element: ir.Type, encoding: ir.Attribute | None = None
) -> ir.RankedTensorType:
    """A ranked tensor type; an extent of None is dynamic."""
    dynamic = ir.ShapedType.get_dynamic_size()
    extents = [dynamic if extent is None else int(extent) for extent in shape]
    return ir.RankedTensorType.get(extents, element, encoding)


def with_element(type_: ir.Type, element: ir.Type) -> ir.Type:
    """A tensor type with other elements; the element type for a type of one element."""
    if isinstance(type_, ir.RankedTensorType):
        return ir.RankedTensorType.get(list(type_.shape), element, type_.encoding)
    if isinstance(type_, ir.UnrankedTensorType):
        return ir.UnrankedTensorType.get(element)
    return element


def with_shape(type_: ir.Type, shape: Sequence[int | None]) -> ir.RankedTensorType:
    """A ranked tensor type of another shape; an extent of None is dynamic."""
    return tensor_type(shape, type_.element_type, type_.encoding)


def dynamic_extents(type_: ir.RankedTensorType) -> int:
    """How many extents of a ranked tensor type are known at run time only."""
    return sum(type_.is_dynamic_dim(axis) for axis in range(len(type_.shape)))


def byte_size(type_: ir.ShapedType) -> int:
    """The bytes of the elements of a static type, or of what stores them, side by side."""
    if is_quantized(type_):
        bits = int(element_type(type_).storage_type_integral_width)
    else:
        bits = element_of(type_).bits
    return math.prod(int(extent) for extent in type_.shape) * bits // 8


def is_dynamic(extent: int) -> bool:
    """True for an extent, as a type's shape has it, that is known at run time only."""
    return extent < 0


# -- attributes -----------------------------------------------------------------------------------


def integers(numbers: Sequence[int]) -> ir.Attribute:
    """``array<i64: ...>``."""
    return ir.DenseI64ArrayAttr.get([int(number) for number in numbers])


def integer(number: int) -> ir.Attribute:
    """A number of type i64."""
    return kept(_integer, int(number))


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


def parse_attribute(text: str) -> ir.Attribute:
    """An attribute of a dialect whose classes the bindings do not have."""
    return kept(ir.Attribute.parse, text)
