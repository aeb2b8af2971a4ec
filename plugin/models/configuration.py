"""Configuration of a language model: hyperparameters, and the tensors that they need.

A program is written from a `Configuration`. `gguf_configuration` reads it from the properties of a
GGUF file, and `huggingface.configuration` from a ``config.json``. `expected_tensors` has the
tensors of a model with their shapes, so that a file is checked before a program is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..core.read_record import Irrelevant
from ..errors import InputError
from ..layouts import InferenceTensor
from ..layouts.tensors import dtype_of
from ..numerics.element_types import FLOAT_DTYPES
from .architectures import (
    EXPERT_LAYERS,
    Activation,
    BlockStructure,
)
from .rotary_embedding import Rotation


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: feed-forward layers of which a router chooses some for each token.

    Attributes:
        count: the number of experts of a block.
        chosen: the number of experts that compute a token.
        hidden: the inner size of an expert.
        blocks: the numbers of the blocks with experts; others have one feed-forward layer.
        renormalizes: the weights of the chosen experts are divided by their sum.
        groups_floats: the tokens of a prompt are grouped by their experts also where weights are
            floats, whose chosen experts kernels of CPUs read.
    """

    count: int
    chosen: int
    hidden: int
    blocks: frozenset[int]
    renormalizes: bool = True
    groups_floats: bool = True


@dataclass(frozen=True)
class Configuration:
    """Hyperparameters of a model.

    Attributes:
        architecture: a name of `ARCHITECTURES`, or a ``model_type`` of checkpoints.
        structure: norms, biases and projections of the architecture's blocks.
        width: the size of the hidden state.
        hidden: the inner size of the feed-forward layers.
        heads, kv_heads: heads of queries, and of keys and values; `kv_heads` divides `heads`.
        head_size: the elements of a query, key or value of a head.
        context: the maximum number of tokens of the training.
        rotation: RoPE of blocks that attend to all tokens.
        window_rotation: RoPE of blocks with a window.
        window: the number of tokens that a block with a window attends to; 0 for all.
        attention_scale: the factor of dot products of queries and keys.
        logit_softcap: logits become ``c tanh(x / c)`` with this ``c``; 0 for no cap.
        biases: the linear layers of a block that have a bias.
        optional_tensors: the names of biases and scales of linear layers that the file has.
        tied: True if the embedding table is the output weight, too.
        unrotated_blocks: the numbers of blocks without rotary embeddings.
        experts: the mixture of experts, or None.
        quantizes_activations: inputs of linear layers are rounded as the checkpoint asks for.
    """

    architecture: str
    structure: BlockStructure
    blocks: int
    width: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    epsilon: float
    activation: Activation
    rotation: Rotation
    window_rotation: Rotation
    window: int
    windowed_blocks: tuple[bool, ...]
    attention_scale: float
    logit_softcap: float
    biases: tuple[str, ...]
    optional_tensors: frozenset[str]
    tied: bool
    unrotated_blocks: frozenset[int] = frozenset()
    experts: Experts | None = None
    quantizes_activations: bool = False

    @property
    def embedding_scale(self) -> float:
        """The factor of embeddings."""
        return math.sqrt(self.width) if self.structure.scales_embedding else 1.0

    def without_float_groups(self) -> Configuration:
        """Return the configuration with `Experts.groups_floats` false."""
        if self.experts is None:
            return self
        return replace(self, experts=replace(self.experts, groups_floats=False))

    def has_window(self, block: int) -> bool:
        """Return whether a block attends to the last tokens only."""
        return self.window > 0 and self.windowed_blocks[block]


def is_of_images(name: str) -> bool:
    """Return True for the name of a tensor of images, in files with the text model of Gemma 3."""
    return any(each.matches(name, None) for each in IMAGE_TENSORS)


IMAGE_TENSORS = [
    Irrelevant(f"{prefix}.*", "belongs to images, which no prompt has") for prefix in ("v", "mm")
]


def unrotated_blocks(blocks: int, interval: int) -> frozenset[int]:
    """Return every block of an interval; none for 0."""
    return frozenset(range(interval - 1, blocks, interval)) if interval else frozenset()


def expected_tensors(configuration: Configuration) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a model takes, with their shapes."""
    c = configuration
    queries, keys = c.heads * c.head_size, c.kv_heads * c.head_size
    linear = {
        "attn_q": (queries, c.width),
        "attn_k": (keys, c.width),
        "attn_v": (keys, c.width),
        "attn_output": (c.width, queries),
        "ffn_gate": (c.hidden, c.width),
        "ffn_up": (c.hidden, c.width),
        "ffn_down": (c.width, c.hidden),
    }
    if c.structure.fused:
        linear = {
            "attn_qkv": (queries + 2 * keys, c.width),
            "attn_output": linear["attn_output"],
            "ffn_up": (2 * c.hidden, c.width),
            "ffn_down": linear["ffn_down"],
        }
    first: dict[str, tuple[int, ...]] = {"attn_norm.weight": (c.width,)}
    first |= {"ffn_norm.weight": (c.width,)}
    last: dict[str, tuple[int, ...]] = {}
    if c.structure.qk_norms:
        last |= {"attn_q_norm.weight": (c.head_size,), "attn_k_norm.weight": (c.head_size,)}
    if c.structure.post_norms:
        last |= {"post_attention_norm.weight": (c.width,), "post_ffw_norm.weight": (c.width,)}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (c.vocabulary, c.width),
        "output_norm.weight": (c.width,),
    }
    if not c.tied:
        shapes["output.weight"] = (c.vocabulary, c.width)
    if c.rotation.has_factors:
        shapes["rope_freqs.weight"] = (c.rotation.size // 2,)
    sparse = {
        **{layer: shape for layer, shape in linear.items() if not layer.startswith("ffn_")},
        **_expert_shapes(c),
    }
    for number in range(c.blocks):
        layers = sparse if c.experts and number in c.experts.blocks else linear
        block = first | {f"{layer}.weight": shape for layer, shape in layers.items()}
        block |= {f"{layer}.bias": layers[layer][:1] for layer in c.biases if layer in layers}
        shapes |= {f"blk.{number}.{name}": shape for name, shape in (block | last).items()}
    for name in sorted(c.optional_tensors):
        *_, layer, kind = name.split(".")
        weight = shapes.get(name.removesuffix(kind) + "weight")
        if weight is None:  # that of an output that is the table of embeddings, say
            continue
        is_of_experts = layer in EXPERT_LAYERS
        shapes[name] = weight[:1] if kind == "bias" or is_of_experts else (1,)
    return shapes


def _expert_shapes(configuration: Configuration) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the router and of the experts of a block, by layer."""
    experts, width = configuration.experts, configuration.width
    if experts is None:
        return {}
    inner, outer = (experts.count, experts.hidden, width), (experts.count, width, experts.hidden)
    return {
        "ffn_gate_inp": (experts.count, width),
        "ffn_gate_exps": inner,
        "ffn_up_exps": inner,
        "ffn_down_exps": outer,
    }


def check_tensors(
    configuration: Configuration,
    tensors: Mapping[str, InferenceTensor],
    name_in_file: Callable[[str], str] = str,
) -> None:
    """Raise InputError for a tensor that is missing, of another shape, or of integers alone."""
    for name, shape in expected_tensors(configuration).items():
        if name not in tensors:
            raise InputError(
                f"the file has no tensor '{name_in_file(name)}', which a model of the architecture "
                f"'{configuration.architecture}' needs"
            )
        if tensors[name].shape != shape:
            raise InputError(
                f"tensor '{name_in_file(name)}' has the shape {list(tensors[name].shape)}, "
                f"expected {list(shape)}"
            )
        dtype = dtype_of(tensors[name])
        if dtype is not None and dtype not in FLOAT_DTYPES:
            raise InputError(
                f"tensor '{name_in_file(name)}' is of {dtype.name} and has no scales, expected "
                "floats of 16 bits or more, or a quantization that the file describes"
            )
