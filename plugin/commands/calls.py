"""A call of a function, as ``subquant run`` and ``subquant exec`` make it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import click

from ..errors import InputError, UsageError, counted, expected_name, quoted
from ..numerics.element_types import Array
from ..signature import Signature
from .arrays import difference, format_array, literal_of, parse_input, split_name, to_npy
from .console import say, show_progress, write_output

if TYPE_CHECKING:
    from ..interpreter.interpreted_module import InterpretedModule
    from ..runtime import Executable
    from ..runtime.streaming import Invocable

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """A call of a function with what is wanted of its results: the values of `run_options`."""

    function: str | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    expected: tuple[str, ...]
    atol: float
    rtol: float
    quantized_io: bool
    as_stream: bool
    as_json: bool

    def __post_init__(self) -> None:
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not value >= 0:
                raise UsageError(f"--{name} must be 0 or more, got {value}")

    def run(
        self, executable: Executable | InterpretedModule, *, beside: InterpretedModule | None = None
    ) -> None:
        """Call the function, and check, write and show its results.

        Args:
            executable: where the function is.
            beside: the same module for StableHLO's interpreter, to compare the results with.

        Raises:
            SubquantError: a wrong argument or option, a failed run, or results that differ.
        """
        name = self.check({n: function.signature for n, function in executable.functions.items()})
        function = executable[name]
        arguments, wanted, files = self.arranged(function.signature), self._wanted, self._files
        count = len(function.signature.outputs) if function.signature else len(files)
        with show_progress(f"run {name}") as progress:
            results = self._invoke(function, arguments, progress)
        for number, (result, value) in enumerate(zip(results, wanted, strict=False)):
            reason = difference(result, value, atol=self.atol, rtol=self.rtol)
            if reason is not None:
                raise InputError(f"result {number} of '{name}' is not what --expect says: {reason}")
        for file, result in zip(files, results, strict=False):
            if file is not None:
                write_output(file, to_npy(result))
        if self.as_json:
            click.echo(_results_as_json(name, results))
        else:
            for number, result in enumerate(results):
                if number >= len(files) or files[number] is None:
                    say(f"result[{number}]: {format_array(result)}")
        if wanted:
            say(f"{len(wanted)} of {count} results are as expected", err=True)
        if beside is not None:
            with show_progress(f"interpret {name}") as progress:
                others = self._invoke(beside[name], arguments, progress)
            _compare_with_interpreter(results, others, self.atol, self.rtol)

    def check(self, signatures: Mapping[str, Signature | None]) -> str:
        """Check what is called with what, before it is, and before it is compiled.

        Args:
            signatures: of the functions there are, by name.

        Returns:
            The name of the function to call.

        Raises:
            SubquantError: a wrong argument or option.
        """
        name = self.name_among(signatures)
        signature = signatures[name]
        arguments, wanted, files = self.arranged(signature), self._wanted, self._files
        if signature is None:
            return name
        count = len(signature.outputs)
        if len(files) > count or len(wanted) > count:
            given = max(len(files), len(wanted))
            raise UsageError(
                f"function '{name}' has {counted(count, 'result')}, got {given} "
                f"{'--output' if len(files) > count else '--expect'} options"
            )
        inputs = signature.inputs
        if self.as_stream and len(arguments) == len(inputs):
            arguments = [
                array[0] if len(array.shape) == len(type_.shape or ()) + 1 and len(array) else array
                for array, type_ in zip(arguments, inputs, strict=True)
            ]
        from ..runtime.arguments import check_arguments

        check_arguments(
            arguments,
            inputs,
            name,
            quantized_io=self.quantized_io,
            conversion=lambda type_, dtype: (
                f"give it as {literal_of(type_)}, or as @file.npy of {dtype}"
            ),
        )
        return name

    @cached_property
    def _arguments(self) -> list[tuple[str, Array]]:
        """The names and values that are given; "" for a value without a name."""
        named = [split_name(text) for text in self.inputs]
        return [(name, parse_input(text)) for name, text in named]

    def arranged(self, signature: Signature | None) -> list[Array]:
        """Return the values in the order of a function's arguments: named ones at their places.

        Raises:
            SubquantError: a value cannot be read, or a name is wrong.
        """
        inputs = signature.inputs if signature is not None else ()
        places = {type_.name: place for place, type_ in enumerate(inputs) if type_.name}
        arranged: dict[int, Array] = {}
        for name, array in self._arguments:
            if name and name not in places:
                what = expected_name(name, places) if places else "arguments have no names here"
                raise UsageError(f"no argument is named {quoted(name)}; {what}")
            if name and places[name] in arranged:
                raise UsageError(f"argument {quoted(name)} is given twice")
            if name:
                arranged[places[name]] = array
        free = iter(n for n in itertools.count() if n not in arranged)
        for name, array in self._arguments:
            if not name:
                arranged[next(free)] = array
        missing = [n for n in range(max(arranged, default=-1) + 1) if n not in arranged]
        if missing:
            raise UsageError(f"argument {quoted(inputs[missing[0]].name)} is missing")
        return [arranged[place] for place in sorted(arranged)]

    @cached_property
    def _wanted(self) -> list[Array]:
        return [parse_input(text) for text in self.expected]

    @cached_property
    def _files(self) -> list[str | None]:
        return [_output_file(text) for text in self.outputs]

    def name_among(self, functions: Mapping[str, object]) -> str:
        """Return the name of the function to call; UsageError if that is none of these."""
        name = self.function or ("main" if "main" in functions else None)
        if name is None and len(functions) == 1:
            name = next(iter(functions))
        if name is None:
            raise UsageError(f"which function? give --function, one of: {', '.join(functions)}")
        if name not in functions:
            raise UsageError(
                f"no function is named {quoted(name)}; {expected_name(name, functions)}"
            )
        return name

    def _invoke(
        self,
        function: Invocable,
        arguments: Sequence[Array],
        progress: Callable[[str], None],
    ) -> list[Array]:
        if not self.as_stream:
            return function.invoke(arguments, quantized_io=self.quantized_io)
        from ..runtime.streaming import stream

        def on_step(step: int, count: int) -> None:
            progress(f"step {step + 1} of {count}")

        return stream(function, arguments, quantized_io=self.quantized_io, on_step=on_step)


def _compare_with_interpreter(
    results: list[Array], others: list[Array], atol: float, rtol: float
) -> None:
    """Say of each result whether the interpreter has the same; fail if one has not."""
    differ = []
    for number, (result, other) in enumerate(zip(results, others, strict=True)):
        reason = difference(result, other, atol=atol, rtol=rtol)
        if reason is None:
            say(f"interpreter[{number}]: the same", err=True)
        else:
            differ.append(number)
            say(f"interpreter[{number}]: {format_array(other)}")
            say(f"interpreter[{number}]: differs: {reason}", err=True)
    if differ:
        which = ", ".join(str(number) for number in differ)
        raise InputError(
            f"result {which} is not what StableHLO's interpreter gives; for floats, whose sums "
            "may be reordered, give --rtol or --atol"
        )


def _json_lists(array: Array) -> object:
    """An array as JSON lists; floats that JSON does not know become text."""
    if array.dtype.kind in "iub":
        return array.tolist()
    wide = array.astype("f8")
    if not (abs(wide) < float("inf")).all():
        return [str(value) for value in wide.reshape(-1)]
    return wide.tolist()


def _output_file(text: str) -> str | None:
    if text == "-":
        return None
    if not text.startswith("@") or len(text) < 2:
        meant = f"; did you mean {quoted('@' + text)}?" if text.endswith(".npy") else ""
        raise UsageError(f"expected @file.npy or - for --output, got {quoted(text)}{meant}")
    return text[1:]


def _results_as_json(name: str, results: list[Array]) -> str:
    values = [
        {"shape": list(r.shape), "dtype": str(r.dtype), "data": _json_lists(r)} for r in results
    ]
    return json.dumps({"function": name, "results": values})
