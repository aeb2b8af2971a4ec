"""Formats of calibrated models: packed layers, and the file or folder that has them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Literal

import numpy as np

from ..errors import UsageError, counted
from ..formats.checkpoints.compressed_writer import (
    WRITTEN_BITS,
    int8_layer,
    packed_layer,
    write_compressed,
)
from ..formats.checkpoints.gptq_writer import write_gptq
from ..formats.checkpoints.layers import PackedTensor
from ..formats.gguf import property_bytes
from ..formats.gguf_splits import part_files
from ..formats.gguf_writer import write_gguf
from ..formats.kinds import weights_format
from ..layouts import (
    ActivationQuantization,
    BlockAffineLayout,
    GgmlTensor,
    PlanarQuantizedTensor,
    QuantizedTensor,
    TensorScaledLayout,
)
from ..layouts.activations import ACTIVATIONS_KEY
from ..layouts.ggml_encoding import BLOCK_SIZE, ENCODED_TYPES, encode
from ..layouts.ggml_quantization import QUANTIZED_TYPES, type_for
from ..layouts.stacked import names_in_stack
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from ..weights.grids import Grid, OffsetKind
from ..weights.quantizing import WeightQuantization, block_layout
from ..weights.theta import Dataset
from .ggml_layers import ggml_layer
from .layer import Method, quantize_layer
from .moments import InputMoments

Output = Literal["archive", "gguf", "checkpoint"]
"""Format of the result: an ``.irpa`` archive, a GGUF file, or the folder of a checkpoint."""

CHECKPOINT_FORMATS = ("compressed-tensors", "gptq")
"""Packings of a folder."""


def quantized_layer(
    name: str,
    weight: Array,
    how: WeightQuantization,
    output: Output,
    method: Method,
    inputs: InputMoments | None = None,
    importance: Array | None = None,
) -> tuple[QuantizedTensor, Array]:
    """Quantize a layer for the format of the output; return it, and its values.

    A GGUF file has blocks as llama.cpp makes them, but those of 32 elements by GPTQ, whose scales
    are searched for its integers.

    Args:
        name: of the tensor in the output.
        inputs, importance: as those of `quantize_layer`.

    Raises:
        UsageError: blocks do not divide the inputs.
    """
    if method == "gptq" and inputs is not None:
        weight = inputs.compensated(weight)
    if method == "smoothquant":
        how = replace(how, block_size=weight.shape[1])
        integers, grid = quantize_layer(weight, inputs, how, method, None, importance)
        return int8_tensor(name, integers, grid, output), grid.dequantize(integers)
    if output != "gguf":
        integers, grid = quantize_layer(weight, inputs, how, method, None, importance)
        tensor = archive_tensor if output == "archive" else checkpoint_tensor
        return tensor(name, integers, grid), grid.dequantize(integers)
    if method == "round":
        importance = None
    elif importance is None and inputs is not None:
        importance = np.diag(inputs.matrix) / np.float32(inputs.tokens)
    ggml_type = type_for(ggml_type_of(how), weight.shape[1])
    if weight.shape[1] % BLOCK_SIZE:
        raise UsageError(
            f"has {weight.shape[1]} inputs, which blocks of {BLOCK_SIZE} do not divide"
        )
    if inputs is None or method != "gptq" or ggml_type not in ENCODED_TYPES:
        inputs = inputs if method == "gptq" else None
        packed = ggml_layer(weight, ggml_type, importance, inputs, name)
        return packed, np.asarray(packed.unpack().dequant())
    how, kind = grid_of_output(replace(how, gguf_type=ggml_type), output)
    integers, grid = quantize_layer(weight, inputs, how, method, kind, importance)
    return gguf_tensor(name, integers, grid), grid.dequantize(integers)


def archive_tensor(name: str, integers: Array, grid: Grid) -> PlanarQuantizedTensor:
    """Return a quantized layer as archives store it, with scales of float16."""
    return PlanarQuantizedTensor(block_layout(*grid.stored(integers), grid.storage), name)


def int8_tensor(name: str, integers: Array, grid: Grid, output: Output) -> QuantizedTensor:
    """Return a layer of int8 with a scale for each output, whose inputs are rounded to int8."""
    stored, scales, _ = grid.stored(integers)
    activations = ActivationQuantization("i8")
    if output == "checkpoint":
        return int8_layer(name, stored, scales, activations)
    metadata = {ACTIVATIONS_KEY: activations.record}
    layout = TensorScaledLayout(stored.shape, {"d": scales, "qs": stored}, metadata)
    return PlanarQuantizedTensor(layout, name)


def gguf_tensor(name: str, integers: Array, grid: Grid) -> GgmlTensor:
    """Return a quantized layer as GGUF files store it: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0."""
    offsets = grid.offsets if grid.kind == "offsets" else None
    stored = integers.astype(grid.storage.dtype)
    return encode(gguf_type(grid.storage), stored, grid.scales, offsets, name)


def checkpoint_tensor(name: str, integers: Array, grid: Grid) -> PackedTensor:
    """Return a quantized layer as a checkpoint of compressed-tensors stores it."""
    return packed_layer(name, *grid.stored(integers), grid.storage.width)


def checkpoint_tensor_of(tensor: PlanarQuantizedTensor) -> PackedTensor:
    """Return a layer of a checkpoint from the form that archives have of it."""
    layout = tensor.layout
    if isinstance(layout, TensorScaledLayout):
        assert tensor.activations is not None  # `int8_layer`
        return int8_layer(tensor.name, layout.planes["qs"], layout.planes["d"], tensor.activations)
    assert isinstance(layout, BlockAffineLayout)  # `packed_layer`
    scales, zeros = layout.planes["d"], layout.planes.get("z")
    integers = np.asarray(layout.stored())
    return packed_layer(tensor.name, integers, scales, zeros, layout.storage.width)


def gguf_type(storage: StorageType) -> str:
    """Return the name of GGML's type for integers; the unsigned ones have offsets."""
    return f"Q{storage.width}_{0 if storage.signed else 1}"


_GRIDS = {
    "Q4_0": (4, False, 32), "Q4_1": (4, True, 32), "Q5_0": (5, False, 32), "Q5_1": (5, True, 32),
    "Q8_0": (8, False, 32), "Q3_K": (3, False, 16), "Q4_K": (4, True, 32), "Q5_K": (5, True, 32),
    "Q6_K": (6, False, 16), "IQ4_NL": (4, False, 32), "IQ4_XS": (4, False, 32),
}  # fmt: skip
"""Bits of integers, whether blocks have offsets, and elements of a block, of GGML's types."""


def grid_of_output(
    how: WeightQuantization, output: Output
) -> tuple[WeightQuantization, OffsetKind | None]:
    """Return the quantization with bits and blocks of GGML's type, and the offsets of blocks.

    The grid is that of the type but for the second level of scales, and levels of a codebook.
    """
    if output != "gguf":
        return how, None
    bits, asymmetric, size = _GRIDS[ggml_type_of(how)]
    how = replace(how, bits=bits, asymmetric=asymmetric, block_size=size)
    return how, "offsets" if asymmetric else "symmetric"


def ggml_type_of(how: WeightQuantization) -> str:
    """Return the name of GGML's type of a quantization."""
    return how.gguf_type or gguf_type(StorageType(how.bits, not how.asymmetric))


def check_int8(how: WeightQuantization, output: Output) -> None:
    """Refuse what weights and inputs of int8 do not have (``--method smoothquant``); UsageError."""
    if output == "gguf":
        raise UsageError(
            "a .gguf file does not say that inputs of layers are rounded, as --method smoothquant "
            "needs; write an .irpa archive or a folder"
        )
    if how.bits != 8 or how.asymmetric or how.gguf_type:
        raise UsageError(
            "--method smoothquant makes symmetric weights of 8 bits; leave out --bits, "
            "--asymmetric and --gguf-type"
        )
    if how.granularity != "axis" or how.axis != 0:
        raise UsageError(
            "layers of --method smoothquant have a scale for each output; use --granularity axis"
        )


def check_output_format(how: WeightQuantization, output: Output) -> None:
    """Refuse a quantization that the format of the output does not have; UsageError."""
    kind = "asymmetric" if how.asymmetric else "symmetric"
    if how.gguf_type and output != "gguf":
        raise UsageError(
            f"--gguf-type {how.gguf_type} is a type of .gguf files; give a name -o that ends in "
            ".gguf, or --bits"
        )
    if output == "gguf" and ggml_type_of(how) not in QUANTIZED_TYPES:
        raise UsageError(
            f"a .gguf file has no type of {how.bits} {kind} bits; expected 4 or 5 bits, or 8 "
            f"symmetric ones, or --gguf-type with one of {', '.join(QUANTIZED_TYPES)}"
        )
    if output == "gguf" and not how.gguf_type and how.block_size != BLOCK_SIZE:
        raise UsageError(
            f"blocks of {ggml_type_of(how)} in a .gguf file have {BLOCK_SIZE} elements, got "
            f"--block-size {how.block_size}"
        )
    if output == "checkpoint" and how.bits not in WRITTEN_BITS:
        raise UsageError(f"a checkpoint has layers of 4 or 8 bits, got {how.bits}")


def check_checkpoint_format(
    name: str, output: Output, method: str, bits: int, output_tensor_type: str | None
) -> None:
    """Refuse a packing of folders for another output, or for other weights; UsageError."""
    if name == "gptq" and output != "checkpoint":
        raise UsageError("--format gptq is a packing of folders; give a name -o that ends in /")
    if name == "gptq" and method == "smoothquant":
        raise UsageError(
            "GPTQ's format has no rounded inputs, as --method smoothquant needs; leave out --format"
        )
    if name == "gptq" and output_tensor_type not in (None, str(bits)):
        raise UsageError(
            "all layers of --format gptq have the same bits; expected --output-tensor-type "
            f"{bits}, got '{output_tensor_type}'"
        )


def replaced_types(dataset: Dataset, how: WeightQuantization, names: Collection[str]) -> list[str]:
    """Return remarks on the layers whose inputs the blocks of GGML's type do not divide."""
    tensors = dataset.theta.flatten()
    firsts = [(names_in_stack(name) or [name])[0] for name in names if name.startswith("blk.")]
    types = Counter(
        tensor.ggml_type
        for name in firsts
        if isinstance(tensor := tensors[name], GgmlTensor) and tensor.ggml_type != ggml_type_of(how)
    )
    return [
        f"{counted(count, 'layer')} with inputs that are no multiple of 256: {name} in place of "
        f"{ggml_type_of(how)}"
        for name, count in types.items()
    ]


def most_common_type(dataset: Dataset) -> str:
    """Return GGML's type of most layers of a model's blocks, of which at least one has a type."""
    types = Counter(
        tensor.ggml_type
        for name, tensor in dataset.theta.flatten().items()
        if name.startswith("blk.") and isinstance(tensor, GgmlTensor)
    )
    return types.most_common(1)[0][0]


def check_source(source: str | os.PathLike[str], output: Output) -> None:
    """Refuse a source without the properties that the output's format has; UsageError."""
    kind = weights_format(source)
    if output == "gguf" and kind != "gguf":
        raise UsageError(
            f"a .gguf file is made of a .gguf file, and '{os.fspath(source)}' is none; write an "
            ".irpa archive"
        )
    if output == "checkpoint" and not os.path.isdir(source):
        raise UsageError(
            f"a folder is made of the folder of a checkpoint, and '{os.fspath(source)}' is none; "
            "write an .irpa archive"
        )


def save(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    dataset: Dataset,
    how: WeightQuantization,
    output: Output,
    on_tensor: Callable[[int, int, str], None] = lambda number, count, name: None,
    checkpoint_format: str = "compressed-tensors",
) -> None:
    """Write the result of `calibrated` in the format that it was packed for.

    Args:
        checkpoint_format: the packing of a folder, one of `CHECKPOINT_FORMATS`.

    Raises:
        UsageError: as `check_source` and `write_gptq`, or the folder exists.
        InputError: the file or folder cannot be written.
    """
    check_source(source, output)
    tensors = list(dataset.theta.flatten().values())
    if output == "gguf":
        properties = property_bytes(part_files(source)[0])
        write_gguf(path, properties, tensors, ggml_type_of(how), on_tensor)
    elif output == "checkpoint":
        size = how.block_size if how.granularity == "block" else None
        symmetric = not how.asymmetric
        if checkpoint_format == "gptq":
            assert size is not None  # `check_checkpoint_format`
            write_gptq(source, path, tensors, how.bits, size, is_symmetric=symmetric)
        else:
            write_compressed(source, path, tensors, how.bits, size, is_symmetric=symmetric)
    else:
        dataset.save(path)
