"""Folders of transformers' ``fp8``: 8-bit floats with a scale for each block, as DeepSeek's.

transformers asks for a GPU to quantize, so its conversion of single weights is called here, and the
folder is written as it saves one. It dequantizes the folder on the CPU when it reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from .architectures import one_block_config
from .models import check_loads, float32_model, random_model, write_expected, write_json


def _write(folder: Path, **settings: object) -> None:
    config = one_block_config(vocab_size=64)
    quantization = FineGrainedFP8Config(modules_to_not_convert=["lm_head"], **settings)
    quantizer = SimpleNamespace(quantization_config=quantization)
    random_model(config).save_pretrained(folder)
    model = random_model(config)
    arrays, state, rounded = {}, {}, {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            if name != "lm_head.weight":  # tied
                arrays[name] = state[name] = tensor
            continue
        packed = Fp8Quantize(quantizer).convert({name: tensor})
        arrays |= packed
        own = (packed[name], packed[f"{name}_scale_inv"])
        dequantize = Fp8Dequantize(quantizer)._dequantize_one
        state[name] = dequantize(*own, output_dtype=torch.float32)
        rounded[name] = dequantize(*own, output_dtype=torch.bfloat16)
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    written = json.loads(path.read_text())
    write_json(path, written | {"quantization_config": quantization.to_dict()})
    reference = float32_model(config, state)
    write_expected(folder, reference, state, rounded)
    check_loads(folder, reference)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "fp8_block": lambda folder: _write(folder, weight_block_size=(32, 32)),
    "fp8_exponents": lambda folder: _write(folder, weight_block_size=(16, 32), scale_fmt="ue8m0"),
}
"""The function that writes each folder."""
