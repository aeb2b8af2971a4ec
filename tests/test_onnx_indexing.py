"""Operators at indices, of order, of generated tensors and of signals, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_models import computed, end, model, node, text_of
from onnx_runtime import run_onnx_runtime
from onnx_runtime_cases import Case, Cases, case
from subquant.errors import UnsupportedError
from subquant.runtime import Device

Rng = np.random.Generator


def scatters(rng: Rng) -> dict[str, Case]:
    """Every reduction, with several updates at one place."""
    cases = {}
    for reduction in ("none", "add", "mul", "max", "min"):
        for kind in ("float32", "int64", "int32", "uint8", "uint64", "float64"):
            data = rng.integers(0 if kind[0] == "u" else -9, 9, (4, 5)).astype(kind)
            updates = rng.integers(0 if kind[0] == "u" else -9, 9, (3, 5)).astype(kind)
            indices = rng.integers(-4, 4, (3, 5))
            if reduction == "none":
                indices = rng.permuted(np.tile(np.arange(-2, 2)[:, None], (1, 5)), axis=0)[:3]
            cases[f"elements {reduction} {kind}"] = case(
                "ScatterElements", [data, indices, updates], axis=0, reduction=reduction
            )
        rows = rng.permutation(4)[:3, None] if reduction == "none" else rng.integers(-4, 4, (3, 1))
        values = rng.normal(size=(3, 5)).astype(np.float32)
        cases[f"slices {reduction}"] = case(
            "ScatterND", [np.zeros((4, 5), np.float32), rows, values], reduction=reduction
        )
    return cases


def gathers(rng: Rng) -> dict[str, Case]:
    """Negative indices, batches, and every kind of element."""
    cases = {}
    for kind in ("float32", "int8", "uint16", "int64", "bool", "float16"):
        data = rng.integers(0, 2 if kind == "bool" else 99, (3, 4, 5)).astype(kind)
        cases[f"gather {kind}"] = case("Gather", [data, rng.integers(-4, 4, (2, 3))], axis=1)
        cases[f"gather elements {kind}"] = case(
            "GatherElements", [data, rng.integers(-4, 4, (3, 6, 5))], axis=1
        )
        cases[f"gather slices {kind}"] = case("GatherND", [data, rng.integers(-3, 3, (2, 2, 2))])
    data = rng.normal(size=(3, 4, 5)).astype(np.float32)
    cases["gather slices of a batch"] = case(
        "GatherND", [data, rng.integers(-4, 4, (3, 2, 1))], batch_dims=1
    )
    cases["compress"] = case(
        "Compress", [data, np.array([True, False, True])], [1], opset=11, axis=1
    )
    cases["compress all"] = case("Compress", [data, rng.random(60) < 0.5], [1], opset=11)
    for axis in (-1, 0, 1):
        cases[f"one hot {axis}"] = case(
            "OneHot", [rng.integers(-9, 9, (2, 3)), np.array(5), np.array([2, 7], np.float32)],
            [1], opset=11, axis=axis,
        )  # fmt: skip
    for batch in (0, 1):
        lengths = np.array([1, 3, 2]) if batch == 0 else np.array([0, 3, 1, 2])
        cases[f"reverse sequences {batch}"] = case(
            "ReverseSequence", [data, lengths], opset=10, batch_axis=batch, time_axis=1 - batch
        )
    return cases


def orders(rng: Rng) -> dict[str, Case]:
    """Equal elements keep the order of their indices."""
    cases = {}
    for kind in ("float32", "int64", "int32", "float64"):
        data = rng.integers(-3, 3, (3, 4, 6)).astype(kind)
        for largest in (0, 1):
            cases[f"top {kind} {largest}"] = case(
                "TopK", [data, np.array([3])], [1], 2, axis=1 + largest, largest=largest
            )
    long = rng.normal(size=(2, 1500)).astype(np.float32)
    cases["top of many"] = case("TopK", [long, np.array([5])], [1], 2)
    for kind in ("float32", "int8", "uint8", "int32", "float64"):
        data = rng.integers(0, 4, (3, 4, 6)).astype(kind)
        for operator in ("ArgMax", "ArgMin"):
            for last in (0, 1):
                cases[f"{operator} {kind} {last}"] = case(
                    operator, [data], axis=1, select_last_index=last, keepdims=last
                )
    for kind in ("float32", "int32", "int64", "float64"):
        data = rng.integers(-9, 9, (3, 5)).astype(kind)
        for exclusive in (0, 1):
            for reverse in (0, 1):
                cases[f"sums {kind} {exclusive} {reverse}"] = case(
                    "CumSum", [data, np.array(1)], [1], exclusive=exclusive, reverse=reverse
                )
    for upper in (0, 1):
        cases[f"triangle {upper}"] = case(
            "Trilu", [rng.normal(size=(2, 4, 5)).astype(np.float32), np.array(-1)], upper=upper
        )
    cases["range"] = case("Range", [np.float32(1), np.float32(-7), np.float32(-1.5)], [0, 1, 2])
    cases["constant"] = case("ConstantOfShape", [np.array([2, 3])], [0])
    for operator in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic in (0, 1):
            cases[f"{operator} {periodic}"] = case(operator, [np.array(8)], [0], periodic=periodic)
    bounds = [np.array(n) for n in (8, 256, 16000)]
    cases["mel"] = case(
        "MelWeightMatrix", [*bounds, np.float32(40), np.float32(8000)], [0, 1, 2, 3, 4]
    )
    return cases


def draw() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    return {**scatters(rng), **gathers(rng), **orders(rng)}


CASES = Cases(draw, share=10)
test_numpy_computes_as_onnx_runtime, test_devices_compute_as_onnx_runtime = CASES.tests()


def counting_loop(*, is_counted: bool = True) -> onnx.ModelProto:
    """A loop that goes on while a counter is below 3, or while an element is below 3."""
    nodes = [
        node("Gather", ["x", "i"], ["row"]),
        node("Mul", ["row", "row"], ["square"]),
        node("Add", ["i", "one"], ["next"]),
        node("Less", ["next", "n"], ["goes_on"]),
    ]
    count, rows = ("INT64", []), ("FLOAT", [3, 4])
    ends = [end("it", count), end("c", ("BOOL", [])), end("i", count)]
    results = [end("goes_on", ("BOOL", [])), end("next", count), end("square", ("FLOAT", [4]))]
    body = helper.make_graph(nodes, "body", ends, results)
    constants = {"true": True, "zero": 0, "one": 1} | ({"n": 3} if is_counted else {})
    inputs = {"x": rows} | ({} if is_counted else {"n": count})
    loop = node("Loop", ["", "true", "zero"], ["last", "y"], body=body)
    return model([loop], inputs, {"y": rows}, constants, 17)


def test_a_loop_whose_condition_counts_has_results_of_each_iteration(cpu: Device) -> None:
    proto = counting_loop()
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    (expected,) = run_onnx_runtime(proto, {"x": x})
    for device in (None, cpu):
        np.testing.assert_array_equal(computed(proto, device, x)[0], expected)


def test_a_loop_without_a_bound_whose_condition_is_computed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="needs a constant number of iterations"):
        text_of(counting_loop(is_counted=False))


def test_products_along_an_axis(cpu: Device) -> None:
    """ONNX Runtime has no CumProd; IREE refuses to pad f64 with ones."""
    nodes = [node("CumProd", ["x", "axis"], ["y"], exclusive=1)]
    ends = ("DOUBLE", [3, 5])
    proto = model(nodes, {"x": ends}, {"y": ends}, {"axis": 1}, 26)
    x = np.random.default_rng(0).normal(size=(3, 5))
    expected = np.cumprod(np.concatenate([np.ones((3, 1)), x[:, :-1]], axis=1), axis=1)
    for device in (None, cpu):
        np.testing.assert_allclose(computed(proto, device, x)[0], expected, rtol=1e-12)


# -- Fourier transforms, sums of products and determinants ----------------------------------------

EQUATIONS = {
    "ij->ji": [(3, 4)],
    "ij->i": [(3, 4)],
    "ii->i": [(4, 4)],
    "ii": [(4, 4)],
    "iji->j": [(3, 4, 3)],
    "...ij->...ji": [(2, 3, 4)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "i,j->ij": [(3,), (4,)],
    "...ij,...jk->...ik": [(2, 1, 3, 4), (1, 5, 4, 2)],
    "bhwc,hkc->bhwk": [(2, 3, 4, 5), (3, 6, 5)],
    "ij,ij->": [(3, 4), (3, 4)],
    "ij,jk,kl->il": [(3, 4), (4, 5), (5, 2)],
    "ab,cd,ac->bd": [(2, 3), (4, 5), (2, 4)],
}


def signals() -> dict[str, Case]:
    rng = np.random.default_rng(2)
    cases = {}
    for length in (16, 7, 30, 64):
        real = rng.normal(size=(2, length, 1)).astype(np.float32)
        both = rng.normal(size=(2, length, 2)).astype(np.float32)
        cases[f"dft {length}"] = case("DFT", [real])
        cases[f"dft one side {length}"] = case("DFT", [real], onesided=1)
        cases[f"dft inverse {length}"] = case("DFT", [both], inverse=1)
        cases[f"dft of opset 17 {length}"] = case("DFT", [real], opset=17, axis=1, onesided=1)
        for other in (8, 100):
            cases[f"dft {length} as {other}"] = case("DFT", [real, np.array(other)], [1])
    cases["dft of another axis"] = case(
        "DFT", [rng.normal(size=(8, 2, 3, 2)), None, np.array(0)], [2]
    )
    signal = rng.normal(size=(2, 40, 1)).astype(np.float32)
    window = np.hanning(16).astype(np.float32)
    for sides in (0, 1):
        cases[f"stft {sides}"] = case(
            "STFT", [signal, np.array(6), window], [1], opset=17, onesided=sides
        )
    cases["stft of a signal without components"] = case(
        "STFT", [signal[..., 0], np.array(6), window], [1], opset=17
    )
    cases["stft of frames"] = case(
        "STFT", [signal, np.array(5), None, np.array(12)], [1, 3], opset=17
    )
    for equation, shapes in EQUATIONS.items():
        inputs = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        cases[f"einsum {equation}"] = case("Einsum", inputs, opset=12, equation=equation)
    integers = [rng.integers(-9, 9, shape) for shape in ((3, 4), (4, 5))]
    cases["einsum of integers"] = case("Einsum", integers, opset=12, equation="ij,jk->ik")
    for size in (1, 2, 5):
        cases[f"det {size}"] = case("Det", [rng.normal(size=(3, size, size)).astype(np.float32)])
    singular = np.array([[0, 1, 2], [0, 3, 4], [0, 5, 6]], np.float32)
    cases["det of a singular matrix"] = case("Det", [singular])
    cases["det with a zero pivot"] = case("Det", [np.array([[0, 2], [3, 1]], np.float32)])
    image = rng.normal(size=(5, 4, 3)).astype(np.float32)
    cases["crop and pad"] = case(
        "CenterCropPad", [image, np.array([2, 7])], [1], opset=18, axes=[0, 1]
    )
    return cases


SIGNALS = Cases(signals, tolerance=2e-5, share=4)
test_numpy_transforms_as_onnx_runtime, test_devices_transform_as_onnx_runtime = SIGNALS.tests()


@pytest.mark.parametrize("count", [4, 5])
@pytest.mark.parametrize("length", [None, 8, 9])
def test_a_spectrum_of_one_side_becomes_a_real_signal(count: int, length: int | None) -> None:
    """ONNX Runtime refuses this form; NumPy has it as irfft."""
    spectrum = np.random.default_rng(0).normal(size=(2, count, 2)).astype(np.float32)
    inputs = [spectrum] if length is None else [spectrum, np.array(length)]
    each = case("DFT", inputs, [1], opset=20, inverse=1, onesided=1)
    size = length or 2 * (count - 1)
    each.model.graph.output[0].CopyFrom(end("y0", ("FLOAT", [2, size, 1])))
    (result,) = computed(each.model, None, spectrum)
    expected = np.fft.irfft(spectrum[..., 0] + 1j * spectrum[..., 1], size)
    np.testing.assert_allclose(result[..., 0], expected, atol=1e-6)
