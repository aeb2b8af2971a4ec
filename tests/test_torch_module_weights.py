"""Checkpoints that are loaded into modules of PyTorch: logits of transformers, packed weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch.nn import Embedding, Linear, Module, ModuleList, RMSNorm  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention, silu  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from subquant.errors import UsageError  # noqa: E402
from subquant.layouts import PrimitiveTensor  # noqa: E402
from subquant.torch import nn  # noqa: E402
from subquant.weights.sources import open_weights  # noqa: E402
from subquant.weights.theta import Theta  # noqa: E402
from test_torch_layers import normal, quantized  # noqa: E402

FOLDERS = Path(__file__).parent / "data" / "huggingface"
Config = dict[str, Any]


class Attention(Module):
    """Attention of Llama: queries and keys are rotated in halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.size = config["hidden_size"], config["head_dim"]
        heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.repeats = heads // key_heads
        self.q_proj = Linear(width, heads * self.size, bias=False)
        self.k_proj = Linear(width, key_heads * self.size, bias=False)
        self.v_proj = Linear(width, key_heads * self.size, bias=False)
        self.o_proj = Linear(heads * self.size, width, bias=False)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:2], -1, self.size).transpose(1, 2)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q, k = (rotated(self.heads(each(x)), angles) for each in (self.q_proj, self.k_proj))
        k, v = (each.repeat_interleave(self.repeats, 1) for each in (k, self.heads(self.v_proj(x))))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()


class Mlp(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, hidden = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = Linear(width, hidden, bias=False)
        self.up_proj = Linear(width, hidden, bias=False)
        self.down_proj = Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(config), Mlp(config)
        self.input_layernorm = RMSNorm(width, eps=epsilon)
        self.post_attention_layernorm = RMSNorm(width, eps=epsilon)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], eps=config["rms_norm_eps"])


class Llama(Module):
    """The model of transformers, with its names."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Body(config)
        self.lm_head = Linear(config["hidden_size"], config["vocab_size"], bias=False)
        if config["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.register_buffer("frequencies", frequencies_of(config), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], dtype=torch.float32)
        angles = torch.outer(positions, self.frequencies).repeat(1, 2)
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            x = block(x, angles)
        return self.lm_head(self.model.norm(x))


def frequencies_of(config: Config) -> torch.Tensor:
    rope, size = config["rope_parameters"], config["head_dim"]
    frequencies = rope["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    if rope["rope_type"] == "default":
        return frequencies
    assert rope["rope_type"] == "llama3"
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    rotations = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    share = ((rotations - low) / (high - low)).clamp(0, 1)
    return frequencies * (share + (1 - share) / rope["factor"])


def llama(folder: str) -> Llama:
    torch.manual_seed(0)
    return Llama(json.loads((FOLDERS / folder / "config.json").read_text())).eval()


FORMATS = {
    "awq_int4": 7,
    "bitsandbytes_nf4": 7,
    "compressed_fp8_static": 7,
    "compressed_int4": 14,
    "compressed_mixed": 13,
    "compressed_nvfp4": 7,
    "compressed_w8a8_static": 7,
    "gptq_int3": 7,
    "gptq_int4_desc_act": 14,
    "llama": 0,
    "torchao_intx4_dynamic": 7,
}
"""The number of quantized layers of each folder."""


@pytest.mark.parametrize("folder", FORMATS)
def test_modules_with_the_weights_of_a_folder_have_the_logits_of_transformers(folder: str) -> None:
    module = llama(folder)
    report = subquant.torch.load_weights(module, FOLDERS / folder)
    assert len(report.quantized) == FORMATS[folder]
    assert report.dequantized == {}
    arrays = np.load(FOLDERS / folder / "expected.npz")
    expected = arrays["logits_quantized" if "logits_quantized" in arrays else "logits"]
    logits = module(torch.from_numpy(arrays["tokens"].astype(np.int64))[None])[0].detach().numpy()
    assert np.abs(logits - expected).max() < 2e-6 * np.abs(expected).max()


def test_loaded_layers_have_the_bits_of_numpy() -> None:
    """Dequantized weights are those of the checkpoint's tensors; norms are copied."""
    theta = open_weights(FOLDERS / "compressed_int4").theta
    module = llama("compressed_int4")
    subquant.torch.load_weights(module, theta)
    for name, tensor in theta.flatten().items():
        weight = module.get_submodule(name.rpartition(".")[0]).weight.detach().numpy()
        expected = tensor.unpack().dequant() if hasattr(tensor, "unpack") else tensor.array
        assert np.array_equal(weight, expected.astype(np.float32)), name


def test_a_loaded_module_compiles() -> None:
    module = llama("compressed_int4")
    subquant.torch.load_weights(module, FOLDERS / "compressed_int4")
    ids = torch.arange(24)[None]
    compiled = subquant.torch.compile(module, (ids,))
    with torch.no_grad():
        expected = module(ids)
    assert (compiled(ids) - expected).abs().max() < 2e-6 * expected.abs().max()


class Tied(Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = Embedding(32, 64), Linear(64, 32)
        self.head.weight = self.table.weight


def test_layers_with_one_weight_share_its_planes() -> None:
    module = Tied()
    tensors = {
        "table.weight": quantized(normal(32, 64), bits=4),
        "head.bias": PrimitiveTensor(normal(32)),
    }
    report = subquant.torch.load_weights(module, Theta(tensors))
    assert sorted(report.quantized) == ["head", "table"]
    assert isinstance(module.head, nn.Linear)
    assert module.head.weight_qs.data_ptr() == module.table.weight_qs.data_ptr()
    assert np.array_equal(module.head.bias.numpy(), normal(32))


class Derived(Linear):
    """A layer that may compute something else."""


def test_weights_of_other_layers_are_dequantized() -> None:
    module = torch.nn.Sequential(Derived(64, 32, bias=False))
    weight = quantized(normal(32, 64), bits=4)
    report = subquant.torch.load_weights(module, Theta({"0.weight": weight}))
    assert report.dequantized == {"0.weight": "the layer is a Derived, of a derived class"}
    assert np.array_equal(module[0].weight.detach().numpy(), weight.unpack().dequant())


REFUSED = {
    "unknown": ({"0.weight": (8, 4), "0.bias": (8,), "1.weight": (2,)},
                "the module has no parameter or buffer for the tensors '1.weight'"),
    "missing": ({"0.weight": (8, 4)}, "the weights have no tensors for '0.bias'"),
    "shape": ({"0.weight": (4, 8), "0.bias": (8,)},
              r"tensor '0.weight' has the shape \(4, 8\), expected \(8, 4\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_do_not_fit_are_refused(name: str) -> None:
    shapes, message = REFUSED[name]
    module = torch.nn.Sequential(Linear(4, 8))
    before = module[0].weight.clone()
    tensors = {key: PrimitiveTensor(normal(*shape)) for key, shape in shapes.items()}
    with pytest.raises(UsageError, match=message):
        subquant.torch.load_weights(module, Theta(tensors))
    assert torch.equal(module[0].weight, before)
