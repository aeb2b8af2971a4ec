"""Sparse and empty constants of TensorFlow Lite models, beside LiteRT's DENSIFY."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from litert import LiteRt, compare
from subquant.errors import InputError, UnsupportedError
from subquant.importers.tflite import Interpreter
from subquant.importers.tflite.reading.model import read_tflite
from subquant.runtime import Device
from tflite_builder import Array, Graph, Quantized, assign, f32, schema

_DENSE, _SPARSE = 0, 1


def sparse(
    values: Array, order: list[int], formats: list[int], blocks: dict[int, int], width: int = 32
) -> tuple[Array, Any]:
    """The elements of an array that are kept, and where they belong.

    Levels are dimensions, then those of blocks; each has a format. Blocks have an extent for each
    dimension that is cut.
    """
    s, rank = schema(), values.ndim
    extents = [n // blocks.get(axis, 1) for axis, n in enumerate(values.shape)]
    extents += list(blocks.values())
    sizes = [extents[dimension] for dimension in order]
    expanded = np.zeros(sizes, values.dtype)
    for position in itertools.product(*map(range, sizes)):
        at = dict(zip(order, position, strict=True))
        index = []
        for axis in range(rank):
            inner = list(blocks).index(axis) if axis in blocks else None
            index.append(at[axis] if inner is None else at[axis] * blocks[axis] + at[rank + inner])
        expanded[position] = values[tuple(index)]
    kind = {8: "Uint8Vector", 16: "Uint16Vector", 32: "Int32Vector"}[width]
    levels, prefixes = [], [()]
    for level, is_sparse in enumerate(formats):
        table = s.DimensionMetadataT()
        table.format, table.denseSize = is_sparse, 0 if is_sparse else sizes[level]
        below: list[tuple[int, ...]] = []
        segments, indices = [0], []
        for prefix in prefixes:
            for number in range(sizes[level]):
                entry = (*prefix, number)
                if not is_sparse or expanded[entry].any():
                    below.append(entry)
                    indices.append(number)
            segments.append(len(indices))
        if is_sparse:
            for name, numbers in (("Segments", segments), ("Indices", indices)):
                part = getattr(s, f"{kind}T")()
                part.values = numbers
                setattr(table, f"array{name}", part)
                setattr(table, f"array{name}Type", getattr(s.SparseIndexVector, kind))
        levels.append(table)
        prefixes = below
    parameters = s.SparsityParametersT()
    parameters.traversalOrder, parameters.blockMap = order, list(blocks)
    parameters.dimMetadata = levels
    return np.array([expanded[entry] for entry in prefixes], values.dtype), parameters


CASES: dict[str, tuple[list[int], list[int], dict[int, int]]] = {
    "rows": ([0, 1], [_DENSE, _SPARSE], {}),
    "both": ([0, 1], [_SPARSE, _SPARSE], {}),
    "columns": ([1, 0], [_DENSE, _SPARSE], {}),
    "blocks": ([0, 1, 2], [_DENSE, _SPARSE, _DENSE], {1: 4}),
    "blocks of both": ([0, 1, 2, 3], [_DENSE, _SPARSE, _DENSE, _DENSE], {0: 2, 1: 4}),
    "dense": ([0, 1], [_DENSE, _DENSE], {}),
}


def drawn(seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.integers(-127, 128, (6, 8)).astype(np.float32)
    blocks = rng.random((3, 2)) < 0.5
    return values * np.kron(blocks, np.ones((2, 4))).astype(np.float32)


def densified(values: Array, parameters: Any, shape: tuple[int, ...] = (6, 8)) -> bytes:
    """A model that adds a sparse constant, by DENSIFY, to its argument."""
    graph = Graph()
    operand = graph.tensor(shape, "float32")
    constant = graph.tensor(shape, values.dtype.name, None, values)
    graph._tensors[constant].sparsity = parameters
    _, dense = graph.apply("DENSIFY", [constant], [f32(*shape)], "DensifyOptions")
    _, results = graph.apply("ADD", [operand, *dense], [f32(*shape)], "AddOptions")
    return graph.model([operand], results)


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("case", CASES)
def test_constants_are_densified_as_litert_does(case: str, width: int) -> None:
    values = drawn()
    data = densified(*sparse(values, *CASES[case], width))
    zeros = np.zeros((6, 8), np.float32)
    np.testing.assert_array_equal(Interpreter(read_tflite(data)).run(0, [zeros])[0], values)
    assert compare(data, None, 2, tolerance=0) > 0


def test_sparse_weights_of_a_product(cpu: Device) -> None:
    """LiteRT has its own kernel of sparse weights: float, in rows."""
    stored, parameters = sparse(drawn(1), *CASES["rows"])
    graph = Graph()
    ends = graph.apply(
        "FULLY_CONNECTED",
        [f32(3, 8), ((6, 8), "float32", None, stored), np.arange(6, dtype=np.float32)],
        [f32(3, 6)], "FullyConnectedOptions",
    )  # fmt: skip
    graph._tensors[1].sparsity = parameters
    data = graph.model(*ends)
    assert compare(data, None, 2) > 0
    assert compare(data, cpu, 2) > 0


def test_sparse_int8_weights_have_scales() -> None:
    values = drawn(2).astype(np.int8)
    stored, parameters = sparse(values, *CASES["blocks"])
    graph = Graph()
    ends = graph.apply(
        "FULLY_CONNECTED",
        [((3, 8), "int8", Quantized(0.5, 3)), ((6, 8), "int8", Quantized(0.1), stored), -1],
        [((3, 6), "int8", Quantized(4.0, -1))], "FullyConnectedOptions",
    )  # fmt: skip
    graph._tensors[1].sparsity = parameters
    model = read_tflite(graph.model(*ends))
    rows = np.random.default_rng(0).integers(-128, 128, (3, 8)).astype(np.int8)
    reals = (rows.astype(np.float64) - 3) @ values.T.astype(np.float64) * 0.05
    expected = np.clip(np.rint(reals / 4 - 1), -128, 127)
    np.testing.assert_allclose(Interpreter(model).run(0, [rows])[0], expected, atol=1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("traversalOrder", [0, 0], "has the traversal order [0, 0]"),
        ("dimMetadata.1.arraySegments.values", [0, 100, 3, 3, 3, 3, 3], "has segments"),
        ("dimMetadata.1.arrayIndices.values.0", 8, "has an index outside of dimension 1"),
        ("dimMetadata.0.denseSize", 1 << 30,
         "has 1073741824 entries along dimension 0 of [6, 8]"),
        ("blockMap", [5], "has the traversal order [0, 1] and the block map [5]"),
    ],
)  # fmt: skip
def test_contradictions_are_errors(field: str, value: Any, message: str) -> None:
    stored, parameters = sparse(drawn(), *CASES["rows"])
    assign(parameters, field, value)
    with pytest.raises(InputError, match=re.escape(f"tensor 1 't1' {message}")):
        read_tflite(densified(stored, parameters))


def test_a_sparse_constant_with_a_zero_point_is_refused() -> None:
    stored, parameters = sparse(drawn().astype(np.int8), *CASES["rows"])
    graph = Graph()
    constant = graph.tensor((6, 8), "int8", Quantized(0.5, 3), stored)
    graph._tensors[constant].sparsity = parameters
    with pytest.raises(UnsupportedError, match="sparse with zero points other than 0"):
        read_tflite(graph.model([], []))


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_an_empty_shape_reshapes_to_a_scalar(shape: tuple[int, ...], cpu: Device) -> None:
    graph = Graph()
    [operand], [scalar] = graph.apply("RESHAPE", [f32(*shape), []], [f32()], "ReshapeOptions")
    [_, more], results = graph.apply("MUL", [scalar, f32(2, 3)], [f32(2, 3)], "MulOptions")
    data = graph.model([operand, more], results)
    LiteRt(data)
    assert compare(data, None, 2, tolerance=0) > 0
    assert compare(data, cpu, 2, tolerance=0) > 0
