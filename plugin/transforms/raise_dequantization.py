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
* Where axes are transposed, the dequantization has the order of the storage, and a transposition
  follows it.
* Private functions that convert integers of 2 to 16 bits to reals are inlined before: JAX writes
  one for each nested ``jax.jit``.

Left alone: what rounds twice, divides, wraps, or has a zero point that may be no integer, as many
scales as elements, or a dynamic shape. With ``explain=true`` each such operation is reported with
its place and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from .._mlir import Operation, Value, ir, passmanager
from ..dialects.dense import dense_of_array
from ..dialects.quant import any_type_of, expressed_mlir_type, storage_mlir_type
from ..dialects.subquant import UNPACK
from ..emit import stablehlo, subquant
from ..emit.operation import value, with_element, with_shape
from ..errors import Remark
from ..numerics.packed_integers import plane_shapes
from ..numerics.parameters import StorageType
from ..numerics.views import Part as Extent
from ..numerics.views import View, aligned
from .base import UNCHANGED, ModulePass, NoMatch, is_public, named
from .math.contraction import CONTRACTIONS
from .raising.arithmetic import STEPS, Arithmetic, Part, Reals

__all__ = ["RaiseDequantization"]

_ARITHMETIC = ("stablehlo.add", "stablehlo.divide", "stablehlo.multiply", "stablehlo.subtract")
_STORED = (UNPACK, "arith.constant", "stablehlo.constant", "util.global.load")
_SOURCES = (*_STORED, "stablehlo.bitcast_convert")


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
        if not any(_converts(op) for op in named(module, ["stablehlo.convert"])):
            return UNCHANGED
        _inline(module)
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
            if next(iter(result.uses), None) is None:
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
                raised = plan.emit()
            result.replace_all_uses_with(raised)
            _erase(op, unused, sources)
        while sources:
            op = sources.pop()
            if next(iter(op.results[0].uses), None) is None:
                _erase(op, set(), sources)
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


def _inline(module: Operation) -> None:
    """Inline the functions of a module if a private one converts integers that may be weights."""
    for function in named(module, ["func.func"]):
        if is_public(function):
            continue
        if any(_converts(op) for op in named(function, ["stablehlo.convert"])):
            pipeline = "builtin.module(inline{default-pipeline=})"
            passmanager.PassManager.parse(pipeline).run(module)
            return


def _is_worth(fact: Reals, result: Value) -> bool:
    """True unless integers are only converted, and no contraction has them as a weight."""
    if fact.scales is not None:
        return True
    owner = fact.integers.storage.root.owner
    is_stored = not isinstance(owner, ir.Block) and owner.operation.name in _STORED
    return any(
        use.owner.operation.name in CONTRACTIONS and (use.operand_number == 1 or is_stored)
        for use in result.uses
    )


# -- what is written ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """A dequantization in the order of its storage.

    Attributes:
        fact: what is computed.
        shape, blocks: of the dequantization.
        grids: scales, zero points and offsets as far as there are any, one for each block.
        order: where its axes are in what is replaced.
    """

    fact: Reals
    shape: list[int]
    blocks: list[int]
    grids: dict[str, Part]
    order: list[int]

    @classmethod
    def of(cls, fact: Reals) -> _Plan | NoMatch:
        """Find blocks in the parts of reals."""
        integers, shape = fact.integers, fact.integers.storage.view.shape
        scales = fact.scales or Part(None, View(()).broadcast((), shape), np.ones(()))
        named = {
            "scales": scales,
            "zero_points": integers.zero_points,
            "offsets": fact.offsets,
        }
        given = {name: part for name, part in named.items() if part is not None}
        extents = aligned([integers.storage.view, *(part.view for part in given.values())])
        if extents is None:
            return NoMatch("has scales along parts of an axis that do not divide each other")
        storage, *parameters = extents
        if any(not stride for axis in storage for _, stride in axis):
            return NoMatch("has integers that are broadcast")
        order = _order_of(storage)
        if not _is_row_major([part for axis in order for part in storage[axis]]):
            return NoMatch("has axes that are joined in another order than the integers are stored")
        kept = [_blocks_of([each[axis] for each in parameters]) for axis in order]
        blocks = [
            math.prod(n for n, _ in storage[axis][count:])
            for axis, count in zip(order, kept, strict=True)
        ]
        if all(size == 1 for size in blocks) and math.prod(shape) > 1:
            return NoMatch("has a scale for each element")
        grids = {
            name: replace(part, view=_grid(own, order, kept))
            for (name, part), own in zip(given.items(), parameters, strict=True)
        }
        return cls(fact, [shape[axis] for axis in order], blocks, grids, order)

    def emit(self) -> Value:
        """Write the dequantization, and return what has the axes of the program's."""
        integers, expressed = self.fact.integers, self.fact.expressed
        real = expressed_mlir_type(expressed)
        scales = _tensor_of(self.grids["scales"], real)
        offsets = None
        if "offsets" in self.grids:
            offsets = _tensor_of(self.grids["offsets"], real)
            if self.fact.subtracts:
                offsets = value("stablehlo.negate", [offsets], offsets.type)
        result = subquant.dequantize(
            _stored_as(integers.storage.root, self.shape),
            scales,
            self.blocks,
            ir.TypeAttr.get(any_type_of(integers.type, expressed)),
            real,
            self._zero_points(integers.type),
            offsets,
        )
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return stablehlo.transpose(result, back)

    def _zero_points(self, storage: StorageType) -> Value | None:
        part = self.grids.get("zero_points")
        if part is None or (part.numbers is not None and not part.numbers.any()):
            return None
        return _signless(_tensor_of(part, storage_mlir_type(storage)))


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
