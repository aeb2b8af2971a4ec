"""LiteRT's reference kernels, in a child process: its C++ ends on files that ours refuses.

`compute` runs there; `reference` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.files import kind_of
from ..importers.tflite.reading.model import Model
from ..isolation.child import ReportStep
from ..isolation.limits import Limits
from ..numerics.element_types import Array
from .child_runtime import arrays_of, ask, described

__all__ = ["REQUIREMENT", "compute", "reference"]

REQUIREMENT = "ai-edge-litert==2.3.0"
"""What to install (also in pyproject.toml)."""

_COMPUTE = "subquant.comparison.litert_reference:compute"


def reference(
    data: bytes,
    model: Model,
    inputs: Sequence[Sequence[Array]],
    wanted: Sequence[str],
    limits: Limits | None = None,
) -> list[Mapping[str, Array]]:
    """Return tensors that LiteRT's reference kernels compute, by number, for each call.

    Args:
        data: the model's file.
        model: the same, as read.
        inputs: the arguments of each call; variables keep their values from one to the next.
        wanted: the numbers of the tensors; no handles of variables, which end LiteRT.
        limits: of the child process.

    Raises:
        EnvironmentProblem: LiteRT is not installed.
        CompilerError: it refuses the model, or crashed.
    """
    assert kind_of(data) == "tflite"  # it has been read
    types, blobs = described(array for arrays in inputs for array in arrays)
    arguments = {"calls": len(inputs), "inputs": types, "tensors": [int(key) for key in wanted]}
    value, found = ask(
        "LiteRT", _COMPUTE, REQUIREMENT, model.file, arguments, [data, *blobs], limits
    )
    arrays = arrays_of(value, found)
    each_call = len(wanted)
    return [
        dict(zip(wanted, arrays[start : start + each_call], strict=True))
        for start in range(0, len(arrays), each_call)
    ]


def compute(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run the model, in a child; a text is what LiteRT says where it refuses it."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    steps("LiteRT")
    arrays = arrays_of(arguments["inputs"], blobs[1:])
    found: list[Array] = []
    try:
        interpreter = Interpreter(
            model_content=blobs[0],
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        details = interpreter.get_input_details()
        count = len(details)
        for detail, array in zip(details, arrays[:count], strict=True):
            if tuple(detail["shape"]) != array.shape:
                interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for start in range(0, count * arguments["calls"], max(count, 1)):
            for detail, array in zip(details, arrays[start : start + count], strict=True):
                interpreter.set_tensor(detail["index"], array)
            interpreter.invoke()
            found += [np.array(interpreter.get_tensor(index)) for index in arguments["tensors"]]
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0], []
    return described(found)
