"""Memory of processes that open, compile and run a checkpoint of Hugging Face."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from checkpoint_folders import FOLDERS
from processes import run_python
from programs import LONG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")

PIECES = 100_000

_TOKENIZER = """
import sys
from pathlib import Path
import tokenizers
from subquant.formats.tokenizer_files import TokenizerFiles
from subquant.models.huggingface.tokenizer import CheckpointTokenizer

def anonymous():
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(words[1]) * 1024 for words in lines if words[0] == "RssAnon:")

before = anonymous()
tokenizer = CheckpointTokenizer(TokenizerFiles(Path(sys.argv[1])), {})
tokens = tokenizer.encode("a text")
used = anonymous() - before
tokenizer.rest()
assert tokenizer.decode(tokens) == "a text"
print(used, anonymous() - before)
"""


def test_memory_of_a_tokenizer_that_rests(tmp_path: Path) -> None:
    """The library's tables of 100,000 pieces take 30 MB, and the pieces as one text 2 MB."""
    characters = [chr(0x4E00 + number) for number in range(400)]
    pairs = [(left, right) for left in characters for right in characters][:PIECES]
    vocabulary = {piece: number for number, piece in enumerate([*" etxa", *characters])}
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    model = tokenizers.models.BPE(vocabulary, pairs)
    engine = tokenizers.Tokenizer(model)
    engine.decoder = tokenizers.decoders.Fuse()
    engine.save(str(tmp_path / "tokenizer.json"))
    used, left_over = map(int, run_python(_TOKENIZER, tmp_path).split())
    assert used > 20_000_000
    assert left_over < 8_000_000


# -- compilation and run ---------------------------------------------------------------------------

_RUN = """
import json, os, sys
from subquant.models import load

def peak(pid):
    lines = (line.split() for line in open(f"/proc/{pid}/status"))
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")

def children():
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()

peaks = []

def on_step(step):
    if step == "iree-compile":  # the child has written the program and packed the weights
        peaks.append(max(peak(pid) for pid in children()))

model = load(sys.argv[1], context=32, threads=1, cache=sys.argv[2], progress=on_step)
started = peak("self")
model.session().prompt([1, 2, 3])
print(json.dumps({"child": peaks, "started": started, "run": peak("self"),
                  "children": len(children())}))
"""

SIZES = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "vocab_size": 24_000}  # fmt: skip
GROUP = 32


def packed_layer(name: str, outputs: int, inputs: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a layer of compressed-tensors with int4 weights."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (outputs, inputs // 8), np.uint32).view(np.int32)
    return {
        f"{name}.weight_packed": words,
        f"{name}.weight_scale": np.full((outputs, inputs // GROUP), 2**-8, ml_dtypes.bfloat16),
        f"{name}.weight_shape": np.array([outputs, inputs]),
    }


def write_checkpoint(folder: Path) -> int:
    """Write a Llama with a table of 49 MB in bf16 and int4 layers; return its bytes of weights."""
    config = json.loads((FOLDERS / "compressed_int4" / "config.json").read_text())
    config |= SIZES
    config["tie_word_embeddings"] = True
    [group] = config["quantization_config"]["config_groups"].values()
    group["weights"]["group_size"] = GROUP
    width, wide, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, pairs = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    table = np.random.default_rng(2).integers(-9, 9, (config["vocab_size"], width))
    arrays = {"model.embed_tokens.weight": table.astype(ml_dtypes.bfloat16)}
    ones = np.ones(width, ml_dtypes.bfloat16)
    for block in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{block}"
        for name, outputs, inputs in (
            ("self_attn.q_proj", queries, width),
            ("self_attn.k_proj", pairs, width),
            ("self_attn.v_proj", pairs, width),
            ("self_attn.o_proj", width, queries),
            ("mlp.gate_proj", wide, width),
            ("mlp.up_proj", wide, width),
            ("mlp.down_proj", width, wide),
        ):
            arrays |= packed_layer(f"{prefix}.{name}", outputs, inputs)
        arrays[f"{prefix}.input_layernorm.weight"] = ones
        arrays[f"{prefix}.post_attention_layernorm.weight"] = ones
    arrays["model.norm.weight"] = ones
    folder.mkdir()
    save_file(arrays, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    return sum(array.nbytes for array in arrays.values())


class Peaks(NamedTuple):
    """Greatest memory in bytes."""

    compiling: int
    running: int


def peaks_of(folder: Path, cache: Path) -> Peaks:
    """Compile a model, and run it in another process; check that no child is left."""
    first, second = (json.loads(run_python(_RUN, folder, cache)) for _ in range(2))
    assert len(first["child"]) == 1
    assert not second["child"]
    assert first["children"] == second["children"] == 0
    assert first["started"] < second["run"] + 20_000_000
    return Peaks(first["child"][0], second["run"])


@pytest.mark.skipif(not LONG, reason="7 s; a claim on memory, not on numbers")
def test_memory_grows_with_the_weights_and_no_further(tmp_path: Path) -> None:
    """A compilation reads and packs weights piece by piece, and a run has them once."""
    size = write_checkpoint(tmp_path / "model")
    large = peaks_of(tmp_path / "model", tmp_path / "cache")
    small = peaks_of(FOLDERS / "compressed_int4", tmp_path / "cache")
    assert size > 50_000_000
    assert large.compiling - small.compiling < 0.8 * size
    assert 0.9 * size < large.running - small.running < 1.2 * size
