"""Architectures of Hugging Face's checkpoints, by ``model_type``, and the keys that change nothing.

Defaults are those of transformers' configuration classes, which leave out of ``config.json`` what
is a default.

Source: transformers 5.24, ``configuration_*.py`` and ``modeling_*.py`` of each model.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.read_record import Irrelevant
from ..architectures import QKV, BlockStructure


@dataclass(frozen=True)
class ExpertDefaults:
    """The differences of mixtures of experts.

    Attributes:
        count: the default of ``num_local_experts`` or ``num_experts``.
        chosen: the default of ``num_experts_per_tok``.
        hidden: the default of ``moe_intermediate_size``; None for ``intermediate_size``.
        has_dense_blocks: ``mlp_only_layers`` and ``decoder_sparse_step`` name blocks without
            experts, and ``norm_topk_prob`` says whether the weights of the chosen experts are
            divided by their sum; they always are without these keys.
    """

    count: int
    chosen: int
    hidden: int | None = None
    has_dense_blocks: bool = False


@dataclass(frozen=True)
class CheckpointArchitecture(BlockStructure):
    """The differences of an architecture from Llama in checkpoints.

    Attributes:
        heads: the default of ``num_attention_heads``, where files may leave it out.
        context: the default of ``max_position_embeddings``, likewise.
        vocabulary: the default of ``vocab_size``, likewise.
        kv_heads: the default of ``num_key_value_heads``; None for ``num_attention_heads``.
        head_size: the default of ``head_dim``; None for the width divided by the heads.
        epsilon: the default of ``rms_norm_eps``.
        rope_base: the default of ``rope_theta``.
        window: the default of ``sliding_window``.
        has_windows: ``sliding_window`` is a key of the architecture.
        has_layer_types: ``layer_types`` says which blocks have the window; else all do.
        needs_window_flag: there is a window only if ``use_sliding_window`` says so.
        pattern: every such block attends to all tokens where there is a window; 0 if none does.
        is_tied: the default of ``tie_word_embeddings``.
        rotates_partially: ``partial_rotary_factor`` counts; transformers ignores it elsewhere.
        experts: the defaults of the mixture of experts, if the architecture has one.
    """

    heads: int | None = None
    context: int | None = None
    vocabulary: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    epsilon: float = 1e-6
    rope_base: float = 10_000.0
    window: int | None = None
    has_windows: bool = True
    has_layer_types: bool = False
    needs_window_flag: bool = False
    pattern: int = 0
    is_tied: bool = False
    rotates_partially: bool = False
    experts: ExpertDefaults | None = None


TABLE = {
    "llama": CheckpointArchitecture(has_windows=False),
    "mistral": CheckpointArchitecture(kv_heads=8, window=4096),
    "qwen2": CheckpointArchitecture(
        biases=QKV, kv_heads=32, window=4096, needs_window_flag=True, has_layer_types=True
    ),
    "qwen3": CheckpointArchitecture(
        qk_norms=True,
        kv_heads=32,
        head_size=128,
        window=4096,
        needs_window_flag=True,
        has_layer_types=True,
    ),
    "gemma3_text": CheckpointArchitecture(
        qk_norms=True,
        post_norms=True,
        norm_offset=1.0,
        scales_embedding=True,
        heads=8,
        context=131_072,
        vocabulary=262_208,
        kv_heads=4,
        head_size=256,
        rope_base=1_000_000.0,
        window=4096,
        pattern=6,
        has_layer_types=True,
        is_tied=True,
    ),
    "phi3": CheckpointArchitecture(fused=True, epsilon=1e-5, rotates_partially=True),
    "smollm3": CheckpointArchitecture(
        kv_heads=4,
        rope_base=2_000_000.0,
        needs_window_flag=True,
        has_layer_types=True,
        is_tied=True,
        unrotated_interval=4,
    ),
    "mixtral": CheckpointArchitecture(
        kv_heads=8, epsilon=1e-5, rope_base=1_000_000.0, experts=ExpertDefaults(8, 2)
    ),
    "qwen3_moe": CheckpointArchitecture(
        qk_norms=True,
        kv_heads=4,
        window=4096,
        needs_window_flag=True,
        experts=ExpertDefaults(128, 8, 768, has_dense_blocks=True),
    ),
}
"""The architectures by ``model_type``."""

WINDOW_ROPE_BASE = 10_000.0
"""The default of Gemma 3's ``rope_local_base_freq``."""

_DROPOUT = "drops elements in training"
_RUNNING = "says how another program runs the model"
_LOSS = "belongs to the loss of training"
_SAMPLING = "is a default of sampling, which options say here"
_OTHER_TASKS = "is for other tasks than text"

IRRELEVANT_KEYS = [
    Irrelevant("architectures", "names the Python class of 'model_type'"),
    Irrelevant("auto_map", "names Python code that transformers has for this 'model_type'"),
    Irrelevant("transformers_version", "names the version that wrote the file"),
    Irrelevant("_name_or_path", "names the model"),
    Irrelevant("_attn_implementation*", _RUNNING),
    Irrelevant("unsloth_*", "names the program that trained the model"),
    *(
        Irrelevant(key, "is the type of the tensors, which each tensor has of its own")
        for key in ("torch_dtype", "dtype")
    ),
    *(
        Irrelevant(key, _RUNNING)
        for key in ("use_cache", "cache_implementation", "pretraining_tp", "return_dict",
                    "output_attentions", "output_hidden_states", "output_router_logits",
                    "chunk_size_feed_forward", "torchscript", "use_bfloat16", "tf_legacy_loss",
                    "transformers.js_config")
    ),
    *(
        Irrelevant(key, _DROPOUT)
        for key in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop")
    ),
    Irrelevant("initializer_range", "is the spread of weights before training"),
    Irrelevant("router_aux_loss_coef", _LOSS),
    Irrelevant("router_jitter_noise", "is added in training"),
    *(
        Irrelevant(f"{name}_token_id", "is a token, which the tokenizer reads")
        for name in ("bos", "eos", "pad")
    ),
    *(
        Irrelevant(key, _SAMPLING)
        for key in ("max_length", "min_length", "do_sample", "early_stopping", "num_beams",
                    "num_beam_groups", "num_return_sequences", "temperature", "top_k", "top_p",
                    "typical_p", "*_penalty", "*no_repeat_ngram_size", "bad_words_ids",
                    "output_scores", "return_dict_in_generate", "remove_invalid_values",
                    "forced_*_token_id", "suppress_tokens", "begin_suppress_tokens")
    ),
    *(
        Irrelevant(key, _OTHER_TASKS)
        for key in ("problem_type", "id2label", "label2id", "num_labels", "finetuning_task",
                    "task_specific_params", "sep_token_id", "decoder_start_token_id", "prefix")
    ),
    Irrelevant("tokenizer_class", "names a Python class, and tokenizer.json is the tokenizer"),
    Irrelevant("max_sequence_length", "is the length of texts in training"),
    Irrelevant("is_llama_config", "names the conversion that wrote the file", (True,)),
    Irrelevant("is_decoder", "is what is computed"),
    *(
        Irrelevant(key, "is what is computed", (1,))
        for key in ("full_attn_mod", "interpolate_factor")
    ),
    *(
        Irrelevant(key, "is what is computed", (False,))
        for key in ("is_encoder_decoder", "rope_interleaved", "use_mrope", "add_cross_attention",
                    "tie_encoder_decoder", "mlp_bias", "lm_head_bias")
    ),
    Irrelevant("pruned_heads", "prunes nothing", ({},)),
    Irrelevant("use_bidirectional_attention", "is what is computed", (False,)),
    Irrelevant("quantization_config", "says how weights are packed, and the reader unpacks them"),
]  # fmt: skip
"""Keys of ``config.json`` that cannot change logits."""
