"""The configuration of a language model, as the properties of its GGUF file say.

Everything that a program is written from is in a `Configuration`, and
`expected_tensors` says which tensors it takes, so that a file is checked before anything is built.
A tensor or property that is not read, and not known to be irrelevant, refuses the file.

Sources: the keys of GGUF, as PyPI's ``gguf`` lists them; llama.cpp's ``src/models``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.read_record import Irrelevant, ReadRecord
from ..errors import InputError, Place, SubquantError, UnsupportedError
from ..layouts import InferenceTensor, PrimitiveTensor
from ..layouts.tensors import dtype_of
from ..numerics.element_types import FLOAT_DTYPES
from .architectures import (
    ARCHITECTURES,
    EXPERT_LAYERS,
    LAYERS,
    TABLE,
    Activation,
    Architecture,
    BlockStructure,
)
from .irrelevant_properties import irrelevant_properties
from .properties import Properties, architecture_of
from .rotary_embedding import LongRope, Rotation


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
        size: the size of a head.
        context: the maximum number of tokens of the training.
        rotation: RoPE of blocks that attend to all tokens.
        window_rotation: RoPE of blocks with a window.
        window: the number of tokens that a block with a window attends to; 0 for all.
        attention_scale: the factor of products of queries and keys.
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
    size: int
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

    @classmethod
    def of(
        cls,
        properties: Mapping[str, Any],
        tensors: Mapping[str, InferenceTensor],
        location: Place | None = None,
    ) -> Configuration:
        """Read the properties of a file.

        The vocabulary's properties (``tokenizer.*``) are left to `subquant.models.vocabulary`.

        Raises:
            UnsupportedError: the architecture is none of `ARCHITECTURES`, or the file has a tensor
                or a property that is not computed with: another scaling of rotary embeddings, say.
            InputError: a property is missing or makes no sense, or a tensor is missing or has
                other extents.
        """
        of_model = {k: value for k, value in properties.items() if not k.startswith("tokenizer.")}
        try:
            name = architecture_of(properties, ARCHITECTURES)
            record = ReadRecord(None)
            values = Properties(record.track("property", of_model, irrelevant_properties(name)))
            images = _IMAGE_TENSORS if name == "gemma3" else []
            tracked = record.track("tensor", tensors, images)
            configuration = cls._of(name, values, tracked)
            check_tensors(configuration, tracked)
            _check_rows(configuration.vocabulary, values, properties.get("tokenizer.ggml.tokens"))
            record.finish("use a model without, or a tool that knows it")
        except SubquantError as error:
            raise error.located(location) from None
        return configuration

    @classmethod
    def _of(
        cls, name: str, values: Properties, tensors: Mapping[str, InferenceTensor]
    ) -> Configuration:
        kind = TABLE[name]
        width, heads = values.count("embedding_length"), values.count("attention.head_count")
        kv_heads = values.count("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise InputError(
                f"the model has {heads} heads and {kv_heads} of keys and values, expected a divisor"
            )
        size = values.count("attention.key_length", width // heads or None)
        of_values = values.count("attention.value_length", size)
        if of_values != size:
            raise UnsupportedError(
                f"heads have keys of {size} and values of {of_values}, expected the same"
            )
        rotary_size = values.count("rope.dimension_count", size)
        if rotary_size % 2 or rotary_size > size:
            raise InputError(
                f"{rotary_size} elements of heads of {size} are turned, expected an even number "
                "of them"
            )
        base = values.number("rope.freq_base", 10_000.0, 1.0)
        context = values.count("context_length")
        scaling = values.scaling(kind.long_rope)
        rotation = Rotation(base, rotary_size, 1.0 / values.rope_factor(scaling), kind.pairs)
        if scaling == "yarn":
            rotation = replace(rotation, yarn=values.yarn(context, base))
        # Files of Phi 3 do not always say how they are scaled.
        if scaling == "longrope" or (name == "phi3" and _LONG_ROPE.intersection(tensors)):
            rotation = _with_long_rope(rotation, values, tensors, context)
        elif kind.rope_factors and "rope_freqs.weight" in tensors:
            rotation = replace(rotation, has_factors=True)
        table = tensors.get("token_embd.weight")
        blocks = values.count("block_count")
        if blocks > len(tensors):
            raise InputError(
                f"the model has {blocks:,} blocks, and the file {len(tensors)} tensors"
            )
        vocabulary = table.shape[0] if table is not None and table.shape else 0
        window = values.window(context, kind.pattern)
        window_rotation = rotation
        windowed = (False,) * blocks
        if kind.pattern == 0:
            windowed = (window > 0,) * blocks
        if kind.window_base:
            window_base = values.number("rope.freq_base_swa", kind.window_base, 1.0)
            windowed = values.windowed_blocks(blocks, kind.pattern)
            if window:
                window_rotation = Rotation(window_base, rotary_size, 1.0, kind.pairs)
        hidden = values.count("feed_forward_length")
        experts = _experts(kind, values, tensors, blocks, hidden)
        return cls(
            architecture=name,
            structure=kind,
            blocks=blocks,
            width=width,
            hidden=hidden,
            vocabulary=vocabulary,
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            context=context,
            epsilon=values.number("attention.layer_norm_rms_epsilon"),
            activation=kind.activation,
            rotation=rotation,
            window_rotation=window_rotation,
            window=window,
            windowed_blocks=windowed,
            attention_scale=values.optional_number(
                "attention.scale", _attention_scale(name, blocks, width // heads, size)
            ),
            logit_softcap=values.optional_number("final_logit_softcapping", 0.0),
            biases=kind.biases,
            optional_tensors=frozenset(_optional_names(kind, blocks) & tensors.keys()),
            tied="output.weight" not in tensors,
            experts=experts,
            unrotated_blocks=unrotated_blocks(blocks, kind.unrotated_interval),
        )

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


_LONG_ROPE = frozenset(("rope_factors_short.weight", "rope_factors_long.weight"))


def _with_long_rope(
    rotation: Rotation, values: Properties, tensors: Mapping[str, InferenceTensor], context: int
) -> Rotation:
    """Return a rotation with the divisors of LongRoPE.

    Sources: llama.cpp, ``llama_model_phi3``, ``llama_model_llama`` and
    ``llama_model::get_rope_factors``; ``conversion/base.py``, which writes the type ``longrope``.
    """
    if rotation.yarn is not None:
        raise UnsupportedError(
            "rotary embeddings are scaled by 'yarn', and the file has the divisors "
            f"'{min(_LONG_ROPE)}' of LongRoPE; expected one of them"
        )
    pairs, divisors = rotation.size // 2, []
    for name in sorted(_LONG_ROPE, reverse=True):  # those of short contexts first
        tensor = tensors.get(name)
        array = np.zeros(1)
        if isinstance(tensor, PrimitiveTensor) and tensor.shape == (pairs,):
            array = np.asarray(tensor.array, np.float64)
        if not (np.isfinite(array) & (array > 0)).all():
            raise InputError(f"the file has no tensor '{name}' of {pairs} numbers above 0")
        divisors.append(tuple(array.tolist()))
    original = values.count("rope.scaling.original_context_length", context)
    factor = values.optional_number("rope.scaling.attn_factor", 1.0)
    return replace(rotation, long_rope=LongRope(original, *divisors), attention_factor=factor)


def is_of_images(name: str) -> bool:
    """Return True for the name of a tensor of images, in files with the text model of Gemma 3."""
    return any(each.matches(name, None) for each in _IMAGE_TENSORS)


_IMAGE_TENSORS = [
    Irrelevant(f"{prefix}.*", "belongs to images, which no prompt has") for prefix in ("v", "mm")
]


def _experts(
    kind: Architecture,
    values: Properties,
    tensors: Mapping[str, InferenceTensor],
    blocks: int,
    hidden: int,
) -> Experts | None:
    """Return the mixture of experts, if there is one; blocks with an ``ffn_gate`` have none.

    Source: llama.cpp, ``llama_model_llama`` and ``llama_model_qwen3moe``: softmax of all experts,
    and weights that are divided by their sum.
    """
    if not kind.has_experts:
        if values.count("expert_count", 0):
            raise UnsupportedError(
                "the model has experts, and only models of the architectures llama and qwen3moe "
                "are supported with them"
            )
        return None
    count = values.count("expert_count", 0)
    if not count and not kind.needs_experts:
        return None
    chosen = values.count("expert_used_count")
    if chosen > count:
        raise InputError(f"{chosen} of {count} experts compute a token, expected {count} at most")
    if kind.needs_experts:
        hidden = values.count("expert_feed_forward_length", max(1, hidden // chosen))
    dense = {n for n in range(blocks) if f"blk.{n}.ffn_gate.weight" in tensors}
    return Experts(count, chosen, hidden, frozenset(range(blocks)) - dense)


def unrotated_blocks(blocks: int, interval: int) -> frozenset[int]:
    """Return every block of an interval; none for 0."""
    return frozenset(range(interval - 1, blocks, interval)) if interval else frozenset()


def _attention_scale(architecture: str, blocks: int, share: int, size: int) -> float:
    """Return the factor of products of queries and keys where the file has none.

    Hugging Face's configuration of Gemma 3 has it as ``query_pre_attn_scalar``, which is the size
    of a head for all of Google's models but 27B, where it is the width divided by the heads.
    llama.cpp's converter does not write it, and its loader knows 27B by the 62 blocks that no other
    model has. Source: llama.cpp, ``llm_type`` and ``f_attention_scale`` of LLM_ARCH_GEMMA3.
    """
    return 1 / math.sqrt(max(share, 1) if (architecture, blocks) == ("gemma3", 62) else size)


def _optional_names(kind: Architecture, blocks: int) -> set[str]:
    """Return the names of tensors of linear layers that a file may have.

    Scales are the second scales of NVFP4, one for a whole weight.
    """
    of_layers = {f"{layer}.scale" for layer in (*LAYERS, "output")}
    if kind.has_experts:
        of_layers |= {f"{layer}.scale" for layer in EXPERT_LAYERS}
    of_layers |= {f"{layer}.bias" for layer in kind.optional_biases}
    of_model = {name for name in of_layers if name.startswith("output.")}
    of_block = of_layers - of_model
    return of_model | {f"blk.{number}.{name}" for number in range(blocks) for name in of_block}


def expected_tensors(configuration: Configuration) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a model takes, with their shapes."""
    c = configuration
    queries, keys = c.heads * c.size, c.kv_heads * c.size
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
        last |= {"attn_q_norm.weight": (c.size,), "attn_k_norm.weight": (c.size,)}
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


def _check_rows(rows: int, values: Properties, tokens: Any) -> None:
    """Compare the table of embeddings with the vocabulary; InputError for another number of rows.

    Rows without a token have logits that count in no text, and llama.cpp refuses them too.
    """
    if isinstance(tokens, list) and len(tokens) != rows:
        raise InputError(
            f"tensor 'token_embd.weight' has {rows} rows for the {len(tokens)} tokens of the "
            "vocabulary, expected a row for each token; convert the model again, with a token for "
            "each row"
        )
    declared = values.count("vocab_size", rows)
    if declared != rows:
        raise InputError(
            f"tensor 'token_embd.weight' has {rows} rows, expected {declared}, the property "
            "'vocab_size'; convert the model again"
        )
