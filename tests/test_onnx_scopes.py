"""Visibility of names in graphs of nodes, also after a form of a loop was refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.helper import make_node as node

from onnx_models import computed, end, model, text_of
from onnx_runtime import check
from subquant.errors import InputError, UnsupportedError
from subquant.runtime import Device

CONSTANTS = {"two": np.int64(2), "true": np.array(True), "first": np.array([0]),
             "one": np.array([1]), "zero": np.float32(0)}  # fmt: skip


def graph(name: str, nodes: list[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """A body or a branch, with inputs and results of the types of pairs."""
    return helper.make_graph(nodes, name, [end(*each) for each in inputs],
                             [end(*each) for each in outputs])  # fmt: skip


def body(name: str, nodes: list[Any], carried: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """The body of a Loop that goes on."""
    inputs = [(f"{name}.i", ("INT64", ())), (f"{name}.go", ("BOOL", ())), *carried]
    keep = node("Identity", [f"{name}.go"], [f"{name}.goes"])
    return graph(name, [keep, *nodes], inputs, [(f"{name}.goes", ("BOOL", ())), *outputs])


@pytest.mark.parametrize("kind", ["Loop", "If"])
def test_graphs_after_a_loop_that_is_unrolled_read_values_before_them(
    kind: str, cpu: Device
) -> None:
    """The slice needs a constant number of the iteration, so the loop as such is refused."""
    rows = body(
        "a",
        [node("Unsqueeze", ["a.i", "first"], ["from"]), node("Add", ["from", "one"], ["to"]),
         node("Slice", ["x", "from", "to", "first"], ["row"])],
        [], [("row", "FLOAT")],
    )  # fmt: skip
    last = node(
        "Loop", ["two", "true", "x"], ["y"],
        body=body("b", [node("Add", ["z", "sum"], ["next"])], [("sum", ("FLOAT", (3,)))],
                  [("next", ("FLOAT", (3,)))]),
    ) if kind == "Loop" else node(
        "If", ["c"], ["y"],
        then_branch=graph("then", [node("Add", ["z", "z"], ["t"])], [], [("t", "FLOAT")]),
        else_branch=graph("else", [node("Identity", ["z"], ["e"])], [], [("e", "FLOAT")]),
    )  # fmt: skip
    nodes = [node("Loop", ["two", "true"], ["rows"], body=rows),
             node("ReduceSum", ["rows"], ["s"], keepdims=0), node("Add", ["x", "s"], ["z"]),
             last]  # fmt: skip
    x = np.random.default_rng(0).normal(size=3).astype(np.float32)
    inputs = {"x": x, "c": np.array(True)} if kind == "If" else {"x": x}
    check(model(nodes, inputs, {"y": "FLOAT"}, CONSTANTS), inputs, cpu, 1e-6)


def test_the_bound_of_a_loop_is_that_of_its_own_number() -> None:
    """A name that another body computes as a Min is an input of this body."""
    minima = body(
        "a",
        [node("Min", ["k", "two"], ["n"]), node("Cast", ["n"], ["m"], to=1),
         node("Add", ["sum", "m"], ["next"])],
        [("sum", ("FLOAT", ()))], [("next", ("FLOAT", ()))],
    )  # fmt: skip
    numbers = body("c", [node("Cast", ["c.i"], ["row"], to=1)], [], [("row", ("FLOAT", ()))])
    outer = body(
        "b",
        [node("Loop", ["n", "true"], ["rows"], body=numbers),
         node("ReduceSum", ["rows"], ["of rows"], keepdims=0),
         node("Add", ["total", "of rows"], ["following"]), node("Identity", ["n"], ["same"])],
        [("n", ("INT64", ())), ("total", ("FLOAT", ()))],
        [("same", ("INT64", ())), ("following", ("FLOAT", ()))],
    )  # fmt: skip
    nodes = [node("Loop", ["two", "true", "zero"], ["p"], body=minima),
             node("Loop", ["two", "true", "k", "zero"], ["q", "r"], body=outer),
             node("Add", ["p", "r"], ["y"])]  # fmt: skip
    proto = model(nodes, {"k": ("INT64", ())}, {"y": "FLOAT"}, CONSTANTS)
    k = np.array(5)
    check(proto, {"k": k}, None)
    with pytest.raises(UnsupportedError, match="needs tensor 'n' to be constant, or the Min"):
        computed(proto, Device("llvm-cpu"), k)


def test_a_constant_of_a_branch_with_the_name_of_an_outer_one_is_refused() -> None:
    """ONNX forbids it, and ONNX Runtime reads the outer one."""
    branches = [graph(name, [node("Add", ["x", "k"], [name])], [], [(name, "FLOAT")])
                for name in ("then", "else")]  # fmt: skip
    branches[1].initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "k"))
    nodes = [node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])]
    inputs = {"x": ("FLOAT", (3,)), "c": ("BOOL", ())}
    proto = model(nodes, inputs, {"y": "FLOAT"}, {"k": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match=r"node 0 \(If\), else_branch: has a constant .* 'k'"):
        text_of(proto)


def test_nodes_may_follow_their_readers(cpu: Device) -> None:
    """ONNX Runtime's conversion to 16-bit floats writes such models."""
    branches = [
        graph(name, [node("Add", ["y", operand], [f"{name}.r"])], [], [(f"{name}.r", "FLOAT")])
        for name, operand in (("then", "x"), ("else", "y"))
    ]
    nodes = [node("If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1]),
             node("Neg", ["z"], ["y"]), node("Mul", ["x", "x"], ["z"])]  # fmt: skip
    x = np.random.default_rng(0).normal(size=3).astype(np.float32)
    inputs = {"x": x, "c": np.array(True)}
    check(model(nodes, inputs, {"r": "FLOAT"}, {}), inputs, cpu)
    nodes[2].input[0] = "y"
    with pytest.raises(InputError, match="reads 'y', which nothing computed before"):
        text_of(model(nodes, inputs, {"r": "FLOAT"}, {}))
