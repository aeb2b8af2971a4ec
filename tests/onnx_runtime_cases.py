"""Operators with drawn attributes beside ONNX Runtime.

Each case is a model of one node. Inputs are arguments, but those that must be constants. NumPy
computes every case; devices compute a share of them, compiled as one module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest

from devices import ON_DEVICES
from onnx_models import computed, end, model, node, plain
from onnx_runtime import DeviceShare, run_onnx_runtime
from subquant.runtime import Device

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A model of one node, whose results have no types, with the arguments of a call."""

    model: onnx.ModelProto
    arguments: Mapping[str, Array]

    @functools.cached_property
    def expected(self) -> list[Array]:
        """The results of ONNX Runtime."""
        return run_onnx_runtime(self.model, self.arguments)

    @functools.cached_property
    def typed(self) -> onnx.ModelProto:
        """The model with the types of its results."""
        result = onnx.ModelProto()
        result.CopyFrom(self.model)
        for output, value in zip(result.graph.output, self.expected, strict=True):
            output.CopyFrom(end(output.name, value))
        return result

    def compare(self, results: Sequence[Any], tolerance: float) -> None:
        """Compare results with those of ONNX Runtime."""
        assert len(results) == len(self.expected)
        for ours, theirs in zip(results, map(plain, self.expected), strict=True):
            assert np.asarray(ours).dtype == theirs.dtype
            assert np.shape(ours) == theirs.shape
            if theirs.dtype.kind not in "fV":
                np.testing.assert_array_equal(ours, theirs)
                continue
            wide = theirs.astype(np.float64)
            finite = np.where(np.isfinite(wide), np.abs(wide), 0)
            np.testing.assert_allclose(
                np.asarray(ours).astype(np.float64), wide, rtol=tolerance,
                atol=tolerance * max(float(finite.max(initial=0)), 1e-30),
            )  # fmt: skip


def case(
    operator: str, inputs: Sequence[Any], constants: Sequence[int] = (), outputs: int = 1,
    opset: int = 21, **attributes: Any,
) -> Case:  # fmt: skip
    """A case of one node; inputs of None are absent, those numbered in `constants` constant."""
    names = ["" if value is None else f"x{n}" for n, value in enumerate(inputs)]
    arguments = {f"x{n}": np.asarray(each) for n, each in enumerate(inputs) if each is not None}
    fixed = {f"x{n}": arguments.pop(f"x{n}") for n in constants if f"x{n}" in arguments}
    results = [f"y{n}" for n in range(outputs)]
    nodes = [node(operator, names, results, **attributes)]
    proto = model(nodes, arguments, dict.fromkeys(results), fixed, opset)
    proto.opset_import.add(domain="ai.onnx.ml", version=4)
    return Case(proto, arguments)


class Cases:
    """Cases of one test file, by name; devices compute one case of `share`.

    The tolerance of floats is a part of the greatest magnitude.
    """

    def __init__(
        self, draw: Callable[[], Mapping[str, Case]], tolerance: float = 1e-5, share: int = 4
    ) -> None:
        self._cases, self._tolerance = dict(draw()), tolerance
        self._share = DeviceShare(self._cases, share, lambda name: self._cases[name].typed)

    def tests(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Write the tests of NumPy and of devices, for a test file to name."""

        @pytest.mark.parametrize("name", list(self._cases))
        def test_numpy(name: str) -> None:
            each = self._cases[name]
            results = computed(each.typed, None, *map(plain, each.arguments.values()))
            each.compare(results, self._tolerance)

        @ON_DEVICES
        @pytest.mark.parametrize("name", self._share.names)
        def test_devices(name: str, device: Device) -> None:
            each = self._cases[name]
            arguments = map(plain, each.arguments.values())
            each.compare(self._share.results(name, device, arguments), self._tolerance)

        return test_numpy, test_devices
