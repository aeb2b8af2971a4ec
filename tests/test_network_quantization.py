"""Post-training quantization of networks: accuracy beside floats and ONNX Runtime, equal bits."""

from __future__ import annotations

import functools
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import subquant
from command_line import fail, succeed
from network_tasks import Task, images_task, logits, onnx_session, tokens_task
from onnx_networks import Network
from programs import LONG
from subquant.calibration.networks.histogram import Histogram
from subquant.calibration.networks.options import NetworkQuantization
from subquant.calibration.networks.quantization import QuantizedNetwork
from subquant.calibration.networks.ranges import parameters_of_range, range_of
from subquant.errors import InputError, UsageError
from subquant.interpreter.interpreted_module import InterpretedModule
from tflite_builder import Graph

Array = np.ndarray[Any, Any]
CALIBRATION = 256
METHODS = ("percentile", "mse", "kl", "min-max")


@functools.cache
def task_of(name: str) -> Task:
    if name == "images":
        return images_task()
    return tokens_task() if LONG else tokens_task(layers=1)


@functools.cache
def quantized(name: str, method: str = "percentile") -> QuantizedNetwork:
    task = task_of(name)
    inputs = {task.name: task.inputs[:CALIBRATION]}
    model = task.model.SerializeToString()
    held_out = 0.125 if LONG else 0
    return subquant.quantize_network(model, inputs, calibration=method, held_out=held_out)


def quantized_by_onnxruntime(task: Task) -> onnx.ModelProto:
    """Return the network as ONNX Runtime quantizes it: per channel, by the same inputs."""
    import tempfile

    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            starts = range(0, CALIBRATION, task.batch)
            self._batches = iter([{task.name: task.inputs[n : n + task.batch]} for n in starts])

        def get_next(self) -> Any:
            return next(self._batches, None)

    logging.disable(logging.WARNING)  # it recommends its own preparation
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = f"{folder}/model.onnx", f"{folder}/quantized.onnx"
            onnx.save(task.model, source)
            quantize_static(
                source, target, Reader(), per_channel=True,
                activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
            return onnx.load(target)
    finally:
        logging.disable(logging.NOTSET)


def accuracy_of(scores: Array, labels: Array) -> float:
    return float((scores.argmax(1) == labels).mean())


# -- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images", "tokens"])
def test_accuracy_beside_floats_and_onnxruntime(name: str) -> None:
    task, remarks = task_of(name), []
    bytecode = quantized(name).bytecode
    function = subquant.compile(bytecode, explain=True, on_remark=remarks.append).main
    inputs, labels = task.held_out()
    floats, integers, peer = (
        logits(run, inputs, task.batch)
        for run in (
            onnx_session(task.model),
            function,
            onnx_session(quantized_by_onnxruntime(task)),
        )
    )
    accuracy = accuracy_of(integers, labels)
    assert accuracy_of(floats, labels) > 0.9
    assert accuracy >= accuracy_of(floats, labels) - 0.005
    # A few of 1,600 samples change their class, right or wrong by chance: two are allowed. The
    # error of the scores does not depend on chance.
    assert accuracy >= accuracy_of(peer, labels) - 2 / len(labels)
    assert np.square(integers - floats).sum() < np.square(peer - floats).sum()
    by_floats = floats.argmax(1)
    assert accuracy_of(integers, by_floats) >= accuracy_of(peer, by_floats)
    layers = [each for each in quantized(name).layers if each.computes == "int8"]
    contractions = [each for each in layers if each.operation not in ("add", "mean")]
    in_kernels = [each for each in remarks if "is computed by a kernel" in each.message]
    of_floats = 0 if name == "images" else 2 + 2 * LONG  # the products of attention
    assert len(contractions) == (4 if name == "images" else 7 + 6 * LONG)
    assert len(in_kernels) == len(contractions) + of_floats


@pytest.mark.skipif(not LONG, reason="ten networks are quantized, and run on 12,000 samples")
@pytest.mark.parametrize("name", ["images", "tokens"])
def test_ten_harder_tasks_beside_onnxruntime(name: str) -> None:
    """More samples have the class that floats give them, of each task; the mean accuracy."""
    accuracies = []
    for seed in range(10):
        task = (
            images_task(12_800, seed=seed, noise=1.4)
            if name == "images"
            else tokens_task(12_800, seed=seed, own_tokens=0.4)
        )
        network = subquant.quantize_network(
            task.model.SerializeToString(), {task.name: task.inputs[:CALIBRATION]}, held_out=0
        )
        inputs, labels = task.held_out()
        floats, integers, peer = (
            logits(run, inputs, task.batch)
            for run in (
                onnx_session(task.model),
                subquant.compile(network.bytecode).main,
                onnx_session(quantized_by_onnxruntime(task)),
            )
        )
        by_floats = floats.argmax(1)
        assert accuracy_of(integers, by_floats) > accuracy_of(peer, by_floats)
        assert np.square(integers - floats).sum() < np.square(peer - floats).sum()
        accuracies.append([accuracy_of(each, labels) for each in (integers, peer)])
    # The classes of 1.5 % of 120,000 samples differ: 0.05 % of all are one standard deviation.
    mean, of_peer = np.mean(accuracies, axis=0)
    assert mean >= of_peer - 0.0005


@pytest.mark.skipif(not LONG, reason="each method compiles two programs")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_the_signal(method: str) -> None:
    network = quantized("images", method)
    assert network.outputs[0] is not None
    assert network.outputs[0] > 22
    assert all(layer.sqnr is not None and layer.sqnr > 25 for layer in network.layers[:-1])


def test_the_report_names_what_stays_float() -> None:
    layers = quantized("tokens").layers
    assert [layer.why_float for layer in layers if layer.computes == "f32"] == [
        "both operands are computed"
    ] * (2 + 2 * LONG)
    assert {layer.result for layer in layers if layer.computes == "int8"} == {"f32"}
    assert [layer.result for layer in quantized("images").layers] == ["int8"] * 5 + ["f32"]


# -- bits -----------------------------------------------------------------------------------------


@functools.cache
def small_task() -> Task:
    return images_task(200, 100, size=4, channels=8, batch=2)


@functools.cache
def small_images() -> tuple[QuantizedNetwork, Array]:
    task = small_task()
    model = task.model.SerializeToString()
    return subquant.quantize_network(model, [task.inputs[:14]], held_out=0), task.inputs[-2:]


@functools.cache
def small_images_result() -> Array:
    network, x = small_images()
    return np.asarray(subquant.compile(network.bytecode).main(x))


@pytest.mark.long
def test_bits_of_the_interpreter() -> None:
    network, x = small_images()
    [result] = InterpretedModule(network.bytecode)["main"].invoke([x])
    np.testing.assert_array_equal(result, small_images_result())


@pytest.mark.parametrize("kernels", ["avx2", "portable", "none"] if LONG else ["portable"])
def test_bits_of_kernels(kernels: str) -> None:
    network, x = small_images()
    result = subquant.compile(network.bytecode, kernels=kernels).main(x)
    np.testing.assert_array_equal(result, small_images_result())


@pytest.mark.long
@pytest.mark.vulkan
def test_bits_of_vulkan() -> None:
    network, x = small_images()
    result = subquant.compile(network.bytecode, target="vulkan").main(x)
    np.testing.assert_array_equal(result, small_images_result())


# -- dynamic batch --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_dynamic_batch(tmp_path: Path) -> None:
    """A batch of any size has the bits of a batch that is given, by equal ranges."""
    model = onnx.ModelProto()
    model.CopyFrom(small_task().model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    inputs = {"x": small_task().inputs[:14]}
    network = subquant.quantize_network(
        model.SerializeToString(), inputs, held_out=0, batch="dynamic"
    )
    static, x = small_images()
    assert [each.result for each in network.layers] == [each.result for each in static.layers]
    assert (network.calibration_batches, static.calibration_batches) == (14, 7)
    network.save(tmp_path / "net.mlir")
    archive = {"model": tmp_path / "net.irpa"}
    function = subquant.compile(tmp_path / "net.mlir", parameters=archive).main
    signature = function.signature
    assert signature is not None
    assert [each.name for each in signature.inputs] == ["x"]
    np.testing.assert_array_equal(function(x), small_images_result())
    samples = small_task().inputs[-5:]
    np.testing.assert_array_equal(function(samples)[3:], small_images_result())
    assert function(samples[:1]).shape == (1, 8)


@pytest.mark.long
def test_a_dynamic_batch_of_tflite(tmp_path: Path) -> None:
    inputs = np.random.default_rng(6).normal(size=(24, 8, 8, 3)).astype(np.float32)
    network = subquant.quantize_network(tflite_network(1), [inputs], batch="dynamic")
    assert [row.computes for row in network.layers] == ["int8"] * 5
    network.save(tmp_path / "net.mlir")
    text = (tmp_path / "net.mlir").read_text()
    assert re.search(r"func.func @main\(%\w+: tensor<\?x8x8x3xf32>\) -> tensor<\?x10xf32>", text)
    assert re.search(r"func.func private @main.item\(%\w+: tensor<1x8x8x3xf32>\)", text)


# -- weights only ---------------------------------------------------------------------------------


@pytest.mark.long
def test_int4_weights_by_the_inputs(tmp_path: Path) -> None:
    net = Network(3)  # two layers, whose inputs depend on each other
    hidden = net.add("Relu", net.add("MatMul", "x", net.weight(128, 1088)))
    result = net.add("MatMul", hidden, net.weight(1088, 24))
    model = net.model({"x": ("FLOAT", (16, 128))}, result).SerializeToString()
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=(160, 16)) @ rng.normal(size=(16, 128))
    inputs = (inputs + 0.1 * rng.normal(size=inputs.shape)).astype(np.float32)
    options: dict[str, Any] = {"bits": 4, "activations": "float"}
    rounded = subquant.quantize_network(model, **options)
    by_inputs = subquant.quantize_network(model, [inputs[:144]], held_out=0, **options)
    assert {row.computes for row in by_inputs.layers} == {"w4"}
    assert (rounded.calibration_batches, by_inputs.calibration_batches) == (0, 9)
    by_inputs.save(tmp_path / "net.mlir")
    text = (tmp_path / "net.mlir").read_text()
    assert "!quant.uniform<i4<-7:7>:f32:{0:32, 1:1}" in text  # 816 scales
    assert "quantized_type = !quant.any<i4<-7:7>:f32>" in text  # 4,352 scales, in the archive
    assert "tensor<128x544xi8>" in text
    x, (first, second) = inputs[144:], net.constants.values()
    floats = np.maximum(x @ first, 0) @ second
    archive = {"model": tmp_path / "net.irpa"}
    functions = (
        subquant.compile(rounded.bytecode).main,
        subquant.compile(tmp_path / "net.mlir", parameters=archive).main,
    )
    noise = [np.linalg.norm(each(x) - floats) / np.linalg.norm(floats) for each in functions]
    assert noise[1] < 0.6 * noise[0]
    assert noise[0] < 0.2


def test_the_selection_of_layers() -> None:
    task = small_task()
    network = subquant.quantize_network(
        task.model.SerializeToString(), bits=4, activations="float", select="Conv_[2-9]"
    )
    assert [bool(row.why_float) for row in network.layers] == [True, False, False, True]
    assert network.layers[0].why_float == "its name does not match the selection"


# -- files ----------------------------------------------------------------------------------------


def test_the_command_writes_a_program_and_its_archive(tmp_path: Path) -> None:
    network, x = small_images()
    task = small_task()
    onnx.save(task.model, tmp_path / "net.onnx")
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples" / "x.npy", task.inputs[:14])
    output = tmp_path / "net-int8.mlir"
    text = succeed(
        "quantize", tmp_path / "net.onnx", "--inputs", tmp_path / "samples", "-o", output,
        "--held-out", "0", "--json",
    ).stdout  # fmt: skip
    report = json.loads(text)
    assert [each["name"] for each in report["layers"]] == [each.name for each in network.layers]
    assert report["calibration_batches"] == 7
    assert report["held_out_batches"] == 0
    assert "!quant.uniform<i8<-127:127>:f32:0, {" in output.read_text()
    archive = {"model": tmp_path / "net-int8.irpa"}
    result = subquant.compile(output, parameters=archive).main(x)
    np.testing.assert_array_equal(result, small_images_result())


# -- TensorFlow Lite ------------------------------------------------------------------------------


def tflite_network(batch: int = 2) -> bytes:
    """A convolution, a depthwise one around which is a sum, a mean, a dense layer; in floats."""
    rng, graph = np.random.default_rng(5), Graph()

    def constant(*shape: int) -> int:
        spread = 1 / np.sqrt(np.prod(shape[1:]) or 1)
        return graph.constant(rng.normal(size=shape) * spread, "float32")

    def features(*shape: int) -> int:
        return graph.tensor(shape, "float32")

    x, first, second, total = (
        features(batch, 8, 8, 3),
        *(features(batch, 8, 8, 16) for _ in range(3)),
    )
    mean, flat, result = features(batch, 1, 1, 16), features(batch, 16), features(batch, 10)
    window: dict[str, Any] = {"padding": 0, "strideH": 1, "strideW": 1}
    graph.operator("CONV_2D", [x, constant(16, 3, 3, 3), constant(16)], [first], "Conv2DOptions",
                   **window, dilationHFactor=1, dilationWFactor=1,
                   fusedActivationFunction=1)  # fmt: skip
    graph.operator("DEPTHWISE_CONV_2D", [first, constant(1, 3, 3, 16), constant(16)], [second],
                   "DepthwiseConv2DOptions", **window, dilationHFactor=1, dilationWFactor=1,
                   depthMultiplier=1, fusedActivationFunction=3)  # fmt: skip
    graph.operator("ADD", [first, second], [total], "AddOptions", fusedActivationFunction=0)
    graph.operator("AVERAGE_POOL_2D", [total], [mean], "Pool2DOptions", padding=1, strideH=8,
                   strideW=8, filterHeight=8, filterWidth=8, fusedActivationFunction=0)  # fmt: skip
    graph.operator("RESHAPE", [mean, graph.constant([batch, 16])], [flat])
    graph.operator("FULLY_CONNECTED", [flat, constant(10, 16), constant(10)], [result],
                   "FullyConnectedOptions")  # fmt: skip
    return graph.model([x], [result])


def test_a_tflite_network() -> None:
    inputs = np.random.default_rng(6).normal(size=(24, 8, 8, 3)).astype(np.float32)
    model = tflite_network()
    network = subquant.quantize_network(model, [inputs])
    assert [(row.operation, row.computes, row.result) for row in network.layers] == [
        ("convolution", "int8", "int8"),
        ("convolution", "int8", "int8"),
        ("add", "int8", "int8"),
        ("mean", "int8", "int8"),
        ("dot_general", "int8", "f32"),
    ]
    assert all(row.sqnr is not None and row.sqnr > 30 for row in network.layers)
    assert (network.calibration_batches, network.held_out_batches) == (10, 2)


# -- inputs ---------------------------------------------------------------------------------------


def test_a_network_without_layers_for_integers() -> None:
    attention = Network(1)
    product = attention.add("MatMul", "x", attention.add("Transpose", "x", perm=[1, 0]))
    model = attention.model({"x": ("FLOAT", (4, 4))}, product).SerializeToString()
    with pytest.raises(InputError, match=r"can be quantized: .*: both operands are computed"):
        subquant.quantize_network(model, [np.zeros((4, 4), np.float32)])
    with pytest.raises(InputError, match=r"can be quantized: .*: it is quantized already"):
        subquant.quantize_network(small_images()[0].bytecode, [small_images()[1]])
    with pytest.raises(UsageError, match=r"batch is for \.tflite and \.onnx models"):
        subquant.quantize_network(small_images()[0].float_bytecode, [], batch="dynamic")


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="static activations need weights of 8 bits, got 4"):
        NetworkQuantization(bits=4)
    with pytest.raises(UsageError, match="static activations need calibration inputs"):
        subquant.quantize_network(b"")
    message = fail(2, "quantize", "net.onnx")
    assert "give a folder by --inputs, or leave the activations in floats" in message
    message = fail(2, "quantize", "net.onnx", "--granularity", "axis")
    assert "--granularity is for the quantization of weights" in message
    for options, needed in (
        ("--activations float --percentile 99", "--percentile needs --activations static"),
        ("--calibration kl --percentile 99", "--percentile needs --calibration percentile"),
        ("--activations float --held-out 0.5", "--held-out needs --inputs"),
        ("--block-size 16", "--block-size needs --activations float"),
    ):
        assert fail(2, "quantize", "net.onnx", *options.split()) == f"error: {needed}\n"
    message = fail(2, "quantize", "net.gguf", "--inputs", tmp_path)
    assert "--inputs is for the quantization of networks" in message


# -- ranges ---------------------------------------------------------------------------------------


def histogram_of(*arrays: Array) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        histogram.add(array.astype(np.float32))
    return histogram


def test_a_histogram_does_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=1000) * 10.0**n for n in range(-3, 4)]
    forward, backward = histogram_of(*arrays), histogram_of(*arrays[::-1])
    np.testing.assert_array_equal(forward.counts, backward.counts)
    assert forward.limit == backward.limit
    edges = np.linspace(-forward.limit, forward.limit, len(forward.counts) + 1)
    expected, _ = np.histogram(np.concatenate(arrays).astype(np.float32), edges)
    np.testing.assert_array_equal(forward.counts, expected)


def square_error(values: Array, low: float, high: float) -> float:
    parameters = parameters_of_range(low, high)
    restored = subquant.dequantize(subquant.quantize(values, parameters), parameters)
    return float(np.square(restored - values).mean())


@pytest.mark.long
@pytest.mark.parametrize("shift", [-1.0, 0.0, 4.0])
def test_ranges_of_a_distribution_with_outliers(shift: float) -> None:
    rng = np.random.default_rng(1)
    values = (rng.normal(size=200_000) + shift).astype(np.float32)
    values[:2] = -30, 50
    histogram = histogram_of(values)
    assert range_of(histogram, "min-max") == (-30, 50)
    width = histogram.width
    low, high = range_of(histogram, "percentile", 99.9)
    np.testing.assert_allclose([low, high], np.quantile(values, [0.0005, 0.9995]), atol=2 * width)
    low, high = range_of(histogram, "kl")
    assert -25 < low < shift - 3
    assert shift + 3 < high < 25
    low, high = range_of(histogram, "mse")
    # No range of a grid has a much smaller error, measured on the values themselves.
    tried = [(a, b) for a in np.linspace(-30, -1, 15) for b in np.linspace(2, 50, 17)]
    assert square_error(values, low, high) <= 1.05 * min(square_error(values, *t) for t in tried)


def test_ranges_of_zeros_and_of_one_sign() -> None:
    for method in METHODS:
        assert range_of(histogram_of(np.zeros(9)), method) == (0, 0)
        low, high = range_of(histogram_of(np.maximum(np.linspace(-5, 5, 10_001), 0)), method)
        assert low == 0
        assert 4.5 < high <= 5
    assert parameters_of_range(0, 0).scales == 1
    assert parameters_of_range(0, 5).zero_points == -128
    assert parameters_of_range(1, 5) == parameters_of_range(0, 5)  # 0 is exact
