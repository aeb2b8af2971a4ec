"""Layers of `subquant.torch.nn` with batches of several sizes, compared with those of NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

import subquant.torch  # noqa: E402  (needs torch)
from subquant import ops  # noqa: E402
from subquant.layouts import InferenceTensor  # noqa: E402
from subquant.torch import nn  # noqa: E402
from test_torch_layers import (  # noqa: E402
    FLOAT_ERROR,
    QUANTIZERS,
    error_of,
    integer_theta,
    normal,
    quantized,
    reals,
)

Case = tuple[torch.nn.Module, Callable[[Any], Any], tuple[int, ...]]


def cases() -> dict[str, Case]:
    """A module, the function of NumPy, and the shape of an input without its batch."""
    named: dict[str, Case] = {}
    for name in QUANTIZERS:
        linear = integer_theta(name, normal(32, 64))
        named[f"linear {name}"] = nn.Linear(linear), ops.Linear(linear), (64,)
        named[f"linear of rank 3 {name}"] = nn.Linear(linear), ops.Linear(linear), (5, 64)
        convolution = integer_theta(name, normal(16, 8, 3, 3))
        layer = ops.Conv2d(convolution, padding=(1, 1))
        named[f"convolution {name}"] = nn.Conv2d(convolution, padding=1), layer, (8, 9, 9)
    for name, how in (("axis", {"granularity": "axis"}), ("blocks", {"bits": 4})):
        lookup = functools.partial(rows_of, quantized(normal(50, 64), **how))
        named[f"embedding {name}"] = nn.Embedding(lookup.args[0]), lookup, (3,)
    blocks = quantized(normal(32, 64), bits=4)
    named["linear of blocks"] = nn.Linear(blocks), lambda x: ops.linear(x, blocks), (5, 64)
    return named


def rows_of(table: InferenceTensor, ids: np.ndarray) -> Any:
    return ops.embedding_lookup(ids, table)


CASES = cases()


@functools.cache
def batches_compiled() -> Any:
    """One executable with a function for each case."""
    batch, programs = torch.export.Dim("batch", min=1, max=64), {}
    for name, (module, _, shape) in CASES.items():
        example = torch.from_numpy(inputs_of(name, 4, shape))
        programs[function_of(name)] = torch.export.export(
            module.eval(), (example,), dynamic_shapes=({0: batch},)
        )
    return subquant.torch.compile(programs)


def inputs_of(name: str, size: int, shape: tuple[int, ...]) -> np.ndarray:
    if name.startswith("embedding"):
        return np.random.default_rng(size).integers(0, 50, (size, *shape))
    return normal(size, *shape, seed=size)


def function_of(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name)


@pytest.mark.parametrize("name", CASES)
def test_one_executable_takes_three_sizes_of_a_batch(name: str) -> None:
    module, function, shape = CASES[name]
    for size in (1, 7, 64):
        x = inputs_of(name, size, shape)
        expected = reals(function(x))
        eager = module(torch.from_numpy(x)).numpy()
        compiled = batches_compiled().call(function_of(name), torch.from_numpy(x)).numpy()
        if name == "linear of blocks":  # a sum of floats
            assert max(error_of(each, expected) for each in (eager, compiled)) < FLOAT_ERROR
        else:
            assert np.array_equal(eager, expected)
            assert np.array_equal(compiled, expected)
