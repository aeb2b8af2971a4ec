"""``subquant bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from ..compiler.compile_options import CompileOptions
from ..errors import counted
from ..isolation.client import start_child
from ..isolation.limits import Limits
from . import shared_options as shared
from .bench_task import Bench, bench_on_cluster
from .console import progress_on, remark_printer, reproducer_of, say, source_of


@click.command("bench")
@click.argument("model")
@shared.device_option()
@shared.threads_option
@shared.function_option
@shared.drawn_input_option
@shared.seed_option
@shared.parameters_option
@click.option(
    "--seconds",
    type=float,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Duration of the measurement.",
)
@click.option(
    "--repeat", type=click.IntRange(1), metavar="N", help="Number of calls, in place of --seconds."
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compile and time on a worker of this Dask scheduler (tcp://HOST:PORT), for that worker's "
    "CPU or device.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the machine's description.")
@shared.compile_options
@shared.limit_options
def command(
    model: str,
    device: str | None,
    parameters: tuple[str, ...],
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a function of MODEL or of an executable (.vmfb), without copies of arrays.

    Arguments and results stay in the device's memory, so that only the call is timed.

    \b
    subquant bench model.mlir --threads 1
    subquant bench model.vmfb --function main --input @x.npy --repeat 100
    subquant bench model.tflite --json
    subquant bench model.onnx --cluster tcp://scheduler:8786
    """
    from ..runtime.timing import check_duration

    check_duration(options["seconds"], options["repeat"])
    limits = Limits(**shared.pop_values(Limits, options))
    choices = shared.pop_values(CompileOptions, options)
    is_for_device = shared.chooses_device(choices)
    if is_for_device:
        choices["vulkan_target"] = None
    bench = Bench(
        model=model,
        device=device or choices["target"],
        parameters=shared.parse_parameters(parameters),
        options=asdict(shared.make_compile_options(**choices)),
        is_for_device=is_for_device,
        limits=asdict(limits),
        **options,
    )
    reproducer, on_remark = reproducer_of(model), remark_printer(model)
    with progress_on("bench", model) as progress:
        if cluster is not None:
            result = bench_on_cluster(bench, cluster, reproducer, progress, on_remark)
        elif bench.is_executable:
            result = bench.run(model, reproducer, progress, on_remark)
        else:
            start_child()
            result = bench.run(source_of(model), reproducer, progress, on_remark)
    if as_json:
        from ..runtime.machine import describe_machine

        machine = result.pop("machine", None) or describe_machine()
        click.echo(json.dumps(result | {"machine": machine}, indent=2))
    else:
        _print_times(result)


def _print_times(result: Mapping[str, Any]) -> None:
    times = result["milliseconds"]
    if "bytes" in result:
        say(f"compiled in {result['compile_seconds']:.2f} s, {result['bytes']:,} bytes", err=True)
    say(
        f"{result['function']}: minimum {_duration_text(times['minimum'])}, median "
        f"{_duration_text(times['median'])} ({_duration_text(times['lower_quartile'])} to "
        f"{_duration_text(times['upper_quartile'])}), {counted(times['count'], 'call')}"
        + (f", on {result['worker']}" if "worker" in result else "")
    )


def _duration_text(milliseconds: float) -> str:
    """Return a duration with three digits: ``12.3 us``."""
    value, unit = (1e3 * milliseconds, "us") if milliseconds < 1 else (milliseconds, "ms")
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
