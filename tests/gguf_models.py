"""Tiny models of random weights as GGUF files, written by PyPI's ``gguf``.

Widths are those of a super-block, 256, so that every type of GGML fits. Values are of the size that
trained weights have: hidden states stay of order 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")  # fmt: skip
"""The types of weights."""

ARCHITECTURES = ("gemma3", "llama", "qwen2", "qwen3")

SMALL = {"width": 64, "hidden": 64, "size": 32}
"""Sizes of a model that IREE compiles in half the time; super-blocks do not fit."""

_FIELDS = {
    "Q2_K": [("scales", 16), ("qs", 64), ("d", 2), ("dmin", 2)],
    "Q3_K": [("hmask", 32), ("qs", 64), ("scales", 12), ("d", 2)],
    "Q4_K": [("d", 2), ("dmin", 2), ("scales", 12), ("qs", 128)],
    "Q5_K": [("d", 2), ("dmin", 2), ("scales", 12), ("qh", 32), ("qs", 128)],
    "Q6_K": [("ql", 128), ("qh", 64), ("scales", 16), ("d", 2)],
}
"""The fields of a block, and their bytes; all but the scales ``d`` and ``dmin`` may be anything."""

_SCALES = {
    "Q2_K": (5e-3, 8e-3),
    "Q3_K": (7e-4, 0),
    "Q4_K": (2e-4, 1.5e-3),
    "Q5_K": (1e-4, 1.5e-3),
    "Q6_K": (6.2e-5, 0),
}
"""``d`` and ``dmin`` with which blocks of random bytes have values of about 1/16."""


@dataclass(frozen=True)
class TinyModel:
    """A model of random weights.

    Weights have `types` in turn, in the order of the file. A tied model has no ``output.weight``,
    one with factors has ``rope_freqs.weight``. A vocabulary is of the kind ``llama`` or ``gpt2``.
    Further properties are named by GGUF's keys without the architecture, those `of_file` by whole
    keys; tensors are left out or added by name. Float `weights` take the place of random ones.
    """

    architecture: str = "llama"
    types: Sequence[str] = ("F32",)
    blocks: int = 2
    width: int = 256
    hidden: int = 512
    heads: int = 4
    kv_heads: int = 2
    size: int = 64
    context: int = 64
    window: int = 8
    tied: bool = False
    rope_factors: bool = False
    vocabulary: str = "llama"
    properties: Mapping[str, Any] = field(default_factory=dict)
    of_file: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()
    extra: Mapping[str, Sequence[int]] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    seed: int = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors by name."""
        queries, keys = self.heads * self.size, self.kv_heads * self.size
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (len(tokens_of(self.vocabulary)), self.width)
        }
        for number in range(self.blocks):
            block: dict[str, tuple[int, ...]] = {
                "attn_norm.weight": (self.width,),
                "attn_q.weight": (queries, self.width),
                "attn_k.weight": (keys, self.width),
                "attn_v.weight": (keys, self.width),
                "attn_output.weight": (self.width, queries),
                "ffn_norm.weight": (self.width,),
                "ffn_gate.weight": (self.hidden, self.width),
                "ffn_up.weight": (self.hidden, self.width),
                "ffn_down.weight": (self.width, self.hidden),
            }
            if self.architecture in ("gemma3", "qwen3"):
                block |= {"attn_q_norm.weight": (self.size,), "attn_k_norm.weight": (self.size,)}
            if self.architecture == "gemma3":
                norms = ("post_attention_norm.weight", "post_ffw_norm.weight")
                block |= dict.fromkeys(norms, (self.width,))
            if self.architecture == "qwen2":
                block |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
            shapes |= {f"blk.{number}.{name}": shape for name, shape in block.items()}
        shapes["output_norm.weight"] = (self.width,)
        if not self.tied:
            shapes["output.weight"] = shapes["token_embd.weight"]
        if self.rope_factors:
            shapes["rope_freqs.weight"] = (self.size // 2,)
        shapes |= {name: tuple(shape) for name, shape in self.extra.items()}
        return {name: shape for name, shape in shapes.items() if name not in self.without}

    def write(self, path: str | Path) -> Path:
        """Write the file."""
        writer = gguf.GGUFWriter(path, self.architecture)
        is_gemma = self.architecture == "gemma3"
        properties: dict[str, Any] = {
            "block_count": self.blocks, "context_length": self.context,
            "embedding_length": self.width, "feed_forward_length": self.hidden,
            "attention.head_count": self.heads, "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.size, "attention.value_length": self.size,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1_000_000.0 if is_gemma else 10_000.0,
        }  # fmt: skip
        if is_gemma:
            properties["attention.sliding_window"] = self.window
            properties["attention.sliding_window_pattern"] = 2
        properties |= self.properties
        add_properties(writer, {f"{self.architecture}.{k}": v for k, v in properties.items()})
        add_properties(writer, self.of_file)
        write_vocabulary(writer, self.vocabulary)
        rng = np.random.default_rng(self.seed)
        weights = 0
        for name, shape in self.shapes().items():
            if name in self.weights:
                writer.add_tensor(name, self.weights[name])
                continue
            if len(shape) == 1:
                writer.add_tensor(name, _vector(rng, name, shape[0]))
                continue
            kind = self.types[weights % len(self.types)]
            weights += 1
            data = random_weight(rng, shape, kind)
            raw = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, data, raw_dtype=raw)
        write_file(writer)
        return Path(path)


@dataclass(frozen=True)
class MoeModel:
    """A Qwen3-MoE of random weights with one block, whose experts have the type `kind`."""

    kind: str = "Q4_0"
    width: int = 512
    hidden: int = 256
    experts: int = 16
    chosen: int = 4
    seed: int = 0

    def write(self, path: str | Path) -> Path:
        """Write the file; the weights beside experts are of the type Q8_0, the router is F32."""
        rng, size, heads, kv_heads = np.random.default_rng(self.seed), 64, 4, 2
        properties: dict[str, Any] = {
            "block_count": 1, "context_length": 64, "embedding_length": self.width,
            "feed_forward_length": self.hidden * self.chosen, "attention.head_count": heads,
            "attention.head_count_kv": kv_heads, "attention.key_length": size,
            "attention.value_length": size, "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 10_000.0, "expert_count": self.experts,
            "expert_used_count": self.chosen, "expert_feed_forward_length": self.hidden,
        }  # fmt: skip
        writer = gguf.GGUFWriter(path, "qwen3moe")
        add_properties(writer, {f"qwen3moe.{key}": value for key, value in properties.items()})
        write_vocabulary(writer, "gpt2")
        for name, count in (
            ("output_norm", self.width), ("blk.0.attn_norm", self.width),
            ("blk.0.ffn_norm", self.width), ("blk.0.attn_q_norm", size),
            ("blk.0.attn_k_norm", size),
        ):  # fmt: skip
            writer.add_tensor(f"{name}.weight", _vector(rng, name, count))
        inner, outer = (self.hidden, self.width), (self.width, self.hidden)
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "token_embd": ("Q8_0", (len(tokens_of("gpt2")), self.width)),
            "blk.0.attn_q": ("Q8_0", (heads * size, self.width)),
            "blk.0.attn_k": ("Q8_0", (kv_heads * size, self.width)),
            "blk.0.attn_v": ("Q8_0", (kv_heads * size, self.width)),
            "blk.0.attn_output": ("Q8_0", (self.width, heads * size)),
            "blk.0.ffn_gate_inp": ("F32", (self.experts, self.width)),
            "blk.0.ffn_gate_exps": (self.kind, (self.experts, *inner)),
            "blk.0.ffn_up_exps": (self.kind, (self.experts, *inner)),
            "blk.0.ffn_down_exps": (self.kind, (self.experts, *outer)),
        }
        for name, (kind, (*leading, depth)) in shapes.items():
            data = random_weight(rng, (int(np.prod(leading)), depth), kind)
            raw = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
            writer.add_tensor(f"{name}.weight", data.reshape((*leading, -1)), raw_dtype=raw)
        write_file(writer)
        return Path(path)


def write_file(writer: gguf.GGUFWriter) -> None:
    """Write all that the writer got to its file, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_properties(writer: gguf.GGUFWriter, properties: Mapping[str, Any]) -> None:
    """Write properties, each of the type that its value has in Python."""
    for key, value in properties.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_float32(key, value)


def _vector(rng: np.random.Generator, name: str, count: int) -> np.ndarray:
    if name.endswith(".bias"):
        return rng.normal(0, 0.3, count).astype(np.float32)
    if name.startswith("rope_freqs"):
        return np.where(np.arange(count) < count // 2, 1.0, 4.0).astype(np.float32)
    return rng.uniform(0.5, 1.5, count).astype(np.float32)


def random_weight(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> np.ndarray:
    """A weight as GGML has it in memory: floats, or rows of the bytes of blocks."""
    if kind == "NVFP4":  # four scales of 64 elements, from 2**-6 to 2**-5, and 4 bits an element
        scales = rng.integers(8, 16, (shape[0] * shape[1] // 64, 4), dtype=np.uint8)
        elements = rng.integers(0, 256, (len(scales), 32), dtype=np.uint8)
        return np.concatenate([scales, elements], axis=1).reshape((shape[0], -1))
    if kind not in _FIELDS:
        values = rng.normal(0, 1 / 16, shape).astype(np.float32)
        if kind == "F32":
            return values
        if kind == "F16":
            return values.astype(np.float16)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    count = shape[0] * shape[1] // 256
    pieces = []
    for name, size in _FIELDS[kind]:
        if name in ("d", "dmin"):
            mean = _SCALES[kind][name == "dmin"]
            scales = rng.uniform(mean, 1.5 * mean, (count, 1)).astype(np.float16)
            pieces.append(scales.view(np.uint8))
        else:
            pieces.append(rng.integers(0, 256, (count, size), dtype=np.uint8))
    return np.concatenate(pieces, axis=1).reshape((shape[0], -1))


# -- vocabularies ----------------------------------------------------------------------------------

_WORDS = [
    "the", "and", "of", "to", "in", "is", "was", "he", "that", "it", "for", "on", "with", "you",
    "as", "be", "at", "have", "are", "this", "not", "but", "had", "his", "they", "from", "she",
    "which", "or", "we", "an", "were", "their", "one", "all", "Hello", "world",
]  # fmt: skip


def tokens_of(kind: str) -> list[str]:
    """The tokens of a vocabulary, of the kind ``llama`` or ``gpt2``."""
    return [token for token, _ in _llama_tokens()] if kind == "llama" else _gpt2_tokens()


def write_vocabulary(writer: gguf.GGUFWriter, kind: str) -> None:
    """Write a vocabulary: of pieces with scores and single bytes, or of merges of bytes."""
    writer.add_tokenizer_model(kind)
    normal, unknown, control, byte = 1, 2, 3, 6
    if kind == "llama":
        tokens = _llama_tokens()
        writer.add_tokenizer_pre("default")
        writer.add_token_list([token for token, _ in tokens])
        writer.add_token_scores([score for _, score in tokens])
        writer.add_token_types([unknown, control, control, *[byte] * 256,
                                *[normal] * (len(tokens) - 259)])  # fmt: skip
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(True)
        return
    actual = _gpt2_tokens()
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(actual)
    writer.add_token_types([control] * 2 + [normal] * (len(actual) - 2))
    writer.add_token_merges([f"{left} {right}" for left, right in _merges()])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def _llama_tokens() -> list[tuple[str, float]]:
    """Tokens and scores: earlier merges have higher scores, and all of their pieces are present."""
    start = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    start += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    letters = sorted({c for word in _WORDS for c in word} | set("▁.,!?abcdefghijklmnopqrstuvwxyz"))
    pieces: dict[str, None] = {}
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            pieces.setdefault(word[:end])
        pieces.setdefault(f"▁{word}")
    actual = [*pieces, *(letter for letter in letters)]
    return start + [(piece, -float(number)) for number, piece in enumerate(actual, 1)]


def _merges() -> list[tuple[str, str]]:
    actual: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        for end in range(1, len(word)):
            actual.setdefault((word[:end], word[end]))
        actual.setdefault(("Ġ", word))
    return list(actual)


def _gpt2_tokens() -> list[str]:
    joined = dict.fromkeys(left + right for left, right in _merges())
    # The letter that stands for each byte in vocabularies of the kind `gpt2`.
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    bytes_ = [chr(n) if n in shown else chr(256 + hidden.index(n)) for n in range(256)]
    return ["<|endoftext|>", "<|im_end|>", *bytes_, *joined]
