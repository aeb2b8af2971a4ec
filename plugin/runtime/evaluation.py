"""StableHLO's reference interpreter in a process of its own.

The interpreter ends its process where it meets what it does not know (``LLVM ERROR: dynamic result
types are not supported at the moment``), so it must not be the process of the caller. A child
evaluates one request after the other; a crash is an `UnsupportedError` with the interpreter's last
words, and the next request starts another child.

Requests and answers are pickled Python values, each after its length in 8 bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from .._mlir import (
    ir,
    passmanager,
    register_upstream_passes,
    stablehlo,
    translate_errors,
)
from ..dialects import create_context
from ..dialects.dense import array_of_dense, dense_of_array
from ..errors import UnsupportedError
from ..numerics.element_types import Array
from ..transforms.base import walk

__all__ = ["Request", "evaluate", "evaluate_apart", "serve"]

_ENTRY = "main"  # what the interpreter evaluates
_FAILED = "StableHLO's interpreter does not know an operation or type of the program"
_CHILD = (
    "import sys; sys.path.remove('')\n"  # not what lies in the current folder
    "from subquant.runtime.evaluation import serve\n"
    "serve(sys.stdin.buffer, sys.stdout.buffer)\n"
)


@dataclass(frozen=True)
class Request:
    """One evaluation.

    Args:
        text: the module, in operations that the interpreter knows.
        function: the function's name.
        arguments: arrays of storage.
        elements: the MLIR element type of each argument.
        is_dynamic: true if an argument has a shape that is not written in the module.
    """

    text: str
    function: str
    arguments: tuple[Array, ...]
    elements: tuple[str, ...]
    is_dynamic: bool


# -- here -----------------------------------------------------------------------------------------


def evaluate(request: Request) -> list[Array]:
    """Evaluate a request in this process, which may end.

    Raises:
        UnsupportedError: the interpreter does not know an operation or a type.
    """
    with create_context() as context, ir.Location.unknown():
        module = ir.Module.parse(request.text, context)
        _name_entry(module, request.function)
        dense = [
            _dense(array, ir.Type.parse(element))
            for array, element in zip(request.arguments, request.elements, strict=True)
        ]
        if request.is_dynamic:
            _refine(module, [attribute.type for attribute in dense])
        with translate_errors(UnsupportedError, _FAILED):
            try:
                results = stablehlo.eval_module(module, dense)
            except (RuntimeError, ValueError) as error:
                raise UnsupportedError(f"{_FAILED}: {error}") from None
        return [_array(result) for result in results]


def _name_entry(module: ir.Module, name: str) -> None:
    """Give the function the name that the interpreter evaluates, and its calls too."""
    renamed = {name: _ENTRY, _ENTRY: f"{_ENTRY}_of_the_program"} if name != _ENTRY else {}
    for op in walk(module.operation):
        for attribute in ("sym_name", "callee"):
            if attribute in op.attributes and op.name in ("func.func", "func.call"):
                old = op.attributes[attribute].value
                if old in renamed:
                    kind = ir.StringAttr if attribute == "sym_name" else ir.FlatSymbolRefAttr
                    op.attributes[attribute] = kind.get(renamed[old])


def _refine(module: ir.Module, types: Sequence[ir.Type]) -> None:
    """Give a program of dynamic shapes those of its arguments."""
    register_upstream_passes()
    given = ",".join(str(type_) for type_ in types)
    text = (
        f"builtin.module(stablehlo-refine-arguments{{types={given}}},stablehlo-refine-shapes,"
        "func.func(stablehlo-canonicalize-dynamism))"
    )
    with translate_errors(UnsupportedError, "the program cannot be given static shapes"):
        passmanager.PassManager.parse(text).run(module.operation)


def _dense(array: Array, element: ir.Type) -> ir.Attribute:
    if isinstance(element, ir.IntegerType) and element.width == 1:
        type_ = ir.RankedTensorType.get(list(array.shape), element)
        bits = [ir.BoolAttr.get(bool(bit)) for bit in array.reshape(-1)]
        return ir.DenseElementsAttr.get(bits, type_)
    return dense_of_array(np.asarray(array), element)


def _array(attribute: ir.Attribute) -> Array:
    type_ = attribute.type
    if str(type_.element_type) == "i1":
        return np.asarray(np.array(attribute), np.bool_).reshape(list(type_.shape))
    return array_of_dense(attribute).reshape(list(type_.shape))


# -- apart ----------------------------------------------------------------------------------------


def evaluate_apart(request: Request) -> list[Array]:
    """Evaluate a request in the child.

    Raises:
        UnsupportedError: as `evaluate`, or the child ended.
    """
    with _LOCK:
        answer = _CHILD_PROCESS.ask(request)
    if isinstance(answer, UnsupportedError):
        raise answer
    assert isinstance(answer, list)  # what `serve` sends otherwise
    return answer


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more; the main function of the child."""
    while (request := _receive(requests)) is not None:
        try:
            answer: Any = evaluate(request)
        except UnsupportedError as error:
            answer = (error.message, error.place, error.notes)
        _send(answers, answer)


class _Child:
    """The process, started when it is first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None

    def ask(self, request: Request) -> list[Array] | UnsupportedError:
        """Send a request, and return its results or what went wrong."""
        if self._process is None:
            self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            _send(self._process.stdin, request)
            answer = _receive(self._process.stdout)
        except BrokenPipeError:
            answer = None
        except BaseException:  # an interrupt: the next answer would not be the next request's
            self.close(kill=True)
            raise
        if answer is None:
            return self._crashed()
        if isinstance(answer, tuple):
            message, place, notes = answer
            return UnsupportedError(message, place, notes)
        results: list[Array] = answer
        return results

    def _crashed(self) -> UnsupportedError:
        assert self._process is not None and self._words is not None  # it was asked
        self._process.wait()
        self._words.seek(0)
        words = self._words.read().decode(errors="replace")
        self.close()
        reason = re.search(r"LLVM ERROR: (.*)", words)
        said = f": {reason.group(1).strip()}" if reason else ""
        return UnsupportedError(f"StableHLO's interpreter ended its process{said}")

    def close(self, kill: bool = False) -> None:
        """End the process: there are no more requests."""
        process, words = self._process, self._words
        self._process = self._words = None
        if process is None or words is None:
            return
        if kill:
            process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        process.wait()
        words.close()


_LOCK = threading.Lock()
_CHILD_PROCESS = _Child()
atexit.register(_CHILD_PROCESS.close)


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    size = stream.read(8)
    if len(size) < 8:
        return None
    data = stream.read(int.from_bytes(size, "little"))
    return pickle.loads(data)
