"""Box suppression, unique elements and branches that select rows, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from devices import ON_DEVICES
from onnx_models import model, node, text_of
from onnx_runtime import CPU_AND_NUMPY, Array, check, drawn, whole
from subquant.errors import InputError, UnsupportedError
from subquant.runtime import Device


def boxes(batches: int, count: int, *, is_center: bool = False, seed: int = 0) -> Array:
    """Boxes that overlap, some of which are equal, have swapped corners, or no area."""
    rng = np.random.default_rng(seed)
    corners = rng.random((batches, count, 2)) * 2
    sizes = rng.random((batches, count, 2)) * 0.8
    sizes[:, 3 % count] = 0
    if not is_center:
        sizes *= np.where(rng.random(sizes.shape) < 0.2, -1, 1)
        corners = np.concatenate([corners, corners + sizes], axis=2)
    else:
        corners = np.concatenate([corners, sizes], axis=2)
    corners[:, count // 2] = corners[:, 0]
    return corners.astype(np.float32)


def scores(batches: int, classes: int, count: int, seed: int = 0) -> Array:
    """Scores, some of which are equal."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 20, (batches, classes, count)) / 20).astype(np.float32)


NMS = {
    "all inputs": ((2, 3, 20), {"m": [4], "i": [0.4], "s": [0.3]}, {}),
    "centers": ((1, 2, 30), {"m": [10], "i": [0.2], "s": [0.5]}, {"center_point_box": 1}),
    "no threshold of scores": ((2, 2, 15), {"m": [100], "i": [0.1]}, {}),
    "no overlap": ((1, 1, 12), {"m": [5]}, {}),
    "no limit": ((1, 2, 12), {}, {}),
    "a limit of 0": ((1, 2, 12), {"m": [0], "i": [0.5]}, {}),
    "only scores": ((1, 2, 12), {"m": [1 << 62], "s": [0.6]}, {}),
    "scalars": ((1, 2, 12), {"m": 3, "i": 0.5, "s": 0.1}, {}),
    "none is good enough": ((2, 2, 12), {"m": [3], "i": [0.5], "s": [2.0]}, {}),
    "one box": ((1, 1, 1), {"m": [3], "i": [0.5], "s": [0.0]}, {}),
}
NMS_DTYPES = {"m": np.int64, "i": np.float32, "s": np.float32}


def suppression(
    kind: str, *, is_constant: bool, opset: int = 11
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one NonMaxSuppression; its limits are constants, or arguments too."""
    (batches, classes, count), limits, attributes = NMS[kind]
    arrays = {
        "b": boxes(batches, count, is_center=bool(attributes)),
        "c": scores(batches, classes, count),
    }
    limit_arrays = {name: np.asarray(value, NMS_DTYPES[name]) for name, value in limits.items()}
    names = ["b", "c", *(name if name in limit_arrays else "" for name in "mis")]
    while not names[-1]:
        names.pop()
    nms = node("NonMaxSuppression", names, ["y"], **attributes)
    inputs = arrays if is_constant else {**arrays, **limit_arrays}
    return whole([nms], inputs, {"y": "INT64"}, limit_arrays if is_constant else {}, opset), inputs


@CPU_AND_NUMPY
@pytest.mark.parametrize("kind", NMS)
def test_non_max_suppression(kind: str, device: Device | None) -> None:
    check(*suppression(kind, is_constant=True), device)


@pytest.mark.long
def test_non_max_suppression_with_computed_limits(cpu: Device) -> None:
    check(*suppression("all inputs", is_constant=False), cpu)


@pytest.mark.long
@ON_DEVICES
def test_a_detector_selects_boxes_scores_and_classes(device: Device) -> None:
    """The end of a detector: boxes behind the suppression, the best 5 of them, in one table."""
    nodes = [
        node("NonMaxSuppression", ["b", "c", "m", "i", "s"], ["selected"]),
        node("Slice", ["selected", "zero", "five", "zero"], ["head"]),
        node("Split", ["head", "ones"], ["batch", "class", "box"], axis=1),
        node("Concat", ["batch", "box"], ["box_index"], axis=1),
        node("GatherND", ["b", "box_index"], ["own_boxes"]),
        node("GatherND", ["c", "head"], ["own_scores"]),
        node("Unsqueeze", ["own_scores", "one"], ["score_column"]),
        node("Cast", ["class"], ["class_column"], to=TensorProto.FLOAT),
        node("Concat", ["own_boxes", "score_column", "class_column"], ["table"], axis=1),
        node("Gather", ["selected", "two"], ["indices"], axis=1),
        node("Squeeze", ["indices", "one"], ["flat"]),
        node("Shape", ["flat"], ["count"]),
        node("Gather", ["labels", "flat"], ["names"]),
    ]
    constants = {
        "m": [4], "zero": [0], "five": [5], "one": [1], "two": [2], "ones": [1, 1, 1],
        "i": np.array([0.4], np.float32), "s": np.array([0.5], np.float32),
        "labels": np.arange(20, dtype=np.int32) * 3,
    }  # fmt: skip
    inputs = {"b": boxes(2, 20), "c": scores(2, 3, 20)}
    outputs = {"table": "FLOAT", "count": "INT64", "names": "INT32", "selected": "INT64"}
    check(whole(nodes, inputs, outputs, constants, 13), inputs, device)


@CPU_AND_NUMPY
def test_unique_of_elements_and_slices(device: Device | None) -> None:
    rng = np.random.default_rng(3)
    inputs = {
        "f": rng.integers(-3, 3, (3, 7)).astype(np.float32) / 2,
        "i": rng.integers(-9, 9, (40,)), "b": rng.integers(0, 3, (6, 2, 2)).astype(np.int8),
        "one": np.zeros(1, np.float32),
    }  # fmt: skip
    attributes: list[tuple[str, dict[str, int]]] = [
        ("f", {}), ("f", {"sorted": 0}), ("f", {"axis": 1}), ("f", {"axis": 0, "sorted": 0}),
        ("i", {}), ("i", {"sorted": 0}), ("b", {"axis": 0}), ("b", {"axis": -1}), ("one", {}),
    ]  # fmt: skip
    nodes, types = [], {}
    for number, (name, options) in enumerate(attributes):
        outputs = [f"{kind}{number}" for kind in ("y", "first", "place", "count")]
        nodes.append(node("Unique", [name], outputs, **options))
        value = {"f": "FLOAT", "i": "INT64", "b": "INT8", "one": "FLOAT"}[name]
        types |= {outputs[0]: value, **dict.fromkeys(outputs[1:], "INT64")}
    check(whole(nodes, inputs, types), inputs, device)


def test_unique_of_many_elements_is_refused_by_name() -> None:
    inputs = {"x": np.zeros(100_000, np.float32)}
    with pytest.raises(UnsupportedError, match=r"Unique.*compares 100000 elements"):
        text_of(whole([node("Unique", ["x"], ["y"])], inputs, {"y": "FLOAT"}))


def branch(nodes: Sequence[Any], outputs: Sequence[str], name: str) -> Any:
    """The graph of a branch."""
    for number, each in enumerate(nodes):
        each.name = f"{name} {number}"
    ends = [helper.make_empty_tensor_value_info(output) for output in outputs]
    return helper.make_graph(list(nodes), name, [], ends)


@ON_DEVICES
@pytest.mark.parametrize("share", [0, 0.4])
def test_branches_with_bounded_tensors(device: Device, share: float) -> None:
    """A detector without boxes returns an empty constant, or selects."""
    then = branch(
        [node("Identity", ["nothing"], ["p"]), node("Identity", ["two"], ["q"]),
         node("NonZero", ["x"], ["r"])],
        ["p", "q", "r"], "nothing",
    )  # fmt: skip
    otherwise = branch(
        [node("Gather", ["x", "rows_of"], ["s"]), node("Identity", ["number"], ["t"]),
         node("Identity", ["columns"], ["u"])],
        ["s", "t", "u"], "some",
    )  # fmt: skip
    nodes = [
        node("NonZero", ["mask"], ["columns"]),
        node("Gather", ["columns", "zero"], ["row_places"]),
        node("Squeeze", ["row_places", "zero"], ["rows_of"]),
        node("Size", ["rows_of"], ["number"]),
        node("Equal", ["number", "none"], ["is_empty"]),
        node("If", ["is_empty"], ["rows", "n", "places"], then_branch=then, else_branch=otherwise),
        node("Add", ["rows", "half"], ["sums"]),
        node("If", ["is_empty"], ["w"],
             then_branch=branch([node("Identity", ["pair"], ["a"])], ["a"], "pair"),
             else_branch=branch([node("Identity", ["x"], ["b"])], ["b"], "all")),
        node("ReduceMax", ["w", "zero"], ["greatest"], keepdims=0),
    ]  # fmt: skip
    inputs = {"x": drawn(np.float32, (3, 4), 1), "mask": drawn(np.int32, (3, 4), share)}
    constants = {
        "zero": np.array([0]), "none": np.array(0), "two": np.array(2), "half": np.float32(0.5),
        "nothing": np.zeros((0, 4), np.float32), "pair": drawn(np.float32, (2, 4), 1) - 9,
    }  # fmt: skip
    types = {"rows": "FLOAT", "n": "INT64", "places": "INT64", "sums": "FLOAT", "w": "FLOAT",
             "greatest": "FLOAT"}  # fmt: skip
    check(whole(nodes, inputs, types, constants), inputs, device)


def test_branches_have_equally_many_results() -> None:
    then = branch([node("NonZero", ["x"], ["a"]), node("Identity", ["x"], ["b"])], ["a", "b"], "t")
    otherwise = branch([node("NonZero", ["x"], ["c"])], ["c"], "e")
    nodes = [node("If", ["is"], ["y", "z"], then_branch=then, else_branch=otherwise)]
    proto = model(nodes, {"x": ("FLOAT", (2, 3)), "is": ("BOOL", ())}, {"y": "INT64"}, {})
    with pytest.raises(InputError, match="has branches of 2 and 1 results"):
        text_of(proto)
