"""Linear attention, causal convolution and caches beside ONNX's tests and ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx_models import MICROSOFT, computed, node_tests, text_of
from onnx_runtime import DeviceShare, DrawnCases, Rng, Written, reals, within, written
from subquant.errors import InputError, SubquantError
from subquant.runtime import Device

Array = np.ndarray[Any, Any]

NODE_TESTS = {
    name: case
    for name, case in node_tests(
        "causal_conv_with_state", "linear_attention", "tensorscatter",
        operators=frozenset(("CausalConvWithState", "LinearAttention", "TensorScatter")),
    ).items()
    if len(case.model.graph.node) == 1
}  # fmt: skip


def check(name: str, compute: Callable[..., list[Array]]) -> None:
    """Compare with the results of the specification, of f32 or f16."""
    case = NODE_TESTS[name]
    ((inputs, expected),) = case.data_sets
    results = compute([np.asarray(each) for each in inputs if each is not None])
    for result, other in zip(results, expected, strict=True):
        assert result.shape == other.shape
        assert result.dtype == other.dtype
        np.testing.assert_allclose(result, other, rtol=case.rtol, atol=1e-6)


@pytest.mark.parametrize("name", sorted(NODE_TESTS))
def test_onnx_node_tests(name: str) -> None:
    check(name, lambda feeds: computed(NODE_TESTS[name].model, None, *feeds))


ON_DEVICE = DeviceShare(sorted(NODE_TESTS), 3, lambda name: NODE_TESTS[name].model)


@pytest.mark.parametrize("name", ON_DEVICE.names)
def test_onnx_node_tests_on_the_cpu(name: str, cpu: Device) -> None:
    check(name, lambda feeds: ON_DEVICE.results(name, cpu, feeds))


def linear(rng: Rng, rule: str, *, heads: int = 2, per_key: bool = False) -> Written:
    """Two heads of keys of 4 elements, values of 6."""
    feeds = {"i0": reals(rng, 2, 5, heads * 4), "i1": reals(rng, 2, 5, 8),
             "i2": reals(rng, 2, 5, 12), "i3": reals(rng, 2, 2, 4, 6)}  # fmt: skip
    if rule.startswith("gated"):
        decay = rng.uniform(-1, 0, (2, 5, 8 if per_key else 2))
        feeds["i4"] = decay.astype(np.float32)
    if rule.endswith("delta"):
        feeds["i5"] = rng.uniform(0, 1, (2, 5, 2)).astype(np.float32)
    return written(f"{MICROSOFT}.LinearAttention", feeds, None, 2, q_num_heads=heads,
                   kv_num_heads=2, update_rule=rule)  # fmt: skip


def convolution(rng: Rng, **attributes: Any) -> Written:
    shapes = {"i0": (2, 3, 7), "i1": (3, 1, 4), "i2": (3,), "i3": (2, 3, 3)}
    feeds = {name: reals(rng, *shape) for name, shape in shapes.items()}
    return written(f"{MICROSOFT}.CausalConvWithState", feeds, None, 2, **attributes)


CASES: dict[str, Callable[[Rng], Written]] = {
    "LinearAttention": functools.partial(linear, rule="linear"),
    "LinearAttention-gated": functools.partial(linear, rule="gated", per_key=True),
    "LinearAttention-delta": functools.partial(linear, rule="delta", heads=4),
    "LinearAttention-gated-delta": functools.partial(linear, rule="gated_delta"),
    "CausalConvWithState": convolution,
    "CausalConvWithState-silu": functools.partial(convolution, activation="silu"),
}


# Five steps of sums of f32, and an exponential function.
test_numpy_computes_what_onnx_runtime_does, _ = DrawnCases(CASES, 1, within(5e-6)).tests()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [({"dilation": 2}, "has dilation = 2"), ({"state_window": 1}, "has state_window = 1"),
     ({"activation": "gelu"}, "has the activation 'gelu'")],
)  # fmt: skip
def test_refused_nodes_are_named(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(SubquantError, match=message):
        text_of(convolution(np.random.default_rng(0), **attributes)[0])


def test_constant_indices_are_checked() -> None:
    feeds = {"i0": np.zeros((2, 4, 3), np.float32), "i1": np.zeros((2, 2, 3), np.float32)}
    proto, _ = written("TensorScatter", feeds, {"i2": np.array([0, 3])}, 1, 24)
    with pytest.raises(InputError, match=r"writes 2 elements of 4 at \[0, 3\]"):
        text_of(proto)
