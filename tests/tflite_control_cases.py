"""Operators of TensorFlow Lite that compute other graphs."""

from __future__ import annotations

from functools import partial

import numpy as np

from tflite_builder import Graph, Quantized
from tflite_cases import Case, Ends, Rng, quantized

Shape = tuple[int, ...]


def counted(graph: Graph, rng: Rng, dtype: str) -> Ends:
    """A loop over a counter and a value, which is added to itself or doubled."""
    shape, limit = (2, 5), int(rng.integers(1, 7))
    parameters = None
    if dtype == "int8":
        parameters = Quantized(float(rng.uniform(0.1, 1)), int(rng.integers(-20, 20)))
    condition = graph.part()
    count, _ = condition.tensor((), "int32"), condition.tensor(shape, dtype, parameters)
    most = condition.constant(limit)
    less = condition.tensor((), "bool")
    condition.operator("LESS", [count, most], [less])
    body = graph.part()
    count, value = body.tensor((), "int32"), body.tensor(shape, dtype, parameters)
    one = body.constant(1)
    following, changed = body.tensor((), "int32"), body.tensor(shape, dtype, parameters)
    body.operator("ADD", [count, one], [following], "AddOptions")
    body.operator("ADD", [value, value], [changed], "AddOptions")
    numbers = [
        graph.called(condition, [0, 1], [less]),
        graph.called(body, [count, value], [following, changed]),
    ]
    start = graph.constant(int(rng.integers(-1, 3)))
    operand = graph.tensor(shape, dtype, parameters)
    ends = [graph.tensor((), "int32"), graph.tensor(shape, dtype, parameters)]
    return [operand], graph.operator(
        "WHILE", [start, operand], ends, "WhileOptions",
        condSubgraphIndex=numbers[0], bodySubgraphIndex=numbers[1],
    )  # fmt: skip


def measured(graph: Graph, rng: Rng) -> Ends:
    """A loop until the sum of the value is large: how often depends on the input."""
    shape = (4,)
    condition = graph.part()
    value = condition.tensor(shape, "float32")
    axis = condition.constant([0])
    total = condition.tensor((), "float32")
    limit = condition.constant(100, "float32")
    less = condition.tensor((), "bool")
    condition.operator("SUM", [value, axis], [total], "ReducerOptions", keepDims=False)
    condition.operator("LESS", [total, limit], [less])
    body = graph.part()
    value, doubled = body.tensor(shape, "float32"), body.tensor(shape, "float32")
    data = rng.uniform(1.2, 2, shape).astype(np.float32)
    factor = body.tensor(shape, "float32", None, data)
    body.operator("MUL", [value, factor], [doubled], "MulOptions")
    numbers = [graph.called(condition, [0], [less]), graph.called(body, [value], [doubled])]
    operand, exponential, result = (graph.tensor(shape, "float32") for _ in range(3))
    graph.operator("EXP", [operand], [exponential])
    return [operand], graph.operator(
        "WHILE", [exponential], [result], "WhileOptions",
        condSubgraphIndex=numbers[0], bodySubgraphIndex=numbers[1],
    )  # fmt: skip


def chosen(graph: Graph, rng: Rng, dtype: str, known: bool) -> Ends:
    shape = (3, 4)
    x = quantized(rng, "int8") if dtype == "int8" else None
    numbers = []
    for name in ("ADD", "MUL"):
        branch = graph.part()
        sides = [branch.tensor(shape, dtype, x) for _ in range(2)]
        result = branch.tensor(shape, dtype, x)
        branch.operator(name, sides, [result], f"{name.capitalize()}Options")
        numbers.append(graph.called(branch, sides, [result]))
    data = np.array(bool(rng.integers(0, 2))) if known else None
    condition = graph.tensor((), "bool", None, data)
    operands = [graph.tensor(shape, dtype, x) for _ in range(2)]
    result = graph.tensor(shape, dtype, x)
    return operands if known else [condition, *operands], graph.operator(
        "IF", [condition, *operands], [result], "IfOptions",
        thenSubgraphIndex=numbers[0], elseSubgraphIndex=numbers[1],
    )  # fmt: skip


def composite(graph: Graph, rng: Rng, dtype: str) -> Ends:
    """A root mean square normalization, as converters of language models write it."""
    shape = (2, 3, 8)
    part = graph.part()
    x = quantized(rng, "int16") if dtype == "int16" else None
    operand = part.tensor(shape, "float32")
    weight = part.tensor((8,), "float32")
    axis = part.constant([-1])
    small = part.constant(1e-6, "float32")
    squares, ratio, result = (part.tensor(shape, "float32") for _ in range(3))
    means, shifted_means, inverse = (part.tensor((2, 3, 1), "float32") for _ in range(3))
    part.operator("MUL", [operand, operand], [squares], "MulOptions")
    part.operator("MEAN", [squares, axis], [means], "ReducerOptions", keepDims=True)
    part.operator("ADD", [means, small], [shifted_means], "AddOptions")
    part.operator("RSQRT", [shifted_means], [inverse])
    part.operator("MUL", [operand, inverse], [ratio], "MulOptions")
    part.operator("MUL", [ratio, weight], [result], "MulOptions")
    number = graph.called(part, [operand, weight], [result])
    root = graph.tensor(shape, dtype, x)
    start = root
    if x is not None:
        start = graph.tensor(shape, "float32")
        graph.operator("DEQUANTIZE", [root], [start])
    data = rng.normal(size=8).astype(np.float32)
    weights, first, last = (
        graph.tensor((8,), "float32", None, data),
        graph.tensor(shape, "float32"),
        graph.tensor(shape, "float32"),
    )
    for source, target in ((start, first), (first, last)):
        graph.operator(
            "STABLEHLO_COMPOSITE", [source, weights], [target], "StableHLOCompositeOptions",
            name="odml.rms_norm", compositeAttributes=[], decompositionSubgraphIndex=number,
        )  # fmt: skip
    return [root], [last]


CASES: dict[str, Case] = {
    **{f"WHILE-{t}": partial(counted, dtype=t) for t in ("float32", "int8")},
    "WHILE-until-float32": measured,
    **{f"IF{'-known' if known else ''}-{t}": partial(chosen, dtype=t, known=known)
       for known in (False, True) for t in ("float32", "int8")},
    **{f"STABLEHLO_COMPOSITE-{t}": partial(composite, dtype=t) for t in ("float32", "int16")},
}  # fmt: skip
