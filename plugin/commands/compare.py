"""``subquant compare``."""

from __future__ import annotations

import json
from typing import Any

import click

from ..compiler.compile_options import CompileOptions
from ..errors import counted
from ..isolation.client import start_child
from ..isolation.limits import Limits
from . import shared_options as shared
from .console import progress_on, read_model, remark_printer, say, shown_name, write_output


@click.command("compare")
@click.argument("model")
@click.option(
    "--against",
    type=click.Choice(("litert", "onnxruntime", "float")),
    help="The reference: LiteRT's reference kernels, ONNX Runtime without optimizations, or the "
    "model in float arithmetic.  [default: the model's own runtime]",
)
@shared.device_option(further="numpy, ")
@shared.drawn_input_option
@click.option(
    "--calls",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="Number of calls with random arguments.",
)
@shared.seed_option
@shared.plot_option("SQNR of the layers")
@click.option(
    "--model-explorer", metavar="FILE", help="Write the SQNR as node data for Model Explorer."
)
@shared.json_option("the layers")
@shared.compile_options
@shared.limit_options
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
    from ..comparison.compared_models import compare_layers, read_compared_model
    from ..comparison.layers import to_json, to_model_explorer
    from ..runtime import Device
    from . import plots
    from .arrays import parse_input

    limits = Limits(**shared.pop_values(Limits, options))
    choices = shared.pop_values(CompileOptions, options)
    if plot is not None:
        plots.check_plot(plot)
    data = read_model(model)
    opened = None if device == "numpy" else Device(device or choices["target"])
    if opened is not None and opened.is_vulkan:
        choices["target"] = "vulkan"
        if shared.chooses_device(choices):
            choices["vulkan_target"] = opened.vulkan_target
    with progress_on("compare", model) as progress:
        chosen = shared.make_compile_options(**choices)
        compared = read_compared_model(data, shown_name(model), chosen.import_options)
        layers = compare_layers(
            compared,
            [[parse_input(text) for text in inputs]] if inputs else calls,
            against,
            chosen,
            opened,
            seed=seed,
            limits=limits,
            progress=progress,
            on_remark=remark_printer(model),
        )
    if model_explorer is not None:
        write_output(model_explorer, json.dumps(to_model_explorer(layers), indent=2).encode())
        say(f"wrote {model_explorer}", err=True)
    if plot is not None:
        reference = against or compared.references[0]
        plots.write_plot(plot, lambda: plots.layers_figure(layers, reference))
        say(f"wrote {plot}", err=True)
    if as_json:
        click.echo(json.dumps(to_json(layers), indent=2))
        return
    from rich.console import Console

    console = Console()
    console.print(plots.render_layers(layers, console.width))
    criterion = "within half a step" if against == "float" else "equal"
    equal, elements = sum(each.equal for each in layers), sum(each.elements for each in layers)
    tensors = counted(len(layers), "tensor")
    say(f"{equal:,} of {elements:,} values are {criterion}, in {tensors}", err=True)
