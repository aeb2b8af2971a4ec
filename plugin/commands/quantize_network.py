"""``subquant quantize`` of a network: its steps, and its report."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError, counted, printable, shape_text
from .console import say, show_progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..calibration.networks.quantization import QuantizedNetwork
    from ..calibration.networks.report import LayerReport

NETWORK_SUFFIXES = (".onnx", ".tflite", ".pt2", ".mlir", ".mlirbc")
"""Names of files that are networks, not weights."""


def quantize_network_file(
    source: str,
    inputs: str | None,
    output: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Quantize a network, write it, and print the report; for `options` see `quantize_network`."""
    from ..calibration.networks.quantization import quantize_network

    is_static = options["activations"] == "static"
    if is_static and inputs is None:
        raise UsageError(
            "static activations need calibration inputs; give a folder by --inputs, or leave the "
            "activations in floats by --activations float"
        )
    if output is None:
        suffix = "int8" if is_static else f"w{options['bits']}"
        output = f"{Path(source).stem}-{suffix}.mlir"
    if not output.endswith(".mlir"):
        raise UsageError(f"the output of a network is a .mlir file, got '{output}'")
    if os.path.realpath(output) == os.path.realpath(source):
        raise UsageError(f"the output '{output}' is the network itself; give another with -o")
    with show_progress(f"quantize {source}") as progress:
        network = quantize_network(source, inputs, on_step=progress, **options)
        archive = network.save(output)
    if as_json:
        click.echo(json.dumps(_fields(network, output, archive)))
        return
    from rich.console import Console

    Console().print(report_table(network))
    sizes = [os.path.getsize(path) for path in (output, archive)]
    say(f"wrote {output} ({sizes[0]:,} bytes), {archive} ({sizes[1]:,} bytes)", err=True)


def report_table(network: QuantizedNetwork) -> RenderableType:
    """Return a table with a row for each layer, and the totals."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False)
    for name in ("layer", "operation", "shape", "computes", "result"):
        table.add_column(name, overflow="fold")
    table.add_column("signal/noise", justify="right", no_wrap=True)
    for layer in network.layers:
        table.add_row(
            printable(layer.name),
            layer.operation,
            shape_text(layer.shape),
            layer.computes + (f": {printable(layer.why_float)}" if layer.why_float else ""),
            layer.result,
            _decibels(layer.sqnr),
        )
    quantized = sum(layer.computes != "f32" for layer in network.layers)
    outputs = ", ".join(_decibels(each) for each in network.outputs)
    totals = [f"{quantized} of {counted(len(network.layers), 'layer')} quantized"]
    if network.held_out_batches:
        totals.append(
            f"signal/noise of the results: {outputs} (batches held out: "
            f"{network.held_out_batches}, for calibration: {network.calibration_batches})"
        )
    return Group(table, Text("\n".join(totals)))


def _decibels(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return "exact" if math.isinf(ratio) and ratio > 0 else f"{ratio:.1f} dB"


def _fields(network: QuantizedNetwork, output: str, archive: str) -> dict[str, Any]:
    def finite(ratio: float | None) -> float | None:
        return None if ratio is None else max(min(ratio, 1e9), -1e9)

    def fields_of(layer: LayerReport) -> dict[str, Any]:
        return asdict(layer) | {"sqnr": finite(layer.sqnr)}

    return {
        "output": output,
        "archive": archive,
        "bytes": os.path.getsize(output) + os.path.getsize(archive),
        "layers": [fields_of(layer) for layer in network.layers],
        "outputs": [finite(each) for each in network.outputs],
        "calibration_batches": network.calibration_batches,
        "held_out_batches": network.held_out_batches,
    }
