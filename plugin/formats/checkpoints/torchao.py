"""torchao: tensors that describe themselves in the ``__metadata__`` of their file.

transformers writes a packed ``LAYER.weight`` as arrays ``LAYER._weight_qdata``, ``_weight_scale``
and so on, and its class and attributes as JSON under its name in ``__metadata__``. For K inputs,
N outputs and blocks ``block_size``, with ``real = (qdata - zero_point) * scale`` but for int4:

    Int8Tensor                qdata int8 [N, K]; scale, zero_point: one for each block
    IntxUnpackedToInt8Tensor  the same, of ``target_dtype``: 1 to 8 bits in a byte
    Int4Tensor                qdata int8 [N, K / 2], the first of two in the low bits;
                              scale, zero_point: floats [K / B, N]; ``q * scale + zero_point``
    Float8Tensor              qdata 8-bit floats [N, K]; scale: one for each block

Source: torchao 0.18 (``prototype/safetensors``, ``quantization/quantize_/workflows``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...core.json_settings import Settings
from ...core.read_record import Irrelevant
from ...core.strict_json import Json, parse_object, shown
from ...errors import Place, UnsupportedError
from ...layouts.activations import ActivationQuantization
from ...layouts.affine import BlockAffineLayout
from ...layouts.base import FLOAT_DTYPES
from ...layouts.scaled import BlockScaledI4Layout, TensorScaledLayout
from ...layouts.small_floats import BlockScaledFloat8Layout
from ...layouts.tensors import InferenceTensor
from ...numerics.element_types import Array
from ...numerics.parameters import StorageType
from .fine_grained_fp8 import FLOAT8_FORMATS
from .layers import Layer, Layers, PackedTensor

_PREFIX = "_weight_"
_QDATA = f"{_PREFIX}qdata"
_PARTS = ("qdata", "scale", "zero_point", "act_quant_scale", "act_quant_zero_point")
"""The arrays of a packed tensor that are read."""
_TARGET = re.compile(r"int([1-8])")

_IRRELEVANT = (
    Irrelevant("quant_method", "was read before"),
    Irrelevant("quant_type", "says how tensors were made, which describe themselves"),
    Irrelevant("quant_type_kwargs", "sets nothing", ({},)),
    Irrelevant("modules_to_not_convert", "names layers, and the tensors show which are packed"),
    Irrelevant("include_input_output_embeddings", "names layers likewise"),
    Irrelevant("untie_embedding_weights", "says how tensors were made"),
)
_IRRELEVANT_ATTRIBUTES = (
    Irrelevant("dtype", "is the type of results"),
    Irrelevant("reduce_range", "says how integers were chosen"),
    Irrelevant("mm_config", "says how another program runs the model"),
    Irrelevant("kernel_preference", "says how another program runs the model"),
)
_IRRELEVANT_ACTIVATIONS = (
    Irrelevant("reduce_range", "leaves the range as it is", (False,)),
    Irrelevant("mm_config", "says how another program runs the model"),
    Irrelevant("kernel_preference", "says how another program runs the model"),
)


@dataclass(frozen=True)
class TorchAoFormat:
    """torchao's packing."""

    @classmethod
    def of(cls, config: Mapping[str, Json], file: str) -> TorchAoFormat:
        """Read a ``quantization_config``; UnsupportedError for a key that is not known."""
        Settings(config, Place(file), irrelevant=_IRRELEVANT).finish()
        return cls()

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint; see `Layers.finish`."""
        for name in layers.named(_QDATA):
            layers.add(name, _weight(layers.layer(name), layers.metadata.get(f"{name}.weight")))
        packed = {f"{name}.weight" for name in layers.named(_QDATA)}
        for name in layers.metadata:
            if name.endswith((".weight", ".bias")) and name not in packed:
                _check_plain(name, layers)
        layers.metadata.get("tensor_names")  # of the model, which the tensors have
        return layers.finish("torchao")


def _check_plain(name: str, layers: Layers) -> None:
    """Refuse the description of a packed tensor that has no packed arrays."""
    description = _description(name, layers.metadata[name], layers.location)
    description.choice("_type", ("Tensor",))
    description.finish()


def _description(name: str, text: str, location: Place) -> Settings:
    """Parse the description of a tensor in the ``__metadata__`` of the file."""
    subject = f"the description of {shown(name)}"
    values = parse_object(text.encode(), subject, location.file or "", is_part=True)
    return Settings(values, location, f"{name}.")


def _weight(layer: Layer, text: str | None) -> PackedTensor:
    """Return the weight of a layer.

    Args:
        text: its description in the file's ``__metadata__``.
    """
    if text is None:
        raise layer.error("has packed arrays and no description in the '__metadata__' of the file")
    whole = _description(f"{layer.name}.weight", text, layer.location)
    _check_parts(layer, whole)
    kind = whole.choice("_type", tuple(_READERS))
    attributes = whole.required_part("_data", _IRRELEVANT_ATTRIBUTES)
    whole.finish()
    weight = _READERS[kind](layer, attributes)
    attributes.finish()
    return weight


def _check_parts(layer: Layer, whole: Settings) -> None:
    """Refuse a list of arrays that names others than the file has."""
    listed = whole.elements("_tensor_data_names", str)
    if listed is None:
        raise whole.error("_tensor_data_names", "a list")
    for part in dict.fromkeys((*listed, *_PARTS)):
        is_listed = part in listed
        if layer.has(f"{_PREFIX}{part}") != is_listed:
            raise layer.error(
                f"has {'no ' if is_listed else ''}{_PREFIX}{shown(part)[1:-1]}, and "
                f"'_tensor_data_names' {'names' if is_listed else 'does not name'} it"
            )


def _block(layer: Layer, attributes: Settings, shape: tuple[int, ...]) -> list[int]:
    """Return the extents of a block, which divide the shape; the shape without a block size."""
    block = attributes.get("block_size")
    if block is None or block == []:
        return list(shape)
    is_list = isinstance(block, list) and len(block) == len(shape)
    if not is_list or not all(type(n) is int and n >= 1 for n in block):
        raise attributes.error("block_size", f"{len(shape)} positive integers")
    if any(extent % size for extent, size in zip(shape, block, strict=True)):
        raise layer.error(f"has the shape {list(shape)}, expected a multiple of its block {block}")
    return list(block)


def _per_block(layer: Layer, part: str, grid: tuple[int, ...], *dtypes: str) -> Array:
    """Return scales or zero points as one for each block."""
    shapes: list[tuple[int, ...]] = [grid]
    if grid[1] == 1:
        shapes += [(grid[0],), *([()] if grid[0] == 1 else [])]
    return layer.array(f"{_PREFIX}{part}", dtypes, *shapes).reshape(grid)


def _zero_points(layer: Layer, grid: tuple[int, ...]) -> Array | None:
    """Return zero points, None where they are missing or all 0."""
    if not layer.has(f"{_PREFIX}zero_point"):
        return None
    zero_points = _per_block(layer, "zero_point", grid, "int8", *FLOAT_DTYPES)
    if zero_points.dtype != np.int8 and (np.rint(zero_points) != zero_points).any():
        raise layer.error("has zero points that are no integers", UnsupportedError)
    if not zero_points.any():
        return None
    if zero_points.min() < -128 or zero_points.max() > 127:
        raise layer.error("has zero points that int8 does not hold", UnsupportedError)
    return zero_points.astype(np.int8)


def _integers(layer: Layer, attributes: Settings) -> PackedTensor:
    """``Int8Tensor``, and ``IntxUnpackedToInt8Tensor``."""
    qdata = layer.matrix(_QDATA, "int8")
    bits = 8
    if attributes.has("target_dtype"):
        bits = _bits(attributes)
        half = 1 << (bits - 1)
        if qdata.min() < -half or qdata.max() >= half:
            raise layer.error(f"has {bits} bits by its description, and integers beyond them")
    block = _block(layer, attributes, qdata.shape)
    grid = (qdata.shape[0] // block[0], qdata.shape[1] // block[1])
    scales = _per_block(layer, "scale", grid, *FLOAT_DTYPES)
    zero_points = _zero_points(layer, grid)
    activations = _activations(layer, attributes)

    def make_layout() -> TensorScaledLayout | BlockAffineLayout:
        if bits == 8 and grid[1] == 1 and block[0] in (1, qdata.shape[0]):
            planes = {"d": scales, "qs": qdata, "m": zero_points}
            return TensorScaledLayout(qdata.shape, planes)
        return BlockAffineLayout.of(qdata, scales, zero_points, block, StorageType(bits, True))

    arrays, kind = {"qdata": qdata, "scale": scales}, f"torchao int{bits}"
    name = f"{layer.name}.weight"
    return PackedTensor(name, qdata.shape, kind, arrays, make_layout, activations)


def _bits(attributes: Settings) -> int:
    part = attributes.required_part("target_dtype")
    part.choice("_type", ("torch.dtype",))
    match = _TARGET.fullmatch(part.value(str, "_data"))
    if match is None:
        raise part.unsupported("_data", "int1 to int8")
    part.finish()
    return int(match[1])


def _int4(layer: Layer, attributes: Settings) -> PackedTensor:
    """``Int4Tensor``."""
    qdata = layer.matrix(_QDATA, "int8", "uint8")
    shape = (qdata.shape[0], 2 * qdata.shape[1])
    listed = attributes.get("shape")
    if listed is not None and listed != list(shape):
        raise layer.error(f"has the shape {shown(listed)}, expected {list(shape)} for its qdata")
    block = _block(layer, attributes, shape)
    if block[0] != 1 or block[1] % 2:
        raise attributes.unsupported("block_size", "1 and an even number")
    _check_dtype(attributes, "activation_dtype", ("bfloat16", "float16", "float32"))
    groups, outputs = shape[1] // block[1], shape[0]
    scales = layer.array(f"{_PREFIX}scale", FLOAT_DTYPES, (groups, outputs))
    offsets = layer.array(f"{_PREFIX}zero_point", FLOAT_DTYPES, (groups, outputs))

    def make_layout() -> BlockScaledI4Layout:
        planes = {
            "d": np.ascontiguousarray(scales.T)[..., None],
            "qs": qdata.view(np.uint8).reshape((outputs, groups, block[1] // 2)),
            "m": np.ascontiguousarray(offsets.T)[..., None],
        }
        return BlockScaledI4Layout(shape, planes, {"signed": True})

    arrays = {"qdata": qdata, "scale": scales, "zero_point": offsets}
    return PackedTensor(f"{layer.name}.weight", shape, "torchao int4", arrays, make_layout)


def _check_dtype(attributes: Settings, key: str, known: tuple[str, ...]) -> None:
    part = attributes.part(key)
    if part is not None:
        part.choice("_type", ("torch.dtype",))
        part.choice("_data", known)
        part.finish()


def _float8(layer: Layer, attributes: Settings) -> PackedTensor:
    """``Float8Tensor``."""
    qdata = layer.matrix(_QDATA, *FLOAT8_FORMATS)
    block = _block(layer, attributes, qdata.shape)
    grid = (qdata.shape[0] // block[0], qdata.shape[1] // block[1])
    scales = _per_block(layer, "scale", grid, *FLOAT_DTYPES)
    metadata = {"block_shape": block, "format": FLOAT8_FORMATS[qdata.dtype.name]}
    planes = {"d": scales, "qs": qdata.view(np.uint8)}
    return PackedTensor(
        f"{layer.name}.weight",
        qdata.shape,
        "FP8",
        {"qdata": qdata, "scale": scales},
        lambda: BlockScaledFloat8Layout(qdata.shape, planes, metadata),
        _activations(layer, attributes),
    )


def _activations(layer: Layer, attributes: Settings) -> ActivationQuantization | None:
    """Return the quantization of the inputs, None for floats."""
    name = attributes.get("activation_quantization")
    if name is not None:  # an enumeration, or its value
        value = name.get("_data") if isinstance(name, dict) else name
        if str(value).lower() != "int8_asym_per_token":
            raise attributes.unsupported("activation_quantization", "int8_asym_per_token")
        return ActivationQuantization("i8", is_symmetric=False, uses_reciprocal=True)
    whole = attributes.part("act_quant_kwargs")
    if whole is None:
        return None
    kinds = {"QuantizeTensorToInt8Kwargs": "i8", "QuantizeTensorToFloat8Kwargs": "f8E4M3FN"}
    kind = kinds[whole.choice("_type", tuple(kinds))]
    settings = whole.required_part("_data", _IRRELEVANT_ACTIVATIONS)
    whole.finish()
    _check_dtype(settings, "float8_dtype", ("float8_e4m3fn",))
    granularity = settings.part("granularity")
    scope = "token"
    if granularity is not None:
        names = {"PerRow": "token", "PerTensor": "tensor"}
        scope = names[granularity.choice("_type", tuple(names))]
        axes = granularity.part("_data")
        if axes is not None:
            if axes.value(int, "dim", default=-1) != -1:
                raise axes.unsupported("dim", "-1, the last axis")
            axes.finish()
        granularity.finish()
    mapping, is_symmetric = settings.part("mapping_type"), True
    if mapping is not None:
        mapping.choice("_type", ("MappingType",))
        is_symmetric = mapping.choice("_data", ("SYMMETRIC", "ASYMMETRIC")) == "SYMMETRIC"
        mapping.finish()
    settings.finish()
    if not layer.has(f"{_PREFIX}act_quant_scale"):
        return ActivationQuantization(
            kind, scope, is_symmetric=is_symmetric, uses_reciprocal=kind == "i8"
        )
    scale = layer.scalar(f"{_PREFIX}act_quant_scale")
    zero_point = 0
    if layer.has(f"{_PREFIX}act_quant_zero_point"):
        dtypes = ("int8", "int32", "int64")
        zero_point = int(
            layer.array(f"{_PREFIX}act_quant_zero_point", dtypes, (1,), (), (1, 1)).reshape(())
        )
    return ActivationQuantization(
        kind, "tensor", is_dynamic=False, is_symmetric=is_symmetric, scale=scale,
        zero_point=zero_point, uses_reciprocal=kind == "i8",
    )  # fmt: skip


_READERS = {
    "Int8Tensor": _integers,
    "IntxUnpackedToInt8Tensor": _integers,
    "Int4Tensor": _int4,
    "Float8Tensor": _float8,
}
"""Functions that read a layer, by the class of its tensor."""
