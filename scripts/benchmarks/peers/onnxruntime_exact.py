"""ONNX Runtime with unsigned 8-bit weights, whose products do not saturate.

On CPUs without an int8 dot-product instruction this peer is slower than `onnxruntime`, and right.
On other CPUs both are right, and this peer is left out.
"""

from __future__ import annotations

import os

from ..hidden import HIDDEN
from . import DOT_PRODUCTS, HOST, Array, Case, Unsupported, features_of
from . import onnxruntime as faster

HAS_MODULES = True
_OF_BYTES = ("int8 matmul", "int8 convolution", "module", "network")


def describe() -> dict[str, str]:
    """Return the name and the version."""
    has_dot_products = not features_of({"target_cpu": HOST}).isdisjoint(DOT_PRODUCTS)
    if has_dot_products and HIDDEN not in os.environ:
        raise Unsupported("this CPU has dot products of bytes, with which ONNX Runtime is exact")
    description = faster.describe()
    return description | {"name": f"{description['name']}, unsigned weights"}


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> faster.Sessions:
    """Prepare a case: see `benchmarks.peers`."""
    if case["kind"] not in _OF_BYTES:
        raise Unsupported("its weights are not of 8 bits, or are floats to it")
    return faster.prepare(case, arrays, threads, copies, is_exact=True)
