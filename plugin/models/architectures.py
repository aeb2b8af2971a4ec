"""The architectures of language models that are computed, those of llama.cpp's converters.

A layer of a GGUF file has a bias where llama.cpp adds one: it refuses a file with another, as
tensors that it does not know.

Sources: llama.cpp, ``src/models``, and files that llama.cpp accepts and refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pairs = Literal["halves", "neighbors"]
Activation = Literal["gelu", "silu"]

QKV = ("attn_q", "attn_k", "attn_v")
FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
LAYERS = (*QKV, "attn_output", *FEED_FORWARD)
"""The linear layers of a block."""
EXPERT_LAYERS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""The linear layers of all experts of a block; weights have the experts as their first axis."""


@dataclass(frozen=True)
class BlockStructure:
    """The differences of an architecture's blocks from Llama's, in files of all formats.

    Attributes:
        qk_norms: queries and keys are normalized, each head for itself.
        post_norms: the results of attention and feed-forward are normalized before they are added.
        norm_offset: added to the weights of norms.
        biases: layers that have a bias in all files.
        scales_embedding: embeddings are multiplied by the root of their length.
        fused: one layer projects to queries, keys and values (``attn_qkv``), and one to gate and up
            (``ffn_up``).
        unrotated_interval: every such block has no rotary embeddings; 0 if all have.
    """

    qk_norms: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    biases: tuple[str, ...] = ()
    scales_embedding: bool = False
    fused: bool = False
    unrotated_interval: int = 0


@dataclass(frozen=True)
class Architecture(BlockStructure):
    """The differences of an architecture from the others in GGUF files.

    Attributes:
        activation: of the gate: GELU by tanh, or SiLU.
        pairs: the elements that rotary embeddings rotate together: ``i`` and ``i + D / 2``, or
            ``2 i`` and ``2 i + 1``.
        optional_biases: layers that have one where the file does, as in llama.cpp.
        rope_factors: frequencies may be divided by the elements of ``rope_freqs.weight``.
        long_rope: frequencies may be divided by those of ``rope_factors_short.weight``, or of
            ``rope_factors_long.weight`` in long contexts.
        pattern: every such block attends to all tokens where there is a window; 1 if the
            architecture has no window, 0 if all blocks have it.
        window_base: of rotary embeddings where there is a window; 0 for that of other blocks.
        has_experts, needs_experts: blocks may have a mixture of experts, or all files have one.
    """

    activation: Activation = "silu"
    pairs: Pairs = "halves"
    optional_biases: tuple[str, ...] = QKV
    rope_factors: bool = False
    long_rope: bool = False
    pattern: int = 1
    window_base: float = 0.0
    has_experts: bool = False
    needs_experts: bool = False


TABLE = {
    "gemma3": Architecture(
        activation="gelu",
        qk_norms=True,
        post_norms=True,
        scales_embedding=True,
        pattern=6,
        window_base=10_000.0,
    ),
    "llama": Architecture(
        pairs="neighbors",
        optional_biases=LAYERS,
        rope_factors=True,
        long_rope=True,
        has_experts=True,
    ),
    "phi3": Architecture(optional_biases=(), long_rope=True, pattern=0, fused=True),
    "qwen2": Architecture(biases=QKV, optional_biases=("output",)),
    "qwen3": Architecture(qk_norms=True),
    "qwen3moe": Architecture(qk_norms=True, has_experts=True, needs_experts=True),
    "smollm3": Architecture(pairs="neighbors", optional_biases=LAYERS, unrotated_interval=4),
}
"""The architectures by name."""

ARCHITECTURES = tuple(TABLE)
"""The names of the architectures that there are."""
