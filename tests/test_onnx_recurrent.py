"""LSTM, GRU and RNN beside ONNX Runtime, and beside the specification in float64."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from devices import ON_DEVICES
from onnx_models import MICROSOFT, computed, model, node_tests, text_of
from onnx_runtime import DeviceShare, run_onnx_runtime
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import SubquantError
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]

STEPS, BATCH, DEPTH, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": ("initial_h", "initial_c"), "GRU": ("initial_h",), "RNN": ("initial_h",)}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
LENGTHS = np.array([3, 5, 1], np.int32)


def activation(name: str, alpha: float | None, beta: float | None, x: Array) -> Array:
    """The table of activation functions of LSTM 22."""
    a, b = (0.0 if value is None else value for value in (alpha, beta))
    return {
        "relu": lambda: np.maximum(x, 0),
        "tanh": lambda: np.tanh(x),
        "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "affine": lambda: a * x + b,
        "leakyrelu": lambda: np.where(x >= 0, x, a * x),
        "thresholdedrelu": lambda: np.where(x > a, x, 0),
        "scaledtanh": lambda: a * np.tanh(b * x),
        "hardsigmoid": lambda: np.minimum(np.maximum(a * x + b, 0), 1),
        "elu": lambda: np.where(x >= 0, x, a * (np.exp(x) - 1)),
        "softsign": lambda: x / (1 + np.abs(x)),
        "softplus": lambda: np.log(1 + np.exp(x)),
    }[name.lower()]()


USES = {"affine": "ab", "leakyrelu": "a", "thresholdedrelu": "a", "scaledtanh": "ab",
        "hardsigmoid": "ab", "elu": "a"}  # fmt: skip
DEFAULTS = {"a": {"hardsigmoid": 0.2, "leakyrelu": 0.01, "elu": 1.0}, "b": {"hardsigmoid": 0.5}}


def functions_of(operator: str, attributes: Mapping[str, Any], directions: int) -> list[Any]:
    defaults = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
    names = attributes.get("activations", defaults[operator] * directions)
    values = {letter: list(attributes.get(f"activation_{word}", ()))
              for letter, word in (("a", "alpha"), ("b", "beta"))}  # fmt: skip
    results = []
    for name in names:
        chosen = {}
        for letter in USES.get(name.lower(), ""):
            queue = values[letter]
            chosen[letter] = queue.pop(0) if queue else DEFAULTS[letter][name.lower()]
        results.append(functools.partial(activation, name, chosen.get("a"), chosen.get("b")))
    return results


def specified(
    operator: str, attributes: Mapping[str, Any], operands: Mapping[str, Array]
) -> list[Array]:
    """Y and the final states, one sequence and one step at a time."""
    v = {name: value.astype(np.float64) for name, value in operands.items()}
    by_batch = attributes.get("layout", 0)
    x = v["X"].transpose(1, 0, 2) if by_batch else v["X"]
    steps, batch, _ = x.shape
    directions, _, hidden = v["R"].shape
    gates = GATES[operator]
    clip = attributes.get("clip", np.inf)
    functions = functions_of(operator, attributes, directions)
    each = len(functions) // directions
    states = np.zeros((len(STATES[operator]), directions, batch, hidden))
    for n, name in enumerate(STATES[operator]):
        if name in v:
            states[n] = v[name].transpose(1, 0, 2) if by_batch else v[name]
    y = np.zeros((steps, directions, batch, hidden))
    for d in range(directions):
        f, g, h = (functions[d * each : (d + 1) * each] * 3)[:3]
        is_reverse = attributes.get("direction") == "reverse" or d == 1
        bias = v.get("B", np.zeros((directions, 2 * gates * hidden)))[d].reshape(2, gates, hidden)
        peephole = v.get("P", np.zeros((directions, 3 * hidden)))[d].reshape(3, hidden)
        for n in range(batch):
            length = int(operands["sequence_lens"][n]) if "sequence_lens" in operands else steps
            for t in reversed(range(length)) if is_reverse else range(length):
                state = states[0, d, n]
                of_x = (v["W"][d] @ x[t, n]).reshape(gates, hidden) + bias[0]
                of_h = (v["R"][d] @ state).reshape(gates, hidden) + bias[1]
                total = of_x + of_h

                def clipped(values: Array) -> Array:
                    return np.clip(values, -clip, clip)

                if operator == "RNN":
                    after = f(clipped(total[0]))
                elif operator == "GRU":
                    z, r = f(clipped(total[0])), f(clipped(total[1]))
                    if attributes.get("linear_before_reset", 0):
                        inner = of_x[2] + r * of_h[2]
                    else:
                        last = v["R"][d].reshape(gates, hidden, hidden)[2]
                        inner = of_x[2] + last @ (r * state) + bias[1, 2]
                    after = (1 - z) * g(clipped(inner)) + z * state
                else:
                    cell = states[1, d, n]
                    i = f(clipped(total[0] + peephole[0] * cell))
                    forget = f(clipped(total[2] + peephole[2] * cell))
                    forget = 1 - i if attributes.get("input_forget", 0) else forget
                    cell = forget * cell + i * g(clipped(total[3]))
                    after = f(clipped(total[1] + peephole[1] * cell)) * h(cell)
                    states[1, d, n] = cell
                y[t, d, n] = states[0, d, n] = after
            if not length:
                states[:, d, n] = 0
    if by_batch:
        return [y.transpose(2, 0, 1, 3), *states.transpose(0, 2, 1, 3)]
    return [y, *states]


SOME = {"HardSigmoid": (0.3, 0.6), "Affine": (0.7, 0.1), "LeakyRelu": (0.1, None),
        "ThresholdedRelu": (0.2, None), "ScaledTanh": (0.9, 1.2), "Elu": (0.8, None)}  # fmt: skip


def chosen(*names: str) -> dict[str, Any]:
    """The attributes of activation functions with a value for each that reads one."""
    values = [SOME.get(name, (None, None)) for name in names]
    results: dict[str, Any] = {"activations": list(names)}
    for n, word in enumerate(("alpha", "beta")):
        read = [float(np.float32(value[n])) for value in values if value[n] is not None]
        if read:
            results[f"activation_{word}"] = read
    return results


BOTH = {"direction": "bidirectional"}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "LSTM": ("LSTM", {}, ""),
    "LSTM-plain": ("LSTM", {}, "no B, no states"),
    "LSTM-reverse": ("LSTM", {"direction": "reverse"}, ""),
    "LSTM-bidirectional": ("LSTM", BOTH, ""),
    "LSTM-lengths": ("LSTM", {}, "lengths"),
    "LSTM-reverse-lengths": ("LSTM", {"direction": "reverse"}, "lengths"),
    "LSTM-bidirectional-lengths": ("LSTM", BOTH, "lengths"),
    "LSTM-empty-sequence": ("LSTM", BOTH, "an empty sequence"),
    "LSTM-peepholes": ("LSTM", BOTH, "P"),
    "LSTM-clip": ("LSTM", {"clip": 0.25}, "P"),
    "LSTM-input-forget": ("LSTM", {"input_forget": 1}, "P"),
    "LSTM-hard": ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Tanh"]}, ""),
    "LSTM-six": ("LSTM", BOTH | chosen("HardSigmoid", "Softplus", "Elu", "sigmoid", "ScaledTanh",
                                       "LeakyRelu"), "lengths"),
    "LSTM-batch-first": ("LSTM", BOTH | {"layout": 1}, "lengths"),
    "LSTM-f64": ("LSTM", {}, "f64"),
    "LSTM-f16": ("LSTM", BOTH, "f16"),
    "GRU": ("GRU", {}, ""),
    "GRU-plain": ("GRU", {"direction": "reverse"}, "no B, no states"),
    "GRU-linear": ("GRU", {"linear_before_reset": 1}, ""),
    "GRU-bidirectional": ("GRU", BOTH, "lengths"),
    "GRU-bidirectional-linear": ("GRU", BOTH | {"linear_before_reset": 1}, "lengths"),
    "GRU-empty-sequence": ("GRU", {}, "an empty sequence"),
    "GRU-clip": ("GRU", {"clip": 0.3, "direction": "reverse"}, "lengths"),
    "GRU-hard": ("GRU", chosen("HardSigmoid", "Tanh"), ""),
    "GRU-hard-linear": ("GRU", chosen("HardSigmoid", "Affine") | {"linear_before_reset": 1}, ""),
    "GRU-batch-first": ("GRU", {"layout": 1, "direction": "reverse"}, "lengths"),
    "GRU-f64": ("GRU", BOTH, "f64"),
    "RNN": ("RNN", {}, ""),
    "RNN-plain": ("RNN", {}, "no B, no states"),
    "RNN-bidirectional": ("RNN", BOTH | {"clip": 0.4}, "lengths"),
    "RNN-reverse": ("RNN", {"direction": "reverse"}, "lengths"),
    "RNN-batch-first": ("RNN", BOTH | {"layout": 1}, "lengths"),
    "RNN-f64": ("RNN", {}, "f64"),
    "RNN-defaults": ("RNN", BOTH | {"activations": ["HardSigmoid", "LeakyRelu"]}, ""),
    "RNN-two": ("RNN", BOTH | chosen("Tanh", "Elu"), ""),
    **{f"RNN-{name}": ("RNN", chosen(name), "")
       for name in ("Relu", "Sigmoid", "Softsign", "Softplus", *SOME)},
}  # fmt: skip


def written(case: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model whose operands are all arguments, and their values."""
    operator, attributes, more = CASES[case]
    rng = np.random.default_rng(3)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[operator]
    dtype = {"f64": np.float64, "f16": np.float16}.get(more, np.float32)

    def reals(*shape: int) -> Array:
        return (rng.normal(size=shape) * 0.5).astype(dtype)

    by_batch = attributes.get("layout", 0)
    states = (BATCH, directions, HIDDEN) if by_batch else (directions, BATCH, HIDDEN)
    values = {
        "X": reals(BATCH, STEPS, DEPTH) if by_batch else reals(STEPS, BATCH, DEPTH),
        "W": reals(directions, gates * HIDDEN, DEPTH),
        "R": reals(directions, gates * HIDDEN, HIDDEN),
    }
    if more != "no B, no states":
        values["B"] = reals(directions, 2 * gates * HIDDEN)
        values |= {name: reals(*states) for name in STATES[operator]}
    if more == "P":
        values["P"] = reals(directions, 3 * HIDDEN)
    if more == "lengths":
        values["sequence_lens"] = LENGTHS
    if more == "an empty sequence":
        values["sequence_lens"] = np.array([4, 0, 2], np.int32)
    inputs = [name if name in values else "" for name in INPUTS]
    while not inputs[-1]:
        inputs.pop()
    feeds = {name: values[name] for name in inputs if name}
    outputs = ["Y", "Y_h", "Y_c"][: 1 + len(STATES[operator])]
    node = helper.make_node(operator, inputs, outputs, hidden_size=HIDDEN, **attributes)
    return of_node(node, feeds, {}, np.dtype(dtype)), feeds


def of_node(
    node: Any, feeds: Mapping[str, Array], constants: Mapping[str, Array], type_: Any = "FLOAT"
) -> onnx.ModelProto:
    return model([node], feeds, {name: type_ for name in node.output if name}, constants, 22)


def assert_close(results: list[Array], expected: list[Array], scale: float = 1.0) -> None:
    """Compare five steps of sums of up to ten products: units in the last place of 1."""
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert one.shape == other.shape
        bound = scale * {2: 2e-3, 4: 2e-6, 8: 1e-14}[one.dtype.itemsize]
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=0, atol=bound
        )


@pytest.mark.parametrize("case", CASES)
def test_numpy_computes_the_formulas(case: str) -> None:
    proto, feeds = written(case)
    operator, attributes, _ = CASES[case]
    assert_close(computed(proto, None, *feeds.values()), specified(operator, attributes, feeds))


WITHOUT = ("batch-first", "f64", "f16")
"""Cases that ONNX Runtime does not compute."""


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith(WITHOUT)])
def test_numpy_computes_what_onnx_runtime_does(case: str) -> None:
    """Its tanh and sigmoid are rational functions: they add 1e-6 to the tolerance."""
    proto, feeds = written(case)
    assert_close(computed(proto, None, *feeds.values()), run_onnx_runtime(proto, feeds), 2.0)


ON_DEVICE = DeviceShare(CASES, 3, lambda name: written(name)[0])


@pytest.mark.parametrize("case", ON_DEVICE.names)
def test_the_cpu_computes_the_same(case: str, cpu: Device) -> None:
    proto, feeds = written(case)
    results = ON_DEVICE.results(case, cpu, feeds.values())
    assert_close(results, computed(proto, None, *feeds.values()))


@ON_DEVICES
@pytest.mark.parametrize("length", [1, 2])
def test_both_directions_start_from_the_same_zeros(length: int, device: Device) -> None:
    """Loops take both states as one buffer, which IREE lost where it was passed twice."""
    rng = np.random.default_rng(length)
    feeds = {"X": rng.normal(size=(3, 1, 1)).astype(np.float32),
             "W": rng.normal(size=(2, 8, 1)).astype(np.float32)}  # fmt: skip
    node = helper.make_node("LSTM", ["X", "W", "R", "", "lengths"], ["", "", "c"], hidden_size=2,
                            direction="bidirectional")  # fmt: skip
    constants = {"R": rng.normal(size=(2, 8, 2)).astype(np.float32),
                 "lengths": np.array([length], np.int32)}  # fmt: skip
    proto = of_node(node, feeds, constants)
    data = compile_to_bytes(proto.SerializeToString(), CompileOptions(target=device.name))
    result = Executable(data, device).main(*feeds.values())
    assert_close([np.asarray(result)], run_onnx_runtime(proto, feeds), 2.0)


NODE_TESTS = node_tests("lstm", "gru", "rnn", operators=frozenset(GATES))


@pytest.mark.parametrize("name", sorted(NODE_TESTS))
def test_onnx_node_tests(name: str) -> None:
    case = NODE_TESTS[name]
    ((inputs, outputs),) = case.data_sets
    assert_close(computed(case.model, None, *inputs), [np.asarray(each) for each in outputs])


QUANTIZED: dict[str, dict[str, Any]] = {
    "uint8": {},
    "int8": {"dtype": np.int8},
    "columns": {"dtype": np.int8, "columns": True},
    "columns-uint8": {"columns": True, "directions": 2},
    "reverse": {"direction": "reverse", "more": ("sequence_lens", "initial_h", "initial_c")},
    "bidirectional": {"directions": 2, "more": ("sequence_lens", "P"), "clip": 0.4},
    "no-outputs": {"more": ("sequence_lens", "initial_h"), "outputs": ["", "Y_h", "Y_c"]},
    "no-bias": {"bias": False, "input_forget": 1},
}


def quantized(
    *, dtype: Any = np.uint8, directions: int = 1, columns: bool = False,
    more: tuple[str, ...] = (), outputs: tuple[str, ...] = ("Y", "Y_h", "Y_c"), bias: bool = True,
    batch: int = BATCH, hidden: int = HIDDEN, **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """A model whose weights are constants, and its arguments."""
    rng = np.random.default_rng(7)
    if directions == 2:
        attributes["direction"] = "bidirectional"
    info = np.iinfo(dtype)
    # Of more bits, sums of two products saturate in ONNX Runtime on a CPU with AVX2 only.
    low, high = (info.min // 2, info.max // 2) if dtype == np.int8 else (0, 256)
    parameters = (directions, 4 * hidden) if columns else (directions,)
    zero_point = 0 if dtype == np.int8 and columns else 3 if dtype == np.int8 else 121
    states = (directions, batch, hidden)
    values = {
        "X": rng.normal(size=(STEPS, batch, DEPTH)).astype(np.float32),
        "sequence_lens": np.array([3, 4, 1], np.int32),
        "initial_h": (2 * rng.normal(size=states)).astype(np.float32),
        "initial_c": rng.normal(size=states).astype(np.float32),
    }
    constants = {
        "W": rng.integers(low, high, (directions, DEPTH, 4 * hidden)).astype(dtype),
        "R": rng.integers(low, high, (directions, hidden, 4 * hidden)).astype(dtype),
        "B": rng.normal(size=(directions, 8 * hidden)).astype(np.float32),
        "P": rng.normal(size=(directions, 3 * hidden)).astype(np.float32),
        **{f"{side}_scale": rng.uniform(0.002, 0.008, parameters).astype(np.float32)
           for side in "WR"},
        **{f"{side}_zero_point": np.full(parameters, zero_point, dtype) for side in "WR"},
    }  # fmt: skip
    present = {"X", "W", "R", *("B" for _ in range(bias)), *more}
    inputs = [name if name in present else "" for name in INPUTS]
    inputs += [f"{side}_{name}" for side in "WR" for name in ("scale", "zero_point")]
    node = helper.make_node("DynamicQuantizeLSTM", inputs, list(outputs), domain=MICROSOFT,
                            hidden_size=hidden, **attributes)  # fmt: skip
    feeds = {name: values[name] for name in inputs if name in values}
    used = {name: constants[name] for name in inputs if name in constants}
    return of_node(node, feeds, used), feeds


@pytest.mark.parametrize("case", QUANTIZED)
def test_the_state_is_quantized_as_in_onnx_runtime(case: str) -> None:
    """The same integers in each step: one that differed would change results by 1e-3."""
    proto, feeds = quantized(**QUANTIZED[case])
    assert_close(computed(proto, None, *feeds.values()), run_onnx_runtime(proto, feeds), 2.0)


@pytest.mark.long
def test_the_cpu_computes_quantized_steps(cpu: Device) -> None:
    proto, feeds = quantized(**QUANTIZED["bidirectional"])
    assert_close(computed(proto, cpu, *feeds.values()), computed(proto, None, *feeds.values()))
    assert "i32" in text_of(proto)


def layer(
    operator: str, hidden: int, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A layer of one sequence, whose weights are constants, and all operands."""
    rng, gates = np.random.default_rng(hidden), GATES[operator]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {
        "X": (STEPS, 1, DEPTH),
        "W": (directions, gates * hidden, DEPTH),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        **dict.fromkeys(STATES[operator], (directions, 1, hidden)),
    }
    operands = {
        name: (rng.normal(size=shape) / 4).astype(np.float32) for name, shape in shapes.items()
    }
    inputs = ["X", "W", "R", "B", "", *STATES[operator]]
    outputs = ["Y", "Y_h", "Y_c"][: 1 + len(STATES[operator])]
    node = helper.make_node(operator, inputs, outputs, hidden_size=hidden, **attributes)
    constants = {name: operands[name] for name in "WRB"}
    feeds = {name: operands[name] for name in ("X", *STATES[operator])}
    return of_node(node, feeds, constants), operands


def loops(data: bytes) -> int:
    """The number of dispatches that are loops; no loop is outside of them."""
    main = compile_to_bytes(data, emit="mlir").decode().partition("func.func @main")[2]
    assert "scf.for" not in main
    return main.count("entry_points = [@loop")


def test_a_small_quantized_layer_is_one_dispatch(cpu: Device) -> None:
    """The quantization of the state is part of it."""
    proto, feeds = quantized(batch=1, hidden=40, directions=2, more=("initial_h", "initial_c"))
    assert loops(proto.SerializeToString()) == 2
    assert_close(computed(proto, cpu, *feeds.values()), computed(proto, None, *feeds.values()))


@pytest.mark.parametrize(("operator", "attributes"), [("LSTM", BOTH), ("GRU", {}), ("RNN", {})])
def test_a_small_layer_is_one_dispatch(operator: str, attributes: Any, cpu: Device) -> None:
    """All steps of a direction, of states with whole vectors and a rest."""
    proto, operands = layer(operator, 72, **attributes)
    data = proto.SerializeToString()
    assert loops(data) == len(operands["W"])
    feeds = [operands[each.name] for each in proto.graph.input]
    results = Executable(compile_to_bytes(data), cpu).main(*feeds)
    assert_close([np.asarray(each) for each in results], specified(operator, attributes, operands))


def changed(case: str, **attributes: Any) -> onnx.ModelProto:
    proto, _ = written(case)
    node = proto.graph.node[0]
    for name, value in attributes.items():
        for attribute in [each for each in node.attribute if each.name == name]:
            node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute(name, value))
    return proto


@pytest.mark.parametrize(
    ("case", "attributes", "message"),
    [
        ("LSTM", {"hidden_size": 7}, "has the hidden_size 7, and R for one of 6"),
        ("LSTM", {"direction": "bidirectional"}, "the direction 'bidirectional', and weights of 1"),
        ("LSTM", {"direction": "up"}, "'direction' = 'up', expected forward"),
        ("LSTM", {"clip": -1.0}, "'clip' = -1.0, expected > 0"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh"]}, "expected 3 of relu"),
        ("GRU", {"activations": ["Sigmoid", "Cosh"]}, "expected 2 of relu"),
        ("GRU", {"activations": ["Sigmoid", "Affine"]}, "'affine' without a value"),
        ("RNN", {"activations": ["ScaledTanh"]}, "'scaledtanh' without a value"),
        ("LSTM", {"activations": ["Tanh", "Elu", "Elu"], "activation_alpha": [1.0, 2.0, 3.0]},
         "has 3 values in 'activation_alpha' for 2"),
    ],
)  # fmt: skip
def test_refused_nodes_are_named(case: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(SubquantError, match=message):
        text_of(changed(case, **attributes))


def test_constant_lengths_are_checked() -> None:
    proto, _ = written("LSTM-lengths")
    tensor = helper.make_tensor("sequence_lens", TensorProto.INT32, (BATCH,), [3, 6, 1])
    proto.graph.initializer.append(tensor)
    for value in [each for each in proto.graph.input if each.name == "sequence_lens"]:
        proto.graph.input.remove(value)
    with pytest.raises(SubquantError, match="has sequence_lens outside of 0 to 5"):
        text_of(proto)
