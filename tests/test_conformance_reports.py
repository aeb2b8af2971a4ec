"""Reports of ``subquant conformance``: parts of a run, put together, shown and compared."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import call
from conformance_runs import OUTCOMES, RUN, WHOLE, failure_of, make
from subquant.conformance.merging import merge_reports
from subquant.conformance.report import Report
from subquant.conformance.report_files import read_report, to_json, to_junit
from subquant.errors import InputError


def part_of(**changes: Any) -> Report:
    """The second part of a run that differs from `RUN`."""
    return make([1], "2/2", replace(RUN, **changes))


ANOTHER_RUN = "'b.json' is of another run than 'a.json'"
PARTS = [("2.json", make([1, 3], "2/2")), ("1.json", make([0, 2], "1/2"))]


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
    merged = merge_reports([("1.json", replace(make([0, 2], "1/3"), unexpected=frozenset()))])
    assert merged.missing == ("shard 2/3 on llvm-cpu", "shard 3/3 on llvm-cpu")
    assert (merged.failures, merged.exit_status) == ((), 1)
    suite = ElementTree.fromstring(to_junit(merged)).findall("testsuite")[1]
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
def test_reports_of_other_runs(other: Report, message: str, in_temporary_folder: Path) -> None:
    Path("a.json").write_text(to_json(make([0, 2], "1/2")))
    Path("b.json").write_text(to_json(other))
    result = call("report", "merge", "a.json", "b.json", "--json", "c.json")
    assert (result.exit_code, result.output) == (1, f"error: {message}\n")
    assert not Path("c.json").exists()


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
    assert failure_of(suite) == ("wrong", "expected 1 \\x1b<&", "replay: run b")


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
        (_changed(["results", 1, "status"], "\x1b["), "result 1 has the unknown status '\\x1b['"),
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
        result = call("report", *arguments)
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
    fields = dict.fromkeys(("op", "device", "message", "replay"), evil)
    outcomes = tuple(replace(o, name=o.name + evil, **fields) for o in OUTCOMES)
    run = replace(RUN, devices=(evil,), versions={"x": evil})
    unexpected = frozenset({outcomes[0].key, outcomes[1].key})
    report = Report(run, outcomes, (0, 1, 2, 3), unexpected, (evil,), missing=(evil,))
    (tmp_path / "r.json").write_text(to_json(report))
    before = replace(report, machines=(), outcomes=(replace(outcomes[1], status="pass"),),
                     numbers=(0,), unexpected=frozenset())  # fmt: skip
    (tmp_path / "b.json").write_text(to_json(before))
    now, earlier, junit = (str(tmp_path / name) for name in ("r.json", "b.json", "r.xml"))
    result = call("report", "show", now, "--against", earlier, "--junit", junit)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "[red]" in result.output
    ElementTree.parse(tmp_path / "r.xml")
