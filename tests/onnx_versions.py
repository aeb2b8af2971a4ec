"""Operators of ONNX at every version of the operator sets from 7 on, with drawn attributes.

A case is written in the form of the newest operator set. `at_version` writes it in the form of an
older one by the schema of that version: an input that was an attribute becomes one, and a case that
has an attribute which the version does not know is left out. The expected results are those of ONNX
Runtime, or of ONNX's reference evaluator where it refuses.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from onnx_models import end
from onnx_runtime import run_onnx_runtime

Array = np.ndarray[Any, Any]

OLDEST = 7


@dataclass(frozen=True, eq=False)
class VersionCase:
    """One node in the form of the newest operator set."""

    operator: str
    inputs: Mapping[str, Array | None]
    """By the names of the newest schema, in order; None for an absent one."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Sequence[str] = ()
    outputs: int = 1


_RENAMED = {"linear": "bilinear", "cubic": "bicubic"}
"""Modes of GridSample that had other names before operator set 20."""


@functools.cache
def versions(operator: str) -> list[int]:
    """Return the first operator set of each version of an operator, from `OLDEST` on."""
    first_sets = {
        max(schema.since_version, OLDEST)
        for schema in defs.get_all_schemas_with_history()
        if schema.name == operator and not schema.domain and not schema.deprecated
    }
    effective = [v for v in sorted(first_sets) if v > OLDEST]
    try:
        defs.get_schema(operator, OLDEST)
    except defs.SchemaError:
        return effective
    return [OLDEST, *effective]


def at_version(case: VersionCase, version: int) -> onnx.ModelProto | None:
    """Return a model with the node in the form of an operator set; None if it has no such form."""
    schema = defs.get_schema(case.operator, version)
    attributes, names, inputs, constants = {}, [], [], []
    for name, value in case.attributes.items():
        if name not in schema.attributes:
            return None
        is_renamed = (case.operator, name) == ("GridSample", "mode") and version < 20
        attributes[name] = _RENAMED.get(value, value) if is_renamed else value
    known = [each.name for each in schema.inputs]
    is_variadic = schema.max_input > 100
    for index, (name, array) in enumerate(case.inputs.items()):
        if name in schema.attributes and name not in known:
            if array is not None:
                listed = array.tolist()
                kind = schema.attributes[name].type
                is_list = kind in (defs.OpSchema.AttrType.INTS, defs.OpSchema.AttrType.FLOATS)
                if isinstance(listed, list) and not is_list:
                    (listed,) = listed
                attributes[name] = listed
            continue
        if not is_variadic and index >= schema.max_input:
            return None
        if array is None:
            names.append("")
            continue
        names.append(name)
        if name in case.constants:
            constants.append(numpy_helper.from_array(array, name))
        else:
            inputs.append(end(name, array))
    while names and not names[-1]:
        names.pop()
    required = [n for n, each in schema.attributes.items() if each.required]
    if any(name not in attributes for name in required):
        return None
    results = [f"r{n}" for n in range(case.outputs)]
    node = helper.make_node(case.operator, names, results, **attributes)
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "graph", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if version < 21 else 10)
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception:  # the version has no such type, or no such form
        return None


def feeds_of(case: VersionCase, model: onnx.ModelProto) -> dict[str, Array]:
    """Return the arguments of a model of a case."""
    return {each.name: np.asarray(case.inputs[each.name]) for each in model.graph.input}


def expected(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array] | None:
    """Return the results by ONNX Runtime, or else by the reference evaluator; None by neither."""
    try:
        return run_onnx_runtime(model, feeds)
    except Exception:  # it has no kernel for the version or type
        pass
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, dict(feeds))]
    except Exception:
        return None


def tolerance(dtype: Any) -> tuple[float, float]:
    """Return relative and absolute tolerances of floats: libraries differ by some units."""
    name = np.dtype(dtype).name
    return {"float64": (1e-6, 1e-9), "float32": (2e-5, 2e-6)}.get(name, (4e-3, 2e-3))
