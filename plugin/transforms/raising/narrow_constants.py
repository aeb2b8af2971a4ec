"""Constants of bytes that fit fewer bits, stored packed.

PyTorch has no integers of 2 or 4 bits, so torchao keeps those of its weights in bytes::

    %q = stablehlo.constant dense<...> : tensor<512x256xi8>        // all in [-8, 7]

The raised dequantization reads them from a packed constant, half or a quarter as large::

    %b = stablehlo.constant dense<...> : tensor<512x128xi8>
    %q = "subquant.unpack"(%b) {bits = array<i64: 4>} : (tensor<512x128xi8>) -> tensor<512x256xi4>
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.dense import constant_attribute
from ...emit.operation import tensor_type
from ...numerics.element_types import Array
from ...numerics.parameters import StorageType
from ..quantization.pack_narrow_storage import MIN_PACKED_ELEMENTS, PackedForm

_WIDTHS = (2, 4)
"""Bits of narrowed storage; kernels read integers of 3, 5 and 6 bits from two planes, slower."""


def narrow_constant(root: Value, storage: StorageType, zero_points: Array) -> StorageType | None:
    """Return the narrowest storage type of a byte constant and of its zero points.

    None for other values, small constants, and constants that need their bits.
    """
    integers = _bytes_of(root, storage)
    if integers is None or integers.size < MIN_PACKED_ELEMENTS:
        return None
    low = min(int(integers.min()), int(zero_points.min(initial=0)))
    high = max(int(integers.max()), int(zero_points.max(initial=0)))
    for width in _WIDTHS:
        narrow = StorageType(width, storage.signed)
        least, most = narrow.type_range
        if least <= low and high <= most and _packed_form(root, width) is not None:
            return narrow
    return None


def packed_constant(root: Value, storage: StorageType, narrow: StorageType) -> Value:
    """Emit a byte constant as unpacked integers of a narrower type, ahead of it."""
    integers, form = _bytes_of(root, storage), _packed_form(root, narrow.width)
    assert integers is not None  # `narrow_constant`
    assert form is not None
    owner = root.owner.operation
    with ir.InsertionPoint(owner), owner.location:
        return form.constant(integers)


def _bytes_of(root: Value, storage: StorageType) -> Array | None:
    """The elements of a constant of 8 bits, which is no splat; None for other values."""
    attribute = constant_attribute(root)
    if attribute is None or attribute.is_splat or storage.width != 8:
        return None
    integers: Array = np.array(attribute).view(np.int8 if storage.signed else np.uint8)
    return integers


def _packed_form(root: Value, width: int) -> PackedForm | None:
    shape = [int(n) for n in root.type.shape]
    type_ = tensor_type(shape, ir.IntegerType.get_signless(width))
    return PackedForm.of(type_, root.owner.operation)
