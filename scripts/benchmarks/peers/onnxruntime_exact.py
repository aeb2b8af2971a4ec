"""ONNX Runtime with weights of 8 bits that are unsigned, or that it makes so: nothing saturates.

That is slower than what `onnxruntime` times, and right, on CPUs without dot products of bytes; on
others both are right, and this one is left out.
"""

from __future__ import annotations

import os

from ..hidden import HIDDEN
from . import DOT_PRODUCTS, HOST, Array, Case, Unsupported, features_of
from . import onnxruntime as faster

_OF_BYTES = ("int8 matmul", "int8 convolution", "network")


def describe() -> dict[str, str]:
    """The name and the version."""
    has_dot_products = not features_of({"target_cpu": HOST}).isdisjoint(DOT_PRODUCTS)
    if has_dot_products and HIDDEN not in os.environ:
        raise Unsupported("this CPU has dot products of bytes, with which ONNX Runtime is exact")
    found = faster.describe()
    return found | {"name": f"{found['name']}, unsigned weights"}


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> faster.Sessions:
    """As `benchmarks.peers` says."""
    if case["kind"] not in _OF_BYTES:
        raise Unsupported("its weights are not of 8 bits, or are floats to it")
    return faster.prepare(case, arrays, threads, copies, is_exact=True)
