"""Folders of bitsandbytes, quantized and saved by transformers on the CPU.

Blocks of 4 bits are of 64 consecutive weights of the flattened matrix: in ``nf4_across_rows`` they
cross its rows. There the library's kernel for CPUs starts a block in each row, unlike its quantizer
and its other kernels (2.0 in place of 0.45 off, for random weights), so its PyTorch code is used.
Double quantization has a second scale for each 256 blocks, of which the largest layers of
``nf4_double`` have more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import bitsandbytes.functional as bitsandbytes
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig

from .architectures import load_float32, one_block_config
from .models import (
    check_loads,
    float32_model,
    forward,
    random_model,
    read_arrays,
    tokens_of,
    write_expected,
)

_BLOCK_SIZE = 64
_State = dict[str, torch.Tensor]


def _dequantized_4bit(name: str, arrays: _State, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a weight by the library's function, in `dtype` or the type that the file has."""
    prefix = f"{name}."
    planes = {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}
    state = bitsandbytes.QuantState.from_dict(planes, device=torch.device("cpu"))
    state.dtype = dtype or state.dtype
    if state.shape[-1] % state.blocksize == 0:
        return bitsandbytes.dequantize_4bit(arrays[name], state)
    packed, levels = arrays[name].reshape(-1), arrays[f"{name}.quant_map"]
    return _dequantize_4bit_compute(
        packed, state.absmax, levels, state.blocksize, state.shape, state.dtype
    )


def _read(folder: Path) -> tuple[_State, _State]:
    """Return the state of a folder in float32, and the weights as the library rounds them."""
    arrays = read_arrays(folder)
    state, rounded = {}, {}
    for name, array in arrays.items():
        if array.dtype == torch.uint8 and f"{name}.absmax" in arrays:
            state[name] = _dequantized_4bit(name, arrays, torch.float32)
            rounded[name] = _dequantized_4bit(name, arrays, None)
        elif array.dtype == torch.int8 and name.endswith(".weight"):
            scales = arrays[f"{name.removesuffix('.weight')}.SCB"]
            state[name] = bitsandbytes.int8_vectorwise_dequant(array, scales)
        elif ".weight." not in name and not name.endswith((".SCB", ".weight_format")):
            state[name] = array
    return state, rounded


def _write(folder: Path, config: PretrainedConfig, **settings: object) -> None:
    with TemporaryDirectory() as temporary:
        random_model(config).save_pretrained(temporary)
        model = AutoModelForCausalLM.from_pretrained(
            temporary,
            dtype=torch.bfloat16,
            device_map="cpu",
            quantization_config=BitsAndBytesConfig(**settings),
            attn_implementation="eager",
        ).eval()
    model.save_pretrained(folder)
    state, rounded = _read(folder)
    reference = float32_model(config, state)
    quantized_logits = None
    if "load_in_8bit" in settings:
        quantized_logits = forward(load_float32(folder), tokens_of(config))
    write_expected(folder, reference, state, rounded, quantized_logits)
    # The library's product on the CPU fails where blocks cross rows.
    if config.intermediate_size % _BLOCK_SIZE == 0:
        check_loads(folder, reference)


def _writer(width: int, **settings: object) -> Callable[[Path], None]:
    if "load_in_8bit" not in settings:
        settings |= {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    return lambda folder: _write(folder, one_block_config(intermediate_size=width), **settings)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "bitsandbytes_nf4": _writer(128, bnb_4bit_quant_type="nf4"),
    "bitsandbytes_nf4_across_rows": _writer(96, bnb_4bit_quant_type="nf4"),
    "bitsandbytes_nf4_double": _writer(
        320, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    ),
    "bitsandbytes_fp4": _writer(128, bnb_4bit_quant_type="fp4"),
    "bitsandbytes_int8": _writer(128, load_in_8bit=True),
}
"""The function that writes each folder."""
