"""Models of one node, and what ONNX Runtime computes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_models import MICROSOFT, OPSET, node

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def written(
    operator: str,
    feeds: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    outputs: int | Sequence[int] = 1,
    opset: int = OPSET,
    output_dtypes: Mapping[int, Any] | None = None,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Feeds]:
    """A model of one node.

    Args:
        operator: with its domain.
        feeds: the arguments; ``i3`` is input 3 of the node.
        constants: inputs that are constants, named alike.
        outputs: how many outputs, or which of them, the node has.
        opset: the version of ONNX's operator set.
        output_dtypes: of outputs that are not of the type of the first float.
        attributes: of the node.

    Returns:
        The model, and the arguments.
    """
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    initializers = {name: np.asarray(value) for name, value in (constants or {}).items()}
    highest = max(int(name[1:]) for name in (*arrays, *initializers))
    names = [f"i{n}" for n in range(highest + 1)]
    inputs = [name if name in arrays or name in initializers else "" for name in names]
    chosen = range(outputs) if isinstance(outputs, int) else outputs
    results = [f"y{n}" if n in chosen else "" for n in range(max(chosen) + 1)]
    ends = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in arrays.items()
    ]
    floats = [
        value.dtype for value in (*arrays.values(), *initializers.values()) if _is_float(value)
    ]
    type_ = helper.np_dtype_to_tensor_dtype(floats[0])
    types = {name: type_ for name in results if name}
    for number, dtype in (output_dtypes or {}).items():
        types[f"y{number}"] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if operator.endswith("EmbedLayerNormalization") and "y1" in types:
        types["y1"] = TensorProto.INT32
    graph = helper.make_graph(
        [node(operator, inputs, results, **attributes)],
        "graph",
        ends,
        [helper.make_tensor_value_info(name, each, None) for name, each in types.items()],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), arrays


def _is_float(value: Array) -> bool:
    return value.dtype.kind in "fV"


def of_onnx_runtime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Compute a model with ONNX Runtime, one thread and without its optimizations."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, dict(feeds)))
    except Exception as error:  # its exceptions have no base of their own
        pytest.skip(f"ONNX Runtime refuses it: {str(error)[:200]}")
