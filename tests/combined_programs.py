"""Programs that combine quantized operations as models do, each with its results.

A family is a function that builds a program of some parameters. `PROGRAMS` has those of the modules
that were imported by name: `combined_networks`, `combined_flow`, `combined_ranges` and
`combined_tosa`. They are written from the specifications alone (StableHLO, TOSA, the sub-channel
and the reduction RFC); `tests/combined_graph.py` says how the results are computed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from combined_graph import Graph
from combined_values import Ambiguous, Quantized, Value, Values


@dataclass(frozen=True)
class Program:
    """A program, its arguments, and its expected results: integers, or reals with a bound."""

    text: str
    inputs: tuple[np.ndarray, ...]
    expected: tuple[tuple[np.ndarray, np.ndarray | None], ...]

    def check(self, got: Any) -> None:
        """Compare all results."""
        results = got if isinstance(got, tuple | list) else (got,)
        assert len(results) == len(self.expected)
        for at, (result, (want, bound)) in enumerate(zip(results, self.expected, strict=True)):
            result = np.asarray(result)
            assert result.shape == want.shape, f"result {at} has the shape {result.shape}"
            if bound is None:
                np.testing.assert_array_equal(result, want, err_msg=f"result {at}")
            else:
                off = abs(result.astype(np.float64) - want)
                worst = np.max(off - bound, initial=-np.inf)
                assert (off <= bound).all(), f"result {at} is off by {worst} more than its bound"


Family = Callable[[Graph], Values]


def program_of(family: Family, name: str) -> Program:
    """Draw the inputs of a program until no rounding of a float decides an integer."""
    for draw in range(200):
        g = Graph(np.random.default_rng([zlib.crc32(name.encode()), draw]))
        try:
            g.results = list(family(g))
        except Ambiguous:
            continue
        break
    else:
        raise AssertionError(f"{name}: every draw of inputs is near a tie")
    expected = tuple(
        (v.array, np.broadcast_to(np.abs(v.bound) + 1e-30, v.shape))
        if v.element == "f32"
        else (_array(v), None)
        for v in g.results
    )
    return Program(g.text(), tuple(_array(v) for v in g.arguments), expected)


def _array(value: Value) -> np.ndarray:
    if isinstance(value.element, Quantized):
        return value.element.in_storage(value.array)
    kinds = {"f32": np.float32, "f64": np.float64, "i1": np.bool_}
    return value.array.astype(kinds.get(value.element, value.element.replace("i", "int")))


PROGRAMS: dict[str, Family] = {}


def family(*cases: tuple[Any, ...]) -> Callable[[Callable[..., Values]], Any]:
    """Register a family, with the arguments of each of its programs."""

    def register(build: Callable[..., Values]) -> Callable[..., Values]:
        for at, case in enumerate(cases):
            PROGRAMS[f"{build.__name__}-{at}"] = lambda g, case=case: build(g, *case)
        return build

    return register


# Types


def real(
    g: Graph, storage: str, zero: bool = True, typical_scale: float = 0.05, **more: Any
) -> Quantized:
    """A per-tensor type with any f32 as its scale."""
    element = Quantized(storage, float(np.float32(typical_scale * g.rng.uniform(0.5, 2))), **more)
    return replace(element, zeros=_zero(g, element)) if zero else element


def _zero(g: Graph, element: Quantized) -> int:
    low, high = element.range
    low, high = max(low, -(2**15)), min(high, 2**15)
    return int(g.rng.choice([low, high, (low + high) // 2, g.rng.integers(low, high + 1)]))


def channels(
    g: Graph, storage: str, axis: int, count: int, typical_scale: float = 0.01, zero: bool = False
) -> Quantized:
    """A per-axis type, each scale any f32."""
    scales = np.float32(typical_scale * g.rng.uniform(0.5, 2, count)).astype(np.float64)
    element = Quantized(storage, scales, axis=axis)
    low, high = element.range
    zeros = g.rng.integers(max(low, -99), min(high, 99) + 1, count) if zero else 0
    return replace(element, zeros=np.broadcast_to(zeros, count))


def product(a: Quantized, b: Quantized, axis: int | None) -> Quantized:
    """The i32 accumulator type of products of two types, expressed in f32."""
    scales = np.float32(np.asarray(a.scales) * np.asarray(b.scales)).astype(np.float64)
    return Quantized("i32", scales, np.zeros(scales.shape, int), axis)


def like(element: Quantized, factor: float, zero: int | None = None) -> Quantized:
    """A type with another scale and zero point."""
    scale = float(np.float32(element.scales * factor))
    return replace(element, scales=scale, zeros=element.zeros if zero is None else zero)


def total_of(g: Graph, x: Value, dims: Sequence[int]) -> Value:
    """The sum of a value over some axes, accumulated in i32."""
    zero = g.argument_of(x.element, np.int64(x.element.zeros))
    return g.reduce("add", x, zero, dims, Quantized("i32", x.element.scales, 0))
