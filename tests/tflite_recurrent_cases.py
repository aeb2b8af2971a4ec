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


def lstm_int8(
    graph: Graph,
    rng: Rng,
    *,
    projected: bool = False,
    coupled: bool = False,
    peephole: bool = False,
    normed: bool = False,
    name: str = "UNIDIRECTIONAL_SEQUENCE_LSTM",
) -> Ends:
    """``coupled`` has no input gate.

    With a peephole and a projection, LiteRT takes the number of outputs for that of cells.
    """
    batch, time, inputs, cells = (int(n) for n in rng.integers((1, 1, 2, 2), (4, 6, 9, 9)))
    outputs = int(rng.integers(2, 7)) if projected and not peephole else cells
    if normed:  # LiteRT's variance is right for powers of two only
        cells = outputs = int(rng.choice([4, 8]))
    time_major = bool(rng.integers(0, 2))
    if name == "LSTM":
        time = 1
    x, state, hidden = quantized(rng, "int8"), quantized(rng, "int8"), quantized(rng, "int8")
    x.scales, hidden.scales = float(rng.uniform(0.005, 0.02)), 1 / 128
    hidden.zero_points = int(rng.integers(-20, 20)) if projected else state.zero_points
    state.scales = 1 / 128 if not projected else float(rng.uniform(0.01, 0.03))
    lead: tuple[int, ...] = (time, batch) if time_major else (batch, time)
    if name == "LSTM":
        lead = (batch,)
    operand = graph.tensor((*lead, inputs), "int8", x)
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
    result = graph.tensor((*lead, outputs), "int8", state)
    intermediates = [graph.tensor((0,), "float32") for _ in range(4)]
    norms = [-1] * 4
    if normed:
        norms = each((cells,), "int16", 3e-5)
        intermediates = [
            graph.tensor((0,), "int16", Quantized(float(rng.uniform(1e-4, 1e-3)))) for _ in range(4)
        ]
    intermediates.append(graph.tensor((0,), "int8", hidden))
    return [operand], graph.operator(
        name,
        [operand, *weights, *recurrent, diagonal[0], diagonal[1], diagonal[3], *biases,
         projection, projection_bias, *states, *norms],
        [result],
        *_TABLES[name],
        intermediates=intermediates,
        fusedActivationFunction=TANH,
        cellClip=float(rng.choice([0.0, 1.0])),
        projClip=float(rng.choice([0.0, 0.5])) if projected else 0.0,
        **({"timeMajor": time_major} if name != "LSTM" else {}),
    )  # fmt: skip


_TABLES = {"LSTM": ("LSTMOptions",),
           "UNIDIRECTIONAL_SEQUENCE_LSTM": ("UnidirectionalSequenceLSTMOptions",)}  # fmt: skip


def _floats(graph: Graph, rng: Rng, dtype: str, shape: tuple[int, ...], scale: float = 0.5) -> int:
    """Weights of floats, or of integers in their place."""
    if dtype == "int8" and len(shape) == 2:
        return _integers(graph, rng, shape, scale / 80)
    data = rng.normal(scale=scale, size=shape).astype(np.float32)
    return graph.tensor(shape, "float32", None, data)


def lstm_float(
    graph: Graph,
    rng: Rng,
    *,
    projected: bool = False,
    coupled: bool = False,
    normed: bool = False,
    diagonal: bool = False,
    name: str = "UNIDIRECTIONAL_SEQUENCE_LSTM",
    dtype: str = "float32",
) -> Ends:
    batch, time, inputs, cells = (int(n) for n in rng.integers((1, 1, 2, 2), (4, 6, 9, 9)))
    outputs = int(rng.integers(2, 7)) if projected else cells
    gates = range(1 if coupled else 0, 4)
    peephole = bool(rng.integers(0, 2))
    time_major = bool(rng.integers(0, 2))

    def constant(*shape: int) -> int:
        return _floats(graph, rng, dtype, shape)

    def each(*shape: int) -> list[int]:
        return [constant(*shape) if gate in gates else -1 for gate in range(4)]

    lead: tuple[int, ...] = (time, batch) if time_major else (batch, time)
    if name == "LSTM":
        lead = (batch,)
    operand = graph.tensor((*lead, inputs), "float32")
    peepholes = each(cells) if peephole and dtype == "float32" else [-1] * 4
    if peephole and dtype == "int8":
        peepholes = [
            _integers(graph, rng, (cells,), 0.01) if gate in gates else -1 for gate in range(4)
        ]
    result = graph.tensor((*lead, outputs), "float32")
    return [operand], graph.operator(
        name,
        [operand, *each(cells, inputs), *(each(cells) if diagonal else each(cells, outputs)),
         peepholes[0], peepholes[1], peepholes[3], *each(cells),
         constant(outputs, cells) if projected else -1,
         constant(outputs) if projected and rng.random() < 0.5 else -1,
         graph.tensor((batch, outputs), "float32", is_variable=True),
         graph.tensor((batch, cells), "float32", is_variable=True),
         *(each(cells) if normed else [-1] * 4)],
        [result],
        *_TABLES[name],
        fusedActivationFunction=TANH,
        cellClip=float(rng.choice([0.0, 0.6])),
        projClip=float(rng.choice([0.0, 0.4])) if projected else 0.0,
        asymmetricQuantizeInputs=bool(rng.integers(0, 2)),
        **({"timeMajor": time_major} if name != "LSTM" else {}),
        **({"diagonalRecurrentTensors": True} if diagonal else {}),
    )  # fmt: skip


def bidirectional(
    graph: Graph, rng: Rng, *, cell: str, merged: bool, linked: str = "", dtype: str = "float32"
) -> Ends:
    """``linked``: with other rows, ``crossed`` for both, or ``parallel`` for the second.

    With the batch first, LiteRT takes the states of merged LSTMs from other places, and gives the
    second RNN the first one's rows. It takes other rows of a width of their own from other places
    for an RNN; with integer weights and time first, it goes through all steps as often as there are
    steps.
    """
    is_lstm = cell == "LSTM"
    batch, time, inputs = (int(n) for n in rng.integers((1, 1, 2), (4, 6, 9)))
    counts = [int(n) for n in rng.integers(2, 7, 2)]
    if is_lstm:
        counts = counts[:1] * 2  # LiteRT wants as many of both
    time_major = bool(rng.integers(0, 2)) or (merged if is_lstm else linked == "parallel")
    if dtype == "int8" and not is_lstm:
        time_major = False
    lead = (time, batch) if time_major else (batch, time)
    auxiliary = int(rng.integers(2, 7)) if linked == "crossed" and is_lstm else inputs

    def constants(*shape: int) -> list[int]:
        """One for each gate."""
        scale = 0.5 if is_lstm else 0.3
        return [_floats(graph, rng, dtype, shape, scale) for _ in range(4 if is_lstm else 1)]

    def state(*shape: int) -> int:
        return graph.tensor(shape, "float32", is_variable=True)

    operand = graph.tensor((*lead, inputs), "float32")
    sides, more, states = [], [], []
    for count in counts:
        absent = [-1] * (4 if is_lstm else 1)
        sides += constants(count, inputs) + constants(count, count)
        if is_lstm:
            sides += [-1] * 3 + constants(count) + [-1, -1]
            states += [state(batch, count), state(batch, count)]
        else:
            sides += [*constants(count), state(batch, count)]
        more += constants(count, auxiliary) if linked == "crossed" else absent
    rows = graph.tensor((*lead, auxiliary), "float32") if linked else -1
    widths = [sum(counts)] if merged else counts
    results = [graph.tensor((*lead, width), "float32") for width in widths]
    return [operand, rows] if linked else [operand], graph.operator(
        f"BIDIRECTIONAL_SEQUENCE_{cell}", [operand, *sides, *states, rows, *more], results,
        f"BidirectionalSequence{cell}Options", fusedActivationFunction=TANH, mergeOutputs=merged,
        timeMajor=time_major, asymmetricQuantizeInputs=bool(rng.integers(0, 2)),
    )  # fmt: skip


def rnn(graph: Graph, rng: Rng, *, name: str, dtype: str = "float32") -> Ends:
    batch, time, inputs, units = (int(n) for n in rng.integers((1, 1, 2, 2), (4, 6, 9, 9)))
    time_major = bool(rng.integers(0, 2))
    lead: tuple[int, ...] = (batch,)
    table, options = "RNNOptions", {}
    if name != "RNN":
        lead = (time, batch) if time_major else (batch, time)
        table, options = "SequenceRNNOptions", {"timeMajor": time_major}
    operand, result = (graph.tensor((*lead, size), "float32") for size in (inputs, units))
    return [operand], graph.operator(
        name,
        [operand, *(_floats(graph, rng, dtype, each, 0.3)
                    for each in ((units, inputs), (units, units), (units,))),
         graph.tensor((batch, units), "float32", is_variable=True)],
        [result], table, fusedActivationFunction=int(rng.choice([1, 3, TANH])),
        asymmetricQuantizeInputs=bool(rng.integers(0, 2)), **options,
    )  # fmt: skip


def svdf(graph: Graph, rng: Rng, dtype: str, weights: str = "") -> Ends:
    batch, inputs, units, rank, memory = (
        int(n) for n in rng.integers((1, 2, 1, 1, 1), (4, 12, 6, 4, 7))
    )
    filters = units * rank
    if dtype == "float32":

        def constant(*shape: int) -> int:
            return graph.tensor(shape, dtype, None, rng.normal(size=shape).astype(np.float32))

        operand = graph.tensor((batch, inputs), dtype)
        features, times = constant(filters, inputs), constant(filters, memory)
        if weights:
            features = _integers(graph, rng, (filters, inputs), 0.01)
            times = _integers(graph, rng, (filters, memory), 0.01)
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
    return [operand], graph.operator(
        "SVDF", [operand, features, times, bias, state], [result], "SVDFOptions",
        rank=rank, fusedActivationFunction=activation,
        asymmetricQuantizeInputs=bool(rng.integers(0, 2)),
    )  # fmt: skip


_WAYS = {"plain": {}, "coupled": {"coupled": True}, "peephole": {"peephole": True},
         "projected": {"projected": True}, "normed": {"normed": True},
         "all": {"projected": True, "coupled": True, "peephole": True},
         "all-normed": {"projected": True, "coupled": True, "normed": True}}  # fmt: skip
_BOTH = {"two": {"merged": False}, "merged": {"merged": True},
         "crossed": {"merged": True, "linked": "crossed"},
         "parallel": {"merged": False, "linked": "parallel"}}  # fmt: skip
_FLOATS = {"plain": {}, "projected": {"projected": True, "coupled": True},
           "normed": {"normed": True}}  # fmt: skip

CASES: dict[str, Case] = {
    **{f"UNIDIRECTIONAL_SEQUENCE_LSTM-{way}-int8": partial(lstm_int8, **options)
       for way, options in _WAYS.items()},
    **{f"{name}-{way}-float32": partial(lstm_float, name=name, **options)
       for name in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM") for way, options in _FLOATS.items()},
    "UNIDIRECTIONAL_SEQUENCE_LSTM-diagonal-float32": partial(lstm_float, diagonal=True),
    "LSTM-plain-int8": partial(lstm_int8, name="LSTM"),
    **{f"BIDIRECTIONAL_SEQUENCE_LSTM-{way}-float32": partial(bidirectional, cell="LSTM", **options)
       for way, options in _BOTH.items()},
    **{f"{name}-float32": partial(rnn, name=name)
       for name in ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")},
    **{f"BIDIRECTIONAL_SEQUENCE_RNN-{way}-float32": partial(bidirectional, cell="RNN", **options)
       for way, options in _BOTH.items()},
    **{f"SVDF-{dtype}": partial(svdf, dtype=dtype) for dtype in ("int8", "float32")},
}  # fmt: skip

HYBRID: dict[str, Case] = {
    **{f"{name}-{way}-float32-int8": partial(lstm_float, name=name, dtype="int8", **options)
       for name in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM") for way, options in _FLOATS.items()},
    **{f"BIDIRECTIONAL_SEQUENCE_LSTM-{way}-float32-int8": partial(
        bidirectional, cell="LSTM", dtype="int8", **options) for way, options in _BOTH.items()},
    **{f"{name}-float32-int8": partial(rnn, name=name, dtype="int8")
       for name in ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")},
    **{f"BIDIRECTIONAL_SEQUENCE_RNN-{way}-float32-int8": partial(
        bidirectional, cell="RNN", dtype="int8", **options)
       for way, options in _BOTH.items() if way != "parallel"},
    "SVDF-float32-int8": partial(svdf, dtype="float32", weights="int8"),
}  # fmt: skip
"""Float operators with integer weights."""
