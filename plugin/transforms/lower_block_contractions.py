"""``lower-block-contractions``: a block contraction becomes one loop nest, without a float weight.

A loop that is summed over and has blocks is split into (block number, position in block), so that
scales are indexed by plain loops; along the result's axes scales are repeated. The weight's real is
computed in the body, as ``lower-quant-casts`` does it. The result's loops come first, in the order
of its axes: in another order IREE 3.13 leaves elements of the result out on Vulkan.

Before::

    %y = "subquant.block_contraction"(%x, %q, %scales)
           {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (k, n), (m, n, k) -> (m, n)],
            block_sizes = array<i64: 32, 1>, ...}
         : (tensor<4x64xf32>, tensor<64x8xi4>, tensor<2x8xf32>) -> tensor<4x8xf32>

After::

    %qb = tensor.expand_shape %q [[0, 1], [2]] : tensor<64x8xi4> into tensor<2x32x8xi4>
    %xb = tensor.expand_shape %x [[0], [1, 2]] : tensor<4x64xf32> into tensor<4x2x32xf32>
    %y = linalg.generic {iterator_types = ["parallel", "parallel", "reduction", "reduction"], ...}
           ins(%xb, %qb, %scales) outs(%zero) { ... } -> tensor<4x8xf32>
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._mlir import ir
from ..dialects.block_contraction import BlockContraction, Term, sum_type
from ..dialects.dense import array_of_dense, dense_of_array
from ..dialects.subquant import BLOCK_CONTRACTION
from ..emit import Formula, Scalars, linalg, scalar
from ..emit import stablehlo as emit_stablehlo
from ..emit.operation import element_of, is_dynamic, tensor_type
from ..numerics.casts import Cast
from .base import ModulePass, NoMatch, Pattern, apply_patterns

__all__ = ["LowerBlockContractions"]


@dataclass(frozen=True)
class LowerBlockContractions(ModulePass):
    """Lower every ``subquant.block_contraction``."""

    name: ClassVar[str] = "lower-block-contractions"

    def run(self, module: ir.Operation) -> None:
        """Lower in `module`."""
        patterns: dict[str, Pattern] = {BLOCK_CONTRACTION: _lower}
        apply_patterns(module, patterns)


def _lower(op: Any, rewriter: Any) -> NoMatch | None:
    contraction = _in_order_of_result(BlockContraction.of(op))
    rewriter.replace_op(op, [_Nest.of(contraction, op.results[0].type).emit()])
    return None


def _in_order_of_result(contraction: BlockContraction) -> BlockContraction:
    """The contraction with its loops numbered as the result has them, then those summed over."""
    activations, storage, result = contraction.indices
    loops = [*(loop for [(loop, _)] in result), *contraction.summed]
    numbers = {loop: number for number, loop in enumerate(loops)}

    def renumbered(axes: list[list[Term]]) -> list[list[Term]]:
        return [[(numbers[loop], factor) for loop, factor in axis] for axis in axes]

    indices = (renumbered(activations), renumbered(storage), renumbered(result))
    return dataclasses.replace(contraction, indices=indices)


@dataclass(frozen=True)
class _Nest:
    """The loops of one contraction.

    Attributes:
        contraction: what is computed.
        result: the type.
        parts: for each loop of the contraction the loops that it becomes: one, or two.
        extents: of each of these: ints, or values of type ``index``.
    """

    contraction: BlockContraction
    result: Any
    parts: list[list[int]]
    extents: list[Any]

    @classmethod
    def of(cls, contraction: BlockContraction, result: Any) -> _Nest:
        """Plan the loops; this writes the extents that are known at run time only."""
        found, summed = _extents(contraction, result), contraction.summed
        stored = [loop for [(loop, _)] in contraction.indices[1]]
        blocks = dict(zip(stored, contraction.block_sizes, strict=True))
        parts: list[list[int]] = []
        extents: list[Any] = []
        for loop, extent in enumerate(found):
            first, block = len(extents), blocks.get(loop, 1)
            if loop in summed and 1 < block < extent:
                extents += [extent // block, block]
                parts.append([first, first + 1])
            else:
                extents.append(extent)
                parts.append([first])
        return cls(contraction, result, parts, extents)

    def emit(self) -> Any:
        """Write the loop nest, and return the result."""
        contraction = self.contraction
        storage, storage_loops = self._operand(contraction.storage, 1)
        activations, activation_loops = self._operand(contraction.activations, 0)
        loops = [ir.AffineExpr.get_dim(number) for number in range(len(self.extents))]
        block_loops, named = self._parameters()
        result_loops = [self.parts[loop][0] for [(loop, _)] in contraction.indices[2]]
        output = linalg.filled(
            [self.extents[number] for number in result_loops],
            Scalars().known(0.0, element_of(sum_type(contraction.expressed))).value,
        )
        indices = [
            activation_loops,
            storage_loops,
            *[[loops[number] for number in block_loops]] * len(named),
            [loops[number] for number in result_loops],
        ]
        maps = [ir.AffineMap.get(len(loops), 0, list(expressions)) for expressions in indices]
        reduced = {number for loop in contraction.summed for number in self.parts[loop]}
        nest = linalg.generic(
            [activations, storage, *named.values()],
            output,
            maps,
            self._body(list(named)),
            ["reduction" if number in reduced else "parallel" for number in range(len(loops))],
        )
        nest = emit_stablehlo.convert(nest, self.result.element_type)
        return linalg.cast(nest, self.result)

    def _body(self, names: Sequence[str]) -> Any:
        contraction = self.contraction
        cast = Cast(contraction.storage_type, contraction.expressed)
        total = element_of(sum_type(contraction.expressed))

        def body(x: Any, q: Any, *rest: Any) -> Any:
            *parameters, sum_so_far = rest
            given = {name: scalar(v) for name, v in zip(names, parameters, strict=True)}
            if "zero_points" in given:
                given["zero_points"] = self._signed(given["zero_points"].value)
            real = cast.dequantize(
                self._signed(q), given["scales"], given.get("zero_points", 0), given.get("offsets")
            )
            product = scalar(x).convert(total) * real.convert(total)
            return (scalar(sum_so_far) + product).value

        return body

    def _signed(self, integer: Any) -> Formula:
        """A storage value or zero point, which is read with the storage type's sign."""
        return scalar(
            integer, element_of(integer.type, signed=self.contraction.storage_type.signed)
        )

    def _parameters(self) -> tuple[list[int], dict[str, Any]]:
        """What indexes scales, zero points and offsets, and these as the loops take them."""
        contraction = self.contraction
        shape = [int(n) for n in contraction.storage.type.shape]
        kept, repeats, loops = [], [], []
        for axis, ([(loop, _)], size) in enumerate(
            zip(contraction.indices[1], contraction.block_sizes, strict=True)
        ):
            if size != shape[axis]:
                kept.append(axis)
                # A block's number is the first of the two loops that a loop has become.
                loops.append(self.parts[loop][0])
                repeats.append(1 if loop in contraction.summed else size)
        named = {
            name: _spread(given, kept, repeats)
            for name in ("scales", "zero_points", "offsets")
            if (given := getattr(contraction, name)) is not None
        }
        return loops, named

    def _operand(self, tensor: Any, which: int) -> tuple[Any, list[Any]]:
        """A tensor with its axes split, and what indexes each of them."""
        counts, extents, indices = [], [], []
        for axis, (first, *window) in enumerate(self.contraction.indices[which]):
            numbers = self.parts[first[0]]
            if window:
                terms = [
                    ir.AffineExpr.get_dim(self.parts[loop][0]) * factor
                    for loop, factor in (first, *window)
                ]
                counts.append(1)
                extents.append(int(tensor.type.shape[axis]))
                indices.append(terms[0] + terms[1])
            else:
                counts.append(len(numbers))
                extents += [self.extents[number] for number in numbers]
                indices += [ir.AffineExpr.get_dim(number) for number in numbers]
        return linalg.expand(tensor, _consecutive(counts), extents), indices


def _consecutive(counts: Iterable[int]) -> list[list[int]]:
    """Numbers from 0 on, in groups of so many."""
    numbers = itertools.count()
    return [[next(numbers) for _ in range(count)] for count in counts]


def _extents(contraction: BlockContraction, result: Any) -> list[Any]:
    """The extent of each loop: an int, or a value where it is dynamic."""
    extents: list[Any] = [None] * contraction.loops
    for axis, [(loop, _)] in enumerate(contraction.indices[2]):
        extents[loop] = int(result.shape[axis])
    for tensor, axes in (
        (contraction.activations, contraction.indices[0]),
        (contraction.storage, contraction.indices[1]),
    ):
        for axis, (first, *window) in enumerate(axes):
            if not window:
                extent = int(tensor.type.shape[axis])
                extents[first[0]] = linalg.dim(tensor, axis) if is_dynamic(extent) else extent
    return extents


def _spread(tensor: Any, kept: Sequence[int], repeats: Sequence[int]) -> Any:
    """A tensor without the axes that are not `kept`, whose extent is 1; elements repeated."""
    shape = [int(tensor.type.shape[axis]) for axis in kept]
    owner = tensor.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "arith.constant":
        array = array_of_dense(owner.operation.attributes["value"]).reshape(shape)
        for axis, count in enumerate(repeats):
            array = np.repeat(array, count, axis)
        return linalg.constant(dense_of_array(array, tensor.type.element_type))
    if len(kept) != tensor.type.rank:
        groups: list[list[int]] = [[] for _ in kept]
        for axis in range(tensor.type.rank):
            if kept:
                groups[max(0, sum(1 for other in kept if other <= axis) - 1)].append(axis)
        tensor = linalg.collapse(tensor, groups)
    if all(count == 1 for count in repeats):
        return tensor
    wide = [n for pair in zip(shape, repeats, strict=True) for n in pair]
    axes = range(0, len(wide), 2)
    type_ = tensor_type(wide, tensor.type.element_type)
    repeated = emit_stablehlo.broadcast(tensor, type_, axes)
    whole = [n * count for n, count in zip(shape, repeats, strict=True)]
    return emit_stablehlo.reshape(repeated, whole)
