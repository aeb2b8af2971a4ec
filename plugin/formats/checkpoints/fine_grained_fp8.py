"""``quant_method: fp8`` of transformers and DeepSeek: 8-bit floats with a scale for each block.

    weight            float8 [N, K]
    weight_scale_inv  f32, f16, bf16, or exponents of 2: [ceil(N / B), ceil(K / C)] for the
                      ``weight_block_size`` [B, C], or one scale

and the weight is ``weight * weight_scale_inv``. Static activations have an ``activation_scale``.

Sources: transformers 5.24 (``FineGrainedFP8Config``, ``integrations/finegrained_fp8.py``);
``config.json`` of DeepSeek-V3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...core.json_settings import Settings
from ...core.read_record import Irrelevant
from ...core.strict_json import Json
from ...errors import Place
from ...layouts.activations import ActivationQuantization
from ...layouts.base import FLOAT_DTYPES
from ...layouts.small_floats import BlockScaledFloat8Layout
from ...layouts.tensors import InferenceTensor
from .layers import Layer, Layers, PackedTensor
from .powers_of_two import EXPONENT_DTYPES, powers_of_two

_IRRELEVANT = (
    Irrelevant("quant_method", "was read before"),
    Irrelevant("modules_to_not_convert", "names layers, and the tensors show which are packed"),
    Irrelevant("ignored_layers", "names layers, and the tensors show which are packed"),
    Irrelevant("dequantize", "says how another program runs the model"),
    Irrelevant("scale_fmt", "is the type of the scales, which their tensors have"),
    Irrelevant("expert_dtype", "is the type of the experts' weights", ("fp8",)),
    Irrelevant("fmt", "is the type of the weights, which their tensors have", ("e4m3",)),
)
FLOAT8_FORMATS = {"float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}
"""Names of `BlockScaledFloat8Layout` by NumPy's names of the types."""


@dataclass(frozen=True)
class FineGrainedFp8Format:
    """Weights of 8-bit floats in blocks.

    Args:
        block: the outputs and inputs that share a scale, None for all of them.
        is_dynamic: True if scales of activations are computed at run time.
    """

    block: tuple[int, int] | None
    is_dynamic: bool

    @classmethod
    def of(cls, config: Mapping[str, Json], file: str) -> FineGrainedFp8Format:
        """Read a ``quantization_config``.

        Raises:
            InputError: a value is missing or of the wrong type.
            UnsupportedError: a value or a key is not supported.
        """
        settings = Settings(config, Place(file), irrelevant=_IRRELEVANT)
        scheme = settings.choice("activation_scheme", ("dynamic", "static"), "dynamic")
        block = settings.get("weight_block_size")
        if block is not None:
            block = settings.block("weight_block_size", block)
        settings.finish()
        return cls(block, scheme == "dynamic")

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint; see `Layers.finish`."""
        for name in layers.named("weight_scale_inv"):
            layers.add(name, self._weight(layers.layer(name)))
        return layers.finish("fp8")

    def _weight(self, layer: Layer) -> PackedTensor:
        weight = layer.matrix("weight", *FLOAT8_FORMATS)
        outputs, inputs = weight.shape
        block = self.block or (outputs, inputs)
        grid = (-(-outputs // block[0]), -(-inputs // block[1]))
        shapes: list[tuple[int, ...]] = [grid]
        if self.block is None:
            shapes += [(1,), ()]
        scales = layer.array("weight_scale_inv", (*FLOAT_DTYPES, *EXPONENT_DTYPES), *shapes)
        scales = scales.reshape(grid)
        if scales.dtype.name in EXPONENT_DTYPES:
            scales = powers_of_two(scales)
        metadata = {
            "block_shape": list(block),
            "format": FLOAT8_FORMATS[weight.dtype.name],
        }
        planes = {"d": scales, "qs": weight.view(np.uint8)}
        return PackedTensor(
            f"{layer.name}.weight",
            weight.shape,
            "FP8",
            {"weight": weight, "weight_scale_inv": scales},
            lambda: BlockScaledFloat8Layout(weight.shape, planes, metadata),
            self._activations(layer),
        )

    def _activations(self, layer: Layer) -> ActivationQuantization:
        if not self.is_dynamic:
            part = "input_scale" if layer.has("input_scale") else "activation_scale"
            scale = layer.scalar(part)
            return ActivationQuantization("f8E4M3FN", "tensor", is_dynamic=False, scale=scale)
        if self.block is None:
            return ActivationQuantization("f8E4M3FN")
        return ActivationQuantization("f8E4M3FN", "group", group_size=self.block[1])
