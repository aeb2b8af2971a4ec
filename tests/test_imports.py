"""Imports between modules: no cycles, and packages in one order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from processes import run_python

PLUGIN = Path(__file__).parent.parent / "plugin"
MODULES = {
    ".".join(("subquant", *path.relative_to(PLUGIN).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PLUGIN.rglob("*.py"))
}
ORDER = re.findall(r"\w+", """
    errors core isolation iree_hooks numerics signature dialects emit kernels transforms layouts
    formats weights importers compiler batch runtime interpreter ops torch models calibration
    comparison conformance commands cli __main__
""")  # fmt: skip
"""The packages and modules of `subquant`: each imports only those before it, and itself."""


def statements(body: list[ast.stmt], *, in_functions: bool) -> Iterator[ast.stmt]:
    """Statements that run on import, and with `in_functions` those of functions too."""
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and not in_functions:
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, field, []), in_functions=in_functions)
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body, in_functions=in_functions)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(module: str, *, in_functions: bool) -> frozenset[str]:
    """The modules of the package that a module imports."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    actual = set()
    for statement in statements(tree_of(path).body, in_functions=in_functions):
        assert not isinstance(statement, ast.Import) or not any(
            alias.name.split(".")[0] == "subquant" for alias in statement.names
        ), f"{module} imports itself by its full name"
        if isinstance(statement, ast.ImportFrom) and statement.level:
            start = package[: len(package) - statement.level + 1]
            source = ".".join([*start, *(statement.module or "").split(".")]).rstrip(".")
            for alias in statement.names:
                name = f"{source}.{alias.name}"
                actual.add(name if name in MODULES else source)
    return frozenset(actual)


@pytest.mark.parametrize("in_functions", [False, True])
def test_no_module_is_imported_in_a_cycle(in_functions: bool) -> None:
    """No function imports what its module could not: that would be a cycle too."""
    graph = {}
    for module in MODULES:
        imported = imports_of(module, in_functions=in_functions)
        packages = {name[:end] for name in imported for end in range(len(name)) if name[end] == "."}
        margin = {module[:end] for end in range(len(module)) if module[end] == "."}
        graph[module] = imported | (packages - margin - {module})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports go round: {' <- '.join(error.args[1])}")


def test_no_folder_of_a_package_is_imported_in_a_cycle() -> None:
    """Modules of two folders beside each other may import in one direction only."""
    graphs: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for module, path in MODULES.items():
        own = tuple(module.split(".")[: None if path.name == "__init__.py" else -1])
        for imported in imports_of(module, in_functions=True):
            is_package = MODULES[imported].name == "__init__.py"
            other = tuple(imported.split(".")[: None if is_package else -1])
            pairs = zip(own, other, strict=False)
            depth = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            if depth is not None:
                folders = graphs.setdefault(own[:depth], {})
                folders.setdefault(own[depth], set()).add(other[depth])
    assert {("subquant",), ("subquant", "transforms")} <= graphs.keys()
    for parent, graph in graphs.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"folders of {'.'.join(parent)} go round: {' <- '.join(error.args[1])}")


def test_packages_import_only_those_before_them() -> None:
    assert set(ORDER) == {module.split(".")[1] for module in MODULES if module != "subquant"}
    wrong = []
    for module in MODULES.keys() - {"subquant"}:
        position = ORDER.index(module.split(".")[1])
        for imported in imports_of(module, in_functions=True) - {"subquant"}:
            if ORDER.index(imported.split(".")[1]) > position:
                wrong.append(f"{module} imports {imported}")
    assert not wrong


@pytest.mark.parametrize(
    ("package", "forbidden"), [("runtime", "compiler"), ("iree_hooks", ""), ("core", "isolation")]
)
def test_packages_that_import_nothing_of_others(package: str, forbidden: str) -> None:
    """An executable runs without the compiler; IREE's process has no package of another MLIR."""
    for module in MODULES:
        if module.split(".")[1:2] == [package]:
            for imported in imports_of(module, in_functions=True) - {"subquant"}:
                name = imported.split(".")[1]
                assert name != forbidden if forbidden else name == package, module


def test_the_bindings_are_imported_in_one_place() -> None:
    for module, path in MODULES.items():
        match = re.search(r"^\s*(?:from|import) torch_mlir\b", path.read_text(), re.MULTILINE)
        if not module.startswith("subquant.importers.torch."):  # torch-mlir's importer of FX graphs
            assert (match is not None) == (module == "subquant.core._mlir"), module


def test_the_oracle_imports_no_formula_that_it_checks() -> None:
    for name in ("semantics", "oracle"):
        seen, new = set(), {f"subquant.conformance.{name}"}
        while new:
            seen |= new
            new = {t for module in new for t in imports_of(module, in_functions=True)} - seen
        shared = [module for module in seen if module.split(".")[1] in ("numerics", "emit")]
        assert not shared, name


@pytest.mark.parametrize(
    "modules",
    [
        "commands.compile, compiler.compilation",
        "commands.opt, commands.inspect",
        "commands.run, commands.exec",
        "runtime.descriptions",
    ],
)
def test_commands_leave_mlir_and_numpy_to_their_child_process(modules: str) -> None:
    """These packages take a tenth of a second to import."""
    names = ", ".join(f"subquant.{module}" for module in modules.split(", "))
    code = f"import sys, subquant.cli, {names}\n"
    code += "print(*sorted({'numpy', 'torch_mlir', 'iree.compiler', 'rich'} & set(sys.modules)))"
    assert run_python(code) == "\n"


def test_the_package_alone_imports_nothing() -> None:
    """``python -m subquant`` imports it before there is anybody to take Ctrl-C."""
    code = "import sys, subquant; print([n for n in sys.modules if n.startswith('subquant.')])"
    assert run_python(code) == "[]\n"


CHILD = """
import sys
import subquant.compiler.mlir_child
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
(op,) = parse_text("func.func private @f()", create_context()).body.operations
assert op.operation.name == "func.func"
costly = {"subquant.importers.tflite", "subquant.layouts", "torch_mlir.dialects.func", "rich"}
print(*sorted(costly & set(sys.modules)))
"""


def test_a_child_imports_what_most_calls_need() -> None:
    """The bindings would import their classes of operations with the first of a dialect."""
    assert run_python(CHILD) == "\n"
    code = CHILD.replace("import subquant.compiler.mlir_child", "")
    assert run_python(code) == "torch_mlir.dialects.func\n"


COMPILER = """
import sys
from subquant.iree_hooks.session import _Session
from subquant.iree_hooks.hal_operations import child_operations
session = _Session([])
module = session._ir.Module.parse("func.func private @f()", session._session.context)
assert [op.name for op in child_operations(module.operation)] == ["func.func"]
costly = {"iree.compiler.dialects.func", "iree.compiler.tools.core", "numpy.linalg"}
print(*sorted(costly & set(sys.modules)))
"""


def test_the_compiler_imports_what_it_needs() -> None:
    """Every compilation for a CPU starts a process that does."""
    assert run_python(COMPILER) == "\n"
