"""LiteRT's reference kernels beside ours: a model's every tensor, computed by both."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices import compile_for
from subquant.core.option_fields import Activations
from subquant.dialects import create_context
from subquant.importers.options import ImportOptions
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.reading.model import Model, Tensor, read_tflite
from subquant.runtime import Device

Arrays = Sequence[np.ndarray[Any, Any]]


WITHOUT_REFERENCE = frozenset(("CEIL", "ELU", "ROUND", "SEGMENT_SUM", "aeq.hadamard_rotation"))
"""Operators for which LiteRT has one kernel only."""


class LiteRt:
    """LiteRT's interpreter with its reference kernels, and every tensor that it computes."""

    def __init__(self, data: bytes) -> None:
        if importlib.util.find_spec("ai_edge_litert") is None:
            pytest.skip("the package 'ai_edge_litert' is not installed (extra 'test', on Linux)")
        from ai_edge_litert.interpreter import Interpreter as Theirs
        from ai_edge_litert.interpreter import OpResolverType

        operators = {op.name for each in read_tflite(data).subgraphs for op in each.operators}
        kernels = OpResolverType.BUILTIN_REF
        if operators & WITHOUT_REFERENCE:
            kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        self._interpreter = Theirs(
            model_content=data,
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=kernels,
        )
        self._interpreter.allocate_tensors()

    def __call__(self, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        """Compute all tensors; return the outputs."""
        for details, array in zip(self._interpreter.get_input_details(), inputs, strict=True):
            self._interpreter.set_tensor(details["index"], array)
        self._interpreter.invoke()
        return [self.tensor(each["index"]) for each in self._interpreter.get_output_details()]

    def tensor(self, index: int) -> np.ndarray[Any, Any]:
        """One of them."""
        value: np.ndarray[Any, Any] = self._interpreter.get_tensor(index)
        return value


def watched(model: Model, graph: int = 0) -> list[Tensor]:
    """The tensors that operators of a graph compute, in order."""
    operators = model.subgraphs[graph].operators
    return [t for op in operators for t in op.outputs if t.type not in ("RESOURCE", "COMPLEX64")]


class Ours:
    """A model on a device, or by NumPy where that is None, with every tensor as a result."""

    def __init__(
        self, data: bytes, device: Device | None, activations: Activations = "float"
    ) -> None:
        self.model = read_tflite(data)
        self._numpy = Interpreter(self.model, ImportOptions(activations=activations))
        self._function = None
        if device is not None:
            module = write_module(
                self.model,
                create_context(),
                ImportOptions(activations=activations, every_tensor=True),
            )
            self._function = compile_for(module, device).main

    def __call__(self, inputs: Arrays) -> dict[int, np.ndarray[Any, Any]]:
        """Every tensor by its number."""
        tensors = watched(self.model)
        if self._function is None:
            values: dict[int, np.ndarray[Any, Any]] = {}
            self._numpy.run(0, inputs, lambda tensor, value: values.update({tensor.index: value}))
            return {tensor.index: values[tensor.index] for tensor in tensors}
        results = self._function.invoke(inputs)
        return {tensor.index: each for tensor, each in zip(tensors, results, strict=True)}


def drawn(tensor: Tensor, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An input of a tensor's type: any storage value, or floats around 0."""
    if tensor.type == "FLOAT32":
        return rng.normal(size=tensor.shape).astype(np.float32)
    if tensor.type == "BOOL":
        return rng.integers(0, 2, tensor.shape).astype(bool)
    info = np.iinfo(tensor.type.lower())
    return rng.integers(info.min, int(info.max) + 1, tensor.shape).astype(info.dtype)


def zeros(model: Model) -> Arrays:
    """Inputs of zeros."""
    return [np.zeros(each.shape, each.type.lower()) for each in model.subgraphs[0].inputs]


def compare(
    data: bytes, device: Device | None, inputs: Sequence[Arrays] | int = 20, *,
    tolerance: float = 1e-5, seed: int = 0, activations: Activations = "float",
) -> int:  # fmt: skip
    """Assert that every tensor is LiteRT's, and count the values: NumPy computes for no device.

    Integers are equal; floats differ by a part of the greatest, since sums of products are in
    another order than LiteRT's. The inputs are those of each call, or the number of draws.
    """
    theirs, ours = LiteRt(data), Ours(data, device, activations)
    rng = np.random.default_rng(seed)
    if isinstance(inputs, int):
        of_graph = ours.model.subgraphs[0].inputs
        inputs = [[drawn(tensor, rng) for tensor in of_graph] for _ in range(inputs)]
    count = 0
    for call, arrays in enumerate(inputs):
        theirs(arrays)
        values = ours(arrays)
        for tensor in watched(ours.model):
            left, right = values[tensor.index], theirs.tensor(tensor.index)
            where = f"call {call}, tensor {tensor.index} {tensor.name!r}"
            left = left.reshape(right.shape) if left.size == right.size else left
            if right.dtype.kind == "f":
                bound = tolerance * max(float(np.abs(right).max(initial=0)), 1e-6)
                np.testing.assert_allclose(left, right, rtol=0, atol=bound, err_msg=where)
            else:
                np.testing.assert_array_equal(left, right, where)
            count += right.size
    return count


def model_bytes(path: Path) -> bytes:
    """A model's file, or skip."""
    if not path.is_file():
        pytest.skip(f"{path.name} is not in the folder of models (SUBQUANT_MODELS)")
    return path.read_bytes()
