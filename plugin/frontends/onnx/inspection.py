"""What an ONNX model is made of, and what of it would be refused.

The program is written as a compilation would write it, node by node. What follows from a node that
is refused is not looked at: its type is not known. `served` is called in a child process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._mlir import ir
from ...dialects import create_context
from ...errors import SubquantError
from ...files import read_input
from ...formats.onnx import Model, Node, Tensor, read_onnx
from ...processes import Steps
from .call import Operand
from .importing import Program

__all__ = ["described", "served"]


def served(
    arguments: dict[str, Any], blobs: list[bytes], steps: Steps
) -> tuple[dict[str, Any], list[bytes]]:
    """Describe a model, by request: of the path ``path``, named ``file``."""
    steps("inspect")
    return described(read_onnx(read_input(arguments["path"]), arguments["file"])), []


def described(model: Model) -> dict[str, Any]:
    """Describe a model, in the form of `subquant.frontends.tflite.inspection.described`.

    Returns:
        As JSON: ``signatures`` with the names of arguments and results; ``graphs``, one list of
        operators with their results, constants and, if they would be refused, why; ``opsets`` by
        domain; ``constant_bytes``.
    """
    context = create_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        trial = _Trial(model)
        try:
            with ir.InsertionPoint(module.body):
                trial.write_function()
        except SubquantError as error:
            if not trial.refused:  # or it follows from what is
                trial.whole = error.message
    operators = [_operator(model, node, trial) for node in model.nodes]
    return {
        "description": "",
        "opsets": dict(model.opsets),
        "refused": trial.whole,
        "signatures": [
            {"name": "main", "graph": 0, "inputs": [each.name for each in model.inputs],
             "outputs": [each.name for each in model.outputs]}
        ],
        "graphs": [{"index": 0, "name": "", "operators": operators}],
        "constant_bytes": sum(tensor.data.nbytes for tensor in model.constants.values()),
    }  # fmt: skip


def _operator(model: Model, node: Node, trial: _Trial) -> dict[str, Any]:
    constants = [model.constants[name] for name in node.inputs if name in model.constants]
    return {
        "index": node.index,
        "name": node.operator,
        "version": model.opsets.get(node.operator.rpartition(".")[0], 0),
        "results": [
            trial.results.get(name, {"name": name, "type": "", "shape": [], "quantization": None})
            for name in node.outputs
            if name
        ],
        "constants": [_constant(tensor) for tensor in constants],
        "refused": trial.refused.get(node.index),
    }


def _constant(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": tensor.type,
        "shape": list(tensor.data.shape),
        "quantization": None,  # scales are operands of their own
        "bytes": tensor.data.nbytes,
    }


class _Trial(Program):
    """Writes a program, and goes on after what is refused."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.refused: dict[int, str] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.whole: str | None = None

    def _computed(self, node: Node, operands: Sequence[Operand | None]) -> list[Operand]:
        unknown = [Operand(name, "", None) for name in node.outputs]
        if any(each is not None and each.value is None for each in operands):
            return unknown
        if node.path:  # of a node that is refused with it
            return super()._computed(node, operands)
        try:
            found = super()._computed(node, operands)
        except SubquantError as error:
            self.refused[node.index] = error.message.removeprefix(f"{node} ")
            return unknown
        for name, operand in zip(node.outputs, found, strict=False):
            shape = [int(n) for n in operand.value.shape]
            self.results[name] = {
                "name": name, "type": operand.type, "shape": shape, "quantization": None,
            }  # fmt: skip
        return found

    def _array(self, operand: Operand) -> Any:
        if operand.value is None:
            raise SubquantError(f"tensor {operand.name!r} is not known", self.place)
        return super()._array(operand)
