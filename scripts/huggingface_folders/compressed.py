"""Folders of compressed-tensors, as llm-compressor writes them with the library.

Scales of weights are those of the library's observer (minimum and maximum), in bf16 as the model;
static scales of activations are those of the tokens that the tests run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.quantization.utils.helpers import is_module_quantized
from transformers import CompressedTensorsConfig, PretrainedConfig, PreTrainedModel

from .architectures import llama3_config, load_float32, one_block_config
from .models import (
    check_loads,
    float32_model,
    forward,
    random_model,
    read_arrays,
    tokens_of,
    write_expected,
)
from .tokenizer_files import VOCABULARY, write_byte_level

_State = dict[str, torch.Tensor]


def _arguments(bits: int, strategy: str, kind: str = "int", **settings: object) -> QuantizationArgs:
    return QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, **settings)


def _scheme(
    weights: QuantizationArgs, activations: QuantizationArgs | None = None
) -> QuantizationScheme:
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=activations)


def _config(scheme: QuantizationScheme | str, ignore: tuple[str, ...] = ()) -> QuantizationConfig:
    """Return the configuration of one scheme, or of a preset, for all linear layers but lm_head."""
    if isinstance(scheme, str):
        scheme = preset_name_to_scheme(scheme, ["Linear"])
    return QuantizationConfig(
        config_groups={"group_0": scheme},
        ignore=["lm_head", *ignore],
        quantization_status="initialized",
    )


def _mixed_config() -> QuantizationConfig:
    """Return two groups: 8 bits of attention, 4 bits of the rest; one layer is not quantized."""
    attention = QuantizationScheme(
        targets=["re:.*self_attn.*"], weights=_arguments(8, "channel", symmetric=True)
    )
    rest = QuantizationScheme(
        targets=["re:.*mlp.*"], weights=_arguments(4, "group", group_size=32, symmetric=False)
    )
    return QuantizationConfig(
        config_groups={"group_0": attention, "group_1": rest},
        ignore=["lm_head", "model.layers.1.mlp.down_proj"],
        quantization_status="initialized",
    )


def _quantized_modules(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    return ((n, module) for n, module in model.named_modules() if is_module_quantized(module))


def _input_ranges(model: PreTrainedModel) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the least and the largest input of each linear layer over the tests' tokens."""
    ranges = {}

    def record(name: str) -> Callable[..., None]:
        return lambda _, inputs: ranges.update({name: torch.aminmax(inputs[0].float())})

    hooks = [
        module.register_forward_pre_hook(record(name))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    forward(model, tokens_of(model.config))
    for hook in hooks:
        hook.remove()
    return ranges


def _set(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Set a parameter of the quantized module, in the type that the library gave to it."""
    parameter = getattr(module, name, None)
    if parameter is not None:
        parameter.data = value.to(parameter.dtype).reshape(parameter.shape)


def _set_weight_scales(module: torch.nn.Module, settings: QuantizationArgs) -> None:
    weight = module.weight.data.float()
    outputs, inputs = weight.shape
    if settings.strategy in ("group", "tensor_group"):
        groups = weight.reshape(outputs, -1, settings.group_size)
        least, largest = groups.amin(-1), groups.amax(-1)
    elif settings.strategy == "channel":
        least, largest = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    elif settings.strategy == "block":
        height, width = settings.block_structure
        padding = (0, -inputs % width, 0, -outputs % height)
        padded = torch.nn.functional.pad(weight, padding)
        blocks = padded.reshape(padded.shape[0] // height, height, -1, width)
        least, largest = blocks.amin((1, 3)), blocks.amax((1, 3))
    else:
        least, largest = weight.amin().reshape(1), weight.amax().reshape(1)
    global_scale = None
    if hasattr(module, "weight_global_scale"):
        global_scale = generate_gparam(weight.amin(), weight.amax())
        _set(module, "weight_global_scale", global_scale)
    scale, zero_point = calculate_qparams(least, largest, settings, global_scale=global_scale)
    _set(module, "weight_scale", scale)
    _set(module, "weight_zero_point", zero_point)


def _set_input_scales(
    module: torch.nn.Module,
    settings: QuantizationArgs,
    least: torch.Tensor,
    largest: torch.Tensor,
) -> None:
    if hasattr(module, "input_global_scale"):
        _set(module, "input_global_scale", generate_gparam(least, largest))
    elif not settings.dynamic:
        scale, zero_point = calculate_qparams(least.reshape(1), largest.reshape(1), settings)
        _set(module, "input_scale", scale)
        _set(module, "input_zero_point", zero_point)


def _dequantized(state: _State, scheme: QuantizationScheme, file_format: str) -> torch.Tensor:
    """Return a weight by the library's functions, with the scale widened to float32."""
    settings, scale = scheme.weights, state["weight_scale"]
    zero_point = state.get("weight_zero_point")
    if file_format == "pack-quantized":
        shape = state["weight_shape"]
        values = unpack_from_int32(state["weight_packed"], settings.num_bits, shape)
        if zero_point is not None:
            zero_shape = (*shape[:-1], scale.shape[-1])
            zero_point = unpack_from_int32(zero_point, settings.num_bits, zero_shape, packed_dim=0)
    elif "weight_packed" in state:
        packed = state["weight_packed"]
        values = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], torch.float32)
    else:
        values = state["weight"]
    if file_format.startswith("mx"):
        scale = decompress_mx_scale(scale)
    return dequantize(
        x_q=values,
        scale=scale.float(),
        zero_point=zero_point,
        args=settings,
        dtype=torch.float32,
        global_scale=state.get("weight_global_scale"),
    )


def _quantized_logits(folder: Path, state: _State) -> torch.Tensor:
    """Return the logits of the library's forward: float32, with quantized inputs of layers.

    The weights are the float32 ones of the reference, which the library rounds to bf16 for some
    formats: only the activations differ between both references.
    """
    model = load_float32(folder)
    model.hf_quantizer.compressor.decompress_model(model)
    for name, module in _quantized_modules(model):
        module.weight.data = state[f"{name}.weight"].clone()
        for part, parameter in module.named_parameters():
            if part.startswith("input_"):
                parameter.data = parameter.data.float()
    return forward(model, tokens_of(model.config))


def _write(
    folder: Path,
    quantization: QuantizationConfig,
    config: PretrainedConfig,
    has_quantized_forward: bool = True,
) -> None:
    model = random_model(config)
    ranges = _input_ranges(model)
    apply_quantization_config(model, quantization)
    schemes = {}
    for name, module in _quantized_modules(model):
        scheme = module.quantization_scheme
        schemes[name] = scheme
        _set_weight_scales(module, scheme.weights)
        if scheme.input_activations is not None:
            _set_input_scales(module, scheme.input_activations, *ranges[name])
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)

    state: _State = {}
    layers: dict[str, _State] = {name: {} for name in schemes}
    for name, tensor in read_arrays(folder).items():
        layer, _, part = name.rpartition(".")
        if layer not in layers:
            state[name] = tensor
        else:
            layers[layer][part] = tensor
    rounded = {}
    for name, tensors in layers.items():
        scheme = schemes[name]
        own = BaseCompressor.get_value_from_registry(scheme.format.value)
        state[f"{name}.weight"] = _dequantized(tensors, scheme, scheme.format.value)
        rounded[f"{name}.weight"] = own.decompress(tensors, scheme)["weight"]
        if "bias" in tensors:
            state[f"{name}.bias"] = tensors["bias"]
    quantized_logits, notes = None, {}
    if any(scheme.input_activations is not None for scheme in schemes.values()):
        if has_quantized_forward:
            quantized_logits = _quantized_logits(folder, state)
        else:
            notes["no_logits_quantized"] = (
                "compressed-tensors refuses activations whose last dimension is no multiple of the "
                "group size"
            )
    reference = float32_model(config, state)
    write_expected(folder, reference, state, rounded, quantized_logits, **notes)
    if quantized_logits is None and has_quantized_forward and len(quantization.config_groups) == 1:
        # transformers 5.24 refuses packed zero points if the weights stay compressed, and takes
        # the scheme of the first group for all layers if they do not.
        check_loads(folder, reference, quantization_config=CompressedTensorsConfig(dequantize=True))


def _write_int4(folder: Path) -> None:
    """Write 4 bits in groups, with two blocks and a tokenizer: the folder of most tests."""
    config = llama3_config(
        vocab_size=VOCABULARY, tie_word_embeddings=False, eos_token_id=[1, 4], pad_token_id=None
    )
    _write(folder, _config(_scheme(_arguments(4, "group", group_size=32))), config)
    write_byte_level(folder)


def _writer(scheme: QuantizationScheme | str) -> Callable[[Path], None]:
    return lambda folder: _write(folder, _config(scheme), one_block_config())


_TENSOR_INPUT = {"bits": 8, "strategy": "tensor", "dynamic": False}

FOLDERS: dict[str, Callable[[Path], None]] = {
    "compressed_int4": _write_int4,
    "compressed_int4_asymmetric": _writer(
        _scheme(_arguments(4, "group", group_size=32, symmetric=False))
    ),
    "compressed_int4_channel": _writer(_scheme(_arguments(4, "channel"))),
    "compressed_int8_channel": _writer(_scheme(_arguments(8, "channel"))),
    "compressed_w8a8_dynamic": _writer("W8A8"),
    "compressed_w8a8_static": _writer(
        _scheme(_arguments(8, "channel"), _arguments(**_TENSOR_INPUT))
    ),
    "compressed_w8a8_static_asymmetric": _writer(
        _scheme(_arguments(8, "channel"), _arguments(**_TENSOR_INPUT, symmetric=False))
    ),
    "compressed_fp8_static": _writer("FP8"),
    "compressed_fp8_dynamic": _writer("FP8_DYNAMIC"),
    "compressed_fp8_block": lambda folder: _write(
        folder,
        _config("FP8_BLOCK"),
        one_block_config(hidden_size=128, intermediate_size=128, head_dim=32),
    ),
    "compressed_fp8_block_partial": lambda folder: _write(
        folder,
        _config("FP8_BLOCK"),
        one_block_config(hidden_size=136, intermediate_size=144, head_dim=16),
        has_quantized_forward=False,
    ),
    "compressed_nvfp4a16": _writer("NVFP4A16"),
    "compressed_nvfp4": _writer("NVFP4"),
    "compressed_mxfp4a16": _writer("MXFP4A16"),
    "compressed_mxfp4": _writer("MXFP4"),
    "compressed_mxfp8": _writer("MXFP8"),
    "compressed_mixed": lambda folder: _write(folder, _mixed_config(), llama3_config()),
}
"""The function that writes each folder."""
