"""Folders of GPTQ and AWQ, quantized, packed and saved by GPTQModel on the CPU.

GPTQModel 7.7.0 asks for a newer torch than there is for the CPU, so it is installed without its
dependencies. It changes functions of transformers when it is imported: the import is late, and this
family is the last one.

The library dequantizes a weight of input k and output n as ``scales[g, n] * (q[k, n] - z[g, n])``
with g = ``g_idx[k]``, in the type of the scales: float16 in GPTQ, the model's in AWQ. The reference
computes the same in float32. GPTQModel's loader casts the scales to the model's type, bf16: its
forward has other weights than the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PretrainedConfig

from .architectures import llama3_config, mistral_config, one_block_config, qwen3_config
from .models import float32_model, forward, random_model, read_arrays, tokens_of, write_expected
from .tokenizer_files import write_byte_level

_GROUP_SIZE = 32
_REMOVED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "tokens.json",
    "quant_log.csv",
)
"""Files without a use in the tests: a tokenizer of more tokens than the model has, and times."""
_CALIBRATION_SAMPLES = 8
_CALIBRATION_TOKENS = 64


def _quantize(source: Path, folder: Path, vocabulary: int, settings: dict[str, object]) -> None:
    """Quantize the model of a folder into another one, calibrated with random tokens."""
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(group_size=_GROUP_SIZE, device="cpu", offload_to_disk=False, **settings)
    model = GPTQModel.load(str(source), config)
    generator = torch.Generator().manual_seed(0)
    samples = [
        {
            "input_ids": torch.randint(
                0, vocabulary, (1, _CALIBRATION_TOKENS), generator=generator
            ),
            "attention_mask": torch.ones(1, _CALIBRATION_TOKENS, dtype=torch.long),
        }
        for _ in range(_CALIBRATION_SAMPLES)
    ]
    model.quantize(samples, batch_size=1)
    model.save(str(folder))


def _dequantized(
    folder: Path,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.nn.Module]:
    """Return the weights in float32, those in the type of the scales, and GPTQModel's model."""
    from gptqmodel import BACKEND, GPTQModel
    from gptqmodel.nn_modules.qlinear import AWQuantLinear, BaseQuantLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    model = GPTQModel.load(str(folder), device="cpu", backend=BACKEND.TORCH).model
    exact, rounded, arrays = {}, {}, read_arrays(folder)
    for name, module in model.named_modules():
        if not isinstance(module, BaseQuantLinear):
            continue
        file_scales = arrays[f"{name}.scales"]  # the loader casts them to the model's type
        for weights, scales in ((rounded, file_scales), (exact, file_scales.float())):
            if isinstance(module, AWQuantLinear):
                packed = (module.qweight, module.qzeros, scales)
                weight = dequantize_gemm(*packed, module.bits, module.group_size)
            else:
                own, module.scales = module.scales, scales
                weight = module.dequantize_weight()
                module.scales = own
            weights[f"{name}.weight"] = weight.T.contiguous()
    return exact, rounded, model


def _write(folder: Path, config: PretrainedConfig, **settings: object) -> None:
    with TemporaryDirectory() as temporary, chdir(temporary):  # GPTQModel writes logs
        random_model(config).save_pretrained(temporary)
        write_byte_level(Path(temporary))  # GPTQModel asks for a tokenizer
        _quantize(Path(temporary), folder, config.vocab_size, settings)
    weights, rounded, model = _dequantized(folder)
    for name in _REMOVED_FILES:
        (folder / name).unlink(missing_ok=True)
    layers = {name.removesuffix(".weight") for name in weights}
    packed = {"qweight", "qzeros", "scales", "g_idx"}
    state = {
        name: tensor
        for name, tensor in read_arrays(folder).items()
        if name.rpartition(".")[0] not in layers or name.rpartition(".")[2] not in packed
    }
    state |= weights
    reference = float32_model(config, state)
    write_expected(folder, reference, state, rounded)
    tokens = tokens_of(config)
    logits = forward(reference, tokens)
    error = float((forward(model, tokens) - logits).abs().max() / logits.abs().max())
    if not error < 0.05:
        raise RuntimeError(f"{folder}: GPTQModel's logits differ by {error:.3f}")


def _writer(
    config: Callable[[], PretrainedConfig] = one_block_config, **settings: object
) -> Callable[[Path], None]:
    return lambda folder: _write(folder, config(), **{"desc_act": False, "sym": True} | settings)


_AWQ_SIZES = {"head_dim": 32, "intermediate_size": 128}
"""GPTQModel's AWQ takes numbers of outputs that are multiples of 64."""
_AWQ = {"bits": 4, "quant_method": "awq", "format": "gemm", "sym": False}

FOLDERS: dict[str, Callable[[Path], None]] = {
    "gptq_int2": _writer(bits=2),
    "gptq_int3": _writer(bits=3),
    "gptq_int4": _writer(bits=4),
    "gptq_int8": _writer(bits=8),
    "gptq_int4_v2": _writer(bits=4, format="gptq_v2"),
    "gptq_int4_asymmetric": _writer(bits=4, sym=False),
    "gptq_int4_asymmetric_v2": _writer(bits=4, sym=False, format="gptq_v2"),
    "gptq_int4_desc_act": _writer(llama3_config, bits=4, desc_act=True),
    "gptq_int4_qwen3": _writer(lambda: qwen3_config(num_hidden_layers=1), bits=4),
    "awq_int4": _writer(lambda: one_block_config(**_AWQ_SIZES), **_AWQ),
    "awq_int4_mistral": _writer(lambda: mistral_config(**_AWQ_SIZES), **_AWQ),
}
"""The function that writes each folder."""
