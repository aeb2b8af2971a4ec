"""Blocks of 8-bit floats, with one scale for each block: FP8 checkpoints.

The elements are stored as bytes: IREE has no tensors of 8-bit floats on its targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..numerics.element_types import AnyArray
from ..numerics.small_floats import FLOAT8_FORMATS, SmallFloat
from .base import FLOAT_DTYPES, QuantizedLayout


class BlockScaledFloat8Layout(QuantizedLayout):
    """``d * float8(qs)`` for blocks along any axes.

    Planes:
        d: scales, of shape ``ceil(shape / block_shape)``.
        qs: the bits of the elements, of the tensor's shape (uint8).

    Metadata:
        block_shape: the extents of a block, one an axis; the shape for one scale.
        format: the type of the elements: ``f8E4M3FN``, ``f8E5M2``, ``f8E4M3FNUZ``, ``f8E5M2FNUZ``.
    """

    PLANES: ClassVar = ("d", "qs")
    METADATA: ClassVar = ("block_shape", "format")

    def check(self) -> None:
        """Check the grid of blocks, and the format."""
        block = self.metadata.get("block_shape")
        is_list = isinstance(block, list) and len(block) == len(self.shape)
        if not is_list or not all(type(n) is int and n >= 1 for n in block or ()):
            raise InputError(
                f"'block_shape' of {self.name} must be a list of {len(self.shape)} positive "
                f"integers, got {block!r}"
            )
        if self.metadata.get("format") not in FLOAT8_FORMATS:
            raise InputError(
                f"'format' of {self.name} is {self.metadata.get('format')!r}, expected one of: "
                f"{', '.join(FLOAT8_FORMATS)}"
            )
        grid = tuple(-(-n // b) for n, b in zip(self.shape, block or (), strict=True))
        self.expect("d", grid, *FLOAT_DTYPES)
        self.expect("qs", self.shape, "uint8")

    @property
    def element(self) -> SmallFloat:
        """The format of the elements."""
        return FLOAT8_FORMATS[self.metadata["format"]]

    @property
    def _block_sizes(self) -> list[int]:
        """The block shape, at most the shape."""
        return [min(b, n) for b, n in zip(self.metadata["block_shape"], self.shape, strict=True)]

    @property
    def has_whole_blocks(self) -> bool:
        """True if no block at the end of an axis is shorter than the others."""
        return not any(n % b for n, b in zip(self.shape, self._block_sizes, strict=True))

    def dequant(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values, of the layout's shape."""
        compute = self.compute_dtype()
        elements = self.element.compute(self.planes["qs"]).astype(compute)
        scales = self.planes["d"].astype(compute)
        sizes = self._block_sizes
        with np.errstate(all="ignore"):
            return (_times_blocks(elements, scales, sizes)).astype(dtype)


def _times_blocks(elements: AnyArray, scales: AnyArray, sizes: Sequence[int]) -> AnyArray:
    """Multiply the elements of each block by its scale."""
    shape = elements.shape
    if all(size in (1, extent) for size, extent in zip(sizes, shape, strict=True)):
        return elements * scales
    if 0 not in shape and not any(n % size for n, size in zip(shape, sizes, strict=True)):
        grouped = [n for b, size in zip(scales.shape, sizes, strict=True) for n in (b, size)]
        spread = [n for b in scales.shape for n in (b, 1)]
        return (elements.reshape(grouped) * scales.reshape(spread)).reshape(shape)
    for axis, (size, extent) in enumerate(zip(sizes, shape, strict=True)):
        if size > 1:  # the last block of the axis may be shorter
            whole = np.repeat(scales, size, axis=axis)
            scales = whole[(*(slice(None),) * axis, slice(0, extent))]
    return elements * scales
