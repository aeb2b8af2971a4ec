"""``subquant bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import click

from ..compiler.compile_options import CompileOptions
from ..errors import Remark, SubquantError, counted
from ..isolation.client import start_child
from .benching import Bench, bench_on_cluster
from .console import reproducer_of, say, show_progress, shown_name, source_of
from .options import (
    compile_options,
    limit_options,
    make_compile_options,
    parse_parameters,
    pop_limits,
    threads_option,
)

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
@click.option("--seed", type=click.IntRange(0), default=0, metavar="N", help="Of drawn arguments.")
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
    metavar="SECONDS",
    help="For how long to call it.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="How often to call it, in place of --seconds.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compile and time it on a worker of this Dask scheduler (tcp://HOST:PORT), for that "
    "worker's CPU or device.",
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
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a function of MODEL, or of an executable (.vmfb), with resident arrays.

    Arguments and results stay in the device's memory: what is timed is the call, without copies.

    \b
    subquant bench model.mlir --threads 1
    subquant bench model.vmfb --function main --input @x.npy --repeat 100
    subquant bench model.tflite --json
    subquant bench model.onnx --cluster tcp://scheduler:8786
    """
    from ..runtime.timing import check_duration

    check_duration(seconds, repeat)
    limits = pop_limits(options)
    choices = {declared.name: options.pop(declared.name) for declared in fields(CompileOptions)}
    is_for_device = choices["target"] == "vulkan" and choices["vulkan_target"] in (None, "auto")
    if is_for_device:
        choices["vulkan_target"] = None
    bench = Bench(
        model,
        device or choices["target"],
        threads,
        function,
        inputs,
        seed,
        parse_parameters(parameters),
        seconds,
        repeat,
        asdict(make_compile_options(**choices)),
        is_for_device,
        asdict(limits),
    )

    def on_remark(remark: Remark) -> None:
        say(str(remark.in_file(shown_name(model))), err=True)

    reproducer = reproducer_of(model)
    with show_progress(f"bench {model}") as progress:
        try:
            if cluster is not None:
                found = bench_on_cluster(bench, cluster, reproducer, progress, on_remark)
            elif bench.is_executable:
                found = bench.run(model, reproducer, progress, on_remark)
            else:
                start_child()
                found = bench.run(source_of(model), reproducer, progress, on_remark)
        except SubquantError as error:
            raise error.in_file(shown_name(model)) from None
    if as_json:
        from ..runtime.machine import describe_machine

        machine = found.pop("machine", None) or describe_machine()
        click.echo(json.dumps(found | {"machine": machine}, indent=2))
    else:
        _show(found)


def _show(found: Mapping[str, Any]) -> None:
    times = found["milliseconds"]
    if "bytes" in found:
        say(f"compiled in {found['compile_seconds']:.2f} s, {found['bytes']:,} bytes", err=True)
    say(
        f"{found['function']}: minimum {_shown(times['minimum'])}, median "
        f"{_shown(times['median'])} ({_shown(times['lower_quartile'])} to "
        f"{_shown(times['upper_quartile'])}), {counted(times['count'], 'call')}"
        + (f", on {found['worker']}" if "worker" in found else "")
    )


def _shown(milliseconds: float) -> str:
    """A time with three digits: ``12.3 us``."""
    value, unit = (1e3 * milliseconds, "us") if milliseconds < 1 else (milliseconds, "ms")
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
