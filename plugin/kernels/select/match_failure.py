"""The reason why no kernel computes an operation, which IREE's code generation compiles then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatchFailure:
    """A mismatch between an operation and a kernel.

    The reason is a clause about the operation, for the remark ``has no kernel: {reason}``.
    """

    reason: str


NOT_INT8 = MatchFailure("it is not an i8 x i8 -> i32 contraction")
IS_SMALL = MatchFailure("it is small")
