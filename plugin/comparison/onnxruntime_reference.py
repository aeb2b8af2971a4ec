"""ONNX Runtime without optimizations, in a child process.

Its default optimizations change results: they fuse dequantized matrices with 8-bit activations.
Some of its integer kernels saturate in 16 bits on CPUs with only AVX2, so it cannot judge exactness
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..isolation.child import ReportStep
from ..isolation.limits import Limits
from ..numerics.element_types import Array
from .child_runtime import call_runtime, decode_arrays, encode_arrays

REQUIREMENT = "onnxruntime"
"""The package to install (also in pyproject.toml)."""


def compute_with_onnxruntime(
    data: bytes,
    file: str,
    names: Sequence[str],
    inputs: Sequence[Sequence[Array]],
    tensors: Sequence[str],
    limits: Limits | None = None,
) -> list[Mapping[str, Array]]:
    """Return the values of tensors, by name, for each call.

    Tensors of types that NumPy lacks are omitted.

    Raises:
        EnvironmentProblem: ONNX Runtime is not installed.
        CompilerError: ONNX Runtime refuses the model, or crashed.
    """
    types, blobs = encode_arrays(array for arrays in inputs for array in arrays)
    arguments = {"names": [*names], "inputs": types, "calls": len(inputs), "wanted": [*tensors]}
    value, encoded = call_runtime(
        "ONNX Runtime", f"{__name__}:compute", REQUIREMENT, file, arguments, [data, *blobs], limits
    )
    results: list[dict[str, Array]] = [{} for _ in inputs]
    arrays = decode_arrays(value["types"], encoded)
    for (number, name), array in zip(value["keys"], arrays, strict=True):
        results[number][name] = array
    return list(results)


def compute(
    arguments: dict[str, Any], blobs: list[bytes], report_step: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run the model, in the child process; return the message of a refusal."""
    import onnx
    import onnxruntime

    report_step("ONNX Runtime")
    model = onnx.ModelProto.FromString(blobs[0])
    outputs = {each.name for each in model.graph.output}
    for name in arguments["wanted"]:
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    keys: list[tuple[int, str]] = []
    arrays: list[Array] = []
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        inputs = iter(decode_arrays(arguments["inputs"], blobs[1:]))
        for number in range(arguments["calls"]):
            feeds = {name: next(inputs) for name in arguments["names"]}
            results = session.run(arguments["wanted"], feeds)
            for name, array in zip(arguments["wanted"], results, strict=True):
                if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
                    keys.append((number, name))
                    arrays.append(array)
    except Exception as error:  # its exceptions have no common base
        return str(error).partition("\n")[0], []
    types, data = encode_arrays(arrays)
    return {"keys": keys, "types": types}, data
