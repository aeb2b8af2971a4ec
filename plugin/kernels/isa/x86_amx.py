"""Tile products of AMX, for GEMMs of many rows; all other kernels use AVX512-VNNI.

`subquant.kernels.cpu.amx_gemm` and `subquant.kernels.cpu.amx_blockwise` emit the tile instructions.
They need 8 rows or more (`subquant.kernels.select.match_int8`), or 9 (`AmxBlockwisePlan`).
"""

from __future__ import annotations

from .x86_vnni import Avx512Vnni


class Amx(Avx512Vnni):
    """AMX tiles beside AVX512-VNNI."""

    name = "amx"
    features = Avx512Vnni.features | {"amx-int8"}
    has_amx_tiles = True

    @property
    def name_without_tiles(self) -> str:
        """Name of AVX512-VNNI."""
        return Avx512Vnni.name
