"""Client of StableHLO's reference interpreter, which runs in a child process.

The interpreter ends its process at an unknown operation (``LLVM ERROR: dynamic result types are not
supported at the moment``): that is an `UnsupportedError` with its last output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import UnsupportedError
from ..isolation.client import ChildEnded, call
from ..numerics.element_types import Array


def evaluate_in_child(
    text: str,
    function: str,
    arguments: Sequence[Array],
    elements: Sequence[str],
    *,
    is_dynamic: bool,
) -> list[Array]:
    """Evaluate a function of a lowered module in a child, with arrays of storage.

    `elements` has the MLIR element type of each argument; `is_dynamic` is true if the module does
    not have all shapes.
    """
    request = {
        "function": function,
        "arrays": [described(array) for array in arguments],
        "elements": list(elements),
        "is_dynamic": is_dynamic,
    }
    blobs = [text.encode(), *(np.ascontiguousarray(array).tobytes() for array in arguments)]
    try:
        described_results, results = call(
            "subquant.interpreter.interpreter_child:evaluate", request, blobs
        )
    except ChildEnded as ended:
        reason = re.search(r"LLVM ERROR: (.*)", ended.output_tail)
        reason_text = reason.group(1).strip() if reason else ended.cause
        raise UnsupportedError(
            f"StableHLO's interpreter ended its process: {reason_text}"
        ) from None
    return [array_of(each, data) for each, data in zip(described_results, results, strict=True)]


def described(array: Array) -> dict[str, Any]:
    """Return the type and shape of an array as JSON values."""
    return {"dtype": array.dtype.name, "shape": list(array.shape)}


def array_of(fields: dict[str, Any], data: bytes) -> Array:
    """Return the array of `described` fields and bytes, which may be written to."""
    name = str(fields["dtype"])
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    return np.frombuffer(data, dtype).reshape(fields["shape"]).copy()
