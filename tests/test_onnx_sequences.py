"""Sequences and optionals of known length beside ONNX Runtime; other values are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_models import computed, end, model, node, text_of
from onnx_runtime import run_onnx_runtime
from subquant.errors import SubquantError, UnsupportedError
from subquant.runtime import Device

CONSTANTS = {
    "one": np.array(1), "minus": np.array(-1), "sizes": np.array([1, 2, 1]), "two": np.array(2),
}  # fmt: skip


def joined(*nodes: Any, shape: tuple[int, ...] = (4, 3)) -> onnx.ModelProto:
    """A model of ``x`` ``[4, 3]`` whose nodes compute ``y``."""
    return model(list(nodes), {"x": ("FLOAT", (4, 3))}, {"y": ("FLOAT", shape)}, CONSTANTS)


MODELS = {
    "split and join": joined(
        node("SplitToSequence", ["x", "sizes"], ["s"], axis=0),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ),
    "split and stack": joined(
        node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0),
        node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1), shape=(3, 4),
    ),
    "parts of one size": joined(
        node("SplitToSequence", ["x", "two"], ["s"], axis=1),
        node("SequenceAt", ["s", "minus"], ["y"]), shape=(4, 1),
    ),
    "insert and erase": joined(
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("Neg", ["x"], ["n"]),
        node("SequenceInsert", ["s", "n", "one"], ["t"]),
        node("SequenceErase", ["t", "minus"], ["u"]),
        node("ConcatFromSequence", ["u"], ["y"], axis=1), shape=(4, 6),
    ),
    "empty and insert": joined(
        node("SequenceEmpty", [], ["s"]),
        node("SequenceInsert", ["s", "x"], ["t"]),
        node("SequenceLength", ["t"], ["n"]),
        node("Cast", ["n"], ["f"], to=1),
        node("SequenceAt", ["t", "minus"], ["a"]),
        node("Add", ["a", "f"], ["y"]),
    ),
    "map": joined(
        node("SplitToSequence", ["x", "sizes"], ["s"], axis=0),
        node("SequenceMap", ["s"], ["t"], body=helper.make_graph(
            [node("Neg", ["a"], ["b"])], "body",
            [end("a", "FLOAT")], [end("b", "FLOAT")],
        )),
        node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ),
    "optional": joined(
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["h"]),
        node("OptionalGetElement", ["o"], ["g"]),
        node("Cast", ["h"], ["f"], to=1),
        node("Add", ["g", "f"], ["y"]),
    ),
}  # fmt: skip


def check(name: str, device: Device | None) -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    (expected,) = run_onnx_runtime(MODELS[name], {"x": x})
    np.testing.assert_array_equal(computed(MODELS[name], device, x)[0], expected)


@pytest.mark.parametrize("name", MODELS)
def test_numpy_computes_as_onnx_runtime(name: str) -> None:
    check(name, None)


def test_a_device_computes_as_onnx_runtime(cpu: Device) -> None:
    check("insert and erase", cpu)


REFUSED = {
    "as a tensor": (
        joined(node("SplitToSequence", ["x"], ["s"]), node("Neg", ["s"], ["y"])),
        "of the type SEQUENCE",
    ),
    "random": (joined(node("RandomNormalLike", ["x"], ["y"])), "an input of the model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_to_do(name: str) -> None:
    proto, message = REFUSED[name]
    with pytest.raises(SubquantError, match=message):
        text_of(proto)


def test_maps_and_texts_at_the_boundary_are_refused() -> None:
    proto = joined(node("Neg", ["x"], ["y"]))
    tensor = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(7, tensor))
    proto.graph.output[0].CopyFrom(helper.make_value_info("y", kind))
    with pytest.raises(UnsupportedError, match="zipmap=False"):
        text_of(proto)
    proto.graph.output[0].CopyFrom(end("y", ("STRING", [4, 3])))
    with pytest.raises(UnsupportedError, match="replace texts by numbers"):
        text_of(proto)
