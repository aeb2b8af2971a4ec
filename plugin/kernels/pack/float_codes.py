"""Weights of floats: the format of their elements, and how a program computes them.

A weight of bf16 or f16 is widened before it is multiplied. 8-bit floats are bytes, decoded by
integer arithmetic, and 4-bit indices are looked up in a table of f32 levels; both are then
multiplied by the scales of blocks::

    %w = util.global.load @weight : tensor<4096x640xi8>
    %1 = stablehlo.convert %w : (tensor<4096x640xi8>) -> tensor<4096x640xi32>
    ...
    %v = stablehlo.bitcast_convert %9 : (tensor<4096x640xi32>) -> tensor<4096x640xf32>
    %s = stablehlo.broadcast_in_dim %scales, dims = [0] : (tensor<4096xf32>) -> tensor<4096x640xf32>
    %f = stablehlo.multiply %v, %s : tensor<4096x640xf32>
    %y = stablehlo.dot_general %x, %f ...

A kernel reads the stored elements and decodes them in registers, exactly. Integer arithmetic is
recognized by its results for all bytes, whatever its operations are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense
from ...dialects.subquant import UNPACK
from ...emit.constant_values import array_of, constant_bytes, constant_elements, is_constant
from ...emit.operation import backward_slice, element_of, erase_unused, producer_named, producer_of
from ...emit.parameters import LOAD, ModuleGlobals
from ...emit.stablehlo_semantics import EVALUATED, reshape_source
from ...numerics.array_functions import bits_of
from ...numerics.element_types import AnyArray, Array, ElementType
from ...numerics.small_floats import FLOAT8_FORMATS
from .codebook import gathered_indices, unpacked_indices

_BROADCAST = "stablehlo.broadcast_in_dim"
_BITCAST = "stablehlo.bitcast_convert"
_DECODING = frozenset((*CONSTANTS, *EVALUATED, _BITCAST, _BROADCAST))
"""Operations that compute an element from the element of each operand, or from a constant."""
_MOVEMENT = ("stablehlo.gather", "stablehlo.reshape", "stablehlo.transpose", UNPACK, LOAD)
_WEIGHT = frozenset((*_DECODING, *_MOVEMENT))
"""Operations that compute a weight."""
_BYTE_FORMATS = ("f8E4M3FN", "f8E5M2")
"""The 8-bit floats that kernels decode."""
_LEVELS = "levels"


@dataclass(frozen=True)
class FloatCodes:
    """Format of the elements of a weight of floats.

    Args:
        name: ``bf16``, ``f16``, ``f8E4M3FN`` or ``f8E5M2``; ``levels`` for 4-bit indices.
        levels: the 16 levels that these are indices of.
    """

    name: str
    levels: tuple[float, ...] = ()

    @property
    def bits(self) -> int:
        """Bits of an element."""
        if self.levels:
            return 4
        return 8 if self.name in _BYTE_FORMATS else ElementType.parse(self.name).bits

    @property
    def factor(self) -> float:
        """The power of two that scales are multiplied by, as decoded elements are that smaller.

        The exponent of an f8E4M3FN has the bias 7, and that of the f16 with its bits 15.
        """
        return 2.0**8 if self.name == "f8E4M3FN" else 1.0

    @property
    def k_pack(self) -> int:
        """Elements of a k-pack: those of two bytes, or four indices of a byte each."""
        return 4 if self.levels else 16 // self.bits


@dataclass(frozen=True)
class FloatWeight:
    """A constant weight of floats.

    Attributes:
        codes: the stored elements in the order of the weight: 16-bit floats, bytes, or pairs of
            4-bit indices.
        scales: one for each block, in the order of the blocks; None for none.
        block_sizes: the sizes of a block, one for each axis of the weight.
    """

    floats: FloatCodes
    codes: Value
    scales: Value | None
    block_sizes: tuple[int, ...]

    @classmethod
    def of(cls, weight: Value, module_globals: ModuleGlobals) -> FloatWeight | None:
        """Match a weight of f32, or of 16-bit floats; None for another one."""
        if not weight.type.has_static_shape:
            return None
        shape = [int(size) for size in weight.type.shape]
        widening = producer_named(weight, "stablehlo.convert")
        storage = weight if widening is None else widening.operands[0]
        if is_16_bit_float(storage):
            floats = FloatCodes(str(storage.type.element_type))
            matches = [cls(floats, storage, None, tuple(shape))]
        else:
            matches = _scaled(reshape_source(weight), shape, module_globals)
        for match in matches:
            tensors = [match.codes] if match.scales is None else [match.codes, match.scales]
            if all(is_constant(each, module_globals) for each in tensors):
                return match
        return None

    def code_array(self, module_globals: ModuleGlobals) -> Array:
        """Return the elements as unsigned integers, in the order of the weight."""
        if self.floats.levels:
            return np.asarray(unpacked_indices(self.codes, module_globals))
        if self.floats.bits == 8:
            codes = constant_bytes(self.codes, module_globals)
        else:
            codes = constant_elements(self.codes, module_globals)
        assert codes is not None  # the matcher requires constants
        return codes.view(f"u{codes.itemsize}")

    def scale_array(self, shape: Sequence[int], module_globals: ModuleGlobals) -> AnyArray:
        """Return the scales with an axis for each of the weight, whose sizes are `shape`."""
        assert self.scales is not None
        grid = [n // size for n, size in zip(shape, self.block_sizes, strict=True)]
        return array_of(self.scales, module_globals).reshape(grid)


def is_16_bit_float(tensor: Value) -> bool:
    """True for a tensor of bf16 or f16."""
    return isinstance(tensor.type.element_type, ir.BF16Type | ir.F16Type)


def erase_decoding(weight: Value) -> None:
    """Erase the operations that compute an unused weight, and their unused producers."""
    op = producer_named(weight, *_WEIGHT)
    if op is not None:
        erase_unused(op, also=lambda each: each.name in _WEIGHT)


def _scaled(
    weight: Value, shape: Sequence[int], module_globals: ModuleGlobals
) -> list[FloatWeight]:
    """Return the matches of a product of elements and scales of blocks."""
    product = producer_named(weight, "stablehlo.multiply")
    matches: list[FloatWeight] = []
    if product is None:
        return matches
    left, right = product.operands
    for elements, factor in ((left, right), (right, left)):
        broadcast = producer_named(factor, _BROADCAST)
        if broadcast is None:
            continue
        block_sizes = _block_sizes(broadcast, shape)
        source = reshape_source(elements)
        decoding = _levels(source, module_globals) or _byte_codes(source)
        if block_sizes is not None and decoding is not None:
            scales = reshape_source(broadcast.operands[0])
            widening = producer_named(scales, "stablehlo.convert")
            if widening is not None and is_16_bit_float(widening.operands[0]):
                scales = reshape_source(widening.operands[0])
            matches.append(FloatWeight(*decoding, scales, block_sizes))
    return matches


def _block_sizes(broadcast: Operation, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the block sizes of scales that are broadcast, along each axis of the weight.

    The broadcast shape splits an axis into blocks and the elements of a block. None if the scales
    have another order than the blocks.
    """
    source = [int(size) for size in broadcast.operands[0].type.shape]
    dims = [int(axis) for axis in broadcast.attributes["broadcast_dimensions"]]
    broadcast_shape = [int(size) for size in broadcast.results[0].type.shape]
    varies = [axis for axis, n in zip(dims, source, strict=True) if n > 1]
    if varies != sorted(varies):
        return None
    sizes, first = [], 0
    for n in shape:
        end = first + 1
        while end < len(broadcast_shape) and math.prod(broadcast_shape[first:end]) < n:
            end += 1
        if first >= len(broadcast_shape) or math.prod(broadcast_shape[first:end]) != n:
            return None
        axes = [axis for axis in range(first, end) if broadcast_shape[axis] > 1]
        blocks = [axis for axis in axes if axis in varies]
        if blocks != axes[: len(blocks)]:
            return None
        sizes.append(math.prod(broadcast_shape[axis] for axis in axes if axis not in varies))
        first = end
    return tuple(sizes) if first == len(broadcast_shape) else None


def _levels(elements: Value, module_globals: ModuleGlobals) -> tuple[FloatCodes, Value] | None:
    """Match 4-bit indices that are looked up in 16 levels of f32."""
    gathered = gathered_indices(elements, module_globals)
    if gathered is None or str(elements.type.element_type) != "f32":
        return None
    table, plane = gathered
    return FloatCodes(_LEVELS, tuple(float(level) for level in table)), plane


def _byte_codes(elements: Value) -> tuple[FloatCodes, Value] | None:
    """Match bytes that elementwise operations decode as 8-bit floats."""
    if str(elements.type.element_type) != "f32" or producer_of(elements) is None:
        return None
    pending, leaves = [elements], dict[Value, None]()
    seen = {elements}
    while pending:
        value = pending.pop()
        op = producer_of(value)
        if _is_byte(value) or op is None or op.name not in _DECODING:
            leaves[value] = None
            continue
        if op.name == _BROADCAST and producer_named(op.operands[0], *CONSTANTS) is None:
            return None
        new = [each for each in op.operands if each not in seen]
        pending += new
        seen.update(new)
    if len(leaves) != 1:
        return None
    [codes] = leaves
    if not _is_byte(codes) or codes.type.shape != elements.type.shape:
        return None
    decoded = _decoded_bytes(elements, codes)
    for name in _BYTE_FORMATS:
        table = FLOAT8_FORMATS[name].table
        if decoded is not None and np.array_equal(decoded, table, equal_nan=True):
            return FloatCodes(name), codes
    return None


def _is_byte(value: Value) -> bool:
    """True for a tensor of signless or unsigned bytes."""
    return str(value.type.element_type) in ("i8", "ui8")


def _decoded_bytes(elements: Value, codes: Value) -> Array | None:
    """Evaluate the decoding of each byte, 0 to 255; None if a constant is no splat."""
    bytes_ = np.arange(256, dtype=np.uint8)
    is_unsigned = codes.type.element_type.is_unsigned
    arrays: dict[Value, AnyArray] = {codes: bytes_ if is_unsigned else bytes_.view(np.int8)}
    for op in backward_slice(producer_of(elements), lambda op: op.results[0] != codes):
        if op.name in CONSTANTS:
            attribute = op.attributes["value"]
            if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
                return None
            element = element_of(op.results[0].type)
            arrays[op.results[0]] = array_of_dense(attribute).flat[0].astype(element.dtype)
            continue
        operands = [arrays[each] for each in op.operands]
        with np.errstate(all="ignore"):
            if op.name == _BITCAST:
                value = bits_of(operands[0], element_of(op.results[0].type))
            elif op.name == _BROADCAST:
                [value] = operands
            else:
                value = EVALUATED[op.name](op, *operands)
        arrays[op.results[0]] = value
    return np.broadcast_to(np.asarray(arrays[elements]), (256,))
