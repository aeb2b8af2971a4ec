"""Networks of the kinds that people quantize, in the ways of ONNX Runtime, at every tensor.

ONNX Runtime writes the models; each tensor is compared with exact arithmetic, since its own kernels
saturate on some CPUs and fuse what differs.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

from onnx_models import computed, every_tensor, text_of
from onnx_networks import FORMS, NETWORKS, drawn, quantized
from onnx_oracle import Oracle
from onnx_runtime import run_onnx_runtime
from programs import LONG
from subquant.runtime import Device
from together import Together

CASES = [f"{name}-{form}" for name in NETWORKS for form in FORMS if (name, form) != (
    "recurrent", "dynamic")]  # fmt: skip


@functools.cache
def written(case: str) -> onnx.ModelProto:
    pytest.importorskip("onnxruntime")
    name, _, form = case.partition("-")
    return quantized(NETWORKS[name](), form)


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_exact(case: str) -> None:
    """With NumPy: integers equal, floats within a part of the greatest."""
    proto = written(case)
    feeds = drawn(proto, 7)
    oracle = Oracle(proto, every_tensor(proto, feeds))
    oracle(feeds)
    assert oracle.integers > 0


@functools.cache
def programs(cases: tuple[str, ...]) -> Together:
    return Together({case: text_of(written(case)) for case in cases})


def check(case: str, cases: tuple[str, ...], device: Device) -> None:
    """Results equal NumPy's; a float that rounds otherwise moves a result by few steps."""
    proto = written(case)
    feeds = drawn(proto, 7)
    (expected,) = computed(proto, None, *feeds.values())
    # Loops apart: for Vulkan, IREE refuses them beside others.
    is_recurrent = case.startswith("recurrent")
    of_kind = tuple(each for each in cases if each.startswith("recurrent") == is_recurrent)
    result = np.asarray(programs(of_kind).function(case, device)(*feeds.values()))
    assert result.shape == expected.shape
    bound = (0.05 if "dynamic" in case else 0.02) * float(np.abs(expected).max())
    assert np.abs(result - expected).max() <= bound
    assert np.median(np.abs(result - expected)) <= bound / 20


OF_THE_CPU = ("qdq-u8s8", "operators", "dynamic")
ON_THE_CPU = tuple(
    case
    for number, name in enumerate(NETWORKS)
    for form in (OF_THE_CPU if LONG else [OF_THE_CPU[number % 3]])
    if (case := f"{name}-{form}") in CASES
)
"""In the short suite each network in one form, and each form of some network."""
ON_VULKAN = tuple(
    case
    for case in CASES
    if case.endswith("qdq-s8s8")
    and (LONG or not case.startswith(("decoder", "residual")))  # as the encoder, and "mobile"
)


@pytest.mark.parametrize("case", ON_THE_CPU)
def test_the_cpu_computes_the_same(case: str, cpu: Device) -> None:
    check(case, ON_THE_CPU, cpu)


@pytest.mark.skipif(
    not LONG, reason="15 s; the GPU's kernels and operators have tests of their own"
)
@pytest.mark.vulkan
@pytest.mark.parametrize("case", ON_VULKAN)
def test_vulkan_computes_the_same(case: str, vulkan: Device) -> None:
    check(case, ON_VULKAN, vulkan)


def test_an_lstm_with_quantized_weights_computes_what_onnx_runtime_does() -> None:
    """The state is quantized in each step, with one range for the whole batch: with one thread.

    Sums of floats differ by units in the last place.
    """
    proto = written("recurrent-dynamic")
    assert "DynamicQuantizeLSTM" in {node.op_type for node in proto.graph.node}
    feeds = drawn(proto, 7)
    (expected,) = run_onnx_runtime(proto, feeds)
    (result,) = computed(proto, None, *feeds.values())
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
