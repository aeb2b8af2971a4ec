"""The modules of ``scripts/benchmarks``, and cases of them that take no time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from programs import load_script

_MODULES = (
    "blocks", "cases", "checkpoints", "checks", "ceilings", "hidden", "measurement", "networks",
    "programs", "report", "worker", "__main__", "peers.iree", "peers.limits", "peers.subquant",
)  # fmt: skip

bench = SimpleNamespace(
    **{
        name.removeprefix("peers.").strip("_"): load_script(f"benchmarks.{name}")
        for name in _MODULES
    }
)


def tiny(kind: str) -> Any:
    """A case of a kind that takes no time."""
    cases = bench.cases
    return {
        "blocks": lambda: cases.block_matmul("tiny", "Q4_1", 2, 8, 64),
        "one row": lambda: cases.block_matmul("tiny", "Q4_0", 1, 8, 64),
        "matmul": lambda: cases.int8_matmul("tiny", 3, 5, 16),
        "convolution": lambda: cases.int8_convolution("tiny", 6, 4, 4, 3, 2, 1),
        "depthwise": lambda: cases.int8_convolution("tiny", 5, 4, 4, 3, 1, 4),
    }[kind]()
