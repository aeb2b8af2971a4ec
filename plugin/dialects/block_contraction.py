"""``subquant.block_contraction``: contraction with a block-quantized weight.

A dot product or convolution with a dequantized weight becomes this operation, which kernels
compute. For indices ``p`` of the result and reduction indices ``r``::

    result[p] = sum_r activations[p, r] * ((storage[p, r] - zero_point) * scale + offset)

where scale, zero point and offset are those of the block of the storage element. As in
``linalg.contract``, ``indexing_maps`` map loops to the axes of activations, storage and result, so
that one form covers all orders of axes, batches and windows::

    %y = "subquant.block_contraction"(%x, %q, %s, %z)
           {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                             affine_map<(m, n, k) -> (m, n)>],
            block_sizes = array<i64: 1, 32>, quantized_type = !quant.any<u4:f32>,
            operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>}
         : (tensor<5x64xf32>, tensor<7x64xi4>, tensor<7x2xf16>, tensor<7x2xi4>) -> tensor<5x7xf32>

* A loop indexes each axis of storage and of result, each axis another one. An axis of activations
  may be indexed by a window, ``outer * stride + inner * dilation``, where the outer loop is one of
  the result, and the inner one of the storage.
* ``block_sizes`` has one entry for each axis of the storage, whose shape is static, and divides it.
  Scales, zero points and offsets have the shape ``shape / block_sizes``. A window has no blocks.
* The real weight is as ``subquant.dequantize`` defines it, of the expressed type of
  ``quantized_type``. Products and sums are f32 for f16 and bf16, else of the expressed type, the
  sums in any order; they are rounded to the result's element type once.
* With ``plane_bits`` the storage is packed: the operand ``storage``, and ``storage_high`` where
  integers have two planes, are the bytes that ``subquant.unpack`` with these ``bits`` takes, of the
  shape that ``subquant.unpack`` defines. The rules for storage above apply to the integers. A
  tensor of 6-bit integers is ``(%x, %low, %scales, %high) {plane_bits = array<i64: 4, 2>,
  operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1>, ...}``.
* With ``activation_type = "int8"`` activations are integers from -127 to 127 with a scale for each
  block, before they are multiplied (``"float"``, the default, does not round)::

      scale = max |activations| / 127            (* 1/127 in f32; 1 if that is under 2**-100)
      activations' = clamp(round(activations / scale)) * scale

  Blocks are those of the storage: along an axis whose loop is summed over, and no window's, the
  block size of that loop; single elements along others. The inner sum of a block is then an
  integer dot product, for which processors have instructions.
* ``activation_block_sizes`` has other blocks of activations: one entry for each axis of the
  storage, a multiple of the entry of ``block_sizes``. Weights whose scales are integers times the
  scale of a superblock (GGML's K-quants) have activations with a scale for each superblock, as in
  llama.cpp: the sum over a superblock is an integer, too.

The meaning in NumPy is `subquant.numerics.block_contraction`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from ..core._mlir import Operation, Value, ir
from ..core.option_fields import Activations
from ..numerics.parameters import ExpressedType, StorageType
from .quant import described_type
from .subquant import operands_of

Term = tuple[int, int]
"""A loop, and the factor of its index."""

ACTIVATION_TYPES: tuple[str, ...] = get_args(Activations)
"""Types of the activations in the multiplication."""

ACTIVATION_BLOCK_SIZES = "activation_block_sizes"
"""The attribute of the blocks of activations."""

_NAMES = ("activations", "storage", "result")
_FLOAT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


@dataclass(frozen=True)
class BlockContraction:
    """A ``subquant.block_contraction`` as it is read.

    Attributes:
        scales: None only for a weight of floats that have none.
        indices: for activations, storage and result, the terms that index each axis.
        storage_type, expressed: of ``quantized_type``.
        storage_high: the second plane, or None.
        plane_bits: the bits of an integer in each plane, or None where storage is not packed.
        activation_type: what activations are multiplied as.
        activation_block_sizes: the blocks of activations of 8 bits, along the axes of the storage;
            None for `block_sizes`.
    """

    activations: Value
    storage: Value
    scales: Value | None
    zero_points: Value | None
    offsets: Value | None
    indices: tuple[list[list[Term]], list[list[Term]], list[list[Term]]]
    loops: int
    block_sizes: tuple[int, ...]
    storage_type: StorageType
    expressed: ExpressedType
    storage_high: Value | None = None
    plane_bits: tuple[int, ...] | None = None
    activation_type: str = "float"
    activation_block_sizes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, op: Operation) -> BlockContraction:
        """Read an operation that has been verified."""
        operands = operands_of(op)
        maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
        described = described_type(op)
        activations, storage, result = (terms_of(map_) for map_ in maps)
        assert activations is not None  # verified
        assert storage is not None
        assert result is not None
        return cls(
            operands["activations"],
            operands["storage"],
            operands["scales"],
            operands.get("zero_points"),
            operands.get("offsets"),
            (activations, storage, result),
            maps[0].n_dims,
            tuple(int(size) for size in op.attributes["block_sizes"]),
            *described,
            operands.get("storage_high"),
            _plane_bits(op),
            op.attributes["activation_type"].value
            if "activation_type" in op.attributes
            else "float",
            tuple(int(size) for size in op.attributes[ACTIVATION_BLOCK_SIZES])
            if ACTIVATION_BLOCK_SIZES in op.attributes
            else None,
        )

    @property
    def planes(self) -> list[Value]:
        """The operands that hold the storage."""
        return [self.storage] if self.storage_high is None else [self.storage, self.storage_high]

    @property
    def storage_shape(self) -> list[int]:
        """The extents of the storage, unpacked."""
        return _storage_shape(self.storage.type, self.plane_bits)

    def activation_blocks(self) -> list[int | None]:
        """The block size of integer activations along each axis; None for all of a summed axis."""
        sizes = self.activation_block_sizes or self.block_sizes
        return activation_blocks(self.indices, self.summed, sizes, self.storage_shape)

    @property
    def summed(self) -> list[int]:
        """The loops that the result does not have."""
        result_loops = {loop for axis in self.indices[2] for loop, _ in axis}
        return [loop for loop in range(self.loops) if loop not in result_loops]


def activation_blocks(
    indices: Sequence[Sequence[Sequence[Term]]],
    summed: Collection[int],
    block_sizes: Sequence[int],
    storage_shape: Sequence[int],
) -> list[int | None]:
    """The block size of integer activations along each axis; None for all of a summed axis."""
    stored = {axis[0][0]: number for number, axis in enumerate(indices[1])}
    sizes: list[int | None] = []
    for terms in indices[0]:
        loop = terms[0][0]
        if len(terms) > 1 or loop not in summed:
            sizes.append(1)
            continue
        size, extent = block_sizes[stored[loop]], storage_shape[stored[loop]]
        sizes.append(None if size == extent else size)
    return sizes


def _plane_bits(op: Operation) -> tuple[int, ...] | None:
    if "plane_bits" not in op.attributes:
        return None
    return tuple(int(count) for count in op.attributes["plane_bits"])


def _storage_shape(type_: ir.Type, plane_bits: Sequence[int] | None) -> list[int]:
    """The extents of integers in a plane, or in a tensor of their own."""
    shape = [int(n) for n in type_.shape]
    if plane_bits is not None:
        shape[-1] = shape[-1] * 8 // plane_bits[0]
    return shape


def sum_type(expressed: ExpressedType) -> ir.Type:
    """Return the accumulator type."""
    return ir.F64Type.get() if expressed is ExpressedType.F64 else ir.F32Type.get()


def terms_of(map_: ir.AffineMap) -> list[list[Term]] | None:
    """For each result of a map its terms, or None if one is no loop and no sum of two terms."""
    terms = []
    for expression in map_.results:
        is_sum = isinstance(expression, ir.AffineAddExpr)
        addends = [expression.lhs, expression.rhs] if is_sum else [expression]
        axis_terms = [term for addend in addends if (term := _term(addend)) is not None]
        if len(axis_terms) != len(addends):
            return None
        terms.append(axis_terms)
    return terms


def _term(expression: ir.AffineExpr) -> Term | None:
    factor = 1
    if isinstance(expression, ir.AffineMulExpr):
        if not isinstance(expression.rhs, ir.AffineConstantExpr):
            return None
        expression, factor = expression.lhs, expression.rhs.value
    if not isinstance(expression, ir.AffineDimExpr) or factor < 1:
        return None
    return expression.position, factor
