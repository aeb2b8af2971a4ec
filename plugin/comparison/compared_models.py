"""Models of other tools beside references: which tensors they have, and who computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from ..compiler.compilation import compile_to_bytes
from ..compiler.compile_options import CompileOptions
from ..core.files import kind_of
from ..errors import Remark, SignatureError, UnsupportedError, UsageError, counted
from ..importers import onnx, tflite
from ..importers.onnx.reading.model import ELEMENTS as ONNX_ELEMENTS
from ..importers.onnx.reading.reader import read_onnx, with_external_data
from ..importers.options import AS_IN_FILE, ImportOptions
from ..importers.tflite.reading import model as tflite_format
from ..isolation.limits import Limits
from ..numerics.element_types import Array, ElementType
from ..runtime import Device, Executable
from . import litert_reference, onnxruntime_reference
from .layers import Layer, Watched, compared

__all__ = ["Against", "compare_layers", "model_of"]

Against = Literal["litert", "onnxruntime", "float"]
"""What a model is compared with: LiteRT's reference kernels, ONNX Runtime without optimizations, or
the model's own reals, not quantized."""

Calls = Sequence[Sequence[Array]]
"""The arguments of each call."""


class ComparedModel(ABC):
    """A model, its tensors, and what computes them.

    Args:
        data: the file.
        file: its name, for errors.
        options: of its import.
    """

    references: tuple[Against, ...]
    """What it can be compared with; the first is the default."""

    def __init__(self, data: bytes, file: str, options: ImportOptions) -> None:
        if options.input_values:
            raise UsageError("a model is compared with all its inputs; leave out --input-value")
        self.data = data
        self.file = file
        self.options = options

    @property
    @abstractmethod
    def inputs(self) -> list[tuple[str, str, tuple[int, ...], bool]]:
        """The name, element type and shape of each argument, and whether it may be any number."""

    @abstractmethod
    def watched(self) -> list[Watched]:
        """The tensors that operators compute, in the order of execution."""

    @abstractmethod
    def by_numpy(self, calls: Calls, options: CompileOptions) -> list[Mapping[str, Array]]:
        """Compute them with NumPy."""

    @abstractmethod
    def by_reference(
        self, calls: Calls, against: Against, options: CompileOptions, limits: Limits | None
    ) -> list[Mapping[str, Array]]:
        """Compute them with a reference."""

    def drawn(self, calls: int, seed: int) -> Calls:
        """Draw arguments: any storage value, floats around 0, and 0 or 1 where numbers count."""
        rng = np.random.default_rng(seed)
        return [
            [_drawn(ElementType.parse(element), shape, is_any, rng)
             for _, element, shape, is_any in self.inputs]
            for _ in range(calls)
        ]  # fmt: skip

    def check(self, calls: Calls) -> None:
        """Raise SignatureError unless arguments have the types of the file."""
        inputs = self.inputs
        for arrays in calls:
            if len(arrays) != len(inputs):
                raise SignatureError(
                    f"the model takes {counted(len(inputs), 'argument')}, got {len(arrays)}"
                )
            for (name, element, shape, _), array in zip(inputs, arrays, strict=True):
                dtype = ElementType.parse(element).dtype
                if array.dtype != dtype or array.shape != shape:
                    raise SignatureError(
                        f"argument {name!r} must be {dtype.name} of shape {list(shape)}, got "
                        f"{array.dtype.name} of shape {list(array.shape)}"
                    )


def _drawn(
    element: ElementType, shape: tuple[int, ...], is_any: bool, rng: np.random.Generator
) -> Array:
    if element.is_float:
        return rng.normal(size=shape).astype(element.dtype)
    if element.kind == "bool" or not is_any:
        return rng.integers(0, 2, shape).astype(element.dtype)
    info = np.iinfo(element.dtype)
    return rng.integers(info.min, int(info.max) + 1, shape).astype(element.dtype)


class TfliteModel(ComparedModel):
    """A TensorFlow Lite model."""

    references = ("litert", "float")

    def __init__(self, data: bytes, file: str, options: ImportOptions) -> None:
        super().__init__(data, file, options)
        self.model = tflite_format.read_tflite(data, file)
        if len(self.model.signatures) > 1:
            count = len(self.model.signatures)
            raise UnsupportedError(f"'{file}' has {count} signatures; expected one")

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int, ...], bool]]:
        """As of `ComparedModel`."""
        graph, signature = self.model.subgraphs[0], self.model.signatures[0]
        names = [tensor.name for tensor in graph.inputs]
        if not signature.subgraph:
            names = list(signature.inputs)
        shapes = tflite.input_shapes(graph, names, self.options)
        return [
            (tensor.name, tensor.element, shape, tensor.quantization is not None)
            for tensor, shape in zip(graph.inputs, shapes, strict=True)
        ]

    def watched(self) -> list[Watched]:
        """All but the handles of variables, and complex numbers."""
        found = []
        for operator in self.model.subgraphs[0].operators:
            for tensor in operator.outputs:
                if tensor.type in ("RESOURCE", "COMPLEX64"):
                    continue
                quantized = None if tensor.is_float else tensor.quantization
                found.append(
                    Watched(
                        str(tensor.index), operator.index, operator.name, tensor.name, tensor.type,
                        None if quantized is None else float(quantized.scale),
                        0 if quantized is None else quantized.zero_point,
                    )
                )  # fmt: skip
        return found

    def by_numpy(self, calls: Calls, options: CompileOptions) -> list[Mapping[str, Array]]:
        """As of `ComparedModel`."""
        return _interpreted(tflite.Interpreter(self.model, options.import_options), calls)

    def by_reference(
        self, calls: Calls, against: Against, options: CompileOptions, limits: Limits | None
    ) -> list[Mapping[str, Array]]:
        """As of `ComparedModel`."""
        if against == "litert":
            keys = [watched.key for watched in self.watched()]
            return litert_reference.reference(self.data, self.model, calls, keys, limits)
        tensors = self.model.subgraphs[0].inputs
        interpreter = tflite.FloatInterpreter(self.model, options.import_options)
        reals = [list(map(interpreter.expressed, arrays, tensors)) for arrays in calls]
        return _interpreted(interpreter, reals)


def _interpreted(interpreter: tflite.Interpreter, calls: Calls) -> list[Mapping[str, Array]]:
    results: list[Mapping[str, Array]] = []
    for arrays in calls:
        found: dict[str, Array] = {}
        interpreter.run(0, arrays, partial(_keep, found))
        results.append(found)
    return results


def _keep(found: dict[str, Array], tensor: tflite_format.Tensor, value: Array) -> None:
    found[str(tensor.index)] = value


class OnnxModel(ComparedModel):
    """An ONNX model: integers are compared as they are, since their scales are operands."""

    references = ("onnxruntime",)

    def __init__(self, data: bytes, file: str, options: ImportOptions) -> None:
        super().__init__(with_external_data(data, file), file, options)
        self.model = read_onnx(self.data, file)

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int, ...], bool]]:
        """As of `ComparedModel`; a dynamic batch is one element."""
        return [
            (
                each.type.name,
                ONNX_ELEMENTS[each.type.type],
                each.shape,
                each.type.type in ("INT8", "UINT8", "INT16", "UINT16"),
            )
            for each in onnx.arguments_of(self.model, self.options)
        ]

    def watched(self) -> list[Watched]:
        """All that nodes compute."""
        return [
            Watched(name, node.index, node.operator, name, "")
            for node in self.model.nodes
            for name in node.outputs
            if name
        ]

    def by_numpy(self, calls: Calls, options: CompileOptions) -> list[Mapping[str, Array]]:
        """As of `ComparedModel`."""
        interpreter, results = onnx.Interpreter(self.model), []
        names = [each.name for each in self.model.inputs]
        for arrays in calls:
            found: dict[str, Array] = {}
            with np.errstate(all="ignore"):
                interpreter.run(dict(zip(names, arrays, strict=True)), found.__setitem__)
            results.append(found)
        return list(results)

    def by_reference(
        self, calls: Calls, against: Against, options: CompileOptions, limits: Limits | None
    ) -> list[Mapping[str, Array]]:
        """As of `ComparedModel`."""
        names = [watched.key for watched in self.watched()]
        feeds = [each.name for each in self.model.inputs]
        return onnxruntime_reference.reference(self.data, self.file, feeds, calls, names, limits)


def model_of(data: bytes, file: str, options: ImportOptions = AS_IN_FILE) -> ComparedModel:
    """Read a model.

    Args:
        data: the file.
        file: its name, for errors.
        options: of its import: the extents of its inputs.

    Raises:
        UsageError: it is of no tool that there is a reference of.
        SubquantError: it is damaged, or not supported.
    """
    kind = "onnx" if file.lower().endswith(".onnx") else kind_of(data)
    kinds: dict[str | None, Callable[[bytes, str, ImportOptions], ComparedModel]] = {
        "tflite": TfliteModel,
        "onnx": OnnxModel,
    }
    if kind not in kinds:
        raise UsageError(f"expected a .tflite or .onnx model, got '{file}'")
    return kinds[kind](data, file, options)


def compare_layers(
    model: ComparedModel,
    inputs: Calls | int,
    against: Against | None = None,
    options: CompileOptions | None = None,
    device: Device | None = None,
    *,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Callable[[str], None] | None = None,
    on_remark: Callable[[Remark], object] | None = None,
) -> list[Layer]:
    """Compare a model on a device with a reference.

    Args:
        model: of `model_of`.
        inputs: storage values or floats for each argument of each call, or how many calls with
            drawn ones.
        against: the reference; by default the first of the model's.
        options: how ours is compiled.
        device: where it runs; None for NumPy.
        seed: of drawn arguments.
        limits: of child processes.
        progress: called with a line about each step.
        on_remark: called with what the options ask for by ``explain``, of a device.

    Raises:
        UsageError: no such reference of this model.
        SubquantError: the model is refused, or the reference is not there.
    """
    notify = progress or (lambda step: None)
    options = options or CompileOptions()
    reference = against or model.references[0]
    if reference not in model.references:
        raise UsageError(
            f"expected a reference among {', '.join(model.references)} for '{model.file}', got "
            f"'{reference}'"
        )
    calls = model.drawn(inputs, seed) if isinstance(inputs, int) else inputs
    model.check(calls)
    notify(f"compute with {reference}")
    theirs = model.by_reference(calls, reference, options, limits)
    if device is None:
        ours = model.by_numpy(calls, options)
    else:
        ours = _on_device(model, calls, options, device, limits, notify, on_remark)
    notify("compare")
    there = [each for each in model.watched() if all(each.key in found for found in theirs)]
    return compared(there, ours, theirs, is_real=reference == "float")


def _on_device(
    model: ComparedModel,
    calls: Calls,
    options: CompileOptions,
    device: Device,
    limits: Limits | None,
    notify: Callable[[str], None],
    on_remark: Callable[[Remark], object] | None,
) -> list[Mapping[str, Array]]:
    keys = [watched.key for watched in model.watched()]
    whole = replace(options, every_tensor=True)
    data = compile_to_bytes(model.data, whole, progress=notify, on_remark=on_remark, limits=limits)
    executable = Executable(data, device)
    notify(f"run on {device.name}")
    results: list[Mapping[str, Array]] = []
    for arrays in calls:
        found: Any = executable.main(*arrays)
        listed = list(found) if isinstance(found, (list, tuple)) else [found]
        results.append(dict(zip(keys, map(np.asarray, listed), strict=True)))
    return results
