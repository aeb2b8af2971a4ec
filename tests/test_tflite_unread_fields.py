"""All that a TensorFlow Lite file says is used, known to be irrelevant, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litert import zeros
from subquant.dialects import create_context
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.importers.tflite import Interpreter, inspection, write_module
from subquant.importers.tflite.reading.model import read_tflite
from tflite_builder import Graph, Quantized, assign, f32, one_operator, schema
from tflite_custom_cases import flexbuffer
from tflite_recurrent_cases import CASES as RECURRENT

INT8 = ((2, 3), "int8", Quantized(0.5, 3))


def computed(data: bytes) -> None:
    """Read and compute a model of zeros."""
    model = read_tflite(data)
    Interpreter(model).run(0, zeros(model))


def activation(change: Callable[[Any], None] = lambda graph: None) -> bytes:
    """A model of one operator without options."""
    graph = Graph()
    ends = graph.apply("RELU", [INT8], [INT8])
    change(graph)
    return graph.model(*ends)


SLOTS = {"model": 10, "graph": 6, "tensor": 11, "quantization": 7, "operator": 14, "code": 4,
         "buffer": 3, "options": 7}  # fmt: skip
"""The fields that the schema has in each table."""


def with_slot(data: bytes, table: str, graph_index: int = 0) -> bytes:
    """A model with one field more in the first of the tables of a kind.

    The vtable of the table is copied to the end of the file, with an entry more.
    """
    root = schema().Model.GetRootAs(data)
    graph = root.Subgraphs(graph_index)
    first = {
        "model": root,
        "graph": graph,
        "tensor": graph.Tensors(0),
        "quantization": graph.Tensors(0).Quantization(),
        "operator": graph.Operators(0),
        "code": root.OperatorCodes(0),
        "buffer": root.Buffers(1) if root.BuffersLength() > 1 else None,
        "options": graph.Operators(0).BuiltinOptions(),
    }[table]
    position = getattr(first, "_tab", first).Pos
    changed = bytearray(data)
    vtable = position - int(np.frombuffer(data, "<i4", 1, position)[0])
    size, extent = (int(n) for n in np.frombuffer(data, "<u2", 2, vtable))
    entries = np.frombuffer(data, "<u2", (size - 4) // 2, vtable + 4).tolist()
    entries += [0] * (SLOTS[table] - len(entries))
    # The field lies where the table's first one does.
    entries.append(next(each for each in entries if each))
    while len(changed) % 4:
        changed.append(0)
    moved = len(changed)
    numbers = [4 + 2 * len(entries), extent, *entries]
    changed += np.array(numbers, "<u2").tobytes()
    changed[position : position + 4] = np.array([position - moved], "<i4").tobytes()
    return bytes(changed)


def convolution() -> bytes:
    filters = ((3, 1, 1, 2), "int8", Quantized(0.1), np.ones((3, 1, 1, 2), np.int8))
    return one_operator(
        "CONV_2D", [((1, 4, 4, 2), "int8", Quantized(0.5, 3)), filters, -1],
        [((1, 4, 4, 3), "int8", Quantized(0.5, 3))], "Conv2DOptions", strideW=1, strideH=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "subject"),
    [
        ("model", "the model"),
        ("graph", "graph 0"),
        ("tensor", "tensor 0 't0'"),
        ("quantization", "tensor 0 't0'"),
        ("buffer", "buffer 1"),
        ("operator", "operator 0 (CONV_2D)"),
        ("code", "operator 0 (CONV_2D)"),
        ("options", "operator 0 (CONV_2D)"),
    ],
)
def test_a_field_that_the_schema_lacks_is_refused(table: str, subject: str) -> None:
    kind = "option" if table == "options" else "field"
    message = f"{subject} has the {kind} 'slot {SLOTS[table]}', which subquant does not use"
    computed(convolution())
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        computed(with_slot(convolution(), table))


def branches() -> bytes:
    """A model of an IF whose condition is true, and of a graph that nothing calls."""
    graph = Graph()
    numbers = [
        graph.branch(name, f32(2, 3), fusedActivationFunction=1) for name in ("ADD", "MUL", "SUB")
    ]
    return graph.model(*graph.choose(np.array(True), [f32(2, 3)] * 2, [f32(2, 3)], numbers))


@pytest.mark.parametrize("table", ["options", "operator"])
@pytest.mark.parametrize(("graph", "operator"), [(1, "ADD"), (2, "MUL"), (3, "SUB")])
def test_an_unknown_field_of_an_operator_is_refused_in_every_graph(
    table: str, graph: int, operator: str
) -> None:
    def imported(data: bytes) -> None:
        write_module(read_tflite(data), create_context())

    imported(branches())
    message = (
        rf"operator 0 \({operator}\) has the \w+ 'slot {SLOTS[table]}', which subquant does not"
    )
    with pytest.raises(UnsupportedError, match=message):
        imported(with_slot(branches(), table, graph))


def test_inspection_lists_the_refusals_of_branches_that_are_not_taken() -> None:
    described = inspection.describe_model(read_tflite(with_slot(branches(), "options", 2)))
    assert "slot 7" in described["graphs"][2]["operators"][0]["refused"]
    assert described["graphs"][3]["operators"][0]["refused"] is None


def assigned(path: str, value: object) -> Callable[[Graph], None]:
    """A change of a field of the model."""
    return lambda graph: assign(graph, path, value)


def _extra_input(graph: Graph) -> None:
    more = graph.tensor((3,), "int8", Quantized(0.5), np.ones(3, np.int8))
    graph._operators[0].inputs.append(more)


def _options(name: str, number: str = "", **fields: Any) -> Callable[[Graph], None]:
    """Options of another operator, in the first or the second union."""

    def change(graph: Graph) -> None:
        kind, table = getattr(schema(), f"BuiltinOptions{number}"), getattr(schema(), f"{name}T")()
        for field, value in fields.items():
            setattr(table, field, value)
        setattr(graph._operators[0], f"builtinOptions{number}Type", getattr(kind, name))
        setattr(graph._operators[0], f"builtinOptions{number}", table)

    return change


def _variants(graph: Graph) -> None:
    graph._tensors[0].variantTensors = [schema().VariantSubTypeT()]


def _details(graph: Graph) -> None:
    s = schema()
    parameters = graph._tensors[0].quantization
    parameters.detailsType = s.QuantizationDetails.CustomQuantization
    parameters.details = s.CustomQuantizationT()
    parameters.details.custom = [1]


def _constant(*, is_variable: bool = False, **fields: Any) -> Callable[[Graph], None]:
    """The first tensor with elements in a buffer, whose fields may be others."""

    def change(graph: Graph) -> None:
        graph._tensors[0].isVariable = is_variable
        graph._tensors[0].buffer = len(graph._buffers)
        buffer = schema().BufferT()
        for name, value in ({"data": np.zeros(6, np.uint8)} | fields).items():
            setattr(buffer, name, value)
        graph._buffers.append(buffer)

    return change


UNREAD_BY_OPERATOR: list[tuple[Callable[[Graph], None], str]] = [
    (_extra_input, "input '1'"),
    (assigned("_operators.0.intermediates", [0]), "intermediate '0'"),
    (assigned("_operators.0.customOptions", [1, 2, 3]), "field 'custom_options'"),
    (assigned("_operators.0.customOptionsFormat", 1), "field 'custom_options_format' = 1"),
    (assigned("_codes.0.customCode", b"other"), "field 'custom_code' = 'other'"),
    (_options("LeakyReluOptions", alpha=0.5), "option 'LeakyReluOptions'"),
    (_options("StablehloConcatenateOptions", "2"), "field 'builtin_options_2'"),
]
UNREAD_OF_TENSOR: list[tuple[Callable[[Graph], None], str]] = [
    (assigned("_tensors.0.externalBuffer", 3), "is kept in another file (external buffer 3)"),
    (_variants, "has the field 'variant_tensors', which"),
    (_details, "has custom or multi-axis quantization"),
]
CONTRADICTIONS: list[tuple[Callable[[Graph], None], str]] = [
    (_constant(is_variable=True), "tensor 0 't0' is a variable with elements in the file"),
    (_constant(), "tensor 't0', an input of graph 0, is a constant"),
    (assigned("_tensors.0.quantization.scale", []), "tensor 0 't0' has zero points, and no scales"),
    (_constant(offset=8, size=6), "tensor 0 't0' is in buffer 1, which has bytes at two offsets"),
    (_constant(data=None, size=6), "tensor 0 't0' is in buffer 1 of 6 bytes that does not exist"),
]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        *(
            (change, UnsupportedError, f"operator 0 (RELU) has the {piece}, which")
            for change, piece in UNREAD_BY_OPERATOR
        ),
        *(
            (change, UnsupportedError, f"tensor 0 't0' {message}")
            for change, message in UNREAD_OF_TENSOR
        ),
        *((change, SubquantError, message) for change, message in CONTRADICTIONS),
    ],
)
def test_unread_or_contradictory_pieces_are_refused(
    change: Callable[[Graph], None], kind: type[SubquantError], message: str
) -> None:
    computed(activation())
    with pytest.raises(kind, match=re.escape(message)):
        computed(activation(change))


def scaled(scales: Any, zero_points: Any = 3, dtype: str = "int8", shape: Any = (2, 3)) -> Any:
    """A quantized tensor."""
    return shape, dtype, Quantized(scales, zero_points)


def biased(bias: Quantized) -> bytes:
    matrix = ((3, 4), "int8", Quantized(0.1), np.ones((3, 4), np.int8))
    return one_operator(
        "FULLY_CONNECTED",
        [scaled(0.5, shape=(2, 4)), matrix, ((3,), "int32", bias, np.ones(3, np.int32))],
        [scaled(0.5)], "FullyConnectedOptions",
    )  # fmt: skip


def activated(*tensor: Any) -> bytes:
    return one_operator("ADD", [tensor, tensor], [tensor], "AddOptions", fusedActivationFunction=4)


REFUSED: dict[str, tuple[Callable[[], bytes], type[SubquantError], str]] = {
    "an option that the importer does not read": (
        lambda: one_operator("FAKE_QUANT", [f32(2, 3)], [f32(2, 3)], "FakeQuantOptions", min=-1.0,
                             max=1.0, numBits=8, narrowRange=True),
        UnsupportedError, "has the option 'narrow_range' = True, which",
    ),
    "a range without 0, by the names of its options": (
        lambda: one_operator("FAKE_QUANT", [f32(2, 3)], [f32(2, 3)], "FakeQuantOptions", min=0.5,
                             max=1.0, numBits=8),
        InputError, r"has num_bits = 8, min = 0\.5 and max = 1\.0, expected",
    ),
    # LiteRT's fixed-point multipliers are below 1 in comparisons.
    "comparisons by scales of one and more": (
        lambda: one_operator("LESS", [scaled(0.5, 0), scaled(1.25, 0)], [((2, 3), "bool")],
                             "LessOptions"),
        UnsupportedError, r"has operands of the scales 0\.5 and 1\.25, which",
    ),
    "a concatenation of several scales": (
        lambda: one_operator("CONCATENATION", [scaled(0.5, 3, "uint8")] * 2,
                             [scaled([0.5, 0.25], [3, 3], "uint8", (2, 6))],
                             "ConcatenationOptions", axis=1),
        SubquantError, "needs one scale of tensor",
    ),
    "an activation of a quantized concatenation": (
        lambda: one_operator("CONCATENATION", [scaled(0.5)] * 2, [scaled(0.5, shape=(2, 6))],
                             "ConcatenationOptions", axis=1, fusedActivationFunction=1),
        UnsupportedError, "the option 'fused_activation_function' = 1, which",
    ),
    **{f"an activation that LiteRT ignores, {dtype}": (
        lambda dtype=dtype, parameters=parameters: activated((2, 3), dtype, parameters),
        UnsupportedError, "the option fused_activation_function = TANH",
    ) for dtype, parameters in (("float32", None), ("int8", Quantized(0.5, 3)), ("int32", None))},
    "a zero point of filters that LiteRT does not subtract": (
        lambda: one_operator(
            "DEPTHWISE_CONV_2D",
            [scaled(0.5, shape=(1, 4, 4, 2)),
             ((1, 2, 2, 2), "int8", Quantized(0.1, 2), np.ones((1, 2, 2, 2), np.int8)), -1],
            [scaled(0.5, shape=(1, 3, 3, 2))], "DepthwiseConv2DOptions", strideW=1, strideH=1,
            padding=1),
        UnsupportedError, "needs a zero point of 0 of tensor 't1', got 2",
    ),
    "an input that is a variable": (
        lambda: activation(assigned("_tensors.0.isVariable", True)),
        UnsupportedError, "an input of graph 0, is a variable",
    ),
    "a result of another type": (
        lambda: one_operator("RESHAPE", [scaled(0.5)], [scaled(0.5, 0, "int16", (3, 2))],
                             "ReshapeOptions", newShape=[3, 2]),
        InputError, "computes int8, and tensor 't1' is of type INT16",
    ),
    "a bias with other scales of channels": (
        lambda: biased(Quantized([0.05, 0.08, 0.05], axis=0)), InputError,
        "needs a scale of tensor 't2' that is that of",
    ),
    "a bias with another scale": (
        lambda: biased(Quantized(0.5)), InputError,
        "needs a scale of tensor 't2' that is that of the products",
    ),
    "a bias with a zero point": (
        lambda: biased(Quantized(0.05, 3)), InputError, "needs zero points of 0 of tensor 't2'",
    ),
    "a bias of floats": (
        lambda: one_operator(
            "FULLY_CONNECTED",
            [scaled(0.5, shape=(2, 4)), ((3, 4), "int8", Quantized(0.1), np.ones((3, 4), np.int8)),
             np.ones(3, np.float32)], [scaled(0.5)], "FullyConnectedOptions"),
        InputError, "of type FLOAT32, expected INT32",
    ),
    "a product of floats and integers": (
        lambda: one_operator("MUL", [f32(2, 3), scaled(0.5)], [f32(2, 3)], "MulOptions"),
        InputError, "tensor 't0' of FLOAT32 and tensor 't1' of INT8 with a scale, expected one",
    ),
    "operands with a scale and without": (
        lambda: one_operator("DIV", [((2, 3), "int8"), scaled(0.5)], [scaled(0.5)], "DivOptions"),
        InputError, "tensor 't0' of INT8 and tensor 't1' of INT8 with a scale, expected one",
    ),
    "a mean with a scale of integers without": (
        lambda: one_operator("MEAN", [((2, 3), "int8"), np.array([1], np.int32)],
                             [scaled(0.5, shape=(2,))], "ReducerOptions"),
        InputError, "tensor 't0' of INT8 and tensor 't2' of INT8 with a scale, expected one",
    ),
    "zero points of scales that are powers of two": (
        lambda: one_operator("ADD", [scaled(0.5, 3, "int16"), scaled(0.25, 0, "int16")],
                             [scaled(0.5, 0, "int16")], "AddOptions", potScaleInt16=True),
        UnsupportedError, "needs a zero point of 0 of tensor 't0', got 3",
    ),
    "elements of several types": (
        lambda: one_operator("PADV2", [scaled(0.5), np.zeros((2, 2), np.int32),
                                       np.zeros((), np.float32)], [scaled(0.5)], "PadV2Options"),
        UnsupportedError, "moves elements of FLOAT32 and INT8, expected one type",
    ),
    "paddings that are floats": (
        lambda: one_operator("PAD", [scaled(0.5), np.full((2, 2), 0.5, np.float32)],
                             [scaled(0.5, shape=(2, 3))], "PadOptions"),
        UnsupportedError, "does not support operands of type FLOAT32",
    ),
    "crops below 0": (
        lambda: one_operator("BATCH_TO_SPACE_ND", [f32(4, 1, 3, 1), [2, 2], [[-1, 0], [0, 0]]],
                             [f32(1, 2, 6, 1)], "BatchToSpaceNDOptions"),
        InputError, "has the crops",
    ),
    "another scale of a softmax": (
        lambda: one_operator("SOFTMAX", [scaled(0.1, 0, "int16")], [scaled(0.01, 0, "int16")],
                             "SoftmaxOptions", beta=1.0),
        InputError, "needs a result with the scale 1/32768 and the zero point 0, got 0.00",
    ),
    "a zero point of an exponential": (
        lambda: one_operator("EXP", [scaled(0.1, 0, "int16")], [scaled(0.01, 3, "int16")],
                             "ExpOptions"),
        InputError, "needs a zero point of 0 of tensor 't1', got 3",
    ),
    "a negative index": (
        lambda: one_operator("GATHER", [f32(2, 3), [0, -1]], [f32(2, 2)], "GatherOptions", axis=1),
        InputError, r"has the index -1 in tensor 't1', out of range for \[3\]",
    ),
    "an index beyond a row": (
        lambda: one_operator("GATHER_ND", [f32(2, 3), [[0, 4]]], [f32(1)], "GatherNdOptions"),
        InputError, r"has the index 4 in tensor 't1', out of range for \[2, 3\]",
    ),
    "a count of packed tensors": (
        lambda: one_operator("PACK", [f32(2, 3)] * 2, [f32(2, 2, 3)], "PackOptions", axis=0,
                             valuesCount=3),
        InputError, "has the option values_count = 3, and 2",
    ),
    "a count of pieces": (
        lambda: one_operator("SPLIT", [np.array(0, np.int32), f32(2, 3)], [f32(1, 3)] * 2,
                             "SplitOptions", numSplits=3),
        InputError, "has the option num_splits = 3, and 2",
    ),
    "a count of unpacked tensors": (
        lambda: one_operator("UNPACK", [f32(2, 3)], [f32(3)] * 2, "UnpackOptions", axis=0, num=3),
        InputError, "has the option num = 3, and 2",
    ),
    "a newer version of an operator": (
        lambda: activation(assigned("_codes.0.version", 4)),
        UnsupportedError, r"operator 0 \(RELU\) has the version 4, expected at most 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_pieces_of_an_operator_that_cannot_be_honored_are_refused(name: str) -> None:
    build, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        computed(build())


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_integers_without_a_scale_have_activations(name: str) -> None:
    from litert import compare

    tensor = ((2, 3), "int32")
    data = one_operator(name, [tensor, tensor], [tensor], f"{name.capitalize()}Options",
                        fusedActivationFunction=3)  # fmt: skip
    values = [np.array([[-5, 2, 40], [0, 6, -1]], np.int32), np.full((2, 3), 2, np.int32)]
    assert compare(data, None, [values]) > 0


@pytest.mark.parametrize("index", range(1, 9))
def test_zero_points_of_recurrent_weights_are_refused(index: int) -> None:
    """The integer LSTM has none; LiteRT does not look at them."""
    graph = Graph()
    ends = RECURRENT["UNIDIRECTIONAL_SEQUENCE_LSTM-plain-int8"](graph, np.random.default_rng(0))
    computed(graph.model(*ends))
    graph._tensors[graph._operators[0].inputs[index]].quantization.zeroPoint = [3]
    with pytest.raises(UnsupportedError, match="needs a zero point of 0 of tensor"):
        computed(graph.model(*ends))


def test_an_input_that_is_listed_twice_is_refused() -> None:
    graph = Graph()
    [operand], results = graph.apply("RELU", [INT8], [INT8])
    with pytest.raises(UnsupportedError, match="graph 0 has an input twice"):
        read_tflite(graph.model([operand, operand], results))


def test_ranges_and_ranks_of_tensors_are_irrelevant() -> None:
    def change(graph: Graph) -> None:
        graph._tensors[0].quantization.min = [-1.0]
        graph._tensors[0].quantization.max = [1.0]
        graph._operators[0].mutatingVariableInputs = [True]

    computed(activation(change))


def test_an_unknown_option_of_a_custom_operator_is_refused() -> None:
    def rotation(**more: object) -> bytes:
        options = flexbuffer({"hadamard_size": 8, **more})
        return one_operator("aeq.hadamard_rotation", [f32(2, 8)], [f32(2, 8)], custom=options)

    computed(rotation())
    for value in (3, "text", [1, 2]):
        with pytest.raises(UnsupportedError, match="has the option 'other'"):
            computed(rotation(other=value))
