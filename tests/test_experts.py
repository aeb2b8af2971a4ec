"""Mixture of experts: routes and logits beside transformers, GGUF files, memory that is read."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest

from checkpoints import FOLDERS, changed_copy, expected, numpy_logits, relative_error
from gguf_models import MoeModel, add_properties, write_file
from programs import LONG
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.irpa import Archive
from subquant.layouts import PrimitiveTensor
from subquant.models import experts, load, loading
from subquant.models.configuration import Experts
from subquant.models.expert_tensors import with_stacked_experts
from subquant.models.source import open_model
from subquant.weights.sources import open_weights

NAMES = ["mixtral", "qwen3_moe"]
Array = np.ndarray[Any, Any]


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_in_numpy(name: str) -> None:
    tokens, reference = expected(name)
    assert relative_error(numpy_logits(FOLDERS / name, tokens), reference) < 2e-6


@pytest.mark.parametrize("name", NAMES)
def test_chosen_experts_are_those_of_transformers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 tokens, and the order of the experts, too."""
    arrays = np.load(FOLDERS / name / "expected.npz")
    routes: list[experts.Routes] = []
    route = experts.route

    def recorded(*arguments: Any) -> experts.Routes:
        routes.append(route(*arguments))
        return routes[-1]

    monkeypatch.setattr(experts, "route", recorded)
    numpy_logits(FOLDERS / name, arrays["routed_tokens"].tolist())
    actual = np.stack([each.choices for each in routes])
    np.testing.assert_array_equal(actual, arrays["experts"], strict=True)


@pytest.mark.skipif(not LONG, reason="25 s; the short suite compiles Mixtral of GGUF, and packed")
@pytest.mark.parametrize("name", NAMES)
def test_compiled_logits(name: str) -> None:
    """A prompt and four tokens; the cache of f16 is off by 2**-11 of its elements."""
    tokens, reference = expected(name)
    session = load(FOLDERS / name, activations="float", context=32).session()
    actual = [session.prompt(tokens[:20]), *(session.next(token) for token in tokens[20:])]
    assert relative_error(np.stack(actual), reference[19:]) < 2e-3


# -- routes ----------------------------------------------------------------------------------------


class Router:
    """Tree of tensors with a router whose scores are the hidden state."""

    def __init__(self, count: int) -> None:
        self.weight = np.eye(count, dtype=np.float32)

    def __call__(self, name: str) -> Router:
        assert name == "ffn_gate_inp"
        return self

    def tensor(self, name: str) -> Array:
        assert name == "weight"
        return self.weight


@pytest.mark.parametrize(
    ("scores", "choices"),
    [
        ([1, 3, 2, 0], [1, 2]),
        ([2, 1, 2, 1], [0, 2]),
        ([0, 0, 0, 0], [0, 1]),
        ([-np.inf, -5, -np.inf, -np.inf], [1, 0]),
        ([np.nan, 1, 2, 3], [3, 0]),
    ],
)
def test_choices_of_ties_and_special_values(scores: list[float], choices: list[int]) -> None:
    """NaN makes all probabilities NaN; the numbers of the experts stay in range."""
    x = np.array([scores], np.float32)
    with np.errstate(invalid="ignore"):
        routes = experts.route(Experts(4, 2, 1, frozenset()), Router(4), np.where(x < -9, -1e30, x))
    assert routes.choices.tolist() == [choices]


@pytest.mark.parametrize("renormalizes", [True, False])
def test_weights(renormalizes: bool) -> None:
    x = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32))
    routes = experts.route(Experts(4, 2, 1, frozenset(), renormalizes), Router(4), x)
    expected = np.array([0.4, 0.3]) / (0.7 if renormalizes else 1)
    np.testing.assert_allclose(routes.weights, [expected], rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "count"), [(1, 1), (2, 4), (32, 2), (32, 64), (256, 8), (1024, 128), (40, 3)]
)
@pytest.mark.parametrize("choice", ["random", "one expert", "each expert"])
def test_groups(rows: int, count: int, choice: str) -> None:
    """Each row has a position of its own, in a tile of its expert."""
    rng = np.random.default_rng(rows)
    choices = {
        "random": rng.integers(0, count, rows),
        "one expert": np.full(rows, count - 1),
        "each expert": np.arange(rows) % count,
    }[choice].astype(np.int32)
    groups = experts._Groups.of(choices[:, None], count)
    tiles, tile = groups.shape
    assert len(set(groups.positions.tolist())) == rows
    np.testing.assert_array_equal(groups.tokens[groups.positions], np.arange(rows))
    np.testing.assert_array_equal(groups.choices[groups.positions // tile], choices)
    assert groups.choices.shape == (tiles,)
    assert set(groups.choices.tolist()) == set(choices.tolist())


# -- GGUF files ------------------------------------------------------------------------------------

_ROLES = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.*.w2": "ffn_down_exps",
    "block_sparse_moe.experts.*.w3": "ffn_up_exps",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.*.gate_proj": "ffn_gate_exps",
    "mlp.experts.*.up_proj": "ffn_up_exps",
    "mlp.experts.*.down_proj": "ffn_down_exps",
}
"""Names of llama.cpp's converter."""


def write_gguf(
    name: str, path: Path, kind: str = "F32", *, is_old: bool = False, **changes: Any
) -> Path:
    """Write a checkpoint as a GGUF file, as llama.cpp's converter does.

    Args:
        is_old: each expert is a tensor.
    """
    source, config = open_model(FOLDERS / name), json.loads(
        (FOLDERS / name / "config.json").read_text()
    )  # fmt: skip
    c = source.configuration
    assert c.experts is not None
    architecture = {"mixtral": "llama", "qwen3_moe": "qwen3moe"}[name]
    properties = {
        "block_count": c.blocks, "context_length": c.context, "embedding_length": c.width,
        "feed_forward_length": c.hidden, "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_size,
        "attention.value_length": c.head_size, "attention.layer_norm_rms_epsilon": c.epsilon,
        "rope.freq_base": config["rope_parameters"]["rope_theta"], "vocab_size": c.vocabulary,
        "expert_count": c.experts.count, "expert_used_count": c.experts.chosen,
    }  # fmt: skip
    if architecture == "qwen3moe":
        properties["expert_feed_forward_length"] = c.experts.hidden
    writer = gguf.GGUFWriter(path, architecture)
    properties = {**properties, **changes}
    add_properties(
        writer, {f"{architecture}.{k}": v for k, v in properties.items() if v is not None}
    )
    for role, tensor in source.tensors.items():
        array = np.asarray(tensor.arrays[tensor.name]).astype(np.float32)
        if architecture == "llama" and role.endswith(("attn_q.weight", "attn_k.weight")):
            # Pairs of rotated elements are neighbors in the files of Llama.
            halves = array.reshape((-1, 2, c.head_size // 2, c.width))
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        if is_old and array.ndim == 3:
            for number, expert in enumerate(array):
                writer.add_tensor(role.replace("_exps", f".{number}"), expert)
        elif kind != "F32" and array.ndim == 3:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(role, gguf.quants.quantize(array, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(role, array)
    write_file(writer)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_gguf_files_are_the_checkpoints(name: str, tmp_path: Path) -> None:
    path = write_gguf(name, tmp_path / "model.gguf")
    assert (
        open_model(path).configuration.experts == open_model(FOLDERS / name).configuration.experts
    )
    tokens, reference = expected(name)
    assert relative_error(numpy_logits(path, tokens), reference) < 2e-6


def test_files_with_a_tensor_for_each_expert(tmp_path: Path) -> None:
    """The long suite compiles the model too."""
    path = write_gguf("mixtral", tmp_path / "model.gguf", is_old=True)
    assert "blk.0.ffn_gate.3.weight" in open_weights(path).theta.flatten()
    tokens, reference = expected("mixtral")
    assert relative_error(numpy_logits(path, tokens), reference) < 2e-6
    if LONG:
        model = load(path, activations="float", kv_cache="f32", context=32)
        assert relative_error(model.logits(tokens), reference) < 5e-6


def test_files_without_one_of_the_experts() -> None:
    names = ["blk.0.ffn_up.0.weight", "blk.0.ffn_up.2.weight"]
    tensors = {name: PrimitiveTensor(np.zeros((2, 2), np.float32), name) for name in names}
    with pytest.raises(InputError, match=r"has no tensor 'blk\.0\.ffn_up\.1\.weight'"):
        with_stacked_experts(tensors)


def test_hidden_size_without_a_property(tmp_path: Path) -> None:
    """Llama.cpp divides that of a feed-forward layer among the chosen experts."""
    path = write_gguf("qwen3_moe", tmp_path / "model.gguf", expert_feed_forward_length=None)
    with pytest.raises(InputError, match=r"expected \[4, 48, 64\]"):
        open_model(path)


WRONG_PROPERTIES: dict[str, tuple[str, dict[str, Any], type[SubquantError], str]] = {
    "no experts": ("qwen3_moe", {"expert_count": None}, InputError, "expected"),
    "more chosen experts than there are": (
        "mixtral",
        {"expert_used_count": 5},
        InputError,
        "5 of 4 experts compute a token, expected 4 at most",
    ),
    "another number of experts": (
        "mixtral",
        {"expert_count": 3},
        InputError,
        "'blk.0.ffn_gate_inp.weight' has the shape [4, 64], expected [3, 64]",
    ),
    "shared experts": (
        "mixtral",
        {"expert_shared_count": 1},
        UnsupportedError,
        "property 'llama.expert_shared_count' = 1",
    ),
    "another gating": (
        "qwen3_moe",
        {"expert_gating_func": 2},
        UnsupportedError,
        "property 'qwen3moe.expert_gating_func' = 2",
    ),
}


@pytest.mark.parametrize("case", WRONG_PROPERTIES)
def test_wrong_properties(case: str, tmp_path: Path) -> None:
    name, changes, kind, message = WRONG_PROPERTIES[case]
    path = write_gguf(name, tmp_path / "model.gguf", **changes)
    with pytest.raises(kind) as error:
        open_model(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


# -- config.json -----------------------------------------------------------------------------------


def blocks_of(folder: Path) -> list[int]:
    mixture = open_model(folder).configuration.experts
    assert mixture is not None
    return sorted(mixture.blocks)


def test_keys_of_other_versions(tmp_path: Path) -> None:
    """``num_experts`` of transformers 4; keys of Qwen3-MoE that change nothing."""

    def change(config: dict[str, Any]) -> None:
        config["num_experts"] = config.pop("num_local_experts")
        config |= {"max_window_layers": 1, "sliding_window": 4096}

    folder = changed_copy("qwen3_moe", tmp_path, change)
    assert open_model(folder).configuration == open_model(FOLDERS / "qwen3_moe").configuration


def test_blocks_with_experts(tmp_path: Path) -> None:
    change = {"mlp_only_layers": [], "decoder_sparse_step": 2}
    folder = changed_copy("qwen3_moe", tmp_path, lambda config: config.update(change))
    assert blocks_of(folder) == [1] == blocks_of(FOLDERS / "qwen3_moe")


WRONG_KEYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "two numbers of experts": (
        "qwen3_moe",
        {"num_experts": 8},
        "'num_local_experts' is 4, expected 8, as 'num_experts' is",
    ),
    "more chosen experts than there are": (
        "mixtral",
        {"num_experts_per_tok": 5},
        "'num_experts_per_tok' is 5, expected at most the 4 experts",
    ),
    "numbers of blocks that are none": (
        "qwen3_moe",
        {"mlp_only_layers": "0"},
        "'mlp_only_layers' is '0', expected a list of elements, each an integer",
    ),
    "other blocks with experts": (
        "qwen3_moe",
        {"mlp_only_layers": [1]},
        "has no tensor 'model.layers.0.mlp.gate.weight'",
    ),
    "another number of experts": (
        "mixtral",
        {"num_local_experts": 8},
        "'model.layers.0.block_sparse_moe.gate.weight' has the shape [4, 64], expected [8, 64]",
    ),
    "a key of another architecture": (
        "mixtral",
        {"norm_topk_prob": False},
        "has the key 'norm_topk_prob' = False, which subquant does not use",
    ),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_wrong_configurations(case: str, tmp_path: Path) -> None:
    name, change, message = WRONG_KEYS[case]
    folder = changed_copy(name, tmp_path, lambda config: config.update(change))
    with pytest.raises((InputError, UnsupportedError)) as error:
        open_model(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


# -- programs --------------------------------------------------------------------------------------


def test_emitted_parameters_are_stacked(tmp_path: Path) -> None:
    module, archive = tmp_path / "model.mlir", tmp_path / "model.irpa"
    loading.emit(FOLDERS / "mixtral", module, archive, context=24)
    names = set(re.findall(r'parameter\.named<"model"::"([^"]+)">', module.read_text()))
    arrays = {name: entry for name, entry in Archive(archive).items() if name in names}
    assert arrays.keys() == names
    name = "model.layers.0.block_sparse_moe.experts.[0-3].w2.weight"
    tensors = open_model(FOLDERS / "mixtral").dataset.theta.flatten()
    apart = [tensors[name.replace("[0-3]", str(n))].arrays for n in range(4)]
    expected = np.stack([array for each in apart for array in each.values()])
    np.testing.assert_array_equal(arrays[name].array().view(np.uint16), expected.view(np.uint16))


def resident_bytes(path: str) -> int:
    """Return the bytes of a mapped file that this process has read."""
    total, is_of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_of_file = line.endswith(path)
        elif is_of_file and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")
@pytest.mark.skipif(not LONG, reason="5 s; a claim on memory, not on numbers")
def test_a_token_reads_the_chosen_experts() -> None:
    """Files in memory are not read ahead: pages are in memory where the program touched them.

    The kernel of Linux maps up to 16 pages around one that is touched.
    """
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "model.gguf"
        model = MoeModel(kind="Q4_0", width=512, hidden=512, experts=32, chosen=2)
        model.write(path)
        loaded = load(path, context=16, cache=Path(folder) / "cache")
        archive = loaded._archive
        assert archive is not None
        entries = Archive(archive.path)
        of_experts = sum(entry.length for name, entry in entries.items() if "_exps" in name)
        passed_by_all = sum(entry.length for entry in entries.values()) - of_experts
        assert of_experts > 0.9 * (of_experts + passed_by_all)
        file = os.path.realpath(archive.path)
        session = loaded.session()
        before = resident_bytes(file)
        session.next(5)
        read = resident_bytes(file) - before
        chosen = of_experts * 2 // 32
        matrices = 2 * 3  # of two experts, each of which is surrounded by further pages
        assert chosen <= read <= chosen + passed_by_all + (matrices + 20) * 2 * 16 * 4096
        assert read < of_experts / 4


# -- packed experts --------------------------------------------------------------------------------
