"""Forward pass of language models in float64 NumPy, over weights read by PyPI's ``gguf``.

Written from the models' definitions, and shares nothing with the package: one token after another,
each attending to the earlier tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = np.ndarray


class Oracle:
    """A model of a GGUF file; keys and values are rounded to a type."""

    def __init__(self, path: str | Path, cache: type[np.floating[Any]] = np.float16) -> None:
        reader = gguf.GGUFReader(path)
        self.cache = cache
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.name = self.fields["general.architecture"]
        self.weights = {}
        for tensor in reader.tensors:
            reals = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            shape = tuple(int(n) for n in reversed(tensor.shape))
            self.weights[tensor.name] = reals.reshape(shape).astype(np.float64)
        self.forget()

    def forget(self) -> None:
        """Forget all tokens."""
        self.keys: list[list[Array]] = [[] for _ in range(self.get("block_count"))]
        self.values: list[list[Array]] = [[] for _ in range(self.get("block_count"))]

    def get(self, key: str, default: Any = None) -> Any:
        """A property of the architecture."""
        return self.fields.get(f"{self.name}.{key}", default)

    def run(self, tokens: list[int]) -> tuple[Array, Array]:
        """Read tokens; return the logits and all hidden states of each."""
        logits, layers = zip(*[self._token(token) for token in tokens], strict=True)
        return np.array(logits), np.array(layers).transpose(1, 0, 2)

    def _token(self, token: int) -> tuple[Array, list[Array]]:
        w = self.weights
        x = w["token_embd.weight"][token]
        if self.name == "gemma3":
            x = x * np.sqrt(len(x))
        layers = []
        for block in range(self.get("block_count")):
            p = f"blk.{block}."
            attended = self._attention(block, self._norm(x, p + "attn_norm"))
            if self.name == "gemma3":
                attended = self._norm(attended, p + "post_attention_norm")
            x = x + attended
            h = self._norm(x, p + "ffn_norm")
            gate, up = self._linear(p + "ffn_gate", h), self._linear(p + "ffn_up", h)
            if self.name == "gemma3":
                inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
                gate = 0.5 * gate * (1 + np.tanh(inner))
            else:
                gate = gate / (1 + np.exp(-gate))
            h = self._linear(p + "ffn_down", gate * up)
            if self.name == "gemma3":
                h = self._norm(h, p + "post_ffw_norm")
            x = x + h
            layers.append(x)
        output = "output" if "output.weight" in w else "token_embd"
        logits = self._linear(output, self._norm(x, "output_norm"))
        softcap = self.get("final_logit_softcapping", 0)
        return softcap * np.tanh(logits / softcap) if softcap else logits, layers

    def _linear(self, name: str, x: Array) -> Array:
        w = self.weights
        return w[f"{name}.weight"] @ x * w.get(f"{name}.scale", 1.0) + w.get(f"{name}.bias", 0.0)

    def _norm(self, x: Array, name: str) -> Array:
        epsilon = self.get("attention.layer_norm_rms_epsilon")
        mean = (x**2).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean + epsilon) * self.weights[f"{name}.weight"]

    def _attention(self, block: int, x: Array) -> Array:
        heads, kv_heads = self.get("attention.head_count"), self.get("attention.head_count_kv")
        size = self.get("attention.key_length", len(x) // heads)
        window = self.get("attention.sliding_window", 0)
        pattern = self.get("attention.sliding_window_pattern", 6)
        is_local = pattern[block] if isinstance(pattern, list) else (block + 1) % pattern != 0
        local = self.name == "gemma3" and bool(is_local)
        position = len(self.keys[block])
        rows = {}
        for kind, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            rows[kind] = self._linear(f"blk.{block}.attn_{kind}", x).reshape((count, size))
        if f"blk.{block}.attn_q_norm.weight" in self.weights:
            rows["q"] = self._norm(rows["q"], f"blk.{block}.attn_q_norm")
            rows["k"] = self._norm(rows["k"], f"blk.{block}.attn_k_norm")
        self.keys[block].append(self._rounded(self._rotated(rows["k"], position, local)))
        self.values[block].append(self._rounded(rows["v"]))
        first = max(0, position - window + 1) if local else 0
        queries = self._rotated(rows["q"], position, local)
        mixed = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            keys = np.array([key[shared] for key in self.keys[block][first:]])
            values = np.array([value[shared] for value in self.values[block][first:]])
            products = keys @ queries[head] * self.get("attention.scale", size**-0.5)
            fractions = np.exp(products - products.max())
            mixed.append(fractions @ values / fractions.sum())
        return self._linear(f"blk.{block}.attn_output", np.concatenate(mixed))

    def _rounded(self, x: Array) -> Array:
        return x.astype(np.float32).astype(self.cache).astype(np.float64)

    def _rotated(self, x: Array, position: int, local: bool) -> Array:
        count = self.get("rope.dimension_count", x.shape[1]) // 2
        base = self.get("rope.freq_base_swa", 10_000.0) if local else self.get("rope.freq_base")
        factor = self.get("rope.scaling.factor", 1.0) if not local else 1.0
        is_yarn = self.get("rope.scaling.type") == "yarn" and not local
        magnitude = 0.1 * np.log(factor) + 1 if is_yarn else 1
        x = x.copy()
        for pair in range(count):
            angle = position * base ** (-pair / count)
            angle *= self._yarn(pair, 2 * count, base, factor) if is_yarn else 1 / factor
            if "rope_freqs.weight" in self.weights:
                angle /= self.weights["rope_freqs.weight"][pair]
            one, two = (2 * pair, 2 * pair + 1) if self.name == "llama" else (pair, pair + count)
            first, second = x[:, one].copy(), x[:, two].copy()
            x[:, one] = (first * np.cos(angle) - second * np.sin(angle)) * magnitude
            x[:, two] = (first * np.sin(angle) + second * np.cos(angle)) * magnitude
        return x

    def _yarn(self, pair: int, size: int, base: float, factor: float) -> float:
        """The factor of a frequency, as transformers' ``_compute_yarn_parameters`` has it."""
        context = self.get("rope.scaling.original_context_length")

        def dimension(rotations: float) -> float:
            return size * np.log(context / (rotations * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(dimension(self.get("rope.scaling.yarn_beta_fast", 32))), 0)
        high = min(np.ceil(dimension(self.get("rope.scaling.yarn_beta_slow", 1))), size - 1)
        high += 0.001 if low == high else 0
        share = 1 - min(max((pair - low) / (high - low), 0), 1)
        return 1 / factor * (1 - share) + share


def surprises(logits_of: Callable[[list[int]], Any], chunks: Iterable[list[int]]) -> list[float]:
    """The negative logarithms of the probabilities of tokens in the second half of each chunk."""
    actual = []
    for chunk in chunks:
        logits = np.asarray(logits_of(chunk), np.float64)
        for position in range(len(chunk) // 2, len(chunk) - 1):
            shifted = logits[position] - logits[position].max()
            actual.append(float(np.log(np.exp(shifted).sum()) - shifted[chunk[position + 1]]))
    return actual
