"""``examples/ci``: commands of the workflow and the image exist, and pinned versions are equal.

GitHub's schema and actionlint are not part of the suite; `check-jsonschema --builtin-schema
vendor.github-workflows FILE` and `hadolint` are to be run when the files change.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement

import subquant
from subquant.cli import main
from subquant.conformance.cases import Outcome
from subquant.conformance.options import Shard
from subquant.conformance.report import Report, Run
from subquant.conformance.report_files import read_report, to_json
from subquant.core.versions import PINNED_VERSIONS

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "ci"
WORKFLOW = yaml.safe_load((FOLDER / "conformance.yml").read_text())
SHARD, REPORT = (WORKFLOW["jobs"][name] for name in ("shard", "report"))


def step(job: dict[str, Any], name: str) -> dict[str, Any]:
    (actual,) = (each for each in job["steps"] if each.get("name") == name)
    return actual


def check_command(words: list[str]) -> None:
    """Have the command line read a command, and not run it."""
    command, group = main.get_command(click.Context(main), words[1]), words[2:]
    assert command is not None
    if isinstance(command, click.Group):
        command, group = command.get_command(click.Context(command), words[2]), words[3:]
        assert command is not None
    command.make_context(words[1], group)


def test_the_shards_are_all_of_the_run() -> None:
    numbers = SHARD["strategy"]["matrix"]["shard"]
    assert numbers == list(range(1, SHARD["env"]["SHARDS"] + 1))
    text = step(SHARD, "Run the shard")["run"]
    for number in numbers:
        line = text.replace("${{ matrix.shard }}", str(number))
        words = shlex.split(line.replace("$SHARDS", str(SHARD["env"]["SHARDS"])))
        check_command(words)
        assert Shard.parse(words[words.index("--shard") + 1]) == Shard(number, len(numbers))
        assert words[-2:] == ["--json", f"shard-{number}.json"]
    assert step(SHARD, "Upload the report")["with"]["path"] == "shard-${{ matrix.shard }}.json"
    assert "${{" not in line


def test_every_command_that_is_shown_is_one() -> None:
    actual = []
    for name in ("README.md", "Dockerfile"):
        text = (FOLDER / name).read_text()
        actual += re.findall(r"(?:^|--rm )(subquant (?:conformance|report) .*)", text, re.MULTILINE)
    assert len(actual) == 3
    for line in actual:
        check_command(shlex.split(line.replace("$JOB/$JOBS", "1/2")))


def _report(number: int, status: Any = "pass") -> Report:
    outcome = Outcome(f"suite/{number}", "abs", "llvm-cpu", status, replay=f"run {number}")
    run = Run({"subquant": "1"}, ("llvm-cpu",), "", 0, False, "c", "e", 4)
    failed = frozenset(() if outcome.passes else {outcome.key})
    return Report(run, (outcome,), (number - 1,), failed, (), Shard(number, 4))


@pytest.mark.parametrize("case", ["passes", "regression", "missing", "none", "worse than main"])
def test_the_reports_are_put_together(case: str, in_temporary_folder: Path) -> None:
    Path("shards").mkdir()
    reports = [_report(number) for number in range(1, 5)]
    if case == "regression":
        reports[1] = _report(2, "wrong")
    if case == "worse than main":
        worse = replace(_report(2, "unsupported"), unexpected=frozenset())
        main_report = replace(worse, outcomes=_report(2).outcomes, shard=None)
        Path("main.json").write_text(to_json(main_report))
        reports[1] = worse
    for report in reports[: {"missing": 3, "none": 0}.get(case, 4)]:
        assert report.shard is not None
        Path(f"shards/shard-{report.shard.number}.json").write_text(to_json(report))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }
    # GitHub's own way to start a step with `run`.
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
    script = step(REPORT, "Put the reports together")["run"]
    shown = subprocess.run(
        [*shell, script], env=environment, capture_output=True, text=True, check=False
    )
    assert shown.returncode == (case != "passes"), shown.stderr
    if case == "none":
        assert (
            shown.stderr == "error: cannot read 'shards/shard-*.json': No such file or directory\n"
        )
        return
    assert Path("summary.md").read_text() == f"```text\n{shown.stdout}```\n"
    expected = {
        "passes": "all        4/4",
        "regression": "suite/2 on llvm-cpu: wrong\n    replay: run 2",
        "missing": "missing: shard 4/4 on llvm-cpu",
        "worse than main": "suite/2 on llvm-cpu: pass -> unsupported\n    replay: run 2",
    }
    assert expected[case] in shown.stdout
    assert len(read_report("report.json").outcomes) == (3 if case == "missing" else 4)
    assert Path("report.xml").read_bytes().startswith(b"<?xml")


def test_actions_are_pinned_to_commits() -> None:
    used = re.findall(r"uses: (.*)", (FOLDER / "conformance.yml").read_text())
    assert len(used) == sum("uses" in each for job in (SHARD, REPORT) for each in job["steps"])
    versions: dict[str, set[str]] = {}
    for action in used:
        match = re.fullmatch(r"actions/([\w/-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", action)
        assert match is not None, action
        versions.setdefault(match.group(1).partition("/")[0], set()).add(match.group(2))
    assert all(len(each) == 1 for each in versions.values())
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_versions_are_those_of_the_project() -> None:
    text_lines = (FOLDER / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in text_lines if not line.startswith("#"))
    assert {name: pinned[name] for name in PINNED_VERSIONS} == PINNED_VERSIONS
    if sys.version_info < (3, 11):
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    by_name = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    for requirement in map(Requirement, needed):
        name = requirement.name.lower().replace("_", "-")
        assert requirement.specifier.contains(by_name[name]), requirement
    python = re.search(r"ARG PYTHON=(\d+\.\d+)", (FOLDER / "Dockerfile").read_text())
    assert python is not None
    assert Requirement(f"x{project['requires-python']}").specifier.contains(python.group(1))
    for job in (SHARD, REPORT):
        (version,) = (
            s["with"]["python-version"] for s in job["steps"] if "python" in s.get("uses", "")
        )
        assert version == python.group(1)


def test_the_image_copies_what_is_there() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert (ROOT / "pyproject.toml").read_text().count('subquant = "plugin"') == 1
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert f"subquant=={subquant.__version__}" in (FOLDER / "conformance.yml").read_text()
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0]) == ["subquant"]
