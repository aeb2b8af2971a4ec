"""Description of a TensorFlow Lite model, with the operators that would be refused.

The program is written as in a compilation, operator by operator. The results of a refused operator
become zeros, so that one run finds all refusals. `inspect_file` is called in a child process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core._mlir import ir
from ...dialects import create_context
from ...errors import SubquantError
from ...isolation.child import ReportStep
from ...numerics.element_types import AnyArray, ElementType
from ..options import AS_IN_FILE
from .call import Call
from .input_shapes import unset_dimensions_hint
from .operand import ComplexValue
from .program import Program
from .reading.model import Model, Tensor, read_tflite


def inspect_file(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[dict[str, Any], list[bytes]]:
    """Describe the model in the blob, with the name ``file``."""
    steps("inspect")
    return describe_model(read_tflite(blobs[0], arguments["file"])), []


def describe_model(model: Model) -> dict[str, Any]:
    """Describe a model.

    Returns:
        JSON: ``description``; ``signatures`` with the names of arguments and results; ``graphs``,
            each a list of operators with their results, constants and the reason for a refusal;
            ``refused``: the reason for refusing the model, if no operator is the cause; and
            ``constant_bytes`` of all graphs.
    """
    refusals = _refusals(model)
    graphs = []
    for graph in model.subgraphs:
        listed = [
            {
                "index": operator.index,
                "name": operator.name,
                "version": operator.version,
                "results": [_tensor(each) for each in operator.outputs],
                "constants": [
                    _tensor(each) for each in operator.inputs if each and each.is_constant
                ],
                "refused": refusals.get((graph.index, operator.index)),
            }
            for operator in graph.operators
        ]
        graphs.append({"index": graph.index, "name": graph.name, "operators": listed})
    constants = {
        id(tensor.buffer): tensor.buffer.size
        for graph in model.subgraphs
        for tensor in graph.tensors
        if tensor.buffer is not None
    }
    return {
        "description": model.description,
        "signatures": [
            {"name": each.name, "graph": each.subgraph, "inputs": each.inputs,
             "outputs": each.outputs}
            for each in model.signatures
        ],
        "graphs": graphs,
        "refused": next((reason for (_, number), reason in refusals.items() if number < 0), None),
        "constant_bytes": sum(constants.values()),
    }  # fmt: skip


def _tensor(tensor: Tensor) -> dict[str, Any]:
    parameters = tensor.quantization
    quantized = None
    if parameters is not None and not tensor.is_float:
        zero_points = parameters.zero_points
        quantized = {
            "axis": parameters.axis,
            "block_size": parameters.block_size,
            "scales": parameters.scales.size,
            "scale_range": [float(parameters.scales.min()), float(parameters.scales.max())],
            "zero_point_range": [int(end()) for end in (zero_points.min, zero_points.max)],
        }
    return {
        "name": tensor.name,
        "type": tensor.type,
        "shape": list(tensor.shape_signature),
        "quantization": quantized,
        "bytes": None if tensor.buffer is None else tensor.buffer.size,
    }


def _refusals(model: Model) -> dict[tuple[int, int], str]:
    """Return the reasons for refusing operators, by graph and operator."""
    context = create_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        try:
            trial = _Trial(model, module)
        except SubquantError as error:  # in a graph that initializes variables
            return {(0, -1): error.message}
        for signature in model.signatures:
            try:
                with ir.InsertionPoint(module.body):
                    trial.write_function(signature, signature.name)
            except SubquantError as error:  # of an argument or a result
                trial.refused.setdefault((signature.subgraph, -1), error.message)
            hint = unset_dimensions_hint(model.subgraphs[signature.subgraph], signature, AS_IN_FILE)
            if hint and trial.refused:
                trial.refused.setdefault((signature.subgraph, -1), hint.removeprefix("; "))
        for index, operator, refusal in trial.uncomputed_refusals():
            message = refusal.message.removeprefix(f"{operator} ")
            trial.refused.setdefault((index, operator.index), message)
        return trial.refused


class _Trial(Program):
    """Writes a program, and continues after refused operators."""

    def __init__(self, model: Model, module: ir.Module) -> None:
        super().__init__(model, module)
        self.refused: dict[tuple[int, int], str] = {}

    def _compute_checked(self, call: Call) -> list[AnyArray]:
        try:
            return super()._compute_checked(call)
        except SubquantError as error:
            key = (self.current_graph, call.operator.index)
            self.refused.setdefault(key, error.message.removeprefix(f"{call.operator} "))
            return [_zeros(tensor) for tensor in call.operator.outputs]


def _zeros(tensor: Tensor) -> AnyArray:
    if tensor.type == "COMPLEX64":
        return ComplexValue(*(np.zeros(tensor.shape, np.float32) for _ in range(2)))
    try:
        dtype = ElementType.parse(tensor.element).dtype
    except KeyError:
        dtype = np.dtype(np.int8)
    return np.zeros(tensor.shape, dtype)
