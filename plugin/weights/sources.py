"""Weights of other tools' files, as a `Dataset`: the engine of ``subquant import``.

The kind of a source is detected from its first bytes, else from its name. Readers
are imported when they are needed, map their files, and leave packed tensors packed, so opening is
quick; `Dataset.save` unpacks one tensor after the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.strict_json import Json
from ..errors import InputError, Place, UsageError
from ..formats.gguf_splits import without_part_number
from ..formats.kinds import SUFFIXES, weights_format
from ..formats.tokenizer_files import PROPERTY, TokenizerFiles
from ..layouts.tensors import InferenceTensor
from .theta import Dataset, Theta

if TYPE_CHECKING:
    from ..formats.gguf import Lists


_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*")
"""The name of a model at Hugging Face: owner and model."""


def default_output(source: str | os.PathLike[str], suffix: str = ".irpa") -> str:
    """Return the name of an archive of a source, in the current folder: its own with `suffix`."""
    name = without_part_number(Path(os.path.abspath(source)).name)
    if not os.path.isdir(source):
        known = next((s for s in reversed(SUFFIXES) if name.lower().endswith(s)), "")
        name = name[: len(name) - len(known)]
    return name + suffix


def check_output(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    suffixes: Sequence[str] = (".irpa",),
) -> None:
    """Refuse the name of an output that is that of the source, or has an unknown suffix.

    Raises:
        UsageError: it is the source, or has none of the suffixes by which programs know the format.
    """
    if Path(output).suffix not in suffixes:
        raise UsageError(f"the output '{os.fspath(output)}' must end in {' or '.join(suffixes)}")
    if os.path.realpath(source) == os.path.realpath(output):
        raise UsageError(f"the output '{os.fspath(output)}' is the input; give another with -o")


def open_weights(path: str | os.PathLike[str], *, lists: Lists = True) -> Dataset:
    """Open weights of any format, with its files mapped.

    Args:
        path: a ``.gguf`` file or any part of several, an ``.irpa`` or ``.safetensors`` file, or a
            folder of safetensors with their ``config.json``; of Brevitas, with
            ``params.safetensors`` and ``quant_params.json``.
        lists: False if the lists of a vocabulary are not needed among the properties, or known
            headers, which saves time (`read_gguf`).

    Raises:
        InputError: the source is of no known format, cannot be read, or is not valid.
        UnsupportedError: it has a type or layout that is not supported.
    """
    kind = weights_format(path)
    if kind == "irpa":
        return Dataset.load(path)
    if kind == "gguf":
        from ..formats.gguf import read_gguf

        return _dataset(path, *read_gguf(path, lists=lists))
    if kind == "huggingface" and os.path.exists(os.path.join(path, "quant_params.json")):
        from ..formats.brevitas import read_brevitas

        files = ("config.json", "params.safetensors", "quant_params.json")
        return _dataset(path, *read_brevitas(*(os.path.join(path, file) for file in files)))
    if kind == "huggingface":
        from ..formats.huggingface import read_huggingface

        return _dataset(path, *read_huggingface(path))
    if not os.path.exists(path):
        raise InputError(
            f"cannot read '{os.fspath(path)}': No such file or directory{_download_advice(path)}"
        )
    raise InputError(
        f"'{os.fspath(path)}' holds no weights; expected .gguf, .safetensors, .irpa, or a folder "
        "of safetensors with a config.json"
    )


def _download_advice(path: str | os.PathLike[str]) -> str:
    """Return how to download a model, for a path that may be its name at Hugging Face; or ""."""
    name = os.fspath(path)
    if not _MODEL_NAME.fullmatch(name) or os.path.isdir(os.path.dirname(name)):
        return ""
    folder = os.path.basename(name)
    return (
        "; expected a file or a folder here: to download a model of Hugging Face, run: "
        f"hf download {name} --local-dir {folder}"
    )


def open_with_tokenizer(path: str | os.PathLike[str]) -> Dataset:
    """Open weights, with the files of a checkpoint that turn text into tokens as a property.

    Raises:
        InputError, UnsupportedError: as `open_weights`.
    """
    dataset = open_weights(path)
    add_tokenizer(dataset, path)
    return dataset


def add_tokenizer(dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Make the files of a checkpoint that turn text into tokens a property of its weights."""
    if os.path.isdir(path):
        texts = TokenizerFiles(Path(path)).all_texts()
        if texts:
            dataset.properties[PROPERTY] = texts


def _dataset(
    path: str | os.PathLike[str],
    properties: Mapping[str, Json],
    tensors: Mapping[str, InferenceTensor],
) -> Dataset:
    try:
        return Dataset(properties, Theta(tensors))
    except InputError as error:
        raise error.located(Place(os.fspath(path))) from None


@dataclass
class ImportedKind:
    """Tensors of one kind that were written."""

    tensors: int
    elements: int
    bytes: int


def import_weights(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    on_tensor: Callable[[int, int, str], None] | None = None,
) -> dict[str, ImportedKind]:
    """Read weights of any format and write them as an archive, whole or not at all.

    Args:
        on_tensor: as that of `Dataset.save`, with the name of the tensor.

    Returns:
        The tensors that were written, by kind (`subquant.weights.inspection.describe`).

    Raises:
        UsageError: see `check_output`.
        InputError, UnsupportedError: see `open_weights` and `Dataset.save`.
    """
    from .inspection import WeightTensor, by_kind, describe, total_of

    check_output(source, output)
    described: list[WeightTensor] = []

    def record(number: int, total: int, tensor: InferenceTensor) -> None:
        if on_tensor is not None:
            on_tensor(number, total, tensor.name)
        described.append(describe(tensor))

    open_with_tokenizer(source).save(output, on_tensor=record)
    return {kind: ImportedKind(**total_of(group)) for kind, group in by_kind(described).items()}
