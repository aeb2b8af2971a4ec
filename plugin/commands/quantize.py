"""``subquant quantize``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..errors import counted
from ..weights.quantizing import WeightQuantization, quantize_weights
from ..weights.sources import check_output, default_output, open_with_tokenizer
from .console import say, show_progress
from .shared_options import archive_option, json_option, options_of, plot_option


@click.command("quantize")
@click.argument("source")
@archive_option("-qBITS.irpa")
@options_of(
    WeightQuantization,
    bits={"type": click.IntRange(2, 8)},
    block_size={"type": click.IntRange(min=1)},
)
@click.option("--select", default="", metavar="REGEX", help="Only tensors whose name matches.")
@plot_option("errors")
@json_option("the errors")
def command(
    source: str, output: str | None, select: str, plot: str | None, as_json: bool, **options: Any
) -> None:
    """Quantize the float weights of SOURCE and write them as IREE parameters.

    SOURCE is any source of subquant import. Tensors of rank 2 or more are rounded to nearest;
    others are copied. A table lists the quantization error of each tensor.

    \b
    subquant quantize checkpoint/ --bits 4 --scales mse -o model.irpa
    subquant generate --model model.irpa --prompt "The sea is"
    subquant quantize model.irpa --granularity axis --select attn --plot errors.svg
    """
    from rich.console import Console

    from . import plots

    quantization = WeightQuantization(**options)
    output = default_output(source, f"-q{quantization.bits}.irpa") if output is None else output
    check_output(source, output)
    if plot is not None:
        plots.check_plot(plot)
    with show_progress(f"quantize {source}") as progress:
        dataset, errors = quantize_weights(
            open_with_tokenizer(source),
            quantization,
            select,
            on_tensor=lambda number, count, name: progress(f"{number + 1} of {count}: {name}"),
        )
        dataset.save(output)
    if plot is not None:
        plots.write_plot(plot, lambda: plots.errors_figure(errors))
    size = Path(output).stat().st_size
    if as_json:
        listed = [{**vars(e), "signal_to_noise": min(e.signal_to_noise, 1e9)} for e in errors]
        click.echo(json.dumps({"output": output, "bytes": size, "tensors": listed}))
        return
    console = Console()
    console.print(plots.render_errors(errors, console.width))
    say(f"wrote {output} ({counted(len(errors), 'quantized tensor')}, {size:,} bytes)", err=True)
