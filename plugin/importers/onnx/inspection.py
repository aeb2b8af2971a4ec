"""Lists the operators of an ONNX model, and all nodes that a compilation would refuse.

The program is written as a compilation would write it, node by node. A node that is refused gets
results of the types that ONNX's shape inference computes, so that the nodes after it are tried too.
A dynamic dimension has `_DYNAMIC_SIZE` elements here. A child process calls `inspect_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core._mlir import ir
from ...dialects import create_context
from ...errors import SubquantError
from ...isolation.child import ReportStep
from ..options import ImportOptions
from .call import Operand
from .dynamic_sizes.bounded_tensor import BoundedTensor
from .program import Program
from .reading.arguments import open_dimensions
from .reading.model import ELEMENTS, Model, Node, element_of
from .reading.reader import read_onnx


def inspect_file(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[dict[str, Any], list[bytes]]:
    """Describe the model in the blob, with the name ``file``."""
    steps("inspect")
    return describe_model(read_onnx(blobs[0], arguments["file"]), blobs[0]), []


_DYNAMIC_SIZE = 16
"""The size with which a dynamic dimension other than the batch is tried."""


def describe_model(model: Model, data: bytes) -> dict[str, Any]:
    """Describe a model, in the form of `subquant.importers.tflite.inspection.describe_model`.

    Returns:
        JSON with ``signatures`` with the names of arguments and results; ``graphs``, one list of
        operators with their results, constants and, if they would be refused, why; ``opsets`` by
        domain; ``constant_bytes``.
    """
    context = create_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        missing = open_dimensions(model)
        trial = _Trial(model, _inferred_types(data, dict.fromkeys(missing, _DYNAMIC_SIZE)))
        dims = tuple(f"{name}={_DYNAMIC_SIZE}" for name in missing)
        refused = "; ".join(missing.values()) or None
        try:
            with ir.InsertionPoint(module.body):
                trial.write_function(ImportOptions(dims=dims))
        except SubquantError as error:
            if not trial.refused and not missing:  # or it follows from those
                refused = error.message
    operators = [_operator(model, node, trial) for node in model.nodes]
    return {
        "description": "",
        "opsets": dict(model.opsets),
        "refused": refused,
        "signatures": [
            {"name": "main", "graph": 0, "inputs": [each.name for each in model.inputs],
             "outputs": [each.name for each in model.outputs]}
        ],
        "graphs": [{"index": 0, "name": "", "operators": operators}],
        "constant_bytes": sum(tensor.data.nbytes for tensor in model.constants.values()),
    }  # fmt: skip


def _tensor(name: str, type_: str, shape: Iterable[int], **further: int) -> dict[str, Any]:
    """Describe a tensor without quantization: scales are operands of their own."""
    return {"name": name, "type": type_, "shape": list(shape), "quantization": None, **further}


def _operator(model: Model, node: Node, trial: _Trial) -> dict[str, Any]:
    constants = [model.constants[name] for name in node.inputs if name in model.constants]
    return {
        "index": node.index,
        "name": node.operator,
        "version": model.opsets.get(node.operator.rpartition(".")[0], 0),
        "results": [
            trial.results.get(name, _tensor(name, "", ())) for name in node.outputs if name
        ],
        "constants": [
            _tensor(each.name, each.type, each.data.shape, bytes=each.data.nbytes)
            for each in constants
        ],
        "refused": trial.refused.get(node.index),
    }


class _Trial(Program):
    """Writes a program, and continues after nodes that are refused."""

    def __init__(self, model: Model, types: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        super().__init__(model)
        self._types = types
        self.refused: dict[int, str] = {}
        self.results: dict[str, dict[str, Any]] = {}

    def _computed(self, node: Node, operands: Sequence[Operand | None]) -> list[Operand]:
        unknown = [self._stand_in(name) for name in node.outputs]
        if any(each is not None and each.value is None for each in operands):
            return unknown
        if node.path:  # the outer node is refused as a whole
            return super()._computed(node, operands)
        try:
            types = super()._computed(node, operands)
        except SubquantError as error:
            self.refused[node.index] = error.message.removeprefix(f"{node} ")
            return unknown
        for name, operand in zip(node.outputs, types, strict=False):
            shape = [int(n) for n in operand.value.shape]
            if isinstance(operand.value, BoundedTensor):
                shape[operand.value.axis] = -1
            self.results[name] = _tensor(name, operand.type, shape)
        return types

    def _array(self, operand: Operand) -> Any:
        if operand.value is None:
            raise SubquantError(f"tensor {operand.name!r} is not known", self.location)
        return super()._array(operand)

    def _stand_in(self, name: str) -> Operand:
        """Return a result of the inferred type for a node that is refused."""
        if name not in self._types:
            return Operand("", None, name)
        type_, shape = self._types[name]
        element = element_of(type_)
        return Operand(type_, self.lift(np.zeros(shape, element.dtype), element), name)


def _inferred_types(
    data: bytes, sizes: Mapping[str, int]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of the tensors that ONNX's shape inference computes.

    `sizes` has sizes of dynamic dimensions, by name; others are 1.
    """
    from onnx import ModelProto, TensorProto, shape_inference

    proto = ModelProto.FromString(data)
    for each in proto.graph.input:
        for axis, dim in enumerate(each.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes.get(dim.dim_param or f"{each.name}.{axis}", 1)
    try:
        inferred = shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # whatever its C++ raises: nodes after a refused one are then not tried
        return {}
    types = {}
    for each in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = each.type.tensor_type
        type_ = TensorProto.DataType.Name(tensor.elem_type)
        dims = tensor.shape.dim
        is_fixed = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
        if type_ in ELEMENTS and is_fixed:
            types[each.name] = type_, tuple(int(dim.dim_value) for dim in dims)
    return types
