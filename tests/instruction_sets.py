"""Instruction sets of kernels as parameters of tests, with the same ids on every machine.

A case whose instruction set this CPU does not have is skipped. ``SUBQUANT_HOST_CPU`` names a lesser
CPU in place of this one.
"""

from __future__ import annotations

from typing import Any

import pytest

from programs import LONG
from subquant.compiler.iree_driver import host_features
from subquant.kernels.isa.registry import INSTRUCTION_SETS, supported_instruction_sets

HERE = supported_instruction_sets(host_features() or ())
"""The instruction sets of this machine, the fastest first."""


def case_of(name: str) -> Any:
    """Return the parameter of an instruction set."""
    is_here = pytest.mark.skipif(name not in HERE, reason=f"this CPU has no {name}")
    return pytest.param(name, id=name, marks=is_here)


EVERY = [case_of(name) for name in INSTRUCTION_SETS]
AUTO = pytest.param("auto", id="auto")
"""The fastest instruction set of this machine, by the name that is the same everywhere."""
SOME = EVERY if LONG else [AUTO, case_of("avx2")]
"""The parameters of most tests: in the short suite the fastest instruction set, and AVX2, which
widens factors and multiplies in groups of two."""
