"""Match of ``subquant.attention``, and the call of its kernel."""

from __future__ import annotations

import math

from ...core._mlir import Value
from ...dialects.attention import Attention
from ...emit import linalg
from ...emit.kernel import KernelTable
from ...emit.linalg import DimSize
from ..cpu.attention import AttentionKernel
from ..isa.base import InstructionSet
from .match_failure import MatchFailure

_MIN_LANES = 4
"""Head dimensions that fill shorter vectors are left to IREE."""


def call_attention(
    attention: Attention, target: InstructionSet, kernels: KernelTable
) -> Value | MatchFailure:
    """Call the attention kernel, and return its result, or the match failure."""
    lanes = math.gcd(target.lanes, attention.head_size)
    if lanes < _MIN_LANES:
        return MatchFailure(
            f"its head dimension {attention.head_size} is no multiple of {_MIN_LANES}"
        )
    if attention.count == 0:
        return MatchFailure("it has no queries")
    kernel = AttentionKernel(
        target,
        attention.count,
        attention.heads,
        attention.groups,
        attention.head_size,
        attention.context,
        attention.key_format,
        attention.value_format,
        attention.scale,
        attention.window,
        attention.softcap,
        attention.causal,
    )
    if not kernel.fits_scratch:
        return MatchFailure(
            f"{kernel.heads_per_kv_head} query heads of a group do not fit the scratch memory"
        )
    query = attention.query
    rows: DimSize = linalg.dim(query, 0) if attention.count is None else attention.count
    operands = [query, attention.keys, attention.values, attention.position]
    [result] = kernels.call(kernel, kernel.kernel(), operands, [query.type], rows)
    return result
