"""Reports of ``subquant conformance``: parts of a run, put together, shown and compared."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from programs import LONG
from subquant.cli import main
from subquant.conformance.cases import Case, Outcome, Prepared, digest_of, programs_cases
from subquant.conformance.changes import changes_between
from subquant.conformance.command import replay_command, save_case
from subquant.conformance.merging import merge_reports
from subquant.conformance.options import RunOptions, Shard
from subquant.conformance.oracle import Golden
from subquant.conformance.report import Report, Run, digest_of_cases
from subquant.conformance.report_files import read_report, to_json, to_junit
from subquant.conformance.runner import DEVICES
from subquant.conformance.shards import batches_of, cost_of, plan_run
from subquant.conformance.suite import programs
from subquant.conformance.suite_random import random_programs
from subquant.errors import InputError, UsageError
from subquant.runtime import list_devices

CASES = programs_cases([*programs(), *random_programs(30)])


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


# -- parts ----------------------------------------------------------------------------------------


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
    first = next(name for device, name in plan.numbers if device == "llvm-cpu")
    assert first == CASES[0].name
    assert ("interpreter", "suite/send/i8") not in plan.numbers  # it runs nowhere


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "", "1/0", "-1/2", "1/2/3", "1/10001", "١/٢"])
def test_parts_that_are_none(text: str) -> None:
    result = invoke("conformance", "--shard", text)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: expected a part such as 1/4 for --shard, of at most 10000, got '{text}'\n"
    )


def test_a_part_may_be_empty(tmp_path: Path) -> None:
    """A matrix has as many jobs as it has, also for a filter that leaves two cases."""
    file = tmp_path / "2.json"
    chosen = ("--filter", "suite/abs/i8-to-i8$", "--device", "interpreter")
    result = invoke("conformance", *chosen, "--shard", "2/2", "--json", str(file))
    assert (result.exit_code, read_report(file).outcomes) == (0, ())
    assert "shard 2/2: 0 of 1 result" in result.output
    assert invoke("conformance", *chosen, "--shard", "2/2", "--list").output == ""
    assert invoke("conformance", *chosen, "--shard", "1/2", "--list").output == (
        "suite/abs/i8-to-i8\n"
    )


def _merged_equals_single(folder: Path, count: int, arguments: Sequence[str]) -> None:
    pieces = [str(folder / f"{number}.json") for number in range(1, count + 1)]
    single = invoke("conformance", *arguments, "--json", str(folder / "single.json"),
                    "--junit", str(folder / "single.xml"))  # fmt: skip
    for number, file in enumerate(pieces, 1):
        part = ("--shard", f"{number}/{count}", "--json", file)
        assert invoke("conformance", *arguments, *part).exit_code in (0, 1)
    merged = invoke("report", "merge", *reversed(pieces), "--json", str(folder / "merged.json"),
                    "--junit", str(folder / "merged.xml"))  # fmt: skip
    assert merged.output == single.output
    assert merged.exit_code == single.exit_code
    for name, seconds in (("json", r'"seconds": [\d.e-]+'), ("xml", r'time="[\d.]+"')):
        files = (folder / f"single.{name}", folder / f"merged.{name}")
        left, right = (re.sub(seconds, "", file.read_text()) for file in files)
        assert left == right


def test_the_parts_together_are_the_whole_run(tmp_path: Path) -> None:
    chosen = ["--filter", "suite/(abs|sign)/", "--device", "interpreter,llvm-cpu"]
    _merged_equals_single(tmp_path, 3, chosen)


@pytest.mark.skipif(not LONG, reason="the whole suite, twice; scripts/test --long")
def test_four_parts_together_are_the_whole_run(tmp_path: Path) -> None:
    actual = {uri.partition("://")[0] for uri, _ in list_devices()}
    devices = [device for device in DEVICES if device != "vulkan" or "vulkan" in actual]
    _merged_equals_single(tmp_path, 4, ["--device", ",".join(devices)])


# -- putting together -----------------------------------------------------------------------------

RUN = Run({"subquant": "1", "iree": "3"}, ("llvm-cpu",), "", 0, False, "c", "e", 4)
OUTCOMES = [
    Outcome("suite/a", "add", "llvm-cpu", "pass", 10, 1, 2, "", 0.25, "aa", "run a"),
    Outcome("suite/b", "add", "llvm-cpu", "wrong", 10, 0, 0, "expected 1 \x1b<&", 1, "bb", "run b"),
    Outcome("suite/c", "sine", "llvm-cpu", "unsupported", message="no", replay="run c"),
    Outcome("suite/d", "send", "llvm-cpu", "legalized", replay="run d"),
]


def make(numbers: Sequence[int], shard: str | None = None, run: Run = RUN) -> Report:
    outcomes = tuple(replace(OUTCOMES[n], device=run.devices[0]) for n in numbers)
    unexpected = frozenset(o.key for o in outcomes if o.name in ("suite/a", "suite/b"))
    part = None if shard is None else Shard.parse(shard)
    return Report(run, outcomes, tuple(numbers), unexpected, ("A CPU",), part)


def part_of(**changes: Any) -> Report:
    """The second part of a run that differs from `RUN`."""
    return make([1], "2/2", replace(RUN, **changes))


ANOTHER_RUN = "'b.json' is of another run than 'a.json'"
PARTS = [("2.json", make([1, 3], "2/2")), ("1.json", make([0, 2], "1/2"))]
WHOLE = make([0, 1, 2, 3])


def test_parts_are_put_together_in_the_order_of_the_run() -> None:
    assert merge_reports(PARTS) == WHOLE
    assert merge_reports([("all.json", WHOLE)]) == WHOLE
    assert WHOLE.exit_status == 1


def test_devices_are_put_side_by_side() -> None:
    vulkan = replace(RUN, devices=("vulkan",), total=2)
    merged = merge_reports([*PARTS, ("v.json", make([0, 1], run=vulkan))])
    assert merged.run == replace(RUN, devices=("llvm-cpu", "vulkan"), total=6)
    assert merged.numbers == (0, 1, 2, 3, 4, 5)
    assert [o.device for o in merged.outcomes] == ["llvm-cpu"] * 4 + ["vulkan"] * 2
    assert [o.device for o in merged.regressions] == ["llvm-cpu", "vulkan"]


def test_a_part_that_is_missing_is_named_and_fails() -> None:
    passing = replace(make([0, 2], "1/3"), unexpected=frozenset())
    merged = merge_reports([("1.json", passing)])
    assert merged.missing == ("shard 2/3 on llvm-cpu", "shard 3/3 on llvm-cpu")
    assert (merged.failures, merged.exit_status) == ((), 1)
    root = ElementTree.fromstring(to_junit(merged))
    suite = root.findall("testsuite")[1]
    assert (suite.get("name"), suite.get("failures")) == ("shards", "2")
    lost = merge_reports([("1.json", replace(make([0, 1, 3]), unexpected=frozenset()))])
    assert lost.missing == ("1 of 4 results",)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make([1, 3], "1/2"), "'b.json' and 'a.json' have the same results: both are shard 1/2"),
        (make([1, 3], "2/3"), "'b.json' is shard 2/3, and 'a.json' is shard 1/2 of the same run"),
        (WHOLE, "'b.json' is all of a run, and 'a.json' is shard 1/2 of the same run"),
        (make([0, 1], "2/2"), "'b.json' has results that another part has, too"),
        (
            replace(make([0], "2/2"), numbers=(1,)),
            "'a.json' and another part have the same results",
        ),
        (
            part_of(versions={"subquant": "1", "iree": "4", "new": "1"}),
            "'b.json' was made with other versions than 'a.json': iree 4, not 3, new 1, not none; "
            "to compare versions, use --against",
        ),
        (part_of(filter="x"), f"{ANOTHER_RUN}: --filter is 'x', not ''"),
        (part_of(random=5), f"{ANOTHER_RUN}: --random is 5, not 0"),
        (part_of(cases="x"), f"{ANOTHER_RUN}: its cases are others, of other checkouts, say"),
        (part_of(expected="x"), f"{ANOTHER_RUN}: its list of expected results is another one"),
        (
            part_of(devices=("vulkan", "llvm-cpu")),
            "'b.json' is of a run on 'vulkan', 'llvm-cpu', and 'a.json' of another one with "
            "'llvm-cpu'",
        ),
        (
            part_of(total=5),
            "'b.json' is a part of a run with 5 results, and 'a.json' of one with 4",
        ),
    ],
)
def test_reports_that_do_not_belong_together(
    other: Report, message: str, in_temporary_folder: Path
) -> None:
    Path("a.json").write_text(to_json(make([0, 2], "1/2")))
    Path("b.json").write_text(to_json(other))
    result = invoke("report", "merge", "a.json", "b.json", "--json", "c.json")
    assert (result.exit_code, result.output) == (1, f"error: {message}\n")
    assert not Path("c.json").exists()


# -- files ----------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for report in (WHOLE, PARTS[0][1], replace(WHOLE, missing=("shard 3/4 on llvm-cpu",))):
        (tmp_path / "r.json").write_text(to_json(report))
        assert read_report(tmp_path / "r.json") == report


def test_json_and_junit() -> None:
    values = json.loads(to_json(WHOLE))
    assert (values["version"], values["report"]) == (1, "conformance")
    assert values["summary"] == {
        "llvm-cpu": {"pass": 1, "wrong": 1, "unsupported": 1, "legalized": 1}
    }
    assert values["regressions"] == [["suite/b", "llvm-cpu"]]
    assert values["run"] == asdict(RUN) | {"devices": ["llvm-cpu"]}
    assert values["results"][0] == {
        "name": "suite/a", "op": "add", "device": "llvm-cpu", "status": "pass", "elements": 10,
        "near_ties": 1, "other_reading": 2, "message": "", "seconds": 0.25, "digest": "aa",
        "replay": "run a", "number": 0,
    }  # fmt: skip
    (suite,) = ElementTree.fromstring(to_junit(WHOLE)).findall("testsuite")
    counts = [suite.get(name) for name in ("name", "tests", "failures", "skipped")]
    assert counts == ["llvm-cpu", "4", "1", "1"]
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "expected 1 \\x1b<&"
    assert (failure.get("type"), failure.text) == ("wrong", "replay: run b")


def _changed(path: Sequence[str | int], value: Any) -> str:
    values = json.loads(to_json(make([0, 2], "1/2")))
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the report is not JSON: expecting value"),
        ("[" * 1000, "the report is nested too deeply"),
        ("[]", "the report holds a list, expected an object"),
        ("{}", "is no report, which has a 'report' and its 'results'"),
        ("\xff", "the report is not UTF-8: byte 0xff at 0"),
        (_changed(["report"], "other"), "is a report of 'other', "),
        (_changed(["version"], 2), "is a report of version 2, expected 1"),
        (_changed(["run"], None), "'run' of the report is no object"),
        (_changed(["run"], [1]), "'run' of the report is no object"),
        (_changed(["run", "total"], True), "'run' of the report has no 'total' that is an integer"),
        (_changed(["run", "total"], 2), "the report has a number of a result twice, or one beyond"),
        (_changed(["run", "filter"], 1), "'run' of the report has no 'filter' that is a text"),
        (_changed(["run", "strict"], 1), "'run' of the report has no 'strict' that is true or"),
        (_changed(["run", "devices"], ["llvm-cpu", 1]), "a list 'devices' of other things than"),
        (_changed(["run", "devices"], ["x"]), "the report has results on a device that its run "),
        (_changed(["run", "devices"], ["llvm-cpu"] * 2), "'run' of the report has a device twice"),
        (_changed(["run", "versions", "iree"], 3), "has a version that is no text"),
        (_changed(["shard"], 1), "'shard' of the report is no object"),
        (_changed(["shard", "number"], 3), "'shard' of the report is 3/2, expected a part such as"),
        (_changed(["results", 0], {"name": "x"}), "result 0 has no 'status' that is a text"),
        (
            _changed(["results", 1, "status"], "\x1b[2J"),
            "result 1 has the unknown status '\\x1b[2J'",
        ),
        (_changed(["results", 1, "seconds"], -1), "result 1 has -1.0 for 'seconds', expected 0 or"),
        (_changed(["results", 1, "near_ties"], -1), "result 1 has -1 for 'near_ties', expected 0"),
        (_changed(["results", 1, "number"], 0), "the report has a number of a result twice"),
        (_changed(["results", 1, "name"], "suite/a"), "the report has a case twice on one device"),
        (_changed(["regressions"], [["suite/a", "llvm-cpu"]]), "names an unknown result in "),
        (_changed(["regressions"], [[{}]]), "names an unknown result in 'regressions'"),
        (_changed(["newly_passing"], "x"), "the report has no 'newly_passing' that is a list"),
        (_changed(["machines"], None), "the report has no 'machines' that is a list"),
    ],
)
def test_files_that_are_no_reports(text: str, message: str, in_temporary_folder: Path) -> None:
    Path("x.json").write_bytes(text.encode("latin-1"))
    for arguments in (("merge", "x.json"), ("show", "x.json")):
        result = invoke("report", *arguments)
        assert result.exit_code == 1, result.output
        assert re.match(r"x\.json(:\d+:\d+)?: error: ", result.output), result.output
        assert message in result.output
        assert result.output.count("\n") == 1


_ANY = (None, True, 0, -1, 1.5, 1e308, 10**19, "", "x", "\x1b[0m", [], {}, [[]], [1], {"a": 1})


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    actual = [path] if path else []
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        actual += [each for key, part in inner for each in _paths(part, (*path, key))]
    return actual


def test_any_value_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    """Whatever a file holds: it is a report that can be used, or a worded error."""
    file, texts = tmp_path / "x.json", [to_json(WHOLE), to_json(make([0, 2], "1/2"))]
    draw = np.random.default_rng(0)
    read, refused = 0, []
    for number in range(400):
        values = json.loads(texts[number % 2])
        paths = _paths(values)
        for _ in range(draw.integers(1, 3)):
            path, inner = paths[draw.integers(len(paths))], values
            try:
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = _ANY[draw.integers(len(_ANY))]
            except (KeyError, IndexError, TypeError):  # the other change took it away
                continue
        file.write_text(json.dumps(values))
        try:
            merged = merge_reports([("x.json", read_report(file))])
            compared = merged.compared(WHOLE, is_chosen=lambda name: True)
            to_json(compared)
            ElementTree.fromstring(to_junit(compared))
            read += 1
        except InputError as error:
            refused.append(str(error))
    assert all(text.isprintable() for text in refused)
    assert (read > 20, len(refused) > 200) == (True, True)


def test_names_from_a_file_do_not_reach_the_terminal_as_they_are(tmp_path: Path) -> None:
    evil = "\x1b]0;x\x07[red]"
    outcomes = tuple(
        replace(o, name=o.name + evil, op=evil, device=evil, message=evil, replay=evil)
        for o in OUTCOMES
    )
    run = replace(RUN, devices=(evil,), versions={"x": evil})
    unexpected = frozenset({outcomes[0].key, outcomes[1].key})
    report = Report(run, outcomes, (0, 1, 2, 3), unexpected, (evil,), missing=(evil,))
    (tmp_path / "r.json").write_text(to_json(report))
    before = replace(report, machines=(), outcomes=(replace(outcomes[1], status="pass"),),
                     numbers=(0,), unexpected=frozenset())  # fmt: skip
    (tmp_path / "b.json").write_text(to_json(before))
    now, earlier, junit = (str(tmp_path / name) for name in ("r.json", "b.json", "r.xml"))
    result = invoke("report", "show", now, "--against", earlier, "--junit", junit)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "[red]" in result.output
    ElementTree.parse(tmp_path / "r.xml")


# -- comparing ------------------------------------------------------------------------------------


def test_what_changed() -> None:
    before = [
        *OUTCOMES,
        Outcome("suite/e", "add", "llvm-cpu", "pass", digest="e"),
        Outcome("suite/f", "add", "llvm-cpu", "pass", message="old"),
        Outcome("suite/g", "add", "llvm-cpu", "pass"),
        Outcome("suite/same", "add", "llvm-cpu", "pass", seconds=5, digest="s"),
    ]
    now = [
        replace(OUTCOMES[0], status="wrong", message="bad", digest="zz"),
        replace(OUTCOMES[1], status="pass", message=""),
        replace(OUTCOMES[2], status="error", message="no"),
        replace(OUTCOMES[3], status="pass"),
        replace(before[4], digest="f"),
        replace(before[5], message="", near_ties=2, elements=1),
        Outcome("suite/h", "add", "llvm-cpu", "error", message="new"),
        replace(before[7], seconds=6.0, replay="another"),
        Outcome("suite/a", "add", "vulkan", "pass"),
    ]
    changes = changes_between(before, now)
    actual = {" ".join(c.outcome.key): (c.kind, c.text) for c in changes}
    assert actual == {
        "suite/a llvm-cpu": ("regressed", "pass -> wrong; other bits; bad"),
        "suite/b llvm-cpu": ("improved", "wrong -> pass; no longer: expected 1 \x1b<&"),
        "suite/c llvm-cpu": ("other status", "unsupported -> error"),
        "suite/d llvm-cpu": ("other status", "legalized -> pass"),
        "suite/e llvm-cpu": ("other numbers", "other bits"),
        "suite/f llvm-cpu": ("other numbers", "elements 0 -> 1; near ties 0 -> 2; no longer: old"),
        "suite/h llvm-cpu": ("new", "error: new"),
        "suite/a vulkan": ("new", "pass"),
        "suite/g llvm-cpu": ("removed", "pass"),
    }


def test_a_time_is_compared_with_those_of_the_others() -> None:
    def times(*seconds: float) -> list[Outcome]:
        passing = Outcome("", "add", "llvm-cpu", "pass")
        return [replace(passing, name=f"{n}", seconds=s) for n, s in enumerate(seconds)]

    def kinds(before: list[Outcome], now: list[Outcome]) -> list[tuple[str, str]]:
        return [(c.outcome.name, c.kind) for c in changes_between(before, now)]

    assert kinds(times(1, 1, 1, 1, 1), times(1, 1, 1, 9, 1)) == [("3", "slower")]
    assert kinds(times(9, 9, 9, 9), times(9, 9, 1, 9)) == [("2", "faster")]
    assert kinds(times(1, 1, 1, 1), times(9, 9, 9, 9)) == []  # another machine
    assert kinds(times(9, 9, 9, 9), times(0.1, 0.1, 0.1, 0.1)) == []  # a cache
    assert kinds(times(0.1, 0.1), times(0.1, 0.9)) == []  # too little to say


def test_other_bits_fail_where_that_is_asked_for(in_temporary_folder: Path) -> None:
    passing = replace(make([0, 3]), unexpected=frozenset(), run=replace(RUN, total=2),
                      numbers=(0, 1))  # fmt: skip
    other = replace(passing, outcomes=(replace(OUTCOMES[0], digest="zz"), OUTCOMES[3]))
    Path("before.json").write_text(to_json(passing))
    Path("now.json").write_text(to_json(other))
    against = ("show", "now.json", "--against", "before.json")
    result = invoke("report", *against, "--json", "c.json")
    assert result.exit_code == 0
    assert "other numbers: 1\n  suite/a on llvm-cpu: other bits\n    replay: run a" in result.output
    actual = json.loads(Path("c.json").read_text())["against"]
    assert [(c["kind"], c["name"], c["text"]) for c in actual["changes"]] == [
        ("other numbers", "suite/a", "other bits")
    ]
    assert actual["changes"][0]["before"]["digest"] == "aa"
    assert invoke("report", *against, "--same-bits", "--junit", "c.xml").exit_code == 1
    failure = ElementTree.parse("c.xml").find(".//failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message"), failure.text) == (
        "other bits", "other bits", "replay: run a"
    )  # fmt: skip
    assert invoke("report", "show", "now.json", "--same-bits").exit_code == 2


def test_a_case_that_passed_before_fails_though_nobody_expects_it_to_pass() -> None:
    now = replace(make([0, 2]), unexpected=frozenset())
    before = replace(now, outcomes=(OUTCOMES[0], replace(OUTCOMES[2], status="pass")))
    assert now.exit_status == 0
    compared = now.compared(before, is_chosen=lambda name: True)
    assert (compared.failures, compared.exit_status) == ((OUTCOMES[2],), 1)
    assert now.compared(now, is_chosen=lambda name: True).exit_status == 0


def test_a_case_that_was_not_chosen_is_not_gone(in_temporary_folder: Path) -> None:
    chosen = ("--device", "interpreter", "--filter")
    assert invoke("conformance", *chosen, "suite/(abs|sign)/i8", "--json", "a.json").exit_code == 0
    values = json.loads(Path("a.json").read_text())
    names = [result["name"] for result in values["results"]]
    values["results"][0] |= {"name": "suite/abs/i8-gone"}
    values["results"][-1] |= {"digest": "0" * 16}
    Path("a.json").write_text(json.dumps(values))
    result = invoke("conformance", *chosen, "suite/abs/i8", "--against", "a.json")
    assert result.exit_code == 0
    assert f"new: 1\n  {names[0]} on interpreter" in result.output
    assert "removed: 1\n  suite/abs/i8-gone on interpreter: pass" in result.output
    assert "suite/sign" not in result.output
    result = invoke("conformance", *chosen, names[-1], "--against", "a.json", "--same-bits")
    assert (result.exit_code, "other numbers: 1" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shard", "1/2", "--against", "x"), "--against compares a whole run, and --shard"),
        (("--same-bits",), "--same-bits needs --against"),
    ],
)
def test_options_that_exclude_each_other(arguments: tuple[str, ...], message: str) -> None:
    result = invoke("conformance", *arguments)
    assert (result.exit_code, result.stderr[: 7 + len(message)]) == (2, f"error: {message}")


def test_bits_types_and_shapes_have_digests_of_their_own() -> None:
    values = [
        [np.array([1, 2], np.int8)], [np.array([1, 2], np.uint8)], [np.array([[1, 2]], np.int8)],
        [np.array([1], np.int8), np.array([2], np.int8)], [np.array([0.0], np.float32)],
        [np.array([-0.0], np.float32)], [np.array([np.nan], np.float32)],
    ]  # fmt: skip
    assert len({digest_of(value) for value in values}) == len(values)
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert digest_of([other_nan]) == digest_of(values[-1])


def test_others_tests_are_compared_by_what_they_hold() -> None:
    golden = Golden(np.array([2], np.int32))
    case = Case("x", "add", prepared=Prepared("text", [np.array([1], np.int32)], [golden]))
    rest = [
        replace(case, name="y"),
        replace(case, prepared=Prepared("other", [np.array([1], np.int32)], [golden])),
        replace(case, prepared=Prepared("text", [np.array([3], np.int32)], [golden])),
        replace(case, prepared=Prepared("text", [np.array([1], np.int32)], [])),
    ]
    assert len({digest_of_cases([each]) for each in (case, *rest)}) == 5
    assert digest_of_cases([case]) == digest_of_cases([replace(case)])


# -- running again --------------------------------------------------------------------------------


def test_a_case_is_run_again_by_its_name() -> None:
    """Nothing in a name is read as a part of a regular expression, or by the shell."""
    name = "suite/a.b+c[1]/it's $(x) {2}|^\\"
    words = shlex.split(replay_command(name, "llvm-cpu", RunOptions()))
    assert words[:2] + words[4:] == ["subquant", "conformance", "--device", "llvm-cpu"]
    assert re.search(words[3], name)
    assert not re.search(words[3], name + "x")
    assert not re.search(words[3], name.replace(".", "x"))


def test_a_command_has_what_the_case_needs() -> None:
    options = RunOptions(random=40, stablehlo="a b", llvm="l", expected="e.json", shard="1/2",
                         filter="suite", strict=True)  # fmt: skip
    end = "--device vulkan"
    for name, more in (
        ("suite/abs/i8", ""),
        ("suite/random/0001-x", " --random 40"),
        ("stablehlo/x:main", " --stablehlo 'a b'"),
        ("tosa/x:main", " --stablehlo 'a b'"),
        ("llvm/x.mlir:0", " --llvm l"),
    ):
        command = replay_command(name, "vulkan", options)
        assert command.endswith(f"{end}{more} --expected e.json"), command
    random = CASES[-1]
    words = shlex.split(replay_command(random.name, "llvm-cpu", options))[1:]
    words = words[: words.index("--expected")]
    assert invoke(*words, "--list").output == f"{random.name}\n"


def test_every_name_of_the_suite_is_found_by_its_command() -> None:
    names = [case.name for case in CASES]
    for case in CASES[::37]:
        pattern = shlex.split(replay_command(case.name, "llvm-cpu", RunOptions()))[3]
        assert [name for name in names if re.search(pattern, name)] == [case.name]


def test_saved_cases_are_replayed_on_their_device(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "suite/abs/i8-to-i8")
    folder = tmp_path / "a folder"
    for device, more in (
        ("llvm-cpu", []),
        ("vulkan", ["--target", "vulkan"]),
        ("vulkan://GPU-1", ["--target", "vulkan", "--device", "vulkan://GPU-1"]),
        ("local-task://", ["--device", "local-task://"]),
    ):
        words = shlex.split(save_case(case, folder, device))
        assert words[:3] == ["subquant", "exec", str(folder / "suite_abs_i8-to-i8.mlir")]
        assert words[3 : words.index("--input")] == more


def test_a_failing_case_says_how_to_run_it_again(in_temporary_folder: Path) -> None:
    Path("e.json").write_text('{"version": 1, "results": {}}')
    norm = ("--filter", "suite/abs/i8-to-i8b?$", "--device", "interpreter", "--expected", "e.json")
    assert invoke("conformance", *norm, "--json", "a.json").exit_code == 0
    actual = read_report("a.json")
    bad = replace(actual.outcomes[0], status="wrong", message="bad")
    report = replace(actual, outcomes=(bad, *actual.outcomes[1:]), unexpected=frozenset({bad.key}))
    Path("b.json").write_text(to_json(report))
    result = invoke("report", "show", "b.json", "--junit", "b.xml")
    assert result.exit_code == 1
    (command,) = re.findall(r"^    replay: (.*)$", result.output, re.MULTILINE)
    assert bad.replay == command
    failure = ElementTree.parse("b.xml").find(".//failure")
    assert failure is not None
    assert failure.text == f"replay: {command}"
    completed = invoke(*shlex.split(command)[1:])
    assert (completed.exit_code, re.findall(r"all +(\S+)", completed.output)) == (0, ["1/1"])


def test_files_that_cannot_be_read_or_written(in_temporary_folder: Path) -> None:
    Path("a.json").write_text(to_json(replace(WHOLE, unexpected=frozenset())))
    for arguments, message in (
        (("merge", "missing.json"), "error: cannot read 'missing.json': No such file"),
        (("show", "."), "error: cannot read '.': not a regular file"),
        (("show", "a.json", "--against", "missing.json"), "error: cannot read 'missing.json'"),
        (("show", "a.json", "--json", "missing/a.json"), "error: cannot write 'missing/a.json'"),
    ):
        result = invoke("report", *arguments)
        assert result.exit_code == 1
        assert message in result.output
    assert invoke("report", "merge").exit_code == 2


def test_wrong_reports_raise_before_anything_runs() -> None:
    with pytest.raises(InputError, match="missing"):
        read_report("missing.json")
    with pytest.raises(UsageError):
        RunOptions(shard="2/1")
