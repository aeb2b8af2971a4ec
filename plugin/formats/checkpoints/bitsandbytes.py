"""bitsandbytes: 4-bit levels of f32 in blocks (NF4, FP4), and 8-bit integers (LLM.int8).

A linear layer of K inputs and N outputs has, with 4 bits,

    weight                    uint8 [N * K / 2, 1]: indices of the flattened matrix, the first of
                              two in the high bits; other types of storage have the same bytes
    weight.quant_map          f32 [16]: the levels
    weight.absmax             f32, the scale of each ``blocksize`` elements of the flattened matrix
    weight.quant_state.bitsandbytes__nf4 (or __fp4)
                              uint8: JSON with the shape and the block sizes

and with double quantization ``absmax`` is uint8: a scale is ``nested_quant_map[absmax] *
nested_absmax + nested_offset``, in f32, where ``nested_absmax`` has one for each
``nested_blocksize`` scales. Those scales are stored here as f32, which takes 0.4 bits an element
more than the file. Blocks that cross rows become several, which divide rows.

With 8 bits there are ``weight``, int8 [N, K], and ``SCB``, f32 [N]; the weight is
``(weight * SCB) * (1 / 127)``, each product rounded to f32.

Source: bitsandbytes 0.50 (``functional.QuantState``, ``backends/default/ops.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...core.json_settings import Settings
from ...core.read_record import Irrelevant
from ...core.strict_json import Json, parse_object, shown
from ...errors import Place, UnsupportedError
from ...layouts.activations import ActivationQuantization
from ...layouts.lookup import LookupBlockScaledLayout
from ...layouts.scaled import TensorScaledLayout
from ...layouts.tensors import InferenceTensor
from ...numerics.element_types import Array
from .layers import Layer, Layers, PackedTensor, described

_STATE = "weight.quant_state.bitsandbytes__"
_TYPES = ("nf4", "fp4")
_BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_STORAGE = ("uint8", "int8", "bfloat16", "float16", "float32")
_RECIPROCAL = float(np.float32(7.874015718698502e-3))
"""The reciprocal of 127 that bitsandbytes multiplies by, as f32."""

_RUNNING = "says how another program runs the model"
_IRRELEVANT = (
    Irrelevant("quant_method", "was read before"),
    Irrelevant("_load_in_?bit", "repeats the key without the underscore"),
    Irrelevant("bnb_4bit_compute_dtype", _RUNNING),
    Irrelevant("bnb_4bit_quant_storage", "is the type of the bytes, which their tensors have"),
    Irrelevant("bnb_4bit_use_double_quant", "describes scales, which their tensors show"),
    Irrelevant("llm_int8_enable_fp32_cpu_offload", _RUNNING),
    Irrelevant("llm_int8_has_fp16_weight", "says that weights are packed", (False,)),
    Irrelevant("llm_int8_skip_modules", "names layers, and the tensors show which are packed"),
)
_IRRELEVANT_STATE = (
    Irrelevant("dtype", "is the type of results"),
    Irrelevant("nested_dtype", "is the type of scales", ("float32",)),
)


@dataclass(frozen=True)
class BitsAndBytesFormat:
    """bitsandbytes' packing.

    Args:
        level_type: ``nf4`` or ``fp4``; None for 8 bits.
        outlier_threshold: the magnitude from which on inputs of 8-bit layers stay floats; 0 for
            none.
    """

    level_type: str | None
    outlier_threshold: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Json], file: str) -> BitsAndBytesFormat:
        """Read a ``quantization_config``.

        Raises:
            InputError: a value is missing or of the wrong type.
            UnsupportedError: a value or a key is not supported.
        """
        settings = Settings(config, Place(file), irrelevant=_IRRELEVANT)
        has_4_bits = settings.flag("load_in_4bit")
        has_8_bits = settings.flag("load_in_8bit")
        level_type = settings.choice("bnb_4bit_quant_type", _TYPES, "fp4")
        threshold = settings.value(float, "llm_int8_threshold", default=6.0)
        if has_4_bits == has_8_bits:
            contrary = "false" if has_8_bits else "true"
            raise settings.error("load_in_4bit", f"{contrary}, as 'load_in_8bit' is {has_8_bits}")
        if threshold < 0:
            raise settings.error("llm_int8_threshold", "at least 0")
        settings.finish()
        return cls(level_type if has_4_bits else None, 0.0 if has_4_bits else threshold)

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint; see `Layers.finish`."""
        if self.level_type is None:
            for name in layers.named("SCB"):
                layers.add(name, self._integers(layers.layer(name)))
        for level_type in _TYPES if self.level_type else ():
            for name in layers.named(f"{_STATE}{level_type}"):
                layers.add(name, self._levels(layers.layer(name), level_type))
        return layers.finish("bitsandbytes")

    def _integers(self, layer: Layer) -> PackedTensor:
        """Return a weight of 8 bits."""
        weight = layer.matrix("weight", "int8")
        scales = layer.array("SCB", ("float32",), (weight.shape[0],))
        form = layer.get("weight_format")
        if form is not None and (form.dtype != np.uint8 or form.size != 1 or form.any()):
            raise layer.error(
                "has a weight_format other than 0, which is by rows", UnsupportedError
            )
        threshold = self.outlier_threshold or None
        activations = ActivationQuantization("i8", outlier_threshold=threshold)
        metadata = {"factor": _RECIPROCAL}
        planes = {"d": scales[:, None], "qs": weight}
        return PackedTensor(
            f"{layer.name}.weight",
            weight.shape,
            "LLM.int8",
            {"weight": weight, "SCB": scales},
            lambda: TensorScaledLayout(weight.shape, planes, metadata),
            activations,
        )

    def _levels(self, layer: Layer, level_type: str) -> PackedTensor:
        """Return a weight of 4 bits."""
        state = self._state(layer, level_type)
        outputs, inputs = shape = state.shape
        packed = layer.array("weight", _STORAGE)
        count = outputs * inputs
        if packed.nbytes != count // 2:
            raise layer.error(
                f"has as its weight {described(packed)}, expected {count // 2} bytes for the shape "
                f"{list(shape)}"
            )
        levels = layer.array("weight.quant_map", ("float32",), (16,))
        if not np.isfinite(levels).all():
            raise layer.error("has levels that are not finite in its quant_map")
        scales = state.scales(layer, -(-count // state.block_size))
        arrays = {"weight": packed, "quant_map": levels, "absmax": layer.get("weight.absmax")}
        size = math.gcd(state.block_size, inputs)
        grid = (outputs, inputs // size)

        def make_layout() -> LookupBlockScaledLayout:
            data = packed.view(np.uint8) if packed.flags.c_contiguous else packed
            high_first = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
            indices = (high_first << np.uint8(4)) | (high_first >> np.uint8(4))
            first = np.arange(outputs * grid[1], dtype=np.int64) * size
            planes = {
                "d": scales[first // state.block_size].reshape((*grid, 1)),
                "qs": indices.reshape((*grid, size // 2)),
            }
            return LookupBlockScaledLayout(shape, planes, {"table": levels.tolist()})

        packed_arrays = {name: array for name, array in arrays.items() if array is not None}
        return PackedTensor(
            f"{layer.name}.weight", shape, level_type.upper(), packed_arrays, make_layout
        )

    def _state(self, layer: Layer, level_type: str) -> _State:
        part = f"{_STATE}{level_type}"
        if level_type != self.level_type:
            raise layer.error(
                f"has levels of the type {level_type}, and 'bnb_4bit_quant_type' is "
                f"'{self.level_type}'; set it to the contrary"
            )
        text = layer.array(part, ("uint8",))
        subject = f"'{layer.name}.{part}'"
        values = parse_object(text.tobytes(), subject, layer.location.file or "", is_part=True)
        return _State.of(Settings(values, layer.location, f"{part}.", _IRRELEVANT_STATE), layer)


@dataclass(frozen=True)
class _State:
    """The JSON of a layer.

    Args:
        nested: the block size and the offset of double quantization; None without it.
    """

    shape: tuple[int, int]
    block_size: int
    nested: tuple[int, float] | None

    @classmethod
    def of(cls, settings: Settings, layer: Layer) -> _State:
        """Read the keys.

        Raises:
            InputError: a value is missing, or of a wrong type.
            UnsupportedError: a key is unknown, or the shape is no matrix with even rows.
        """
        settings.choice("quant_type", _TYPES)
        block_size = settings.value(int, "blocksize")
        shape = settings.value(list, "shape")
        is_matrix = len(shape) == 2 and all(type(n) is int and 1 <= n < 1 << 40 for n in shape)
        if not is_matrix or shape[1] % 2:
            raise layer.error(
                f"has the shape {shown(shape)}, expected a matrix with an even number of inputs",
                UnsupportedError,
            )
        nested = None
        if settings.get("nested_blocksize") is not None:
            nested = (
                settings.value(int, "nested_blocksize"),
                settings.value(float, "nested_offset"),
            )
        for size in (block_size, 256 if nested is None else nested[0]):
            if size not in _BLOCK_SIZES:
                raise layer.error(f"has the block size {size}, expected one of {_BLOCK_SIZES}")
        settings.finish()
        return cls((shape[0], shape[1]), block_size, nested)

    def scales(self, layer: Layer, count: int) -> Array:
        """Return the scale of each block as f32."""
        if self.nested is None:
            return layer.array("weight.absmax", ("float32",), (count,))
        size, offset = self.nested
        codes = layer.array("weight.absmax", ("uint8",), (count,))
        levels = layer.array("weight.nested_quant_map", ("float32",), (256,))
        scales = layer.array("weight.nested_absmax", ("float32",), (-(-count // size),))
        with np.errstate(all="ignore"):
            products: Array = levels[codes] * np.repeat(scales, size)[:count]
            return np.asarray(products + np.float32(offset))
