"""Reader of Brevitas exports: float weights, and ``quant_params.json`` with quantizers.

The file maps layers to arrays: NAME is the list of an array's elements, NAME_shape its shape, and
NAME_dtype its type (``torch.int8``) where that is not fixed. For a layer L, with the scales of
MLIR's types (the step between two storage values, whose reciprocal sharktank calls the scale):

    weight_scale, weight_zp   L.weight becomes ``rint(w / weight_scale + weight_zp)``, saturated;
                              scales for the whole weight, or along one axis
    input_scale               L.q_input, a quantizer; and L.bias becomes int32 with the scale
                              ``input_scale * weight_scale``, in which products are accumulated
    output_scale              L.q_output, a quantizer
    smoothquant_mul           L.premul_input, the factor of the input before it is quantized;
                              the weight is not changed
    act_scale                 L, a quantizer: of an activation that belongs to no weight

The storage of weights with zero points is ``weight_zp_dtype``; other weights and inputs have
``input_zp_dtype``, by default int8, outputs ``output_zp_dtype``, by default the inputs', and
activations ``act_zp_dtype``. Weights of fused layers, ``L.to_kv`` and ``L.to_qkv``, are split along
their outputs into ``L.to_kv.to_k`` and so on. A layer without input scale keeps its float bias. The
zero points of inputs, outputs and activations must be 0; 8-bit floats are not supported. A key of a
layer that is not read refuses the file.

Sources: "Direct quantization with sharktank"; sharktank's ``import_brevitas_dataset``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np

from ..core.read_record import Irrelevant, ReadRecord
from ..core.strict_json import Json, JsonObject, load_json, shown
from ..errors import InputError, Place, SubquantError, UnsupportedError, UsageError
from ..layouts.quantizers import STORAGE_DTYPES, StaticScaledQuantizer
from ..layouts.tensors import InferenceTensor, PrimitiveTensor
from ..numerics.element_types import Array, DType
from .huggingface import metadata_of, split_properties
from .safetensors import read_safetensors

_FUSED = {"to_kv": ("to_k", "to_v"), "to_qkv": ("to_q", "to_k", "to_v")}
_FLOATS = ("torch.float32", "torch.float16", "torch.bfloat16")
_IRRELEVANT = [
    Irrelevant(
        f"{name}_dtype", "is a type whose numbers float32 has, and they are written out", _FLOATS
    )
    for name in ("weight_scale", "input_scale", "output_scale", "act_scale", "smoothquant_mul")
]


def read_brevitas(
    config: str | os.PathLike[str],
    params: str | os.PathLike[str],
    quant_params: str | os.PathLike[str],
) -> tuple[JsonObject, dict[str, InferenceTensor]]:
    """Read properties and tensors of a model, and quantize its weights.

    Raises:
        InputError: a file cannot be read, or the files do not fit each other.
        UnsupportedError: a layer is quantized in a way that is not supported.
    """
    properties = split_properties(load_json(config, "the model's configuration"))
    file = read_safetensors(params)
    properties |= metadata_of([file])
    arrays = file.tensors
    layers = load_json(quant_params, "the quantization parameters")
    location = Place(str(quant_params))
    tensors: dict[str, InferenceTensor] = {
        name: PrimitiveTensor(array, name) for name, array in arrays.items()
    }
    for name, values in layers.items():
        if not isinstance(values, dict):
            raise InputError(
                f"layer {shown(name)} must be an object, got {shown(values)}", location
            )
        record = ReadRecord(location, f"layer {shown(name)}")
        layer = _Layer(name, record.track("key", values, _IRRELEVANT), arrays, location)
        try:
            tensors_of_layer = layer.tensors()
        except UsageError as error:  # of a quantizer, which does not know the layer
            raise layer.error(error.message) from None
        record.finish("export the layer without")
        for replaced in layer.replaced:
            del tensors[replaced]
        for tensor in tensors_of_layer:
            if tensor.name in tensors:
                raise layer.error(f"tensor {shown(tensor.name)} is there already")
            tensors[tensor.name] = tensor
    return properties, tensors


class _Layer:
    """A layer's quantization parameters, and the tensors that they make."""

    def __init__(
        self, name: str, values: Mapping[str, Json], arrays: Mapping[str, Array], location: Place
    ) -> None:
        self.name, self.values, self.arrays, self.location = name, values, arrays, location
        self.replaced: list[str] = []
        """Names of arrays that the tensors replace."""

    def tensors(self) -> list[InferenceTensor]:
        """Quantizers, weights and bias."""
        if "act_scale" in self.values:
            self.no_zero_points("act")
            return [self.quantizer("act", self.name, self.dtype("act_zp_dtype", None))]
        dtype = self.dtype("input_zp_dtype", "torch.int8")
        tensors_of_layer: list[InferenceTensor] = []
        premul = self.floats("smoothquant_mul")
        if premul is not None:
            with np.errstate(over="ignore"):
                premul = premul.astype(self.weight().dtype)
            if not np.isfinite(premul).all():
                raise self.error(f"'smoothquant_mul' has a number that {premul.dtype} cannot hold")
            tensors_of_layer.append(PrimitiveTensor(premul, f"{self.name}.premul_input"))
        if "output_scale" in self.values:
            self.no_zero_points("output")
            output = self.dtype("output_zp_dtype", f"torch.{dtype.name}")
            tensors_of_layer.append(self.quantizer("output", f"{self.name}.q_output", output))
        self.no_zero_points("input")
        if "input_scale" in self.values:
            tensors_of_layer.append(self.quantizer("input", f"{self.name}.q_input", dtype))
        if "weight_scale" in self.values:
            tensors_of_layer += self.weights(dtype)
        elif {"input_scale", "weight_zp"} & self.values.keys():
            raise self.error("there is no 'weight_scale', which a quantized layer must have")
        return tensors_of_layer

    def weights(self, dtype: DType) -> list[InferenceTensor]:
        """The quantized weight and bias, in parts if they are fused."""
        weight, bias = self.weight(), self.arrays.get(f"{self.name}.bias")
        if not np.isfinite(weight).all():
            raise self.error("the weight has an infinity or a NaN")
        scale, axis = self.along_axis("weight_scale", weight.shape)
        offset = None
        if "weight_zp" in self.values:
            storage = self.dtype("weight_zp_dtype", None)
            zero_points = self.array("weight_zp", storage)
            if zero_points.any():
                dtype = storage
                offset = self.squeezed("weight_zp", zero_points)
                if offset.shape not in ((), scale.shape):
                    raise self.error(
                        f"'weight_zp' has {offset.size} elements, and 'weight_scale' {scale.size}"
                    )
                offset = np.broadcast_to(offset, scale.shape)
        input_scale = self.scalar("input_scale") if "input_scale" in self.values else None
        self.replaced.append(f"{self.name}.weight")
        bias = bias if input_scale is not None else None
        if bias is not None:
            if bias.shape != weight.shape[:1] or bias.dtype.kind not in "fV":
                raise self.error(
                    f"a bias of {bias.dtype.name}{list(bias.shape)} does not fit a weight of shape "
                    f"{list(weight.shape)}"
                )
            if axis:
                raise self.error(
                    f"there is a bias, and the weight's scales are along axis {axis}, expected 0",
                    UnsupportedError,
                )
            self.replaced.append(f"{self.name}.bias")
        names = [f"{self.name}.{part}" for part in _FUSED.get(self.name.rpartition(".")[2], ())]
        names = names or [self.name]
        if weight.shape[0] % len(names):
            raise self.error(
                f"{weight.shape[0]} outputs of a fused weight cannot be split into {len(names)}"
            )
        size = weight.shape[0] // len(names)
        tensors_of_layer: list[InferenceTensor] = []
        for number, name in enumerate(names):
            part = slice(number * size, (number + 1) * size)
            split = part if axis == 0 else slice(None)
            d = scale[split] if scale.ndim else scale
            m = None if offset is None else offset[split] if offset.ndim else offset
            quantizer = StaticScaledQuantizer(reciprocal_scale=d, offset=m, axis=axis, dtype=dtype)
            tensors_of_layer.append(quantizer.quantize(weight[part], f"{name}.weight"))
            if bias is not None:
                with np.errstate(over="ignore", under="ignore"):
                    steps = np.asarray(d * input_scale)
                accumulated = StaticScaledQuantizer(
                    reciprocal_scale=steps, axis=axis, dtype=np.int32, disable_saturate=True
                )
                tensors_of_layer.append(accumulated.quantize(bias[part], f"{name}.bias"))
        return tensors_of_layer

    def weight(self) -> Array:
        """The float weight."""
        weight = self.arrays.get(f"{self.name}.weight")
        if weight is None or not weight.ndim or weight.dtype.kind not in "fV":
            description = "none" if weight is None else f"{weight.dtype.name}{list(weight.shape)}"
            raise self.error(f"expected a weight of floats among the parameters, got {description}")
        return weight

    def quantizer(self, kind: str, name: str, dtype: DType) -> StaticScaledQuantizer:
        """A quantizer of activations, for the whole tensor."""
        scale = self.scalar(f"{kind}_scale")
        return StaticScaledQuantizer(reciprocal_scale=scale, dtype=dtype, name=name)

    # -- values -----------------------------------------------------------------------------------

    def no_zero_points(self, kind: str) -> None:
        """Refuse zero points of inputs and outputs, which are symmetric; weights may have them."""
        values = self.floats(f"{kind}_zp")
        if values is not None and values.any():
            wrong = values[values != 0].flat[0]
            raise self.error(f"'{kind}_zp' is {wrong:g}, expected 0", UnsupportedError)

    def scalar(self, key: str) -> Array:
        """A scale for a whole tensor."""
        scale = self.squeezed(key, self.array(key, np.dtype(np.float32)))
        if scale.ndim:
            raise self.error(
                f"'{key}' has {scale.size} elements, expected one for the whole tensor",
                UnsupportedError,
            )
        return scale

    def along_axis(self, key: str, shape: tuple[int, ...]) -> tuple[Array, int | None]:
        """Scales for a weight of some shape, and the axis along which they differ."""
        scales = self.array(key, np.dtype(np.float32))
        squeezed = self.squeezed(key, scales)
        if not squeezed.ndim:
            return squeezed, None
        axis = 0 if scales.ndim == 1 else next(a for a, n in enumerate(scales.shape) if n != 1)
        if scales.ndim not in (1, len(shape)) or shape[axis] != squeezed.size:
            raise self.error(
                f"'{key}' of shape {list(scales.shape)} does not fit a weight of shape "
                f"{list(shape)}"
            )
        return squeezed, axis

    def squeezed(self, key: str, array: Array) -> Array:
        """An array without its dimensions of 1, at most one of which is left."""
        squeezed: Array = array.squeeze()
        if squeezed.ndim > 1:
            raise self.error(
                f"'{key}' of shape {list(array.shape)} differs along several axes, expected one",
                UnsupportedError,
            )
        return squeezed

    def floats(self, key: str) -> Array | None:
        """An array as float32, None if it is not there."""
        return self.array(key, np.dtype(np.float32)) if key in self.values else None

    def array(self, key: str, dtype: DType) -> Array:
        """An array that must be there, of finite numbers that the type holds."""
        values, shape = self.values.get(key), self.values.get(f"{key}_shape")
        elements = values if isinstance(values, list) else [values]
        if not isinstance(shape, list) or not all(_is_integer(n) and n >= 0 for n in shape):
            raise self.error(f"'{key}_shape' must be a list of extents, got {shown(shape)}")
        if not all(_is_integer(e) or isinstance(e, float) for e in elements):
            raise self.error(f"'{key}' must be a list of numbers, got {shown(values)}")
        if len(elements) != math.prod(shape):
            raise self.error(f"'{key}' has {len(elements)} elements, expected the shape {shape}")
        wide = np.array(elements, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            array = wide.astype(dtype)
            if not np.isfinite(array.astype(np.float64)).all():
                raise self.error(f"'{key}' has a number that {dtype.name} does not hold")
        if dtype.kind in "iu" and (array != wide).any():
            wrong = wide[array != wide].flat[0]
            raise self.error(f"'{key}' has the number {wrong:g}, which is none of {dtype.name}")
        try:
            return array.reshape(shape)
        except ValueError:  # too many dimensions
            raise self.error(f"'{key}' has the shape {shown(shape)}") from None

    def dtype(self, key: str, default: str | None) -> DType:
        """The type of a storage."""
        name = self.values.get(key, default)
        plain = name.removeprefix("torch.") if isinstance(name, str) else None
        if plain not in STORAGE_DTYPES:
            wrong = UnsupportedError if isinstance(name, str) else InputError
            raise self.error(
                f"'{key}' is {shown(name)}, expected torch.{', torch.'.join(STORAGE_DTYPES)}", wrong
            )
        return np.dtype(plain)

    def error(self, message: str, kind: type[SubquantError] = InputError) -> SubquantError:
        """An error about the layer."""
        return kind(f"layer {shown(self.name)}: {message}", self.location)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
