"""ONNX Runtime without optimizations, in a child process.

With its default optimizations it computes other numbers than the model says: it fuses dequantized
matrices with 8-bit activations. Some of its integer kernels saturate in 16 bits on CPUs with AVX2
alone, so that it is no judge of exactness there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..isolation.child import ReportStep
from ..isolation.limits import Limits
from ..numerics.element_types import Array
from .child_runtime import arrays_of, ask, described

__all__ = ["REQUIREMENT", "compute", "reference"]

REQUIREMENT = "onnxruntime"
"""What to install (also in pyproject.toml)."""

_COMPUTE = "subquant.comparison.onnxruntime_reference:compute"


def reference(
    data: bytes,
    file: str,
    names: Sequence[str],
    inputs: Sequence[Sequence[Array]],
    wanted: Sequence[str],
    limits: Limits | None = None,
) -> list[Mapping[str, Array]]:
    """Return tensors that ONNX Runtime computes, by name, for each call.

    Args:
        data: the model's file.
        file: its name, for errors.
        names: of the inputs.
        inputs: the arguments of each call.
        wanted: the names of the tensors; those of types that NumPy has not are left out.
        limits: of the child process.

    Raises:
        EnvironmentProblem: ONNX Runtime is not installed.
        CompilerError: it refuses the model, or crashed.
    """
    types, blobs = described(array for arrays in inputs for array in arrays)
    arguments = {
        "names": list(names),
        "inputs": types,
        "calls": len(inputs),
        "wanted": list(wanted),
    }
    value, found = ask(
        "ONNX Runtime", _COMPUTE, REQUIREMENT, file, arguments, [data, *blobs], limits
    )
    results: list[dict[str, Array]] = [{} for _ in inputs]
    for (number, name), array in zip(value["keys"], arrays_of(value["types"], found), strict=True):
        results[number][name] = array
    return list(results)


def compute(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run the model, in a child; a text is what ONNX Runtime says where it refuses it."""
    import onnx
    import onnxruntime

    steps("ONNX Runtime")
    model = onnx.ModelProto.FromString(blobs[0])
    there = {each.name for each in model.graph.output}
    for name in arguments["wanted"]:
        if name not in there:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    keys: list[tuple[int, str]] = []
    found: list[Array] = []
    names = arguments["names"]
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        arrays = iter(arrays_of(arguments["inputs"], blobs[1:]))
        for number in range(arguments["calls"]):
            feeds = {name: next(arrays) for name in names}
            results = session.run(arguments["wanted"], feeds)
            for name, array in zip(arguments["wanted"], results, strict=True):
                if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
                    keys.append((number, name))
                    found.append(array)
    except Exception as error:  # its exceptions have no base of their own
        return str(error).partition("\n")[0], []
    types, data = described(found)
    return {"keys": keys, "types": types}, data
