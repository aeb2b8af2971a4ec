"""``subquant import``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..errors import counted
from .console import say, show_progress
from .shared_options import json_option


@click.command("import")
@click.argument("source")
@click.option(
    "-o",
    "--output",
    metavar="FILE.irpa",
    help="The output.  [default: the name of SOURCE with .irpa]",
)
@json_option("the summary")
def command(source: str, output: str | None, as_json: bool) -> None:
    """Convert weights of SOURCE to IREE parameters (.irpa), quantized tensors included.

    SOURCE is a .gguf, .safetensors or .irpa file, or a folder of safetensors with a config.json.
    Each plane of a quantized tensor (storage, scales, ...) becomes a parameter.

    \b
    subquant import model.gguf -o model.irpa
    subquant import checkpoint/ -o model.irpa
    subquant generate --model model.irpa --prompt "The sea is"
    subquant run model.vmfb --parameters model=model.irpa --input @x.npy
    """
    from ..weights.sources import default_output, import_weights

    output = default_output(source) if output is None else output
    with show_progress(f"import {source}") as progress:
        kinds = import_weights(
            source,
            output,
            on_tensor=lambda number, count, name: progress(f"{number + 1} of {count}: {name}"),
        )
    size = Path(output).stat().st_size
    tensors = sum(kind.tensors for kind in kinds.values())
    if as_json:
        listed = {name: vars(kind) for name, kind in kinds.items()}
        click.echo(json.dumps({"output": output, "bytes": size, "kinds": listed}))
        return
    for name, kind in kinds.items():
        bits = 8 * kind.bytes / max(kind.elements, 1)
        say(
            f"{kind.tensors:6} {name:36} {kind.bytes:15,} bytes {bits:7.2f} bits an element",
            err=True,
        )
    say(f"wrote {output} ({counted(tensors, 'tensor')}, {size:,} bytes)", err=True)
