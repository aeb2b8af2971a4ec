"""``lower-unranked-tensors``: replace an unranked tensor by a flat tensor and a shape tensor.

IREE has no unranked tensors. After the casts are lowered, they remain on function signatures,
calls, ``tensor.cast``, ``tensor.reshape`` and the ``shape`` operations of the RFC's Case 2. Each
value ``tensor<*xT>`` becomes the pair ``tensor<?xT>`` (the elements in row-major order) and
``tensor<?xi64>`` (the dimension sizes); the product of the sizes is checked on entry.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...emit import linalg
from ...emit.operation import INDEX, tensor_type
from ...errors import Remark, UnsupportedError
from ...numerics.element_types import I64
from ..base import UNCHANGED, ModulePass, TypePredicate, named, record_signature, walk


@dataclass(frozen=True)
class LowerUnrankedTensors(ModulePass):
    """Replace unranked tensors by pairs of ranked tensors; record the signatures that change."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Convert `module`.

        Raises:
            UnsupportedError: an unsupported operation has unranked operands or results.
        """
        functions = named(module, ["func.func"])
        unranked = TypePredicate(_is_unranked)
        with_unranked = unranked.among(walk(module, in_kernels=False))
        signatures = [op.attributes["function_type"].value for op in functions]
        declared = [t for each in signatures for t in (*each.inputs, *each.results)]
        if not any(map(_is_unranked, declared)) and not any(with_unranked):
            return UNCHANGED
        for op in functions:
            with op.location:
                _lower_function(op)
        return None


def _is_unranked(type_: ir.Type) -> bool:
    return isinstance(type_, ir.UnrankedTensorType)


def _lowered_types(type_: ir.Type) -> list[ir.Type]:
    """The types that an argument or result of `type_` becomes."""
    if not _is_unranked(type_):
        return [type_]
    i64 = ir.IntegerType.get_signless(64)
    return [tensor_type([None], type_.element_type), tensor_type([None], i64)]


@dataclass(frozen=True)
class _Flat:
    """An unranked value: its elements, and its sizes as ``tensor<?xi64>``."""

    elements: Value
    shape: Value


@dataclass(frozen=True)
class _Sizes:
    """A value of type ``tensor<?xindex>``: the sizes of `shape` from `first` to before `end`."""

    shape: Value
    first: Value
    end: Value
    is_whole: bool = True


def _lower_function(function: Operation) -> None:
    type_ = function.attributes["function_type"].value
    converted = ir.FunctionType.get(
        [t for old in type_.inputs for t in _lowered_types(old)],
        [t for old in type_.results for t in _lowered_types(old)],
    )
    if converted != type_:
        record_signature(function)
        function.attributes["function_type"] = ir.TypeAttr.get(converted)
        _lower_attributes(function, "arg_attrs", type_.inputs)
        _lower_attributes(function, "res_attrs", type_.results)
    if not len(function.regions[0].blocks):
        return
    block = function.regions[0].blocks[0]
    lowering = _Lowering()
    old_arguments = lowering.arguments(block)
    for op in walk(function):
        lowering.operation(op)
    lowering.erase()
    for _ in range(old_arguments):
        block.erase_argument(0)


def _lower_attributes(function: Operation, name: str, types: Any) -> None:
    """Give the attributes of an argument or result to the elements; the sizes have none."""
    if name in function.attributes:
        lowered: list[Any] = []
        for attribute, type_ in zip(function.attributes[name], types, strict=True):
            lowered += [attribute, ir.DictAttr.get({})][: len(_lowered_types(type_))]
        function.attributes[name] = ir.ArrayAttr.get(lowered)


_SHAPE_OPERANDS = {
    "shape.num_elements": [0],
    "shape.split_at": [0],
    "tensor.dim": [0],
    "tensor.extract": [0],
    "tensor.reshape": [1],
}
"""The operands of operations that may be the shape of an unranked tensor."""


class _Lowering:
    """The lowered unranked values and shapes of one function, collected in order."""

    def __init__(self) -> None:
        self._flat: dict[Value, _Flat] = {}
        self._sizes: dict[Value, _Sizes] = {}
        self._dead: list[Operation] = []

    def arguments(self, block: ir.Block) -> int:
        """Replace the arguments of a function's entry block; return the number of old ones."""
        old = list(block.arguments)
        if not any(_is_unranked(argument.type) for argument in old):
            return 0
        location = block.owner.location
        for argument in old:
            new = [block.add_argument(t, location) for t in _lowered_types(argument.type)]
            if len(new) == 1:
                argument.replace_all_uses_with(new[0])
            else:
                self._flat[argument] = _Flat(*new)
        for flat in self._flat.values():
            with ir.InsertionPoint.at_block_begin(block), location:
                _check_size(flat, "an unranked argument's extents")
        return len(old)

    def operation(self, op: Operation) -> None:
        """Lower one operation."""
        touched = any(
            _is_unranked(value.type) or value in self._sizes
            for value in (*op.operands, *op.results)
        )
        if not touched:
            return
        handler = getattr(self, "_" + op.name.replace(".", "_"), None)
        if handler is None:
            raise UnsupportedError(
                "has an unranked operand or result, which nothing lowers; cast to a ranked tensor "
                "with tensor.cast first",
                op,
            )
        shapes = [number for number, value in enumerate(op.operands) if value in self._sizes]
        if shapes and shapes != _SHAPE_OPERANDS.get(op.name):
            raise UnsupportedError(
                "uses the shape of an unranked tensor as a tensor, which nothing lowers; extract "
                "its extents with tensor.extract",
                op,
            )
        with ir.InsertionPoint(op), op.location:
            handler(op)
        self._dead.append(op)

    def erase(self) -> None:
        """Erase replaced operations, users before producers."""
        for op in reversed(self._dead):
            op.erase()

    # -- operations, one method each: the name with dots as underscores ----------------------------

    def _tensor_cast(self, op: Operation) -> None:
        source, target = op.operands[0], op.results[0]
        if not _is_unranked(source.type):
            self._flat[target] = _Flat(_flattened(source), _shape_of(source))
        elif not _is_unranked(target.type):
            target.replace_all_uses_with(_ranked(self._flat[source], target.type))
        else:
            self._flat[target] = self._flat[source]

    def _tensor_reshape(self, op: Operation) -> None:
        (source, shape), target = op.operands, op.results[0]
        unranked = _is_unranked(source.type)
        elements = self._flat[source].elements if unranked else _flattened(source)
        if _is_unranked(target.type):
            sizes = self._sizes.get(shape)
            if sizes is not None and not sizes.is_whole:
                raise UnsupportedError(
                    "reshapes to a part of an unranked tensor's shape, which nothing lowers", op
                )
            _, i64_shape_type = _lowered_types(target.type)
            i64_shape = (
                sizes.shape if sizes else emit.value("arith.index_cast", [shape], i64_shape_type)
            )
            self._flat[target] = _Flat(elements, i64_shape)
            _check_size(self._flat[target], "tensor.reshape: the extents")
        else:
            values = [
                linalg.extract(shape, [linalg.constant_index(axis)])
                for axis in range(target.type.rank)
            ]
            target.replace_all_uses_with(_unflattened(elements, values, target.type))

    def _shape_shape_of(self, op: Operation) -> None:
        self._sizes[op.results[0]] = _all_sizes(self._flat[op.operands[0]].shape)

    def _shape_split_at(self, op: Operation) -> None:
        sizes, index = self._sizes[op.operands[0]], emit.scalar(op.operands[1])
        from_first, from_end = emit.scalar(sizes.first) + index, emit.scalar(sizes.end) + index
        middle = np.where(index < 0, from_end, from_first).value
        before, after = op.results
        self._sizes[before] = _Sizes(sizes.shape, sizes.first, middle, False)
        self._sizes[after] = _Sizes(sizes.shape, middle, sizes.end, False)

    def _shape_num_elements(self, op: Operation) -> None:
        op.results[0].replace_all_uses_with(_product(self._sizes[op.operands[0]]))

    def _tensor_extract(self, op: Operation) -> None:
        sizes = self._sizes.get(op.operands[0])
        if sizes is None:
            raise UnsupportedError("extracts from an unranked tensor, which nothing lowers", op)
        index = emit.scalar(sizes.first) + emit.scalar(op.operands[1])
        op.results[0].replace_all_uses_with(_size_at(sizes.shape, index.value).value)

    def _tensor_dim(self, op: Operation) -> None:
        source, axis = op.operands
        if source in self._sizes:
            sizes = self._sizes[source]
            result = emit.scalar(sizes.end) - emit.scalar(sizes.first)
        else:
            result = _size_at(self._flat[source].shape, axis)
        op.results[0].replace_all_uses_with(result.value)

    def _tensor_rank(self, op: Operation) -> None:
        rank = linalg.dim(self._flat[op.operands[0]].shape, 0)
        op.results[0].replace_all_uses_with(rank)

    def _func_return(self, op: Operation) -> None:
        emit.create("func.return", self._lowered(op.operands))

    def _func_call(self, op: Operation) -> None:
        types = [t for result in op.results for t in _lowered_types(result.type)]
        callee = {"callee": op.attributes["callee"]}
        call = emit.create("func.call", self._lowered(op.operands), types, callee)
        results = iter(call.results)
        for old in op.results:
            if _is_unranked(old.type):
                self._flat[old] = _Flat(next(results), next(results))
            else:
                old.replace_all_uses_with(next(results))

    def _lowered(self, values: Iterable[Value]) -> list[Value]:
        """The values that replace the operands of an operation."""
        lowered: list[Value] = []
        for value in values:
            flat = self._flat.get(value)
            lowered += [value] if flat is None else [flat.elements, flat.shape]
        return lowered


def _all_sizes(shape: Value) -> _Sizes:
    zero = linalg.constant_index(0)
    return _Sizes(shape, zero, linalg.dim(shape, zero))


def _size_at(shape: Value, axis: Value) -> Any:
    """One of the sizes in a ``tensor<?xi64>``, for formulas."""
    return emit.scalar(linalg.extract(shape, [axis])).convert(INDEX)


def _product(sizes: _Sizes) -> Value:
    """The product of sizes, as a loop."""
    (product,) = linalg.fold(
        sizes.first,
        sizes.end,
        [linalg.constant_index(1)],
        lambda axis, product: [(emit.scalar(product) * _size_at(sizes.shape, axis)).value],
    )
    return product


def _check_size(flat: _Flat, what: str) -> None:
    """Check at run time that the sizes multiply to the number of elements."""
    sizes = _all_sizes(flat.shape)
    product = emit.scalar(_product(sizes))
    size = emit.scalar(linalg.dim(flat.elements, sizes.first))
    message = f"{what} must multiply to the number of elements"
    linalg.check((product == size).value, message)


def _shape_of(tensor: Value) -> Value:
    """A ranked tensor's sizes as ``tensor<?xi64>``."""
    i64 = ir.IntegerType.get_signless(64)
    sizes = [
        emit.scalar(linalg.dim(tensor, axis)).convert(I64).value for axis in range(tensor.type.rank)
    ]
    static = linalg.from_elements(sizes, tensor_type([len(sizes)], i64))
    return linalg.cast(static, tensor_type([None], i64))


def _ranked(flat: _Flat, type_: ir.Type) -> Value:
    """An unranked value as a ranked tensor, whose rank and sizes are checked at run time."""
    rank = emit.scalar(linalg.dim(flat.shape, 0))
    message = f"tensor.cast: rank must be {type_.rank} at run time"
    linalg.check((rank == type_.rank).value, message)
    sizes = []
    for axis in range(type_.rank):
        dim = _size_at(flat.shape, linalg.constant_index(axis))
        if not type_.is_dynamic_dim(axis):
            static = int(type_.shape[axis])
            message = f"tensor.cast: dimension {axis} must be {static} at run time"
            linalg.check((dim == static).value, message)
        sizes.append(dim.value)
    return _unflattened(flat.elements, sizes, type_)


def _flattened(tensor: Value) -> Value:
    """A ranked tensor's elements as ``tensor<?xT>``."""
    rank = tensor.type.rank
    flat = linalg.collapse(tensor, [range(rank)]) if rank else linalg.expand(tensor, [], [1])
    return linalg.cast(flat, tensor_type([None], tensor.type.element_type))


def _unflattened(elements: Value, sizes: Sequence[Value], type_: ir.Type) -> Value:
    """``tensor<?xT>`` as a ranked tensor of `type_` with dynamic sizes."""
    if type_.rank == 0:
        return linalg.collapse(linalg.cast(elements, tensor_type([1], type_.element_type)), [])
    return linalg.cast(linalg.expand(elements, [range(type_.rank)], sizes), type_)
