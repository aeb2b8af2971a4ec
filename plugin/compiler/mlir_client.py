"""MLIR in a child process: what reads modules, runs passes on them and looks into them.

MLIR's parser, its bytecode reader, its C++ passes and StableHLO's interpreter crash on hostile
input, and on some that is only unusual. All that the command line and `subquant.compile` do with
modules goes through these functions, so that a crash is one line: what was being done, by which
pass, to which file, that the crash is upstream's, and how to replay it with the reproducer that was
written. `subquant.isolation.client` has the protocol, the limits and the life of the child;
`served` is what runs there. This process needs no MLIR, and does not import it.

A module of the bindings that the caller has parsed already is handed over as bytecode. The
functions of `reading`, `pipeline` and `opt` run where they are called, without any of this.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.files import open_input, read_input, write_whole
from ..errors import CompilerError, ParseError, Place, Remark, SubquantError, error_from_json
from ..isolation.client import ChildEnded, call
from ..isolation.limits import Limits
from .compile_options import CompileOptions, Emit

if TYPE_CHECKING:
    from ..core._mlir import ir
    from ..signature import Signature
    from .inspected_tensors import InspectedTensor

__all__ = [
    "Input",
    "LoweredModule",
    "OptResult",
    "Source",
    "ask",
    "external_files",
    "input_of",
    "inspect",
    "interpretable",
    "lower",
    "optimize",
    "signatures_of",
    "text_of",
]

Source: TypeAlias = "str | bytes | os.PathLike[str] | ir.Module"
"""A path, MLIR text, bytecode, a TensorFlow Lite model, or a module of the bindings."""

_LARGEST_COPY = 1 << 26
"""Bytes of an input that are copied into a reproducer."""


@dataclass
class OptResult:
    """The printed modules (None where there is nothing to print), the errors and the remarks."""

    text: str | None = None
    errors: list[SubquantError] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


@dataclass(frozen=True)
class LoweredModule:
    """A module for IREE.

    Args:
        data: text or bytecode.
        is_runnable: it has, or may have, a function to run.
        signature_texts: the signatures of its public functions, as JSON; of bytecode only.
        remarks: what was asked for by ``explain``; they do not name the source.
        parameter_bytes: of constants that are in the file of parameters.
        gains_by_threads: several threads may run one of its functions in less time than one.
        peels_loops: what fills no vector is to be written by itself.
    """

    data: bytes
    is_runnable: bool = True
    signature_texts: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[Remark] = ()
    parameter_bytes: int = 0
    gains_by_threads: bool = False
    peels_loops: bool = False


def signatures_of(signature_texts: Mapping[str, str]) -> dict[str, Signature]:
    """Return the signatures of the public functions of a module, by name."""
    from ..signature import Signature  # with NumPy, which the other functions do without

    return {name: Signature.from_json(text) for name, text in signature_texts.items()}


@dataclass(frozen=True)
class Input:
    """A source as it is handed over: by its path, or as bytes.

    Args:
        file: the name that errors show.
        path: where it lies, and what else it is read from; it may be called otherwise there.
        data: what it is, if it has no path.
    """

    file: str
    path: str | None = None
    data: bytes = b""

    @property
    def request(self) -> dict[str, Any]:
        """What the child is told of it."""
        return {"file": self.file} if self.path is None else {"file": self.file, "path": self.path}

    @property
    def blobs(self) -> list[bytes]:
        """The bytes that are handed over, if it is not by a path."""
        return [] if self.path is not None else [self.data]

    def read(self) -> bytes:
        """The input, for a reproducer; of a long one the beginning."""
        if self.path is None:
            return self.data
        with open(self.path, "rb") as file:
            return file.read(_LARGEST_COPY + 1)


def input_of(source: Source | Input) -> Input:
    """Return what to hand over, which may be known already.

    A string is text if it has a line break, ``{`` or ``"``; else it is a path.

    Raises:
        EnvironmentProblem, InputError, ParseError: it cannot be read, or converted.
    """
    if isinstance(source, Input):
        return source
    if isinstance(source, str) and any(mark in source for mark in '\n{"'):
        try:
            return Input("-", data=source.encode())
        except UnicodeEncodeError as error:
            line = source.count("\n", 0, error.start) + 1
            column = error.start - (source.rfind("\n", 0, error.start) + 1) + 1
            raise ParseError(
                "text has a surrogate, which is no character", Place("-", line, column)
            ) from None
    if isinstance(source, bytes):
        return Input("-", data=source)
    if isinstance(source, (str, os.PathLike)):
        return _input_of_file(os.fspath(source))
    buffer = io.BytesIO()
    source.operation.write_bytecode(buffer)
    return Input("-", data=buffer.getvalue())


def _input_of_file(path: str) -> Input:
    if os.path.isfile(path) and path.isprintable():
        with open_input(path):
            return Input(path, path)  # the child reads it, and MLIR knows its name
    return Input(path, data=read_input(path))  # what can be read once, or not at all


# -- what is asked for ----------------------------------------------------------------------------


def lower(
    source: Source | Input,
    options: CompileOptions,
    emit: Emit,
    *,
    cpu_features: str = "",
    parameters: str | os.PathLike[str] | None = None,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> LoweredModule:
    """Parse a module and run the passes of a compilation.

    Args:
        source: the module. options: what it is compiled for. emit: ``mlir`` for text; else bytecode
        is returned. cpu_features: what to record for the runtime, of `recorded_features`.
        parameters: a file that large constants go to, as `subquant.compiler.parameter_archive`
        says. weights: files of weights by the scope of their parameters, which go there too.
        reproducer: where to write the input if MLIR crashes; by default
            ``subquant.reproducer.mlir`` in the current folder.
        progress: called with a line about each step.
        limits: of the child process.

    Raises:
        CompilerError: MLIR crashed, or reached a limit.
        SubquantError: the input is wrong or not supported (with its place).
    """
    given = input_of(source)
    value, blobs = ask(
        "subquant.compiler.mlir_child:lower_module",
        given,
        {
            "options": asdict(options),
            "emit": emit,
            "cpu_features": cpu_features,
            "parameters": None if parameters is None else os.path.abspath(parameters),
            "weights": {scope: os.path.abspath(path) for scope, path in (weights or {}).items()},
        },
        reproducer=reproducer,
        progress=progress,
        limits=limits,
    )
    return LoweredModule(
        blobs[0],
        bool(value.get("has_public_function", True)),
        value.get("signatures", {}),
        [Remark.from_json(remark) for remark in value["remarks"]],
        int(value.get("parameter_bytes", 0)),
        bool(value.get("gains_by_threads", False)),
        bool(value.get("peels_loops", False)),
    )


def optimize(
    data: bytes,
    file: str,
    passes: str | None,
    *,
    split: bool = False,
    verify_diagnostics: bool = False,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> OptResult:
    """Do what `subquant.compiler.opt.run_opt` does, with the rest as `lower`.

    Raises:
        CompilerError: MLIR crashed, or reached a limit.
        UsageError, ParseError: as there.
    """
    value, blobs = ask(
        "subquant.compiler.mlir_child:optimize",
        Input(file, data=data),
        {"passes": passes, "split": split, "verify_diagnostics": verify_diagnostics},
        reproducer=reproducer,
        progress=progress,
        limits=limits,
    )
    return OptResult(
        blobs[0].decode() if value["has_text"] else None,
        [error_from_json(error) for error in value["errors"]],
        [Remark.from_json(remark) for remark in value["remarks"]],
    )


def inspect(
    source: Source,
    *,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> list[InspectedTensor]:
    """Describe every quantized tensor of a module, with its name in the text.

    Args:
        source: the module.
        reproducer: as of `lower`, and so the others.
        progress: called with a line about each step.
        limits: of the child process.

    Raises:
        CompilerError: MLIR crashed, or reached a limit.
        SubquantError: the module is wrong, with the place.
    """
    value, arrays = ask(
        "subquant.compiler.mlir_child:inspect",
        input_of(source),
        {},
        reproducer=reproducer,
        progress=progress,
        limits=limits,
    )
    from .inspected_tensors import tensors_from_fields  # with NumPy too

    return tensors_from_fields(value, arrays)


def interpretable(
    source: Source,
    *,
    reproducer: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
) -> tuple[str, dict[str, str]]:
    """Write a module with what StableHLO's interpreter knows.

    Returns:
        Its text, and the signature of each public function, as JSON.

    Raises:
        CompilerError: MLIR crashed, or reached a limit.
        SubquantError: the module is wrong, or nothing writes an operation so.
    """
    value, blobs = ask(
        "subquant.compiler.mlir_child:interpretable",
        input_of(source),
        {},
        reproducer=reproducer,
        limits=limits,
    )
    return blobs[0].decode(), value


def external_files(given: Input) -> list[str]:
    """Return the names of the files that an ONNX model has tensors in.

    Raises:
        CompilerError: what reads it crashed.
        SubquantError: as `subquant.importers.onnx.reading.reader.external_files`.
    """
    value, _ = ask("subquant.compiler.mlir_child:external_files", given, {}, reproducer=os.devnull)
    return [str(name) for name in value]


def text_of(bytecode: bytes) -> str:
    """Return a module as text."""
    function = "subquant.compiler.mlir_child:text_of"
    _, blobs = ask(function, Input("-", data=bytecode), {}, reproducer=os.devnull)
    return blobs[0].decode()


def ask(
    function: str,
    source: Input,
    arguments: dict[str, Any],
    blobs: Sequence[bytes] = (),
    *,
    reproducer: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> tuple[Any, list[bytes]]:
    """Call a function in a child, by `subquant.isolation.client.call`.

    Args:
        function: ``subquant.module:name``.
        source: what it works on: its argument ``source``, and the first blob if it has data.
        arguments: its further arguments, beside the limits of time.
        blobs: further ones.
        reproducer: where to write the source if the child ends.
        progress: called with each step.
        limits: of the child.

    Raises:
        CompilerError: the child ended.
        SubquantError: from the function.
    """
    limits = limits or Limits()
    arguments |= {
        "source": source.request,
        "parse_seconds": limits.parse_seconds,
        "pass_seconds": limits.pass_seconds,
    }
    try:
        return call(function, arguments, [*source.blobs, *blobs], steps=progress, limits=limits)
    except ChildEnded as ended:
        raise _crash(ended, source, limits, reproducer) from None
    except SubquantError as error:
        raise error.in_file(source.file) from None


# -- crashes --------------------------------------------------------------------------------------

_DONE = {"parse": "parsed", "print": "printed", "inspect": "inspected"}
_REASON = re.compile(r"(?:LLVM ERROR|Assertion|Fatal Python error)[: ]+(.*)")
_OUT_OF_MEMORY = re.compile(r"bad_alloc|[Aa]llocation failed|out of memory|Cannot allocate memory")


def _crash(
    ended: ChildEnded, source: Input, limits: Limits, reproducer: str | os.PathLike[str] | None
) -> CompilerError:
    """Write a reproducer, and say in a line what crashed where, and how to replay it."""
    passes = [detail for detail in ended.details if detail]
    if ended.step.startswith("pass "):
        doing = f"in pass '{ended.step.removeprefix('pass ')}'"
        seconds, option = limits.pass_seconds, "--pass-seconds"
    else:
        doing = f"while it {_DONE.get(ended.step, _DONE['parse'])} the module"
        seconds, option = limits.parse_seconds, "--parse-seconds"
    if ended.cause in ("SIGPROF", "SIGALRM") and seconds is not None:
        who = "the module" if option == "--pass-seconds" else "upstream's MLIR"
        what = f"{who} took more than {seconds:g} s {doing} ({option})"
    elif ended.exhausted == "memory" or _OUT_OF_MEMORY.search(ended.output_tail):
        size = (limits.memory_bytes or 0) / 2**30
        what = f"upstream's MLIR took more than {size:.3g} GiB of memory {doing} (--memory-gib)"
    elif ended.exhausted == "stack":
        what = f"the module is nested too deep for MLIR's bindings, {doing}"
    elif ended.cause == "SIGKILL":
        what = f"upstream's MLIR was killed {doing}, as a system does that is out of memory"
    else:
        reason = _REASON.search(ended.output_tail)
        said = f": {reason.group(1).strip()}" if reason else ""
        what = f"upstream's MLIR crashed {doing} ({ended.cause}{said})"
    return CompilerError(f"{what}; {_reproduce(source, passes, reproducer)}", Place(source.file))


def _reproduce(
    source: Input, passes: Sequence[str], reproducer: str | os.PathLike[str] | None
) -> str:
    """Write a reproducer, and return how to replay it."""
    path = os.fspath(reproducer or "subquant.reproducer.mlir")
    options = f' --passes "{",".join(passes)}"' if passes else ""
    if source.path is not None and path != os.devnull:
        with open(source.path, "rb") as file:
            is_long = os.fstat(file.fileno()).st_size > _LARGEST_COPY
        if is_long or os.path.realpath(path) == os.path.realpath(source.path):
            return f"replay with: subquant opt {source.path}{options}"
    if path == os.devnull:
        return f"replay with: subquant opt{options}"
    try:
        write_whole(path, source.read())
    except OSError as error:
        return f"no reproducer was written to '{path}': {error.strerror}"
    return f"replay with: subquant opt {path}{options}"
