"""TensorFlow Lite: slots of tables, option values, tensors, operators and metadata.

The files are the models of single operators that the tests have. The reference is LiteRT's
interpreter with its reference kernels; the program is computed by NumPy.
"""

from __future__ import annotations

import functools
import importlib
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import Base, Piece, Reference, choose, unknown_name

FILE = "x.tflite"
_TESTS = Path(__file__).resolve().parents[2] / "tests"
_MODULES = ("", "_contraction", "_control", "_custom", "_elementwise", "_indexing",
            "_recurrent", "_scatter", "_type")  # fmt: skip
"""Endings of the names of the test modules that have a table ``CASES``."""


class TfliteFile(Base):
    """A model of one operator."""

    def program_of(self, files: dict[str, bytes]) -> bytes:
        """Import the model."""
        from subquant.compiler.compilation import compile_to_bytes
        from subquant.compiler.compile_options import CompileOptions
        from subquant.compiler.mlir_client import Input

        return compile_to_bytes(Input(FILE, data=files[FILE]), CompileOptions(), emit="mlir")

    def expected_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Run LiteRT."""
        return _reference()(files[FILE])

    def computed_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Run the model with NumPy."""
        from subquant.errors import InputError
        from subquant.importers.tflite import Interpreter
        from subquant.importers.tflite.reading.model import read_tflite

        model = read_tflite(files[FILE])
        graph = model.subgraphs[0]
        arrays = drawn([(tuple(each.shape), each.type) for each in graph.inputs])
        try:
            results = Interpreter(model).run(0, arrays)
        except (KeyError, ValueError) as error:
            raise InputError(f"NumPy does not compute it: {error}") from None
        return [np.asarray(each) for each in results]


@functools.cache
def _reference() -> Reference:
    return Reference("tflite")


def drawn(inputs: list[tuple[tuple[int, ...], str]]) -> list[np.ndarray]:
    """Draw arrays for inputs of shapes and types."""
    random_ = np.random.default_rng(7)
    arrays = []
    for shape, kind in inputs:
        name = kind.lower()
        if "float" in name or name in ("f32", "f16"):
            dtype = np.float16 if "16" in name else np.float32
            array = random_.standard_normal(shape).astype(dtype)
        elif name in ("bool", "i1"):
            array = random_.integers(0, 2, shape).astype(np.bool_)
        elif name in ("int32", "int64", "uint32"):
            array = random_.integers(0, 2, shape).astype(name)
        else:
            limits = np.iinfo(name)
            array = random_.integers(limits.min, limits.max + 1, shape).astype(name)
        arrays.append(array)
    return arrays


def run(data: bytes) -> list[np.ndarray]:
    """Return the results of LiteRT; in the child process."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    details = interpreter.get_input_details()
    arrays = drawn([(tuple(each["shape"]), np.dtype(each["dtype"]).name) for each in details])
    for each, array in zip(details, arrays, strict=True):
        interpreter.set_tensor(each["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]


_WITHOUT_REFERENCE = ("SUM-int16", "SUM-int8")
"""Models whose integers LiteRT's reference kernel reads as uint8, in part beyond their end."""


@functools.cache
def bases() -> list[Base]:
    """The models of the tests that LiteRT computes."""
    sys.path.append(str(_TESTS))
    one_case = importlib.import_module("tflite_cases").one_case
    files: list[Base] = []
    for part in _MODULES:
        for name, case in importlib.import_module(f"tflite{part}_cases").CASES.items():
            if name in _WITHOUT_REFERENCE:
                continue
            data = one_case(case, np.random.default_rng(0))
            files.append(TfliteFile(name, {FILE: bytes(data)}))
    return files


_WITH_MEANING = (
    *("elseSubgraphIndex", "outputType", "projClip", "quantizedBiasType", "thenSubgraphIndex"),
)
"""Options that LiteRT checks where they change nothing: a branch that is not taken, a projection
that is absent, the width of sums that do not overflow, a type that the result repeats."""

# -- pieces ---------------------------------------------------------------------------------------


def draw(rng: random.Random) -> tuple[Base, Piece]:
    """Draw a model and a piece of it."""
    while True:
        base = choose(rng, bases())
        data = base.files[FILE]
        change = unknown_slot(rng, data) if rng.random() < 0.4 else _changed(rng, data)
        if change is not None:
            what, names, is_unknown, changed = change
            # Default kernels have newer versions of some operators than reference kernels.
            has_meaning = "version" in names or what.startswith(_WITH_MEANING)
            return base, Piece(what, names, {FILE: changed}, is_unknown, has_meaning)


def unknown_slot(rng: random.Random, data: bytes) -> Any:
    """A slot of a table that no version of the schema has: its vtable is written again, longer."""
    where, position = rng.choice(list(_tables(data)))
    [distance] = struct.unpack_from("<i", data, position)
    vtable = position - distance
    size, inline = struct.unpack_from("<HH", data, vtable)
    if inline < 8:
        return None
    slot = rng.randrange(40, 200)
    entries = data[vtable + 4 : vtable + size].ljust(2 * slot, b"\0")
    longer = struct.pack("<HH", 4 + 2 * (slot + 1), inline) + entries + struct.pack("<H", 4)
    start = -(-len(data) // 4) * 4
    changed = bytearray(data.ljust(start, b"\0") + longer)
    struct.pack_into("<i", changed, position, position - start)
    names = (f"field {slot}", f"slot {slot}", f"number {slot}", f"id {slot}")
    return f"slot {slot} of {where}", names, True, bytes(changed)


def _tables(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the tables of a model, and where they are."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    yield "the model", model._tab.Pos
    for n in range(model.OperatorCodesLength()):
        yield "an operator code", model.OperatorCodes(n)._tab.Pos
    for n in range(model.BuffersLength()):
        yield "a buffer", model.Buffers(n)._tab.Pos
    for g in range(model.SubgraphsLength()):
        graph = model.Subgraphs(g)
        yield "a graph", graph._tab.Pos
        for n in range(graph.TensorsLength()):
            tensor = graph.Tensors(n)
            yield "a tensor", tensor._tab.Pos
            if tensor.Quantization() is not None:
                yield "a quantization", tensor.Quantization()._tab.Pos
        for n in range(graph.OperatorsLength()):
            operator = graph.Operators(n)
            yield "an operator", operator._tab.Pos
            if operator.BuiltinOptions() is not None:
                yield "options", operator.BuiltinOptions().Pos


Change = Callable[[random.Random, Any], "tuple[str, tuple[str, ...], bool] | None"]


def _changed(rng: random.Random, data: bytes) -> Any:
    """A model with one field changed, and written again."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    change = rng.choice(CHANGES)(rng, model)
    if change is None:
        return None
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except Exception:  # a number that its field has no bits for
        return None
    return *change, bytes(builder.Output())


def option(rng: random.Random, model: Any) -> Any:
    """Another value of an option."""
    operators = [each for graph in model.subgraphs for each in graph.operators]
    options = [each for op in operators for each in (op.builtinOptions, op.builtinOptions2) if each]
    if not options:
        return None
    owner = rng.choice(options)
    names = [name for name, value in vars(owner).items() if isinstance(value, (bool, int, float))]
    if not names:
        return None
    name = rng.choice(names)
    old = getattr(owner, name)
    if isinstance(old, bool):
        new: Any = not old
    elif isinstance(old, float):
        new = rng.choice([n for n in (0.0, 0.5, 1.0, -1.0, 2.0) if n != old])
    else:
        new = rng.choice([n for n in (0, 1, 2, 3, 4, 5, -1, 7, 100) if n != old])
    setattr(owner, name, new)
    kind = type(owner).__name__.removesuffix("T")
    short = name.removeprefix("fused").removesuffix("Factor")
    words = (name, short, "options", "windows", "ellipses")
    return f"{name} = {new} (was {old}) of {kind}", words, False


def _tensor(rng: random.Random, model: Any) -> Any:
    return rng.choice(rng.choice(model.subgraphs).tensors)


def tensor_field(rng: random.Random, model: Any) -> Any:
    """A field of a tensor that most tensors do not have."""
    from ai_edge_litert import schema_py_generated as schema

    tensor = _tensor(rng, model)
    name = tensor.name.decode() if isinstance(tensor.name, bytes) else str(tensor.name)
    choice = rng.randrange(6)
    if choice == 0:
        tensor.isVariable = not tensor.isVariable
        return f"isVariable of {name}", (name, "variable"), False
    if choice == 1:
        tensor.sparsity = schema.SparsityParametersT()
        tensor.sparsity.traversalOrder = [0]
        return f"sparsity of {name}", (name, "sparse", "sparsity"), False
    if choice == 2:
        tensor.shapeSignature = [-1, *list(tensor.shape)[1:]]
        return f"shapeSignature of {name}", (name, "signature", "dynamic"), False
    if choice == 3 and tensor.quantization is not None:
        tensor.quantization.min, tensor.quantization.max = [-1.0], [1.0]
        return f"min and max of {name}", (name, "min"), False
    scales = None if tensor.quantization is None else tensor.quantization.scale
    if choice == 4 and scales is not None and len(scales) > 1:
        tensor.quantization.quantizedDimension = rng.choice((1, 2, 5))
        return f"quantizedDimension of {name}", (name, "dimension"), False
    if choice == 5:
        tensor.externalBuffer = rng.choice((1, 9))
        return f"externalBuffer of {name}", (name, "external"), False
    return None


def quantization(rng: random.Random, model: Any) -> Any:
    """Another scale or zero point, or a zero point more."""
    tensor = _tensor(rng, model)
    parameters = tensor.quantization
    if parameters is None or parameters.scale is None or not len(parameters.scale):
        return None
    name = tensor.name.decode() if isinstance(tensor.name, bytes) else str(tensor.name)
    scales, zeros = list(map(float, parameters.scale)), list(map(int, parameters.zeroPoint))
    choice = rng.randrange(3)
    if choice == 0:
        scales[rng.randrange(len(scales))] *= 2
    elif choice == 1 and zeros:
        zeros[rng.randrange(len(zeros))] += 1
    else:
        scales.append(0.5)
        zeros.append(0)
    parameters.scale, parameters.zeroPoint = scales, zeros
    words = (name, "zero point", "scale")
    return f"scales {scales[:3]}, zero points {zeros[:3]} of {name}", words, False


def operator_field(rng: random.Random, model: Any) -> Any:
    """An input, intermediate, variable or custom option of an operator."""
    from ai_edge_litert import schema_py_generated as schema

    graph = rng.choice(model.subgraphs)
    if not len(graph.operators):
        return None
    operator = rng.choice(graph.operators)
    choice, inputs = rng.randrange(6), list(map(int, operator.inputs))
    if choice == 0:
        more = rng.randrange(len(graph.tensors))
        operator.inputs = [*inputs, more]
        return f"input {len(inputs)} = {more}", ("inputs", "input", "operand"), False
    if choice == 1:
        operator.intermediates = [rng.randrange(len(graph.tensors))]
        return "intermediates", ("intermediate",), False
    if choice == 2:
        operator.mutatingVariableInputs = [True] * len(inputs)
        return "mutatingVariableInputs", ("mutating", "variable"), False
    if choice == 3:
        operator.customOptions = list(b"abcd")
        return "customOptions", ("custom",), False
    if choice == 4:
        operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize = 8, 8
        return "largeCustomOptionsOffset", ("large custom", "custom", "options"), False
    operator.builtinOptions2Type = schema.BuiltinOptions2.StablehloConcatenateOptions
    operator.builtinOptions2 = schema.StablehloConcatenateOptionsT()
    return "builtinOptions2", ("options 2", "options", "StablehloConcatenate"), False


def model_field(rng: random.Random, model: Any) -> Any:
    """A tensor, a graph, an operator code or metadata of the model."""
    from ai_edge_litert import schema_py_generated as schema

    name, graph = unknown_name(rng), rng.choice(model.subgraphs)
    choice = rng.randrange(7)
    if choice == 0:
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.hasRank = name.encode(), [2], 0, True
        tensor.buffer = 0
        graph.tensors.append(tensor)
        return f"the tensor {name}, which nothing reads", (name,), False
    if choice == 1:
        metadata = schema.MetadataT()
        metadata.name, metadata.buffer = name.encode(), 0
        model.metadata = [*(model.metadata or []), metadata]
        return f"metadata {name}", (name,), False
    if choice == 2:
        model.version = rng.choice((0, 1, 2, 4, 99))
        return f"version {model.version}", ("version",), False
    if choice == 3:
        code = rng.choice(model.operatorCodes)
        code.version = rng.choice((1, 2, 5, 12, 99))
        return f"version {code.version} of an operator", ("version",), False
    if choice == 4:
        code = rng.choice(model.operatorCodes)
        code.customCode = name.encode()
        return f"customCode {name}", (name, "custom"), False
    if choice == 5:
        code = rng.choice(model.operatorCodes)
        code.deprecatedBuiltinCode = rng.choice((0, 1, 14))
        return f"deprecatedBuiltinCode {code.deprecatedBuiltinCode}", ("code", "operator"), False
    graph.debugMetadataIndex = rng.choice((0, 3))
    return "debugMetadataIndex", ("debug",), False


CHANGES: tuple[Change, ...] = (option, tensor_field, quantization, operator_field, model_field)
