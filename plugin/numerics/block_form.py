"""Block form of weights: integers, and a scale, zero point and offset of each block.

::

    real = (storage - zero_point) * scale + offset

Scales and offsets may be of this form themselves (super-blocks: small integers times a float).
Every blockwise layout describes its contents as a `BlockForm`, which gives the expressed values in
NumPy, and ``subquant.dequantize`` in a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .array_functions import dispatched
from .casts import Cast
from .element_types import AnyArray, Array
from .parameters import ExpressedType, StorageType, check_rank, spread_blocks


@dataclass(frozen=True)
class BlockForm:
    """A weight in blocks.

    Attributes:
        storage: integers, in the shape of the tensor.
        storage_type: of them; its width is that of the array's dtype.
        block_sizes: for each axis; the last block of an axis may be shorter.
        scales: floats of the shape ``ceil(shape / block_sizes)``, or the form of such.
        zero_points: integers of the same shape, not wider than the storage; None for 0.
        offsets: as `scales`; None for 0.
    """

    storage: AnyArray
    storage_type: StorageType
    block_sizes: tuple[int, ...]
    scales: AnyArray | BlockForm
    zero_points: AnyArray | None = None
    offsets: AnyArray | None = None

    def dequantize(self, expressed: ExpressedType) -> AnyArray:
        """The reals."""
        scales, offsets = self.real_scales(expressed), self.real_offsets(expressed)
        return dequantize(self.storage, replace(self, scales=scales, offsets=offsets), expressed)

    def real_scales(self, expressed: ExpressedType) -> AnyArray:
        """The scales as floats."""
        return _reals(self.scales, expressed)

    def real_offsets(self, expressed: ExpressedType) -> AnyArray:
        """The offsets as floats, or None."""
        return _reals(self.offsets, expressed)


def _reals(numbers: AnyArray, expressed: ExpressedType) -> AnyArray:
    return numbers.dequantize(expressed) if isinstance(numbers, BlockForm) else numbers


@dispatched
def dequantize(storage: AnyArray, form: BlockForm, expressed: ExpressedType) -> AnyArray:
    """Dequantize.

    Args:
        storage: that of the form, which answers where it is a value of a program.
    """
    shape, cast = storage.shape, Cast(form.storage_type, expressed)
    check_rank(len(shape))
    arrays = (form.zero_points, form.scales, form.offsets)
    numbers_of_blocks: list[AnyArray] = [numbers for numbers in arrays if numbers is not None]
    block_sizes = form.block_sizes
    if 0 in shape or any(extent % size for extent, size in zip(shape, block_sizes, strict=True)):
        grouped, spread = (
            shape,
            [spread_blocks(array, shape, block_sizes) for array in numbers_of_blocks],
        )
    else:
        # Each axis as (block number, position in block), over which scales are broadcast.
        counts = [extent // size for extent, size in zip(shape, block_sizes, strict=True)]
        grouped = _interleaved(counts, block_sizes)
        spread = [
            array.reshape(_interleaved(counts, [1] * len(counts))) for array in numbers_of_blocks
        ]
    zero_point: Array | int = 0 if form.zero_points is None else spread.pop(0)
    with np.errstate(all="ignore"):
        real = cast.dequantize(storage.reshape(grouped), spread[0], zero_point, *spread[1:])
    return real.reshape(shape)


@dispatched
def quantize(
    values: AnyArray,
    scales: AnyArray,
    block_sizes: Sequence[int],
    storage: StorageType,
    expressed: ExpressedType,
) -> AnyArray:
    """Quantize with zero points of 0 and scales ``ceil(shape / block_sizes)``; see `dequantize`."""
    with np.errstate(all="ignore"):
        spread = spread_blocks(scales, values.shape, block_sizes)
        return Cast(storage, expressed).quantize(values, spread)


def _interleaved(counts: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for pair in zip(counts, sizes, strict=True) for n in pair)
