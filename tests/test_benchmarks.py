"""``subquant bench``; and ``scripts/bench``: cases, checks and reports."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import subquant
from programs import load_script
from subquant.cli import main
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.core.cpu_features import simulated_host_cpu
from subquant.core.versions import PINNED_VERSIONS
from subquant.errors import UsageError
from subquant.runtime import Device
from subquant.runtime.machine import describe_machine
from subquant.runtime.timing import Times, draw_arguments, time_calls

ROOT = Path(__file__).resolve().parent.parent
_MODULES = (
    "blocks",
    "cases",
    "checks",
    "ceilings",
    "hidden",
    "measurement",
    "networks",
    "programs",
    "report",
    "worker",
    "__main__",
)


@pytest.fixture(scope="module")
def bench() -> Any:
    """The modules of ``scripts/benchmarks``."""
    modules = {name: load_script(f"benchmarks.{name}") for name in _MODULES}
    peers = {
        name: load_script(f"benchmarks.peers.{name}") for name in ("iree", "limits", "subquant")
    }
    return SimpleNamespace(**modules, main=modules["__main__"], **peers)


@pytest.fixture
def workers(bench: Any, tmp_path: Path) -> Iterator[Any]:
    created = bench.measurement.Workers(tmp_path / "log")
    yield created
    created.close()


# -- times ----------------------------------------------------------------------------------------


def test_times_are_summarized() -> None:
    times = Times.of([5_000_000, 1_000_000, 2_000_000, 4_000_000, 3_000_000])
    assert times == Times(5, 1.0, 2.0, 3.0, 4.0)
    assert times.is_disturbed
    assert not Times.of([1_000_000, 1_100_000, 1_200_000]).is_disturbed
    assert times.to_json()["median"] == 3.0


def test_calls_are_counted() -> None:
    called: list[int] = []
    assert len(time_calls(called.append, repeat=3, warm_up=2)) == 3
    assert called == [0, 1, 2, 3, 4]
    assert len(time_calls(called.append, seconds=1e-9)) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, "expected a time above 0 s, and at most 86,400, got 0"),
        ({"seconds": float("nan")}, "expected a time above 0 s, and at most 86,400, got nan"),
        ({"seconds": float("inf")}, "expected a time above 0 s, and at most 86,400, got inf"),
        ({"seconds": 1e23}, "expected a time above 0 s, and at most 86,400, got 1e"),
        ({"repeat": 0}, "expected 1 to 10,000,000 calls, got 0"),
        ({"repeat": 10**23}, "expected 1 to 10,000,000 calls, got 1000000"),
    ],
)
def test_no_time_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        time_calls(lambda number: None, **wrong)


def test_a_machine_is_described_without_its_name() -> None:
    import platform

    machine = describe_machine()
    assert int(machine["cores"]) >= 1
    assert machine["iree-base-compiler"]
    assert platform.node() not in machine.values()


# -- the command ----------------------------------------------------------------------------------

PROGRAM = """
!x = !quant.uniform<i8<-20:20>:f32, 0.5:3>
func.func @main(%a: tensor<2x3x!x>, %b: tensor<3xf32>, %c: tensor<3xi8>) -> tensor<3xf32> {
  return %b : tensor<3xf32>
}
func.func @open(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }
"""


def bench_command(*arguments: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(main, ["bench", *arguments])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "model.mlir"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture(scope="module")
def executable(model: str) -> str:
    path = model.removesuffix(".mlir") + ".vmfb"
    Path(path).write_bytes(compile_to_bytes(PROGRAM))
    return path


def test_a_model_is_compiled_and_timed(model: str) -> None:
    actual = bench_command(model, "--function", "main", "--repeat", "3", "--threads", "1")
    assert actual.exit_code == 0, actual.stderr
    assert re.search(
        r"main: minimum [\d.]+ [mu]s, median [\d.]+ [mu]s .*, 3 calls\n", actual.stdout
    )
    assert re.search(r"compiled in [\d.]+ s, [\d,]+ bytes", actual.stderr)


def test_an_executable_is_timed(executable: str) -> None:
    arguments = ("--function", "open", "--input", "2xf32=1,2", "--seconds", "0.01", "--json")
    actual = bench_command(executable, *arguments)
    assert actual.exit_code == 0, actual.stderr
    message = json.loads(actual.stdout)
    assert message["function"] == "open"
    assert message["milliseconds"]["minimum"] <= message["milliseconds"]["median"]
    assert message["machine"]["iree-base-runtime"] == PINNED_VERSIONS["iree-base-runtime"]
    assert "compile_seconds" not in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--function", "open"), "argument 0 (tensor<?xf32>) is of no known shape; give"),
        (("--function", "none"), "no function is named 'none'; expected one of: main, open"),
        (
            ("--function", "main", "--seconds", "0"),
            "expected a time above 0 s, and at most 86,400, got 0.0",
        ),
        (("--function", "main", "--threads", "0"), "expected 1 to 256 threads, got '0'"),
        (("--function", "main", "--input", "2xf32=1,2"), "takes 3 arguments, got 1"),
    ],
)
def test_what_cannot_be_timed(executable: str, arguments: Sequence[str], message: str) -> None:
    actual = bench_command(executable, *arguments)
    assert actual.exit_code in (1, 2), actual.stderr
    assert message in actual.stderr


def test_drawn_arguments_fit(executable: str) -> None:
    function = subquant.load(executable)["main"]
    assert function.signature is not None
    drawn = draw_arguments(function.signature, seed=1)
    assert [(array.shape, array.dtype.name) for array in drawn] == [
        ((2, 3), "int8"), ((3,), "float32"), ((3,), "int8"),
    ]  # fmt: skip
    assert np.abs(drawn[0]).max() <= 20
    np.testing.assert_array_equal(function(*drawn), drawn[1])


# -- weights and programs -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_planes_are_the_blocks(bench: Any, name: str) -> None:
    weights = bench.blocks.drawn(name, 6, 96, np.random.default_rng(0))
    planes = bench.blocks.planes_of(name, weights)
    zero_points = planes.zero_points
    if zero_points is None:
        zero_points = np.full(planes.scales.shape, 1 << (planes.bits - 1))
    stored = planes.storage.reshape(6, 3, 32).astype(np.float64)
    values = (stored - zero_points[..., None]) * planes.scales.astype(np.float64)[..., None]
    np.testing.assert_array_equal(values.reshape(6, 96), bench.blocks.dequantized(name, weights))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_drawn_weights_have_about_unit_gain(bench: Any, name: str) -> None:
    weights = bench.blocks.drawn(name, 16, 512, np.random.default_rng(0))
    gains = np.sqrt((bench.blocks.dequantized(name, weights) ** 2).sum(1))
    assert (gains > 0.2).all()
    assert (gains < 5).all()


def test_weights_without_planes_have_none(bench: Any) -> None:
    assert bench.blocks.planes_of("Q6_K", np.zeros((1, 210), np.uint8)) is None


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_window_sums_are_those_of_loops(bench: Any, stride: int, groups: int) -> None:
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


def tiny(bench: Any, kind: str) -> Any:
    """A case of a kind that takes no time."""
    cases = bench.cases
    return {
        "blocks": lambda: cases.block_matmul("tiny", "Q4_1", 2, 8, 64),
        "one row": lambda: cases.block_matmul("tiny", "Q4_0", 1, 8, 64),
        "matmul": lambda: cases.int8_matmul("tiny", 3, 5, 16),
        "convolution": lambda: cases.int8_convolution("tiny", 6, 4, 4, 3, 2, 1),
        "depthwise": lambda: cases.int8_convolution("tiny", 5, 4, 4, 3, 1, 4),
    }[kind]()


@pytest.mark.parametrize("has_weight_argument", [False, True])
@pytest.mark.parametrize("kind", ["matmul", "convolution", "depthwise"])
def test_quantized_programs_are_the_cases(
    bench: Any, cpu: Device, kind: str, has_weight_argument: bool
) -> None:
    data = tiny(bench, kind)
    write = bench.programs.quantized_integers
    text = write(data.values, data.arrays, has_weight_argument=has_weight_argument)
    arguments = [data.arrays["x"], data.arrays["w"]][: 1 + has_weight_argument]
    result = subquant.compile(text, device=cpu).main(*arguments)
    assert bench.checks.check(data, result, {}) == bench.checks.Check(True, "exact")


@pytest.mark.parametrize("kind", ["matmul", "convolution", "depthwise"])
def test_plain_programs_are_the_cases(bench: Any, kind: str) -> None:
    data = tiny(bench, kind)
    program = bench.iree.prepare(data.values, dict(data.arrays), 1, 1)
    program.call(0)
    assert bench.checks.check(data, program.result(), {}) == bench.checks.Check(True, "exact")


@pytest.mark.parametrize("kind", ["blocks", "matmul", "convolution"])
def test_cases_are_compiled_for_another_cpu(
    bench: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = tiny(bench, kind), []

    def executables(source: Any, options: CompileOptions, *rest: Any) -> Any:
        seen.append(options.target_cpu)
        return SimpleNamespace(notes={})

    monkeypatch.setattr(bench.subquant, "Executables", executables)
    for values in (data.values, data.values | {"target_cpu": "generic"}):
        bench.subquant.prepare(values, dict(data.arrays), 1, 1)
    assert seen == ["host", "generic"]


def test_peers_that_are_for_this_cpu_say_so(bench: Any) -> None:
    request = {"do": "prepare", "case": {"kind": "block matmul", "target_cpu": "generic"}}
    with pytest.raises(Exception, match="it chooses its instructions by this machine"):
        bench.worker.answer(SimpleNamespace(), {}, request)
    case = {"kind": "language model", "target_cpu": "generic"}
    with pytest.raises(Exception, match="compiled for this machine"):
        bench.subquant.prepare(case, {}, 1, 1)


def test_what_a_processor_has_is_hidden(bench: Any, tmp_path: Path) -> None:
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


def test_peers_that_choose_are_preloaded(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("what", ["read", "multiply", "multiply and load"])
def test_ceilings_run(bench: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_tiles_are_multiplied(bench: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_cpu_has_no_ceiling_of_instructions(bench: Any) -> None:
    for what in bench.ceilings.CEILINGS[1:]:
        assert bench.ceilings.kernel(what, frozenset({"neon"})) is None


# -- checks ---------------------------------------------------------------------------------------


def rounded(x: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Activations as 8 bits with a scale for each block."""
    blocks = x.astype(np.float64).reshape(len(x), -1, size)
    steps = np.abs(blocks).max(2, keepdims=True) / 127
    actual: np.ndarray[Any, Any] = (np.rint(blocks / steps) * steps).reshape(x.shape)
    return actual


def test_a_block_matmul_may_round_its_activations(bench: Any) -> None:
    data = bench.cases.block_matmul("tiny", "Q4_0", 64, 64, 256)
    notes = {"activations": {"block": 32, "steps": 254}}
    result = rounded(data.arrays["x"], 32) @ data.reals.T
    assert bench.checks.check(data, result, notes).is_right
    assert bench.checks.check(data, data.exact.astype(np.float32), {}).is_right
    # not with wider blocks than it says, nor if it says that they stay floats
    coarse = rounded(data.arrays["x"], 256) @ data.reals.T
    assert not bench.checks.check(data, coarse + 2 * (coarse - data.exact), notes).is_right
    assert not bench.checks.check(data, result, {}).is_right


def test_a_block_that_is_missing_is_noticed(bench: Any) -> None:
    data = bench.cases.block_matmul("tiny", "Q4_0", 4, 64, 256)
    notes = {"activations": {"block": 32, "steps": 254}}
    x = rounded(data.arrays["x"], 32)
    result = x @ data.reals.T
    result[1, 2] -= x[1, :32] @ data.reals[2, :32]
    assert not bench.checks.check(data, result, notes).is_right


def test_integers_are_the_nearest(bench: Any) -> None:
    data = tiny(bench, "matmul")
    nearest = np.rint(np.clip(data.exact, -128, 127)).astype(np.int8)
    assert bench.checks.check(data, nearest, {}) == bench.checks.Check(True, "exact")
    nearest[0, 0] += 1 if nearest[0, 0] < 127 else -1
    assert not bench.checks.check(data, nearest, {}).is_right


def test_other_shapes_and_nan_are_wrong(bench: Any) -> None:
    data = tiny(bench, "blocks")
    assert not bench.checks.check(data, data.exact[:1], {}).is_right
    assert not bench.checks.check(data, data.exact * np.nan, {}).is_right


def test_the_integers_of_a_model_are_near(bench: Any) -> None:
    data = replace(tiny(bench, "matmul"), values={"kind": "model"}, exact=np.zeros((2, 2)))
    is_close = np.array([[0, 16], [0, 0]], np.int8)
    actual = bench.checks.check(data, is_close, {})
    assert actual == bench.checks.Check(True, "1 of 4 differ, by 16 at most")
    assert not bench.checks.check(data, is_close + np.int8(1), {}).is_right


def test_a_network_has_the_layers_of_the_paper(bench: Any) -> None:
    network = bench.networks.mobile_network()
    onnx.checker.check_model(network, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(network).graph
    shapes = {
        each.name: [extent.dim_value for extent in each.type.tensor_type.shape.dim]
        for each in (*inferred.value_info, *inferred.output)
    }
    weights = {each.name: list(each.dims) for each in inferred.initializer}
    convolutions = [node for node in inferred.node if node.op_type == "Conv"]
    products = [
        math.prod(shapes[node.output[0]]) * math.prod(weights[node.input[1]][1:])
        for node in convolutions
    ]
    assert len(convolutions) == 52
    assert sum(products) + 1280 * 1000 == 300_774_272
    assert sum(math.prod(weights[node.input[1]]) for node in convolutions) == 2_189_760


# -- a run ----------------------------------------------------------------------------------------


@pytest.mark.device
def test_a_case_is_measured_and_reported(bench: Any, workers: Any, tmp_path: Path) -> None:
    data = tiny(bench, "one row")
    peers = {"subquant": "subquant 1", "nobody": "Nobody 2", "iree": "IREE 3"}
    actual = bench.measurement.measure(replace(data, rotated=False), 1, list(peers), workers, 0.01)
    assert [each.name for each in actual] == [*peers, *bench.ceilings.CEILINGS[1:]]
    assert [each.check and each.check.is_right for each in actual[:3]] == [True, None, True]
    assert "nobody" in actual[1].failure
    outcome = bench.report.Outcome("tiny", 1, 1.1, data.products, actual)
    assert outcome.best.name == "iree"
    assert outcome.ratio == outcome.best.times.median / outcome.ours.times.median
    text = bench.report.table([outcome], peers)
    assert text.splitlines()[1].split()[:2] == ["tiny", "1"]
    whole = bench.report.to_json({"CPU": "one"}, peers, [outcome])
    assert (
        json.loads(json.dumps(whole))["cases"][0]["measurements"][0]["milliseconds"]["count"] >= 1
    )
    written = bench.report.page(
        {"CPU": "one"}, peers, [outcome], {}, "times.svg", {"other.md": "Benchmarks on two"}
    )
    assert written.startswith("# Benchmarks on one\n")
    assert "\nOther machines: [Benchmarks on two](other.md).\n" in written
    assert "| tiny | 1 |" in written
    assert str(ROOT) not in written
    bench.report.draw(tmp_path / "times.svg", [outcome])
    assert "tiny" in (tmp_path / "times.svg").read_text()


@pytest.mark.vulkan
def test_vulkan_is_measured_beside_its_product_of_floats(
    bench: Any, workers: Any, vulkan: Device
) -> None:
    data = bench.cases.block_matmul("tiny", "Q4_0", 2, 256, 128, "vulkan", "float")
    peers = ["subquant", "iree", "onnxruntime"]
    ours, floats, other = bench.measurement.measure(data, 1, peers, workers, 0.01)
    assert ours.check.is_right
    assert floats.check.is_right
    assert floats.notes["path"] == "f32 matmul"
    assert other.times is None
    assert "CPU" in other.failure


def test_weights_are_rotated(bench: Any, workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.measurement, "CEILINGS", ())
    monkeypatch.setattr(bench.measurement, "_MIN_ROTATED_BYTES", 3 * tiny(bench, "one row").bytes)
    requested: list[dict[str, Any]] = []
    worker = workers.get("iree", 1)
    original = worker.ask
    monkeypatch.setattr(
        worker, "ask", lambda do, **rest: requested.append(rest) or original(do, **rest)
    )
    actual = bench.measurement.measure(tiny(bench, "one row"), 1, ["iree"], workers, 0.01)
    assert actual[0].times.count >= 1
    assert requested[0]["copies"] == 3


def test_turns_are_short_and_in_varied_order(bench: Any) -> None:
    calls = {"fast": 0.0001, "slower": 0.0008, "slow": 0.04}
    requested: list[tuple[str, float]] = []

    def worker(name: str) -> Any:
        def ask(do: str, *, seconds: float) -> list[int]:
            requested.append((name, seconds))
            return [int(calls[name] * 1e9)] * max(1, round(seconds / calls[name]))

        return SimpleNamespace(ask=ask)

    rotations = [(bench.measurement.Measured(name), worker(name), []) for name in calls]
    bench.measurement._time_in_slices(rotations, 1, None, 0.3)
    for each, _, nanoseconds in rotations:
        assert 0.299 < sum(nanoseconds) / 1e9 < 0.4, each.name
    lengths = {name: [seconds for each, seconds in requested[3:] if each == name] for name in calls}
    assert set(lengths["fast"]) == {0.003}
    assert lengths["slower"] == pytest.approx([0.008] * len(lengths["slower"]))
    assert set(lengths["slow"]) == {0.1}
    rounds = [tuple(name for name, _ in requested[at : at + 3]) for at in range(0, 9, 3)]
    assert all(sorted(each) == sorted(calls) for each in rounds)
    assert len({*itertools.pairwise(name for name, _ in requested[:60])}) > 3


def test_copies_go_on_in_the_next_turn(bench: Any) -> None:
    called: list[int] = []
    state = {
        "prepared": SimpleNamespace(call=called.append),
        "copies": 3,
        "numbers": itertools.count(),
    }
    for _ in range(3):
        bench.worker.answer(None, state, {"do": "time", "seconds": 1e-9})
    assert called == [0, 1, 2, 0, 1, 2]


def test_a_peer_takes_no_time_but_in_its_turn(bench: Any, workers: Any) -> None:
    worker = workers.get("iree", 1)
    process = worker._process
    clock = (~process.pid << 3) | 2  # what clock_getcpuclockid gives on Linux
    worker.ask("describe")
    tasks, used, end = Path(f"/proc/{process.pid}/task"), -1.0, time.monotonic() + 10
    while used != (used := time.clock_gettime(clock)):  # the last thread has stopped
        assert time.monotonic() < end
        time.sleep(0.05)
    assert all("State:\tT (stopped)" in (each / "status").read_text() for each in tasks.iterdir())
    assert worker.ask("describe")
    assert time.clock_gettime(clock) > used
    workers.drop("iree", 1)
    assert process.returncode == 0


def test_a_peer_that_ends_is_started_again(bench: Any, workers: Any) -> None:
    data = tiny(bench, "matmul")
    workers.get("iree", 1)._process.kill()
    first, second = (
        bench.measurement.measure(data, 1, ["iree"], workers, 0.01)[0] for _ in range(2)
    )
    assert "its process ended with status -9" in first.failure
    assert first.times is None
    assert second.times is not None


def page(bench: Any, outcomes: Sequence[Any] = (), machine: Any = None, remarks: Any = None) -> str:
    peers = {"subquant": "subquant 1"}
    written: str = bench.report.page(machine or {}, peers, outcomes, remarks or {}, None, {})
    return written


def outcome_of(bench: Any, ours: float, *, is_right: bool = True) -> Any:
    def measured(name: str, median: float, right: bool) -> Any:
        times = Times(9, median, median, median, median)
        return bench.measurement.Measured(
            name, {"work": 100}, times, bench.checks.Check(right, "some error")
        )

    actual = [
        measured("subquant", ours, is_right),
        measured("iree", 4.0, True),
        measured("litert", 2.0, False),
        measured("read", 1.0, True),
    ]
    return bench.report.Outcome("tiny", 1, 1.0, 50, actual)


def test_the_best_peer_that_is_right_counts(bench: Any) -> None:
    assert outcome_of(bench, 4.0).ratio == 1.0
    assert outcome_of(bench, 4.0, is_right=False).ratio is None
    assert outcome_of(bench, 2.0).ceiling_shares() == {"read": 0.25}
    outcome = outcome_of(bench, 4.0)
    only_wrong = replace(outcome, measurements=outcome.measurements[::2])
    assert only_wrong.ratio == 0.5


def test_peers_that_are_faster_and_wrong_are_listed(bench: Any) -> None:
    outcomes = [outcome_of(bench, 4.0), replace(outcome_of(bench, 4.0), measurements=[])]
    written = page(bench, outcomes)
    assert "## Faster, and wrong\n\n* tiny, 1 thread: litert, 0.50 of our time: " in written
    other = replace(outcomes[0], measurements=outcomes[0].measurements[:2])
    assert "Faster, and wrong" not in page(bench, [other])


def test_onnx_runtime_has_unsigned_weights_where_it_saturates(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []
    faster = SimpleNamespace(
        describe=lambda: {"name": "it", "version": "1"},
        prepare=lambda *arguments, **how: requested.append((*arguments, how)),
    )
    monkeypatch.setitem(sys.modules, "benchmarks.peers.onnxruntime", faster)
    monkeypatch.setattr(sys.modules["benchmarks.peers"], "onnxruntime", faster, raising=False)
    exact = importlib.import_module("benchmarks.peers.onnxruntime_exact")
    monkeypatch.setattr(exact, "features_of", lambda case: {"avx2"})
    assert exact.describe() == {"name": "it, unsigned weights", "version": "1"}
    exact.prepare({"kind": "int8 matmul"}, {}, 1, 2)
    assert requested == [({"kind": "int8 matmul"}, {}, 1, 2, {"is_exact": True})]
    with pytest.raises(bench.subquant.Unsupported):
        exact.prepare({"kind": "block matmul"}, {}, 1, 2)
    monkeypatch.setattr(exact, "features_of", lambda case: {"avx2", "avxvnni"})
    with pytest.raises(bench.subquant.Unsupported, match="exact"):
        exact.describe()


def test_a_page_is_named_by_what_the_cpu_multiplies_with(bench: Any) -> None:
    for features, expected in [
        ("avx2, avx512vnni, amx-int8", "AMX"),
        ("avx2, avx512vnni", "AVX512-VNNI"),
        ("avx2", "AVX2"),
    ]:
        written = page(bench, machine={"CPU": "one", "features": features})
        assert written.startswith(f"# Benchmarks on one with {expected}\n")


def test_a_cpu_without_dot_products_has_marks_of_its_own(bench: Any) -> None:
    created = {each.name: each for each in bench.cases.make_cases()}
    one, many, other = (
        created[f"{kind}x4096x4096"] for kind in ("int4 block 32 1", "int4 block 32 128", "Q4_K 1")
    )
    for features, marks in (
        ({"avx2"}, [1.25, 2.0, 1.1]),
        ({"avx2", "avxvnni"}, [1.1, 1.1, 1.1]),
        ({"avx2", "avx512vnni"}, [1.1, 1.1, 1.1]),
    ):
        assert [each.mark_for(features) for each in (one, many, other)] == marks


def test_what_is_compiled_for_another_cpu_says_so(bench: Any) -> None:
    machine = {"CPU": "one", "compiled for": "znver3"}
    written = page(bench, [outcome_of(bench, 1.0)], machine)
    assert written.startswith("# Benchmarks on one, compiled for znver3\n")
    assert "compiled for `znver3`" in written


def test_a_mark_that_is_missed_is_reported_with_what_is_known(bench: Any) -> None:
    remarks = {"tiny": "the caches are too small"}
    missed = page(bench, [outcome_of(bench, 8.0)], remarks=remarks)
    assert "* tiny, 1 thread: 0.50 of 1.00; 6% of `read`; the caches are too small" in missed
    reached = page(bench, [outcome_of(bench, 1.0)], remarks=remarks)
    assert "the caches are too small" not in reached


def test_the_command_line(
    bench: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.main.main(["--list", "--case", "^int8 depthwise"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "int8 depthwise 3x3 stride 1",
        "int8 depthwise 3x3 stride 2",
    ]
    assert bench.main.main(["--case", "no such case"]) == 2
    assert bench.main.main(["--seconds", "0"]) == 2
    assert bench.main.main(["--target-cpu", "nonsense"]) == 2
    message = capsys.readouterr().err.splitlines()
    assert len(message) == 3
    assert message[2].startswith("error: LLVM knows no CPU 'nonsense'")
    monkeypatch.setattr(bench.main, "missing_features", lambda recorded: ["avx9"])
    assert bench.main.main(["--target-cpu", "generic"]) == 2
    assert capsys.readouterr().err == "error: this machine has no avx9\n"
