"""``subquant inspect``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from ..core.files import kind_of, open_input
from ..errors import CompilerError, InputError, Place, UsageError, expected_name, near_names, quoted
from ..isolation.client import ChildEnded, call, start_child
from ..isolation.limits import Limits
from .console import progress_on, read_model, reproducer_of, say, show_progress
from .shared_options import json_option, limit_options, plot_option

if TYPE_CHECKING:
    from ..compiler.inspected_tensors import InspectedTensor


@click.command("inspect")
@click.argument("file")
@click.option(
    "--scales", "tensor", metavar="NAME", help="Plot the scales of one tensor, by name or number."
)
@plot_option("scales of --scales")
@json_option("the result")
@limit_options
def command(file: str, tensor: str | None, plot: str | None, as_json: bool, **limits: Any) -> None:
    """List the quantized tensors of FILE with their types, scales and sizes.

    FILE is a module (.mlir), a model (.tflite, .onnx), an executable (.vmfb), or weights: .gguf,
    .irpa, .safetensors, or a folder of safetensors with a config.json.

    \b
    subquant inspect examples/two_layer.mlir
    subquant inspect model.mlir --scales %w
    subquant inspect model.tflite
    subquant inspect model.vmfb
    subquant inspect model.gguf
    subquant inspect checkpoint/
    """
    if plot is not None and tensor is None:
        raise UsageError("--plot needs --scales NAME")
    if as_json and tensor is not None:
        raise UsageError("--json lists all tensors, and does not take --scales")
    from ..formats.kinds import weights_format

    if file != "-" and weights_format(file) is not None:
        if tensor is not None:
            raise UsageError("--scales shows tensors of .mlir files only")
        _inspect_weights(file, as_json)
        return
    if file.endswith(".vmfb"):
        _inspect_executable(file, as_json)
        return
    start_child()
    kind = _model_kind(file)
    if kind is not None:
        if tensor is not None:
            raise UsageError("--scales shows tensors of .mlir files only")
        _inspect_model(file, kind, as_json, Limits(**limits))
    else:
        _inspect_module(file, tensor, plot, as_json, Limits(**limits))


def _model_kind(path: str) -> str | None:
    """Return ``tflite`` or ``onnx`` for these models, and None for any other file."""
    if path == "-":
        return None
    try:
        with open_input(path) as file:
            kind = kind_of(file.read(8))
    except (InputError, OSError):
        return None  # the reader reports the error
    if path.lower().endswith(".onnx"):
        return "onnx"
    return kind if kind in ("tflite", "onnx") else None


def _inspect_model(path: str, kind: str, as_json: bool, limits: Limits) -> None:
    """List the operators of a model, and report unsupported ones."""
    arguments = {"file": path, "path": path, "kind": kind}
    with show_progress(f"inspect {path}") as progress:
        try:
            model, _ = call(
                "subquant.compiler.mlir_child:describe_model",
                arguments,
                steps=progress,
                limits=limits,
            )
        except ChildEnded as ended:
            raise CompilerError(
                f"the process that inspected the model ended ({ended.cause})", Place(path)
            ) from None
    if as_json:
        click.echo(json.dumps(model, indent=2))
        return
    from rich.console import Console

    from .tables import render_model

    Console().print(render_model(model))
    refused = [
        f"operator {operator['index']} ({operator['name']}) {operator['refused']}"
        for graph in model["graphs"]
        for operator in graph["operators"]
        if operator["refused"]
    ]
    if model.get("refused"):
        refused.append(f"the model: {model['refused']}")
    for line in refused:
        say(f"would be refused: {line}")


def _inspect_module(
    file: str, name: str | None, plot: str | None, as_json: bool, limits: Limits
) -> None:
    """List the quantized tensors of a module, or plot the scales of one."""
    from ..compiler import inspected_tensors, mlir_client

    with progress_on("inspect", file) as progress:
        tensors = mlir_client.inspect(
            read_model(file), reproducer=reproducer_of(file), progress=progress, limits=limits
        )
    if name is not None:
        _show_scales(_choose(tensors, name), plot)
    elif as_json:
        click.echo(json.dumps(inspected_tensors.to_json(tensors), indent=2))
    elif not tensors:
        say("nothing is quantized")
    else:
        from rich.console import Console

        from .tables import render_table

        Console().print(render_table(tensors))


def _show_scales(tensor: InspectedTensor, plot: str | None) -> None:
    from rich.console import Console

    from . import plots, scale_plots

    if plot is None:
        Console().print(scale_plots.render_scales(tensor))
        return
    plots.write_plot(plot, lambda: scale_plots.scales_figure(tensor))
    say(f"wrote {plot}", err=True)


def _choose(tensors: list[InspectedTensor], name: str) -> InspectedTensor:
    if re.fullmatch(r"[0-9]{1,9}", name) and int(name) < len(tensors):
        return tensors[int(name)]
    matches = [tensor for tensor in tensors if tensor.name in (name, f"%{name}")]
    if not matches:
        names = [tensor.name for tensor in tensors]
        hint = expected_name(name, near_names(name, names) or names[:20])
        raise UsageError(f"no quantized tensor is named {quoted(name)}; {hint}")
    return matches[0]


def _inspect_weights(path: str, as_json: bool) -> None:
    """List the properties and tensors of weights, without unpacking tensors."""
    from rich.console import Console

    from ..weights import inspection, open_weights
    from .tables import render_weights

    with show_progress(f"open {path}"):
        dataset = open_weights(path)
    if as_json:
        click.echo(json.dumps(inspection.to_json(dataset), indent=2))
        return
    properties = inspection.property_lines(dataset.properties)
    for line in properties:
        say(line)
    if properties:
        click.echo()
    Console().print(render_weights(dataset))


def _inspect_executable(path: str, as_json: bool) -> None:
    """List the functions of an executable, without loading it on a device."""
    from ..runtime.descriptions import describe_executable

    functions = describe_executable(path)
    if as_json:
        click.echo(json.dumps(functions, indent=2))
        return
    for name, described in functions.items():
        say(name)
        for label, values in (("argument", described["inputs"]), ("result", described["outputs"])):
            for number, value in enumerate(values):
                say(f"  {label} {number}: {value}")
