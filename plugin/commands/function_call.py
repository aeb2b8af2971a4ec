"""The function call of ``subquant run`` and ``subquant exec``: arguments, results, checks."""

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
from .shared_options import CallOptions

if TYPE_CHECKING:
    from ..interpreter.interpreted_module import InterpretedModule
    from ..runtime import Executable
    from ..runtime.streaming import Invocable


@dataclass(frozen=True)
class Call(CallOptions):
    """A function call with its expected results and output files."""

    as_json: bool = False

    def run(
        self,
        executable: Executable | InterpretedModule,
        *,
        reference: InterpretedModule | None = None,
    ) -> None:
        """Call the function, and check, write and show its results.

        Args:
            executable: the executable with the function.
            reference: the same module for StableHLO's interpreter, to compare the results with.

        Raises:
            SubquantError: a wrong argument or option, a failed run, or results that differ.
        """
        name = self.check({n: function.signature for n, function in executable.functions.items()})
        function = executable[name]
        arguments = self.ordered_arguments(function.signature)
        expected, files = self._expected_arrays, self._files
        count = len(function.signature.outputs) if function.signature else len(files)
        with show_progress(f"run {name}") as progress:
            results = self._invoke(function, arguments, progress)
        for number, (result, value) in enumerate(zip(results, expected, strict=False)):
            reason = difference(result, value, atol=self.atol, rtol=self.rtol)
            if reason is not None:
                raise InputError(f"result {number} of '{name}' differs from --expect: {reason}")
        for file, result in zip(files, results, strict=False):
            if file is not None:
                write_output(file, to_npy(result))
        if self.as_json:
            values = [
                {"shape": list(r.shape), "dtype": str(r.dtype), "data": _json_lists(r)}
                for r in results
            ]
            click.echo(json.dumps({"function": name, "results": values}))
        else:
            for number, result in enumerate(results):
                if number >= len(files) or files[number] is None:
                    say(f"result[{number}]: {format_array(result)}")
        if expected:
            say(f"{len(expected)} of {count} results are as expected", err=True)
        if reference is not None:
            with show_progress(f"interpret {name}") as progress:
                interpreted = self._invoke(reference[name], arguments, progress)
            _compare_with_interpreter(results, interpreted, self.atol, self.rtol)

    def check(self, signatures: Mapping[str, Signature | None]) -> str:
        """Check function name, arguments and options before the compilation and the call.

        Returns:
            The name of the function to call.

        Raises:
            SubquantError: a wrong argument or option.
        """
        name = self.choose(signatures)
        signature = signatures[name]
        arguments = self.ordered_arguments(signature)
        expected, files = self._expected_arrays, self._files
        if signature is None:
            return name
        count = len(signature.outputs)
        if len(files) > count or len(expected) > count:
            raise UsageError(
                f"function '{name}' has {counted(count, 'result')}, got "
                f"{max(len(files), len(expected))} "
                f"{'--output' if len(files) > count else '--expect'} options"
            )
        inputs = signature.inputs
        if self.stream and len(arguments) == len(inputs):
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
                f"pass it as {literal_of(type_)}, or as @file.npy of {dtype}"
            ),
        )
        return name

    @cached_property
    def _arguments(self) -> list[tuple[str, Array]]:
        """The names and values of --input; "" for a value without a name."""
        return [(name, parse_input(text)) for name, text in map(split_name, self.inputs)]

    def ordered_arguments(self, signature: Signature | None) -> list[Array]:
        """Return the values of --input in the order of the function's arguments.

        A named value goes to its argument; the others fill the rest in order.

        Raises:
            SubquantError: a value cannot be read, or a name is wrong.
        """
        inputs = signature.inputs if signature is not None else ()
        positions = {type_.name: index for index, type_ in enumerate(inputs) if type_.name}
        arrays: dict[int, Array] = {}
        for name, array in self._arguments:
            if not name:
                continue
            if name not in positions:
                hint = (
                    expected_name(name, positions)
                    if positions
                    else "the arguments have no names, pass them in order: --input @x.npy"
                )
                raise UsageError(f"no argument is named {quoted(name)}; {hint}")
            if positions[name] in arrays:
                raise UsageError(f"argument {quoted(name)} is passed twice")
            arrays[positions[name]] = array
        free = iter(n for n in itertools.count() if n not in arrays)
        for name, array in self._arguments:
            if not name:
                arrays[next(free)] = array
        missing = [n for n in range(max(arrays, default=-1) + 1) if n not in arrays]
        if missing:
            raise UsageError(f"argument {quoted(inputs[missing[0]].name)} is missing")
        return [arrays[index] for index in sorted(arrays)]

    @cached_property
    def _expected_arrays(self) -> list[Array]:
        return [parse_input(text) for text in self.expect]

    @cached_property
    def _files(self) -> list[str | None]:
        return [_output_file(text) for text in self.outputs]

    def choose(self, functions: Mapping[str, object]) -> str:
        """Return the name of the function to call; UsageError if there is none of that name."""
        name = self.function or ("main" if "main" in functions else None)
        if name is None and len(functions) == 1:
            name = next(iter(functions))
        if name is None:
            names = ", ".join(functions)
            raise UsageError(
                f"several functions, and none is main; choose with --function: {names}"
            )
        if name not in functions:
            raise UsageError(
                f"no function is named {quoted(name)}; {expected_name(name, functions)}"
            )
        return name

    def _invoke(
        self, function: Invocable, arguments: Sequence[Array], progress: Callable[[str], None]
    ) -> list[Array]:
        if not self.stream:
            return function.invoke(arguments, quantized_io=self.quantized_io)
        from ..runtime.streaming import stream

        def on_step(step: int, count: int) -> None:
            progress(f"step {step + 1} of {count}")

        return stream(function, arguments, quantized_io=self.quantized_io, on_step=on_step)


def _compare_with_interpreter(
    results: list[Array], interpreted: list[Array], atol: float, rtol: float
) -> None:
    """Report for each result whether the interpreter agrees; fail if one differs."""
    differ = []
    for number, (result, reference) in enumerate(zip(results, interpreted, strict=True)):
        reason = difference(result, reference, atol=atol, rtol=rtol)
        if reason is None:
            say(f"interpreter[{number}]: the same", err=True)
        else:
            differ.append(number)
            say(f"interpreter[{number}]: {format_array(reference)}")
            say(f"interpreter[{number}]: differs: {reason}", err=True)
    if differ:
        raise InputError(
            f"result {', '.join(map(str, differ))} differs from StableHLO's interpreter; for "
            "floats, whose additions may be reordered, set --rtol or --atol"
        )


def _json_lists(array: Array) -> object:
    """Return an array as JSON lists; infinities and NaN, which JSON lacks, become text."""
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
        hint = f"; did you mean {quoted('@' + text)}?" if text.endswith(".npy") else ""
        raise UsageError(f"expected @file.npy or - for --output, got {quoted(text)}{hint}")
    return text[1:]
