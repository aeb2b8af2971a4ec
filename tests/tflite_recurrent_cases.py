"""Recurrent operators of TensorFlow Lite with random parameters, which keep their state."""

from __future__ import annotations

from functools import partial

import numpy as np

from tflite_builder import Graph, Quantized
from tflite_cases import Case, Ends, Rng, quantized

TANH = 4  # the activation function


def _integers(
    graph: Graph, rng: Rng, shape: tuple[int, ...], scale: float, dtype: str = "int8"
) -> int:
    most = np.iinfo(dtype).max
    data = rng.integers(-most, most + 1, shape).astype(dtype)
    return graph.tensor(shape, dtype, Quantized(scale), data)


def lstm_int8(graph: Graph, rng: Rng, *, projected: bool, coupled: bool, peephole: bool) -> Ends:
    """``coupled`` has no input gate.

    With a peephole and a projection, LiteRT takes the number of outputs for that of cells.
    """
    batch, time, inputs, cells = (int(n) for n in rng.integers((1, 1, 2, 2), (4, 6, 9, 9)))
    outputs = int(rng.integers(2, 7)) if projected and not peephole else cells
    time_major = bool(rng.integers(0, 2))
    x, state, hidden = quantized(rng, "int8"), quantized(rng, "int8"), quantized(rng, "int8")
    x.scales, hidden.scales = float(rng.uniform(0.005, 0.02)), 1 / 128
    hidden.zero_points = int(rng.integers(-20, 20)) if projected else state.zero_points
    state.scales = 1 / 128 if not projected else float(rng.uniform(0.01, 0.03))
    operand = graph.tensor(
        (time, batch, inputs) if time_major else (batch, time, inputs), "int8", x
    )
    gates = range(1 if coupled else 0, 4)

    def each(shape: tuple[int, ...], dtype: str = "int8", scale: float = 0.01) -> list[int]:
        return [
            _integers(graph, rng, shape, float(scale * rng.uniform(0.5, 1.5)), dtype)
            if gate in gates else -1
            for gate in range(4)
        ]  # fmt: skip

    weights, recurrent = each((cells, inputs)), each((cells, outputs))
    diagonal = each((cells,), "int16", 2e-5) if peephole else [-1] * 4
    biases = []
    for gate in range(4):
        values = rng.integers(-3000, 3000, cells).astype(np.int32)
        scale = x.scales * (graph.scale(weights[gate]) if gate in gates else 1)
        biases.append(graph.tensor((cells,), "int32", Quantized(scale), values)
                      if gate in gates else -1)  # fmt: skip
    projection, projection_bias = -1, -1
    if projected:
        projection = _integers(graph, rng, (outputs, cells), 0.01)
        if rng.random() < 0.5:
            values = rng.integers(-3000, 3000, outputs).astype(np.int32)
            projection_bias = graph.tensor((outputs,), "int32", Quantized(0.01 / 128), values)
    states = [
        graph.tensor((batch, outputs), "int8", state, is_variable=True),
        graph.tensor((batch, cells), "int16", Quantized(2.0 ** -int(rng.integers(9, 13))),
                     is_variable=True),
    ]  # fmt: skip
    result = graph.tensor(
        (time, batch, outputs) if time_major else (batch, time, outputs), "int8", state
    )
    intermediates = [graph.tensor((0,), "float32") for _ in range(4)]
    intermediates.append(graph.tensor((0,), "int8", hidden))
    graph.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [operand, *weights, *recurrent, diagonal[0], diagonal[1], diagonal[3], *biases,
         projection, projection_bias, *states, -1, -1, -1, -1],
        [result],
        "UnidirectionalSequenceLSTMOptions",
        intermediates=intermediates,
        fusedActivationFunction=TANH,
        cellClip=float(rng.choice([0.0, 1.0])),
        projClip=float(rng.choice([0.0, 0.5])) if projected else 0.0,
        timeMajor=time_major,
    )  # fmt: skip
    return [operand], [result]


def lstm_float(graph: Graph, rng: Rng, *, projected: bool, coupled: bool) -> Ends:
    batch, time, inputs, cells = (int(n) for n in rng.integers((1, 1, 2, 2), (4, 6, 9, 9)))
    outputs = int(rng.integers(2, 7)) if projected else cells
    gates = range(1 if coupled else 0, 4)
    peephole = bool(rng.integers(0, 2))
    time_major = bool(rng.integers(0, 2))

    def constant(*shape: int) -> int:
        data = rng.normal(scale=0.5, size=shape).astype(np.float32)
        return graph.tensor(shape, "float32", None, data)

    def each(*shape: int) -> list[int]:
        return [constant(*shape) if gate in gates else -1 for gate in range(4)]

    shape = (time, batch, inputs) if time_major else (batch, time, inputs)
    operand = graph.tensor(shape, "float32")
    diagonal = each(cells) if peephole else [-1] * 4
    result = graph.tensor((*shape[:2], outputs), "float32")
    graph.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [operand, *each(cells, inputs), *each(cells, outputs),
         diagonal[0], diagonal[1], diagonal[3], *each(cells),
         constant(outputs, cells) if projected else -1,
         constant(outputs) if projected and rng.random() < 0.5 else -1,
         graph.tensor((batch, outputs), "float32", is_variable=True),
         graph.tensor((batch, cells), "float32", is_variable=True), -1, -1, -1, -1],
        [result],
        "UnidirectionalSequenceLSTMOptions",
        fusedActivationFunction=TANH,
        cellClip=float(rng.choice([0.0, 0.6])),
        projClip=float(rng.choice([0.0, 0.4])) if projected else 0.0,
        timeMajor=time_major,
    )  # fmt: skip
    return [operand], [result]


def svdf(graph: Graph, rng: Rng, dtype: str) -> Ends:
    batch, inputs, units, rank, memory = (
        int(n) for n in rng.integers((1, 2, 1, 1, 1), (4, 12, 6, 4, 7))
    )
    filters = units * rank
    if dtype == "float32":

        def constant(*shape: int) -> int:
            return graph.tensor(shape, dtype, None, rng.normal(size=shape).astype(np.float32))

        operand = graph.tensor((batch, inputs), dtype)
        features, times = constant(filters, inputs), constant(filters, memory)
        bias = constant(units) if rng.random() < 0.7 else -1
        state = graph.tensor((batch, filters * memory), dtype, is_variable=True)
        result, activation = graph.tensor((batch, units), dtype), int(rng.integers(0, 2))
    else:
        x, y = quantized(rng, "int8"), quantized(rng, "int8")
        operand = graph.tensor((batch, inputs), "int8", x)
        features = _integers(graph, rng, (filters, inputs), 0.01)
        data = rng.integers(-2000, 2000, (filters, memory)).astype(np.int16)
        times = graph.tensor((filters, memory), "int16", Quantized(2.0**-11), data)
        scale = float(x.scales) * 0.01 * 127 / 100  # type: ignore[arg-type]
        y.scales = scale * 8
        bias = -1
        if rng.random() < 0.7:
            values = rng.integers(-20000, 20000, units).astype(np.int32)
            bias = graph.tensor((units,), "int32", Quantized(scale * 2.0**-11), values)
        state = graph.tensor((batch, filters * memory), "int16", Quantized(scale), is_variable=True)
        result, activation = graph.tensor((batch, units), "int8", y), 1
    graph.operator(
        "SVDF", [operand, features, times, bias, state], [result], "SVDFOptions",
        rank=rank, fusedActivationFunction=activation,
    )  # fmt: skip
    return [operand], [result]


CASES: dict[str, Case] = {
    **{
        f"UNIDIRECTIONAL_SEQUENCE_LSTM-{name}-int8": partial(
            lstm_int8, projected=projected, coupled=coupled, peephole=peephole
        )
        for name, projected, coupled, peephole in (
            ("plain", False, False, False),
            ("coupled", False, True, False),
            ("peephole", False, False, True),
            ("projected", True, False, False),
            ("all", True, True, True),
        )
    },
    **{
        f"UNIDIRECTIONAL_SEQUENCE_LSTM-{name}-float32": partial(
            lstm_float, projected=projected, coupled=coupled
        )
        for name, projected, coupled in (("plain", False, False), ("projected", True, True))
    },
    **{f"SVDF-{dtype}": partial(svdf, dtype=dtype) for dtype in ("int8", "float32")},
}
