"""Client of MLIR, which reads modules, runs passes and inspects modules in a child process.

MLIR's parser, its bytecode reader, its C++ passes and StableHLO's interpreter crash on hostile
input, and on some unusual input. The command line and `subquant.compile` therefore use MLIR through
these functions. A crash is a `CompilerError` of one line: the step, the pass, the file, that the
crash is upstream's, and how to replay it with the reproducer. `subquant.isolation` has the
protocol, the limits and the life of the child; `mlir_child` has its functions. This process does
not import MLIR, and sends a parsed module of the bindings as bytecode.

All functions raise the `SubquantError` of the input with its location.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ..core.files import open_input, read_input, write_atomically
from ..errors import (
    CompilerError,
    ParseError,
    Place,
    Remark,
    SubquantError,
    UsageError,
    error_from_json,
)
from ..isolation.client import ChildEnded, call
from ..isolation.limits import Limits
from .compile_options import CompileOptions, Emit
from .ir_printing import NO_PRINTING, IRPrinting

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..core._mlir import ir
    from ..signature import Signature
    from .inspected_tensors import InspectedTensor

Source: TypeAlias = "str | bytes | os.PathLike[str] | ir.Module"
"""A path; MLIR text; bytecode, an artifact of StableHLO or a model as bytes; or a module."""

_MAX_REPRODUCER_BYTES = 1 << 26
"""Bytes of an input up to which it is copied to a reproducer: 64 MiB."""


class ChildOptions(TypedDict, total=False):
    """Options of each request to the child process."""

    reproducer: str | os.PathLike[str] | None
    """The file for the input if MLIR crashes; by default ``subquant.reproducer.mlir``."""
    progress: Callable[[str], None] | None
    """Called with a line about each step."""
    limits: Limits | None


@dataclass
class OptResult:
    """The printed modules (None if nothing is printed), the errors and the remarks."""

    text: str | None = None
    errors: list[SubquantError] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


@dataclass(frozen=True)
class LoweredModule:
    """A module for IREE.

    Args:
        data: text or bytecode.
        is_runnable: it has, or may have, a function to run.
        signature_texts: the signatures of its public functions, as JSON; for bytecode only.
        remarks: the remarks of ``explain``, without the name of the source.
        gains_from_threads: several threads may run a function in less time than one.
        peels_loops: IREE should peel remainder loops.
        hoists_constants: IREE should compute constant expressions before the first call.
    """

    data: bytes
    is_runnable: bool = True
    signature_texts: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[Remark] = ()
    gains_from_threads: bool = False
    peels_loops: bool = False
    hoists_constants: bool = True


def signatures_of(signature_texts: Mapping[str, str]) -> dict[str, Signature]:
    """Return the signatures of the public functions of a module, by name."""
    from ..signature import Signature  # with NumPy, which the other functions do without

    return {name: Signature.from_json(text) for name, text in signature_texts.items()}


@dataclass(frozen=True)
class Input:
    """A source for the child: a path, or bytes.

    Args:
        file: the name in errors.
        path: its path, which may differ from the name; None for bytes.
        data: the bytes, if it has no path.
    """

    file: str
    path: str | None = None
    data: bytes = b""

    @property
    def request(self) -> dict[str, Any]:
        """The description of the source for the child."""
        return {"file": self.file} if self.path is None else {"file": self.file, "path": self.path}

    @property
    def blobs(self) -> list[bytes]:
        """The bytes for the child, if the source has no path."""
        return [] if self.path is not None else [self.data]

    def read(self) -> bytes:
        """Return the source for a reproducer; of a large one the start."""
        if self.path is None:
            return self.data
        with open(self.path, "rb") as file:
            return file.read(_MAX_REPRODUCER_BYTES + 1)


def input_of(source: Source | Input) -> Input:
    """Return the input for a source; a string with a line break, ``{`` or ``"`` is text.

    Raises:
        UsageError: the source has another type.
        InputError: the file cannot be read.
    """
    if isinstance(source, Input):
        return source
    if isinstance(source, str) and any(mark in source for mark in '\n{"'):
        return Input("-", data=encoded(source))
    if isinstance(source, bytes):
        return Input("-", data=source)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if os.path.isfile(path) and path.isprintable():
            with open_input(path):
                return Input(path, path)  # the child reads it, and MLIR knows its name
        return Input(path, data=read_input(path))  # a pipe can be read once
    if not hasattr(source, "operation"):
        raise UsageError(
            f"expected a path, MLIR text, the bytes of a model, or a module, got a "
            f"{type(source).__name__}"
        )
    buffer = io.BytesIO()
    source.operation.write_bytecode(buffer)
    return Input("-", data=buffer.getvalue())


def encoded(text: str, file: str = "-") -> bytes:
    """Encode MLIR text; ParseError for a surrogate, which is no character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ParseError(
            "text has a surrogate, which is no character", location_at(text, error.start, file)
        ) from None


def location_at(text: str, position: int, file: str) -> Place:
    """Return the line and the column of a position in a text."""
    column = position - text.rfind("\n", 0, position)
    return Place(file, text.count("\n", 0, position) + 1, column)


# -- requests -------------------------------------------------------------------------------------

_CHILD = "subquant.compiler.mlir_child"


def lower(
    source: Source | Input,
    options: CompileOptions,
    emit: Emit,
    *,
    cpu_features: str = "",
    parameters: str | os.PathLike[str] | None = None,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    printing: IRPrinting = NO_PRINTING,
    **child: Unpack[ChildOptions],
) -> LoweredModule:
    """Parse a module and run the passes of a compilation.

    Args:
        emit: ``mlir`` for text; else bytecode.
        cpu_features: the features to record for the runtime, from `recorded_features`.
        parameters: a file for large constants (`subquant.compiler.parameter_archive`).
        weights: files of weights by the scope of their parameters, which are written there too.
        printing: the form of text, and the passes after which the module is printed.
        **child: see `ChildOptions`.
    """
    module = input_of(source)
    value, blobs = ask(
        f"{_CHILD}:lower_module",
        module,
        {
            "options": asdict(options),
            "emit": emit,
            "cpu_features": cpu_features,
            "parameters": None if parameters is None else os.path.abspath(parameters),
            "weights": {scope: os.path.abspath(path) for scope, path in (weights or {}).items()},
            "printing": asdict(printing),
        },
        **child,
    )
    remarks = [Remark.from_json(remark) for remark in value.pop("remarks")]
    return LoweredModule(blobs[0], remarks=remarks, **value)


def optimize(
    data: bytes,
    file: str,
    passes: str | None,
    *,
    split: bool = False,
    verify_diagnostics: bool = False,
    printing: IRPrinting = NO_PRINTING,
    **child: Unpack[ChildOptions],
) -> OptResult:
    """Run `subquant.compiler.opt.run_opt` in a child."""
    value, blobs = ask(
        f"{_CHILD}:optimize",
        Input(file, data=data),
        {
            "passes": passes,
            "split": split,
            "verify_diagnostics": verify_diagnostics,
            "printing": asdict(printing),
        },
        **child,
    )
    return OptResult(
        blobs[0].decode() if value["has_text"] else None,
        [error_from_json(error) for error in value["errors"]],
        [Remark.from_json(remark) for remark in value["remarks"]],
    )


def inspect(source: Source, **child: Unpack[ChildOptions]) -> list[InspectedTensor]:
    """Describe every quantized tensor of a module, with its name in the text."""
    value, arrays = ask(f"{_CHILD}:inspect", input_of(source), {}, **child)
    from .inspected_tensors import tensors_from_fields  # with NumPy too

    return tensors_from_fields(value, arrays)


def interpretable(source: Source, **child: Unpack[ChildOptions]) -> tuple[str, dict[str, str]]:
    """Lower a module to operations of StableHLO's interpreter; return text and JSON signatures."""
    value, blobs = ask(f"{_CHILD}:interpretable", input_of(source), {}, **child)
    return blobs[0].decode(), value


def external_files(module: Input) -> list[str]:
    """Return the names of an ONNX model's external data files."""
    value, _ = ask(f"{_CHILD}:external_files", module, {}, reproducer=os.devnull)
    return [str(name) for name in value]


def text_of(bytecode: bytes) -> str:
    """Return a module as text."""
    module = Input("-", data=bytecode)
    _, blobs = ask(f"{_CHILD}:text_of", module, {}, reproducer=os.devnull)
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
    """Call a function in a child, by `subquant.isolation.client.call`, with time limits.

    Args:
        function: ``subquant.module:name``.
        source: its argument ``source``, and the first blob if the source has data.
        arguments: its further arguments.
        blobs: further blobs.
        reproducer, progress, limits: see `ChildOptions`.
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

_STEP_VERBS = {"parse": "parsed", "print": "printed", "inspect": "inspected"}
_REASON = re.compile(r"(?:LLVM ERROR|Assertion|Fatal Python error)[: ]+(.*)")
_OUT_OF_MEMORY = re.compile(r"bad_alloc|[Aa]llocation failed|out of memory|Cannot allocate memory")


def _crash(
    ended: ChildEnded, source: Input, limits: Limits, reproducer: str | os.PathLike[str] | None
) -> CompilerError:
    """Write a reproducer, and return an error: the crash, its step, and how to replay it."""
    passes = [detail for detail in ended.details if detail]
    if ended.step.startswith("pass "):
        doing = f"in pass '{ended.step.removeprefix('pass ')}'"
        seconds, option = limits.pass_seconds, "--pass-seconds"
    else:
        doing = f"while it {_STEP_VERBS.get(ended.step, _STEP_VERBS['parse'])} the module"
        seconds, option = limits.parse_seconds, "--parse-seconds"
    if ended.cause in ("SIGPROF", "SIGALRM") and seconds is not None:
        subject = "the module" if option == "--pass-seconds" else "upstream's MLIR"
        message = f"{subject} took more than {seconds:g} s {doing} ({option})"
    elif ended.exhausted == "memory" or _OUT_OF_MEMORY.search(ended.output_tail):
        size = (limits.memory_bytes or 0) / 2**30
        message = f"upstream's MLIR took more than {size:.3g} GiB of memory {doing} (--memory-gib)"
    elif ended.exhausted == "stack":
        message = f"the module is nested too deep for MLIR's bindings, {doing}"
    elif ended.cause == "SIGKILL":
        message = f"upstream's MLIR was killed {doing}, as a system does that is out of memory"
    else:
        reason = _REASON.search(ended.output_tail)
        reason_text = f": {reason.group(1).strip()}" if reason else ""
        message = f"upstream's MLIR crashed {doing} ({ended.cause}{reason_text})"
    return CompilerError(f"{message}; {_reproduce(source, passes, reproducer)}", Place(source.file))


def _reproduce(
    source: Input, passes: Sequence[str], reproducer: str | os.PathLike[str] | None
) -> str:
    """Write a reproducer, and return how to replay it."""
    path = os.fspath(reproducer or "subquant.reproducer.mlir")
    options = f' --passes "{",".join(passes)}"' if passes else ""
    if source.path is not None and path != os.devnull:
        with open(source.path, "rb") as file:
            is_long = os.fstat(file.fileno()).st_size > _MAX_REPRODUCER_BYTES
        if is_long or os.path.realpath(path) == os.path.realpath(source.path):
            return f"replay with: subquant opt {source.path}{options}"
    if path == os.devnull:
        return f"replay with: subquant opt{options}"
    try:
        write_atomically(path, source.read())
    except OSError as error:
        return f"no reproducer was written to '{path}': {error.strerror}"
    return f"replay with: subquant opt {path}{options}"
