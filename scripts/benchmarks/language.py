"""Language model of the benchmark: its file, exact logits, and a copy with float weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from subquant.models.interface import empty_caches
from subquant.models.loading import default_cache
from subquant.models.packaged import path_of
from subquant.models.source import ModelSource
from subquant.models.transformer import embed, logits, run_blocks
from subquant.weights.theta import Theta

Array = np.ndarray[Any, Any]


def model_file() -> Path:
    """Return the file of Gemma 3 270M, which is assembled in the cache at the first use."""
    return path_of("gemma3-270m", default_cache())


def exact_logits(source: ModelSource, tokens: Sequence[int]) -> Callable[[int, int], Array]:
    """Run a model in NumPy, with dequantized weights and float activations.

    Returns:
        A function of a position and a number of positions that returns their logits.
    """
    configuration, theta = source.configuration, Theta(source.tensors)
    caches = empty_caches(configuration, len(tokens))
    x = embed(configuration, theta, np.array(tokens, np.int32))
    x, _ = run_blocks(configuration, theta, x, np.int32(0), caches)
    return lambda start, count: logits(configuration, theta, x[start : start + count])


def copy_properties(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copy the properties of a file to a file of the same architecture."""
    for name, read in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer's own
        writer.add_key_value(name, read.contents(), read.types[0], read.types[-1])


def write_dequantized(source: Path, target: Path) -> None:
    """Write a GGUF file with all weights dequantized to f32, by the package ``gguf``."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_properties(reader, writer)
    for tensor in reader.tensors:
        count, shape = int(tensor.n_elements), [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.close()
