"""Options of commands for language models, loading of a model, and reading of texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import click

from ..core.option_fields import KvCache, ModelActivations
from ..errors import InputError
from ..isolation.command import exit_on_signals
from .console import read_model, shown_name
from .shared_options import device_option, stacked, threads_option

if TYPE_CHECKING:
    from ..models.loading import Model

model_options = stacked(
    [
        click.option(
            "--model",
            required=True,
            metavar="MODEL",
            help="A .gguf file, the folder of a checkpoint of Hugging Face, an .irpa archive of "
            "import or quantize, or gemma3-270m of the extra 'gemma'.",
        ),
        device_option("llvm-cpu"),
        threads_option,
        click.option(
            "--context",
            type=int,
            metavar="N",
            help="Context length in tokens, prompt and answer.  [default: the model's, up to 2048]",
        ),
        click.option(
            "--activations",
            type=click.Choice(get_args(ModelActivations)),
            help="Inputs of linear layers: rounded as the checkpoint asks for, or quantized by "
            "blocks, or floats; those of float weights stay floats.  [default: checkpoint if it "
            "asks for it, else int8]",
        ),
        click.option(
            "--kv-cache",
            type=click.Choice(get_args(KvCache)),
            default="f16",
            show_default=True,
            help="Storage of keys and values in the cache of earlier tokens.",
        ),
    ]
)
"""The options of `load_model`."""


def find_model(model: str, progress: Callable[[str], None]) -> str:
    """Return the path of a model, assembled first if it is packaged; errors as `path_of`."""
    from ..models.loading import default_cache
    from ..models.packaged import path_of

    return str(path_of(model, default_cache(), progress))


def load_model(
    model: str, progress: Callable[[str], None], check: Callable[[Model], object], **options: Any
) -> Model:
    """Load a model by the values of `model_options`: `subquant.models.load` after `find_model`."""
    from ..models import load

    with exit_on_signals():
        return load(find_model(model, progress), progress=progress, check=check, **options)


text_option = click.option(
    "--text",
    "path",
    required=True,
    metavar="FILE",
    help="The text, UTF-8; - reads it from standard input.",
)
"""The text of a command that needs one; its path is read by `read_text`."""


def read_text(path: str) -> str:
    """Read a text file, or standard input for "-", without a line break at the end.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    data = read_model(path)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text of '{shown_name(path)}' is not UTF-8: byte {error.start} is "
            f"0x{data[error.start]:02x}"
        ) from None
