"""What a TensorFlow Lite model is made of, and what of it would be refused.

The program is written as a compilation would write it, operator by operator; where one is refused,
its results are taken as zeros, so that all refusals are found at once. `describe` is called in a
child process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core._mlir import ir
from ...core.files import read_input
from ...dialects import create_context
from ...errors import SubquantError
from ...isolation.child import ReportStep
from ...numerics.element_types import AnyArray, ElementType
from ..options import AS_IN_FILE
from .call import Call, Complex
from .input_shapes import unstated_extents
from .program import Program
from .reading.model import Model, Operator, Tensor, read_tflite

__all__ = ["described", "served"]


def served(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[dict[str, Any], list[bytes]]:
    """Describe a model, by request: of the path ``path``, named ``file``."""
    steps("inspect")
    return described(read_tflite(read_input(arguments["path"]), arguments["file"])), []


def described(model: Model) -> dict[str, Any]:
    """Describe a model.

    Returns:
        As JSON: ``description``; ``signatures`` with the names of arguments and results;
        ``graphs``, each a list of operators with their results, constants and, if they would be
        refused, why; ``refused``: why the model would be, if that is no operator's; and
        ``constant_bytes`` of all graphs.
    """
    refusals = _refusals(model)
    graphs = []
    for graph in model.subgraphs:
        listed = [
            _operator(operator) | {"refused": refusals.get((graph.index, operator.index))}
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
        "refused": next((why for (_, number), why in refusals.items() if number < 0), None),
        "constant_bytes": sum(constants.values()),
    }  # fmt: skip


def _operator(operator: Operator) -> dict[str, Any]:
    constants = [tensor for tensor in operator.inputs if tensor is not None and tensor.is_constant]
    return {
        "index": operator.index,
        "name": operator.name,
        "version": operator.version,
        "results": [_tensor(tensor) for tensor in operator.outputs],
        "constants": [_tensor(tensor) for tensor in constants],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    found = tensor.quantization
    quantized = None
    if found is not None and not tensor.is_float:
        quantized = {
            "axis": found.axis,
            "block_size": found.block_size,
            "scales": found.scales.size,
            "scale_range": [float(found.scales.min()), float(found.scales.max())],
            "zero_point_range": [int(found.zero_points.min()), int(found.zero_points.max())],
        }
    return {
        "name": tensor.name,
        "type": tensor.type,
        "shape": list(tensor.known_shape),
        "quantization": quantized,
        "bytes": None if tensor.buffer is None else tensor.buffer.size,
    }


def _refusals(model: Model) -> dict[tuple[int, int], str]:
    """Why operators would be refused, by graph and operator."""
    context = create_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        try:
            trial = _Trial(model, module)
        except SubquantError as error:  # in a graph that gives variables their first values
            return {(0, -1): error.message}
        for signature in model.signatures:
            try:
                with ir.InsertionPoint(module.body):
                    trial.write_function(signature, signature.name)
            except SubquantError as error:  # of no operator: of an argument, or a result
                trial.refused.setdefault((signature.subgraph, -1), error.message)
            hint = unstated_extents(model.subgraphs[signature.subgraph], signature, AS_IN_FILE)
            if hint and trial.refused:
                trial.refused.setdefault((signature.subgraph, -1), hint.removeprefix("; "))
        for index, operator, refusal in trial.uncomputed_refusals():
            message = refusal.message.removeprefix(f"{operator} ")
            trial.refused.setdefault((index, operator.index), message)
        return trial.refused


class _Trial(Program):
    """Writes a program, and goes on after what is refused."""

    def __init__(self, model: Model, module: ir.Module) -> None:
        super().__init__(model, module)
        self.refused: dict[tuple[int, int], str] = {}

    def _compute_all(self, call: Call) -> list[AnyArray]:
        try:
            return super()._compute_all(call)
        except SubquantError as error:
            where = (self.running, call.operator.index)
            self.refused.setdefault(where, error.message.removeprefix(f"{call.operator} "))
            return [_zeros(tensor) for tensor in call.operator.outputs]


def _zeros(tensor: Tensor) -> AnyArray:
    if tensor.type == "COMPLEX64":
        return Complex(*(np.zeros(tensor.shape, np.float32) for _ in range(2)))
    try:
        dtype = ElementType.parse(tensor.element).dtype
    except KeyError:
        dtype = np.dtype(np.int8)
    return np.zeros(tensor.shape, dtype)
