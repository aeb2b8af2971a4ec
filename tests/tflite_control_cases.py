"""Operators of TensorFlow Lite that compute other graphs."""

from __future__ import annotations

from functools import partial

import numpy as np

from tflite_builder import Graph, Quantized, f32
from tflite_cases import Case, Ends, Rng, quantized

Shape = tuple[int, ...]


def counted(graph: Graph, rng: Rng, dtype: str, *, is_over: bool = False) -> Ends:
    """A loop over a counter and a value, which is doubled; of no iteration if it `is_over`."""
    shape, limit = (2, 5), int(rng.integers(1, 7))
    parameters = None
    if dtype == "int8":
        parameters = Quantized(float(rng.uniform(0.1, 1)), int(rng.integers(-20, 20)))
    counter, tensor = ((), "int32"), (shape, dtype, parameters)
    condition, body = graph.part(), graph.part()
    value = condition.tensor(*tensor)
    [count], less = condition.apply("LESS", [counter, np.array(limit, np.int32)], [((), "bool")])
    first = graph.called(condition, [count, value], less)
    value = body.tensor(*tensor)
    [count], [following] = body.apply(
        "ADD", [counter, np.array(1, np.int32)], [counter], "AddOptions"
    )
    _, [changed] = body.apply("ADD", [value, value], [tensor], "AddOptions")
    second = graph.called(body, [count, value], [following, changed])
    start = np.array(limit if is_over else rng.integers(-1, 3), np.int32)
    return graph.apply(
        "WHILE", [start, tensor], [counter, tensor], "WhileOptions",
        condSubgraphIndex=first, bodySubgraphIndex=second,
    )  # fmt: skip


def measured(graph: Graph, rng: Rng) -> Ends:
    """A loop until the sum of the value is large: how often depends on the input."""
    shape = (4,)
    condition, body = graph.part(), graph.part()
    value, total = condition.apply("SUM", [f32(*shape), [0]], [f32()], "ReducerOptions",
                                   keepDims=False)  # fmt: skip
    _, less = condition.apply("LESS", [*total, np.array(100, np.float32)], [((), "bool")])
    factor = rng.uniform(1.2, 2, shape).astype(np.float32)
    ends = body.apply("MUL", [f32(*shape), factor], [f32(*shape)], "MulOptions")
    first, second = graph.called(condition, value, less), graph.called(body, *ends)
    operands, exponential = graph.apply("EXP", [f32(*shape)], [f32(*shape)])
    _, results = graph.apply("WHILE", exponential, [f32(*shape)], "WhileOptions",
                             condSubgraphIndex=first, bodySubgraphIndex=second)  # fmt: skip
    return operands, results


def chosen(graph: Graph, rng: Rng, dtype: str, known: bool) -> Ends:
    tensor = ((3, 4), dtype, quantized(rng, "int8") if dtype == "int8" else None)
    numbers = [graph.branch(name, tensor) for name in ("ADD", "MUL")]
    condition: object = np.array(bool(rng.integers(0, 2))) if known else ((), "bool")
    return graph.choose(condition, [tensor, tensor], [tensor], numbers)


def composite(graph: Graph, rng: Rng, dtype: str) -> Ends:
    """A root mean square normalization, as converters of language models write it."""
    shape = (2, 3, 8)
    part = graph.part()
    x = quantized(rng, "int16") if dtype == "int16" else None
    whole, row = f32(*shape), f32(2, 3, 1)
    operand, weight = part.tensor(*whole), part.tensor(*f32(8))
    _, squares = part.apply("MUL", [operand, operand], [whole], "MulOptions")
    _, means = part.apply("MEAN", [*squares, [-1]], [row], "ReducerOptions", keepDims=True)
    _, shifted = part.apply("ADD", [*means, np.array(1e-6, np.float32)], [row], "AddOptions")
    _, inverse = part.apply("RSQRT", shifted, [row])
    _, ratio = part.apply("MUL", [operand, *inverse], [whole], "MulOptions")
    _, result = part.apply("MUL", [*ratio, weight], [whole], "MulOptions")
    number = graph.called(part, [operand, weight], result)
    root = graph.tensor(shape, dtype, x)
    value = [root]
    if x is not None:
        _, value = graph.apply("DEQUANTIZE", value, [whole])
    weights = graph.constant(rng.normal(size=8), "float32")
    for _ in range(2):
        _, value = graph.apply(
            "STABLEHLO_COMPOSITE", [*value, weights], [whole], "StableHLOCompositeOptions",
            name="odml.rms_norm", compositeAttributes=[], decompositionSubgraphIndex=number,
        )  # fmt: skip
    return [root], value


CASES: dict[str, Case] = {
    **{f"WHILE-{t}": partial(counted, dtype=t) for t in ("float32", "int8")},
    "WHILE-over-float32": partial(counted, dtype="float32", is_over=True),
    "WHILE-until-float32": measured,
    **{f"IF{'-known' if known else ''}-{t}": partial(chosen, dtype=t, known=known)
       for known in (False, True) for t in ("float32", "int8")},
    **{f"STABLEHLO_COMPOSITE-{t}": partial(composite, dtype=t) for t in ("float32", "int16")},
}  # fmt: skip
