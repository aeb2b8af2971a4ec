"""A dynamic batch of ONNX models: graphs of nodes, sequences, slices, and copies for each element.

ONNX Runtime computes the whole batch at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.helper import make_node as node

from onnx_models import MICROSOFT, end, model
from onnx_runtime import run_onnx_runtime
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import UnsupportedError
from subquant.runtime import Device, Executable

END = 2**63 - 1
DYNAMIC = CompileOptions(batch="dynamic")


def graph(name: str, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
    """A branch, or the body of a loop."""
    ends = [[end(*each) for each in named.items()] for named in (inputs, outputs)]
    return helper.make_graph(nodes, name, *ends)


def branch(name: str) -> Any:
    """A branch that computes a mean of the whole batch, which the graph captures."""
    nodes = [node("ReduceMean", ["x", "first"], [name], keepdims=1)]
    return graph(name, nodes, {}, {name: "FLOAT"})


BODY = graph(
    "body",
    [node("Identity", ["go"], ["goes"]), node("ReduceMean", ["x", "first"], ["mean"]),
     node("Add", ["mean", "sum"], ["next"])],
    {"step": ("INT64", ()), "go": ("BOOL", ()), "sum": ("FLOAT", (1, 4))},
    {"goes": ("BOOL", ()), "next": ("FLOAT", (1, 4))},
)  # fmt: skip
SLICES = graph(
    "slices",
    [node("ReduceMean", ["x", "first"], ["mean"]), node("Add", ["mean", "sum"], ["next"]),
     node("Identity", ["slice"], ["copy"])],
    {"sum": ("FLOAT", (1, 4)), "slice": ("FLOAT", (4,))},
    {"next": ("FLOAT", (1, 4)), "copy": ("FLOAT", (4,))},
)  # fmt: skip
SIZES = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "first"], ["count"]),
         node("Concat", ["count", "four"], ["shape"], axis=0),
         node("Expand", ["s", "shape"], ["copies"])]  # fmt: skip


def batched(nodes: list[Any], opset: int = 21) -> onnx.ModelProto:
    """A model with a batch of rows ``x``, a row ``s``, and a condition ``c``."""
    inputs = {"x": ("FLOAT", ("n", 4)), "s": ("FLOAT", (1, 4)), "c": ("BOOL", ())}
    constants = {
        "first": np.array([0]), "second": np.array([1]), "four": np.array([4]), "two": np.int64(2),
        "whole": np.array([END]), "some": np.array([15]), "last": np.array([-15]),
        "true": np.array(True), "zero": np.int64(0), "row": np.zeros((1, 4), np.float32),
        "rows": np.zeros((2, 4), np.float32), "token": np.arange(4, dtype=np.float32)[None],
    }  # fmt: skip
    return model(nodes, inputs, {"y": "FLOAT"}, constants, opset)


MIXED = {
    "if": [node("If", ["c"], ["m"], then_branch=branch("a"), else_branch=branch("b")),
           node("Sub", ["x", "m"], ["y"])],
    "constant if": [
        node("If", ["true"], ["m"], then_branch=branch("a"), else_branch=branch("b")),
        node("Sub", ["x", "m"], ["y"])],
    "loop": [node("Loop", ["two", "true", "row"], ["m"], body=BODY),
             node("Sub", ["x", "m"], ["y"])],
    "scan": [node("Scan", ["row", "rows"], ["m", "r"], body=SLICES, num_scan_inputs=1),
             node("Sub", ["x", "m"], ["y"])],
    "sequence": [node("SplitToSequence", ["x", "two"], ["q"], axis=1),
                 node("SequenceAt", ["q", "zero"], ["y"])],
    "first rows": [node("Slice", ["x", "first", "some", "first"], ["y"])],
    "last rows": [node("Slice", ["x", "last", "whole", "first"], ["y"])],
    "cumulative sum": [node("CumSum", ["x", "zero"], ["y"])],
    "arg max": [node("ArgMax", ["x"], ["m"]), node("Cast", ["m"], ["f"], to=1),
                node("Add", ["x", "f"], ["y"])],
    "triangle": [node("Trilu", ["x"], ["t"]), node("Add", ["x", "t"], ["y"])],
    "gather": [node("Cast", ["x"], ["i"], to=7), node("GatherElements", ["x", "i"], ["y"], axis=0)],
    "einsum": [node("Einsum", ["x", "x"], ["t"], equation="ij,ik->jk"),
               node("MatMul", ["x", "t"], ["y"])],
    "copies": [*SIZES, node("ReduceSum", ["copies", "first"], ["m"]),
               node("Add", ["x", "m"], ["y"])],
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_nodes_that_read_the_whole_batch_are_refused(name: str) -> None:
    """Each element alone would be computed otherwise."""
    with pytest.raises(UnsupportedError, match=r"of the batch.*; give --batch a number"):
        compile_to_bytes(batched(MIXED[name]).SerializeToString(), DYNAMIC, emit="mlir")


def test_first_rows_of_older_operator_sets_are_refused() -> None:
    proto = batched([node("Slice", ["x"], ["y"], starts=[0, 1], ends=[15, 3])], 9)
    with pytest.raises(UnsupportedError, match=r"node 0 .*give --batch a number"):
        compile_to_bytes(proto.SerializeToString(), DYNAMIC, emit="mlir")


def test_slices_of_the_whole_batch_and_copies_for_each_element(cpu: Device) -> None:
    proto = batched(
        [*SIZES, node("Expand", ["token", "shape"], ["tokens"]),
         node("Concat", ["x", "copies", "tokens"], ["parts"], axis=1),
         node("Slice", ["parts", "first", "whole", "first"], ["all"]),
         node("Slice", ["all", "first", "count", "first"], ["rows of all"]),
         node("Slice", ["rows of all", "second", "whole", "second"], ["y"])]
    )  # fmt: skip
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(20, 4)), "s": rng.normal(size=(1, 4))}
    arrays: dict[str, Any] = {name: each.astype(np.float32) for name, each in feeds.items()}
    arrays["c"] = np.array(True)
    main = Executable(compile_to_bytes(proto.SerializeToString(), DYNAMIC), cpu).main
    (expected,) = run_onnx_runtime(proto, arrays)
    np.testing.assert_array_equal(main(*arrays.values()), expected)


def fused() -> onnx.ModelProto:
    """A model of operators that ONNX Runtime fuses, and others of several operands."""
    nodes = [
        node("FusedConv", ["x", "kernel", "", "x"], ["a"], activation="Relu", pads=[1] * 4,
             domain=MICROSOFT),
        node("FusedMatMul", ["a", "x"], ["b"], transB=1, alpha=0.5, domain=MICROSOFT),
        node("Einsum", ["b", "x"], ["c"], equation="nchk,nckw->nchw"),
        node("Trilu", ["c"], ["d"]),
        node("Flatten", ["d"], ["e"]),
        node("FusedGemm", ["e", "matrix"], ["y"], activation="Elu", activation_alpha=0.5,
             domain=MICROSOFT),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    kernel, matrix = (
        rng.normal(size=shape).astype(np.float32) for shape in ((2, 2, 3, 3), (18, 4))
    )
    constants = {"kernel": kernel, "matrix": matrix}
    return model(nodes, {"x": ("FLOAT", ("n", 2, 3, 3))}, {"y": "FLOAT"}, constants)


def test_fused_operators_are_imported() -> None:
    compile_to_bytes(fused().SerializeToString(), DYNAMIC, emit="mlir")


@pytest.mark.long
def test_fused_operators(cpu: Device) -> None:
    x = np.random.default_rng(1).normal(size=(5, 2, 3, 3)).astype(np.float32)
    result = Executable(compile_to_bytes(fused().SerializeToString(), DYNAMIC), cpu).main(x)
    (expected,) = run_onnx_runtime(fused(), {"x": x})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.long
def test_operators_along_another_axis_than_the_batch(cpu: Device) -> None:
    nodes = [
        node("CumSum", ["x", "last axis"], ["sums"]),
        node("TopK", ["sums", "second"], ["most", "number"], axis=1),
        node("ArgMax", ["x"], ["greatest"], axis=-1, keepdims=0),
        node("Hardmax", ["x"], ["hard"], axis=1),
        node("ReduceLogSumExp", ["x", "second"], ["total"]),
        node("Atan", ["hard"], ["angle"]),
    ]
    types = {"most": "FLOAT", "number": "INT64", "greatest": "INT64", "angle": "FLOAT",
             "total": "FLOAT"}  # fmt: skip
    constants = {"last axis": np.int64(-1), "second": np.array([1])}
    proto = model(nodes, {"x": ("FLOAT", ("n", 5))}, types, constants)
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    results = Executable(compile_to_bytes(proto.SerializeToString(), DYNAMIC), cpu).main(x)
    for result, expected in zip(results, run_onnx_runtime(proto, {"x": x}), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
