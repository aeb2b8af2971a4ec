"""Parts of a conformance run: their cases, costs and numbers, and the whole run of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from command_line import call, fail
from conformance_runs import CASES
from programs import LONG
from subquant.conformance.cases import Case
from subquant.conformance.options import Shard
from subquant.conformance.report_files import read_report
from subquant.conformance.runner import DEVICES
from subquant.conformance.shards import batches_of, cost_of, plan_run
from subquant.runtime import list_devices


@pytest.mark.parametrize("count", [1, 2, 4, 7, 100])
def test_the_parts_have_each_batch_of_the_whole_run_once(count: int) -> None:
    whole = plan_run(CASES, DEVICES, None)
    actual: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for number in range(1, count + 1):
        plan = plan_run(CASES, DEVICES, Shard(number, count))
        assert plan.numbers == whole.numbers
        for device, chosen in plan.chosen.items():
            actual.update((device, _names(batch)) for batch in batches_of(chosen, device))
            positions = [plan.numbers[device, case.name] for case in chosen]
            assert positions == sorted(positions)
    assert actual == Counter((d, _names(b)) for d in DEVICES for b in batches_of(CASES, d))


def _names(cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(case.name for case in cases)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("devices", [("llvm-cpu",), DEVICES])
def test_the_parts_cost_the_same(count: int, devices: tuple[str, ...]) -> None:
    plans = [plan_run(CASES, devices, Shard(n, count)) for n in range(1, count + 1)]
    costs = [
        sum(cost_of(batch, device) for device in devices for batch in batches_of(c[device], device))
        for c in (plan.chosen for plan in plans)
    ]
    assert max(costs) < 1.1 * sum(costs) / count  # of 8 parts, a batch may be a tenth


def test_numbers_are_those_of_the_results_in_order() -> None:
    plan = plan_run(CASES, ("interpreter", "llvm-cpu"), None)
    assert list(plan.numbers.values()) == list(range(len(plan.numbers)))
    assert next(name for device, name in plan.numbers if device == "llvm-cpu") == CASES[0].name
    assert ("interpreter", "suite/send/i8") not in plan.numbers  # it runs nowhere


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "", "1/0", "-1/2", "1/2/3", "1/10001", "١/٢"])
def test_parts_that_are_none(text: str) -> None:
    expected = "expected a part such as 1/4 for --shard, of at most 10000"
    assert fail(2, "conformance", "--shard", text) == f"error: {expected}, got '{text}'\n"


def test_a_part_may_be_empty(tmp_path: Path) -> None:
    """A matrix has as many jobs as it has, also for a filter that leaves two cases."""
    file = tmp_path / "2.json"
    chosen = ("--filter", "suite/abs/i8-to-i8$", "--device", "interpreter")
    result = call("conformance", *chosen, "--shard", "2/2", "--json", str(file))
    assert (result.exit_code, read_report(file).outcomes) == (0, ())
    assert "shard 2/2: 0 of 1 result" in result.output
    for shard, shown in (("2/2", ""), ("1/2", "suite/abs/i8-to-i8\n")):
        assert call("conformance", *chosen, "--shard", shard, "--list").output == shown


def _merged_equals_single(folder: Path, count: int, arguments: Sequence[str]) -> None:
    pieces = [str(folder / f"{number}.json") for number in range(1, count + 1)]
    single = call("conformance", *arguments, "--json", str(folder / "single.json"),
                    "--junit", str(folder / "single.xml"))  # fmt: skip
    for number, file in enumerate(pieces, 1):
        part = ("--shard", f"{number}/{count}", "--json", file)
        assert call("conformance", *arguments, *part).exit_code in (0, 1)
    merged = call("report", "merge", *reversed(pieces), "--json", str(folder / "merged.json"),
                    "--junit", str(folder / "merged.xml"))  # fmt: skip
    assert merged.output == single.output
    assert merged.exit_code == single.exit_code
    for name, seconds in (("json", r'"seconds": [\d.e-]+'), ("xml", r'time="[\d.]+"')):
        files = (folder / f"single.{name}", folder / f"merged.{name}")
        left, right = (re.sub(seconds, "", file.read_text()) for file in files)
        assert left == right


@pytest.mark.skipif(not LONG, reason="4 s; a part runs in test_conformance")
def test_the_parts_together_are_the_whole_run(tmp_path: Path) -> None:
    chosen = ["--filter", "suite/(abs|sign)/", "--device", "interpreter,llvm-cpu"]
    _merged_equals_single(tmp_path, 3, chosen)


@pytest.mark.skipif(not LONG, reason="the whole suite, twice; scripts/test --long")
def test_four_parts_together_are_the_whole_run(tmp_path: Path) -> None:
    actual = {uri.partition("://")[0] for uri, _ in list_devices()}
    devices = [device for device in DEVICES if device != "vulkan" or "vulkan" in actual]
    _merged_equals_single(tmp_path, 4, ["--device", ",".join(devices)])
