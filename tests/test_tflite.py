"""Each operator of TensorFlow Lite beside LiteRT's reference kernel, with random parameters.

NumPy computes each case with several seeds. On devices, a module has many cases: IREE's compiler
takes longer to start than to compile one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from command_line import call, fail, succeed
from devices import ON_DEVICES, compile_for
from litert import WITHOUT_REFERENCE, LiteRt, Ours, compare, drawn
from programs import LONG, share_of
from subquant.comparison.compared_models import compare_layers, read_compared_model
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.reading import parse_file
from subquant.dialects import create_context
from subquant.errors import ExecutionError, InputError, SubquantError, UnsupportedError, UsageError
from subquant.importers.flatbuffer import UNKNOWN
from subquant.importers.options import ImportOptions
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.operators.dynamic_range import _round_half_away
from subquant.importers.tflite.reading.flexbuffer import read_map
from subquant.importers.tflite.reading.model import read_tflite
from subquant.numerics.element_types import ElementType
from subquant.runtime import Device, Executable
from tflite_builder import Graph, Quantized, one_operator
from tflite_cases import CASES as BASIC
from tflite_cases import convolution, one_case
from tflite_contraction_cases import CASES as CONTRACTIONS
from tflite_contraction_cases import HYBRID as HYBRID_CONTRACTIONS
from tflite_control_cases import CASES as CONTROL
from tflite_custom_cases import CASES as CUSTOM
from tflite_custom_cases import flexbuffer
from tflite_elementwise_cases import CASES as FUNCTIONS
from tflite_indexing_cases import CASES as INDEXING
from tflite_random_graphs import random_graph
from tflite_recurrent_cases import CASES as RECURRENT
from tflite_recurrent_cases import HYBRID as HYBRID_RECURRENT
from tflite_scatter_cases import CASES as POSITIONS
from tflite_type_cases import CASES as TYPES

CASES = (BASIC | CONTRACTIONS | CONTROL | CUSTOM | FUNCTIONS | INDEXING | POSITIONS | RECURRENT
         | TYPES)  # fmt: skip
COMPARED = [case for case in CASES if case not in ("SUM-int8", "SUM-int16")]

HYBRID = {**HYBRID_CONTRACTIONS, **HYBRID_RECURRENT}
SUMS_OF_FLOATS = {"TRANSPOSE_CONV-float32-int8": 2.0**-20, **dict.fromkeys(HYBRID_RECURRENT, 1e-5)}
"""Operators with 8-bit activations that compute more with floats than a last product and the bias:
LiteRT adds up the scaled products of each position of TRANSPOSE_CONV."""

SEEDS = 4
TOGETHER = 12
"""Cases of a module."""


def model(cases: Sequence[str], seed: int) -> bytes:
    """A model of cases, side by side."""
    graph, ends = Graph(), ([], [])
    for case in cases:
        graph.prefix = f"{case}."
        added = (CASES | HYBRID)[case](graph, np.random.default_rng(seed))
        for end, more in zip(ends, added, strict=True):
            end += more
    return graph.model(*ends)


def groups(cases: Sequence[str]) -> list[list[str]]:
    """Split cases in groups; those without a reference kernel are apart, with other kernels."""
    alone = [case for case in cases if case.split("-")[0] in WITHOUT_REFERENCE]
    lists = [alone, [case for case in cases if case not in alone]]
    return [cases_[n : n + TOGETHER] for cases_ in lists for n in range(0, len(cases_), TOGETHER)]


def named(cases: Sequence[str]) -> str:
    return f"{cases[0]}..{cases[-1]}"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("case", COMPARED)
def test_numpy_computes_what_litert_does(case: str, seed: int) -> None:
    assert compare(model([case], seed), None, 3, seed=seed) > 0


@pytest.mark.parametrize("cases", groups(COMPARED), ids=named)
@pytest.mark.share(32)
def test_the_cpu_computes_what_litert_does(cases: list[str], cpu: Device) -> None:
    assert compare(model(cases, 0), cpu, 3) > 0


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "cases", groups([case for case in COMPARED if case.endswith("int8")]), ids=named
)
@pytest.mark.share(12)
def test_vulkan_computes_what_litert_does(cases: list[str], vulkan: Device) -> None:
    assert compare(model(cases, 0), vulkan, 2) > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case", HYBRID)
def test_activations_of_8_bits_are_rounded_as_litert_does(case: str, seed: int) -> None:
    """To the bit, floats too."""
    data = one_case(HYBRID[case], np.random.default_rng(seed))
    tolerance = SUMS_OF_FLOATS.get(case, 0.0)
    assert compare(data, None, 3, seed=seed, activations="int8", tolerance=tolerance) > 0


ON_EACH_DEVICE = [
    case
    for case in sorted(HYBRID, key=lambda case: SUMS_OF_FLOATS.get(case, 0.0))
    if LONG
    or case.startswith(("CONV_2D", "LSTM-projected", "BIDIRECTIONAL_SEQUENCE_RNN-crossed", "SVDF"))
]


@pytest.mark.long
@ON_DEVICES
@pytest.mark.parametrize("cases", groups(ON_EACH_DEVICE), ids=named)
def test_activations_of_8_bits_on_devices(
    cases: list[str], device_name: str, device: Device
) -> None:
    for is_exact in (True, False):
        part = [case for case in cases if is_exact == (case not in SUMS_OF_FLOATS)]
        if part:
            tolerance = max(SUMS_OF_FLOATS.get(case, 0.0) for case in part)
            assert compare(model(part, 0), device, 3, activations="int8", tolerance=tolerance) > 0


def test_halves_are_rounded_away_from_zero() -> None:
    """At each half below 2**12, at the floats beside it, and at the greatest that there may be."""
    halves = np.concatenate([np.arange(2**12), 2.0 ** np.arange(13, 22)]) + 0.5
    middle = halves.astype(np.float32)
    below, above = (np.nextafter(middle, np.float32(end)) for end in (0, np.inf))
    for sign in (1, -1):
        up = sign * np.ceil(halves).astype(np.int32)
        np.testing.assert_array_equal(_round_half_away(sign * middle), up)
        np.testing.assert_array_equal(_round_half_away(sign * above), up)
        np.testing.assert_array_equal(_round_half_away(sign * below), up - sign)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_casts_saturate(dtype: str, cpu: Device) -> None:
    data = model([f"CAST-float32-{dtype}"], 0)
    values = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 2.0**63, 254.9, -0.9]
    values += [127.9, 128.9, -128.9, 32767.9, 2.0**31 - 128, 0.0]
    rows = np.resize(np.array(values, np.float32), (2, 3, 5, 4))
    assert compare(data, None, [[rows]]) > 0
    assert compare(data, cpu, [[rows]]) > 0


def test_random_graphs() -> None:
    """Every tensor of graphs with 3 to 12 operators."""
    assert sum(compare(random_graph(seed), None, 1, seed=seed) for seed in range(200)) > 100_000


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.share(6)
def test_random_graphs_on_the_cpu(seed: int, cpu: Device) -> None:
    assert compare(random_graph(seed), cpu, 3, seed=seed) > 0


def test_sums_of_signed_integers(cpu: Device) -> None:
    """LiteRT's reference kernel reads them as unsigned ones."""
    for dtype in ("int8", "int16"):
        data = model([f"SUM-{dtype}"], 0)
        graph = read_tflite(data).subgraphs[0]
        (operand,), (result,) = graph.inputs, graph.outputs
        x, y = operand.quantization, result.quantization
        assert x is not None
        assert y is not None
        values = drawn(operand, np.random.default_rng(0))
        reals = (values.astype(np.float64) - x.zero_point) * np.float64(x.scale)
        axes = tuple(int(axis) for axis in graph.operators[0].inputs[1].data)  # type: ignore[union-attr]
        total = reals.sum(axis=axes).reshape(result.shape) / y.scale + y.zero_point
        info = np.iinfo(dtype)
        (computed,) = Ours(data, cpu)([values]).values()
        np.testing.assert_allclose(computed, np.clip(total, info.min, info.max), atol=0.501, rtol=0)


def test_a_bias_with_the_dimension_of_its_weight() -> None:
    """A bias has one dimension only, but converters have written the axis of the weight."""

    def convolution_model(dimension: int) -> bytes:
        random, scales = np.random.default_rng(0), np.array([0.01, 0.02, 0.03], np.float32)
        w = random.integers(-127, 128, (3, 4)).astype(np.int8)
        b = random.integers(-500, 500, 3).astype(np.int32)
        inputs = [
            ((1, 4), "int8", Quantized(0.5, 3)),
            ((3, 4), "int8", Quantized(scales, axis=0), w),
            ((3,), "int32", Quantized(scales * np.float32(0.5), axis=dimension), b),
        ]
        result = ((1, 3), "int8", Quantized(0.4, -7))
        return one_operator("FULLY_CONNECTED", inputs, [result], "FullyConnectedOptions")

    x = np.array([[5, -100, 127, 33]], np.int8)
    results = [np.asarray(list(Ours(convolution_model(n), None)([x]).values())[-1]) for n in (0, 3)]
    assert (results[0] == results[1]).all()
    assert len(np.unique(results[0])) == 3
    assert compare(convolution_model(0), None, [[x]]) > 0


REFUSED = "is not lowered: the shape of its result depends on values, and shapes are static here"


def one(name: str, more: np.ndarray | None = None) -> bytes:  # type: ignore[type-arg]
    tensor = ((2, 3), "int8", Quantized(0.5, 3))
    return one_operator(name, [tensor] if more is None else [tensor, more], [tensor])


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (one("UNIQUE"), UnsupportedError,
         "operator 0 (UNIQUE) is not lowered: the shape of its result depends on values"),
        (one("HASHTABLE_FIND"), UnsupportedError,
         "operator 0 (HASHTABLE_FIND) is not lowered: it keeps a table"),
        (one("ADD"), InputError, "operator 0 (ADD) has no input 1"),
        (one("SOFTMAX"), InputError, "operator 0 (SOFTMAX) has no option 'beta'"),
        (one("TRANSPOSE", np.array([0, 2], np.int32)), InputError,
         "operator 0 (TRANSPOSE) does not fit its operands: "),
        (one("RELU")[:200], InputError, ""),
    ],
)  # fmt: skip
def test_refusals_name_the_operator(
    data: bytes, kind: type[SubquantError], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    with pytest.raises(kind) as caught:
        parse_file(path, create_context())
    assert str(caught.value).startswith(f"{path}: error: {message}")


def test_damage_is_an_error_or_another_model() -> None:
    """Mutated bytes: our errors only."""
    rng = np.random.default_rng(0)
    whole = one_case(convolution, rng)
    read = refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(8, len(data)))] = int(rng.integers(0, 256))
        try:
            read_tflite(bytes(data))
            read += 1
        except SubquantError:
            refused += 1
    assert read > 50
    assert refused > 100


@pytest.mark.parametrize("wide", [False, True])
def test_options_of_custom_operators(wide: bool) -> None:
    """Values of a flexbuffer, which are wider where one is; mutated bytes give our errors only."""
    values: dict[str, object] = {"a": 3, "b": -7, "c": 0.5, "d": True, "text": "x", "list": [1, 2]}
    if wide:
        values |= {"e": 1 << 40, "f": 1e-3}
    data = flexbuffer(values)
    result = read_map(data)
    assert result == {
        name: UNKNOWN if isinstance(each, (str, list)) else each for name, each in values.items()
    }
    rng, refused = np.random.default_rng(0), 0
    for _ in range(2000):
        damaged = bytearray(data[: int(rng.integers(0, len(data) + 1))])
        for position in rng.integers(0, max(len(damaged), 1), 2) if damaged else ():
            damaged[position] = int(rng.integers(0, 256))
        try:
            read_map(bytes(damaged))
        except InputError:
            refused += 1
    assert refused > 200


def test_exact_semantics_round_the_real_result_once(cpu: Device) -> None:
    """The expected result is an int64 accumulator times an f64, rounded half to even."""
    rng = np.random.default_rng(3)
    data = rng.integers(-127, 128, (24, 40)).astype(np.int8)
    scales = np.exp(rng.uniform(-6, -4, 24)).astype(np.float32)
    bias = rng.integers(-2000, 2000, 24).astype(np.int32)
    units = (np.float32(0.02) * scales).tolist()
    inputs = [
        ((16, 40), "int8", Quantized(0.02, 5)),
        ((24, 40), "int8", Quantized(scales.tolist(), 0, 0), data),
        ((24,), "int32", Quantized(units, 0, 0), bias),
    ]
    result = ((16, 24), "int8", Quantized(0.13, -9))
    model = one_operator("FULLY_CONNECTED", inputs, [result], "FullyConnectedOptions",
                         fusedActivationFunction=1)  # fmt: skip
    rows = rng.integers(-128, 128, (16, 40)).astype(np.int8)
    total = (rows.astype(np.int64) - 5) @ data.astype(np.int64).T
    products = np.float64(np.float32(0.02)) * scales.astype(np.float64)
    reals = total * products + bias * np.asarray(units, np.float32).astype(np.float64)
    stored = np.rint(reals / np.float64(np.float32(0.13)) - 9)
    expected = np.clip(stored, -9, 127).astype(np.int8)
    options = CompileOptions(semantics="exact", integer_only=True)
    values = Executable(compile_to_bytes(model, options), cpu).main(rows)
    np.testing.assert_array_equal(values, expected)
    assert len(np.unique(values)) > 50


def test_exact_semantics_take_every_operator_and_type() -> None:
    """NumPy's floats, and a module; no quantized type has 64 bits."""
    options = ImportOptions(semantics="exact")
    for case in share_of(CASES, 8):
        if case.startswith("CAST-") and case.endswith("int64") and "float" not in case:
            continue
        rng = np.random.default_rng(0)
        read = read_tflite(one_case(CASES[case], rng))
        inputs = [drawn(tensor, rng) for tensor in read.subgraphs[0].inputs]
        with np.errstate(all="ignore"):
            result = Interpreter(read, options).run(0, inputs)
        for tensor, value in zip(read.subgraphs[0].outputs, result, strict=True):
            assert value.size == np.prod(tensor.shape), case
            assert value.dtype == ElementType.parse(tensor.element).dtype, case
        assert write_module(read, create_context(), options).operation.verify(), case


@pytest.mark.parametrize("case", ["CONV_2D-int8", "CONV_2D-int16", "TRANSPOSE_CONV-int8",
                                  "ADD-uint8", "TANH-int8", "MEAN-int8", "QUANTIZE-int8-uint8",
                                  "MAX_POOL_2D-int8"])  # fmt: skip
def test_exact_semantics_are_within_two_steps_of_litert(case: str, cpu: Device) -> None:
    rng = np.random.default_rng(1)
    data = one_case(CASES[case], rng)
    read = read_tflite(data)
    inputs = [drawn(tensor, rng) for tensor in read.subgraphs[0].inputs]
    (theirs,) = LiteRt(data)(inputs)
    options = CompileOptions(semantics="exact")
    result = Executable(compile_to_bytes(data, options), cpu).main(*inputs)
    assert np.abs(result.astype(int) - theirs.astype(int)).max() <= 2
    by_numpy = Interpreter(read, options.import_options).run(0, inputs)[0]
    assert np.abs(result.astype(int) - by_numpy.astype(int)).max() <= 1
    assert (result == by_numpy).mean() > 0.99


def test_reals_of_recurrent_operators_keep_their_states() -> None:
    data = one_case(CASES["UNIDIRECTIONAL_SEQUENCE_LSTM-plain-int8"], np.random.default_rng(0))
    (layer,) = compare_layers(read_compared_model(data, "model.tflite"), 3, "float")
    assert layer.sqnr > 30


def subtraction() -> bytes:
    graph = Graph()
    a, b, c = (graph.tensor((1, 3), "int8", Quantized(0.5, 0), name=name) for name in "abc")
    return graph.model(*graph.apply("SUB", [a, b], [c], "SubOptions"))


@pytest.mark.parametrize("batch", ["5", "dynamic"])
@pytest.mark.parametrize("case", ["CONV_2D-int8", "AVERAGE_POOL_2D-uint8", "FULLY_CONNECTED-int8",
                                  "SUB-int16"])  # fmt: skip
@pytest.mark.share(8)
def test_a_batch_is_its_elements(case: str, batch: str, cpu: Device) -> None:
    rng = np.random.default_rng(10)
    data = one_case(CASES[case], rng)
    read = read_tflite(data)
    one = compile_for(data, cpu, batch="1").main
    many = compile_for(data, cpu, batch=batch).main
    expected_extent = 5 if batch == "5" else None
    assert {each.shape[0] for each in many.signature.inputs if each.shape} == {expected_extent}
    shapes = [(5, *tensor.shape[1:]) for tensor in read.subgraphs[0].inputs]
    rows = [drawn(replace(tensor, shape=shape), rng)
            for tensor, shape in zip(read.subgraphs[0].inputs, shapes, strict=True)]  # fmt: skip
    expected = np.concatenate([one(*(x[n : n + 1] for x in rows)) for n in range(5)])
    np.testing.assert_array_equal(many(*rows), expected)
    assert len(np.unique(expected)) > 2


def test_batches_of_different_sizes_are_refused(cpu: Device) -> None:
    function = Executable(
        compile_to_bytes(subtraction(), CompileOptions(batch="dynamic")), cpu
    ).main
    rows = np.zeros((4, 3), np.int8)
    np.testing.assert_array_equal(function(rows, rows + 1), rows - 1)
    with pytest.raises(ExecutionError, match="the inputs have batches of different sizes"):
        function(rows, rows[:3])


@pytest.mark.parametrize("batch", ["0", "-1", "x", "1e3", "9999999999"])
def test_a_batch_is_a_number_or_dynamic(batch: str) -> None:
    with pytest.raises(UsageError, match="expected a batch of 1 to 1,048,576, or 'dynamic', got"):
        CompileOptions(batch=batch)


def test_arguments_are_given_by_name(in_temporary_folder: Path, cpu: Device) -> None:
    Path("model.tflite").write_bytes(subtraction())
    np.save("b.npy", np.array([[1, 2, 3]], np.int8))

    def run(*inputs: str) -> Result:
        arguments = [argument for text in inputs for argument in ("--input", text)]
        return call("exec", "model.tflite", *arguments)

    for inputs in (("b=@b.npy", "a=1x3xi8=10,20,30"), ("1x3xi8=10,20,30", "@b.npy"),
                   ("b=@b.npy", "1x3xi8=10,20,30")):  # fmt: skip
        assert run(*inputs).stdout == "result[0]: 1x3xi8=[9 18 27]\n"
    assert "error: no argument is named 'd'; expected one of: a, b" in run("d=@b.npy").output
    assert "error: argument 'b' is passed twice" in run("b=@b.npy", "b=@b.npy").output
    assert "error: argument 'a' is missing" in run("b=@b.npy").output


def test_inspect_lists_operators_and_what_would_be_refused(
    in_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    graph = Graph()
    tensor = ((2, 3), "int8", Quantized(0.5, 3))
    operands, middle = graph.apply("UNIQUE", [tensor], [tensor])
    matrix = ((4, 3), "int8", Quantized([1.0, 2, 3, 4], 0, 0), np.ones((4, 3), np.int8))
    _, results = graph.apply("FULLY_CONNECTED", [*middle, matrix, -1],
                             [((2, 4), "int8", Quantized(0.25, -1))],
                             "FullyConnectedOptions")  # fmt: skip
    Path("model.tflite").write_bytes(graph.model(operands, results))
    shown = succeed("inspect", "model.tflite")
    assert "1 FULLY_CONNECTED" in shown.output
    assert "4x3 int8 4 scales, axis 0" in shown.output
    assert "0.25:-1" in shown.output
    assert "would be refused: operator 0 (UNIQUE) is not lowered: " in shown.output
    model = json.loads(succeed("inspect", "model.tflite", "--json").stdout)
    first, second = model["graphs"][0]["operators"]
    assert (first["refused"], second["refused"]) == (REFUSED, None)
    assert second["results"][0]["quantization"]["scale_range"] == [0.25, 0.25]
    assert model["constant_bytes"] == 12
    expected = f"model.tflite: error: operator 0 (UNIQUE) {REFUSED}\n"
    assert fail(1, "compile", "model.tflite") == expected
