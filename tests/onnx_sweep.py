"""Node tests of the `onnx` package, compiled and run: each is right, wrong, refused or crashed."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_models import arrays_of, plain
from subquant.dialects import create_context
from subquant.errors import SubquantError
from subquant.importers.onnx import write_module
from subquant.importers.onnx.reading.reader import read_onnx
from subquant.importers.options import ImportOptions
from subquant.runtime import Device
from together import Together

Array = np.ndarray[Any, Any]

_MODELS_TOGETHER = 24
"""The number of models that are compiled as one module."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a node test."""

    name: str
    operators: tuple[str, ...]
    opset: int
    kind: str
    """``right``, ``wrong``, ``refused`` or ``crashed``."""
    message: str
    has_fixed_shapes: bool
    """Inputs and outputs are tensors of numbers with known shapes."""


def outcomes(cases: Mapping[str, Any], device: Device) -> Iterator[Outcome]:
    """Compile and run node tests, several as one module, and give the outcome of each."""
    names = list(cases)
    for first in range(0, len(names), _MODELS_TOGETHER):
        texts: dict[str, str] = {}
        fixed: dict[str, set[str]] = {}
        kinds: dict[str, tuple[str, str]] = {}
        for name in names[first : first + _MODELS_TOGETHER]:
            try:
                texts[name], fixed[name] = program_of(cases[name])
            except SubquantError as error:
                kinds[name] = "refused", str(error).splitlines()[0]
            except Exception as error:
                kinds[name] = "crashed", f"import: {type(error).__name__}: {error}"[:300]
        together = Together(texts)
        for name in texts:
            kinds[name] = run_case(name, cases[name], fixed[name], together, device)
        for name, (kind, message) in kinds.items():
            proto = cases[name].model
            operators = tuple(sorted({node.op_type for node in proto.graph.node}))
            opset = max((each.version for each in proto.opset_import if not each.domain), default=0)
            yield Outcome(name, operators, opset, kind, message, has_tensors_only(cases[name]))


@functools.cache
def node_tests() -> dict[str, Any]:
    """Return the node tests of the `onnx` package by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    return {case.name.removeprefix("test_"): case for case in cases}


def _decoded(result: Array, target: Array, expected: Any) -> tuple[Array, Array]:
    """Return codes of small floats as floats: NaN has several codes."""
    array = numpy_helper.to_array(expected) if isinstance(expected, onnx.TensorProto) else expected
    name = np.asarray(array).dtype.name
    if not name.startswith(("float4_", "float6_", "float8_")):
        return result, target
    dtype = np.asarray(array).dtype
    return result.view(dtype).astype(np.float32), target.view(dtype).astype(np.float32)


def is_close(result: Array, expected: Array, rtol: float, atol: float) -> bool:
    """Return True if a result is the expected one: equal integers, floats within a tolerance."""
    if result.shape != expected.shape:
        return False
    if expected.dtype.kind in "biu":
        return bool((result == expected).all())
    return bool(
        np.allclose(
            result.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True
        )
    )


def program_of(case: Any) -> tuple[str, set[str]]:
    """Return the program of a node test, and the inputs that are constants in it.

    An input that must be constant (the shape of Reshape, the axes of ReduceSum) becomes one, as
    ``--input-value`` makes it. A refused model is a `SubquantError`.
    """
    model = read_onnx(case.model.SerializeToString())
    feeds = dict(zip([each.name for each in case.model.graph.input], case.data_sets[0][0],
                     strict=False))  # fmt: skip
    fixed: dict[str, str] = {}
    while True:
        values = tuple(f"{name}={text}" for name, text in fixed.items())
        try:
            module = write_module(model, create_context(), ImportOptions(input_values=values))
        except SubquantError as error:
            match = _NEEDS_CONSTANT.search(str(error))
            name = match.group(1) if match else ""
            array = plain(feeds[name]) if name in feeds else None
            if array is None or name in fixed or not array.size or len(case.data_sets) > 1:
                raise
            fixed[name] = ",".join(str(each) for each in array.reshape(-1).tolist())
        else:
            return str(module), set(fixed)


_NEEDS_CONSTANT = re.compile(r"needs tensor '([^']*)' to be constant")


def run_case(
    name: str, case: Any, fixed: set[str], together: Together, device: Device
) -> tuple[str, str]:
    """Return the outcome of one model, and the message of an error."""
    try:
        function = together.function(name, device)
        model = case.model
        constants = {each.name for each in model.graph.initializer} | fixed
        names = [each.name for each in model.graph.input if each.name not in constants]
        for inputs, outputs in case.data_sets:
            arguments = dict(zip([each.name for each in model.graph.input], inputs, strict=False))
            results = arrays_of(function(*[plain(arguments[each]) for each in names]))
            for actual, expected in zip(results, outputs, strict=True):
                target = plain(expected)
                tolerance = max(case.rtol, 1e-3), max(case.atol, 1e-6)
                if target.dtype.name in ("float16", "bfloat16"):
                    tolerance = 1e-2, 1e-3
                if not is_close(*_decoded(actual, target, expected), *tolerance):
                    return "wrong", f"got {str(actual)[:200]}, expected {str(target)[:200]}"
    except SubquantError as error:
        return "refused", str(error).splitlines()[0]
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"[:300]
    return "right", ""


def has_tensors_only(case: Any) -> bool:
    """Return True if inputs and outputs are tensors of numbers with known shapes."""
    graph = case.model.graph
    for value in (*graph.input, *graph.output):
        if not value.type.HasField("tensor_type"):
            return False
        tensor = value.type.tensor_type
        if tensor.elem_type == onnx.TensorProto.STRING or not tensor.HasField("shape"):
            return False
        if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            return False
    return True
