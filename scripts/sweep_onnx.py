"""Sweep of ONNX operators: node tests of the `onnx` package, compiled and run on llvm-cpu.

Each model is imported, compiled together with others, and run; its results are compared with the
expected ones of the node test. A model is *right*, *wrong*, or *refused* with a message. The
results are written as JSON, one line for each model, and as a table of operators.

    python scripts/sweep_onnx.py --json out.jsonl [--only PATTERN] [--shard 0/2]
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from onnx_models import plain  # noqa: E402
from subquant.dialects import create_context  # noqa: E402
from subquant.errors import SubquantError  # noqa: E402
from subquant.formats.onnx import read_onnx  # noqa: E402
from subquant.frontends.onnx import write_module  # noqa: E402
from subquant.frontends.options import ImportOptions  # noqa: E402
from subquant.runtime import Device  # noqa: E402
from together import Together  # noqa: E402

Array = np.ndarray[Any, Any]

_MODULES_TOGETHER = 24
"""The number of models that are compiled as one module."""


def node_tests() -> dict[str, Any]:
    """Return the node tests of the `onnx` package by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    return {case.name.removeprefix("test_"): case for case in cases}


def _decoded(found: Array, wanted: Array, expected: Any) -> tuple[Array, Array]:
    """Return codes of small floats as floats: NaN has several codes."""
    array = numpy_helper.to_array(expected) if isinstance(expected, onnx.TensorProto) else expected
    name = np.asarray(array).dtype.name
    if not name.startswith(("float4_", "float6_", "float8_")):
        return found, wanted
    dtype = np.asarray(array).dtype
    return found.view(dtype).astype(np.float32), wanted.view(dtype).astype(np.float32)


def is_close(found: Array, expected: Array, rtol: float, atol: float) -> bool:
    """Return True if a result is the expected one: equal integers, floats within a tolerance."""
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind in "biu":
        return bool((found == expected).all())
    return bool(
        np.allclose(
            found.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True
        )
    )


def program_of(case: Any) -> tuple[str, set[str]]:
    """Return the program of a node test, and the inputs that are constants in it.

    An input that must be constant (the shape of Reshape, the axes of ReduceSum) becomes one, as
    ``--input-value`` makes it.

    Raises:
        SubquantError: the model is refused.
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
            given = dict(zip([each.name for each in model.graph.input], inputs, strict=False))
            results = function(*[plain(given[each]) for each in names])
            listed = list(results) if isinstance(results, (list, tuple)) else [results]
            for result, expected in zip(listed, outputs, strict=True):
                wanted = plain(expected)
                found = np.asarray(result)
                tolerance = max(case.rtol, 1e-3), max(case.atol, 1e-6)
                if wanted.dtype.name in ("float16", "bfloat16"):
                    tolerance = 1e-2, 1e-3
                if not is_close(*_decoded(found, wanted, expected), *tolerance):
                    return "wrong", f"got {str(found)[:200]}, expected {str(wanted)[:200]}"
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


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="sweep.jsonl")
    parser.add_argument("--only", default="*")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--list", action="store_true", help="print every model that is not right")
    options = parser.parse_args()
    shard, count = map(int, options.shard.split("/"))
    cases = {
        name: case for name, case in sorted(node_tests().items())
        if any(fnmatch.fnmatchcase(name, each) for each in options.only.split(","))
    }  # fmt: skip
    cases = dict(list(cases.items())[shard::count])
    device = Device("llvm-cpu")
    start, counts = time.monotonic(), collections.Counter[str]()
    fixed = collections.Counter[str]()
    names = list(cases)
    with open(options.json, "w") as file:
        for first in range(0, len(names), _MODULES_TOGETHER):
            texts, outcomes, fixed_inputs = {}, {}, {}
            for name in names[first : first + _MODULES_TOGETHER]:
                try:
                    texts[name], fixed_inputs[name] = program_of(cases[name])
                except SubquantError as error:
                    outcomes[name] = "refused", str(error).splitlines()[0]
                except Exception as error:
                    outcomes[name] = "crashed", f"import: {type(error).__name__}: {error}"[:300]
            together = Together(texts)
            for name in texts:
                outcomes[name] = run_case(name, cases[name], fixed_inputs[name], together, device)
            for name, (outcome, message) in outcomes.items():
                is_fixed = has_tensors_only(cases[name])
                counts[outcome] += 1
                if is_fixed:
                    fixed[outcome] += 1
                operators = sorted({each.op_type for each in cases[name].model.graph.node})
                opset = cases[name].model.opset_import[0].version
                row = {"name": name, "operators": operators, "opset": opset, "outcome": outcome,
                       "message": message, "is_fixed": is_fixed}  # fmt: skip
                file.write(json.dumps(row) + "\n")
                if options.list and outcome != "right":
                    print(f"{outcome:8} {name}: {message[:300]}")
            file.flush()
            seconds = time.monotonic() - start
            print(f"{sum(counts.values())}/{len(names)} {seconds:.0f} s {dict(counts)}",
                  file=sys.stderr)  # fmt: skip
    share = 100 * fixed["right"] / max(sum(fixed.values()), 1)
    print(f"all: {dict(counts)}; tensors of fixed shapes: {dict(fixed)}, {share:.1f} % right")


if __name__ == "__main__":
    main()
