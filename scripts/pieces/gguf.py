"""GGUF: tensors and properties of small language models.

No reference runtime is at hand: a piece has to change the program, its weights, its tokens or its
chats, or to be named in an error, unless `_DESCRIPTIVE` has it.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import random
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import Base, Piece, choose, unknown_name, words

FILE = "x.gguf"
_TESTS = Path(__file__).resolve().parents[2] / "tests"
_ALIGNMENT = 32
_TEXTS = ("Hello world, they were one.", "a  b\n\tc<s></s>", "", " the and", "<|im_end|>x")
_DESCRIPTIVE = (
    *("general.name", "general.author", "general.organization", "general.description"),
    *("general.license*", "general.url", "general.tags", "general.languages", "general.basename"),
    *("general.size_label", "general.file_type", "general.quantization_version", "general.type"),
    *("general.quantized_by", "general.version", "general.finetune", "general.source.*"),
    *("general.base_model.*", "*.vocab_size", "*.context_length", "*.pooling_type"),
    *("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.mask_token_id", "tokenizer.ggml.scores"),
    *("general.sampling.*", "tokenizer.ggml.token_type", "*.rope.scaling.finetuned"),
    *("tokenizer.huggingface.json", "*.rope.scaling.original_context_length"),
)  # fmt: skip
"""Properties that describe the file, say again what its tensors say, are for embeddings or for
YaRN alone, or are of tokens that no text below has."""
_NEUTRAL = {
    **dict.fromkeys(
        ("attention.max_alibi_bias", "attention.clamp_kqv", "attn_logit_softcapping",
         "final_logit_softcapping", "attention.scale", "expert_count", "swin_norm",
         "use_parallel_residual",
         "expert_used_count", "leading_dense_block_count", "nextn_predict_layers",
         "ggml.add_eos_token", "ggml.add_sep_token", "ggml.remove_extra_whitespaces",
         "ggml.add_space_prefix"), (0.0,)
    ),
    **dict.fromkeys(
        ("rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "logit_scale",
         "residual_scale", "embedding_scale", "expert_weights_scale"), (0.0, 1.0)
    ),
    "rope.dimension_count": (32.0,),
    "rope.scaling.type": ("linear",),
}  # fmt: skip
"""Values that change nothing, as the absence of the property: heads below have 32 elements, and
positions are not scaled without a factor."""
_TOKENIZER = "tokenizer.ggml.model"
_END_TOKENS = {"llama": (2.0,), "gpt2": (0.0, 1.0)}
"""Tokens that end an answer by another property or by their names; ``eot_token_id`` may repeat
them."""
_SHOWN_BY = {
    **dict.fromkeys(
        ("attention.head_count", "attention.head_count_kv", "attention.key_length", "block_count",
         "attention.value_length", "embedding_length", "feed_forward_length"),
        ("tensor", "heads"),
    ),
    "rope.dimension_count": ("are turned", "rope_freqs"),
    "rope.scaling.type": ("rotary embeddings",),
    "expert_count": ("experts",),
    "general.architecture": ("architecture",),
    "split.count": ("split.",),
    "split.no": ("split.",),
    "tokenizer.ggml.tokens": ("token", "SentencePiece", "vocabulary"),
    "tokenizer.ggml.merges": ("merge", "token", "vocabulary"),
    "tokenizer.ggml.scores": ("SentencePiece",),
}  # fmt: skip
"""Words of the errors for properties that contradict the tensors or other properties."""


class GgufFile(Base):
    """A language model of random weights."""

    def program_of(self, files: dict[str, bytes]) -> bytes:
        """Return a digest of the program, and of the tokens of some texts."""
        from subquant.models import emit
        from subquant.models.chat import ChatTemplate
        from subquant.models.tokenizer import Tokenizer
        from subquant.weights.sources import open_weights

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / FILE
            path.write_bytes(files[FILE])
            program = Path(folder) / "m.mlir"
            emit(path, program, Path(folder) / "w.irpa", context=16)
            properties = dict(open_weights(path).properties)
            tokenizer = Tokenizer.from_properties(properties)
            tokens = [tokenizer.encode(text) for text in _TEXTS]
            texts = [tokenizer.decode(each) for each in tokens]
            ends = sorted(tokenizer.end_tokens), tokenizer.start_token, tokenizer.adds_start
            chat = ""
            if "tokenizer.chat_template" in properties:
                messages: Any = [{"role": "user", "content": "Hello"}]
                chat = str(ChatTemplate(properties, tokenizer).encode(messages))
            content = program.read_bytes() + repr((tokens, texts, chat, ends)).encode()
        return hashlib.sha256(content).digest()

    def expected_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Return a digest of the file without its description."""
        header = Header.of(files[FILE])
        vocabulary = _scalar(header.properties[_TOKENIZER])
        ends = _END_TOKENS.get(str(vocabulary), ())
        known = sorted(
            (key, value)
            for key, value in header.properties.items()
            if not any(fnmatch.fnmatch(key, each) for each in _DESCRIPTIVE)
            and _scalar(value) not in _NEUTRAL.get(key.partition(".")[2], ())
            and (key != "tokenizer.ggml.pre" or vocabulary == "gpt2")
            and (key != "tokenizer.ggml.eot_token_id" or _scalar(value) not in ends)
        )
        digest = hashlib.sha256(repr((known, sorted(header.tensors))).encode()).digest()
        return [np.frombuffer(digest, np.bool_)]

    def computed_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Return the expected results: the piece has changed the program."""
        return self.expected_of(files)


@dataclass
class Header:
    """The header of a file, as bytes of its parts.

    Args:
        properties: by key, the type and the value as bytes.
        tensors: by name, the rest of the tensor's record.
        data: the tensors' bytes.
    """

    properties: dict[str, bytes]
    tensors: dict[str, bytes]
    data: bytes

    @classmethod
    def of(cls, file: bytes) -> Header:
        """Read a file."""
        tensor_count, count = struct.unpack_from("<QQ", file, 8)
        offset = 24
        properties, tensors = {}, {}
        for _ in range(count):
            name, offset = _text(file, offset)
            [kind] = struct.unpack_from("<I", file, offset)
            end = _end(file, offset + 4, kind)
            properties[name], offset = file[offset:end], end
        for _ in range(tensor_count):
            name, offset = _text(file, offset)
            [rank] = struct.unpack_from("<I", file, offset)
            end = offset + 4 + 8 * rank + 12
            tensors[name], offset = file[offset:end], end
        return cls(properties, tensors, file[-(-offset // _ALIGNMENT) * _ALIGNMENT :])

    def to_bytes(self) -> bytes:
        """Write the file."""
        chunks = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.properties))]
        for name, rest in (*self.properties.items(), *self.tensors.items()):
            chunks += [struct.pack("<Q", len(name.encode())), name.encode(), rest]
        head = b"".join(chunks)
        return head + b"\0" * (-len(head) % _ALIGNMENT) + self.data


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _LIST = 8, 9


def _text(file: bytes, offset: int) -> tuple[str, int]:
    [length] = struct.unpack_from("<Q", file, offset)
    return file[offset + 8 : offset + 8 + length].decode(), offset + 8 + length


def _end(file: bytes, offset: int, kind: int) -> int:
    if kind == _STRING:
        return _text(file, offset)[1]
    if kind != _LIST:
        return offset + _SIZES[kind]
    of, count = struct.unpack_from("<IQ", file, offset)
    offset += 12
    for _ in range(count):
        offset = _end(file, offset, of)
    return offset


@functools.cache
def bases() -> list[Base]:
    """Models of each architecture."""
    sys.path.append(str(_TESTS))
    from gguf_models import SMALL, TinyModel

    models: list[Base] = []
    variants: list[dict[str, Any]] = [
        {"architecture": "llama"},
        {"architecture": "llama", "tied": True, "rope_factors": True},
        {"architecture": "gemma3", "blocks": 4},
        {"architecture": "qwen2", "vocabulary": "gpt2"},
        {"architecture": "qwen3", "vocabulary": "gpt2", "types": ("Q8_0", "Q4_0")},
    ]
    with tempfile.TemporaryDirectory() as folder:
        for number, variant in enumerate(variants):
            path = TinyModel(**{**SMALL, "blocks": 1, **variant}).write(f"{folder}/{number}.gguf")
            models.append(GgufFile(str(variant), {FILE: path.read_bytes()}))
    return models


# -- pieces ---------------------------------------------------------------------------------------

_KNOWN = words("""
attention.causal attention.clamp_kqv attention.max_alibi_bias attention.scale
attention.layer_norm_epsilon attention.group_norm_epsilon attention.key_length_mla
attention.sliding_window attention.sliding_window_pattern attention.head_count_kv
attention.temperature_length attention.output_scale attn_logit_softcapping
final_logit_softcapping logit_scale residual_scale embedding_scale expert_count
expert_used_count expert_weights_scale leading_dense_block_count pooling_type rope.scaling.type
rope.scaling.factor rope.scaling.attn_factor rope.scale_linear
rope.scaling.original_context_length rope.scaling.finetuned rope.dimension_count
rope.dimension_sections rope.freq_base rope.freq_base_swa rope.scaling.yarn_log_multiplier
ssm.conv_kernel use_parallel_residual swin_norm vocab_size tensor_data_layout
decoder_start_token_id block_count nextn_predict_layers hidden_activation
feed_forward_activation embedding_length_per_layer_input rescale_every_n_layers
""")
"""Keys of architectures that llama.cpp has, without the architecture."""
_GENERAL = words("""
general.alignment general.architecture general.name general.file_type general.sampling.temp
general.quantization_version split.count split.no tokenizer.ggml.add_eos_token
tokenizer.ggml.add_sep_token tokenizer.ggml.pre tokenizer.ggml.remove_extra_whitespaces
tokenizer.ggml.precompiled_charsmap tokenizer.ggml.eot_token_id tokenizer.ggml.model
tokenizer.ggml.add_space_prefix tokenizer.ggml.mask_token_id tokenizer.chat_template
adapter.type tokenizer.ggml.token_type_count general.tags imatrix.entries_count
tokenizer.ggml.eos_token_ids tokenizer.huggingface.json
""")
_TENSORS = words("""
blk.0.attn_output.bias blk.0.ffn_up.bias blk.0.ffn_gate.bias output.bias blk.0.ffn_down.bias
blk.0.attn_q.bias blk.0.attn_sinks.weight blk.0.attn_norm.bias output_norm.bias
blk.0.attn_q_norm.weight blk.0.ffn_norm.bias rope_freqs.weight blk.0.attn_q.scale
blk.1.attn_q.weight blk.0.post_ffw_norm.weight token_types.weight blk.0.attn_rot_embd.weight
blk.0.layer_output_scale.weight blk.0.ffn_gate_inp.weight output.scale cls.weight output.weight
blk.0.attn_q.input_scale token_embd_norm.weight rope_factors_long.weight position_embd.weight
""")


def draw(rng: random.Random) -> tuple[Base, Piece]:
    """Draw a model and a piece of it."""
    while True:
        base = choose(rng, bases())
        header = Header.of(base.files[FILE])
        change = rng.choice((_extra_property, _extra_property, _changed, _extra_tensor))(
            rng, header
        )
        if change is not None:
            what, names, is_unknown = change
            return base, Piece(what, names, {FILE: header.to_bytes()}, is_unknown)


def _scalar(value: bytes) -> float | str | None:
    """Return the number or the text of a property, with its type before it; None for a list."""
    [kind] = struct.unpack_from("<I", value)
    if kind == _STRING:
        return value[12:].decode()
    formats = {4: "<I", 5: "<i", 6: "<f", 7: "<B"}
    return float(struct.unpack_from(formats[kind], value, 4)[0]) if kind in formats else None


def _names(key: str) -> tuple[str, ...]:
    without = key.partition(".")[2]
    return key, without, *_SHOWN_BY.get(key, ()), *_SHOWN_BY.get(without, ())


def _drawn_value(rng: random.Random) -> tuple[str, bytes]:
    text = rng.choice(("yarn", "linear", "x", "gelu", "{{ messages }}"))
    number, real = rng.choice((0, 1, 2, 3, 7, 32, 1000)), rng.choice((0.0, 0.5, 1.0, 2.0, 30.0))
    choices = (
        (str(number), struct.pack("<II", 4, number)),
        (str(number), struct.pack("<II", 4, number)),
        (str(real), struct.pack("<If", 6, real)),
        (str(real), struct.pack("<If", 6, real)),
        (str(number % 2 == 1), struct.pack("<IB", 7, number % 2)),
        (text, struct.pack("<IQ", _STRING, len(text)) + text.encode()),
        (f"[{number}, 3]", struct.pack("<IIQII", _LIST, 4, 2, number, 3)),
    )
    return rng.choice(choices)


def _extra_property(rng: random.Random, header: Header) -> Any:
    architecture = header.properties["general.architecture"][12:].decode()
    unknown = unknown_name(rng)
    prefix = rng.choice((architecture, "general", "tokenizer.ggml", "tokenizer", "other"))
    key, is_unknown = f"{prefix}.{unknown}", True
    if rng.random() < 0.7:
        key, is_unknown = f"{architecture}.{rng.choice(_KNOWN)}", False
    elif rng.random() < 0.5:
        key, is_unknown = rng.choice(_GENERAL), False
    text, value = _drawn_value(rng)
    if header.properties.get(key) == value:
        return None
    header.properties[key] = value
    return f"{key} = {text}", _names(key), is_unknown


def _changed(rng: random.Random, header: Header) -> Any:
    key = rng.choice(list(header.properties))
    old = header.properties[key]
    [kind] = struct.unpack_from("<I", old)
    of = struct.unpack_from("<I", old, 4)[0] if kind == _LIST else kind
    if of == _STRING:  # whose lengths are not to change
        new: bytes = old[:-1] + (b"b" if old[-1:] == b"a" else b"a")
    elif kind == _LIST:
        body = bytearray(old)
        body[rng.randrange(16, len(body))] ^= 1
        new = bytes(body)
    elif kind == 6:
        [real] = struct.unpack_from("<f", old, 4)
        new = struct.pack("<If", 6, real * rng.choice((0.5, 2.0, 0.0)))
    elif kind == 7:
        new = struct.pack("<IB", 7, 1 - old[4])
    else:
        [number] = struct.unpack_from("<I", old, 4)
        new = struct.pack("<II", kind, number + rng.choice((1, 2, 32)))
        if _SIZES[kind] != 4:
            return None
    header.properties[key] = new
    return f"{key} = {new[4:24]!r} (was {old[4:24]!r})", _names(key), False


def _extra_tensor(rng: random.Random, header: Header) -> Any:
    unknown = unknown_name(rng)
    name = rng.choice((f"{unknown}.weight", f"blk.0.{unknown}.weight", *_TENSORS * 2))
    if name in header.tensors:
        return None
    count = rng.choice((1, 16, 64, 128))
    header.tensors[name] = struct.pack("<IQIQ", 1, count, 0, len(header.data))
    values = np.full(count, 0.5, np.float32).tobytes()
    header.data += values + b"\0" * (-len(values) % _ALIGNMENT)
    return f"the tensor {name} of {count}", (name,), unknown in name
