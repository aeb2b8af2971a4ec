"""LiteRT's reference kernels, and ONNX Runtime without optimizations, in child processes.

Some files that subquant refuses crash LiteRT.

ONNX Runtime's default optimizations change results: they fuse dequantized matrices with 8-bit
activations. Some of its integer kernels saturate in 16 bits on CPUs with only AVX2, so it cannot
judge exactness there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CompilerError, EnvironmentProblem, Place
from ..isolation.child import ReportStep
from ..isolation.client import ChildEnded, call
from ..isolation.limits import Limits
from ..numerics.element_types import Array

Calls = Sequence[Sequence[Array]]
"""The arguments of each call."""

Values = list[Mapping[str, Array]]
"""The values of tensors in each call, by key."""


# -- arrays as JSON and bytes ---------------------------------------------------------------------


def _encode_arrays(arrays: Iterable[Array]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the dtypes and shapes of arrays as JSON, and their elements."""
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    types = [{"dtype": array.dtype.name, "shape": array.shape} for array in contiguous]
    return types, [array.tobytes() for array in contiguous]


def _decode_arrays(types: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> list[Array]:
    return [
        np.frombuffer(blob, each["dtype"]).reshape(each["shape"])
        for each, blob in zip(types, blobs, strict=True)
    ]


def _decode_calls(arguments: dict[str, Any], blobs: list[bytes]) -> list[list[Array]]:
    """Return the arguments of each call, in the child process."""
    arrays = iter(_decode_arrays(arguments["inputs"], blobs[1:]))
    return [[next(arrays) for _ in range(count)] for count in arguments["counts"]]


def _encode_values(values: Values) -> tuple[Any, list[bytes]]:
    types, data = _encode_arrays(array for each in values for array in each.values())
    return {"types": types, "keys": [list(each) for each in values]}, data


RUNTIMES = {
    "litert": ("LiteRT", "ai-edge-litert==2.3.0"),
    "onnxruntime": ("ONNX Runtime", "onnxruntime"),
}
"""The runtimes, with their names and the packages to install (also in pyproject.toml)."""


def compute_in_child(
    runtime: str,
    data: bytes,
    file: str,
    arguments: Mapping[str, Any],
    inputs: Calls,
    limits: Limits | None,
) -> Values:
    """Return the values of tensors that a runtime of `RUNTIMES` computes in a child process.

    `arguments` are further ones of ``run_litert`` or ``run_onnxruntime``.

    Raises:
        EnvironmentProblem: the runtime is not installed, or cannot be imported.
        CompilerError: the runtime refuses the model, or crashed.
    """
    name, requirement = RUNTIMES[runtime]
    package = requirement.partition("==")[0].replace("-", "_")
    if importlib.util.find_spec(package) is None:
        raise EnvironmentProblem(
            f"{name}, to compare with, is not installed; run: pip install {requirement}"
        )
    types, blobs = _encode_arrays(array for arrays in inputs for array in arrays)
    arguments = {**arguments, "inputs": types, "counts": [len(arrays) for arrays in inputs]}
    function = f"{__name__}:run_{runtime}"
    try:
        value, results = call(function, arguments, [data, *blobs], limits=limits)
    except ChildEnded as ended:
        message = f"{name} crashed on the model ({ended.cause})"
        raise CompilerError(message, Place(file)) from None
    if isinstance(value, str):
        raise CompilerError(f"{name} refuses the model: {value}", Place(file))
    if "import_error" in value:
        raise EnvironmentProblem(
            f"{name}, to compare with, is installed and cannot be imported: "
            f"{value['import_error']}; run: pip install --force-reinstall {requirement}"
        )
    decoded = iter(_decode_arrays(value["types"], results))
    return [{key: next(decoded) for key in keys} for keys in value["keys"]]


def run_litert(
    arguments: dict[str, Any], blobs: list[bytes], report_step: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run LiteRT in the child process; return its message if it refuses the model.

    ``tensors`` are numbers. Variables keep their values between calls.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except Exception as error:  # a package that does not fit its libraries may raise any
        return _import_error(error), []

    report_step("LiteRT")
    calls = _decode_calls(arguments, blobs)
    values: Values = []
    try:
        interpreter = Interpreter(
            model_content=blobs[0],
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        )
        details = interpreter.get_input_details()
        for arrays in calls[:1]:
            for detail, array in zip(details, arrays, strict=True):
                if tuple(detail["shape"]) != array.shape:
                    interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for arrays in calls:
            for detail, array in zip(details, arrays, strict=True):
                interpreter.set_tensor(detail["index"], array)
            interpreter.invoke()
            values.append(
                {key: np.array(interpreter.get_tensor(int(key))) for key in arguments["tensors"]}
            )
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0], []
    return _encode_values(values)


def _import_error(error: Exception) -> dict[str, str]:
    return {"import_error": (str(error) or type(error).__name__).partition("\n")[0]}


def run_onnxruntime(
    arguments: dict[str, Any], blobs: list[bytes], report_step: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run ONNX Runtime in the child process; return the message of a refusal.

    ``names`` are inputs, ``tensors`` outputs. Tensors of types that NumPy lacks are omitted.
    """
    try:
        import onnx
        import onnxruntime
    except Exception as error:  # a package that does not fit its libraries may raise any
        return _import_error(error), []

    report_step("ONNX Runtime")
    model = onnx.ModelProto.FromString(blobs[0])
    outputs = {each.name for each in model.graph.output}
    for name in arguments["tensors"]:
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    values: Values = []
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for arrays in _decode_calls(arguments, blobs):
            feeds = dict(zip(arguments["names"], arrays, strict=True))
            results = zip(
                arguments["tensors"], session.run(arguments["tensors"], feeds), strict=True
            )
            values.append({
                name: array for name, array in results
                if isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
            })  # fmt: skip
    except Exception as error:  # its exceptions have no common base
        return str(error).partition("\n")[0], []
    return _encode_values(values)
