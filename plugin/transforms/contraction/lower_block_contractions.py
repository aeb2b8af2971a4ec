"""``lower-block-contractions``: a block contraction becomes one loop nest, without a float weight.

A reduction loop with blocks is split into (block, position in block), so that scales are indexed by
plain loops; along the result's axes scales are repeated. The body dequantizes the weight, as
``lower-quant-casts`` does. The loop of the last axis of packed storage is split into bytes and
positions in a byte: the body reads a byte of each plane, and shifts and masks the integer, without
a tensor of unpacked integers. The result's loops come first, in the order of its axes: with another
order IREE 3.13 leaves out elements of the result on Vulkan.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...core.option_fields import pass_option
from ...dialects.block_contraction import BlockContraction, Term, sum_type
from ...dialects.dense import array_of_dense, dense_of_array
from ...dialects.subquant import BLOCK_CONTRACTION
from ...emit import ArrayLike, Scalars, linalg, scalar
from ...emit import stablehlo as emit_stablehlo
from ...emit.dynamic_quantization import rounded
from ...emit.linalg import DimSize
from ...emit.operation import element_of, is_dynamic
from ...errors import Remark
from ...numerics.array_functions import convert
from ...numerics.casts import Cast, Division
from ...numerics.element_types import I8, U8
from ...numerics.packed_integers import integer_at
from ..base import ModulePass, Replacement, apply_patterns, producer_named
from .dequantized_gemm import is_gemm, matrix_product


@dataclass(frozen=True)
class LowerBlockContractions(ModulePass):
    """Lower every ``subquant.block_contraction``.

    Options:
        division: see ``lower-quant-casts``, for the rounding of activations to int8.
        min_gemm_rows: ``rows`` in a pipeline: the M from which on a large weight is dequantized to
            a tensor, once, for a GEMM (`dequantized_gemm`); 0 for never. Compilations set 4.
    """

    division: Division = "native"
    min_gemm_rows: int = pass_option(0, "rows")

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Lower in `module`."""

        def lower(op: Operation) -> Replacement:
            contraction = _in_order_of_result(BlockContraction.of(op))
            if self.min_gemm_rows and is_gemm(contraction, self.min_gemm_rows):
                return matrix_product(contraction, op.results[0].type)
            return _Nest.of(contraction, op.results[0].type, self.division).emit()

        return apply_patterns(module, {BLOCK_CONTRACTION: lower})


def _in_order_of_result(contraction: BlockContraction) -> BlockContraction:
    """Return the contraction with the result's loops first, then the reduction loops."""
    loops = [*(loop for [(loop, _)] in contraction.indices[2]), *contraction.summed]
    numbers = {loop: number for number, loop in enumerate(loops)}
    activations, storage, result = (
        [[(numbers[loop], factor) for loop, factor in terms] for terms in axes]
        for axes in contraction.indices
    )
    return dataclasses.replace(contraction, indices=(activations, storage, result))


@dataclass(frozen=True)
class _Operand:
    """Operand of the loop nest: a tensor with an axis for each loop, or for a window.

    `indices` has the affine expression of each axis, `sizes` its size: an int, or a value of type
    ``index``.
    """

    tensor: Value
    indices: list[ir.AffineExpr]
    sizes: list[DimSize]


@dataclass(frozen=True)
class _Nest:
    """Loop nest of one contraction.

    Attributes:
        result: the type of the result.
        division: the division of the rounding of activations.
        split_loops: the loops that each loop of the contraction is split into, the slowest first.
        trip_counts: those of the split loops: ints, or values of type ``index``.
    """

    contraction: BlockContraction
    result: ir.Type
    division: Division
    split_loops: list[list[int]]
    trip_counts: list[DimSize]

    @classmethod
    def of(cls, contraction: BlockContraction, result: ir.Type, division: Division) -> _Nest:
        """Plan the loops; dynamic trip counts are written here."""
        summed = contraction.summed
        stored = [loop for [(loop, _)] in contraction.indices[1]]
        blocks = dict(zip(stored, contraction.block_sizes, strict=True))
        of_activations = contraction.activation_block_sizes or contraction.block_sizes
        superblocks = dict(zip(stored, of_activations, strict=True))
        split_loops: list[list[int]] = []
        trip_counts: list[DimSize] = []
        for loop, count in enumerate(_trip_counts(contraction, result)):
            block = blocks.get(loop, 1)
            split = [count]
            if loop in summed and 1 < block < count:
                superblock = superblocks[loop]
                split = [count // block, block]
                if block < superblock < count:
                    split = [count // superblock, superblock // block, block]
            if contraction.plane_bits is not None and loop == stored[-1]:
                split = [*split[:-1], *_split_packed_loop(split[-1], contraction.plane_bits)]
            split_loops.append(list(range(len(trip_counts), len(trip_counts) + len(split))))
            trip_counts += split
        return cls(contraction, result, division, split_loops, trip_counts)

    def emit(self) -> Value:
        """Write the loop nest, and return the result."""
        contraction = self.contraction
        planes = self._planes()
        activations = self._activations()
        block_loops, named = self._parameters()
        result_loops = [self.split_loops[loop] for [(loop, _)] in contraction.indices[2]]
        output = linalg.filled(
            [self.trip_counts[number] for loops in result_loops for number in loops],
            Scalars().known(0.0, element_of(sum_type(contraction.expressed))).value,
        )
        dims = [ir.AffineExpr.get_dim(number) for number in range(len(self.trip_counts))]
        indices = [
            *[operand.indices for operand in (*activations, *planes)],
            *[[dims[number] for number in block_loops]] * len(named),
            [dims[number] for loops in result_loops for number in loops],
        ]
        reduced = {number for loop in contraction.summed for number in self.split_loops[loop]}
        nest = linalg.generic(
            [*(operand.tensor for operand in (*activations, *planes)), *named.values()],
            output,
            [ir.AffineMap.get(len(dims), 0, list(expressions)) for expressions in indices],
            self._body(len(activations), len(planes), list(named)),
            ["reduction" if number in reduced else "parallel" for number in range(len(dims))],
        )
        nest = linalg.collapse(nest, linalg.consecutive([len(loops) for loops in result_loops]))
        nest = emit_stablehlo.convert(nest, self.result.element_type)
        return linalg.cast(nest, self.result)

    def _body(self, activations: int, planes: int, names: Sequence[str]) -> Callable[..., Value]:
        contraction = self.contraction
        cast = Cast(contraction.storage_type, contraction.expressed)
        total = element_of(sum_type(contraction.expressed))

        def body(*elements: Value) -> Value:
            *inputs, accumulator = elements
            activation = scalar(inputs[0]).convert(total)
            for scale in inputs[1:activations]:
                activation = activation * scalar(scale)
            stored = inputs[activations : activations + planes]
            parameters = {
                name: scalar(v)
                for name, v in zip(names, inputs[activations + planes :], strict=True)
            }
            if "zero_points" in parameters:
                parameters["zero_points"] = self._signed(parameters["zero_points"].value)
            real = cast.dequantize(
                self._integer(stored),
                parameters["scales"],
                parameters.get("zero_points", 0),
                parameters.get("offsets"),
            )
            return (scalar(accumulator) + activation * real.convert(total)).value

        return body

    def _integer(self, stored: Sequence[Value]) -> ArrayLike:
        """Return the storage value, unpacked from the bytes of planes."""
        bits, storage = self.contraction.plane_bits, self.contraction.storage_type
        if bits is None:
            return self._signed(stored[0])
        *_, middle, inner = self.split_loops[self.contraction.indices[1][-1][0][0]]
        positions = [scalar(linalg.loop_index(inner))]
        if len(bits) > 1:
            positions.append(scalar(linalg.loop_index(middle)) * (8 // bits[0]) + positions[0])
        integer = integer_at(
            [scalar(byte, U8) for byte in stored], [each.convert(U8) for each in positions], bits
        )
        if not storage.signed or storage.width > sum(bits):
            return integer
        sign = 1 << (sum(bits) - 1)
        return convert(integer ^ sign, I8) - sign

    def _signed(self, integer: Value) -> ArrayLike:
        """Return a storage value or zero point with the storage type's sign."""
        return scalar(
            integer, element_of(integer.type, signed=self.contraction.storage_type.signed)
        )

    def _parameters(self) -> tuple[list[int], dict[str, Value]]:
        """Return the loops of scales, zero points and offsets, and their tensors."""
        contraction = self.contraction
        shape = contraction.storage_shape
        block_axes, repeats, groups = [], [], []
        for axis, ([(loop, _)], size) in enumerate(
            zip(contraction.indices[1], contraction.block_sizes, strict=True)
        ):
            if size == shape[axis]:
                continue
            block_axes.append(axis)
            by_block = loop in contraction.summed and size > 1
            groups.append(self._block_loops(loop) if by_block else self.split_loops[loop])
            repeats.append(1 if by_block else size)
        loops = [number for group in groups for number in group]
        trip_counts = [self.trip_counts[number] for number in loops]
        named = {
            name: linalg.expand(
                _spread(tensor, block_axes, repeats),
                linalg.consecutive(map(len, groups)),
                trip_counts,
            )
            for name in ("scales", "zero_points", "offsets")
            if (tensor := getattr(contraction, name)) is not None
        }
        return loops, named

    def _block_loops(self, loop: int) -> list[int]:
        """The split loops of a summed loop whose indices give the block number."""
        contraction, numbers = self.contraction, self.split_loops[loop]
        axis = contraction.indices[1].index([(loop, 1)])
        blocks, first = contraction.storage_shape[axis] // contraction.block_sizes[axis], numbers[0]
        return numbers[:1] if self.trip_counts[first] == blocks else numbers[:2]

    def _planes(self) -> list[_Operand]:
        """Return the storage, or its planes, which are not indexed by the fastest split loops."""
        contraction, axes = self.contraction, self.contraction.indices[1]
        if contraction.plane_bits is None:
            return [self._operand(contraction.storage, axes)]
        last = axes[-1][0][0]
        return [
            self._operand(tensor, axes, {last: self.split_loops[last][: -1 - number]})
            for number, tensor in enumerate(contraction.planes)
        ]

    def _activations(self) -> list[_Operand]:
        """Return the activations, or their int8 values and scales."""
        contraction = self.contraction
        activations = self._operand(contraction.activations, contraction.indices[0])
        if contraction.activation_type == "float":
            return [activations]
        shared: list[bool] = []  # axes along which one scale is shared
        for terms, block in zip(
            contraction.indices[0], contraction.activation_blocks(), strict=True
        ):
            count = 1 if len(terms) > 1 else len(self.split_loops[terms[0][0]])
            shared += [block is None, *[block != 1] * (count - 1)]
        total = element_of(sum_type(contraction.expressed))
        integers, scales = rounded(
            activations.tensor, activations.sizes, shared, total, self.division
        )
        axes = [axis for axis, along in enumerate(shared) if not along]
        return [
            dataclasses.replace(activations, tensor=integers),
            _Operand(
                scales,
                [activations.indices[axis] for axis in axes],
                [activations.sizes[axis] for axis in axes],
            ),
        ]

    def _operand(
        self,
        tensor: Value,
        axes: Sequence[Sequence[Term]],
        used: Mapping[int, Sequence[int]] | None = None,
    ) -> _Operand:
        """Return a tensor with its axes split, and their indices.

        `axes` has the indexing terms of each axis, `used` the split loops that index the axis of a
        loop: by default all of them.
        """
        counts: list[int] = []
        sizes: list[DimSize] = []
        indices: list[ir.AffineExpr] = []
        for axis, (first, *window) in enumerate(axes):
            if window:
                counts.append(1)
                sizes.append(int(tensor.type.shape[axis]))
                indices.append(self._sum([first, *window]))
            else:
                numbers = (used or {}).get(first[0], self.split_loops[first[0]])
                counts.append(len(numbers))
                sizes += [self.trip_counts[number] for number in numbers]
                indices += [ir.AffineExpr.get_dim(number) for number in numbers]
        return _Operand(linalg.expand(tensor, linalg.consecutive(counts), sizes), indices, sizes)

    def _sum(self, terms: Sequence[Term]) -> ir.AffineExpr:
        """Return a sum of loops times factors, in the split loops."""
        total = None
        for loop, factor in terms:
            step = factor
            for number in reversed(self.split_loops[loop]):
                addend = ir.AffineExpr.get_dim(number) * step
                total = addend if total is None else total + addend
                step *= self.trip_counts[number]
        return total


def _split_packed_loop(trip_count: int, bits: Sequence[int]) -> list[int]:
    """Return the trip counts of the split loop over packed integers.

    One plane: bytes, positions in a byte. Two planes of ``c`` and ``d > c`` integers a byte: bytes
    of the second plane, bytes of the first plane in each, and the ``c`` positions in a byte.
    """
    counts = [8 // count for count in bits]
    if len(counts) == 1:
        return [trip_count // counts[0], counts[0]]
    return [trip_count // counts[1], counts[1] // counts[0], counts[0]]


def _trip_counts(contraction: BlockContraction, result: ir.Type) -> list[DimSize]:
    """Return the trip count of each loop: an int, or a value if it is dynamic."""
    trip_counts: list[DimSize] = [None] * contraction.loops
    for axis, [(loop, _)] in enumerate(contraction.indices[2]):
        trip_counts[loop] = int(result.shape[axis])
    for tensor, shape, axes in (
        (contraction.activations, contraction.activations.type.shape, contraction.indices[0]),
        (contraction.storage, contraction.storage_shape, contraction.indices[1]),
    ):
        for axis, (first, *window) in enumerate(axes):
            if not window:
                size = int(shape[axis])
                trip_counts[first[0]] = linalg.dim(tensor, axis) if is_dynamic(size) else size
    return trip_counts


def _spread(tensor: Value, axes: Sequence[int], repeats: Sequence[int]) -> Value:
    """Return a tensor with only `axes`, and its elements repeated along them."""
    shape = [int(tensor.type.shape[axis]) for axis in axes]
    constant = producer_named(tensor, "arith.constant")
    if constant is not None:
        array = array_of_dense(constant.attributes["value"]).reshape(shape)
        for axis, count in enumerate(repeats):
            array = np.repeat(array, count, axis)
        return linalg.constant(dense_of_array(array, tensor.type.element_type))
    if len(axes) != tensor.type.rank:
        groups: list[list[int]] = [[] for _ in axes]
        for axis in range(tensor.type.rank):
            if axes:
                groups[max(0, sum(1 for other in axes if other <= axis) - 1)].append(axis)
        tensor = linalg.collapse(tensor, groups)
    if all(count == 1 for count in repeats):
        return tensor
    # Not StableHLO's broadcast: it has no integers of 3, 5 or 6 bits.
    rank = 2 * len(shape)
    dims = [ir.AffineExpr.get_dim(number) for number in range(0, rank, 2)]
    repeated = linalg.generic(
        [tensor],
        linalg.empty(
            [n for pair in zip(shape, repeats, strict=True) for n in pair],
            tensor.type.element_type,
        ),
        [ir.AffineMap.get(rank, 0, dims), linalg.identity_map(rank)],
        lambda element, _: element,
    )
    return linalg.collapse(repeated, linalg.consecutive([2] * len(shape)))
