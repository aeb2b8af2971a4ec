"""Documentation pages: code blocks run, statements about the code are true, links resolve.

The module `documentation` describes how blocks are run and marked.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from documentation import LANGUAGES, Session, blocks_of, commands_of, is_as_shown, rewrite
from programs import LONG
from subquant.core.option_fields import spelling_of
from subquant.importers.onnx.call import IMPORTERS as ONNX_IMPORTERS
from subquant.importers.tflite.call import IMPORTERS as TFLITE_IMPORTERS
from subquant.layouts.ggml import BLOCK_TYPES, PRIMITIVE_TYPES
from subquant.transforms import PASSES, load_pass

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
PAGES_WITH_CODE = [page for page in PAGES if blocks_of(page)]
FOLDERS = sorted((ROOT / "plugin").rglob("README.md"))


def is_available(need: str, request: pytest.FixtureRequest) -> bool:
    """Return whether this machine has a device, program or package that a block needs."""
    if need == "vulkan":
        try:
            request.getfixturevalue("vulkan")
        except pytest.skip.Exception:
            return False
        return True
    return bool(shutil.which(need) or importlib.util.find_spec(need))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES_WITH_CODE[:: 1 if LONG else 3], ids=name_of)
def test_blocks_print_the_output_of_the_page(
    page: Path, in_temporary_folder: Path, request: pytest.FixtureRequest
) -> None:
    for folder in ("examples", "tests/data/huggingface/compressed_int4"):
        shutil.copytree(ROOT / folder, in_temporary_folder / folder)
    with Session(in_temporary_folder) as session:
        for block in blocks_of(page):
            assert block.language in LANGUAGES, f"{block.location}: '{block.language}'"
            if not block.not_run and all(is_available(need, request) for need in block.needs):
                session.run(block)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("console", "$ echo one\ntwo\n"),
        ("console", "$ echo one\n"),
        ("console", "$ false\n"),
        ("sh", "false\necho\n"),
        ("python", "1 + 1  # 3\n"),
        ("python", "1 + 1\n"),
        ("python", "print(1)  # 2\n"),
        ("python", "for i in range(2):\n    print(i)\n"),
        ("mlir", "func.func private @f(tensor<2x!quant.uniform<i8:f32, 0.0>>)\n"),
    ],
)
def test_a_wrong_block_fails(language: str, text: str, in_temporary_folder: Path) -> None:
    (in_temporary_folder / "page.md").write_text(f"```{language}\n{text}```\n")
    (block,) = blocks_of(in_temporary_folder / "page.md")
    with (
        Session(in_temporary_folder) as session,
        pytest.raises(AssertionError, match=r"page\.md:2: "),
    ):
        session.run(block)


def test_markers_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: a download\nof 1 GB -->\n```sh\na\n```\n\n"
        "<!-- needs: b, c -->\n```sh\nd\n```\n```sh\ne\n```\n"
    )
    first, second, third = blocks_of(page)
    assert (first.not_run, first.needs, first.line) == ("a download\nof 1 GB", (), 4)
    assert (second.not_run, second.needs) == ("", ("b", "c"))
    assert (third.not_run, third.needs) == ("", ())


def test_commands_are_split_from_outputs() -> None:
    text = "$ cat <<'END'\n$ no\nEND\n$ no\n$ a \\\n  b\n> c\nd\n> e\n"
    assert commands_of(text) == [
        ("cat <<'END'\n$ no\nEND", ""),
        ("no", ""),
        ("a \\\n  b\nc", "d\n> e"),
    ]
    assert is_as_shown("a 12 c\n", "a ... c")
    assert not is_as_shown("a 12 c d", "a ... c")


def test_a_page_is_rewritten(in_temporary_folder: Path) -> None:
    page = in_temporary_folder / "page.md"
    text = "```console\n$ cat <<'END'\na\nEND\n{}$ echo 1 2 3\n1 ... 3\n$ echo two\n{}```\n"
    page.write_text(text.format("b\n", ""))
    rewrite(page, in_temporary_folder)
    assert page.read_text() == text.format("a\n", "two\n")


@pytest.mark.parametrize("page", [*PAGES, *FOLDERS], ids=name_of)
def test_files_and_links_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:examples|plugin|scripts|tests)/[\w./]+)(?:::\w+)?`", text):
        assert (ROOT / path).exists(), path
    for path, test in re.findall(r"`(tests/\w+\.py)::(\w+)`", text):
        assert f"\ndef {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_every_page_is_on_the_site() -> None:
    """Sphinx reports this as well; this test needs no site."""
    index = (ROOT / "docs/index.md").read_text()
    listed = set(re.findall(r"^([a-z][a-z0-9/-]*)$", index, re.MULTILINE)) | {"index"}
    pages = {
        str(p.relative_to(ROOT / "docs").with_suffix("")) for p in (ROOT / "docs").rglob("*.md")
    }
    assert pages == listed


def test_the_table_of_passes_is_that_of_the_code() -> None:
    page = (ROOT / "docs/passes.md").read_text()
    rows = dict(re.findall(r"^\| \[`([a-z0-9-]+)`\]\(#\1\) \| (.*) \|$", page, re.MULTILINE))
    assert list(rows) == list(PASSES)
    for name, text in rows.items():
        options = [spelling_of(field) for field in fields(load_pass(name))]
        for option in re.findall(r"`([a-z0-9-]+)(?:=[^`]*)?`", text.partition("option")[2]):
            assert option.replace("-", "_") in options, f"{name}: {option}"


def test_every_option_of_a_pass_is_described() -> None:
    for name in PASSES:
        pass_class = load_pass(name)
        for field in fields(pass_class):
            assert re.search(rf"^ +{field.name}: ", pass_class.__doc__ or "", re.MULTILINE), name


def test_ggufs_types_are_those_of_the_code() -> None:
    page = (ROOT / "docs/guide/weights.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([\d.]+) \| `(\w+)` \|$", page, re.MULTILINE)
    assert rows == [
        (name, str(t.size), f"{t.block.itemsize * 8 / t.size:g}", t.layout.__name__)
        for name, t in BLOCK_TYPES.items()
    ]
    assert f"{', '.join(PRIMITIVE_TYPES)}" in page


def test_the_counts_of_the_conformance_suite() -> None:
    """The README has the numbers of programs, and of passing programs."""
    expected = json.loads((ROOT / "plugin/conformance/expected.json").read_text())["results"]
    results = [of for name, of in expected.items() if name.startswith("suite/")]
    ran = Counter(device for of in results for device in of)
    passed = ran - Counter(d for of in results for d, result in of.items() if result == "error")
    assert {result for of in results for result in of.values()} <= {"pass", "legalized", "error"}
    row = re.search(r"programs \| (\d+) \| (\d+) of (\d+) \|", (ROOT / "README.md").read_text())
    assert row is not None
    assert row.groups() == tuple(map(str, (passed["llvm-cpu"], passed["vulkan"], ran["vulkan"])))
    assert passed["llvm-cpu"] == len(results)
    for page in ("README.md", "docs/guide/conformance.md"):
        assert f"{len(results)} programs" in (ROOT / page).read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """The short suite writes no pages."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    command += ["--builder", "html" if LONG else "dummy"]
    result = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("page", "kernels"), [("tflite", TFLITE_IMPORTERS), ("onnx", ONNX_IMPORTERS)]
)
def test_the_supported_operators_of_models_are_listed(
    page: str, kernels: dict[str, object]
) -> None:
    page = (ROOT / f"docs/guide/{page}.md").read_text()
    (listed,) = re.findall(r"<!-- the list of operators -->\n```text\n(.*?)```", page, re.DOTALL)
    assert listed.split() == sorted(kernels)


@pytest.mark.parametrize("name", ["bench", "docs", "fuzz", "lint", "quickstart", "test"])
def test_help_of_a_script_installs_nothing(name: str, tmp_path: Path) -> None:
    """The script ends before it needs `scripts/environment`, which the copy does not have."""
    ignored = shutil.ignore_patterns("environment", "__pycache__")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=ignored)
    for option in ("--help", "-h"):
        command = [str(tmp_path / "scripts" / name), option]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        first_line = (ROOT / "scripts" / name).read_text().splitlines()[1]
        assert printed.startswith(first_line.removeprefix("# "))
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]
