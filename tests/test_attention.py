"""``subquant.attention`` on devices and in NumPy, beside the formula in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_programs import Case, bound, expected
from devices import ON_DEVICES
from subquant.emit.trace import trace
from subquant.numerics.attention import attend
from subquant.runtime import Device
from together import Together

CASES = {
    "one query": Case(1, 4, 1, 16, 32),
    "a window": Case(1, 6, 3, 8, 40, window=7),
    "several queries": Case(5, 4, 2, 16, 32, "f32", softcap=3.0),
    "several in a window": Case(6, 4, 4, 12, 24, window=3, softcap=0.5),
    "dynamic": Case(3, 8, 2, 20, 32, window=4, dynamic=True),
    "dynamic, whole": Case(7, 3, 1, 5, 16, "f32", dynamic=True),
    "full context": Case(16, 2, 1, 8, 16, window=16),
    "a window of one": Case(2, 2, 2, 4, 8, window=1, scale=-1.0),
    "a huge window": Case(2, 2, 2, 4, 8, window=2**62),
    "int8": Case(3, 4, 2, 20, 32, "int8", window=5),
    "int8 in groups": Case(1, 4, 1, 64, 24, "int8", softcap=3.0),
    "int4 values": Case(2, 4, 2, 32, 24, "int8", value_element="int4"),
    "int4": Case(2, 2, 1, 96, 24, "int4", dynamic=True),
}

MANY_QUERIES = {
    "many queries": Case(300, 2, 1, 8, 320, "f32"),
    "many in a window": Case(300, 2, 2, 8, 320, window=100, softcap=2.0),
    "many of int8": Case(129, 2, 1, 20, 140, "int8"),
}
"""Queries that NumPy takes in several steps."""

COMPILED = Together({name: case.text for name, case in CASES.items()})


def check(actual: Any, case: Case, arrays: tuple[np.ndarray, ...], position: int) -> None:
    required = expected(case, *arrays, position)
    np.testing.assert_allclose(actual, required, rtol=0, atol=bound(case, *arrays))


@ON_DEVICES
@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_formula(name: str, device: Device) -> None:
    case, function = CASES[name], COMPILED.function(name, device)
    for count in (1, case.count, case.context) if case.dynamic else (case.count,):
        arrays = case.arrays(count)
        for position in {0, 1, 5, case.context // 2, case.context - count}:
            if position + count <= case.context:
                check(function(*arrays, np.int32(position)), case, arrays, position)


@ON_DEVICES
@pytest.mark.parametrize("name", ["one query", "dynamic"])
def test_positions_are_clamped(name: str, device: Device) -> None:
    """Positions are clamped like the starts of ``dynamic_update_slice``."""
    case, function = CASES[name], COMPILED.function(name, device)
    arrays = case.arrays(case.count)
    for position, inside in ((-1, 0), (-(2**31), 0), (2**31 - 1, case.context - case.count)):
        check(function(*arrays, np.int32(position)), case, arrays, inside)
        computed = attend(*arrays, position, case.scale, case.window, case.softcap)
        check(computed, case, arrays, inside)


@ON_DEVICES
@pytest.mark.parametrize("name", CASES)
def test_what_is_not_attended_does_not_count(name: str, device: Device) -> None:
    """A cache may hold anything behind the last position."""
    case, function = CASES[name], COMPILED.function(name, device)
    query, keys, values = case.arrays(case.count)
    position = (case.context - case.count) // 2
    required = function(query, keys, values, np.int32(position))
    for number in (np.nan, np.inf):
        heads = np.full((case.groups, case.depth), number, np.float32)
        key_format, value_format = case.formats
        keys[position + case.count :] = key_format.encode(heads)
        values[position + case.count :] = value_format.encode(-heads)
        np.testing.assert_array_equal(function(query, keys, values, np.int32(position)), required)


@pytest.mark.parametrize("name", [*CASES, *MANY_QUERIES])
def test_numpy_equals_formula(name: str) -> None:
    case = (CASES | MANY_QUERIES)[name]
    arrays = case.arrays(case.count)
    for position in {0, case.context // 2, case.context - case.count}:
        if position + case.count <= case.context:
            actual = attend(*arrays, position, case.scale, case.window, case.softcap)
            assert actual.dtype == np.float32
            check(actual, case, arrays, position)


def test_traced() -> None:
    """A function of arrays becomes the operation."""

    def function(query: Any, keys: Any, values: Any, position: Any) -> Any:
        return attend(query, keys, values, position, 0.5, window=3, softcap=2.0)

    query, keys, values = replace(CASES["one query"], count=2).arrays(2)
    arguments = [(each.shape, each.dtype) for each in (query, keys, values)]
    text = str(trace(function, [*arguments, ((), np.int32)]))
    assert '"subquant.attention"(%arg0, %arg1, %arg2, %arg3)' in text
    assert "{scale = 5.000000e-01 : f32, softcap = 2.000000e+00 : f32, window = 3 : i64}" in text
