"""Bindings of MLIR: the only module that imports a package of bindings.

The bindings are the wheel ``torch-mlir`` (module ``torch_mlir``, which needs no torch): the one
published wheel with the ``quant`` types, StableHLO, TOSA, linalg, the rewrite drivers and
Python-defined dialects in one context. Only this file depends on the choice of the wheel.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..errors import ParseError, Place, SubquantError, place_of
from .versions import check_versions

check_versions()

from torch_mlir import ir, passmanager, rewrite  # noqa: E402  (versions are checked first)
from torch_mlir._mlir_libs import _mlir as _bindings  # noqa: E402
from torch_mlir._mlir_libs import _mlirDialectsLinalg as _linalg  # noqa: E402
from torch_mlir._mlir_libs import _stablehlo as stablehlo  # noqa: E402
from torch_mlir._mlir_libs import _torchMlir as _torch_mlir  # noqa: E402
from torch_mlir.dialects import ext, quant  # noqa: E402

__all__ = [
    "Operation",
    "Value",
    "ext",
    "in_context_of",
    "indexing_maps",
    "ir",
    "load_torch_dialects",
    "operation_names",
    "passmanager",
    "place_of",
    "quant",
    "refuse_non_utf8_names",
    "register_upstream_passes",
    "rewrite",
    "skip_operation_classes",
    "stablehlo",
    "translate_errors"
]  # fmt: skip

Operation: TypeAlias = ir.Operation
"""An operation. The bindings come without type stubs: their types tell readers, not mypy."""

Value: TypeAlias = ir.Value
"""The result of an operation or an argument of a block."""


def load_torch_dialects(context: ir.Context) -> None:
    """Load the dialects ``torch``, ``torch_c`` (conversions of its tensors to MLIR's) and ``chlo``.

    No function registers the last two; passes load them that depend on them.
    """
    _torch_mlir.register_dialect(context)
    empty = ir.Module.create(ir.Location.unknown(context))
    for name in ("torch-func-backend-type-conversion", "func.func(convert-torch-to-stablehlo)"):
        manager = passmanager.PassManager.parse(f"builtin.module({name})", context)
        manager.run(empty.operation)


_passes_registered = False


def skip_operation_classes() -> None:
    """Skip the import of the class of each operation, which takes up to 0.1 s for a module.

    Operations are known by name here. The change is for the whole process, so for a process of
    subquant.
    """
    _bindings.globals.dialect_search_modules = []


def register_upstream_passes() -> None:
    """Register StableHLO's passes, once for the process (upstream's are registered on import)."""
    global _passes_registered
    if not _passes_registered:
        stablehlo.register_stablehlo_passes()
        _passes_registered = True


def operation_names(dialect: str) -> list[str]:
    """Return the names of a dialect's operations, without the dialect's; none if it is unknown."""
    try:
        module = importlib.import_module(f"torch_mlir.dialects._{dialect}_ops_gen")
    except ImportError:
        return []
    names = (getattr(each, "OPERATION_NAME", "") for each in vars(module).values())
    return [name.partition(".")[2] for name in names if name]


def indexing_maps(op: Operation) -> list[ir.AffineMap]:
    """Return the affine map of each operand of a ``linalg`` operation."""
    return [ir.AffineMapAttr(each).value for each in _linalg.get_indexing_maps(op)]


@contextlib.contextmanager
def in_context_of(operation: Operation) -> Iterator[None]:
    """Enter an operation's context and location."""
    with operation.context, operation.location:
        yield


@contextlib.contextmanager
def translate_errors(
    error_class: type[SubquantError],
    fallback: str,
    file: str = "-",
    hints: tuple[tuple[str, str], ...] = (),
    reword: Callable[[str, list[str]], str] | None = None,
) -> Iterator[None]:
    """Turn an MLIRError into `error_class` with the location and text of its diagnostics.

    Args:
        error_class: the class of the error.
        fallback: the message if MLIR gives no diagnostic.
        file: the file name if MLIR has none.
        hints: pairs of a part of MLIR's message and a note to add to it.
        reword: returns a new message for a message and its notes.
    """
    try:
        yield
    except ir.MLIRError as error:
        diagnostics = list(error.error_diagnostics)
        if not diagnostics:
            raise error_class(fallback, Place(file)) from None
        first, *rest = diagnostics
        location = place_of(first.location) or Place(file)
        if location.file == "-":
            location = Place(file, location.line, location.column)
        notes = [hint for part, hint in hints if part in first.message]
        notes += [note.message for note in first.notes]
        notes += [diagnostic.message for diagnostic in rest]
        short = tuple(note if len(note) <= 600 else note[:600] + " ..." for note in notes)
        message = first.message
        if reword is not None:
            message = reword(message, [note.message for note in first.notes])
        raise error_class(message, location, short) from None


@contextlib.contextmanager
def refuse_non_utf8_names(file: str = "-") -> Iterator[None]:
    r"""Turn the bindings' exceptions for a string that is not UTF-8 into an error.

    MLIR's strings are bytes: ``@"\\FF"`` is a valid name, which Python cannot read.

    Raises:
        ParseError: a name, or a message about one, is no text.
    """
    try:
        yield
    except (RuntimeError, UnicodeDecodeError) as error:
        if isinstance(error, RuntimeError) and "str_from_cstr" not in str(error):
            raise
        raise ParseError("the module has a name that is not UTF-8 text", Place(file)) from None
