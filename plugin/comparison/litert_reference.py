"""LiteRT's reference kernels, in a child process: some files that subquant refuses crash LiteRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.files import kind_of
from ..importers.tflite.reading.model import Model
from ..isolation.child import ReportStep
from ..isolation.limits import Limits
from ..numerics.element_types import Array
from .child_runtime import call_runtime, decode_arrays, encode_arrays

REQUIREMENT = "ai-edge-litert==2.3.0"
"""The package to install (also in pyproject.toml)."""


def compute_with_litert(
    data: bytes,
    model: Model,
    inputs: Sequence[Sequence[Array]],
    tensors: Sequence[str],
    limits: Limits | None = None,
) -> list[Mapping[str, Array]]:
    """Return the values of tensors, by number, for each call; variables keep their values between.

    Raises:
        EnvironmentProblem: LiteRT is not installed.
        CompilerError: LiteRT refuses the model, or crashed.
    """
    assert kind_of(data) == "tflite"
    types, blobs = encode_arrays(array for arrays in inputs for array in arrays)
    arguments = {"calls": len(inputs), "inputs": types, "tensors": [int(key) for key in tensors]}
    value, results = call_runtime(
        "LiteRT", f"{__name__}:compute", REQUIREMENT, model.file, arguments, [data, *blobs], limits
    )
    arrays = decode_arrays(value, results)
    per_call = len(tensors)
    return [
        dict(zip(tensors, arrays[start : start + per_call], strict=True))
        for start in range(0, len(arrays), per_call)
    ]


def compute(
    arguments: dict[str, Any], blobs: list[bytes], report_step: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run the model, in the child process; return LiteRT's message if it refuses the model."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    report_step("LiteRT")
    arrays = decode_arrays(arguments["inputs"], blobs[1:])
    results: list[Array] = []
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
            results += [np.array(interpreter.get_tensor(index)) for index in arguments["tensors"]]
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0], []
    return encode_arrays(results)
