"""``subquant compare``."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

from ..compiler.compile_options import CompileOptions
from ..errors import UsageError, counted
from ..isolation.client import start_child
from ..isolation.limits import Limits
from . import shared_options as shared
from .console import progress_on, read_model, remark_printer, say, shown_name, write_output


@click.command("compare")
@click.argument("model")
@click.argument("original", required=False)
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
@click.option(
    "--text",
    metavar="FILE",
    help="With ORIGINAL: a UTF-8 text that both models read, for errors of outputs, perplexities "
    "and the KL divergence; - reads it from standard input.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="With ORIGINAL: tokens of the text to use.",
)
@click.option(
    "--max-error",
    type=click.FloatRange(0),
    metavar="X",
    help="With ORIGINAL: fail if the relative error of a tensor is greater, or one is missing.",
)
@shared.json_option("the layers")
@shared.compile_options
@shared.limit_options
def command(
    model: str,
    original: str | None,
    against: Any,
    device: str | None,
    inputs: tuple[str, ...],
    calls: int,
    seed: int,
    plot: str | None,
    model_explorer: str | None,
    text: str | None,
    tokens: int,
    max_error: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare MODEL (.tflite, .onnx) with a reference, or weights with their ORIGINAL.

    With ORIGINAL, both are sources of weights (see subquant import). Each tensor of MODEL is
    compared with that of ORIGINAL, and the worst is listed first. A GGUF file can be compared with
    a checkpoint.

    \b
    subquant compare model.tflite                      compare each value with LiteRT's
    subquant compare model.tflite --against float      find the layers that lose precision
    subquant compare model.tflite --input @x.npy --json
    subquant compare model-q4.gguf model-f16.gguf      errors of weights
    subquant compare model-q4.gguf checkpoint/ --text page.txt --max-error 0.1
    """
    _check_options(has_original=original is not None)
    if original is not None:
        from .compare_weights import compare_with_original

        compare_with_original(model, original, text, tokens, max_error, plot, as_json=as_json)
        return
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


_SHARED = {"model", "original", "plot", "as_json"}
_WEIGHTS_ALONE = {"text", "tokens", "max_error"}
"""Options of a comparison with ORIGINAL, by their parameters."""


def _check_options(*, has_original: bool) -> None:
    """Refuse options of the other kind of comparison; UsageError."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _SHARED or not is_given or (name in _WEIGHTS_ALONE) == has_original:
            continue
        kind = "runtimes" if has_original else "weights with their ORIGINAL"
        raise UsageError(f"{option.opts[0]} is an option of comparisons of {kind}")
