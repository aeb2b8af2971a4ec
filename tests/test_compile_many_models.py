"""Batch compilation: patterns and lists of models, and the names of their outputs."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from compile_many_runs import write
from subquant.batch.models import find_models, name_outputs
from subquant.errors import InputError, UsageError

pytestmark = pytest.mark.usefixtures("in_temporary_folder")


def test_patterns_lists_and_paths_are_models_once_and_in_order() -> None:
    write("b.mlir", "a.mlir", "m/deep/c.mlir", "m/d.tflite", "x[1].mlir", "@odd.mlir", ".h.mlir")
    assert find_models(["*.mlir", "a.mlir"], "out") == [
        "@odd.mlir", "a.mlir", "b.mlir", "x[1].mlir",
    ]  # fmt: skip
    assert find_models(["b.mlir", "m/**/*.*", "./b.mlir"], "out") == [
        "b.mlir", "m/d.tflite", "m/deep/c.mlir",
    ]  # fmt: skip
    assert find_models(["x[1].mlir", "@odd.mlir"], "out") == ["x[1].mlir", "@odd.mlir"]
    Path("list.txt").write_text("# these\n\n  m/d.tflite \nno such.mlir\n*.mlir\r\n")
    assert find_models(["@list.txt"], "out") == [
        "m/d.tflite", "no such.mlir", "@odd.mlir", "a.mlir", "b.mlir", "x[1].mlir",
    ]  # fmt: skip
    Path("list.txt").write_bytes(b"\xef\xbb\xbfm/d.tflite\r\n")
    assert find_models(["@list.txt"], "out") == ["m/d.tflite"]
    by_null = b"# a.mlir\0 b .mlir\0\xff.mlir\0"
    assert find_models(["@-"], "out", lambda: by_null) == [
        "# a.mlir", " b .mlir", os.fsdecode(b"\xff.mlir"),
    ]  # fmt: skip


def test_patterns_find_what_glob_does() -> None:
    write("a.mlir", "x/b.mlir", "x/y/c.mlir", "x/[z]/d.mlir", ".h/e.mlir", "x/.i.mlir", "w/f.txt")
    Path("linked").symlink_to("x/y")
    for pattern in ("**", "**/*.mlir", "./**/*.mlir", "x/**/c.mlir", "x/**", "**/y/**/*.*",
                    "?/**/*", ".h/**/*.mlir", "**/[[]z]/*", f"{Path.cwd()}/**/*.mlir",
                    "x//**//*.mlir"):  # fmt: skip
        expected = {each for each in glob.glob(pattern, recursive=True) if os.path.isfile(each)}
        actual = {*find_models([pattern], "out")}
        assert {*map(os.path.abspath, actual)} == {*map(os.path.abspath, expected)}, pattern
    assert "linked/c.mlir" in find_models(["**/c.mlir"], "out")


def test_links_to_folders_above_are_no_end() -> None:
    """Each further level of them would be twice as many."""
    write("m/a.mlir")
    Path("m/up").symlink_to("..")
    Path("m/here").symlink_to(".")
    assert find_models(["**/*.mlir"], "out") == ["m/a.mlir"]


def test_outputs_are_not_matched() -> None:
    write("a.mlir", "out/a.mlir", "out/deep/b.mlir", "outer/c.mlir")
    assert find_models(["**/*.mlir"], "out/") == ["a.mlir", "outer/c.mlir"]
    assert find_models(["out/a.mlir"], "out") == ["out/a.mlir"]  # which is said, not matched
    assert len(find_models(["**/*.mlir"], ".")) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no*.mlir"], "no file matches 'no[*].mlir'"),
        (["m"], "'m' is a folder; give a pattern, such as 'm/[*][*]/[*].mlir'"),
        (["a.mlir", "-"], "standard input is one model; give it alone"),
    ],
)
def test_what_is_no_model(words: Sequence[str], message: str) -> None:
    write("m/a.mlir")
    with pytest.raises(UsageError, match=message):
        find_models(words, "out")


def test_a_list_in_a_list_is_refused() -> None:
    Path("list.txt").write_text("@other.txt\n")
    with pytest.raises(InputError, match=r"'list\.txt' names another list, '@other\.txt'"):
        find_models(["@list.txt"], "out")
    with pytest.raises(InputError, match=r"cannot read 'none\.txt': No such file"):
        find_models(["@none.txt"], "out")


def test_outputs_mirror_the_paths_of_models() -> None:
    actual = name_outputs(["a/x.mlir", "b/x.mlir", "./y.b.tflite"], "out", "vmfb")
    assert [each.output for each in actual] == ["a/x.vmfb", "b/x.vmfb", "y.b.vmfb"]
    actual = name_outputs([f"{Path.cwd()}/a/x.mlir", "a/b/../y.onnx"], "out", "mlir", "a")
    assert [each.output for each in actual] == ["x.mlir", "y.mlir"]


def test_models_outside_of_the_current_folder() -> None:
    """Outputs are named from the folder that all models share."""
    result = name_outputs(["../e/a/x.mlir", "../e/b/c/y.mlir"], "out", "vmfb")
    assert [each.output for each in result] == ["a/x.vmfb", "b/c/y.vmfb"]
    assert [each.output for each in name_outputs(["../e/x.mlir"], "out", "vmfb")] == ["x.vmfb"]
    result = name_outputs(["x.mlir", "../e/x.mlir"], "out", "vmfb")
    assert [each.output for each in result] == [f"{Path.cwd().name}/x.vmfb", "e/x.vmfb"]


@pytest.mark.parametrize(
    ("paths", "base", "message"),
    [
        (
            ["a/x.mlir", "a/x.onnx"],
            None,
            "'a/x.mlir' and 'a/x.onnx' would both become 'out/a/x.mlirbc'; rename one",
        ),
        (["b/x.mlir"], "a", "'b/x.mlir' does not lie in the folder 'a'"),
        (["out/x.mlirbc"], "out", "the output 'out/x.mlirbc' is a model; give another folder"),
    ],
)
def test_names_that_cannot_be(paths: Sequence[str], base: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        name_outputs(paths, "out", "mlirbc", base)
