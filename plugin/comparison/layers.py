"""A model beside a reference, tensor by tensor.

Of each tensor that an operator computes: how many storage values are equal, the greatest difference
in steps of its scale and as a real, and the ratio of signal to noise, of which 6 dB are one bit::

    SQNR = 10 log10 (sum reference**2 / sum (ours - reference)**2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from ..compiler.compilation import compile_to_bytes
from ..compiler.options import CompileOptions
from ..errors import SignatureError, UnsupportedError
from ..formats.tflite import Model, Tensor, read_tflite
from ..frontends.tflite import Interpreter, RealInterpreter
from ..numerics.element_types import Array, ElementType
from ..processes import Limits
from ..runtime import Device, Executable
from . import litert

__all__ = ["Against", "Layer", "compare_layers", "draw_inputs", "to_json", "to_model_explorer"]

Against = Literal["litert", "float"]
"""What a model is compared with: LiteRT's reference kernels, or its own reals, not quantized."""


@dataclass(frozen=True)
class Layer:
    """What one tensor is beside the reference.

    Args:
        operator: the number of the operator that computes it.
        name: of the operator.
        tensor: the name of the tensor.
        type: its element type as in the file.
        shape: its extents.
        elements: how many values were compared, over all calls.
        equal: how many of them are the same; beside reals, how many are within half a step.
        steps: the greatest difference in steps of the scale; None of floats.
        difference: the greatest difference of reals.
        sqnr: in decibels; infinity where all reals are equal.
    """

    operator: int
    name: str
    tensor: str
    type: str
    shape: tuple[int, ...]
    elements: int
    equal: int
    steps: float | None
    difference: float
    sqnr: float


def draw_inputs(model: Model, calls: int, seed: int = 0) -> list[list[Array]]:
    """Draw arguments of the main graph: any storage value, floats around 0."""
    rng = np.random.default_rng(seed)
    return [[_drawn(tensor, rng) for tensor in model.subgraphs[0].inputs] for _ in range(calls)]


def _drawn(tensor: Tensor, rng: np.random.Generator) -> Array:
    element = ElementType.parse(tensor.element)
    if element.is_float:
        return rng.normal(size=tensor.shape).astype(element.dtype)
    if element.kind == "bool":
        return rng.integers(0, 2, tensor.shape).astype(bool)
    if tensor.quantization is None:  # positions, counts
        return rng.integers(0, 2, tensor.shape).astype(element.dtype)
    info = np.iinfo(element.dtype)
    return rng.integers(info.min, int(info.max) + 1, tensor.shape).astype(element.dtype)


def compare_layers(
    data: bytes,
    file: str,
    inputs: Sequence[Sequence[Array]] | int,
    against: Against = "litert",
    options: CompileOptions | None = None,
    device: Device | None = None,
    *,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Layer]:
    """Compare a TensorFlow Lite model on a device with a reference.

    Args:
        data: the model's file.
        file: its name, for errors.
        inputs: storage values or floats for each argument of each call, or how many calls with
            drawn ones.
        against: the reference.
        options: how ours is compiled.
        device: where it runs; None for NumPy.
        seed: of drawn arguments.
        limits: of child processes.
        progress: called with a line about each step.

    Raises:
        SubquantError: the model is refused, or the reference is not there.
    """
    notify = progress or (lambda step: None)
    options = options or CompileOptions()
    model = read_tflite(data, file)
    if len(model.signatures) > 1:
        raise UnsupportedError(f"'{file}' has {len(model.signatures)} signatures; expected one")
    given = draw_inputs(model, inputs, seed) if isinstance(inputs, int) else inputs
    _check_inputs(model, given)
    notify(f"compute with {against}")
    if against == "litert":
        indices = [tensor.index for _, tensor in _watched(model)]
        reference = litert.reference(data, model, given, indices, limits)
    else:
        reference = _real_reference(model, given, options)
    ours = _ours(data, model, given, options, device, limits, notify)
    notify("compare")
    sums = {tensor.index: _Sums(tensor) for _, tensor in _watched(model)}
    for theirs, found in zip(reference, ours, strict=True):
        for index, each in sums.items():
            each.add(found[index], theirs[index], is_real=against == "float")
    return [sums[t.index].layer(op.index, op.name) for op, t in _watched(model)]


def _watched(model: Model) -> list[tuple[Any, Tensor]]:
    operators = model.subgraphs[0].operators
    return [(op, t) for op in operators for t in op.outputs if t.type != "RESOURCE"]


def _check_inputs(model: Model, calls: Sequence[Sequence[Array]]) -> None:
    tensors = model.subgraphs[0].inputs
    for arrays in calls:
        if len(arrays) != len(tensors):
            raise SignatureError(f"the model takes {len(tensors)} arguments, got {len(arrays)}")
        for tensor, array in zip(tensors, arrays, strict=True):
            dtype = ElementType.parse(tensor.element).dtype
            if array.dtype != dtype or array.shape != tensor.shape:
                raise SignatureError(
                    f"argument {tensor.name!r} must be {dtype.name} of shape "
                    f"{list(tensor.shape)}, got {array.dtype.name} of shape {list(array.shape)}"
                )


def _ours(
    data: bytes,
    model: Model,
    calls: Sequence[Sequence[Array]],
    options: CompileOptions,
    device: Device | None,
    limits: Limits | None,
    notify: Callable[[str], None],
) -> list[dict[int, Array]]:
    indices = [tensor.index for _, tensor in _watched(model)]
    if device is None:
        return _by_numpy(Interpreter(model, options.import_options), calls)
    executable = Executable(
        compile_to_bytes(data, replace(options, every_tensor=True), progress=notify, limits=limits),
        device,
    )
    notify(f"run on {device.name}")
    results = []
    for arrays in calls:
        found = executable.main(*arrays)
        listed = list(found) if isinstance(found, (list, tuple)) else [found]
        results.append(dict(zip(indices, map(np.asarray, listed), strict=True)))
    return results


def _by_numpy(interpreter: Interpreter, calls: Sequence[Sequence[Array]]) -> list[dict[int, Array]]:
    results = []
    for arrays in calls:
        found: dict[int, Array] = {}
        interpreter.run(0, arrays, partial(_keep, found))
        results.append(found)
    return results


def _keep(found: dict[int, Array], tensor: Tensor, value: Array) -> None:
    found[tensor.index] = value


def _real_reference(
    model: Model, calls: Sequence[Sequence[Array]], options: CompileOptions
) -> list[dict[int, Array]]:
    tensors = model.subgraphs[0].inputs
    interpreter = RealInterpreter(model, options.import_options)
    reals = [
        [interpreter.real(array, tensor) for tensor, array in zip(tensors, arrays, strict=True)]
        for arrays in calls
    ]
    return _by_numpy(interpreter, reals)


class _Sums:
    """What is counted of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.elements = self.equal = 0
        self.difference = self.signal = self.noise = 0.0

    def add(self, ours: Array, theirs: Array, *, is_real: bool) -> None:
        """Count the values of a call; `theirs` are reals, or what `ours` are."""
        theirs = theirs.reshape(ours.shape)
        left = self._reals(ours)
        right = theirs.astype(np.float64) if is_real else self._reals(theirs)
        self.elements += ours.size
        noise = np.abs(left - right)
        self.equal += int((noise <= (self._half_step() if is_real else 0)).sum())
        self.difference = max(self.difference, float(noise.max(initial=0)))
        self.signal += float((right**2).sum())
        self.noise += float((noise**2).sum())

    def _reals(self, values: Array) -> Array:
        found = self.tensor.quantization
        if found is None or self.tensor.is_float:
            return values.astype(np.float64)
        scales = np.float64(found.scale)
        return (values.astype(np.float64) - found.zero_point) * scales

    def _half_step(self) -> float:
        found = self.tensor.quantization
        return 0.0 if found is None or self.tensor.is_float else float(found.scale) / 2

    def layer(self, operator: int, name: str) -> Layer:
        found = self.tensor.quantization
        is_stored = found is not None and not self.tensor.is_float
        steps = self.difference / float(found.scale) if is_stored and found is not None else None
        sqnr = math.inf
        if self.noise:
            sqnr = 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf
        return Layer(
            operator, name, self.tensor.name, self.tensor.type, self.tensor.shape,
            self.elements, self.equal, steps, self.difference, sqnr,
        )  # fmt: skip


# -- for other tools ------------------------------------------------------------------------------


def to_json(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """The layers as JSON; SQNR is null where all values are equal."""
    return [
        {
            "operator": layer.operator,
            "name": layer.name,
            "tensor": layer.tensor,
            "type": layer.type,
            "shape": list(layer.shape),
            "elements": layer.elements,
            "equal": layer.equal,
            "steps": layer.steps,
            "difference": layer.difference,
            "sqnr": layer.sqnr if math.isfinite(layer.sqnr) else None,
        }
        for layer in layers
    ]


_BEST = 120.0  # dB, for layers that are equal: more than f32 can differ by


def to_model_explorer(layers: Sequence[Layer]) -> dict[str, Any]:
    """Node data of Model Explorer: the SQNR of each output tensor, red to green.

    Source: Model Explorer, ``node_data_builder.py``.
    """
    results = {
        layer.tensor: {"value": round(min(max(layer.sqnr, -_BEST), _BEST), 2)} for layer in layers
    }
    gradient = [
        {"stop": 0, "bgColor": "#d73027"},
        {"stop": 0.5, "bgColor": "#fee08b"},
        {"stop": 1, "bgColor": "#1a9850"},
    ]
    return {"main": {"name": "SQNR (dB)", "results": results, "gradient": gradient}}
