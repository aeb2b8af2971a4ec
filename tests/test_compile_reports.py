"""Reports of ``subquant compile``: read again, shown, and put together."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from subquant.batch.report import Compilations, read_compilations, to_json
from subquant.batch.run import CompiledModel
from subquant.cli import main
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import CompilerError, Place, UnsupportedError

VERSIONS = {"subquant": "1", "iree-base-compiler": "3", "torch-mlir": None}
OPTIONS = CompileOptions("vulkan", activations="int8", iree_flags=("--x",))
UNSUPPORTED = UnsupportedError("is \x1b[31m not lowered", Place("m/c.mlir", 2, 3))
UNSUPPORTED.op_name = "a.b"
FIRST = Compilations(
    (
        CompiledModel("m/a.mlir", Path("out/a.vmfb"), "compiled", 0.5, 1.25, 4000),
        CompiledModel("m/b.mlir", Path("out/b.vmfb"), "up-to-date", 0.5, 0.0, 4001, True),
    ),
    OPTIONS, "vmfb", 2.5, VERSIONS,
)  # fmt: skip
SECOND = replace(
    FIRST,
    results=(
        CompiledModel(
            "m/c.mlir", Path("out/c.vmfb"), "failed", 0.25, error=UNSUPPORTED, worker="w"
        ),
        CompiledModel("m/d.mlir", Path("out/d.vmfb"), "not-run"),
    ),
    seconds=1.0,
)


def text_of(actual: Compilations) -> str:
    return to_json(actual)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def shown(results: Sequence[CompiledModel]) -> list[tuple[Any, ...]]:
    """Results with the texts of errors, which are equal only to themselves."""
    return [
        (replace(result, error=None), None if result.error is None else str(result.error))
        for result in results
    ]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for report in (FIRST, SECOND):
        (tmp_path / "r.json").write_text(text_of(report))
        actual = read_compilations(tmp_path / "r.json")
        assert replace(actual, results=()) == replace(report, results=())
        assert shown(actual.results) == shown(report.results)
        assert text_of(actual) == text_of(report)


def test_options_of_an_earlier_version_have_their_old_names(tmp_path: Path) -> None:
    options = CompileOptions(dims=("n=3",), fuse_below_macs=5)
    values = json.loads(text_of(replace(FIRST, options=options)))
    values["options"]["extents"] = values["options"].pop("dims")
    values["options"]["joined_products"] = values["options"].pop("fuse_below_macs")
    (tmp_path / "old.json").write_text(json.dumps(values))
    assert read_compilations(tmp_path / "old.json").options == options


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Files may have bytes in their names that are no UTF-8, and readers of JSON take no halves."""
    result = replace(FIRST.results[0], name=os.fsdecode(b"m/\xff\xc3\xb6.mlir"))
    (tmp_path / "r.json").write_text(text_of(replace(FIRST, results=(result,))))
    (actual,) = read_compilations(tmp_path / "r.json").results
    assert actual.name == r"m/\udcff" "ö.mlir"


def test_reports_are_put_together(in_temporary_folder: Path) -> None:
    Path("a.json").write_text(text_of(FIRST))
    Path("b.json").write_text(text_of(SECOND))
    assert invoke("show", "a.json").exit_code == 0
    result = invoke("merge", "b.json", "a.json", "--json", "c.json", "--junit", "c.xml")
    assert result.exit_code == 1
    text_lines = result.output.splitlines()
    assert [line.split()[0] for line in text_lines[1:-1]] == [f"m/{n}.mlir" for n in "cdab"]
    assert text_lines[1].endswith("m/c.mlir:2:3: error: 'a.b' op is \\x1b[31m not lowered")
    assert text_lines[-1] == "1 compiled, 1 up-to-date, 1 failed, 1 not-run in 3.5 s"
    assert shown(read_compilations("c.json").results) == shown((*SECOND.results, *FIRST.results))
    (suite,) = ElementTree.parse("c.xml").findall("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["4", "1", "1"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (FIRST, "'b.json' and 'a.json' both have the model 'm/a.mlir'"),
        (
            replace(SECOND, versions={"subquant": "1", "iree-base-compiler": "4"}),
            "'b.json' was made with other versions than 'a.json': iree-base-compiler 4, not 3",
        ),
        (
            replace(SECOND, options=CompileOptions("vulkan", iree_flags=("--x",))),
            "'b.json' was made with other options than 'a.json': activations float, not int8",
        ),
        (
            replace(SECOND, emit="mlir"),
            "'b.json' was made with other outputs than 'a.json': --emit mlir, not vmfb",
        ),
    ],
)
def test_reports_that_do_not_belong_together(
    other: Compilations, message: str, in_temporary_folder: Path
) -> None:
    Path("a.json").write_text(text_of(FIRST))
    Path("b.json").write_text(text_of(other))
    result = invoke("merge", "a.json", "b.json")
    assert (result.exit_code, result.output) == (1, f"error: {message}\n")


def _changed(path: Sequence[str | int], value: Any) -> str:
    values = json.loads(text_of(SECOND))
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_changed(["report"], "other"), "is a report of 'other', expected one of 'conformance' or"),
        (_changed(["version"], "x" * 999), f"version '{'x' * 75}...', expected 1"),
        (_changed(["report"], 1), "is no report, which has a 'report' and its 'results'"),
        (_changed(["options"], 1), "'options' of the report is no object"),
        (
            _changed(["options", "target"], "x"),
            "'options' of the report are invalid: option 'target'",
        ),
        (_changed(["options", "batch"], [[1]]), "has no 'batch' of the right kind"),
        (_changed(["options", "dims"], [1]), "has a list 'dims' of other things than texts"),
        (_changed(["options", "target_cpu"], 1), "has no 'target_cpu' of the right kind"),
        (_changed(["emit"], "x"), "the report has the unknown output format 'x'"),
        (_changed(["versions", "subquant"], 1), "the report has a version that is not a string"),
        (_changed(["seconds"], -1), "the report has -1.0 for 'seconds', expected 0 or more"),
        (_changed(["results", 0, "status"], "x"), "result 0 has the unknown status 'x'"),
        (_changed(["results", 0, "status"], "compiled"), "the status 'compiled' with an error"),
        (_changed(["results", 0, "error"], None), "has the status 'failed' without an error"),
        (
            _changed(["results", 0, "error", "class"], "quoted"),
            "result 0 has a malformed error",
        ),
        (_changed(["results", 0, "error", "place"], [1]), "result 0 has a malformed error"),
        (_changed(["results", 0, "error"], []), "'error' of result 0 is no object"),
        (_changed(["results", 1, "size"], -1), "result 1 has -1 for 'size', expected 0 or more"),
        (_changed(["results", 1, "cached"], 0), "result 1 has no 'cached' that is true or false"),
    ],
)
def test_files_that_are_no_reports(text: str, message: str, in_temporary_folder: Path) -> None:
    Path("x.json").write_text(text)
    result = invoke("merge", "x.json")
    assert result.exit_code == 1
    assert re.match(r"x\.json: error: ", result.output)
    assert message in result.output
    assert result.output.count("\n") == 1


def test_kinds_are_not_mixed(in_temporary_folder: Path) -> None:
    Path("a.json").write_text(text_of(FIRST))
    conformance = ("--filter", "suite/abs/i8-to-i8$", "--device", "interpreter")
    CliRunner().invoke(main, ["conformance", *conformance, "--json", "b.json"])
    for files, actual, expected in (
        ("ab", "conformance", "compile"),
        ("ba", "compile", "conformance"),
    ):
        result = invoke("merge", *(f"{name}.json" for name in files))
        assert result.output == (
            f"{files[1]}.json: error: is a report of '{actual}', expected one of '{expected}'\n"
        )
    result = invoke("show", "a.json", "--against", "b.json")
    assert (result.exit_code, "--against compares reports of conformance" in result.output) == (
        2,
        True,
    )


def test_errors_of_all_classes_come_back(tmp_path: Path) -> None:
    failed = replace(SECOND.results[0], error=CompilerError("crashed", notes=("look", "there")))
    (tmp_path / "r.json").write_text(text_of(replace(SECOND, results=(failed,))))
    (actual,) = read_compilations(tmp_path / "r.json").results
    assert isinstance(actual.error, CompilerError)
    assert str(actual.error) == "error: crashed\nnote: look\nnote: there"
