"""Cases of ``scripts/benchmarks``: weights, programs, and checks of results."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import subquant
from benchmark_modules import bench, tiny
from gguf_models import TinyModel
from programs import load_script
from subquant.compiler.compile_options import CompileOptions
from subquant.core.cpu_features import simulated_host_cpu
from subquant.layouts import InferenceTensor, QuantizedTensor
from subquant.models.architectures import BlockStructure
from subquant.models.source import open_model
from subquant.runtime import Device
from subquant.runtime.machine import describe_machine


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_planes_are_the_blocks(name: str) -> None:
    weights = bench.blocks.drawn(name, 6, 96, np.random.default_rng(0))
    planes = bench.blocks.planes_of(name, weights)
    zero_points = planes.zero_points
    if zero_points is None:
        zero_points = np.full(planes.scales.shape, 1 << (planes.bits - 1))
    stored = planes.storage.reshape(6, 3, 32).astype(np.float64)
    values = (stored - zero_points[..., None]) * planes.scales.astype(np.float64)[..., None]
    np.testing.assert_array_equal(values.reshape(6, 96), bench.blocks.dequantized(name, weights))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_drawn_weights_have_about_unit_gain(name: str) -> None:
    weights = bench.blocks.drawn(name, 16, 512, np.random.default_rng(0))
    gains = np.sqrt((bench.blocks.dequantized(name, weights) ** 2).sum(1))
    assert (gains > 0.2).all()
    assert (gains < 5).all()


def test_weights_without_planes_have_none() -> None:
    assert bench.blocks.planes_of("Q6_K", np.zeros((1, 210), np.uint8)) is None


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_window_sums_are_those_of_loops(stride: int, groups: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (1, 5, 5, 4)), rng.integers(-9, 9, (3, 3, 4 // groups, 4))
    actual = bench.cases.window_sums(x, w, padding=[[0, 1], [1, 1]], stride=stride, groups=groups)
    padded = np.pad(x, ((0, 0), (0, 1), (1, 1), (0, 0)))
    expected = np.zeros_like(actual)
    depth = 4 // groups
    for i, j, o in itertools.product(*map(range, actual.shape[1:])):
        first = o // (4 // groups) * depth
        window = padded[0, i * stride : i * stride + 3, j * stride : j * stride + 3]
        expected[0, i, j, o] = (window[..., first : first + depth] * w[..., o]).sum()
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("has_weight_argument", [False, True])
@pytest.mark.parametrize("kind", ["matmul", "convolution", "depthwise"])
def test_quantized_programs_are_cases(cpu: Device, kind: str, has_weight_argument: bool) -> None:
    data = tiny(kind)
    write = bench.programs.quantized_integers
    text = write(data.values, data.arrays, has_weight_argument=has_weight_argument)
    arguments = [data.arrays["x"], data.arrays["w"]][: 1 + has_weight_argument]
    result = subquant.compile(text, device=cpu).main(*arguments)
    assert bench.checks.check(data, result, {}) == bench.checks.Check(True, "exact")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["matmul", "convolution", "depthwise"])
def test_plain_programs_are_cases(kind: str) -> None:
    data = tiny(kind)
    program = bench.iree.prepare(data.values, dict(data.arrays), 1, 1)
    program.call(0)
    assert bench.checks.check(data, program.result(), {}) == bench.checks.Check(True, "exact")


@pytest.mark.parametrize("kind", ["blocks", "matmul", "convolution"])
def test_cases_are_compiled_for_another_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = tiny(kind), []

    def executables(source: Any, options: CompileOptions, *rest: Any) -> Any:
        seen.append(options.target_cpu)
        return SimpleNamespace(notes={})

    monkeypatch.setattr(bench.subquant, "Executables", executables)
    for values in (data.values, data.values | {"target_cpu": "generic"}):
        bench.subquant.prepare(values, dict(data.arrays), 1, 1)
    assert seen == ["host", "generic"]


def test_peers_that_are_for_this_cpu_say_so() -> None:
    request = {"do": "prepare", "case": {"kind": "block matmul", "target_cpu": "generic"}}
    with pytest.raises(Exception, match="it chooses its instructions by this machine"):
        bench.worker.answer(SimpleNamespace(), {}, request)
    case = {"kind": "language model", "target_cpu": "generic"}
    with pytest.raises(Exception, match="compiled for this machine"):
        bench.subquant.prepare(case, {}, 1, 1)


def test_models_of_peers_are_built_without_pytest() -> None:
    """The environment of ``scripts/bench`` has no pytest, and LiteRT's peer builds its models."""
    program = "import sys; sys.modules['pytest'] = None; import tflite_builder"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True)


def test_what_a_processor_has_is_hidden(tmp_path: Path) -> None:
    """NumPy asks the processor, as ONNX Runtime and LiteRT do, and so do threads."""
    assert bench.hidden.build({"avx2", "avx512f"}, tmp_path) is None
    library = bench.hidden.build({"avx2", "fma"}, tmp_path)
    if library is None:
        pytest.skip("no C compiler, or a processor that does not trap cpuid")
    asks = """
import json, os, threading
found = []
def ask():
    from numpy._core._multiarray_umath import __cpu_features__ as features
    found.append([name for name, is_here in features.items() if is_here])
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(json.dumps([*found, "LD_PRELOAD" in os.environ]))
"""

    def ask(preloaded: str) -> Any:
        command = [sys.executable, "-c", asks]
        environment = os.environ | {"LD_PRELOAD": preloaded}
        return json.loads(subprocess.check_output(command, env=environment, text=True))

    features, is_preloaded = ask(str(library))
    assert "AVX2" in features
    assert not [name for name in features if name.startswith("AVX512")]
    assert not is_preloaded  # in its child processes
    everything, _ = ask("")
    assert {*features} <= {*everything}


def test_peers_that_choose_are_preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {}

    def started(command: list[str], env: dict[str, str], **options: Any) -> Any:
        arguments[command[-1]] = env.get("LD_PRELOAD"), bench.hidden.HIDDEN in env
        return SimpleNamespace()

    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(bench.measurement.subprocess, "Popen", started)
    for name in ("onnxruntime", "litert", "llama", "subquant"):
        bench.measurement.Worker(name, tmp_path / "log", Path("hidden.so"))
    assert arguments == {
        **dict.fromkeys(("onnxruntime", "litert"), ("hidden.so", True)),
        **dict.fromkeys(("llama", "subquant"), (None, False)),
    }
    bench.measurement.Worker("litert", tmp_path / "log")
    assert arguments["litert"] == (None, False)


@pytest.mark.long
@pytest.mark.parametrize("what", ["read", "multiply", "multiply and load"])
def test_ceilings_run(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from subquant.compiler.iree_driver import host_features

    monkeypatch.setattr(bench.ceilings, "_BYTES", 2**20)
    monkeypatch.setattr(bench.ceilings, "_ITERATIONS", 100)
    created = bench.ceilings.kernel(what, host_features() or frozenset())
    if created is None:
        pytest.skip("no instruction is known for this CPU")
    arguments = np.resize(np.arange(7, dtype=np.uint8), created.size)
    program = bench.limits.calls_of(created, arguments, 1, 1)
    program.call(0)
    result = program.result()
    assert result.size == created.result
    if what == "read":
        expected = arguments.view(np.int32).reshape(-1, result.shape[1]).sum(0, dtype=np.int32)
        np.testing.assert_array_equal(result.sum(0, dtype=np.int32), expected)
        assert created.work == 2**20
    else:
        assert result.any()


@pytest.mark.parametrize("what", ["AMX multiply", "AMX multiply and load"])
def test_tiles_are_multiplied(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if simulated_host_cpu() or "amx-int8" not in describe_machine().get("features", ""):
        pytest.skip("the CPU has no AMX")
    assert bench.ceilings.request_tiles()
    monkeypatch.setattr(bench.ceilings, "_TILE_ITERATIONS", 3)
    created = bench.ceilings.kernel(what, frozenset({"amx-int8"}))
    arguments = np.random.default_rng(0).integers(0, 256, created.size).astype(np.uint8)
    arguments[: len(created.head)] = np.frombuffer(created.head, np.uint8)
    program = bench.limits.calls_of(created, arguments, 1, 1)
    program.call(0)
    tiles = arguments[64:].view(np.int8).reshape(4, 16, 64).astype(np.int64)
    # rows of the second are groups of four along the depth, for each of 16 outputs
    right = tiles[2].reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    result = program.result().reshape(-1, 16, 16)
    assert len(result) * 3 * 4 * 16 * 16 * 64 == created.work
    assert (result == 3 * (tiles[0] @ right)).all()


def test_another_cpu_has_no_ceiling_of_instructions() -> None:
    for what in bench.ceilings.CEILINGS[1:]:
        assert bench.ceilings.kernel(what, frozenset({"neon"})) is None


def rounded(x: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Activations as 8 bits with a scale for each block."""
    blocks = x.astype(np.float64).reshape(len(x), -1, size)
    steps = np.abs(blocks).max(2, keepdims=True) / 127
    actual: np.ndarray[Any, Any] = (np.rint(blocks / steps) * steps).reshape(x.shape)
    return actual


def test_a_block_matmul_may_round_its_activations() -> None:
    data = bench.cases.block_matmul("tiny", "Q4_0", 64, 64, 256)
    notes = {"activations": {"block": 32, "steps": 254}}
    result = rounded(data.arrays["x"], 32) @ data.reals.T
    assert bench.checks.check(data, result, notes).is_right
    assert bench.checks.check(data, data.exact.astype(np.float32), {}).is_right
    # not with wider blocks than it says, nor if it says that they stay floats
    coarse = rounded(data.arrays["x"], 256) @ data.reals.T
    assert not bench.checks.check(data, coarse + 2 * (coarse - data.exact), notes).is_right
    assert not bench.checks.check(data, result, {}).is_right


def test_a_block_that_is_missing_is_noticed() -> None:
    data = bench.cases.block_matmul("tiny", "Q4_0", 4, 64, 256)
    notes = {"activations": {"block": 32, "steps": 254}}
    x = rounded(data.arrays["x"], 32)
    result = x @ data.reals.T
    result[1, 2] -= x[1, :32] @ data.reals[2, :32]
    assert not bench.checks.check(data, result, notes).is_right


def test_integers_are_the_nearest() -> None:
    data = tiny("matmul")
    nearest = np.rint(np.clip(data.exact, -128, 127)).astype(np.int8)
    assert bench.checks.check(data, nearest, {}) == bench.checks.Check(True, "exact")
    nearest[0, 0] += 1 if nearest[0, 0] < 127 else -1
    assert not bench.checks.check(data, nearest, {}).is_right


def test_other_shapes_and_nan_are_wrong() -> None:
    data = tiny("blocks")
    assert not bench.checks.check(data, data.exact[:1], {}).is_right
    assert not bench.checks.check(data, data.exact * np.nan, {}).is_right


def test_the_integers_of_a_model_are_near() -> None:
    data = replace(tiny("matmul"), values={"kind": "model"}, exact=np.zeros((2, 2)))
    is_close = np.array([[0, 16], [0, 0]], np.int8)
    actual = bench.checks.check(data, is_close, {})
    assert actual == bench.checks.Check(True, "1 of 4 differ, by 16 at most")
    assert not bench.checks.check(data, is_close + np.int8(1), {}).is_right


def test_a_network_has_the_layers_of_the_paper() -> None:
    network = bench.networks.mobile_network()
    onnx.checker.check_model(network, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(network).graph
    shapes = {
        each.name: [extent.dim_value for extent in each.type.tensor_type.shape.dim]
        for each in (*inferred.value_info, *inferred.output)
    }
    weights = {each.name: list(each.dims) for each in inferred.initializer}
    convolutions = [node for node in inferred.node if node.op_type == "Conv"]
    outputs = [math.prod(shapes[node.output[0]]) for node in convolutions]
    kernels = [weights[node.input[1]] for node in convolutions]
    products = [n * math.prod(kernel[1:]) for n, kernel in zip(outputs, kernels, strict=True)]
    assert len(convolutions) == 52
    assert sum(products) + 1280 * 1000 == 300_774_272
    assert sum(map(math.prod, kernels)) == 2_189_760


@pytest.mark.parametrize(("bits", "table_bits"), [(4, 16), (8, 16), (4, 8)])
def test_checkpoint_and_gguf_file_have_the_same_weights(
    tmp_path: Path, bits: int, table_bits: int
) -> None:
    source = TinyModel("gemma3", tied=True).write(tmp_path / "source.gguf")
    folder, target = tmp_path / "checkpoint", tmp_path / "same.gguf"
    bench.checkpoints.write_checkpoint(source, folder, target, bits, table_bits)
    original, checkpoint, same = (open_model(each) for each in (source, folder, target))
    assert same.configuration == original.configuration
    structure = original.configuration.structure
    own = replace(checkpoint.configuration, architecture="gemma3", structure=structure)
    for each in fields(BlockStructure):
        if each.name != "norm_offset":  # a GGUF file's norms have weights with the offset
            value = getattr(checkpoint.configuration.structure, each.name)
            assert value == getattr(structure, each.name), each.name
    assert own == original.configuration
    assert checkpoint.tensors.keys() == same.tensors.keys() == original.tensors.keys()
    rounding = {4: 1 / 15, 8: 2 / 255, 16: 2**-8}  # bf16 scales clip the greatest by half a step
    for name, tensor in checkpoint.tensors.items():
        weight, expected = _floats(tensor), _floats(original.tensors[name])
        if expected.ndim == 1:
            weight = weight + np.float32(1)
        np.testing.assert_array_equal(weight, _floats(same.tensors[name]), name)
        count = 16 if expected.ndim == 1 else table_bits if name.startswith("token") else bits
        assert np.abs(weight - expected).max() <= 1.05 * rounding[count] * np.abs(expected).max()


def _floats(tensor: InferenceTensor) -> Any:
    if isinstance(tensor, QuantizedTensor):
        return tensor.unpack().dequant(np.float32)
    return tensor.arrays[tensor.name].astype(np.float32)


def test_transformers_is_left_out_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(bench.subquant.Unsupported, match="torch is not installed in"):
        load_script("benchmarks.peers.transformers")
