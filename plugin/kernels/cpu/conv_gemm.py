"""Implicit GEMM: base of the int8 kernels that multiply output pixels with a packed weight.

M is the output pixels, N the output channels, and K the taps times the input channels. A GEMM is
the convolution of one row with a 1x1 filter.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..conv_geometry import ConvGeometry
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..pack.packed_weight import Tiles
from .pad_copy import PadCopyKernel

MAX_PADDED_BYTES = 16 << 10
"""Scratch memory of padded rows, at most, which stay in the L1 cache beside the weight."""


@dataclass(frozen=True)
class ConvGemm:
    """An implicit GEMM.

    Args:
        tiles: the layout of the packed weight; its K is that of an output pixel.
        target: the instruction set; AMX kernels use its vectors where a process has no AMX tiles.
        geometry: output pixels, and the input pixels that they read.
        channels: C, a multiple of the k-pack.
        pad_copy: copies padded rows to scratch memory; None where the activations in memory have
            their padding.
    """

    tiles: Tiles
    target: InstructionSet
    geometry: ConvGeometry
    channels: int
    workgroups: int
    epilogue: FusedEpilogue | None = None
    pad_copy: PadCopyKernel | None = None

    @property
    def result_shape(self) -> tuple[int, int, int]:
        """Output rows, output columns and N."""
        geometry = self.geometry
        return geometry.images * geometry.output_rows, geometry.output_columns, self.tiles.n

    @property
    def fits_scratch(self) -> bool:
        """True if the padded rows of an output row fit scratch memory."""
        return self.padded_bytes(1) <= MAX_PADDED_BYTES

    def padded_bytes(self, output_rows: int) -> int:
        """The scratch memory for the padded rows that some output rows read."""
        if self.pad_copy is None:
            return 0
        *_, width, channels = self.pad_copy.padded_shape
        size = self.target.multiplicand_type.bits // 8
        return self.padded_rows(output_rows) * width * channels * size

    def padded_rows(self, output_rows: int) -> int:
        """The number of padded rows that some output rows read."""
        assert self.pad_copy is not None
        axis = self.pad_copy.vertical
        return (output_rows - 1) * axis.stride + axis.receptive_field
