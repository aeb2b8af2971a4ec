"""The repository's promises: pins agree, public names are there, the example gives its output."""

from __future__ import annotations

import ast
import fnmatch
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import subquant
from devices import ON_DEVICES, compile_for
from subquant.cli import COMMANDS
from subquant.core.versions import PINNED_VERSIONS, check_versions, installed_versions
from subquant.errors import EnvironmentProblem
from subquant.runtime import Device
from subquant.transforms import PASSES, load_pass

ROOT = Path(__file__).parent.parent


def test_pins_are_the_same_everywhere() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    page = (ROOT / "docs/versions.md").read_text()
    for name, version in PINNED_VERSIONS.items():
        assert f'"{name}=={version}"' in project
        assert re.search(rf"{re.escape(name)}\W+{re.escape(version)}", page), name


def test_a_clone_is_the_package_from_the_folder_above(tmp_path: Path) -> None:
    """Python finds the folder of the clone before the installed package."""
    (tmp_path / "subquant").symlink_to(ROOT)
    program = "import subquant; print(subquant.compile.__module__, subquant.__path__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for arguments in (["-c", program], ["-m", "subquant", "--help"]):
        result = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        if arguments[0] == "-c":
            assert result.stdout == f"subquant ['{tmp_path}/subquant/plugin']\n"


def test_another_version_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PINNED_VERSIONS, "torch-mlir", "19990101")
    with pytest.raises(EnvironmentProblem, match="pip install torch-mlir==19990101"):
        check_versions()
    monkeypatch.setenv("SUBQUANT_ANY_VERSION", "1")
    check_versions()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PINNED_VERSIONS, "no-such-package", "1.0")
    with pytest.raises(EnvironmentProblem, match="'no-such-package' is not installed"):
        check_versions()


def test_versions_are_those_of_the_metadata(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = {name: importlib.metadata.version(name) for name in PINNED_VERSIONS}
    assert installed_versions() == expected
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch_mlir-1.dist-info").mkdir()
    assert installed_versions() == expected | {"torch-mlir": "1"}
    (tmp_path / "torch_mlir-1.dist-info" / "METADATA").write_text("Version: 2\n")
    (tmp_path / "torch_mlir-3.dist-info").mkdir()  # which of them, only the metadata can tell
    (tmp_path / "torch_mlir-3.dist-info" / "METADATA").write_text("Version: 2\n")
    assert installed_versions() == expected | {"torch-mlir": "2"}


def test_every_package_is_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^packages = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    assert listed is not None
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "plugin").rglob("*.py")}
    names = {".".join(("subquant", *folder.parts[1:])) for folder in folders}
    assert re.findall(r'"([\w.]+)"', listed.group(1)) == sorted(names)


def test_every_test_file_belongs_to_a_part_of_the_suite() -> None:
    """The parts are CTest's tests; CMake fails where a file is in none, and is not always run."""
    text = (ROOT / "CMakeLists.txt").read_text()
    parts = [
        name for part in re.findall(r"set\(PART_\S+\s([^)]*)\)", text) for name in part.split()
    ]
    assert sorted(parts) == sorted(path.stem for path in (ROOT / "tests").glob("test_*.py"))


def test_public_names_exist() -> None:
    for name in subquant.__all__:
        assert getattr(subquant, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = subquant.nothing


def test_every_pass_is_a_file_with_its_name() -> None:
    for name in PASSES:
        pass_class = load_pass(name)
        assert pass_class.name == name
        stem = name.replace("-", "_")
        assert re.fullmatch(rf"subquant\.transforms\.\w+\.{stem}", pass_class.__module__)
        assert f"``{name}``" in str(sys.modules[pass_class.__module__].__doc__)


def test_the_root_has_the_files_of_the_project_only() -> None:
    command = ["git", "ls-files", "--", ":(glob)*"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    assert set(listed.stdout.split()) == {
        *(".gitignore", "CHANGELOG.md", "CMakeLists.txt", "CONTRIBUTING.md", "README.md"),
        *("__init__.py", "cosmic-ray.toml", "pyproject.toml"),
    }


def test_every_file_has_a_row_in_the_readme_of_its_folder() -> None:
    missing = []
    for readme in (ROOT / "plugin").rglob("README.md"):
        patterns = re.findall(r"`([\w*./]+)`", readme.read_text())
        for path in readme.parent.glob("*.py"):
            names = (path.name, path.stem)
            if path.name != "__init__.py" and not any(
                fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns
            ):
                missing.append(str(path.relative_to(ROOT)))
    assert missing == []


def test_readmes_of_folders_are_short() -> None:
    """Longer are the maps of the package and of the kernels, and the index of workarounds."""
    longer = {".", "kernels", "transforms/iree_workarounds"}
    for readme in (ROOT / "plugin").rglob("README.md"):
        if str(readme.parent.relative_to(ROOT / "plugin")) not in longer:
            assert len(readme.read_text().splitlines()) <= 30, readme


def test_constants_in_readmes_are_there() -> None:
    files = [*(ROOT / "plugin").rglob("*.py")]
    defined = {
        name for path in files for name in re.findall(r"\b(_?[A-Z][A-Z0-9_]+)\b", path.read_text())
    }
    for readme in (ROOT / "plugin").rglob("README.md"):
        written = re.findall(r"`(?:\w+\.)?(_?[A-Z][A-Z0-9]*_[A-Z0-9_]+)`", readme.read_text())
        assert defined.issuperset(written), (readme, written)


def test_every_file_in_a_readme_is_there() -> None:
    gone = []
    for readme in (ROOT / "plugin").rglob("README.md"):
        for row in re.findall(r"^\| (`[^|]+) \|", readme.read_text(), re.MULTILINE):
            for name in re.findall(r"`(\w+\*?\w*\.py)`", row):
                if not any(readme.parent.glob(name)):
                    gone.append(f"{readme.relative_to(ROOT)}: {name}")
    assert gone == []


def test_the_oracle_shares_no_arithmetic_with_what_it_checks() -> None:
    """Its files import each other and NumPy, and nothing else of subquant."""
    folder = ROOT / "plugin/conformance"
    files = {
        name: (folder / f"{name}.py").read_text()
        for name in ("oracle", "semantics", "semantics_contractions", "program")
    }
    for name, text in files.items():
        for module in re.findall(r"^\s*(?:from|import) (\.\S*|subquant\S*)", text, re.MULTILINE):
            assert module.removeprefix(".") in files, f"{name} imports {module}"


def test_the_files_of_mutation_testing_exist() -> None:
    """``scripts/mutate.py`` changes these files; one that moves takes its lines along."""
    for path in re.findall(r"(?:plugin|tests)/[\w/]+\.py", (ROOT / "cosmic-ray.toml").read_text()):
        assert (ROOT / path).is_file(), f"cosmic-ray.toml names {path}"


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_imports_no_bindings(command: list[str]) -> None:
    program = (
        "import sys; from subquant.cli import main\n"
        f"try: main([*{command}, '--help'])\n"
        "except SystemExit: pass\n"
        f"slow = ('torch_mlir', 'iree') + {('numpy',) if not command else ()}\n"
        "loaded = [m for m in sys.modules if m.startswith(slow)]\n"
        "sys.exit(bool(loaded))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 0, result.stdout


@ON_DEVICES
def test_the_example_gives_its_expected_output(device: Device, device_name: str) -> None:
    """float32 sums of 64 and 128 products in any order: within 1e-4 of the float64 result."""
    folder = ROOT / "examples"
    text = (folder / "two_layer.mlir").read_text()
    got = compile_for(text, device).main(np.load(folder / "two_layer_input.npy"))
    np.testing.assert_allclose(got, np.load(folder / "two_layer_expected.npy"), atol=1e-4, rtol=0)
    assert got.argmax(1).tolist() == [4, 2, 7, 0]


@pytest.mark.long
def test_benchmark_reports_numbers() -> None:
    """The benchmark runs on a small module and prints the figures that it promises."""
    command = [sys.executable, str(ROOT / "scripts/benchmark_passes.py"), "--casts", "30", "--json"]
    environment = {k: v for k, v in os.environ.items() if k != "SUBQUANT_CACHE"}
    result = subprocess.run(command, capture_output=True, check=True, env=environment)
    report = json.loads(result.stdout)
    assert report["casts"] == 30
    assert report["passes"]
    assert all(entry["microseconds_per_cast"] > 0 for entry in report["passes"])
    assert 0 < report["share_of_compile_time"] < 1


def test_operations_are_created_in_one_place() -> None:
    """``Operation.create`` is called in ``plugin/emit/operation.py``, and of IREE's bindings."""
    creators = set()
    for path in (ROOT / "plugin").rglob("*.py"):
        calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute))
        if any(n.attr == "create" and ast.unparse(n.value).endswith("Operation") for n in calls):
            creators.add(path.relative_to(ROOT / "plugin").as_posix())
    names = ("async_entries", "constant_dispatches", "cooperative_matrices", "exact_shaders")
    names += ("hal_operations", "kernel_bodies", "narrow_comparisons", "session", "sync_entries")
    of_iree = {f"iree_hooks/{name}.py" for name in names}
    assert creators == {"emit/operation.py"} | of_iree


def test_passes_are_in_folders() -> None:
    files = {path.stem for path in (ROOT / "plugin" / "transforms").glob("*.py")}
    assert files == {"__init__", "base"}
