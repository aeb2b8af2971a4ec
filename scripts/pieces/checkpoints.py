"""Checkpoints of Hugging Face: keys of ``config.json``, and tensors of safetensors.

No reference runtime is at hand: a piece has to change the tensors that are read, or to be named in
an error, unless it is a key outside the configuration of the quantization (which is handed on as a
property), or `_DESCRIPTIVE` has it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from . import Base, Piece, choose, unknown_name, words

WEIGHTS, CONFIGURATION = "d/model.safetensors", "d/config.json"


class Checkpoint(Base):
    """A folder with packed weights."""

    def program_of(self, files: dict[str, bytes]) -> bytes:
        """Return a digest of the tensors: all keys are handed on as properties."""
        from subquant.weights.sources import open_weights

        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "d").mkdir()
            for name, data in files.items():
                (Path(folder) / name).write_bytes(data)
            tensors = open_weights(Path(folder) / "d").theta.flatten()
            digest = hashlib.sha256()
            for name, tensor in sorted(tensors.items()):
                planar = tensor.to_planar() if hasattr(tensor, "to_planar") else tensor
                digest.update(f"{name} {tensor.shape} {planar!r}".encode())
                for plane, array in planar.arrays.items():
                    digest.update(plane.encode() + np.ascontiguousarray(array).tobytes())
            return digest.digest()

    def expected_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Return a digest of the tensors, and of the keys that their packing depends on."""
        known = json.loads(files[CONFIGURATION]).get("quantization_config")
        if isinstance(known, dict):
            known = {
                key: value
                for key, value in known.items()
                if key not in _DESCRIPTIVE and value is not None
            }
        digest = hashlib.sha256(files[WEIGHTS] + json.dumps(known, sort_keys=True).encode())
        return [np.frombuffer(digest.digest(), np.bool_)]

    def computed_of(self, files: dict[str, bytes]) -> list[np.ndarray]:
        """Return the expected results: the piece has changed the archive."""
        return self.expected_of(files)


@functools.cache
def bases() -> list[Base]:
    """Checkpoints of each way of packing."""
    from safetensors.numpy import save

    random_ = np.random.default_rng(0)
    scales = (random_.random((2, 8)) + 0.5).astype(np.float16)
    gptq = {
        "l.qweight": random_.integers(0, 1 << 31, (8, 8), np.int32),
        "l.qzeros": random_.integers(0, 1 << 31, (2, 1), np.int32),
        "l.scales": scales,
        "l.g_idx": np.arange(64, dtype=np.int32) // 32,
    }
    awq = {
        "l.qweight": random_.integers(0, 1 << 31, (64, 1), np.int32),
        "l.qzeros": gptq["l.qzeros"],
        "l.scales": scales,
    }
    plain = {"l.weight": random_.standard_normal((8, 64)).astype(np.float32)}
    configurations: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
        "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
                        "desc_act": False}),
        "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm",
                      "zero_point": True}),
        "plain": (plain, None),
    }  # fmt: skip
    checkpoints: list[Base] = []
    for name, (tensors, quantization) in configurations.items():
        config = {"model_type": "llama", "hidden_size": 64}
        if quantization is not None:
            config["quantization_config"] = quantization  # type: ignore[assignment]
        files = {WEIGHTS: save(tensors), CONFIGURATION: json.dumps(config).encode()}
        checkpoints.append(Checkpoint(name, files))
    return checkpoints


_DESCRIPTIVE = words("""
damp_percent static_groups true_sequential meta exllama_config backend lm_head
modules_to_not_convert
""")
"""Keys of a quantization that say how its values were found, how others compute with them, or which
layers have them, as the names of tensors do."""
_SHOWN_BY = {
    "group_size": ("groups of",),
    **dict.fromkeys(("format", "checkpoint_format", "version"), ("packed as",)),
    "is_marlin_format": ("marlin",),
}
"""Words of the errors for keys that contradict the tensors."""
_KEYS = words("""
modules_to_not_convert true_sequential damp_percent static_groups sym meta desc_act format
checkpoint_format is_marlin_format lm_head pack_dtype dynamic zero_point version backend
weight_block_size kv_cache_scheme ignore config_groups activation_scheme bits group_size
exllama_config
""")
_TENSORS = words("""
l.bias l.g_idx l.perm l.weight_scale l.input_scale l.weight l.zeros l.qzeros l.scales2
l.workspace m.qweight l.weight_scale_inv
""")
_VALUES: tuple[Any, ...] = (
    *(0, 1, 8, 128, True, False, None, "x", "gptq_v2", ["l"], [], {"a": 1}, {}, "marlin", 0.1),
    [128, 128],
)


def draw(rng: random.Random) -> tuple[Base, Piece]:
    """Draw a checkpoint and a piece of it."""
    base = choose(rng, bases())
    change = rng.choice((_key, _key, _tensor))
    what, names, files, is_unknown = change(rng, base.files)
    return base, Piece(what, names, {**base.files, **files}, is_unknown)


def _key(rng: random.Random, files: dict[str, bytes]) -> Any:
    config = json.loads(files[CONFIGURATION])
    quantization = config.get("quantization_config")
    unknown, value = unknown_name(rng), rng.choice(_VALUES)
    if quantization is None or rng.random() < 0.1:
        config[rng.choice((unknown, "quantization_config", "compression_config"))] = value
        key, changed = next(reversed(config)), {CONFIGURATION: json.dumps(config).encode()}
        return f"{key} = {value}", (key, "quantization"), changed, False
    key = unknown if rng.random() < 0.4 else rng.choice(_KEYS)
    quantization[key] = value
    changed = {CONFIGURATION: json.dumps(config).encode()}
    names = (key, *_SHOWN_BY.get(key, ()))
    return f"quantization_config.{key} = {value}", names, changed, key == unknown


def _tensor(rng: random.Random, files: dict[str, bytes]) -> Any:
    from safetensors.numpy import load, save

    tensors, unknown = load(files[WEIGHTS]), unknown_name(rng)
    name = rng.choice((unknown, f"l.{unknown}", *_TENSORS))
    dtype = rng.choice((np.float16, np.float32, np.int32))
    tensors[name] = np.ones(rng.choice(((2,), (8,), (64,), (2, 8))), dtype)
    return f"the tensor {name}", (name, name.rpartition(".")[2]), {WEIGHTS: save(tensors)}, False
