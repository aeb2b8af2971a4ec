"""compressed-tensors: the formats of llm-compressor and vLLM.

A linear layer of K inputs and N outputs has, by the format of its group,

    pack-quantized     weight_packed      int32 [N, K * bits / 32], the integers of an output, plus
                                          half their range, from the low bits of a word on
                       weight_shape       int64 [2]: N and K
                       weight_zero_point  int32 [N * bits / 32, G]: packed along outputs
    int-quantized      weight             int8 [N, K]
    float-quantized    weight             8-bit floats (E4M3) [N, K]
    mxfp8-quantized    the same; scales are powers of two
    nvfp4-pack-quantized, mxfp4-pack-quantized
                       weight_packed      uint8 [N, K / 2]: 4-bit floats (E2M1), the first of two in
                                          the low bits

and ``weight_scale``: [1], [N, 1], [N, G], or one for each block. The scales of NVFP4 are 8-bit
floats, which are divided by ``weight_global_scale`` in f32; those of MXFP4 are exponents of 2.

Negative zero of the 4-bit floats becomes zero, as the table of levels has integers.

Source: compressed-tensors 0.20 (``compressors``, ``quantization.lifecycle.forward``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...core.strict_json import Json
from ...layouts.activations import ActivationQuantization
from ...layouts.affine import BlockAffineLayout
from ...layouts.base import FLOAT_DTYPES, QuantizedLayout
from ...layouts.lookup import TWICE_E2M1, LookupBlockScaledLayout
from ...layouts.scaled import TensorScaledLayout
from ...layouts.small_floats import BlockScaledFloat8Layout
from ...layouts.tensors import InferenceTensor
from ...numerics.element_types import Array
from ...numerics.parameters import StorageType
from .compressed_config import (
    CompressedConfiguration,
    Group,
    WeightSettings,
    compressed_configuration,
)
from .layers import Layer, Layers, PackedTensor, described, expect_zeros, order_of
from .packed_words import PLANE_WIDTHS, unpack_stream
from .powers_of_two import EXPONENT_DTYPES, powers_of_two
from .targets import priority

_FLOAT8 = "float8_e4m3fn"
_MakeLayout = Callable[[], QuantizedLayout]


@dataclass(frozen=True)
class CompressedTensorsFormat:
    """compressed-tensors' packing."""

    configuration: CompressedConfiguration

    @classmethod
    def of(cls, config: Mapping[str, Json], file: str) -> CompressedTensorsFormat:
        """Read a ``quantization_config``; errors as `compressed_configuration`."""
        return cls(compressed_configuration(config, file))

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint; see `Layers.finish`."""
        for name in layers.named("weight_packed", "weight_scale"):
            layer = layers.layer(name)
            layers.add(name, _weight(layer, self._group_of(layer)))
        for name in layers.named("weight"):
            self._check_float(layers, name)
        return layers.finish("compressed-tensors")

    def _check_float(self, layers: Layers, name: str) -> None:
        """Refuse a matrix without scales that a target names."""
        shape, _ = layers.shape_and_dtype(f"{name}.weight")
        layer = layers.layer(name)
        if layer.has("weight_scale") or len(shape) != 2 or self._is_ignored(name):
            return
        for group in self.configuration.groups:
            rank = priority(group.targets, name)
            if rank is not None and rank[0] < 2:
                raise layer.error(
                    f"has no weight_scale, and the group '{group.name}' of the quantization names "
                    "it; name it in 'ignore' if it stays a float"
                )

    def _is_ignored(self, name: str) -> bool:
        return any(target.names(name) for target in self.configuration.ignored)

    def _group_of(self, layer: Layer) -> Group:
        """Return the group of a packed layer: the one whose target is the most specific.

        Of several groups with that target the last one counts, as in the library.
        """
        if self._is_ignored(layer.name):
            raise layer.error("is packed, and 'ignore' names it; leave the wrong one out")
        ranks = [
            (rank, -number)
            for number, group in enumerate(self.configuration.groups)
            if (rank := priority(group.targets, layer.name)) is not None
        ]
        if not ranks:
            raise layer.error("is packed, and no target of a group names it")
        return self.configuration.groups[-min(ranks)[1]]


def _weight(layer: Layer, group: Group) -> PackedTensor:
    """Return the weight; refuse arrays that are missing or do not fit."""
    read = {
        "pack-quantized": _packed_integers,
        "nvfp4-pack-quantized": _nvfp4,
        "mxfp4-pack-quantized": _mxfp4,
    }.get(group.format, _plain)
    activations = _activations(layer, group)
    kind, shape, arrays, make_layout = read(layer, group.weights)
    return PackedTensor(f"{layer.name}.weight", shape, kind, arrays, make_layout, activations)


_Read = tuple[str, tuple[int, ...], dict[str, Array], _MakeLayout]
"""The kind, the shape, the arrays, and the function that makes the layout."""


def _activations(layer: Layer, group: Group) -> ActivationQuantization | None:
    """Return the quantization of the inputs, with the static scales of the layer."""
    activations = group.activations
    if activations is None:
        return None
    if group.has_global_scale:
        return replace(activations, global_scale=layer.scalar("input_global_scale"))
    if activations.is_dynamic:
        return activations
    scale = layer.scalar("input_scale")
    if activations.is_symmetric:
        expect_zeros(layer, "input_zero_point")
        return replace(activations, scale=scale)
    zero_point = layer.array("input_zero_point", ("int8",), (1,), (), (1, 1)).reshape(())
    return replace(activations, scale=scale, zero_point=int(zero_point))


def _grid(
    layer: Layer, shape: tuple[int, int], settings: WeightSettings
) -> tuple[list[int], tuple[int, int]]:
    """Return the extents of a block, and the number of blocks along each axis."""
    outputs, inputs = shape
    size = settings.group_size or inputs
    if inputs % size:
        raise layer.error(f"has {inputs} inputs, expected a multiple of the group size {size}")
    block = {
        "tensor": [outputs, inputs],
        "channel": [1, inputs],
        "block": list(settings.block or shape),
    }.get(settings.strategy, [1, size])
    return block, (-(-outputs // block[0]), -(-inputs // block[1]))


def _scales(layer: Layer, grid: tuple[int, int], dtypes: tuple[str, ...] = FLOAT_DTYPES) -> Array:
    """Return the scales as one for each block."""
    shapes: list[tuple[int, ...]] = [grid]
    if grid[1] == 1:
        shapes += [(grid[0],), *([()] if grid[0] == 1 else [])]
    return layer.array("weight_scale", dtypes, *shapes).reshape(grid)


def _zero_points(layer: Layer, grid: tuple[int, int], bits: int, is_packed: bool) -> Array:
    """Return the zero points as one for each block: integers plus half their range if packed."""
    if not is_packed:
        shapes = (grid, (grid[0],), ()) if grid[1] == 1 else (grid,)
        return layer.array("weight_zero_point", ("int8",), *shapes).reshape(grid)
    words = -(-grid[0] * bits // 32)
    packed = layer.array("weight_zero_point", ("int32",), (words, grid[1]))
    return unpack_stream(np.ascontiguousarray(packed.T), bits)[:, : grid[0]].T


def _packed_integers(layer: Layer, settings: WeightSettings) -> _Read:
    packed = layer.matrix("weight_packed", "int32")
    listed = layer.array("weight_shape", ("int64", "int32"), (2,))
    outputs, inputs = (int(extent) for extent in listed)
    bits = settings.bits
    width = -(-inputs * bits // 32)
    if inputs < 1 or packed.shape != (outputs, width):
        raise layer.error(
            f"has the weight_shape {[outputs, inputs]} and as its weight_packed "
            f"{described(packed)}, expected {[outputs, width]} for {bits} bits"
        )
    shape = (outputs, inputs)
    block, grid = _grid(layer, shape, settings)
    scales = _scales(layer, grid)
    zero_points = None
    if settings.is_symmetric:
        expect_zeros(layer, "weight_zero_point")
    else:
        zero_points = np.ascontiguousarray(_zero_points(layer, grid, bits, is_packed=True))
    order = None
    indices = layer.get("weight_g_idx")
    if indices is not None and (indices == -1).all():  # the library's word for none
        indices = None
    if settings.has_order and indices is None and grid[1] > 1:
        raise layer.error("has no weight_g_idx, and 'actorder' says that inputs are ordered")
    if indices is not None:
        order = order_of(layer, "weight_g_idx", inputs, block[1], grid[1])
    half = np.uint8(1 << (bits - 1))
    storage = StorageType(bits, settings.is_symmetric)

    def make_layout() -> QuantizedLayout:
        if bits in PLANE_WIDTHS and order is None and inputs * bits % 32 == 0:
            return BlockAffineLayout.of_words(packed, scales, zero_points, block, storage)
        values = unpack_stream(packed, bits)[:, :inputs]
        if order is not None:
            values = values[:, order]
        if settings.strategy != "group" and bits == 8:
            return _tensor_scaled(values - half, scales, None if zero_points is None
                                  else zero_points - half)  # fmt: skip
        if zero_points is None:
            values = (values - half).view(np.int8)
        return BlockAffineLayout.of(
            np.ascontiguousarray(values), scales, zero_points, block, storage, order
        )

    packed_arrays = _arrays(
        layer, "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"
    )
    return f"compressed int{bits}", shape, packed_arrays, make_layout


def _tensor_scaled(values: Array, scales: Array, zero_points: Array | None) -> TensorScaledLayout:
    """The layout of bytes that are signed integers, with one scale or one for each output."""
    planes = {"d": scales, "qs": np.ascontiguousarray(values).view(np.int8)}
    if zero_points is not None:
        planes["m"] = np.ascontiguousarray(zero_points).view(np.int8)
    return TensorScaledLayout(values.shape, planes)


def _plain(layer: Layer, settings: WeightSettings) -> _Read:
    """A weight of bytes: int8, or 8-bit floats."""
    is_float = settings.type == "float"
    weight = layer.matrix("weight", _FLOAT8 if is_float else "int8")
    shape = (weight.shape[0], weight.shape[1])
    block, grid = _grid(layer, shape, settings)
    if is_float and layer.has("weight_scale"):
        scales = _exponents_or_scales(layer, grid)
    else:
        scales = _scales(layer, grid)
    if settings.is_symmetric:
        expect_zeros(layer, "weight_zero_point")
        zero_points = None
    else:
        zero_points = _zero_points(layer, grid, settings.bits, is_packed=False)

    def make_layout() -> QuantizedLayout:
        if is_float:
            metadata = {"block_shape": block, "format": "f8E4M3FN"}
            return BlockScaledFloat8Layout(
                shape, {"d": scales, "qs": weight.view(np.uint8)}, metadata
            )
        if settings.strategy in ("tensor", "channel"):
            return _tensor_scaled(weight, scales, zero_points)
        return BlockAffineLayout.of(weight, scales, zero_points, block, StorageType(8, True))

    kind = "FP8" if is_float else f"compressed int{settings.bits}"
    packed_arrays = _arrays(layer, "weight", "weight_scale", "weight_zero_point")
    return kind, shape, packed_arrays, make_layout


def _exponents_or_scales(layer: Layer, grid: tuple[int, int]) -> Array:
    """Return scales; exponents of 2 (E8M0) become bf16, which has them all."""
    scales = _scales(layer, grid, (*FLOAT_DTYPES, *EXPONENT_DTYPES))
    return scales if scales.dtype.name in FLOAT_DTYPES else powers_of_two(scales)


def _arrays(layer: Layer, *names: str) -> dict[str, Array]:
    arrays = {name: layer.get(name) for name in names}
    return {name: array for name, array in arrays.items() if array is not None}


def _float4(layer: Layer, settings: WeightSettings) -> tuple[Array, tuple[int, int], int]:
    """Return the packed 4-bit floats, the shape and the group size."""
    packed = layer.matrix("weight_packed", "uint8")
    shape = (packed.shape[0], 2 * packed.shape[1])
    size = settings.group_size
    assert size is not None  # by the strategies of the formats
    if size % 2 or shape[1] % size:
        raise layer.error(
            f"has {shape[1]} inputs, expected a multiple of the group size {size}, which is even"
        )
    return packed, shape, size


def _lookup(
    packed: Array, shape: tuple[int, int], size: int, halves: Array, divisor: Array | None = None
) -> LookupBlockScaledLayout:
    grid = (shape[0], shape[1] // size)
    planes = {"d": halves[..., None], "qs": packed.reshape((*grid, size // 2)), "divisor": divisor}
    return LookupBlockScaledLayout(shape, planes, {"table": TWICE_E2M1})


def _nvfp4(layer: Layer, settings: WeightSettings) -> _Read:
    packed, shape, size = _float4(layer, settings)
    scales = _scales(layer, (shape[0], shape[1] // size), (_FLOAT8,))
    divisor = np.array(layer.scalar("weight_global_scale"), np.float32)

    def make_layout() -> QuantizedLayout:
        halves = scales.astype(np.float16) * np.float16(0.5)  # exact: 2**-10 to 224
        return _lookup(packed, shape, size, halves, divisor)

    packed_arrays = _arrays(layer, "weight_packed", "weight_scale", "weight_global_scale")
    return "NVFP4", shape, packed_arrays, make_layout


def _mxfp4(layer: Layer, settings: WeightSettings) -> _Read:
    packed, shape, size = _float4(layer, settings)
    scales = _scales(layer, (shape[0], shape[1] // size), EXPONENT_DTYPES)
    packed_arrays = _arrays(layer, "weight_packed", "weight_scale")
    return (
        "MXFP4",
        shape,
        packed_arrays,
        lambda: _lookup(packed, shape, size, powers_of_two(scales, 0.5)),
    )
