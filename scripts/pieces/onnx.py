"""ONNX: attributes, inputs, operator sets, tensors, nodes and fields of protobufs.

The files are the node tests of the package `onnx`, with all inputs but the first as constants. The
reference is ONNX Runtime, and the package's own evaluator for nodes that ONNX Runtime has no kernel
for.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import Base, Piece, Reference, Refused, choose, unknown_name

FILE = "x.onnx"
_SLOW = ("averagepool", "image_decoder", "lppool", "maxpool")
"""Node tests whose expected results take seconds to compute; `_pools` stands for them."""
_LARGEST = 1000
_RANDOM = re.compile("bernoulli|dropout|random|training|multinomial|string|regex|momentum|adagrad")


class OnnxFile(Base):
    """A model of one node."""

    def program_of(self, files: dict[str, bytes]) -> bytes:
        """Import the model."""
        from subquant.compiler.compilation import compile_to_bytes
        from subquant.compiler.compile_options import CompileOptions

        return compile_to_bytes(_input(files), CompileOptions(), emit="mlir")

    def expected_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Run ONNX Runtime."""
        return _reference()(files[FILE], self.arrays)

    def other_references(self, files: dict[str, bytes]) -> list[list[np.ndarray]]:
        """Run the evaluator of the package `onnx`."""
        try:
            return [_reference()(files[FILE], self.arrays, "onnx")]
        except Refused:
            return []

    def computed_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Compile the model, and run it."""
        from subquant.compiler.compilation import compile_to_bytes
        from subquant.errors import InputError
        from subquant.runtime import Device, Executable

        function = Executable(compile_to_bytes(_input(files)), Device("llvm-cpu"))["main"]
        names = [each.name for each in function.signature.inputs]
        if len(names) != len(self.arrays):
            raise InputError(f"the program has the inputs {names}")
        return function.invoke([*self.arrays.values()])


def _input(files: dict[str, bytes]) -> Any:
    from subquant.compiler.mlir_client import Input

    return Input(FILE, data=files[FILE])


@functools.cache
def _reference() -> Reference:
    return Reference("onnx")


def run(data: bytes, arrays: dict[str, np.ndarray], runtime: str = "") -> list[np.ndarray]:
    """Return the results of ONNX Runtime, or of the package's evaluator; in the child process."""
    if runtime == "onnx":
        return _evaluated(data, arrays)
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
        results = session.run(None, arrays)
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error) and "NotImplemented" not in type(error).__name__:
            raise
        return _evaluated(data, arrays)
    return [np.asarray(each) for each in results]


def _evaluated(data: bytes, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    onnx.checker.check_model(data)
    results = ReferenceEvaluator(onnx.load_from_string(data)).run(None, arrays)
    return [np.asarray(each) for each in results]


# -- files ----------------------------------------------------------------------------------------


@functools.cache
def bases() -> list[Base]:
    """The models of the node tests that compute the same thing each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        for entry in sorted(Path(node.__file__).parent.glob("*.py")):
            if entry.stem not in _SLOW:
                importlib.import_module(f"{node.__name__}.{entry.stem}")
    files = [_base(case) for case in sorted(node._NodeTestCases, key=lambda case: str(case.name))]
    return [*filter(None, files), *_pools()]


def _base(case: Any) -> Base | None:
    from onnx import ModelProto, numpy_helper

    model = ModelProto()
    model.CopyFrom(case.model)
    inputs = list(zip(model.graph.input, case.data_sets[0][0], strict=False))
    if _RANDOM.search(case.name) or not inputs or len(inputs) != len(model.graph.input):
        return None
    arrays = {}
    for number, (each, array) in enumerate(inputs):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            return None
        if number and array.size < _LARGEST:
            model.graph.initializer.append(numpy_helper.from_array(array, each.name))
            model.graph.input.remove(each)
        else:
            arrays[each.name] = array
    return OnnxFile(str(case.name), {FILE: model.SerializeToString()}, arrays)


def _pools() -> list[Base]:
    from onnx import TensorProto, helper

    pools: list[Base] = []
    random_ = np.random.default_rng(0)
    for op, shape in (("MaxPool", (1, 2, 9)), ("MaxPool", (1, 2, 8, 7)), ("LpPool", (1, 2, 9, 9)),
                      ("AveragePool", (1, 3, 7, 8)), ("AveragePool", (1, 1, 6, 5, 7))):  # fmt: skip
        kernel = [3] * (len(shape) - 2)
        node = helper.make_node(op, ["x"], ["y"], kernel_shape=kernel, strides=[2] * len(kernel))
        graph = helper.make_graph(
            [node], "pools", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        x = random_.standard_normal(shape).astype(np.float32)
        pools.append(OnnxFile(f"{op}-{shape}", {FILE: model.SerializeToString()}, {"x": x}))
    return pools


# -- pieces ---------------------------------------------------------------------------------------

Change = Callable[[random.Random, Any], "tuple[str, tuple[str, ...], bool] | None"]
"""Changes a model; returns the piece in words, the names of the piece, and if it is unknown."""

_WITH_MEANING = (
    *("operator set", "a value info", "a node Relu", "ir_version", "round_mode", "saturate"),
    "the sparse",
)
"""Pieces that a reference refuses where they change nothing: types that an older operator set
lacks, shapes that tools leave behind, a version of the format before 3 (which ONNX Runtime takes),
and attributes of casts to floats of 8 bits."""


def draw(rng: random.Random) -> tuple[Base, Piece]:
    """Draw a model and a piece of it."""
    from onnx import ModelProto

    while True:
        base = choose(rng, bases())
        model = ModelProto.FromString(base.files[FILE])
        change = rng.choice(CHANGES)(rng, model)
        if change is not None:
            what, names, is_unknown = change
            has_meaning = what.startswith(_WITH_MEANING)
            files = {FILE: model.SerializeToString()}
            return base, Piece(what, names, files, is_unknown, has_meaning)


def unknown_attribute(rng: random.Random, model: Any) -> Any:
    """An attribute that no operator has."""
    from onnx import helper

    node, name = rng.choice(model.graph.node), unknown_name(rng)
    values = (0, 1, 2, -1, 0.5, "x", "NOTSET", [1, 2], [0.5], ["a"], [0], [1, 1, 1, 1])
    node.attribute.append(helper.make_attribute(name, rng.choice(values)))
    return f"the unknown attribute {name} of {node.op_type}", (name,), True


def attribute(rng: random.Random, model: Any) -> Any:
    """An attribute that the operator has, with another value."""
    from onnx import defs, helper

    node = rng.choice(model.graph.node)
    version = next(each.version for each in model.opset_import if each.domain == node.domain)
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except Exception:
        return None
    kinds = defs.OpSchema.AttrType
    drawn = (kinds.INT, kinds.FLOAT, kinds.STRING, kinds.INTS, kinds.FLOATS, kinds.STRINGS)
    attributes = schema.attributes.values()
    known = [a for a in attributes if a.type in drawn and a.name not in _WITHOUT_MEANING]
    if not known:
        return None
    chosen = rng.choice(known)
    old = next((each for each in node.attribute if each.name == chosen.name), None)
    value = helper.get_attribute_value(old) if old is not None else None
    new = _other_value(rng, chosen.type.name, value, schema.doc)
    if old is not None:
        node.attribute.remove(old)
    elif chosen.default_value.name:
        default = helper.get_attribute_value(chosen.default_value)
        if default == new or default == str(new).encode():
            return None
    node.attribute.append(helper.make_attribute(chosen.name, new))
    names = (chosen.name, str(new), *_SHOWN_BY.get(node.op_type, ()))
    return f"{chosen.name} = {new} (was {value}) of {node.op_type}", names, False


_WITHOUT_MEANING = ("sorted",)
"""Attributes with which a runtime chooses the results: the order of TopK."""
_SHOWN_BY = {"Constant": ("attribute 'value",)}
"""Words of the errors for operators that have one attribute of several."""
_TEXT = (
    *("linear", "cubic", "nearest", "reflect", "edge", "wrap", "constant", "reverse", "add", "mul"),
    *("max", "bidirectional", "forward", "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "DCR"),
    *("CRD", "tanh", "none", "floor", "ceil", "align_corners", "asymmetric", "half_pixel"),
)


def _other_value(rng: random.Random, kind: str, value: Any, text: str) -> Any:
    numbers = list(value) if isinstance(value, (list, tuple)) else [0]
    if kind == "INT":
        return rng.choice([n for n in (0, 1, -1, 2, 3, 6, 7) if n != value])
    if kind == "FLOAT":
        return rng.choice([n for n in (0.0, 0.5, 1.0, -0.25, 2.0) if n != value])
    if kind == "STRING":
        choices = [each for each in _TEXT if f"{each}" in text] or list(_TEXT)
        return rng.choice(choices)
    if kind == "INTS":
        index = rng.randrange(len(numbers))
        numbers[index] += rng.choice((-1, 1, 2))
        return numbers
    if kind == "FLOATS":
        return [rng.choice((0.5, 1.0, -0.5)) for _ in range(rng.choice((1, len(numbers), 2)))]
    texts = ("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "HardSigmoid", "Softsign", "Elu")
    return [rng.choice(texts) for _ in range(rng.choice((1, len(numbers), 2, 3)))]


def extra_input(rng: random.Random, model: Any) -> Any:
    """An optional input, or one more than the operator has."""
    from onnx import defs, helper

    node, name = rng.choice(model.graph.node), unknown_name(rng)
    shape = rng.choice(([], [1], [2], [3], [1, 2]))
    kinds = [each.data_type for each in model.graph.initializer] + [1, 1, 6, 7, 9, 3]
    kind, count = rng.choice(kinds), int(np.prod(shape))
    values = [rng.choice((0, 1, 2)) for _ in range(count)]
    if kind not in (1, 2, 3, 5, 6, 7, 9, 10, 11):
        return None
    model.graph.initializer.append(helper.make_tensor(name, kind, shape, values))
    empty = [number for number, each in enumerate(node.input) if not each]
    if empty and rng.random() < 0.5:
        node.input[rng.choice(empty)] = name
    else:
        node.input.extend([""] * rng.choice((0, 0, 0, 1, 2)))
        node.input.append(name)
    index = list(node.input).index(name)
    # The name of the input in the schema of the newest operator set; "" if there is none.
    formals = defs.get_schema(node.op_type).inputs if defs.has(node.op_type) else []
    formal = str(formals[min(index, len(formals) - 1)].name) if formals else ""
    words = (word for word in formal.split("_") if len(word) > 3)
    places = (f"input {index}", f"input {index + 1}", f"{len(node.input)} inputs", "inputs")
    names = (name, *words, *places)
    return f"input {index} of {node.op_type}, {shape} = {values}", names, False


def operator_set(rng: random.Random, model: Any) -> Any:
    """Another version of the operator set."""
    imported = rng.choice(model.opset_import)
    old = imported.version
    imported.version = rng.choice([*range(7, 24), 0, 1, 6, 99])
    if imported.version == old:
        return None
    names = ("operator set", "opset", f" {imported.version} ", model.graph.node[0].op_type)
    return f"operator set {imported.version} (was {old})", names, False


def unknown_field(rng: random.Random, model: Any) -> Any:
    """A field of a protobuf that no version of ONNX has."""
    graph = model.graph
    messages = [model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output]
    messages += [each for node in graph.node for each in node.attribute]
    part, number = rng.choice(messages), rng.randrange(60, 2000)
    payload = rng.choice(((0, b"\x05"), (2, b"\x03abc"), (5, b"\0\0\x80\x3f")))
    part.MergeFromString(_varint(number << 3 | payload[0]) + payload[1])
    kind = type(part).__name__
    return f"field {number} of a {kind}", (f"field {number}", f"number {number}"), True


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def domain(rng: random.Random, model: Any) -> Any:
    """A domain that is imported, or that a node is of."""
    name = rng.choice((unknown_name(rng), "com.microsoft", "ai.onnx", "ai.onnx.ml"))
    if rng.random() < 0.5:
        model.opset_import.add(domain=name, version=1)
        return f"the domain {name}", (name, "domain", "operator set"), False
    node = rng.choice(model.graph.node)
    if node.domain == name:
        return None
    node.domain = name
    if rng.random() < 0.7 and name != "ai.onnx":
        model.opset_import.add(domain=name, version=1)
    return f"{node.op_type} of the domain {name}", (name, node.op_type), False


def function(rng: random.Random, model: Any) -> Any:
    """A function of the model's own that has the name of an operator."""
    from onnx import helper

    node = rng.choice(model.graph.node)
    if len(node.output) != 1 or not node.input or not all(node.input):
        return None
    inputs = [f"i{n}" for n in range(len(node.input))]
    body = [helper.make_node("Neg", ["i0"], ["o"])]
    definition = helper.make_function(
        node.domain, node.op_type, inputs, ["o"], body, list(model.opset_import),
        attributes=[each.name for each in node.attribute],
    )  # fmt: skip
    model.functions.append(definition)
    return f"a function named {node.op_type}", (node.op_type, "function"), False


def other_place(rng: random.Random, model: Any) -> Any:
    """Something in a place that is seldom used."""
    from onnx import TensorProto, helper

    graph, name = model.graph, unknown_name(rng)
    node = rng.choice(graph.node)
    choice = rng.randrange(14)
    if choice == 0 and model.ir_version > 3:
        graph.initializer.append(helper.make_tensor(name, 1, [2], [1.0, 2.0]))
        return f"the tensor {name}, which nothing reads", (name,), False
    if choice == 1:
        graph.input.append(helper.make_tensor_value_info(name, 1, [2]))
        return None  # the program has another signature
    if choice == 2:
        output = rng.choice([each for each in node.output if each])
        graph.value_info.append(helper.make_tensor_value_info(output, rng.choice((1, 7)), [3, 1]))
        return f"a value info of {output}", (output, "value_info", "shape", "type"), False
    if choice == 3:
        graph.node.append(helper.make_node(rng.choice(("Relu", name)), [node.output[0]], [name]))
        return f"a node {graph.node[-1].op_type} whose result {name} nothing reads", (name,), False
    if choice == 4:
        model.ir_version = rng.choice((1, 3, 4, 8, 99, 2**30))
        return f"ir_version {model.ir_version}", ("ir_version", "version of the format"), False
    if choice == 5:
        model.training_info.add().initialization.name = name
        return "training_info", ("training",), False
    if choice == 6:
        node.overload = name
        return f"overload {name} of {node.op_type}", (name, "overload"), False
    if choice == 7 and graph.initializer:
        tensor = rng.choice(graph.initializer)
        tensor.data_location = TensorProto.EXTERNAL
        return f"tensor {tensor.name} in another file", (tensor.name, "external"), False
    if choice == 8 and graph.initializer:
        tensor = rng.choice(graph.initializer)
        tensor.segment.begin, tensor.segment.end = 0, 1
        return f"a segment of {tensor.name}", (tensor.name, "segment"), False
    if choice == 9 and node.attribute:
        attribute_ = rng.choice(node.attribute)
        attribute_.ref_attr_name = name
        return f"{attribute_.name} = @{name}", (attribute_.name, name), False
    if choice == 10 and node.attribute:
        twice = node.attribute.add()
        twice.CopyFrom(rng.choice(node.attribute))
        return f"{twice.name} twice", (twice.name,), False
    if choice == 11:
        annotation = graph.quantization_annotation.add(tensor_name=node.output[0])
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=name)
        return f"a quantization of {node.output[0]}", ("quantization", node.output[0]), False
    if choice == 12 and model.ir_version > 3:
        sparse = graph.sparse_initializer.add()
        sparse.values.CopyFrom(helper.make_tensor(name, 1, [1], [1.0]))
        sparse.indices.CopyFrom(helper.make_tensor("", 7, [1], [0]))
        sparse.dims.extend([4])
        return f"the sparse tensor {name}", (name, "sparse"), False
    if choice == 13:
        part = rng.choice((model, graph, node))
        part.metadata_props.add(key=name, value="1")
        part.doc_string = name
        return f"metadata {name}", (name,), False
    return None


CHANGES: tuple[Change, ...] = (
    unknown_attribute,
    attribute,
    extra_input,
    operator_set,
    unknown_field,
    domain,
    function,
    other_place,
)
