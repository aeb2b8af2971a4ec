"""Damage to the JSON files of Hugging Face checkpoints, and their valid folders."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from . import ROOT
from .mutations import mutate_text

FOLDERS = ROOT / "tests/data/huggingface"
WEIGHTS, CONFIGURATION = "model.safetensors", "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIGURATION = "tokenizer.json", "tokenizer_config.json"
GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"
_FILES = (CONFIGURATION, GENERATION, "quantize_config.json", INDEX, TOKENIZER,
          TOKENIZER_CONFIGURATION, TEMPLATE)  # fmt: skip
_OLD = "config_4x.json"
"""The configuration that earlier versions of transformers write for the same model."""
_TOKENIZER_OF = "llama"
"""The folder whose tokenizer the folders without one get."""

Files = dict[str, bytes]
Expectation = Literal["anything", "refused", "changed", "equal"]
"""The result that must follow: any; an error; an error or another model; the same model."""


@dataclass(frozen=True)
class Damage:
    """A damaged folder.

    Args:
        what: the damage, for the message of a failure.
        files: the contents of all files, by name.
        renders: the chat template is rendered too, which takes a process of its own.
    """

    what: str
    files: Files
    expected: Expectation = "anything"
    renders: bool = False


@functools.cache
def folders() -> dict[str, Files]:
    """Return the files of each folder that libraries wrote, with a tokenizer for each."""
    loaded: dict[str, Files] = {}
    for folder in sorted(path.parent for path in FOLDERS.glob(f"*/{CONFIGURATION}")):
        paths = [*folder.glob("*.safetensors"), *(folder / name for name in _FILES)]
        loaded[folder.name] = {path.name: path.read_bytes() for path in paths if path.exists()}
        if (folder / _OLD).exists():
            old = {CONFIGURATION: (folder / _OLD).read_bytes()}
            loaded[f"{folder.name} of transformers 4"] = loaded[folder.name] | old
    tokenizer = loaded[_TOKENIZER_OF]
    for files in loaded.values():
        if TOKENIZER not in files:
            for name in (TOKENIZER, TOKENIZER_CONFIGURATION, TEMPLATE):
                files[name] = tokenizer[name]
    return loaded


# -- JSON ------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 5, 7, 16, 31, 33, 64, 1 << 31, 1 << 62, 1 << 63, -1 << 63),
    *(10**19, 10**40, 0.5, -0.5, 1.5, 1e-300, 1e308, -0.0, float("nan"), float("inf"), 1e-45),
    *("", "x", "1", "gptq", "full_attention", "float32", "\x1b[2J", "\ud800", "a" * 5000),
    *("9" * 5000, "../x", "re:(", "re:(a*)*$", "re:.*", "torch.bfloat16", "1x1", "9" * 4400 + "x1"),
    *([], [0], [None], [[]], [1, 1], [-1, 2], [1 << 62, 1], ["a", 1], [{}], [True] * 3, [0.5, 2]),
    *({}, {"a": 1}, {"factor": 8.0}, {"_data": 1, "_type": "x"}, {"": {}}),
)  # fmt: skip
_DEPTH = 150
"""Levels of lists: more than are read."""


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value below a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(
        value if isinstance(value, list) else ())  # fmt: skip
    for key, inner in items:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _new_value(rng: random.Random, old: Any) -> Any:
    kind = rng.randrange(10)
    if kind == 0 and type(old) in (int, float):
        return old + rng.choice((-1, 1, 0.25, old))
    if kind == 1 and isinstance(old, str):
        return rng.choice((old + "x", old.upper(), old[:-1], [old]))
    if kind == 2 and isinstance(old, list):
        return rng.choice((old[:-1], [*old, *old[:1]], old[::-1], old * 2, dict(enumerate(old))))
    if kind == 3 and isinstance(old, dict):
        return rng.choice((list(old), list(old.values()), {"x": old}, dict.fromkeys(old)))
    if kind == 4:
        return rng.choice((type(old) is bool and not old, str(old), [old], {"default": old}))
    if kind == 5 and rng.random() < 0.1:
        return _nested(_DEPTH)
    return copy.deepcopy(rng.choice(VALUES))


@dataclass(frozen=True)
class Change:
    """A changed value of a JSON object.

    Args:
        path: the keys of the value, with dots between them.
        old: the value as it was.
        new: the value; None if it is removed.
        is_added: the object did not have the key.
        is_removed: the object does not have the key.
    """

    path: str
    old: Any
    new: Any
    is_added: bool = False
    is_removed: bool = False

    def __str__(self) -> str:
        """The path, and the new value."""
        return f"no {self.path}" if self.is_removed else f"{self.path}={json.dumps(self.new)[:60]}"

    @property
    def is_same(self) -> bool:
        """True if the value is as it was, or a null was removed."""
        if self.is_removed:
            return self.old is None
        return not self.is_added and json.dumps(self.old) == json.dumps(self.new)

    @property
    def is_same_number(self) -> bool:
        """True if the value is an integer in place of a float, or the contrary."""
        numbers = {type(self.old), type(self.new)}
        return numbers == {int, float} and bool(self.old == self.new)


def damage_json(rng: random.Random, value: Any, within: tuple[Any, ...] = ()) -> Change:
    """Change a value of a JSON object, below a path."""
    paths = [path for path in paths_of(value) if path[: len(within)] == within]
    *parents, key = rng.choice(paths)
    owner = functools.reduce(lambda inner, each: inner[each], parents, value)
    path, old = ".".join(map(str, (*parents, key))), copy.deepcopy(owner[key])
    change = rng.random()
    if change < 0.2:
        del owner[key]
        return Change(path, old, None, is_removed=True)
    if change < 0.28 and isinstance(owner, dict):
        name = f"zeta_{rng.randrange(100)}"
        owner[name] = copy.deepcopy(rng.choice(VALUES))
        path = ".".join(map(str, (*parents, name)))
        return Change(path, None, owner[name], is_added=True)
    if change < 0.36:  # a part in another place
        source = functools.reduce(lambda inner, each: inner[each], rng.choice(paths), value)
        owner[key] = copy.deepcopy(source)
    else:
        owner[key] = _new_value(rng, owner[key])
    return Change(path, old, owner[key])


def encoded(value: Any) -> bytes:
    """Return a value as a JSON file has it."""
    return json.dumps(value, ensure_ascii=True).encode()


# -- config.json -----------------------------------------------------------------------------------

_NOTHING_READS = (
    "vision_config*", "*_token_index", "mm_tokens_per_image", "multimodal_projector_bias",
    "projector_hidden_act", "spatial_merge_size", "vision_feature_layer*",
    "architectures*", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "pretraining_tp", "attention_dropout", "initializer_range", "bos_token_id*", "eos_token_id*",
    "pad_token_id", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
    "resid_pdrop", "cache_implementation", "original_max_position_embeddings",
    "embd_pdrop", "quantization_config.meta*", "quantization_config.uri",
    "quantization_config.quant_type*", "quantization_config.ignore*",
    "quantization_config.modules_to_not_convert*", "quantization_config.scale_fmt",
    "quantization_config._load_in_?bit", "quantization_config.bnb_4bit_compute_dtype",
    "quantization_config.bnb_4bit_quant_storage", "quantization_config.bnb_4bit_use_double_quant",
    "quantization_config.lm_head", "quantization_config.include_input_output_embeddings",
    "quantization_config.untie_embedding_weights", "quantization_config.version",
    "quantization_config.global_compression_ratio", "quantization_config.llm_int8_skip_modules*",
    "quantization_config.llm_int8_enable_fp32_cpu_offload", "quantization_config.dequantize",
    "quantization_config.*.observer*", "quantization_config.*.targets*",
    "quantization_config.*.weights.scale_dtype", "quantization_config.llm_int8_threshold",
    "max_window_layers", "*sliding_window_pattern", "quantization_config.*.zp_dtype",
)  # fmt: skip
"""Paths of ``config.json`` that change no result: other files or the tensors say the same."""
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window",
                     "load_in_4bit", "load_in_8bit", "llm_int8_has_fp16_weight", "desc_act",
                     "sym", "dynamic"), (False,)),
    "hidden_act": ("silu",), "head_dim": (16, 32), "rope_theta": (10_000.0, 1_000_000.0),
    "expert_dtype": ("fp8",),
    "rope_type": ("default",), "use_bidirectional_attention": (False,),
    "layer_types": (["full_attention"], ["full_attention", "sliding_attention"]),
    "rope_parameters": (
        {"rope_theta": 10_000.0, "rope_type": "default"},
        {"rope_theta": 1_000_000.0, "rope_type": "default"},
        {"rope_theta": 10_000.0, "rope_type": "default", "partial_rotary_factor": 1.0},
    ), "num_bits": (8,),
    "symmetric": (True,), "zero_point": (True,), "type": ("int",), "pack_dtype": ("int32",),
    "quantization_status": ("compressed",), "sparsity_config": ({},), "transform_config": ({},),
    "rms_norm_eps": (1e-6, 1e-5), "strategy": ("token", "group", "tensor"),
    "bnb_4bit_quant_type": ("fp4",), "activation_scheme": ("dynamic",),
    "partial_rotary_factor": (1.0,), "tie_word_embeddings": (False, True),
    "decoder_sparse_step": (1,), "hidden_activation": ("gelu_pytorch_tanh",),
    "num_experts_per_tok": (2,), "rope_local_base_freq": (10_000.0,),
    "sliding_attention": ({"rope_theta": 10_000.0, "rope_type": "default"},),
}  # fmt: skip
"""Values that keys may leave out, as they are the defaults."""
_REPEATED = (
    "quantization_config",
    "quantization_config.format",
    "quantization_config.*.format",
    "quantization_config.method",
    "quantization_config.quant_method",
    "quantization_config.checkpoint_format",
    "rope_parameters.original_max_position_embeddings",
)
"""Paths of values that another key repeats."""


def configuration(rng: random.Random, files: Files) -> Damage:
    """A changed value of ``config.json``."""
    config = json.loads(files[CONFIGURATION])
    within = ("quantization_config",) if "quantization_config" in config else ()
    change = damage_json(rng, config, within if rng.random() < 0.5 else ())
    expected: Expectation = "refused" if change.is_added else "changed"
    values = change.new.values() if isinstance(change.new, dict) else [change.new]
    is_missing = all(value is None for value in values)
    is_default = is_missing and (
        _matches(change.path, _REPEATED)
        or change.old in _DEFAULTS.get(change.path.rpartition(".")[2], ())
    )
    is_unused = change.path == "sliding_window" and config.get("use_sliding_window") is False
    is_unused |= str(change.old).lower() == str(change.new).lower()
    is_unused |= change.is_same_number
    is_unused |= b'"awq"' in files[CONFIGURATION] and change.path.endswith(("desc_act", ".sym"))
    is_unused |= change.path.endswith("group_size") and change.new == -1
    is_unused |= change.path == "use_sliding_window" and "layer_types" in config
    is_unused |= _matches(change.path.removeprefix("text_config."), _NOTHING_READS)
    if is_default or is_unused:
        expected = "anything"
    elif change.is_same:
        expected = "equal"
    return Damage(str(change), files | {CONFIGURATION: encoded(config)}, expected)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def text_of(rng: random.Random, files: Files) -> Damage:
    """Change the text of any JSON file."""
    name = rng.choice([name for name in files if name.endswith(".json") and name != TOKENIZER])
    rest = ['{"rope_parameters": {"rope_type": "yarn"}, "x": [null, 1e999, NaN, -0]}']
    text = mutate_text(rng, files[name].decode(), rest)
    return Damage(f"text of {name}", files | {name: text.encode("utf-8", "surrogatepass")})


_ROPES: tuple[Any, ...] = (
    {"rope_type": "default"}, {"rope_type": "linear"}, {"rope_type": "linear", "factor": 1e308},
    {"rope_type": "linear", "factor": 0}, {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 1e-300, "beta_fast": 1e308, "beta_slow": 1e-300},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0000000000000002},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1e308, "truncate": False},
    {"rope_type": "llama3", "factor": 8.0}, {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
     "original_max_position_embeddings": 32},
    {"type": "linear", "rope_type": "yarn", "factor": 2.0}, {"mrope_section": [1, 2, 3]},
    {"rope_type": "default", "partial_rotary_factor": 1e308}, {"partial_rotary_factor": 0.01},
    {"partial_rotary_factor": 1e-300}, {"rope_type": ["linear"]}, {"rope_type": {}}, [], "linear",
    8, {"rope_theta": 1e-300}, {"rope_theta": 1e308}, {"rope_theta": 0}, {"rope_theta": "10000"},
)  # fmt: skip


def rope_settings(rng: random.Random, files: Files) -> Damage:
    """Settings of rotary embeddings in wrong places, and of wrong values."""
    config = json.loads(files[CONFIGURATION])
    key = rng.choice(("rope_parameters", "rope_scaling"))
    rope = copy.deepcopy(rng.choice((*_ROPES, config.get("rope_parameters"))))
    is_other = rope is not None and rope != config.get("rope_parameters")
    change = rng.randrange(6)
    if change == 0:
        rope = {rng.choice(("full_attention", "sliding_attention", "x")): rope}
    elif change == 1:
        rope = {"full_attention": rope, "sliding_attention": rng.choice(_ROPES)}
    elif change == 2 and isinstance(rope, dict):
        rope["full_attention"] = {"rope_theta": 5e5}
    elif change == 3:
        config["rope_theta"] = rng.choice((1e4, 5e5, 3, -1, "1", None, [1], 1e308))
    elif change == 4:
        config[rng.choice(("partial_rotary_factor", "original_max_position_embeddings"))] = (
            rng.choice((0.5, 0.1, 1, 2, 32, 1 << 40, 1e308, 1e-300, "x", [], None)))  # fmt: skip
    config[key] = rope
    return Damage(
        f"{key} = {json.dumps(rope)[:200]}, change {change}",
        files | {CONFIGURATION: encoded(config)},
        "changed" if change < 3 and is_other else "anything",
    )


def block_lists(rng: random.Random, files: Files) -> Damage:
    """Lists with a value for each block, and windows."""
    config = json.loads(files[CONFIGURATION])
    count = config.get("text_config", config)["num_hidden_layers"]
    key = rng.choice(("layer_types", "layer_types", "layer_types", "sliding_window",
                      "mlp_only_layers", "no_rope_layers", "max_window_layers",
                      "use_sliding_window", "sliding_window_pattern", "num_hidden_layers",
                      "model_type", "num_local_experts", "num_experts_per_tok"))  # fmt: skip
    names = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "", 3)
    length = rng.choice((count, count, count - 1, count + 1, 0, 1000))
    if key == "layer_types":
        value: Any = [rng.choice(names[:2] if rng.random() < 0.9 else names) for _ in range(length)]
    elif key == "model_type":
        value = rng.choice(("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "smollm3",
                            "mixtral", "qwen3_moe", "gemma3", "gpt2", ["llama"], {"llama": 1}, 7,
                            None, "LLAMA", ""))  # fmt: skip
    elif key.endswith(("rs", "layers")):
        value = rng.choice(([], [0], [1] * length, [-1], [1 << 70], [True] * count, [0.0], "0", {},
                            0, 1, count, count + 1, 1 << 30, -1, [[0]]))  # fmt: skip
    else:
        value = rng.choice((None, 0, 1, 3, 4095, 1 << 30, 1 << 31, -1, True, False, "x", 2.5, [2]))
    config[key] = value
    if rng.random() < 0.3:
        config["sliding_window"] = rng.choice((None, 1, 12, 10**6))
    return Damage(f"{key} = {json.dumps(value)[:80]}", files | {CONFIGURATION: encoded(config)})


def quantization(rng: random.Random, files: Files) -> Damage:
    """The quantization of another folder, another method, or two that contradict each other."""
    config, other = json.loads(files[CONFIGURATION]), rng.choice(list(folders().values()))
    theirs = json.loads(other[CONFIGURATION]).get("quantization_config")
    change = rng.randrange(5)
    own = config.get("quantization_config")
    if change == 0 or not isinstance(own, dict):
        config["quantization_config"] = theirs
    elif change == 1:
        own["quant_method"] = rng.choice(("gptq", "awq", "compressed-tensors", "fp8", "torchao",
                                          "bitsandbytes", "hqq", "mxfp4", "GPTQ", "", 4, ["gptq"],
                                          None))  # fmt: skip
    elif change == 2:
        config["compression_config"] = theirs
    elif change == 3 and isinstance(theirs, dict):
        own.update(theirs)
    else:
        config[rng.choice(("quantization", "text_config", "zeta"))] = rng.choice(
            (theirs, {"quantization_config": theirs}, {"bits": 4, "group_size": 64}, [theirs])
        )
    changed = {CONFIGURATION: encoded(config)}
    if rng.random() < 0.2:
        changed[rng.choice(("quantize_config.json", "quant_config.json"))] = encoded(theirs)
    return Damage(f"quantization, change {change}", files | changed)
