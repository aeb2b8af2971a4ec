"""Transposes between kernels move through the operations between them, and cancel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from devices import main_of
from onnx_models import model, node, text_of
from programs import lowered_text

Array = np.ndarray[Any, Any]
C, H, W = 16, 10, 9


def _named(operator: str, inputs: list[str], **attributes: Any) -> Any:
    return node(operator, inputs, ["m"], **attributes)


BETWEEN: dict[str, tuple[list[Any], Callable[[Array, Array], Array]]] = {
    "concatenation": (
        [_named("Concat", ["a", "b"], axis=1)],
        lambda a, b: np.concatenate([a, b], 1),
    ),
    "concatenation of rows": (
        [_named("Concat", ["a", "b"], axis=2)],
        lambda a, b: np.concatenate([a, b], 2),
    ),
    "slice": (
        [_named("Slice", ["a", "first", "last", "axes", "steps"])],
        lambda a, b: a[:, 2:14:2, 1:5],
    ),
    "padding": (
        [_named("Pad", ["a", "pads"])],
        lambda a, b: np.pad(a, [(0, 0), (0, 0), (1, 3), (2, 4)]),
    ),
    "rows of another order": (
        [_named("Gather", ["a", "rows"], axis=2)],
        lambda a, b: a[:, :, [5, 0, 0, 3]],
    ),
    "sum and product with channels": (
        [node("Mul", ["a", "factors"], ["n"]), _named("Sub", ["b", "n"])],
        lambda a, b: b - a * CONSTANTS["factors"],
    ),
    "one operand in another layout": (
        [node("Transpose", ["b"], ["n"], perm=[0, 1, 3, 2]), _named("Concat", ["a", "n"], axis=1)],
        lambda a, b: np.concatenate([a, b.swapaxes(2, 3)], 1),
    ),
}
"""Nodes between two convolutions, and the function that they compute."""
CONSTANTS = {
    "first": np.array([2, 1]), "last": np.array([14, 5]), "axes": np.array([1, 2]),
    "steps": np.array([2, 1]), "pads": np.array([0, 0, 1, 2, 0, 0, 3, 4]),
    "rows": np.array([5, 0, 0, 3]), "factors": np.arange(C, dtype=np.float32)[:, None, None],
}  # fmt: skip


def _network(name: str) -> tuple[str, Array, Array]:
    """The program, its argument and its result: small integers, so that sums are exact."""
    nodes, compute = BETWEEN[name]
    rng, width = np.random.default_rng(0), H if "layout" in name else W
    x = rng.integers(-3, 4, (1, C, H, width)).astype(np.float32)
    v, w = (rng.integers(-3, 4, (C, C, 1, 1)).astype(np.float32) for _ in range(2))
    a, b = (np.einsum("nchw,oc->nohw", x, each[..., 0, 0]) for each in (v, w))
    expected = compute(a, b)
    last = rng.integers(-3, 4, (24, expected.shape[1], 1, 1)).astype(np.float32)
    expected = np.einsum("nchw,oc->nohw", expected, last[..., 0, 0]).astype(np.float32)
    used = {each for one in nodes for each in one.input}
    before = [node("Conv", ["x", "v"], ["a"]), node("Conv", ["x", "w"], ["b"])]
    before = [each for each in before if each.output[0] in used]
    after = node("Conv", ["m", "last weight"], ["y"])
    constants = {key: value for key, value in CONSTANTS.items() if key in used}
    constants |= {"v": v, "w": w, "last weight": last}
    proto = model([*before, *nodes, after], {"x": x}, {"y": expected}, constants)
    return text_of(proto), x, expected


@pytest.mark.parametrize("name", BETWEEN)
def test_results_are_those_of_numpy(name: str) -> None:
    text, x, expected = _network(name)
    np.testing.assert_array_equal(main_of(text)(x), expected)


@pytest.mark.parametrize("name", [each for each in BETWEEN if "layout" not in each])
def test_only_the_argument_and_the_result_are_transposed(name: str) -> None:
    lowered = lowered_text(_network(name)[0], fuse_below_macs=0)
    main = lowered[lowered.index("func.func @main(") :]
    transposes = re.findall(r"stablehlo.transpose (%\w+), dims = (\[[^]]*\])", main)
    assert {value for value, order in transposes if order == "[0, 2, 3, 1]"} == {"%arg0"}
    assert [order for _, order in transposes].count("[0, 3, 1, 2]") == 1
