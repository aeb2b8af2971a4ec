"""Branches and loops, with quantized arithmetic in them, beside plain loops and ONNX Runtime."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from devices import ON_DEVICES
from onnx_models import computed, end, model, node, node_tests, plain, text_of
from onnx_runtime import CPU_AND_NUMPY, check, whole
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.runtime import Device

Array = np.ndarray[Any, Any]


def graph(
    nodes: list[Any], inputs: list[str], outputs: list[str], constants: dict[str, Array]
) -> Any:
    """Return a graph of a node, whose inputs and results have no types."""
    ends = [[end(name, None) for name in names] for names in (inputs, outputs)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return helper.make_graph(nodes, "inner", *ends, tensors)


RNG = np.random.default_rng(0)
W = RNG.integers(-128, 128, (6, 6)).astype(np.int8)
CONSTANTS = {
    "s": np.float32(0.05).reshape(()), "z": np.array(9, np.uint8), "t": np.array(0.01, np.float32),
    "w": W, "u": np.array(2.0, np.float32),
}  # fmt: skip
QUANTIZED = [
    node("DequantizeLinear", ["q", "s", "z"], ["r"]),
    node("DequantizeLinear", ["w", "t"], ["v"]),
    node("MatMul", ["r", "v"], ["p"]),
    node("QuantizeLinear", ["p", "s", "z"], ["n"]),
]
"""A step from bytes ``q`` to bytes ``n``, which reads values around the graph."""


def step(q: Array) -> Array:
    """The same with exact numbers."""
    scale, other = float(np.float32(0.05)), float(np.float32(0.01))
    product = ((q.astype(int) - 9) @ W.astype(int)) * (scale * other)
    return np.clip(np.rint(product / scale) + 9, 0, 255).astype(np.uint8)


X = RNG.integers(0, 256, (3, 6)).astype(np.uint8)


def branches(condition: str) -> onnx.ModelProto:
    yes = graph(QUANTIZED, [], ["n"], {})
    no = graph([node("Identity", ["q"], ["m"])], [], ["m"], {})
    nodes = [node("If", [condition], ["y"], then_branch=yes, else_branch=no)]
    inputs: dict[str, tuple[str, Any]] = {"q": ("UINT8", (3, 6))}
    constants = dict(CONSTANTS)
    if condition == "known":
        constants["known"] = np.array(True)
    else:
        inputs[condition] = ("BOOL", ())
    return model(nodes, inputs, {"y": "UINT8"}, constants)


@ON_DEVICES
def test_a_branch(device: Device) -> None:
    for condition, expected in ((True, step(X)), (False, X)):
        (actual,) = computed(branches("c"), device, X, np.array(condition))
        np.testing.assert_array_equal(actual, expected)


def test_a_branch_that_is_known() -> None:
    """The known branch is the only one that is written, and its result stays integers."""
    proto = branches("known")
    np.testing.assert_array_equal(computed(proto, None, X)[0], step(X))
    assert "stablehlo.if" not in text_of(proto)
    assert "stablehlo.if" in text_of(branches("c"))


def looped(trips: str, condition: str, inputs: dict[str, tuple[str, Any]], scan: bool) -> Any:
    nodes = [*QUANTIZED, node("Identity", ["c"], ["d"])]
    outputs = ["d", "n"]
    if scan:
        nodes.append(node("DequantizeLinear", ["n", "s", "z"], ["e"]))
        outputs.append("e")
    body = graph(nodes, ["i", "c", "q"], outputs, {})
    last = ["y", "all"] if scan else ["y"]
    loop_nodes = [node("Loop", [trips, condition, "x"], last, body=body)]
    inputs = {"x": ("UINT8", (3, 6)), **inputs}
    constants = {**CONSTANTS, "three": np.array(3, np.int64), "true": np.array(True)}
    types = {"y": "UINT8", "all": "FLOAT"}
    return model(loop_nodes, inputs, {name: types[name] for name in last}, constants)


def repeated(count: int) -> list[Array]:
    actual = [X]
    for _ in range(count):
        actual.append(step(actual[-1]))
    return actual[1:]


@ON_DEVICES
def test_a_loop_with_a_count(device: Device) -> None:
    (actual,) = computed(looped("three", "", {}, False), device, X)
    np.testing.assert_array_equal(actual, repeated(3)[-1])


@ON_DEVICES
def test_a_loop_with_a_computed_count(device: Device) -> None:
    proto = looped("m", "", {"m": ("INT64", ())}, False)
    for count in (1, 2, 0):
        (actual,) = computed(proto, device, X, np.array(count, np.int64))
        np.testing.assert_array_equal(actual, repeated(count)[-1] if count else X)


def test_a_loop_that_moves_values(cpu: Device) -> None:
    """A tensor is carried twice, and the condition is the one before."""
    nodes = [node("Add", ["b", "b"], ["e"]), node("Identity", ["b"], ["f"])]
    loop_body = graph(nodes, ["i", "c", "a", "b"], ["c", "f", "e"], {})
    proto = model(
        [node("Loop", ["m", "", "x", "x"], ["y", "z"], body=loop_body)],
        {"x": ("FLOAT", (4,)), "m": ("INT64", ())}, {"y": "FLOAT", "z": "FLOAT"}, {},
    )  # fmt: skip
    x = np.float32([1, 2, 3, 0.5])
    for count, scales in ((0, (1, 1)), (1, (1, 2)), (3, (4, 8))):
        results = computed(proto, cpu, x, np.array(count, np.int64))
        np.testing.assert_array_equal(results, [x * scale for scale in scales])


@ON_DEVICES
def test_a_loop_with_results_of_each_iteration(device: Device) -> None:
    """Reals of each, in order."""
    actual, reals = computed(looped("three", "true", {}, True), device, X)
    np.testing.assert_array_equal(actual, repeated(3)[-1])
    expected = np.stack(repeated(3)).astype(int) - 9
    np.testing.assert_array_equal(reals, expected.astype(np.float32) * np.float32(0.05))


@ON_DEVICES
def test_a_loop_while_a_condition_holds(device: Device) -> None:
    """Doubles until a sum is large; the number of iterations is a value that it carries."""
    body = graph(
        [
            node("Mul", ["v", "u"], ["w2"]),
            node("ReduceMax", ["w2"], ["g"], keepdims=0),
            node("Less", ["g", "limit"], ["again"]),
            node("Add", ["k", "i"], ["k2"]),
        ],
        ["i", "c", "v", "k"], ["again", "w2", "k2"], {},
    )  # fmt: skip
    proto = model(
        [node("Loop", ["", "go", "x", "zero"], ["y", "k"], body=body)],
        {"x": ("FLOAT", (4,)), "limit": ("FLOAT", ())}, {"y": "FLOAT", "k": "INT64"},
        {**CONSTANTS, "go": np.array(True), "zero": np.array(0, np.int64)},
    )  # fmt: skip
    x = np.float32([1, 2, 3, 0.5])
    actual, total = computed(proto, device, x, np.float32(50.0).reshape(()))
    np.testing.assert_array_equal(actual, x * 32)
    assert total == 0 + 1 + 2 + 3 + 4


@ON_DEVICES
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.share(8)
def test_a_scan(axis: int, backward: int, device: Device) -> None:
    """Sums of rows or columns, of dequantized bytes, from either end; results along axis 1."""
    body = graph(
        [node("DequantizeLinear", ["b", "s", "z"], ["r"]), node("Add", ["a", "r"], ["n"]),
         node("Identity", ["n"], ["e"])],
        ["a", "b"], ["n", "e"], {},
    )  # fmt: skip
    proto = model(
        [node("Scan", ["zero", "x"], ["y", "all"], body=body, num_scan_inputs=1,
              scan_input_axes=[axis], scan_input_directions=[backward], scan_output_axes=[1],
              scan_output_directions=[backward])],
        {"x": ("UINT8", (3, 6))}, {"y": "FLOAT", "all": "FLOAT"},
        {**CONSTANTS, "zero": np.zeros(6 if axis == 0 else 3, np.float32)},
    )  # fmt: skip
    last, every = computed(proto, device, X)
    reals = (X.astype(np.float32) - 9) * np.float32(0.05)
    rows = reals if axis == 0 else reals.T
    rows = rows[::-1] if backward else rows
    expected = np.cumsum(rows.astype(np.float64), axis=0)
    np.testing.assert_allclose(last, expected[-1], rtol=1e-6, atol=1e-5)
    expected = expected[::-1] if backward else expected
    np.testing.assert_allclose(every, expected.T, rtol=1e-6, atol=1e-5)


@CPU_AND_NUMPY
def test_a_scan_of_no_slices(device: Device | None) -> None:
    inner = graph([node("Add", ["a", "b"], ["n"]), node("Identity", ["n"], ["e"])],
                  ["a", "b"], ["n", "e"], {})  # fmt: skip
    proto = model(
        [node("Scan", ["start", "x"], ["y", "all"], body=inner, num_scan_inputs=1)],
        {"x": ("FLOAT", (0, 6))}, {"y": "FLOAT", "all": "FLOAT"},
        {"start": np.full(6, 7, np.float32)},
    )  # fmt: skip
    last, every = computed(proto, device, np.zeros((0, 6), np.float32))
    np.testing.assert_array_equal(last, np.full(6, 7))
    assert every.shape == (0, 6)


@pytest.mark.long
def test_a_graph_in_a_graph(cpu: Device) -> None:
    """An If in a Loop, which reads values around both."""
    inner = [
        node("If", ["odd"], ["n2"],
             then_branch=graph([node("Mul", ["v", "u"], ["a"])], [], ["a"], {}),
             else_branch=graph([node("Add", ["v", "x"], ["b"])], [], ["b"], {})),
    ]  # fmt: skip
    body = graph(
        [node("Mod", ["i", "two"], ["m"]), node("Equal", ["m", "one"], ["odd"]), *inner],
        ["i", "c", "v"], ["c", "n2"], {"two": np.array(2, np.int64), "one": np.array(1, np.int64)},
    )  # fmt: skip
    proto = model(
        [node("Loop", ["three", "", "x"], ["y"], body=body)],
        {"x": ("FLOAT", (4,))}, {"y": "FLOAT"}, {**CONSTANTS, "three": np.array(3, np.int64)},
    )  # fmt: skip
    x = np.float32([1, 2, 3, 0.5])
    np.testing.assert_array_equal(computed(proto, cpu, x)[0], (x + x) * 2 + x)


def chosen(yes: Any, no: Any) -> onnx.ModelProto:
    """A model of one If."""
    nodes = [node("If", ["c"], ["y"], then_branch=yes, else_branch=no)]
    return model(nodes, {"c": ("BOOL", ()), "x": ("FLOAT", (4,))}, {"y": "FLOAT"}, {})


SAME = graph([node("Identity", ["x"], ["b"])], [], ["b"], {})
REFUSED: dict[str, tuple[Any, type[SubquantError], str]] = {
    "inner node": (
        chosen(graph([node("RandomUniformLike", ["x"], ["a"])], [], ["a"], {}), SAME),
        UnsupportedError,
        "node 0 (If) 'the If', then_branch: node 0 (RandomUniformLike) 'the RandomUniformLike'",
    ),
    "name": (
        chosen(graph([node("Relu", ["?"], ["a"])], [], ["a"], {}), graph([], [], ["x"], {})),
        InputError,
        "node 0 (If) 'the If', then_branch: node 0 (Relu) 'the Relu' reads '?', which nothing",
    ),
    "types": (
        chosen(graph([node("Cast", ["x"], ["a"], to=6)], [], ["a"], {}), SAME),
        SubquantError,
        "node 0 (If) 'the If' ",
    ),
    "shapes": (
        model([node("Loop", ["", "go", "x"], ["y"],
                    body=graph([node("Concat", ["v", "v"], ["w"], axis=0)],
                               ["i", "c", "v"], ["c", "w"], {}))],
              {"go": ("BOOL", ()), "x": ("FLOAT", (4,))}, {"y": "FLOAT"}, {}),
        UnsupportedError,
        "node 0 (Loop) 'the Loop' makes FLOAT of shape [8] of tensor 'x', which is FLOAT of shape",
    ),
    "results": (
        looped("m", "", {"m": ("INT64", ())}, True),
        UnsupportedError,
        "node 0 (Loop) 'the Loop' needs tensor 'm' to be constant, or the Min of a number and a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_graphs_are_named(name: str) -> None:
    proto, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        text_of(proto)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["if", "loop11", "scan9_sum", "scan9_multi_state", "scan9_scalar"])
def test_onnx_computes_the_same(name: str) -> None:
    actual = node_tests("if_", "loop", "scan")
    if name not in actual:
        pytest.skip(f"the package onnx has no {name}")
    case = actual[name]
    for inputs, expected in case.data_sets:
        results = computed(case.model, None, *map(plain, inputs))
        for result, reference in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, plain(reference))


# -- results of as many iterations as the program finds -------------------------------------------


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
STOPPING = {"stops": ("BOOL", []), **{n: v for n, v in BY_CONDITION.items() if n != "goes_on"}}
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
    nodes = [
        node("Identity", ["number"], ["number_out"]),
        node("Constant", [], ["stops"], value=numpy_helper.from_array(np.array(False))),
    ]
    graph = body([*map(copy.deepcopy, STEP), *nodes], outputs)
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
    "a condition that is constant false": looping("most", "true", STOPPING),
}


@pytest.mark.parametrize(
    ("kind", "device_name"),
    [
        *((kind, name) for kind in LOOPS for name in ("numpy", "cpu")),
        *(
            pytest.param(kind, "vulkan", marks=pytest.mark.vulkan)
            for kind in ("the Min of an argument", "no iteration")
        ),
    ],
)
@pytest.mark.share(10)
def test_results_are_as_many_as_iterations(kind: str, device: Device | None) -> None:
    check(*LOOPS[kind], device, tolerance=1e-6)


@CPU_AND_NUMPY
def test_iterations_slice_by_their_number(device: Device | None) -> None:
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
    check(whole([loop], inputs, types, constants), inputs, device)


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
