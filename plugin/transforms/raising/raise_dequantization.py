"""``raise-dequantization``: a dequantization that is written as arithmetic becomes one operation.

JAX, PyTorch and others have no quantized types: their programs convert integers, subtract a zero
point, and multiply by a scale that they broadcast or reshape to blocks. This pass makes
``subquant.dequantize`` of it, per tensor, axis or block, so that weights are read packed, and
contracted with by ``fuse-block-contractions``.

Before::

    %0 = stablehlo.convert %q : (tensor<64x8xi4>) -> tensor<64x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<64x8xf32>) -> tensor<2x32x8xf32>
    %2 = stablehlo.broadcast_in_dim %s, dims = [0, 2] : (tensor<2x8xf32>) -> tensor<2x32x8xf32>
    %3 = stablehlo.multiply %1, %2 : tensor<2x32x8xf32>
    %w = stablehlo.reshape %3 : (tensor<2x32x8xf32>) -> tensor<64x8xf32>

After::

    %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 32, 1>, ...}
         : (tensor<64x8xi4>, tensor<2x8xf32>) -> tensor<64x8xf32>

The result has the same bits: each step is one of the dequantization's, with the same roundings in
the same order, or moves elements only. `raising.arithmetic` says for each step why. What is
contracted as integers stays so, and is multiplied by scales afterwards.

* A conversion alone is a dequantization with the scale 1 (``x * 1`` is ``x``), where a contraction
  takes it on its right, or as a constant, parameter or packed argument.
* Where axes are transposed, or joined after that, the dequantization has the order of the storage;
  a transposition and a reshape follow it, and a contraction is written over the axes before those.
* Integers of 2, 4 or 8 bits that are taken out of wider ones by shifts and masks, and put together,
  are a ``subquant.unpack`` (`raising.bit_fields`).
* A ``gather`` of rows takes those of bytes, or of integers and scales, before it is unpacked or
  dequantized (`raising.gathers`).
* Private functions that convert or choose integers of 2 to 16 bits, or take rows, are inlined
  before: JAX writes one for each nested ``jax.jit``, and for ``jnp.where`` and ``jnp.take``.

Left alone: what rounds twice, divides by other than powers of two, wraps, or has a zero point that
may be no integer, as many scales as elements, or a dynamic shape. With ``explain=true`` each such
operation is reported with its place and the reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...core._mlir import Operation, Value, ir, passmanager
from ...dialects.dense import dense_of_array
from ...dialects.quant import any_type_of, expressed_mlir_type, storage_mlir_type
from ...dialects.subquant import UNPACK
from ...emit import stablehlo, subquant
from ...emit.operation import is_used, value, with_element, with_shape
from ...errors import Remark
from ...numerics.packed_integers import plane_shapes
from ...numerics.parameters import StorageType
from ...numerics.views import Part as Extent
from ...numerics.views import View, aligned
from ..base import UNCHANGED, ModulePass, NoMatch, is_public, named
from ..quantization.math.contraction import CONTRACTIONS
from .arithmetic import BITS, SHIFTS, STEPS, Arithmetic, Integers, Reals
from .bit_fields import Field
from .contractions import Split, split_contractions
from .gathers import (
    slice_before_unpacking,
    take_before_dequantizing,
    take_before_unpacking,
    use_what_loops_keep,
)
from .tensor_views import Part

__all__ = ["RaiseDequantization"]

_ARITHMETIC = ("stablehlo.add", "stablehlo.divide", "stablehlo.multiply", "stablehlo.subtract")
_GATHER = "stablehlo.gather"
_INLINED = ("stablehlo.convert", "stablehlo.divide", _GATHER, *BITS)
"""Operations that a private function may have as steps."""
_STORED = (UNPACK, "arith.constant", "stablehlo.constant", "util.global.load")
_SOURCES = (*_STORED, "stablehlo.bitcast_convert", "stablehlo.iota")


@dataclass(frozen=True)
class RaiseDequantization(ModulePass):
    """Write dequantizing arithmetic as ``subquant.dequantize``.

    Options:
        explain: return a remark on what dequantizes in another way, or nearly.
    """

    name: ClassVar[str] = "raise-dequantization"

    explain: bool = False

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Raise in `module`; never fails."""
        is_narrow = any(_converts(op) for op in named(module, ["stablehlo.convert"]))
        if not is_narrow and not named(module, SHIFTS):
            return UNCHANGED
        _inline(module)
        for op in named(module, ["stablehlo.while"]):
            use_what_loops_keep(op)
        for op in named(module, ["stablehlo.dynamic_slice"]):
            slice_before_unpacking(op)
        for op in named(module, [_GATHER]):
            take_before_unpacking(op)
        arithmetic, remarks = Arithmetic(), []
        steps = named(module, STEPS)
        for op in steps:
            why = arithmetic.follow(op)
            if why is not None:
                remarks.append(Remark.about(op, f"is left alone: {why.reason}"))
        unused: set[Operation] = set()
        sources: set[Operation] = set()
        for op in reversed(steps):
            result = op.results[0]
            if not is_used(result):
                if op in unused:
                    _erase(op, unused, sources)
                continue
            fact = arithmetic.of(result)
            if not isinstance(fact, Reals) or not _is_worth(fact, result):
                continue
            plan = _Plan.of(fact)
            if isinstance(plan, NoMatch):
                if op.name in _ARITHMETIC:
                    remarks.append(Remark.about(op, f"is left alone: {plan.reason}"))
                continue
            with ir.InsertionPoint(op), op.location:
                split, raised = plan.emit()
            result.replace_all_uses_with(raised)
            split_contractions(split, raised, plan.split)
            _erase(op, unused, sources)
        while sources:
            op = sources.pop()
            if not is_used(op.results[0]):
                _erase(op, set(), sources)
        for op in named(module, [_GATHER]):
            take_before_dequantizing(op)
        return remarks if self.explain else ()


def _erase(op: Operation, unused: set[Operation], sources: set[Operation]) -> None:
    """Erase an operation, and note what gave its operands."""
    for operand in op.operands:
        if not isinstance(operand.owner, ir.Block):
            owner = operand.owner.operation
            (sources if owner.name in _SOURCES else unused).add(owner)
    op.erase()


def _converts(op: Operation) -> bool:
    """True for a conversion of integers of 2 to 16 bits to floats, or to wider integers."""
    source, target = op.operands[0].type, op.results[0].type
    if not isinstance(source, ir.ShapedType) or not isinstance(source.element_type, ir.IntegerType):
        return False
    narrow = 2 <= source.element_type.width <= 16
    return narrow and not isinstance(target.element_type, ir.ComplexType)


def _is_step(op: Operation) -> bool:
    """True for such a conversion, a gather, and what else gives integers of 2 to 16 bits."""
    if op.name == "stablehlo.convert":
        return _converts(op)
    if op.name == _GATHER:
        return True
    element = op.results[0].type.element_type
    return isinstance(element, ir.IntegerType) and 2 <= element.width <= _WIDEST


def _inline(module: Operation) -> None:
    """Inline the functions of a module if a private one has steps on integers of weights."""
    for function in named(module, ["func.func"]):
        if is_public(function):
            continue
        if any(_is_step(op) for op in named(function, _INLINED)):
            pipeline = "builtin.module(inline{default-pipeline=})"
            passmanager.PassManager.parse(pipeline).run(module)
            return


def _is_worth(fact: Reals, result: Value) -> bool:
    """True unless integers are only converted, and no contraction has them as a weight."""
    if fact.scales:
        return True
    integers = fact.integers
    if integers.field is not None:
        return any(use.owner.operation.name in CONTRACTIONS for use in result.uses)
    if integers.storage is None:
        return False
    owner = integers.storage.root.owner
    is_stored = not isinstance(owner, ir.Block) and owner.operation.name in _STORED
    return any(
        use.owner.operation.name in CONTRACTIONS and (use.operand_number == 1 or is_stored)
        for use in result.uses
    )


# -- what is written ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    """How the integers of a dequantization are stored.

    Attributes:
        view: which of all that are stored each is.
        type: of each.
        zero_points: or None.
        root: the tensor, or the field that it is unpacked from, and whether its words are reversed.
        zero_root: the same of zero points that are packed, else None.
    """

    view: View
    type: StorageType
    zero_points: Part | None
    root: Value | tuple[Field, bool]
    zero_root: tuple[Field, bool] | None = None

    @classmethod
    def of(cls, integers: Integers) -> list[_Stored]:
        """The ways, the better one first; none for parts of wide words that are no packed ones."""
        found: list[_Stored] = []
        packed = cls._packed(integers)
        if packed is not None:
            found.append(packed)
        if integers.storage is not None and integers.type.width <= _WIDEST:
            zero_points = integers.zero_points
            if zero_points is not None or integers.zero_field is None:
                storage = integers.storage
                found.append(cls(storage.view, integers.type, zero_points, storage.root))
        return found

    @classmethod
    def _packed(cls, integers: Integers) -> _Stored | None:
        """As fields of words."""
        field, zero_field = integers.field, integers.zero_field
        packed = None if field is None else field.packed()
        if field is None or packed is None or not field.is_complete:
            return None
        root, (least, most) = (field, packed[1]), field.type.type_range
        bias = np.int64(-field.bias)
        if zero_field is not None:
            zero = zero_field.packed()
            if zero is None or (zero_field.type, zero_field.bias) != (field.type, field.bias):
                return None
            zero_part = Part(None, zero[0])
            return cls(packed[0], field.type, zero_part, root, (zero_field, zero[1]))
        part = integers.zero_points
        if part is None and field.bias:
            part = Part(None, View(()).broadcast((), packed[0].shape), np.zeros((), np.int64))
        if part is not None and part.numbers is not None:
            numbers = part.numbers + bias
            if numbers.min() < least or numbers.max() > most:
                return None
            part = replace(part, numbers=numbers)
        elif part is not None:
            element = part.root.type.element_type
            if field.bias or element.width > field.width or element.is_unsigned == field.signed:
                return None
        return cls(packed[0], field.type, part, root)


_WIDEST = 16
"""Bits of storage."""


@dataclass(frozen=True)
class _Plan:
    """A dequantization in the order of its storage.

    Attributes:
        fact: what is computed.
        stored: from what.
        blocks: of the dequantization.
        grids: scales, zero points and offsets as far as there are any, one for each block.
        order: which of the parts that the program's axes are split into each axis is.
        split: the extents of these parts.
    """

    fact: Reals
    stored: _Stored
    blocks: list[int]
    grids: dict[str, Part]
    order: list[int]
    split: Split

    @classmethod
    def of(cls, fact: Reals) -> _Plan | NoMatch:
        """Find blocks in the parts of reals."""
        found: _Plan | NoMatch = NoMatch("takes some of the integers that words have, not all")
        for stored in _Stored.of(fact.integers):
            found = cls._of(fact, stored)
            if isinstance(found, _Plan):
                return found
        return found

    @classmethod
    def _of(cls, fact: Reals, stored: _Stored) -> _Plan | NoMatch:
        one = Part(None, View(()).broadcast((), stored.view.shape), np.ones(()))
        named = {f"scales {number}": part for number, part in enumerate(fact.scales or (one,))}
        optional = {"zero_points": stored.zero_points, "offsets": fact.offsets}
        named |= {name: part for name, part in optional.items() if part is not None}
        extents = aligned([stored.view, *(part.view for part in named.values())])
        if extents is None:
            return NoMatch("has scales along parts of an axis that do not divide each other")
        if any(not stride for axis in extents[0] for _, stride in axis):
            return NoMatch("has integers that are broadcast")
        runs = [_runs(axis) for axis in extents[0]]
        storage, *parameters = [
            [axis[a:b] for axis, own in zip(each, runs, strict=True) for a, b in own]
            for each in extents
        ]
        order = _order_of(storage)
        if not _is_row_major([part for axis in order for part in storage[axis]]):
            return NoMatch("has integers that are stored with others between them")
        kept = [_blocks_of([each[axis] for each in parameters]) for axis in order]
        blocks = [
            math.prod(n for n, _ in storage[axis][count:])
            for axis, count in zip(order, kept, strict=True)
        ]
        if all(size == 1 for size in blocks) and math.prod(stored.view.shape) > 1:
            return NoMatch("has a scale for each element")
        grids = {
            name: replace(part, view=_grid(own, order, kept))
            for (name, part), own in zip(named.items(), parameters, strict=True)
        }
        split = [
            [math.prod(n for n, _ in axis[a:b]) for a, b in own]
            for axis, own in zip(extents[0], runs, strict=True)
        ]
        return cls(fact, stored, blocks, grids, order, split)

    def emit(self) -> tuple[Value, Value]:
        """Write the dequantization, with the split axes of the program's, and with these."""
        expressed, stored = self.fact.expressed, self.stored
        real = expressed_mlir_type(expressed)
        scales: Value | None = None
        for name, part in self.grids.items():
            if name.startswith("scales"):
                factor = _tensor_of(part, real)
                scales = factor if scales is None else _product(scales, factor, real)
        assert scales is not None  # there is one at least
        offsets = None
        if "offsets" in self.grids:
            offsets = _tensor_of(self.grids["offsets"], real)
            if self.fact.subtracts:
                offsets = value("stablehlo.negate", [offsets], offsets.type)
        parts, root = [extent for axis in self.split for extent in axis], _tensor_at(stored.root)
        storage = _stored_as(root, [parts[axis] for axis in self.order])
        if isinstance(stored.root, tuple) and storage != root and not is_used(root):
            root.owner.operation.erase()  # its planes have been taken
        result = subquant.dequantize(
            storage,
            scales,
            self.blocks,
            ir.TypeAttr.get(any_type_of(stored.type, expressed)),
            real,
            self._zero_points(),
            offsets,
        )
        if self.fact.widened is not None:
            result = stablehlo.convert(result, expressed_mlir_type(self.fact.widened))
        back = [self.order.index(axis) for axis in range(len(self.order))]
        split = stablehlo.transpose(result, back)
        return split, stablehlo.reshape(split, self.stored.view.shape)

    def _zero_points(self) -> Value | None:
        part, storage = self.grids.get("zero_points"), self.stored.type
        if part is None or (part.numbers is not None and not part.numbers.any()):
            return None
        if self.stored.zero_root is not None:
            part = replace(part, root=_tensor_at(self.stored.zero_root))
        return _signless(_tensor_of(part, storage_mlir_type(storage)))


def _product(left: Value, right: Value, element: ir.Type) -> Value:
    """The product of scales, which is exact."""
    left, right = (stablehlo.convert(each, element) for each in (left, right))
    return value("stablehlo.multiply", [left, right], left.type)


def _tensor_at(root: Value | tuple[Field, bool]) -> Value:
    """The tensor that a dequantization begins with."""
    if isinstance(root, tuple):
        field, is_reversed = root
        return field.unpacked(is_reversed=is_reversed)
    return root


def _runs(parts: Sequence[Extent]) -> list[tuple[int, int]]:
    """From where to where parts of an axis are stored one after another; at least one run."""
    starts = [0]
    for number, (before, after) in enumerate(itertools.pairwise(parts), 1):
        if before[1] != after[0] * after[1]:
            starts.append(number)
    return list(zip(starts, [*starts[1:], len(parts)], strict=True))


def _order_of(storage: Sequence[Sequence[Extent]]) -> list[int]:
    """The axes in the order of the storage; those of one element stay where they are."""
    long = [axis for axis, parts in enumerate(storage) if parts]
    by_stride = iter(sorted(long, key=lambda axis: -storage[axis][0][1]))
    return [next(by_stride) if parts else axis for axis, parts in enumerate(storage)]


def _is_row_major(parts: Sequence[Extent]) -> bool:
    stride = 1
    for extent, step in reversed(parts):
        if step != stride:
            return False
        stride *= extent
    return True


def _blocks_of(parameters: Sequence[Sequence[Extent]]) -> int:
    """How many parts of an axis come before those along which no parameter differs."""
    count = len(parameters[0])
    while count and not any(parts[count - 1][1] for parts in parameters):
        count -= 1
    return count


def _grid(parts: Sequence[Sequence[Extent]], order: Sequence[int], kept: Sequence[int]) -> View:
    """A parameter for each block."""
    return View(tuple(tuple(parts[axis][:count]) for axis, count in zip(order, kept, strict=True)))


def _tensor_of(part: Part, element: ir.Type) -> Value:
    """A part as a tensor of its shape."""
    shape = list(part.view.shape)
    if part.numbers is not None:
        numbers = part.numbers.reshape(-1)[part.view.indices().reshape(-1)]
        return stablehlo.constant_of(dense_of_array(numbers.reshape(shape), element))
    parts = [each for axis in part.view.axes for each in axis]
    places = [place for place, (_, stride) in enumerate(parts) if stride]
    by_stride = sorted(places, key=lambda place: -parts[place][1])
    tensor = stablehlo.reshape(part.root, [parts[place][0] for place in by_stride])
    tensor = stablehlo.transpose(tensor, [by_stride.index(place) for place in places])
    spread = with_shape(tensor.type, [extent for extent, _ in parts])
    return stablehlo.reshape(stablehlo.broadcast(tensor, spread, places), shape)


def _stored_as(root: Value, shape: Sequence[int]) -> Value:
    """Integers in another shape, signless; packed ones stay packed where bytes are filled."""
    root = _signless(root)
    owner = root.owner
    if isinstance(owner, ir.Block) or owner.operation.name != UNPACK:
        return stablehlo.reshape(root, shape)
    bits = [int(count) for count in owner.operation.attributes["bits"]]
    shapes = plane_shapes(shape, bits)
    if list(root.type.shape) == list(shape) or shapes is None:
        return stablehlo.reshape(root, shape)
    planes = [
        stablehlo.reshape(plane, extents)
        for plane, extents in zip(owner.operation.operands, shapes, strict=True)
    ]
    return subquant.unpack(planes, bits, root.type.element_type)


def _signless(tensor: Value) -> Value:
    """The bits of integers as signless ones, as they were before if they were."""
    element = ir.IntegerType.get_signless(tensor.type.element_type.width)
    if tensor.type.element_type == element:
        return tensor
    owner, type_ = tensor.owner, with_element(tensor.type, element)
    if not isinstance(owner, ir.Block) and owner.operation.name == "stablehlo.bitcast_convert":
        before = owner.operation.operands[0]
        if before.type == type_:
            return before
    return value("stablehlo.bitcast_convert", [tensor], type_)
