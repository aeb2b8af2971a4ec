"""Weights in groups of inputs, each with a scale and a zero point: what GPTQ and AWQ share.

A linear layer of K inputs and N outputs, with groups of B inputs, G = ceil(K / B) of them, has

    qweight  int32            integers, packed along inputs (GPTQ) or outputs (AWQ)
    qzeros   int32  [G, ...]  zero points, packed along outputs
    scales   float  [G, N]

and the weight of input k and output n, in group g, is ``(q[k, n] - z[g, n]) * scale[g, n]``. Here
it becomes one tensor ``weight`` of shape [N, K], as PyTorch has it, in a `BlockAffineLayout` with
blocks of [1, B]. Zero points that are half the range everywhere, as those of symmetric weights, are
left out, and the integers are signed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import UnsupportedError
from ...layouts.affine import BlockAffineLayout
from ...layouts.base import FLOAT_DTYPES
from ...numerics.element_types import Array
from ...numerics.parameters import StorageType
from .layers import Layer, described


def packed_arrays(layer: Layer) -> tuple[Array, Array, Array]:
    """Return ``qweight``, ``qzeros`` and ``scales``, with two axes each.

    Raises:
        InputError: one is missing, or the scales are no floats.
        UnsupportedError: packed arrays have other words than int32.
    """
    qweight, qzeros, scales = (layer.get(part) for part in ("qweight", "qzeros", "scales"))
    if qweight is None or qzeros is None or scales is None:
        missing = [part for part in ("qzeros", "scales") if not layer.has(part)]
        raise layer.error(f"has a qweight and no {' and no '.join(missing)}")
    if layer.has("weight"):
        raise layer.error("has both a weight and a qweight")
    for part, array in (("qweight", qweight), ("qzeros", qzeros)):
        if array.dtype != np.int32 or array.ndim != 2:
            raise layer.error(
                f"has as its {part} {described(array)}, expected a matrix of int32",
                UnsupportedError,
            )
    if scales.dtype.name not in FLOAT_DTYPES or scales.ndim != 2:
        raise layer.error(f"has as its scales {described(scales)}, expected a matrix")
    return qweight, qzeros, scales


def check_shapes(
    layer: Layer,
    inputs: int,
    size: int,
    scales: Array,
    packed: Mapping[str, tuple[Array, tuple[int, ...]]],
) -> None:
    """Check the number of groups, and the shapes of the packed arrays.

    Args:
        size: the inputs of a group.
        packed: arrays with their expected shapes, by part.

    Raises:
        InputError: one does not fit.
    """
    count = len(scales)
    if count != -(-inputs // size):
        raise layer.error(
            f"has scales of {count} groups, expected {-(-inputs // size)} for {inputs} inputs in "
            f"groups of {size}"
        )
    for part, (array, shape) in packed.items():
        if array.shape != shape:
            raise layer.error(
                f"has as its {part} {described(array)}, expected {list(shape)} for scales of "
                f"{list(scales.shape)}"
            )


def layout_of(
    storage: Array,
    scales: Array,
    zero_points: Array,
    size: int,
    bits: int,
    order: Array | None = None,
) -> BlockAffineLayout:
    """Make the layout of integers [N, K], and of scales and zero points [N, G].

    Args:
        size: the inputs of a group.
        order: the input of each stored column; None for ascending ones.
    """
    asymmetric = _asymmetric(zero_points, bits)
    if asymmetric is None:
        storage = (storage - np.uint8(2 ** (bits - 1))).view(np.int8)
    return BlockAffineLayout.of(
        np.ascontiguousarray(storage),
        np.ascontiguousarray(scales),
        asymmetric,
        [1, size],
        StorageType(bits, asymmetric is None),
        order,
    )


def layout_of_words(
    words: Array, scales: Array, zero_points: Array, size: int, bits: int
) -> BlockAffineLayout:
    """Make the layout of integers of 2 or 4 bits in words [N, W]; otherwise as `layout_of`."""
    asymmetric = _asymmetric(zero_points, bits)
    storage = StorageType(bits, asymmetric is None)
    return BlockAffineLayout.of_words(
        words, np.ascontiguousarray(scales), asymmetric, [1, size], storage
    )


def _asymmetric(zero_points: Array, bits: int) -> Array | None:
    """Return the zero points; None if each is half the range, so that storage is signed."""
    if (zero_points == 2 ** (bits - 1)).all():
        return None
    return np.ascontiguousarray(zero_points)
