"""Runs of ``scripts/benchmarks``: measurements, the processes of peers, and reports."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark_modules import bench, tiny
from programs import LONG
from subquant.runtime import Device
from subquant.runtime.timing import Times

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Any]:
    created = bench.measurement.Workers(tmp_path / "log")
    yield created
    created.close()


@pytest.mark.long
@pytest.mark.device
def test_a_case_is_measured_and_reported(workers: Any, tmp_path: Path) -> None:
    data = tiny("one row")
    peers = {"subquant": "subquant 1", "nobody": "Nobody 2", "iree": "IREE 3"}
    actual = bench.measurement.measure(replace(data, rotated=False), 1, list(peers), workers, 0.01)
    assert [each.name for each in actual] == [*peers, *bench.ceilings.CEILINGS[1:]]
    assert [each.check and each.check.is_right for each in actual[:3]] == [True, None, True]
    assert "nobody" in actual[1].failure
    outcome = bench.report.Outcome("tiny", 1, 1.1, data.products, actual)
    assert outcome.best.name == "iree"
    assert outcome.ratio == outcome.best.times.median / outcome.ours.times.median
    assert bench.report.table([outcome], peers).splitlines()[1].split()[:2] == ["tiny", "1"]
    whole = bench.report.to_json({"CPU": "one"}, peers, [outcome])
    (case,) = json.loads(json.dumps(whole))["cases"]
    assert case["measurements"][0]["milliseconds"]["count"] >= 1
    pages = {"other.md": "Benchmarks on two"}
    written = bench.report.page({"CPU": "one"}, peers, [outcome], {}, "times.svg", pages)
    assert written.startswith("# Benchmarks on one\n")
    assert "\nOther machines: [Benchmarks on two](other.md).\n" in written
    assert "| tiny | 1 |" in written
    assert str(ROOT) not in written
    bench.report.draw(tmp_path / "times.svg", [outcome])
    assert "tiny" in (tmp_path / "times.svg").read_text()


@pytest.mark.skipif(not LONG, reason="4 s; a case for the CPU is measured")
@pytest.mark.vulkan
def test_vulkan_is_measured_beside_its_product_of_floats(workers: Any, vulkan: Device) -> None:
    data = bench.cases.block_matmul("tiny", "Q4_0", 2, 256, 128, "vulkan", "float")
    peers = ["subquant", "iree", "onnxruntime"]
    ours, floats, other = bench.measurement.measure(data, 1, peers, workers, 0.01)
    assert ours.check.is_right
    assert floats.check.is_right
    assert floats.notes["path"] == "f32 matmul"
    assert other.times is None
    assert "CPU" in other.failure


def test_weights_are_rotated(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.measurement, "CEILINGS", ())
    monkeypatch.setattr(bench.measurement, "_MIN_ROTATED_BYTES", 3 * tiny("one row").bytes)
    calls: list[dict[str, Any]] = []
    worker = workers.get("iree", 1)
    ask = worker.ask
    monkeypatch.setattr(worker, "ask", lambda do, **rest: calls.append(rest) or ask(do, **rest))
    actual = bench.measurement.measure(tiny("one row"), 1, ["iree"], workers, 0.01)
    assert actual[0].times.count >= 1
    assert calls[0]["copies"] == 3


def test_turns_are_short_and_in_varied_order() -> None:
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


def test_copies_go_on_in_the_next_turn() -> None:
    called: list[int] = []
    prepared = SimpleNamespace(call=called.append)
    state = {"prepared": prepared, "copies": 3, "numbers": itertools.count()}
    for _ in range(3):
        bench.worker.answer(None, state, {"do": "time", "seconds": 1e-9})
    assert called == [0, 1, 2, 0, 1, 2]


def test_a_peer_takes_no_time_but_in_its_turn(workers: Any) -> None:
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


@pytest.mark.skipif(not LONG, reason="3 s; a benchmark's peer, no number of ours")
def test_a_peer_that_ends_is_started_again(workers: Any) -> None:
    data = tiny("matmul")
    workers.get("iree", 1)._process.kill()
    measure = bench.measurement.measure
    first, second = (measure(data, 1, ["iree"], workers, 0.01)[0] for _ in range(2))
    assert "its process ended with status -9" in first.failure
    assert first.times is None
    assert second.times is not None


def page(outcomes: Sequence[Any] = (), machine: Any = None, remarks: Any = None) -> str:
    peers = {"subquant": "subquant 1"}
    written: str = bench.report.page(machine or {}, peers, outcomes, remarks or {}, None, {})
    return written


def outcome_of(ours: float, *, is_right: bool = True) -> Any:
    medians = {"subquant": ours, "iree": 4.0, "litert": 2.0, "read": 1.0}
    rights = (is_right, True, False, True)
    actual = [
        bench.measurement.Measured(
            name, {"work": 100}, Times(9, *[median] * 4), bench.checks.Check(right, "some error")
        )
        for (name, median), right in zip(medians.items(), rights, strict=True)
    ]
    return bench.report.Outcome("tiny", 1, 1.0, 50, actual)


def test_the_best_peer_that_is_right_counts() -> None:
    assert outcome_of(4.0).ratio == 1.0
    assert outcome_of(4.0, is_right=False).ratio is None
    assert outcome_of(2.0).ceiling_shares() == {"read": 0.25}
    outcome = outcome_of(4.0)
    assert replace(outcome, measurements=outcome.measurements[::2]).ratio == 0.5


def test_peers_that_are_faster_and_wrong_are_listed() -> None:
    outcomes = [outcome_of(4.0), replace(outcome_of(4.0), measurements=[])]
    written = page(outcomes)
    assert "## Faster, and wrong\n\n* tiny, 1 thread: litert, 0.50 of our time: " in written
    other = replace(outcomes[0], measurements=outcomes[0].measurements[:2])
    assert "Faster, and wrong" not in page([other])


def test_onnx_runtime_has_unsigned_weights_if_it_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_page_is_named_by_what_the_cpu_multiplies_with() -> None:
    for features, expected in [
        ("avx2, avx512vnni, amx-int8", "AMX"),
        ("avx2, avx512vnni", "AVX512-VNNI"),
        ("avx2", "AVX2"),
    ]:
        written = page(machine={"CPU": "one", "features": features})
        assert written.startswith(f"# Benchmarks on one with {expected}\n")


def test_a_cpu_without_dot_products_has_marks_of_its_own() -> None:
    created = {each.name: each for each in bench.cases.make_cases()}
    names = ("int4 block 32 1", "int4 block 32 128", "Q4_K 1")
    one, many, other = (created[f"{name}x4096x4096"] for name in names)
    for features, marks in (
        ({"avx2"}, [1.25, 2.0, 1.1]),
        ({"avx2", "avxvnni"}, [1.1, 1.1, 1.1]),
        ({"avx2", "avx512vnni"}, [1.1, 1.1, 1.1]),
    ):
        assert [each.mark_for(features) for each in (one, many, other)] == marks


def test_what_is_compiled_for_another_cpu_says_so() -> None:
    written = page([outcome_of(1.0)], {"CPU": "one", "compiled for": "znver3"})
    assert written.startswith("# Benchmarks on one, compiled for znver3\n")
    assert "compiled for `znver3`" in written


def test_a_mark_that_is_missed_is_reported_with_what_is_known() -> None:
    remarks = {"tiny": "the caches are too small"}
    missed = page([outcome_of(8.0)], remarks=remarks)
    assert "* tiny, 1 thread: 0.50 of 1.00; 6% of `read`; the caches are too small" in missed
    assert "the caches are too small" not in page([outcome_of(1.0)], remarks=remarks)


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.main.main(["--list", "--case", "^int8 depthwise"]) == 0
    names = [f"int8 depthwise 3x3 stride {stride}" for stride in (1, 2)]
    assert capsys.readouterr().out.splitlines() == names
    assert bench.main.main(["--case", "no such case"]) == 2
    assert bench.main.main(["--seconds", "0"]) == 2
    assert bench.main.main(["--target-cpu", "nonsense"]) == 2
    message = capsys.readouterr().err.splitlines()
    assert len(message) == 3
    assert message[2].startswith("error: LLVM knows no CPU 'nonsense'")
    monkeypatch.setattr(bench.main, "missing_features", lambda recorded: ["avx9"])
    assert bench.main.main(["--target-cpu", "generic"]) == 2
    assert capsys.readouterr().err == "error: this machine has no avx9\n"
