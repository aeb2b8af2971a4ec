"""Loops with results of as many iterations as the program finds, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_models import end, node, text_of
from subquant.errors import UnsupportedError
from subquant.runtime import Device
from test_onnx_dynamic_sizes import check, whole

Array = np.ndarray[Any, Any]


def body(nodes: list[Any], outputs: dict[str, tuple[str, list[int]]]) -> Any:
    """The graph of an iteration, which carries ``sum``; its results have the types of outputs."""
    inputs = {"number": ("INT64", []), "goes": ("BOOL", []), "sum": ("FLOAT", [2])}
    for number, each in enumerate(nodes):
        each.name = f"inner {number}"
    ends = [[end(*each) for each in named.items()] for named in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *ends)


STEP = [
    node("Add", ["sum", "x"], ["next"]),
    node("Mul", ["next", "next"], ["square"]),
    node("ReduceSum", ["next"], ["total"], keepdims=0),
    node("Less", ["total", "limit"], ["goes_on"]),
    node("Identity", ["goes"], ["same"]),
]
BY_CONDITION = {
    "goes_on": ("BOOL", []), "next": ("FLOAT", [2]), "square": ("FLOAT", [2]),
    "number_out": ("INT64", []),
}  # fmt: skip
COUNTED = {"same": ("BOOL", []), **{n: v for n, v in BY_CONDITION.items() if n != "goes_on"}}
AFTER = [
    node("Mul", ["squares", "two"], ["doubled"]),
    node("Shape", ["squares"], ["extents"]),
    node("ReduceSum", ["squares", "zero"], ["column_sums"], keepdims=0),
]


def looping(
    iterations: str, condition: str, outputs: dict[str, tuple[str, list[int]]], limit: float = 3,
    most: int | None = 6, count: int = 4,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """A loop that adds ``x`` until the total is not below a limit, and results behind it."""
    nodes = [node("Identity", ["number"], ["number_out"])]
    graph = body([*(helper_copy(each) for each in STEP), *nodes], outputs)
    constants: dict[str, Any] = {
        "two": np.float32(2), "zero": np.array([0]), "true": np.array(True),
        "start": np.zeros(2, np.float32),
    }  # fmt: skip
    if most is not None:
        constants["most"] = np.array(most)
    inputs = {
        "x": np.array([0.75, 0.5], np.float32), "limit": np.array(limit, np.float32),
        "n": np.array(count),
    }  # fmt: skip
    before = [node("Min", ["n", "most"], ["fewer"])] if iterations == "fewer" else []
    if condition == "computed":
        before.append(node("Greater", ["limit", "two"], ["computed"]))
    loop = node("Loop", [iterations, condition, "start"], ["last", "squares", "numbers"],
                body=graph)  # fmt: skip
    types = {
        "last": "FLOAT", "squares": "FLOAT", "numbers": "INT64", "doubled": "FLOAT",
        "extents": "INT64", "column_sums": "FLOAT",
    }  # fmt: skip
    return whole([*before, loop, *AFTER], inputs, types, constants, 18), inputs


def helper_copy(proto: Any) -> Any:
    """A copy of a node."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


LOOPS = {
    "a constant maximum and a computed condition": looping("most", "true", BY_CONDITION),
    "no first condition": looping("most", "", BY_CONDITION),
    "all iterations": looping("most", "true", BY_CONDITION, limit=100),
    "a computed first condition": looping("most", "computed", BY_CONDITION),
    "no iteration": looping("most", "computed", BY_CONDITION, limit=1),
    "the Min of an argument": looping("fewer", "", COUNTED),
    "the Min of an argument and a condition": looping("fewer", "true", BY_CONDITION, most=2),
    "an argument of 0": looping("fewer", "true", BY_CONDITION, count=0),
    "a negative argument": looping("fewer", "", COUNTED, count=-3),
    "one iteration at most": looping("most", "computed", BY_CONDITION, most=1),
    "a constant of 0": looping("most", "true", COUNTED, most=0),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_results_are_as_many_as_iterations(kind: str, cpu: Device) -> None:
    check(*LOOPS[kind], cpu, tolerance=1e-6)


@pytest.mark.parametrize("kind", LOOPS)
def test_numpy_computes_as_many_results_as_iterations(kind: str) -> None:
    check(*LOOPS[kind], None, tolerance=1e-6)


@pytest.mark.parametrize("kind", ["the Min of an argument", "no iteration"])
def test_results_are_as_many_as_iterations_on_vulkan(kind: str, vulkan: Device) -> None:
    check(*LOOPS[kind], vulkan, tolerance=1e-6)


@pytest.mark.parametrize("is_numpy", [False, True])
def test_iterations_slice_by_their_number(is_numpy: bool, cpu: Device) -> None:
    nodes = [
        node("Add", ["number", "one"], ["end"]),
        node("Unsqueeze", ["end", "zero"], ["ends"]),
        node("Slice", ["values", "zero", "ends"], ["part"]),
        node("ReduceSum", ["part"], ["part_sum"], keepdims=0),
        node("Add", ["sum", "part_sum"], ["next"]),
        node("Identity", ["goes"], ["same"]),
        node("Identity", ["number"], ["number_out"]),
    ]
    outputs = {
        "same": ("BOOL", []), "next": ("FLOAT", [2]), "part_sum": ("FLOAT", []),
        "number_out": ("INT64", []),
    }  # fmt: skip
    loop = node("Loop", ["five", "", "x"], ["last", "sums", "numbers"], body=body(nodes, outputs))
    inputs = {"x": np.ones(2, np.float32), "values": np.arange(1, 8, dtype=np.float32)}
    constants = {"five": np.array(5), "one": np.array(1), "zero": np.array([0])}
    types = {"last": "FLOAT", "sums": "FLOAT", "numbers": "INT64"}
    check(whole([loop], inputs, types, constants), inputs, None if is_numpy else cpu)


def test_a_loop_over_valid_rows_has_their_bound(cpu: Device) -> None:
    proto, inputs = looping("rows", "", COUNTED)
    nodes = [
        node("NonZero", ["x"], ["columns"]), node("Shape", ["columns"], ["shape"]),
        node("Gather", ["shape", "one"], ["rows"]),
    ]  # fmt: skip
    for number, each in enumerate(nodes):
        each.name = f"before {number}"
        proto.graph.node.insert(number, each)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    check(proto, {**inputs, "x": np.array([0.5, 0], np.float32)}, cpu)


def test_an_unbounded_number_of_results_is_refused_by_name() -> None:
    proto, _ = looping("n", "", COUNTED)
    message = r"Loop.*needs tensor 'n' to be constant, or the Min.*known only when"
    with pytest.raises(UnsupportedError, match=message):
        text_of(proto)
