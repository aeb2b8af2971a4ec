"""Writer of checkpoint folders: a configuration, the source's files for text, and tensors."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import TensorSpec, serialize_file

from ...core.strict_json import load_json
from ...errors import InputError, UsageError
from ...numerics.element_types import Array
from ...numerics.packed_integers import pack_bits
from ..tokenizer_files import NAMES


def pack_words(values: Array, bits: int) -> Array:
    """Pack integers of the last axis into words, from the low bits on; zeros fill the last word."""
    short = -values.shape[-1] % (32 // bits)
    return pack_bits(np.pad(values, [(0, 0), (0, short)]), bits).view("<i4")


def source_config(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the ``config.json`` of a checkpoint; InputError if it cannot be read."""
    config: dict[str, Any] = load_json(Path(source, "config.json"), "the model's configuration")
    return config


def check_new_folder(path: str | os.PathLike[str]) -> Path:
    """Return the real path of a folder that does not exist; UsageError if it does."""
    target = Path(os.path.realpath(path))
    if target.exists():
        raise UsageError(f"the folder '{os.fspath(path)}' exists; give the name of a new one")
    return target


def write_folder(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    config: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> None:
    """Write a checkpoint folder, whole or not at all.

    Args:
        source: the folder of another checkpoint, whose files for text are copied.
        output: the folder, which must not exist.
        config: of ``config.json``.
        arrays: of ``model.safetensors``.

    Raises:
        UsageError: the output exists.
        InputError: a file cannot be read or written.
    """
    target = check_new_folder(output)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".subquant-") as folder:
            whole = Path(folder, "checkpoint")
            whole.mkdir()
            (whole / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            for name in NAMES:
                if os.path.exists(os.path.join(source, name)):
                    shutil.copyfile(os.path.join(source, name), whole / name)
            contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            specifications = {
                name: TensorSpec(
                    dtype=array.dtype.name,
                    shape=list(array.shape),
                    data_ptr=array.ctypes.data,
                    data_len=array.nbytes,
                )
                for name, array in contiguous.items()
            }
            serialize_file(specifications, os.fspath(whole / "model.safetensors"), {"format": "pt"})
            os.replace(whole, target)
    except OSError as error:
        raise InputError(f"cannot write '{os.fspath(output)}': {error.strerror or error}") from None
