"""Quantization of the table of embeddings and of the output layer, without the inputs of layers.

They have a row for each token of the vocabulary, and are the largest tensors of small models. Rows
are rounded to nearest, a slice of them at a time: no table is in floats as a whole. The scales are
those of a rounding without a text; in a GGUF file, those of llama.cpp, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..core.mapped_files import mappings_of, release_pages
from ..errors import UsageError
from ..formats.checkpoints.compressed_writer import WRITTEN_BITS, packed_layer
from ..formats.imatrix import ImportanceMatrix
from ..layouts import GgmlTensor, InferenceTensor, PlanarQuantizedTensor, QuantizedTensor
from ..layouts.ggml_encoding import check_k
from ..layouts.ggml_quantization import QUANTIZED_TYPES, quantize_blocks, type_for
from ..models.source import ModelSource
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from ..ops.layers import Embedding
from ..weights.quantizing import LayerError, WeightQuantization, quantize_array
from ..weights.theta import Dataset, Theta
from .layer import Calibration, quantize_layer
from .outputs import Output, gguf_type

_ELEMENTS_AT_ONCE = 1 << 18
"""Elements of the rows that are quantized in one step."""
_EMBEDDINGS, _OUTPUT = "token_embd.weight", "output.weight"
_OPTIONS = {_EMBEDDINGS: "--token-embedding-type", _OUTPUT: "--output-tensor-type"}


class VocabularyLayer(NamedTuple):
    """A table with a row for each token, and the quantization that is chosen for it.

    Attributes:
        name: in the forward pass.
        how: bits and blocks, for an archive or a folder; the type of a GGUF file.
    """

    name: str
    tensor: InferenceTensor
    how: WeightQuantization


def vocabulary_layers(
    source: ModelSource, how: WeightQuantization, calibration: Calibration, output: Output
) -> list[VocabularyLayer]:
    """Return the tables that the options name.

    Args:
        how: the quantization of the layers of blocks, whose block size these have, too.

    Raises:
        UsageError: the output's format has no such type, the model's output layer is its table of
            embeddings, blocks do not divide the width, or a table is quantized already and
            `calibration` does not ask for another quantization.
    """
    types = {
        _EMBEDDINGS: calibration.token_embedding_type,
        _OUTPUT: calibration.output_tensor_type,
    }
    layers = []
    for name, chosen_type in types.items():
        if chosen_type is None:
            continue
        if name not in source.tensors or (name == _OUTPUT and source.configuration.tied):
            raise UsageError(
                f"the model has no output layer, which is its table of embeddings; give "
                f"--token-embedding-type in place of {_OPTIONS[name]}"
            )
        tensor = source.tensors[name]
        own = _quantization(_OPTIONS[name], chosen_type, how, output, tensor.shape[1])
        _check(name, tensor, own, calibration, output)
        layers.append(VocabularyLayer(name, tensor, own))
    return layers


def _quantization(
    option: str, chosen_type: str, how: WeightQuantization, output: Output, k: int
) -> WeightQuantization:
    """Return the quantization of a type, which is a number of bits or a name of GGML."""
    if chosen_type.isdecimal() and 2 <= int(chosen_type) <= 8:
        bits = int(chosen_type)
        if output == "archive":
            return WeightQuantization(bits, block_size=how.block_size)
        if output == "checkpoint" and bits in WRITTEN_BITS:
            return WeightQuantization(bits, block_size=how.block_size, asymmetric=how.asymmetric)
        name = gguf_type(StorageType(bits, True))
    else:
        name = chosen_type.upper()
    if output == "gguf" and name in QUANTIZED_TYPES:
        return WeightQuantization(gguf_type=type_for(name, k))
    expected = {
        "archive": "a number of bits from 2 to 8",
        "checkpoint": "4 or 8 bits",
        "gguf": f"4, 5 or 8 bits, or one of {', '.join(QUANTIZED_TYPES)}",
    }
    raise UsageError(
        f"{option} has the type '{chosen_type}', expected {expected[output]} for this output"
    )


def _check(
    name: str,
    tensor: InferenceTensor,
    how: WeightQuantization,
    calibration: Calibration,
    output: Output,
) -> None:
    option, k = _OPTIONS[name], tensor.shape[1]
    if output == "checkpoint" and name == _EMBEDDINGS:
        raise UsageError(
            f"a folder has its table of embeddings in floats, as transformers reads it; leave out "
            f"{option}, or write an .irpa archive"
        )
    if output == "checkpoint" and calibration.method == "smoothquant":
        raise UsageError(
            f"a folder of --method smoothquant has its output layer in floats; leave out {option}"
        )
    if isinstance(tensor, QuantizedTensor) and not calibration.requantize:
        raise UsageError(
            f"tensor '{tensor.name}' is quantized already; leave out {option}, or quantize its "
            "dequantized values by --requantize"
        )
    if output == "gguf":
        assert how.gguf_type is not None  # `_quantization`
        check_k(k, how.gguf_type, tensor.name)
    elif k % how.block_size:
        raise UsageError(
            f"tensor '{tensor.name}' has a width of {k}, which blocks of {how.block_size} do "
            "not divide; give another --block-size"
        )


def quantize_vocabulary_layer(
    layer: VocabularyLayer, output: Output, imatrix: ImportanceMatrix | None = None
) -> tuple[QuantizedTensor, LayerError]:
    """Quantize a table to nearest; return it as the output stores it, and its error.

    Args:
        imatrix: an importance matrix, which llama.cpp uses if it has an entry for the table.
    """
    tensor, how = layer.tensor, layer.how
    importance = None
    if imatrix is not None and layer.name in imatrix.means:
        importance = imatrix.of(layer.name, tensor.shape[1])
    rows_of_planes: dict[str, Array] = {}
    noise = power = greatest = 0.0
    start = 0
    for rows in _slices_of_rows(tensor):
        part, values = _quantized_rows(rows, how, output, importance)
        for name, plane in _planes(part).items():
            _set_rows(rows_of_planes, name, tensor.shape[0], start, plane)
        start += len(rows)
        difference = values.astype(np.float64) - rows
        noise += float(np.square(difference).sum())
        power += float(np.square(rows, dtype=np.float64).sum())
        greatest = max(greatest, float(np.abs(difference).max()))
    joined = _joined(part, rows_of_planes, tensor, how)
    elements = math.prod(tensor.shape)
    error = LayerError(
        tensor.name,
        tensor.shape,
        8 * joined.size_in_bytes / elements,
        math.sqrt(noise / power) if power else math.sqrt(noise / elements),
        greatest,
    )
    return joined, error


def replaced_types(dataset: Dataset, calibration: Calibration) -> list[str]:
    """Return remarks on tables of a GGUF file whose width blocks of their type do not divide."""
    types = {
        _EMBEDDINGS: calibration.token_embedding_type,
        _OUTPUT: calibration.output_tensor_type,
    }
    tensors = dataset.theta.flatten()
    return [
        f"tensor '{name}' has a width that is no multiple of 256: {tensor.ggml_type} in place of "
        f"{chosen_type.upper()}"
        for name, chosen_type in types.items()
        if chosen_type is not None
        and isinstance(tensor := tensors.get(name), GgmlTensor)
        and not chosen_type.isdecimal()
        and tensor.ggml_type != chosen_type.upper()
    ]


_Part = GgmlTensor | PlanarQuantizedTensor | dict[str, Array]
"""Quantized rows: for a folder, their integers, scales and zero points."""


def _quantized_rows(
    rows: Array, how: WeightQuantization, output: Output, importance: Array | None
) -> tuple[_Part, Array]:
    """Return quantized rows, and their values."""
    if output == "checkpoint":
        integers, grid = quantize_layer(rows, None, how, "round")
        stored, scales, zeros = grid.stored(integers)
        planes = {"qs": stored, "d": scales}
        return planes | ({} if zeros is None else {"z": zeros}), grid.dequantize(integers)
    part: GgmlTensor | PlanarQuantizedTensor
    if output == "gguf":
        assert how.gguf_type is not None  # `_quantization`
        part = quantize_blocks(rows, how.gguf_type, importance)
    else:
        part = PlanarQuantizedTensor(quantize_array(rows, how))
    return part, np.asarray(part.unpack().dequant())


def _slices_of_rows(tensor: InferenceTensor) -> Iterator[Array]:
    """Yield float32 ``[rows, width]`` of the rows of a table, in their order."""
    rows, k = tensor.shape
    table = Embedding(Theta({"weight": tensor}))
    step = max(1, _ELEMENTS_AT_ONCE // k)
    for start in range(0, rows, step):
        tokens = np.arange(start, min(start + step, rows), dtype=np.int32)
        yield np.asarray(table(tokens)).astype(np.float32)
        release_pages(mappings_of(tensor.stored_arrays))


def _planes(part: _Part) -> dict[str, Array]:
    """Return the arrays of quantized rows, whose first axis is that of the rows."""
    if isinstance(part, GgmlTensor):
        return {"raw": part.raw.reshape((part.shape[0], -1))}
    return part if isinstance(part, dict) else part.layout.planes


def _set_rows(planes: dict[str, Array], name: str, count: int, start: int, rows: Array) -> None:
    """Write rows of a plane with `count` of them, which is allocated for the first ones."""
    if name not in planes:
        planes[name] = np.empty((count, *rows.shape[1:]), rows.dtype)
    elif planes[name].dtype != rows.dtype:  # scales of float16, and now of float32
        planes[name] = planes[name].astype(np.promote_types(planes[name].dtype, rows.dtype))
    planes[name][start : start + len(rows)] = rows


def _joined(
    part: _Part, planes: dict[str, Array], tensor: InferenceTensor, how: WeightQuantization
) -> QuantizedTensor:
    """Return the tensor of all rows, of the format of some of them."""
    if isinstance(part, GgmlTensor):
        raw = planes["raw"].reshape(-1)
        return GgmlTensor(raw, part.ggml_type, tensor.shape, tensor.name)
    if isinstance(part, dict):
        return packed_layer(tensor.name, planes["qs"], planes["d"], planes.get("z"), how.bits)
    layout = type(part.layout)(tensor.shape, planes, part.layout.metadata)
    return PlanarQuantizedTensor(layout, tensor.name)
