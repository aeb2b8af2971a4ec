"""``lower-unranked-tensors``: an unranked tensor becomes a flat tensor and a shape tensor.

IREE has no unranked tensors. After the casts are lowered, they are left on function signatures,
calls, ``tensor.cast``, ``tensor.reshape`` and the ``shape`` operations of the RFC's Case 2. Each
value ``tensor<*xT>`` becomes the pair ``tensor<?xT>`` (the elements in row-major order) and
``tensor<?xi64>`` (the extents); the product of the extents is checked on entry.

Before::

    func.func @f(%x: tensor<*xf32>) -> tensor<*xf32> {
      %s = shape.shape_of %x : tensor<*xf32> -> tensor<?xindex>
      %n = shape.num_elements %s : tensor<?xindex> -> index
      %d = tensor.from_elements %n : tensor<1xindex>
      %r = tensor.reshape %x(%d) : (tensor<*xf32>, tensor<1xindex>) -> tensor<?xf32>
      ...

After::

    func.func @f(%x: tensor<?xf32>, %s: tensor<?xi64>) -> (tensor<?xf32>, tensor<?xi64>) {
      // %n: a loop over %s; %r: %x
      ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import ir
from ..errors import UnsupportedError
from .base import Builder, ModulePass, TypePredicate, record_signature, walk

__all__ = ["LowerUnrankedTensors"]


@dataclass(frozen=True)
class LowerUnrankedTensors(ModulePass):
    """Replace unranked tensors by pairs of ranked tensors; record the signatures that change."""

    name: ClassVar[str] = "lower-unranked-tensors"

    def run(self, module: ir.Operation) -> None:
        """Convert `module`.

        Raises:
            UnsupportedError: an operation with unranked operands or results that is not known.
        """
        operations = walk(module)
        unranked = TypePredicate(_is_unranked)
        if not any(unranked.values_of(op) or _declares_unranked(op) for op in operations):
            return
        for op in operations:
            if op.name == "func.func":
                with op.location:
                    _lower_function(op)


def _is_unranked(type_: ir.Type) -> bool:
    return isinstance(type_, ir.UnrankedTensorType)


def _declares_unranked(op: Any) -> bool:
    if op.name != "func.func":
        return False
    type_ = op.attributes["function_type"].value
    return any(_is_unranked(t) for t in (*type_.inputs, *type_.results))


def _pair_types(type_: ir.Type) -> list[ir.Type]:
    """The types that an argument or result of `type_` becomes."""
    if not _is_unranked(type_):
        return [type_]
    dynamic = [ir.ShapedType.get_dynamic_size()]
    return [
        ir.RankedTensorType.get(dynamic, type_.element_type),
        ir.RankedTensorType.get(dynamic, ir.IntegerType.get_signless(64)),
    ]


@dataclass(frozen=True)
class _Pair:
    """An unranked value: its elements and its extents."""

    flat: Any
    shape: Any


@dataclass(frozen=True)
class _Extents:
    """A value of type ``tensor<?xindex>``: the extents of `shape` from `first` to before `end`."""

    shape: Any
    first: Any
    end: Any
    is_part: bool = False


def _lower_function(function: Any) -> None:
    type_ = function.attributes["function_type"].value
    converted = ir.FunctionType.get(
        [t for old in type_.inputs for t in _pair_types(old)],
        [t for old in type_.results for t in _pair_types(old)],
    )
    if converted != type_:
        record_signature(function)
        function.attributes["function_type"] = ir.TypeAttr.get(converted)
        _lower_attributes(function, "arg_attrs", type_.inputs)
        _lower_attributes(function, "res_attrs", type_.results)
    if not len(function.regions[0].blocks):
        return
    lowering = _Lowering()
    lowering.arguments(function.regions[0].blocks[0])
    for op in walk(function):
        lowering.operation(op)
    lowering.erase()


def _lower_attributes(function: Any, name: str, types: Any) -> None:
    """Give the attributes of an argument or result to the elements; the extents have none."""
    if name in function.attributes:
        lowered: list[Any] = []
        for attribute, type_ in zip(function.attributes[name], types, strict=True):
            lowered += [attribute, ir.DictAttr.get({})][: len(_pair_types(type_))]
        function.attributes[name] = ir.ArrayAttr.get(lowered)


_TAKE_EXTENTS = {
    "shape.num_elements": [0],
    "shape.split_at": [0],
    "tensor.dim": [0],
    "tensor.extract": [0],
    "tensor.reshape": [1],
}
"""Operations that take the shape of an unranked tensor, and as which operand."""


class _Lowering:
    """The pairs and extents of one function, as they become known in program order."""

    def __init__(self) -> None:
        self._pairs: dict[Any, _Pair] = {}
        self._extents: dict[Any, _Extents] = {}
        self._dead: list[Any] = []
        self._old_arguments: list[tuple[Any, int]] = []

    def arguments(self, block: Any) -> None:
        """Replace the arguments of a function's entry block."""
        old = list(block.arguments)
        if not any(_is_unranked(argument.type) for argument in old):
            return
        location = block.owner.location
        pairs: list[tuple[Any, _Pair]] = []
        for argument in old:
            new = [block.add_argument(t, location) for t in _pair_types(argument.type)]
            if len(new) == 1:
                argument.replace_all_uses_with(new[0])
            else:
                pairs.append((argument, _Pair(*new)))
        for argument, pair in pairs:
            self._pairs[argument] = pair
            with ir.InsertionPoint.at_block_begin(block), location:
                b = Builder()
                self._check_size(b, pair, "an unranked argument's extents")
        self._old_arguments.append((block, len(old)))

    def _check_size(self, b: Builder, pair: _Pair, what: str) -> None:
        zero = b.constant(0, b.index)
        rank = b.op("tensor.dim", [pair.shape, zero], b.index)
        product = _product(b, _Extents(pair.shape, zero, rank))
        size = b.op("tensor.dim", [pair.flat, zero], b.index)
        b.check(
            b.compare(0, product, size),
            f"{what} must multiply to the number of elements",
        )

    def operation(self, op: Any) -> None:
        """Lower one operation."""
        touched = any(
            _is_unranked(value.type) or value in self._extents
            for value in (*op.operands, *op.results)
        )
        if not touched and op.name != "shape.shape_of":
            return
        handler = getattr(self, "_" + op.name.replace(".", "_"), None)
        if handler is None:
            raise UnsupportedError(
                "has an unranked operand or result, which nothing lowers; cast to a ranked tensor "
                "with tensor.cast first",
                op,
            )
        taken = [number for number, value in enumerate(op.operands) if value in self._extents]
        if taken and taken != _TAKE_EXTENTS.get(op.name):
            raise UnsupportedError(
                "uses the shape of an unranked tensor as a tensor, which nothing lowers; extract "
                "its extents with tensor.extract",
                op,
            )
        with ir.InsertionPoint(op), op.location:
            handler(Builder(), op)

    def erase(self) -> None:
        """Erase what was replaced, users before producers."""
        for op in reversed(self._dead):
            op.erase()
        for block, count in self._old_arguments:
            for _ in range(count):
                block.erase_argument(0)

    # -- operations, one method each: the name with dots as underscores ----------------------------

    def _tensor_cast(self, b: Builder, op: Any) -> None:
        source, target = op.operands[0], op.results[0]
        if not _is_unranked(source.type):
            self._pairs[target] = _Pair(_flatten(b, source), _shape_of(b, source))
        elif not _is_unranked(target.type):
            target.replace_all_uses_with(self._to_ranked(b, op, target.type))
        else:
            self._pairs[target] = self._pairs[source]
        self._dead.append(op)

    def _to_ranked(self, b: Builder, op: Any, type_: Any) -> Any:
        pair = self._pairs[op.operands[0]]
        rank = b.dim(pair.shape, 0)
        b.check(
            b.compare(0, rank, b.constant(type_.rank, b.index)),
            f"tensor.cast: rank must be {type_.rank} at run time",
        )
        extents = []
        for axis in range(type_.rank):
            extent = _extent(b, pair.shape, b.constant(axis, b.index))
            if not type_.is_dynamic_dim(axis):
                static = int(type_.shape[axis])
                b.check(
                    b.compare(0, extent, b.constant(static, b.index)),
                    f"tensor.cast: dimension {axis} must be {static} at run time",
                )
            extents.append(extent)
        return _unflatten(b, pair.flat, extents, type_)

    def _tensor_reshape(self, b: Builder, op: Any) -> None:
        source, shape = op.operands
        target = op.results[0]
        flat = self._pairs[source].flat if _is_unranked(source.type) else _flatten(b, source)
        if _is_unranked(target.type):
            extents = self._extents.get(shape)
            if extents is not None and extents.is_part:
                raise UnsupportedError(
                    "reshapes to a part of an unranked tensor's shape, which nothing lowers", op
                )
            i64_shape = (
                extents.shape
                if extents
                else b.op("arith.index_cast", [shape], _pair_types(target.type)[1])
            )
            pair = _Pair(flat, i64_shape)
            self._check_size(b, pair, "tensor.reshape: the extents")
            self._pairs[target] = pair
        else:
            values = [
                b.op("tensor.extract", [shape, b.constant(axis, b.index)], b.index)
                for axis in range(target.type.rank)
            ]
            target.replace_all_uses_with(_unflatten(b, flat, values, target.type))
        self._dead.append(op)

    def _shape_shape_of(self, b: Builder, op: Any) -> None:
        source, target = op.operands[0], op.results[0]
        if not _is_unranked(source.type):
            return
        pair = self._pairs[source]
        self._extents[target] = _Extents(pair.shape, b.constant(0, b.index), b.dim(pair.shape, 0))
        self._dead.append(op)

    def _shape_split_at(self, b: Builder, op: Any) -> None:
        extents = self._extents[op.operands[0]]
        index = op.operands[1]
        from_first = b.op("arith.addi", [extents.first, index], b.index)
        from_end = b.op("arith.addi", [extents.end, index], b.index)
        negative = b.compare(2, index, b.constant(0, b.index))
        middle = b.op("arith.select", [negative, from_end, from_first], b.index)
        self._extents[op.results[0]] = _Extents(extents.shape, extents.first, middle, True)
        self._extents[op.results[1]] = _Extents(extents.shape, middle, extents.end, True)
        self._dead.append(op)

    def _shape_num_elements(self, b: Builder, op: Any) -> None:
        op.results[0].replace_all_uses_with(_product(b, self._extents[op.operands[0]]))
        self._dead.append(op)

    def _tensor_extract(self, b: Builder, op: Any) -> None:
        extents = self._extents.get(op.operands[0])
        if extents is None:
            raise UnsupportedError("extracts from an unranked tensor, which nothing lowers", op)
        index = b.op("arith.addi", [extents.first, op.operands[1]], b.index)
        op.results[0].replace_all_uses_with(_extent(b, extents.shape, index))
        self._dead.append(op)

    def _tensor_dim(self, b: Builder, op: Any) -> None:
        source, index = op.operands
        if source in self._extents:
            extents = self._extents[source]
            result = b.op("arith.subi", [extents.end, extents.first], b.index)
        else:
            result = _extent(b, self._pairs[source].shape, index)
        op.results[0].replace_all_uses_with(result)
        self._dead.append(op)

    def _tensor_rank(self, b: Builder, op: Any) -> None:
        rank = b.dim(self._pairs[op.operands[0]].shape, 0)
        op.results[0].replace_all_uses_with(rank)
        self._dead.append(op)

    def _func_return(self, b: Builder, op: Any) -> None:
        b.op("func.return", self._flattened(op.operands))
        self._dead.append(op)

    def _func_call(self, b: Builder, op: Any) -> None:
        types = [t for result in op.results for t in _pair_types(result.type)]
        call = ir.Operation.create(
            "func.call",
            results=types,
            operands=self._flattened(op.operands),
            attributes={"callee": op.attributes["callee"]},
        )
        results = list(call.results)
        for old in op.results:
            if _is_unranked(old.type):
                self._pairs[old] = _Pair(results.pop(0), results.pop(0))
            else:
                old.replace_all_uses_with(results.pop(0))
        self._dead.append(op)

    def _flattened(self, values: Any) -> list[Any]:
        flattened: list[Any] = []
        for value in values:
            if _is_unranked(value.type):
                pair = self._pairs[value]
                flattened += [pair.flat, pair.shape]
            else:
                flattened.append(value)
        return flattened


# -- pieces ---------------------------------------------------------------------------------------


def _extent(b: Builder, shape: Any, index: Any) -> Any:
    extent = b.op("tensor.extract", [shape, index], b.i64)
    return b.op("arith.index_cast", [extent], b.index)


def _product(b: Builder, extents: _Extents) -> Any:
    """The product of extents, as a loop."""
    one = b.constant(1, b.index)
    loop = ir.Operation.create(
        "scf.for",
        results=[b.index],
        operands=[extents.first, extents.end, one, one],
        regions=1,
    )
    location = ir.Location.current
    body = loop.regions[0].blocks.append(b.index, b.index, arg_locs=[location, location])
    with ir.InsertionPoint(body):
        index, product = body.arguments
        extent = _extent(b, extents.shape, index)
        b.op("scf.yield", [b.op("arith.muli", [product, extent], b.index)])
    return loop.results[0]


def _groups(ranks: int) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    group = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, axis) for axis in range(ranks)])
    return ir.ArrayAttr.get([group] if ranks else [])


def _flatten(b: Builder, tensor: Any) -> Any:
    """A ranked tensor's elements as ``tensor<?xT>``."""
    type_ = tensor.type
    dynamic = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], type_.element_type)
    if type_.rank == 0:
        one = ir.RankedTensorType.get([1], type_.element_type)
        attributes = {
            "reassociation": _groups(0),
            "static_output_shape": ir.DenseI64ArrayAttr.get([1]),
        }
        return b.op(
            "tensor.cast", [b.op("tensor.expand_shape", [tensor], one, attributes)], dynamic
        )
    if type_.rank > 1:
        static = not any(type_.is_dynamic_dim(axis) for axis in range(type_.rank))
        size = 1
        for extent in type_.shape:
            size *= int(extent)
        flat = ir.RankedTensorType.get([size], type_.element_type) if static else dynamic
        attributes = {"reassociation": _groups(type_.rank)}
        tensor = b.op("tensor.collapse_shape", [tensor], flat, attributes)
    return tensor if tensor.type == dynamic else b.op("tensor.cast", [tensor], dynamic)


def _unflatten(b: Builder, flat: Any, extents: list[Any], type_: Any) -> Any:
    """``tensor<?xT>`` as a ranked tensor of `type_` with the given extents."""
    element = type_.element_type
    if type_.rank == 0:
        one = b.op("tensor.cast", [flat], ir.RankedTensorType.get([1], element))
        return b.op("tensor.collapse_shape", [one], type_, {"reassociation": _groups(0)})
    if type_.rank == 1:
        return flat if flat.type == type_ else b.op("tensor.cast", [flat], type_)
    dynamic = ir.ShapedType.get_dynamic_size()
    open_type = ir.RankedTensorType.get([dynamic] * type_.rank, element)
    attributes = {
        "reassociation": _groups(type_.rank),
        "static_output_shape": ir.DenseI64ArrayAttr.get([dynamic] * type_.rank),
    }
    tensor = b.op("tensor.expand_shape", [flat, *extents], open_type, attributes)
    return tensor if tensor.type == type_ else b.op("tensor.cast", [tensor], type_)


def _shape_of(b: Builder, tensor: Any) -> Any:
    """A ranked tensor's extents as ``tensor<?xi64>``."""
    dynamic = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], b.i64)
    extents = [
        b.op("arith.index_cast", [b.dim(tensor, axis)], b.i64) for axis in range(tensor.type.rank)
    ]
    static = ir.RankedTensorType.get([len(extents)], b.i64)
    return b.op("tensor.cast", [b.op("tensor.from_elements", extents, static)], dynamic)
