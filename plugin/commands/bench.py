"""``subquant bench``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from ..compiler.options import CompileOptions
from ..processes import prepare
from .compile import compile_model
from .console import say, show_progress, source_of
from .options import (
    compile_options,
    limit_options,
    make_compile_options,
    parse_parameters,
    pop_limits,
    threads_option,
)

if TYPE_CHECKING:
    from ..runtime import Executable
    from ..runtime.timing import Times
    from ..signature import Signature
    from .calls import Call

__all__ = ["command"]


@click.command("bench")
@click.argument("model")
@click.option(
    "--device",
    default=None,
    metavar="DEVICE",
    help="llvm-cpu, vulkan, or an IREE device URI.  [default: the target's]",
)
@threads_option
@click.option(
    "--function",
    metavar="NAME",
    help="The function to call.  [default: main, or the only one]",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="VALUE",
    help="An argument, as of run: @file.npy or 2x3xi8=1,2,...; drawn if there are none.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of drawn arguments.")
@click.option(
    "--parameters",
    multiple=True,
    metavar="SCOPE=FILE",
    help="Parameters of the module, as an .irpa file.",
)
@click.option(
    "--seconds",
    type=float,
    default=1.0,
    show_default=True,
    help="For how long to call it.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="How often to call it, in place of --seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the machine's description.")
@compile_options
@limit_options
def command(
    model: str,
    device: str | None,
    threads: int | None,
    function: str | None,
    inputs: tuple[str, ...],
    seed: int,
    parameters: tuple[str, ...],
    seconds: float,
    repeat: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a function of MODEL, or of an executable (.vmfb), with resident arrays.

    Arguments and results stay in the device's memory: what is timed is the call, without copies.

    \b
    subquant bench model.mlir --threads 1
    subquant bench model.vmfb --function main --input @x.npy --repeat 100
    subquant bench model.tflite --json
    """
    from ..runtime import Device, Executable
    from ..runtime.timing import check_duration
    from .calls import Call

    check_duration(seconds, repeat)
    limits = pop_limits(options)
    call = Call(
        function, inputs, (), (), 0, 0, quantized_io=False, as_stream=False, as_json=as_json
    )
    found: dict[str, Any] = {}
    choices = {declared.name: options.pop(declared.name) for declared in fields(CompileOptions)}
    where = Device(device or choices["target"], threads=threads)
    source: Any = model
    if not model.endswith(".vmfb"):
        prepare()
        if choices["target"] == "vulkan" and choices["vulkan_target"] in (None, "auto"):
            choices["vulkan_target"] = where.vulkan_target

        def check(signatures: Mapping[str, Signature]) -> None:
            call.check(signatures) if inputs else call.name_among(signatures)

        started = time.perf_counter()
        source = compile_model(
            model,
            make_compile_options(**choices),
            source=source_of(model),
            limits=limits,
            check=check,
        )
        found |= {"compile_seconds": round(time.perf_counter() - started, 3), "bytes": len(source)}
    executable = Executable(source, where, parse_parameters(parameters))
    name, times = _timed(executable, call, seed, seconds, repeat)
    found = {
        "function": name,
        "device": where.name,
        "threads": threads,
        "milliseconds": times.to_json(),
    } | found
    if as_json:
        from ..runtime.machine import describe_machine

        click.echo(json.dumps(found | {"machine": describe_machine()}, indent=2))
    else:
        _show(found)


def _timed(
    executable: Executable, call: Call, seed: int, seconds: float, repeat: int | None
) -> tuple[str, Times]:
    """The name of the function, and the times of its calls."""
    from ..runtime.timing import Times, draw_arguments, time_calls

    signatures = {name: each.signature for name, each in executable.functions.items()}
    name = call.check(signatures) if call.inputs else call.name_among(signatures)
    function, signature = executable[name], signatures[name]
    if call.inputs or signature is None:
        arguments = call.arranged(signature)
    else:
        arguments = draw_arguments(signature, seed)
    placed = [function.put(number, array) for number, array in enumerate(arguments)]
    with show_progress(f"time {name}"):
        nanoseconds = time_calls(
            lambda number: function.invoke(placed, resident=True), seconds=seconds, repeat=repeat
        )
    return name, Times.of(nanoseconds)


def _show(found: Mapping[str, Any]) -> None:
    times = found["milliseconds"]
    if "bytes" in found:
        say(f"compiled in {found['compile_seconds']:.2f} s, {found['bytes']:,} bytes", err=True)
    say(
        f"{found['function']}: minimum {_shown(times['minimum'])}, median "
        f"{_shown(times['median'])} ({_shown(times['lower_quartile'])} to "
        f"{_shown(times['upper_quartile'])}), {times['count']:,} calls"
    )


def _shown(milliseconds: float) -> str:
    """A time with three digits: ``12.3 us``."""
    value, unit = (1e3 * milliseconds, "us") if milliseconds < 1 else (milliseconds, "ms")
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
