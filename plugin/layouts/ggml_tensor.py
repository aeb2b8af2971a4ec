"""A tensor in GGML's blocks, as they lie in a file."""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from ..numerics.element_types import Array
from .base import QuantizedLayout
from .ggml import BLOCK_TYPES, GgmlBlockType
from .tensors import QuantizedTensor


class GgmlTensor(QuantizedTensor):
    """A tensor in GGML's blocks.

    Args:
        raw: the bytes of its blocks, in order.
        ggml_type: a name of `BLOCK_TYPES`.
        shape: logical, the last axis a multiple of the block's size.

    Raises:
        InputError: the type is unknown, or bytes, shape and type do not fit.
    """

    def __init__(self, raw: Array, ggml_type: str, shape: tuple[int, ...], name: str = "") -> None:
        super().__init__(name, shape)
        if ggml_type not in BLOCK_TYPES:
            raise InputError(
                f"tensor '{name}' is of the GGML type {ggml_type}; expected one of: "
                f"{', '.join(BLOCK_TYPES)}"
            )
        self.raw = raw
        self.ggml_type = ggml_type
        kind = BLOCK_TYPES[ggml_type]
        if not self.shape or self.shape[-1] % kind.size:
            raise InputError(
                f"tensor '{name}' of the GGML type {ggml_type} has the shape {self.shape}, "
                f"expected a last axis that is a multiple of {kind.size}"
            )
        expected = self._blocks(self.shape) * kind.block.itemsize
        if raw.dtype != np.uint8 or raw.shape != (expected,):
            raise InputError(
                f"tensor '{name}' of the GGML type {ggml_type} and the shape {self.shape} has "
                f"{raw.dtype.name}{list(raw.shape)} as its blocks, expected {expected} bytes"
            )

    def _blocks(self, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape, dtype=object)) // BLOCK_TYPES[self.ggml_type].size

    @property
    def kind(self) -> GgmlBlockType:
        """The properties of the type."""
        return BLOCK_TYPES[self.ggml_type]

    @property
    def stored_arrays(self) -> list[Array]:
        """Its blocks."""
        return [self.raw]

    def unpack(self) -> QuantizedLayout:
        """The layout, of planes that are made at each call."""
        kind = self.kind
        grid = (*self.shape[:-1], self.shape[-1] // kind.size * kind.layout_blocks)
        axes = 1 if kind.layout_blocks == 1 else 2
        planes = {
            name: plane.reshape((*grid, *plane.shape[axes:]))
            for name, plane in kind.unpack(self.raw.view(kind.block)).items()
        }
        return kind.layout(self.shape, planes, kind.metadata)

    def rows(self, start: int, stop: int) -> GgmlTensor:
        """Some of the first axis, of a tensor with two axes or more; nothing is copied."""
        if len(self.shape) < 2:
            raise InputError(f"tensor '{self.name}' of shape {self.shape} has no rows")
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        shape = (max(0, stop - start), *self.shape[1:])
        row = self._blocks((1, *self.shape[1:])) * self.kind.block.itemsize
        return GgmlTensor(self.raw[start * row : max(start, stop) * row], self.ggml_type, shape,
                          self.name)  # fmt: skip

    def gather(self, rows: Array) -> GgmlTensor:
        """Some rows of a matrix by their numbers, in range; the others are not read."""
        raw = self.raw.reshape((self.shape[0], -1))[rows].reshape(-1)
        return GgmlTensor(raw, self.ggml_type, (len(rows), *self.shape[1:]), self.name)
