"""The command ``subquant conformance``, its report, and expected results."""

from __future__ import annotations

import json
import re
import signal
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from command_line import call, succeed
from subquant.conformance import command, report
from subquant.conformance.cases import Outcome
from subquant.errors import InputError

OUTCOMES = [
    Outcome("suite/a", "add", "llvm-cpu", "pass", 10, 1, 2, seconds=0.25),
    Outcome("suite/b", "add", "llvm-cpu", "wrong", 10, message="expected 1, got 2 \x1b<&"),
    Outcome("suite/c", "sine", "llvm-cpu", "unsupported", message="-:1:1: error: no"),
    Outcome("suite/d", "send", "llvm-cpu", "legalized"),
    Outcome("suite/a", "add", "vulkan", "pass", 10),
]
EXPECTED = {
    "suite/a": {"llvm-cpu": "pass", "vulkan": "wrong"},
    "suite/b": {"llvm-cpu": "pass"},
    "suite/c": {"llvm-cpu": "unsupported"},
}


def test_regressions_and_new_passes() -> None:
    assert report.judge(OUTCOMES, EXPECTED) == {("suite/b", "llvm-cpu"), ("suite/a", "vulkan")}
    assert {name for name, _ in report.judge(OUTCOMES, {})} == {"suite/b", "suite/c"}


def test_expected_results_are_merged_and_read_back(tmp_path: Path) -> None:
    text = report.updated_expected(OUTCOMES[:2], {"suite/a": {"vulkan": "wrong"}, "suite/z": {}})
    file = tmp_path / "expected.json"
    file.write_text(text)
    assert report.read_expected(file) == {
        "suite/a": {"llvm-cpu": "pass", "vulkan": "wrong"},
        "suite/b": {"llvm-cpu": "wrong"},
        "suite/z": {},
    }
    assert text.splitlines()[1] == '  "suite/a": {"llvm-cpu": "pass", "vulkan": "wrong"},'


def test_the_command_shows_a_table_and_writes_files(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("o.json", "o.xml", "e.json")]
    json_file, junit_file, expected_file = files
    chosen = ("conformance", "--filter", "suite/(abs|qcast)/i8b?-(to-i8$|special)", "--device",
              "interpreter,llvm-cpu", "--jobs", "1", "--expected", expected_file)  # fmt: skip
    result = succeed(*chosen, "--update-expected")
    assert re.search(r"abs +1/1 +1/1", result.output)
    assert re.search(r"qcast +- +2/2", result.output)
    succeed(*chosen, "--json", json_file, "--junit", junit_file)
    assert json.loads(Path(json_file).read_text())["summary"] == {
        "interpreter": {"pass": 1}, "llvm-cpu": {"pass": 3},
    }  # fmt: skip
    assert len(ElementTree.parse(junit_file).findall(".//testcase")) == 4


@pytest.mark.parametrize(
    ("ends", "status"), [(KeyboardInterrupt(), 1), (SystemExit(128 + signal.SIGTERM), 143)]
)
def test_a_run_that_is_ended_shows_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException, status: int
) -> None:
    def run(cases, device, jobs, progress, **options):
        first = cases[0]
        progress(Outcome(first.name, first.op, device, "wrong", message="is 2, expected 3"))
        raise ends

    monkeypatch.setattr(command, "run_cases", run)
    written = tmp_path / "o.json"
    result = call(
        "conformance", "--filter", "^suite/abs/", "--device", "interpreter", "--json", str(written)
    )
    assert result.exit_code == status
    assert re.search(r"abs +0/1", result.output)
    assert "is 2, expected 3" in result.output
    assert re.search(r"missing: \d+ results: the run was ended", result.output)
    assert not written.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--filter", "("), 2, "error: '(' is no regular expression"),
        (("--filter", "no such case"), 2, "error: no case matches 'no such case'"),
        (("--device", "tpu"), 2, "error: no device is named 'tpu'; expected an IREE device URI or"),
        (("--device", ","), 2, "error: expected at least one device"),
        (("--jobs", "x"), 2, "'x' is not a valid integer"),
        (("--stablehlo", "missing"), 1, "error: 'missing' has no folder 'stablehlo/testdata"),
        (("--llvm", "missing"), 1, "error: 'missing' has no folder 'mlir/test/Dialect/Quant'"),
        (("--expected", "missing.json"), 1, "error: cannot read 'missing.json'"),
    ],
)
def test_wrong_calls(
    arguments: tuple[str, ...], status: int, message: str, in_temporary_folder: Path
) -> None:
    result = call("conformance", "--filter", "suite/abs/i8-to-i8$", *arguments)
    assert result.exit_code == status
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["[]", "{", '{"version": 2, "results": {}}', "\xff",
                                  '{"version": 1, "results": {"a": 1}}'])  # fmt: skip
def test_expected_results_of_another_form(tmp_path: Path, text: str) -> None:
    file = tmp_path / "e.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(file))):
        report.read_expected(file)


def test_list_and_help() -> None:
    result = call("conformance", "--list", "--filter", "first-scale")
    assert result.output == "suite/dot_general/first-scale-for-all\n"
    assert "subquant conformance --device llvm-cpu,vulkan" in call("conformance", "--help").output
