"""Conformance reports that are compared, and cases that are run again."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import call, fail, succeed
from conformance_runs import CASES, OUTCOMES, RUN, WHOLE, failure_of, make
from subquant.conformance.cases import Case, Outcome, Prepared, digest_of
from subquant.conformance.changes import changes_between
from subquant.conformance.command import replay_command, save_case
from subquant.conformance.options import RunOptions
from subquant.conformance.oracle import Golden
from subquant.conformance.report import digest_of_cases
from subquant.conformance.report_files import read_report, to_json
from subquant.errors import InputError, UsageError


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
    assert {" ".join(c.outcome.key): (c.kind, c.text) for c in changes_between(before, now)} == {
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
    result = succeed("report", *against, "--json", "c.json")
    assert "other numbers: 1\n  suite/a on llvm-cpu: other bits\n    replay: run a" in result.output
    (change,) = json.loads(Path("c.json").read_text())["against"]["changes"]
    kind_name_text = [change[key] for key in ("kind", "name", "text")]
    assert kind_name_text == ["other numbers", "suite/a", "other bits"]
    assert change["before"]["digest"] == "aa"
    assert call("report", *against, "--same-bits", "--junit", "c.xml").exit_code == 1
    assert failure_of(ElementTree.parse("c.xml")) == ("other bits", "other bits", "replay: run a")
    assert call("report", "show", "now.json", "--same-bits").exit_code == 2


def test_a_case_that_passed_before_fails_though_nobody_expects_it_to_pass() -> None:
    now = replace(make([0, 2]), unexpected=frozenset())
    before = replace(now, outcomes=(OUTCOMES[0], replace(OUTCOMES[2], status="pass")))
    assert now.exit_status == 0
    compared = now.compared(before, is_chosen=lambda name: True)
    assert (compared.failures, compared.exit_status) == ((OUTCOMES[2],), 1)
    assert now.compared(now, is_chosen=lambda name: True).exit_status == 0


def test_a_case_that_was_not_chosen_is_not_gone(in_temporary_folder: Path) -> None:
    chosen = ("--device", "interpreter", "--filter")
    succeed("conformance", *chosen, "suite/(abs|sign)/i8", "--json", "a.json")
    values = json.loads(Path("a.json").read_text())
    names = [result["name"] for result in values["results"]]
    values["results"][0] |= {"name": "suite/abs/i8-gone"}
    values["results"][-1] |= {"digest": "0" * 16}
    Path("a.json").write_text(json.dumps(values))
    result = succeed("conformance", *chosen, "suite/abs/i8", "--against", "a.json")
    assert f"new: 1\n  {names[0]} on interpreter" in result.output
    assert "removed: 1\n  suite/abs/i8-gone on interpreter: pass" in result.output
    assert "suite/sign" not in result.output
    result = call("conformance", *chosen, names[-1], "--against", "a.json", "--same-bits")
    assert (result.exit_code, "other numbers: 1" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shard", "1/2", "--against", "x"), "--against compares a whole run, and --shard"),
        (("--same-bits",), "--same-bits needs --against"),
    ],
)
def test_options_that_exclude_each_other(arguments: tuple[str, ...], message: str) -> None:
    assert fail(2, "conformance", *arguments).startswith(f"error: {message}")


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
    one, golden = np.array([1], np.int32), Golden(np.array([2], np.int32))
    case = Case("x", "add", prepared=Prepared("text", [one], [golden]))
    rest = [
        replace(case, name="y"),
        replace(case, prepared=Prepared("other", [one], [golden])),
        replace(case, prepared=Prepared("text", [one + 2], [golden])),
        replace(case, prepared=Prepared("text", [one], [])),
    ]
    assert len({digest_of_cases([each]) for each in (case, *rest)}) == 5
    assert digest_of_cases([case]) == digest_of_cases([replace(case)])


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
    assert call(*words, "--list").output == f"{random.name}\n"


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
    assert call("conformance", *norm, "--json", "a.json").exit_code == 0
    actual = read_report("a.json")
    bad = replace(actual.outcomes[0], status="wrong", message="bad")
    report = replace(actual, outcomes=(bad, *actual.outcomes[1:]), unexpected=frozenset({bad.key}))
    Path("b.json").write_text(to_json(report))
    result = call("report", "show", "b.json", "--junit", "b.xml")
    assert result.exit_code == 1
    (command,) = re.findall(r"^    replay: (.*)$", result.output, re.MULTILINE)
    assert bad.replay == command
    assert failure_of(ElementTree.parse("b.xml"))[2] == f"replay: {command}"
    completed = call(*shlex.split(command)[1:])
    assert (completed.exit_code, re.findall(r"all +(\S+)", completed.output)) == (0, ["1/1"])


def test_files_that_cannot_be_read_or_written(in_temporary_folder: Path) -> None:
    Path("a.json").write_text(to_json(replace(WHOLE, unexpected=frozenset())))
    for arguments, message in (
        (("merge", "missing.json"), "error: cannot read 'missing.json': No such file"),
        (("show", "."), "error: cannot read '.': not a regular file"),
        (("show", "a.json", "--against", "missing.json"), "error: cannot read 'missing.json'"),
        (("show", "a.json", "--json", "missing/a.json"), "error: cannot write 'missing/a.json'"),
    ):
        result = call("report", *arguments)
        assert result.exit_code == 1
        assert message in result.output
    assert call("report", "merge").exit_code == 2


def test_wrong_reports_raise_before_anything_runs() -> None:
    with pytest.raises(InputError, match="missing"):
        read_report("missing.json")
    with pytest.raises(UsageError):
        RunOptions(shard="2/1")
