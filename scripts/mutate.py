#!/usr/bin/env python3
"""Change single tokens of the files with formulas, and show which changes the tests notice.

    python scripts/mutate.py                         a sample of each file
    python scripts/mutate.py casts requantization    of the files whose path has one of these words
    python scripts/mutate.py --each 40 --seed 7      more of each, others

``cosmic-ray.toml`` names the files, the tests of each, the kinds of changes, and the changes that
nobody can notice, with the reason. Cosmic Ray makes the changes, in a copy of the repository; tests
that run on a device are left out, because every change would be compiled anew. Exit status 1 if
fewer are noticed than the configuration demands.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.config import load_config
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome

_ROOT = Path(__file__).resolve().parent.parent
_CONFIGURATION = _ROOT / "cosmic-ray.toml"
_LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.sqlite", "*.egg-info")
_SLACK = 20.0  # seconds; a change may also make tests slower
_TIMES_SLOWER = 4


@dataclass(frozen=True)
class Change:
    """A change of one token."""

    path: str
    line: int
    before: str
    after: str
    code: str  # of the whole file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def main() -> None:
    """Run the tests on a sample of changes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of the paths of files; all if left out")
    parser.add_argument("--each", type=int, help="changes of each file")
    parser.add_argument("--seed", type=int, help="which changes are drawn")
    parser.add_argument("--list", action="store_true", help="show the changes, and run nothing")
    arguments = parser.parse_args()
    config = load_config(str(_CONFIGURATION))
    sample = config["sample"]
    each, seed = (
        arguments.each or sample["each"],
        sample["seed"] if arguments.seed is None else arguments.seed,
    )
    known = {(entry["before"], entry["after"]) for entry in config["unnoticeable"]}
    paths = [
        path
        for path in config["module-path"]
        if not arguments.words or any(word in path for word in arguments.words)
    ]
    tried, missed = 0, []
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.list:
            _copy(Path(folder))
        for path in paths:
            changes = draw(path, sample["operators"], each, seed)
            named = [change for change in changes if (change.before, change.after) in known]
            rest = [change for change in changes if change not in named]
            if arguments.list:
                print(*changes, sep="\n")
                continue
            command = f"{config['test-command']} {config['tests'][path]}"
            unnoticed = list(_unnoticed(rest, command, config["timeout"]))
            print(f"{path}: {len(rest) - len(unnoticed)} of {len(rest)} noticed", end="")
            print(f", {len(named)} named" if named else "", flush=True)
            for change in unnoticed:
                print(f"    {change}", flush=True)
            tried, missed = tried + len(rest), missed + unnoticed
    if tried:
        print(f"{tried - len(missed)} of {tried} noticed")
    sys.exit(tried - len(missed) < sample["share"] * tried)


# -- changes --------------------------------------------------------------------------------------


def draw(path: str, operators: list[str], count: int, seed: int) -> list[Change]:
    """Some changes of a file, each in another place, in the order of the places."""
    file = _ROOT / path
    locations: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name in operators:
        operator = get_operator(name)()
        positions = (
            start
            for node in ast_nodes(get_ast_from_path(file))
            for start, _ in operator.mutation_positions(node)
        )
        for occurrence, start in enumerate(positions):
            locations.setdefault(start, []).append((name, occurrence))
    source = file.read_text()
    meaning = _meaning(source)
    generator = random.Random(f"{seed} {file.name}")
    actual: list[Change] = []
    for line, column in generator.sample(sorted(locations), len(locations)):
        name, occurrence = generator.choice(locations[line, column])
        code = mutate_code(source, get_operator(name)(), occurrence)
        if len(actual) == count:
            break
        if _meaning(code) not in (None, meaning):
            text_lines = [text.splitlines()[line - 1].strip() for text in (source, code)]
            actual.append(Change(path, line, *text_lines, code))
    return sorted(actual, key=lambda change: change.line)


class _WithoutDeclarations(ast.NodeTransformer):
    """Leaves out types, which nothing evaluates, decorators (``frozen=True``), and assertions."""

    def visit_keyword(self, node: ast.keyword) -> Any:
        return None if node.arg == "strict" else self.generic_visit(node)  # of zip

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns, node.decorator_list = None, []
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.decorator_list = []
        return self.generic_visit(node)


def _meaning(code: str) -> str | None:
    """The syntax without declarations, or None if it is wrong."""
    try:
        return ast.dump(_WithoutDeclarations().visit(ast.parse(code)))
    except SyntaxError:
        return None


# -- tests ----------------------------------------------------------------------------------------


def _copy(folder: Path) -> None:
    """Copy the repository, go there, and let ``import subquant`` find the copy."""
    copy, packages = folder / "repository", folder / "packages"
    shutil.copytree(_ROOT, copy, ignore=_LEFT_OUT)
    packages.mkdir()
    (packages / "subquant").symlink_to(copy / "plugin", target_is_directory=True)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(packages)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _unnoticed(changes: list[Change], command: str, timeout: float) -> Iterator[Change]:
    started = time.perf_counter()
    outcome, output = run_tests(command, timeout)
    if outcome != TestOutcome.SURVIVED:
        sys.exit(f"the tests fail without a change: {command}\n{output}")
    enough = min(timeout, _SLACK + _TIMES_SLOWER * (time.perf_counter() - started))
    for change in changes:
        file = Path(change.path)
        original = file.read_text()
        try:
            file.write_text(change.code)
            outcome, output = run_tests(command, enough)
            if outcome == TestOutcome.SURVIVED:
                yield change
            elif output == "timeout":
                print(f"    noticed by its time only: {change}", flush=True)
        finally:
            file.write_text(original)


if __name__ == "__main__":
    main()
