"""Models that ONNX Runtime, NumPy and devices compute: of one node, and of several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest

from onnx_models import OPSET, arrays_of, computed, model, node, text_of
from programs import share_of
from subquant.runtime import Device
from together import Together

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Written: TypeAlias = tuple[onnx.ModelProto, Feeds]
Rng = np.random.Generator


def reals(rng: Rng, *shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


def written(
    operator: str, feeds: Mapping[str, Any], constants: Mapping[str, Any] | None = None,
    outputs: int | Sequence[int] = 1, opset: int = OPSET,
    output_dtypes: Mapping[int, Any] | None = None, **attributes: Any,
) -> Written:  # fmt: skip
    """A model of one node, and its arguments.

    ``i3`` is input 3 of the node, among `feeds` and `constants`. `outputs` is a number of outputs,
    or their numbers; they have the type of the first float, or that of `output_dtypes`.
    """
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    initializers = {name: np.asarray(value) for name, value in (constants or {}).items()}
    highest = max(int(name[1:]) for name in (*arrays, *initializers))
    names = [f"i{n}" for n in range(highest + 1)]
    inputs = [name if name in arrays or name in initializers else "" for name in names]
    chosen = range(outputs) if isinstance(outputs, int) else outputs
    results = [f"y{n}" if n in chosen else "" for n in range(max(chosen) + 1)]
    dtypes = [value.dtype for value in (*arrays.values(), *initializers.values())]
    float_ = next(dtype for dtype in dtypes if dtype.kind in "fV")
    types = {name: float_ for name in results if name}
    types |= {f"y{number}": np.dtype(dtype) for number, dtype in (output_dtypes or {}).items()}
    nodes = [node(operator, inputs, results, **attributes)]
    return model(nodes, arrays, types, initializers, opset), arrays


def run_onnx_runtime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Compute a model with ONNX Runtime, one thread and without its optimizations."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(each) for each in session.run(None, dict(feeds))]


def of_onnx_runtime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Compute a model with ONNX Runtime; skip the test if it refuses the model."""
    try:
        return run_onnx_runtime(proto, feeds)
    except Exception as error:  # its exceptions have no base of their own
        pytest.skip(f"ONNX Runtime refuses it: {str(error)[:200]}")


def within(tolerance: float, **by_dtype: float) -> Callable[[str, Array, Array], None]:
    """A comparison of results by name: integers equal, floats within a part of the greatest.

    The tolerance is that part; a dtype may have its own.
    """

    def compare(name: str, result: Array, expected: Array) -> None:
        assert result.dtype == expected.dtype, name
        assert result.shape == expected.shape, name
        if result.dtype.kind in "iu":
            np.testing.assert_array_equal(result, expected, name)
            return
        wide, exact = result.astype(np.float64), expected.astype(np.float64)
        greatest = float(np.abs(exact[np.isfinite(exact)]).max(initial=0))
        bound = by_dtype.get(result.dtype.name, tolerance) * greatest
        np.testing.assert_allclose(wide, exact, rtol=0, atol=bound, err_msg=name)

    return compare


def whole(
    nodes: Sequence[Any], inputs: Mapping[str, Array], outputs: Mapping[str, str],
    constants: Mapping[str, Any] | None = None, opset: int = OPSET,
) -> onnx.ModelProto:  # fmt: skip
    """A model whose results have no declared shapes."""
    for number, each in enumerate(nodes):
        each.name = f"the {each.op_type} {number}"
    return model(nodes, inputs, outputs, constants or {}, opset)


def check(
    proto: onnx.ModelProto, inputs: Mapping[str, Array], device: Device | None, tolerance: float = 0
) -> None:
    """Compare with ONNX Runtime, extents included."""
    expected = run_onnx_runtime(proto, inputs)
    results = computed(proto, device, *inputs.values())
    for result, right, output in zip(results, expected, proto.graph.output, strict=True):
        assert (result.shape, result.dtype) == (right.shape, right.dtype), output.name
        np.testing.assert_allclose(
            result.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=tolerance,
            err_msg=output.name,
        )  # fmt: skip


CPU_AND_NUMPY = pytest.mark.parametrize("device_name", ["numpy", "cpu"])


def drawn(dtype: Any, shape: Sequence[int], share: float = 0.5) -> Array:
    """Small numbers, and zeros."""
    rng = np.random.default_rng(len(shape) + 3)
    values = rng.integers(1, 5, shape) * (rng.random(shape) < share)
    return np.asarray(values.astype(dtype))


class DeviceShare:
    """Models by name: devices compute one of `count`, compiled as one module.

    In the long suite they compute all.
    """

    def __init__(
        self, names: Iterable[str], count: int, model: Callable[[str], onnx.ModelProto]
    ) -> None:
        self.names = share_of(names, count)
        self._model = model

    @functools.cached_property
    def _programs(self) -> Together:
        return Together({name: text_of(self._model(name)) for name in self.names})

    def results(self, name: str, device: Device, arguments: Iterable[Array]) -> list[Array]:
        """Compute a model on a device."""
        return arrays_of(self._programs.function(name, device)(*arguments))


class DrawnCases:
    """Models of one node that are drawn by name; a device computes one of `count`.

    `compare` asserts that the result of a name is close to the expected one.
    """

    def __init__(
        self,
        draws: Mapping[str, Callable[[Rng], Written]],
        count: int,
        compare: Callable[[str, Array, Array], None],
    ) -> None:
        self._draws, self._compare = draws, compare
        self._share = DeviceShare(draws, count, lambda name: self[name][0])

    def tests(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Write the tests of NumPy and of the CPU, for a test file to name."""

        @pytest.mark.parametrize("case", list(self._draws))
        def test_numpy(case: str) -> None:
            proto, feeds = self[case]
            expected = of_onnx_runtime(proto, feeds)
            self.compare(case, computed(proto, None, *feeds.values()), expected)

        @pytest.mark.parametrize("case", self._share.names)
        def test_the_cpu(case: str, cpu: Device) -> None:
            proto, feeds = self[case]
            results = self._share.results(case, cpu, feeds.values())
            self.compare(case, results, computed(proto, None, *feeds.values()))

        return test_numpy, test_the_cpu

    def __getitem__(self, name: str) -> Written:
        return self._draws[name](np.random.default_rng(0))

    def compare(self, name: str, results: Sequence[Array], expected: Sequence[Array]) -> None:
        """Compare all results of a case."""
        for result, other in zip(results, expected, strict=True):
            self._compare(name, result, other)
