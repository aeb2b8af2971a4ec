"""Properties of GGUF files that cannot change the tokens or logits of a model.

A property that is neither read nor listed here refuses the file by its name. The name of the model
changes the tokens of Phi 3 alone: `subquant.models.tokenizer` reads it. Several properties are
harmless with a neutral value alone: ``attention.causal`` with any other value than true asks for
other arithmetic.

Sources: the GGUF specification of ggml; ``Keys`` of PyPI's ``gguf``; the properties that llama.cpp
reads for the architectures of `subquant.models.configuration`.
"""

from __future__ import annotations

from ..core.read_record import Irrelevant

_DESCRIBES = "describes the file to people"
_SOURCE_FIELDS = (
    "name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url",
)  # fmt: skip

_GENERAL = (
    *(
        Irrelevant(f"general.{name}", _DESCRIBES)
        for name in (
            *_SOURCE_FIELDS, "finetune", "basename", "quantized_by", "size_label", "license",
            "license.name", "license.link", "source.url", "source.doi", "source.uuid",
            "source.repo_url", "source.huggingface.repository", "tags", "languages", "datasets",
            "base_model.count", "dataset.count", "parameter_count",
        )
    ),
    *(
        Irrelevant(f"general.{kind}.[0-9]*.{name}", _DESCRIBES)
        for kind in ("base_model", "dataset")
        for name in _SOURCE_FIELDS
    ),
    *(
        Irrelevant(f"mradermacher.{name}", _DESCRIBES)
        for name in ("convert_type", "quantize_version", "quantized_at", "quantized_by",
                     "quantized_on")
    ),
    *(
        Irrelevant(f"quantize.imatrix.{name}", "describes how the weights were quantized")
        for name in ("file", "dataset", "entries_count", "chunks_count")
    ),
    Irrelevant("general.type", "is that of a model", ("model",)),
    Irrelevant("general.alignment", "places tensors in the file, which the reader has done"),
    Irrelevant("general.file_type", "names the type of most tensors, and each has its own"),
    Irrelevant("general.quantization_version", "is the version of ggml's block types", (2,)),
    *(
        Irrelevant(
            f"general.sampling.{name}", "recommends an option of sampling, which the caller chooses"
        )
        for name in ("sequence", "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold",
                     "temp", "penalty_last_n", "penalty_repeat", "mirostat", "mirostat_tau",
                     "mirostat_eta")
    ),
)  # fmt: skip

_OF_ARCHITECTURE = (
    ("attention.causal", "is what is computed", (True,)),
    ("attention.max_alibi_bias", "adds nothing", (0.0,)),
    ("attention.clamp_kqv", "clamps nothing", (0.0,)),
    ("attn_logit_softcapping", "caps nothing", (0.0,)),
    ("logit_scale", "scales nothing", (0.0, 1.0)),
    ("residual_scale", "scales nothing", (0.0, 1.0)),
    ("use_parallel_residual", "is what is computed", (False,)),
    ("expert_used_count", "belongs to experts, of which there are none", (0,)),
    ("expert_shared_count", "belongs to experts, of which there are none", (0,)),
    ("leading_dense_block_count", "belongs to experts, of which there are none", (0,)),
    ("nextn_predict_layers", "counts blocks that predict further tokens", (0,)),
    ("pooling_type", "pools the embedding of a text, which logits do not depend on", ()),
    ("rope.scaling.finetuned", "tells how the model was trained", ()),
    ("rope.scaling.original_context_length", "belongs to YaRN, and is read for that", ()),
    ("rope.scaling.attn_factor", "scales nothing", (1.0,)),
    ("tensor_data_layout", "is the order of rows of all GGUF files", ("Meta AI original pth",)),
)

_IMAGES = "belongs to images, which no prompt has"
_OF_IMAGES = {"gemma3": (("vision.*", _IMAGES, ()), ("mm.tokens_per_image", _IMAGES, ()))}
_VOCABULARY = (
    ("chat_template", "is read for conversations alone", ()),
    ("chat_templates", "lists templates for other uses than conversations", ()),
    ("chat_template.*", "is a template for another use than conversations", ()),
    ("huggingface.json", "repeats the vocabulary", ()),
    ("ggml.padding_token_id", "fills batches of texts, and one text is read at a time", ()),
    ("ggml.mask_token_id", "hides tokens in training", ()),
    ("ggml.seperator_token_id", "is written between texts if add_sep_token says so", ()),
    ("ggml.cls_token_id", "is written before a text that is classified", ()),
    ("ggml.add_eos_token", "is what is done", (False,)),
    ("ggml.add_sep_token", "is what is done", (False,)),
    ("ggml.add_padding_token", "is what is done", (False,)),
    ("ggml.add_unknown_token", "is what is done", (False,)),
    ("ggml.remove_extra_whitespaces", "is what is done", (False,)),
    *(
        (f"ggml.{name}_token_id", "is a token of prompts that ask for a middle part", ())
        for name in ("prefix", "suffix", "middle", "fim_pre", "fim_suf", "fim_mid")
    ),
)
_OF_KIND = {
    "llama": (
        ("ggml.pre", "splits text before byte pairs are merged, and pieces have scores", ()),
        ("ggml.merges", "are those of byte pairs, and pieces have scores", ()),
    ),
    "gpt2": (
        (
            "ggml.scores",
            "are those of pieces, and byte pairs are merged in the order of a list",
            (),
        ),
        ("ggml.add_space_prefix", "is what is done", (False,)),
    ),
}


def irrelevant_properties(architecture: str) -> list[Irrelevant]:
    """Return the properties that cannot change the logits of a model."""
    listed = (*_OF_ARCHITECTURE, *_OF_IMAGES.get(architecture, ()))
    return [*_GENERAL, *(Irrelevant(f"{architecture}.{k}", *r) for k, *r in listed)]


def irrelevant_vocabulary(kind: str) -> list[Irrelevant]:
    """Return the properties that cannot change the tokens of a text.

    Args:
        kind: the vocabulary's ``tokenizer.ggml.model``.
    """
    listed = (*_VOCABULARY, *_OF_KIND.get(kind, ()))
    return [Irrelevant(f"tokenizer.{key}", *reason) for key, *reason in listed]
