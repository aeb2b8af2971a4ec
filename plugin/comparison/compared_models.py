"""Models of other tools, and their computation with NumPy, a reference runtime, and a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ..compiler.compilation import compile_to_bytes
from ..compiler.compile_options import CompileOptions
from ..core.files import kind_of
from ..errors import Remark, SignatureError, UnsupportedError, UsageError, counted
from ..importers import onnx, tflite
from ..importers.onnx.reading.model import ELEMENTS as ONNX_ELEMENTS
from ..importers.onnx.reading.reader import read_onnx, with_external_data
from ..importers.options import AS_IN_FILE, ImportOptions
from ..importers.tflite.reading.model import Tensor, read_tflite
from ..isolation.limits import Limits
from ..numerics.element_types import Array, ElementType
from ..runtime import Device, Executable
from .layers import ComparedTensor, Layer, compare_tensors
from .reference_runtimes import Calls, Values, compute_in_child

Reference = Literal["litert", "onnxruntime", "float"]
"""The references: LiteRT's reference kernels, ONNX Runtime without optimizations, and the model on
expressed values, not quantized."""


class Argument(NamedTuple):
    """An argument of a model; `is_numeric` if any integer makes sense, not only 0 and 1."""

    name: str
    element: ElementType
    shape: tuple[int, ...]
    is_numeric: bool


class ComparedModel(ABC):
    """A model, its tensors, and its computation with NumPy and with references.

    `data` are the contents of the file, whose name is for errors.
    """

    references: tuple[Reference, ...]
    """The references of the format; the first is the default."""

    def __init__(self, data: bytes, file: str, options: ImportOptions) -> None:
        if options.input_values:
            raise UsageError("a model is compared with all its inputs; leave out --input-value")
        self.data, self.file, self.options = data, file, options

    @abstractmethod
    def arguments(self) -> list[Argument]:
        """Return the arguments; a dynamic batch is one element."""

    @abstractmethod
    def tensors(self) -> list[ComparedTensor]:
        """Return the tensors that operators compute, in the order of execution."""

    @abstractmethod
    def compute_with_numpy(self, calls: Calls, options: CompileOptions) -> Values:
        """Compute the tensors with NumPy."""

    @abstractmethod
    def compute_reference(
        self, calls: Calls, reference: Reference, options: CompileOptions, limits: Limits | None
    ) -> Values:
        """Compute the tensors with a reference."""

    def random_calls(self, count: int, seed: int) -> Calls:
        """Draw arguments: any storage value, floats around 0, and 0 or 1 for indices."""
        rng = np.random.default_rng(seed)
        return [[_random_array(each, rng) for each in self.arguments()] for _ in range(count)]

    def check(self, calls: Calls) -> None:
        """Raise SignatureError unless arguments have the types of the file."""
        arguments = self.arguments()
        for arrays in calls:
            if len(arrays) != len(arguments):
                raise SignatureError(
                    f"the model takes {counted(len(arguments), 'argument')}, got {len(arrays)}"
                )
            for (name, element, shape, _), array in zip(arguments, arrays, strict=True):
                if array.dtype != element.dtype or array.shape != shape:
                    raise SignatureError(
                        f"argument {name!r} must be {element.dtype.name} of shape {list(shape)}, "
                        f"got {array.dtype.name} of shape {list(array.shape)}"
                    )


def _random_array(argument: Argument, rng: np.random.Generator) -> Array:
    element, shape = argument.element, argument.shape
    if element.is_float:
        return rng.normal(size=shape).astype(element.dtype)
    if element.kind == "bool" or not argument.is_numeric:
        return rng.integers(0, 2, shape).astype(element.dtype)
    info = np.iinfo(element.dtype)
    return rng.integers(info.min, int(info.max) + 1, shape).astype(element.dtype)


class TfliteModel(ComparedModel):
    """A TensorFlow Lite model of one signature, of which the first subgraph is compared."""

    references = ("litert", "float")

    def __init__(self, data: bytes, file: str, options: ImportOptions) -> None:
        """Read a model; refuse more than one signature."""
        super().__init__(data, file, options)
        self.model = read_tflite(data, file)
        if len(self.model.signatures) > 1:
            count = len(self.model.signatures)
            raise UnsupportedError(f"'{file}' has {count} signatures; expected one")

    def arguments(self) -> list[Argument]:
        """Return the arguments of the main graph."""
        graph, signature = self.model.subgraphs[0], self.model.signatures[0]
        is_main = not signature.subgraph
        names = signature.inputs if is_main else [tensor.name for tensor in graph.inputs]
        return [
            Argument(tensor.name, ElementType.parse(tensor.element), shape,
                     tensor.quantization is not None)
            for tensor, shape in zip(
                graph.inputs, tflite.input_shapes(graph, names, self.options), strict=True
            )
        ]  # fmt: skip

    def tensors(self) -> list[ComparedTensor]:
        """Return all tensors but handles of variables and complex ones."""
        tensors = []
        for operator in self.model.subgraphs[0].operators:
            for tensor in operator.outputs:
                if tensor.type in ("RESOURCE", "COMPLEX64"):
                    continue
                quantization = None if tensor.is_float else tensor.quantization
                scale = None if quantization is None else float(quantization.scale)
                zero_point = 0 if quantization is None else quantization.zero_point
                tensors.append(
                    ComparedTensor(str(tensor.index), operator.index, operator.name, tensor.name,
                                   tensor.type, scale, zero_point)
                )  # fmt: skip
        return tensors

    def compute_with_numpy(self, calls: Calls, options: CompileOptions) -> Values:
        """Compute the tensors with NumPy."""
        return _interpret(tflite.Interpreter(self.model, options.import_options), calls)

    def compute_reference(
        self, calls: Calls, reference: Reference, options: CompileOptions, limits: Limits | None
    ) -> Values:
        """Compute the tensors with LiteRT, or in floats."""
        if reference == "litert":
            arguments = {"tensors": [tensor.key for tensor in self.tensors()]}
            return compute_in_child(reference, self.data, self.file, arguments, calls, limits)
        inputs = self.model.subgraphs[0].inputs
        interpreter = tflite.FloatInterpreter(self.model, options.import_options)
        floats = [list(map(interpreter.expressed, arrays, inputs)) for arrays in calls]
        return _interpret(interpreter, floats)


def _interpret(interpreter: tflite.Interpreter, calls: Calls) -> Values:
    results: Values = []
    for arrays in calls:
        values: dict[str, Array] = {}

        def store(tensor: Tensor, value: Array, values: dict[str, Array] = values) -> None:
            values[str(tensor.index)] = value

        interpreter.run(0, arrays, store)
        results.append(values)
    return results


class OnnxModel(ComparedModel):
    """An ONNX model: integers are compared as they are, since their scales are operands."""

    references = ("onnxruntime",)

    def __init__(self, data: bytes, file: str, options: ImportOptions) -> None:
        super().__init__(with_external_data(data, file), file, options)
        self.model = read_onnx(self.data, file)

    def arguments(self) -> list[Argument]:
        """Return the arguments of the graph."""
        return [
            Argument(each.type.name, ElementType.parse(ONNX_ELEMENTS[each.type.type]), each.shape,
                     each.type.type in ("INT8", "UINT8", "INT16", "UINT16"))
            for each in onnx.arguments_of(self.model, self.options)
        ]  # fmt: skip

    def tensors(self) -> list[ComparedTensor]:
        """Return all outputs of nodes."""
        return [
            ComparedTensor(name, node.index, node.operator, name, "")
            for node in self.model.nodes
            for name in node.outputs
            if name
        ]

    def compute_with_numpy(self, calls: Calls, options: CompileOptions) -> Values:
        """Compute the tensors with NumPy."""
        interpreter, results = onnx.Interpreter(self.model), []
        names = [each.name for each in self.model.inputs]
        for arrays in calls:
            values: dict[str, Array] = {}
            with np.errstate(all="ignore"):
                interpreter.run(dict(zip(names, arrays, strict=True)), values.__setitem__)
            results.append(values)
        return list(results)

    def compute_reference(
        self, calls: Calls, reference: Reference, options: CompileOptions, limits: Limits | None
    ) -> Values:
        """Compute the tensors with ONNX Runtime."""
        keys = [tensor.key for tensor in self.tensors()]
        arguments = {"names": [each.name for each in self.model.inputs], "tensors": keys}
        return compute_in_child(reference, self.data, self.file, arguments, calls, limits)


def read_compared_model(
    data: bytes, file: str, options: ImportOptions = AS_IN_FILE
) -> ComparedModel:
    """Read a model.

    Raises:
        UsageError: the format has no reference.
        SubquantError: the file is damaged, or not supported.
    """
    kind = "onnx" if file.lower().endswith(".onnx") else kind_of(data)
    if kind not in ("tflite", "onnx"):
        raise UsageError(
            f"expected a .tflite or .onnx model, got '{file}'; weights are compared with an "
            "original: subquant compare MODEL ORIGINAL"
        )
    return (TfliteModel if kind == "tflite" else OnnxModel)(data, file, options)


def compare_layers(
    model: ComparedModel,
    inputs: Calls | int,
    against: Reference | None = None,
    options: CompileOptions | None = None,
    device: Device | None = None,
    *,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Callable[[str], None] | None = None,
    on_remark: Callable[[Remark], object] | None = None,
) -> list[Layer]:
    """Compare a model, on a device or with NumPy, with a reference.

    Args:
        model: of `read_compared_model`.
        inputs: the arguments of each call, or a number of random calls.
        against: the reference; by default the first of the model's.
        device: None for NumPy.
        seed: of random arguments.
        progress: called with a line about each step.
        on_remark: called with the remarks that ``explain`` requests, for a device.

    Raises:
        UsageError: the model has no such reference.
        SubquantError: the model is refused, or the reference is not installed.
    """
    notify = progress or (lambda step: None)
    options = options or CompileOptions()
    reference = against or model.references[0]
    if reference not in model.references:
        raise UsageError(
            f"expected a reference among {', '.join(model.references)} for '{model.file}', got "
            f"'{reference}'"
        )
    calls = model.random_calls(inputs, seed) if isinstance(inputs, int) else inputs
    model.check(calls)
    notify(f"compute with {reference}")
    theirs = model.compute_reference(calls, reference, options, limits)
    if device is None:
        ours = model.compute_with_numpy(calls, options)
    else:
        all_tensors = replace(options, every_tensor=True)
        executable = Executable(compile_to_bytes(
            model.data, all_tensors, progress=notify, on_remark=on_remark, limits=limits
        ), device)  # fmt: skip
        notify(f"run on {device.name}")
        keys, ours = [tensor.key for tensor in model.tensors()], []
        for arrays in calls:
            results: Any = executable.main(*arrays)
            results = results if isinstance(results, (list, tuple)) else [results]
            ours.append(dict(zip(keys, map(np.asarray, results), strict=True)))
    notify("compare")
    common = [each for each in model.tensors() if all(each.key in values for values in theirs)]
    return compare_tensors(common, ours, theirs, is_expressed=reference == "float")
