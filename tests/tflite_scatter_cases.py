"""Operators of TensorFlow Lite that order elements or put them at positions, at random."""

from __future__ import annotations

from functools import partial

import numpy as np

from tflite_builder import Graph
from tflite_cases import Case, Ends, Rng, quantized
from tflite_elementwise_cases import QUANTIZED
from tflite_indexing_cases import positions


def top_k(graph: Graph, rng: Rng, dtype: str, length: int = 0) -> Ends:
    """8-bit values have equals among them."""
    length = length or int(rng.integers(2, 90))
    count = int(rng.integers(1, min(length + 1, 90)))
    parameters = quantized(rng, dtype) if dtype in QUANTIZED else None
    results = [((2, 3, count), dtype, parameters), ((2, 3, count), "int32")]
    inputs = [((2, 3, length), dtype, parameters), np.array(count, np.int32)]
    return graph.apply("TOPK_V2", inputs, results, "TopKV2Options")


def scatter_nd(graph: Graph, rng: Rng, dtype: str, computed: bool) -> Ends:
    """Several parts at one position are added."""
    shape, depth = (3, 4, 5), int(rng.integers(1, 4))
    parameters = quantized(rng, dtype) if dtype in QUANTIZED else None
    inputs, indices = positions(graph, rng, (2, 4, depth), computed=computed, most=2)
    updates = graph.tensor((2, 4, *shape[depth:]), dtype, parameters)
    result = graph.tensor(shape, dtype, parameters)
    return [*inputs, updates], graph.operator(
        "SCATTER_ND", [indices, updates, graph.constant(shape)], [result]
    )


def segments(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    operand = graph.tensor((6, 4), dtype)
    if name == "SEGMENT_SUM":
        numbers = np.cumsum([0, *rng.integers(0, 2, 5)])  # no segment is empty
        inputs, count = [operand, graph.constant(numbers)], int(numbers.max()) + 1
    else:
        shape = (6, 4)[: int(rng.integers(1, 3))]
        count = int(rng.integers(4, 6))
        numbers = rng.integers(-1, 4, shape)
        inputs = [operand, graph.constant(numbers), graph.constant(count)]
    result = graph.tensor((count, *(6, 4)[numbers.ndim :]), dtype)
    return [operand], graph.operator(name, inputs, [result])


def sparse_to_dense(graph: Graph, rng: Rng, dtype: str) -> Ends:
    shape, count = (3, 4), int(rng.integers(1, 6))
    linear = np.sort(rng.choice(12, count, replace=False))
    indices = np.stack(np.unravel_index(linear, shape), -1).astype(np.int32)
    inputs = [indices, list(shape), ((count,), dtype), np.array(3, dtype)]
    return graph.apply("SPARSE_TO_DENSE", inputs, [(shape, dtype)], "SparseToDenseOptions")


def reverse_sequence(graph: Graph, rng: Rng, dtype: str) -> Ends:
    shape, parameters = (3, 4, 5), quantized(rng, dtype) if dtype in QUANTIZED else None
    batch, time = (int(n) for n in rng.choice(3, 2, replace=False))
    lengths = rng.integers(0, shape[time] + 1, shape[batch]).astype(np.int32)
    tensor = (shape, dtype, parameters)
    return graph.apply("REVERSE_SEQUENCE", [tensor, lengths], [tensor], "ReverseSequenceOptions",
                       seqDim=time, batchDim=batch)  # fmt: skip


def diagonal(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    rows, columns = (int(n) for n in rng.integers(1, 6, 2))
    if name == "MATRIX_DIAG":
        ends = [((2, rows), dtype)], [((2, rows, rows), dtype)]
        return graph.apply(name, *ends, "MatrixDiagOptions")
    whole = ((2, rows, columns), dtype)
    inputs = [whole, ((2, min(rows, columns)), dtype)]
    return graph.apply(name, inputs, [whole], "MatrixSetDiagOptions")


def bitcast(graph: Graph, rng: Rng, source: str, target: str) -> Ends:
    sizes = [np.dtype(each).itemsize for each in (source, target)]
    shapes = [
        (2, 3) if own >= other else (2, 3, other // own) for own, other in (sizes, sizes[::-1])
    ]
    ends = [(shapes[0], source)], [(shapes[1], target)]
    return graph.apply("BITCAST", *ends, "BitcastOptions")


def broadcast_arguments(graph: Graph, rng: Rng) -> Ends:
    """A shape that two others give, which a tensor is broadcast to."""
    shapes = [np.where(rng.random(3) < 0.5, 1, (2, 3, 4)) for _ in range(2)]
    result_shape = np.maximum(*shapes)
    sides = [graph.constant(each) for each in shapes]
    broadcast_shape = graph.tensor((3,), "int32")
    graph.operator("BROADCAST_ARGS", sides, [broadcast_shape])
    operand, result = graph.tensor((1, 1, 1), "float32"), graph.tensor(result_shape, "float32")
    return [operand], graph.operator(
        "BROADCAST_TO", [operand, broadcast_shape], [result], version=2
    )


_UNSORTED = tuple(f"UNSORTED_SEGMENT_{name}" for name in ("SUM", "PROD", "MAX", "MIN"))

CASES: dict[str, Case] = {
    **{f"TOPK_V2-{t}": partial(top_k, dtype=t)
       for t in ("float32", "int8", "uint8", "int16", "int32", "int64")},
    **{f"TOPK_V2-{t}-many": partial(top_k, dtype=t, length=1500) for t in ("float32", "int8")},
    **{f"SCATTER_ND-{'computed-' if computed else ''}{t}": partial(
        scatter_nd, dtype=t, computed=computed)
       for computed in (False, True) for t in ("float32", "int8", "uint8", "int32")},
    **{f"{n}-{t}": partial(segments, name=n, dtype=t)
       for n in ("SEGMENT_SUM", *_UNSORTED) for t in ("float32", "int32")},
    **{f"SPARSE_TO_DENSE-{t}": partial(sparse_to_dense, dtype=t)
       for t in ("float32", "int8", "uint8", "int32")},
    **{f"REVERSE_SEQUENCE-{t}": partial(reverse_sequence, dtype=t)
       for t in ("float32", "uint8", "int16", "int32")},
    **{f"{n}-{t}": partial(diagonal, name=n, dtype=t)
       for n in ("MATRIX_DIAG", "MATRIX_SET_DIAG") for t in ("float32", "int8", "uint8", "int32")},
    **{f"BITCAST-{a}-{b}": partial(bitcast, source=a, target=b)
       for a, b in (("float32", "int32"), ("int32", "float32"), ("int32", "int8"),
                    ("int16", "int32"), ("uint8", "int32"), ("int64", "int32"))},
    "BROADCAST_ARGS-float32": broadcast_arguments,
}  # fmt: skip
