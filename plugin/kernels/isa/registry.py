"""Registry of instruction sets, and their choice by the features of a target."""

from __future__ import annotations

from collections.abc import Collection

from .arm_dotprod import NeonDotProduct
from .base import InstructionSet
from .portable import Portable
from .x86_amx import Amx
from .x86_avx2 import Avx2
from .x86_vnni import Avx512Vnni, Avx512VnniAmd, AvxVnni

_FASTEST_FIRST: tuple[InstructionSet, ...] = (
    *(Amx(), Avx512VnniAmd(), Avx512Vnni(), AvxVnni(), Avx2(), NeonDotProduct()),
    Portable(),
)
INSTRUCTION_SETS: dict[str, InstructionSet] = {each.name: each for each in _FASTEST_FIRST}
"""Instruction sets by name, the fastest first."""


def fastest_instruction_set(features: Collection[str]) -> InstructionSet:
    """Return the fastest instruction set of a target with some LLVM features."""
    return next(
        each for each in _FASTEST_FIRST if each.features | each.processor_features <= {*features}
    )


def supported_instruction_sets(features: Collection[str]) -> list[str]:
    """Return the names of all instruction sets that a target supports, the fastest first."""
    fastest = fastest_instruction_set(features).name
    supported = [each.name for each in _FASTEST_FIRST if each.features <= {*features}]
    return [fastest, *(name for name in supported if name != fastest)]
