"""``subquant compare``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import SubquantError, counted
from ..isolation.client import start_child
from .console import read_model, say, show_progress, shown_name, write_output
from .options import (
    compile_options,
    device_option,
    drawn_input_option,
    limit_options,
    make_compile_options,
    plot_option,
    pop_compile_options,
    pop_limits,
    seed_option,
)

if TYPE_CHECKING:
    from ..numerics.element_types import Array

__all__ = ["command"]


@click.command("compare")
@click.argument("model")
@click.option(
    "--against",
    type=click.Choice(("litert", "onnxruntime", "float")),
    default=None,
    help="The reference: LiteRT's reference kernels, ONNX Runtime without optimizations, or the "
    "model in float arithmetic.  [default: the model's own runtime]",
)
@device_option(further="numpy, ")
@drawn_input_option
@click.option(
    "--calls",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="Number of calls with random arguments.",
)
@seed_option
@plot_option("SQNR of the layers")
@click.option(
    "--model-explorer",
    default=None,
    metavar="FILE",
    help="Write the SQNR as node data for Model Explorer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@compile_options
@limit_options
def command(
    model: str,
    against: Any,
    device: str | None,
    inputs: tuple[str, ...],
    calls: int,
    seed: int,
    plot: str | None,
    model_explorer: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare MODEL (.tflite, .onnx) with a reference, layer by layer.

    \b
    subquant compare model.tflite                      compare each value with LiteRT's
    subquant compare model.tflite --against float      find the layers that lose precision
    subquant compare model.tflite --input @x.npy --json
    """
    start_child()
    from ..comparison.compared_models import compare_layers, model_of
    from ..comparison.layers import to_json, to_model_explorer
    from ..runtime import Device
    from . import plots

    limits = pop_limits(options)
    if plot is not None:
        plots.check_plot(plot)
    data = read_model(model)
    choices = pop_compile_options(options)
    where = None if device == "numpy" else Device(device or choices["target"])
    if where is not None and where.is_vulkan:
        choices["target"] = "vulkan"
        if choices["vulkan_target"] in (None, "auto"):
            choices["vulkan_target"] = where.vulkan_target
    arguments = [_arguments(inputs)] if inputs else calls
    with show_progress(f"compare {model}") as progress:
        try:
            chosen = make_compile_options(**choices)
            read = model_of(data, shown_name(model), chosen.import_options)
            layers = compare_layers(
                read,
                arguments,
                against,
                chosen,
                where,
                seed=seed,
                limits=limits,
                progress=progress,
                on_remark=lambda remark: say(str(remark.in_file(shown_name(model))), err=True),
            )
        except SubquantError as error:
            raise error.in_file(shown_name(model)) from None
    if model_explorer is not None:
        write_output(model_explorer, json.dumps(to_model_explorer(layers), indent=2).encode())
        say(f"wrote {model_explorer}", err=True)
    if plot is not None:
        plots.write_plot(plot, lambda: plots.layers_figure(layers, against or read.references[0]))
        say(f"wrote {plot}", err=True)
    if as_json:
        click.echo(json.dumps(to_json(layers), indent=2))
        return
    from rich.console import Console

    console = Console()
    console.print(plots.render_layers(layers, console.width))
    what = "within half a step" if against == "float" else "equal"
    elements, equal = (
        sum(getattr(each, name) for each in layers) for name in ("elements", "equal")
    )
    say(
        f"{equal:,} of {elements:,} values are {what}, in {counted(len(layers), 'tensor')}",
        err=True,
    )


def _arguments(inputs: Sequence[str]) -> list[Array]:
    from .arrays import parse_input

    return [parse_input(text) for text in inputs]
