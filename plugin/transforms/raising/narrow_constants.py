"""Constants of bytes that fit 2 to 6 bits, stored packed.

PyTorch has no integers below 8 bits. torchao stores weights of fewer bits in bytes::

    %q = stablehlo.constant dense<...> : tensor<512x256xi8>        // all in [-8, 7]

The raised dequantization reads them from a packed constant, half or a quarter as large::

    %b = stablehlo.constant dense<...> : tensor<512x128xi8>
    %q = "subquant.unpack"(%b) {bits = array<i64: 4>} : (tensor<512x128xi8>) -> tensor<512x256xi4>

Integers of 3, 5 and 6 bits are unpacked from two planes to unsigned bytes. Signed ones are stored
with half of their range added, and so are their zero points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.dense import constant_attribute, dense_of_array
from ...emit import linalg, subquant
from ...numerics.element_types import I8, Array
from ...numerics.packed_integers import PLANE_BITS, pack_planes, plane_shapes
from ...numerics.parameters import StorageType
from ..quantization.pack_narrow_storage import MIN_PACKED_ELEMENTS


@dataclass(frozen=True)
class NarrowStorage:
    """Packed storage of a constant.

    Attributes:
        width: bits of an integer.
        offset: added to integers and zero points.
        type: the storage type of the unpacked integers.
    """

    width: int
    offset: int
    type: StorageType

    @classmethod
    def of(cls, width: int, signed: bool) -> NarrowStorage:
        """Storage of integers of some width."""
        if len(PLANE_BITS[width]) == 1:
            return cls(width, 0, StorageType(width, signed))
        offset = 1 << (width - 1) if signed else 0
        return cls(width, offset, StorageType(I8.bits, False, 0, (1 << width) - 1))


def narrow_storage(root: Value, storage: StorageType, zero_points: Array) -> NarrowStorage | None:
    """Return the narrowest packed storage of a byte constant and of its zero points.

    None for other values, small constants, and constants that need their bits.
    """
    integers = _bytes_of(root, storage)
    if integers is None or integers.size < MIN_PACKED_ELEMENTS:
        return None
    low = min(int(integers.min()), int(zero_points.min(initial=0)))
    high = max(int(integers.max()), int(zero_points.max(initial=0)))
    for width, bits in PLANE_BITS.items():
        least, most = StorageType(width, storage.signed).type_range
        if least <= low and high <= most and plane_shapes(integers.shape, bits) is not None:
            return NarrowStorage.of(width, storage.signed)
    return None


def packed_constant(root: Value, storage: StorageType, narrow: NarrowStorage) -> Value:
    """Emit a byte constant as unpacked integers of packed storage, ahead of it."""
    integers = _bytes_of(root, storage)
    assert integers is not None  # `narrow_storage`
    bits = PLANE_BITS[narrow.width]
    planes = pack_planes((integers + integers.dtype.type(narrow.offset)).view(np.uint8), bits)
    owner = root.owner.operation
    with ir.InsertionPoint(owner), owner.location:
        byte = ir.IntegerType.get_signless(I8.bits)
        constants = [linalg.constant(dense_of_array(each.view(np.int8), byte)) for each in planes]
        # IREE would evaluate the unpacking at compile time and store the unpacked constant.
        packed = [linalg.with_barrier(each) for each in constants]
        return subquant.unpack(packed, bits, ir.IntegerType.get_signless(narrow.type.width))


def _bytes_of(root: Value, storage: StorageType) -> Array | None:
    """The elements of a constant of 8 bits, which is no splat; None for other values."""
    attribute = constant_attribute(root)
    if attribute is None or attribute.is_splat or storage.width != 8:
        return None
    integers: Array = np.array(attribute).view(np.int8 if storage.signed else np.uint8)
    return integers
