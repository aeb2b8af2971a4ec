"""The forward pass in NumPy compared with the oracle, and the properties of GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_models import ARCHITECTURES, TYPES, TinyModel, tokens_of
from subquant.errors import InputError, UnsupportedError
from subquant.models import interface, transformer
from subquant.models.architectures import Pairs
from subquant.models.configuration import Configuration, expected_tensors
from subquant.models.gguf_configuration import read_gguf_configuration
from subquant.models.rotary_embedding import Rotation
from subquant.weights.sources import open_weights
from subquant.weights.theta import Theta
from transformer_oracle import Oracle


def opened(model: TinyModel, folder: Path) -> tuple[Configuration, Theta, Path]:
    path = model.write(folder / "model.gguf")
    dataset = open_weights(path)
    return read_gguf_configuration(dataset.properties, dataset.theta.flatten()), dataset.theta, path


def run(
    configuration: Configuration, theta: Theta, pieces: list[list[int]], context: int
) -> tuple[np.ndarray, np.ndarray]:
    """Read tokens in batches; return the logits and the last hidden state of each."""
    caches = interface.empty_caches(configuration, context)
    position, outputs = 0, []
    for piece in pieces:
        x = transformer.embed(configuration, theta, np.array(piece, np.int32))
        x, caches = transformer.run_blocks(configuration, theta, x, np.int32(position), caches)
        position += len(piece)
        outputs.append(x)
    x = np.concatenate(outputs)
    return transformer.logits(configuration, theta, x), x


def check(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare with the oracle.

    Keys and values are rounded to f16 on both sides. An f32 result may be rounded to
    the neighbour, by 2**-10 of a value, of which only a few are; sums of f32 add 2**-17.
    """
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2**-11 * np.abs(expected).max())


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16}  # fmt: skip
FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
OUTPUTS = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256,
           "ffn_gate": 512, "ffn_up": 512, "ffn_down": 256}  # fmt: skip
"""The outputs of the linear layers of a `TinyModel`."""


def biases(*layers: str) -> dict[str, list[int]]:
    return {f"blk.{n}.{layer}.bias": [OUTPUTS[layer]] for n in range(2) for layer in layers}


def scales(*layers: str) -> dict[str, list[int]]:
    return {f"blk.{n}.{layer}.scale": [1] for n in range(2) for layer in layers}


MODELS = [TinyModel(name, seed=number) for number, name in enumerate(ARCHITECTURES)]
MODELS += [TinyModel(name, TYPES, seed=9 + n) for n, name in enumerate(ARCHITECTURES)]
MODELS += [TinyModel("llama", [kind], blocks=1, seed=20) for kind in TYPES]
MODELS += [
    TinyModel("llama", tied=True),
    TinyModel("llama", rope_factors=True),
    TinyModel("llama", properties={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    TinyModel("llama", properties={"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}),
    TinyModel("llama", properties={"rope.dimension_count": 32}),
    TinyModel("qwen3", properties=YARN),
    TinyModel("llama", rope_factors=True, properties={**YARN, "rope.scaling.yarn_beta_fast": 4.0}),
    TinyModel("gemma3", window=3, properties={**YARN, "rope.scaling.yarn_beta_slow": 0.5}),
    TinyModel("qwen3", heads=4, kv_heads=1, vocabulary="gpt2"),
    TinyModel("gemma3", kv_heads=4, window=3, blocks=3, tied=True),
    TinyModel("llama", extra=biases("attn_q", "attn_k", "attn_v", "attn_output", *FEED_FORWARD)),
    TinyModel("llama", extra={"blk.1.attn_output.bias": [256], "blk.0.attn_k.bias": [128]}),
    TinyModel("qwen2", extra={"output.bias": [len(tokens_of("llama"))]}),
    TinyModel("qwen3", extra=biases("attn_q", "attn_k", "attn_v")),
    TinyModel("gemma3", extra=biases("attn_q", "attn_v")),
    TinyModel("llama", ["F32", *["NVFP4"] * 14, "F32"], extra=scales("attn_q", "attn_k", "attn_v",
              "attn_output", *FEED_FORWARD) | {"output.scale": [1]}, seed=4),
    TinyModel("qwen2", ["F16"], extra=scales("attn_q", "ffn_down"), seed=4),
    TinyModel("gemma3", properties={"final_logit_softcapping": 3.0}),
    TinyModel("gemma3", properties={"attention.scale": 0.25}),
    TinyModel("llama", properties={"final_logit_softcapping": 0.5, "attention.scale": 0.03}),
    TinyModel("gemma3", properties={"rope.freq_base_swa": 500.0}, window=3),
    TinyModel("gemma3", blocks=3, window=3,
              properties={"attention.sliding_window_pattern": [False, True, True]}),
]  # fmt: skip


@pytest.mark.parametrize(
    "model", MODELS, ids=lambda model: f"{model.architecture}-{'-'.join(model.types[:2])}"
)
def test_every_block_and_the_logits_are_the_oracles(model: TinyModel, tmp_path: Path) -> None:
    configuration, theta, path = opened(model, tmp_path)
    tokens = np.random.default_rng(1).integers(0, configuration.vocabulary, 12).tolist()
    expected, layers = Oracle(path).run(tokens)
    check(run(configuration, theta, [tokens], 16)[0], expected)
    x = transformer.embed(configuration, theta, np.array(tokens, np.int32))
    caches = interface.empty_caches(configuration, 16)
    for number, layer in enumerate(layers, 1):
        actual, _ = transformer.run_blocks(configuration, theta, x, np.int32(0), caches[:number])
        check(actual, layer)


@pytest.mark.parametrize("pieces", [[1] * 20, [7, 1, 12], [19, 1]])
@pytest.mark.parametrize("architecture", ["gemma3", "llama"])
def test_tokens_in_pieces_are_those_of_a_whole(
    architecture: str, pieces: list[int], tmp_path: Path
) -> None:
    """Also where the window of 8 tokens slides, within a piece and between pieces."""
    configuration, theta, path = opened(TinyModel(architecture), tmp_path)
    tokens = np.random.default_rng(2).integers(0, configuration.vocabulary, 20).tolist()
    ends = np.cumsum(pieces)
    segments = [tokens[end - count : end] for end, count in zip(ends, pieces, strict=True)]
    actual, _ = run(configuration, theta, segments, 32)
    check(actual, Oracle(path).run(tokens)[0])


def test_what_a_cache_holds_after_the_tokens_is_not_seen(tmp_path: Path) -> None:
    configuration, theta, _ = opened(TinyModel("gemma3"), tmp_path)
    x = transformer.embed(configuration, theta, np.array([5, 6, 7], np.int32))
    empty = interface.empty_caches(configuration, 16)
    filled = [interface.Cache(*(np.full_like(each, 1000) for each in cache)) for cache in empty]
    first, _ = transformer.run_blocks(configuration, theta, x, np.int32(0), empty)
    second, _ = transformer.run_blocks(configuration, theta, x, np.int32(0), filled)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
@pytest.mark.parametrize("position", [0, 32000])
def test_rotations_of_late_tokens(pairs: Pairs, position: int) -> None:
    """Within 2**-33 of a turn for each position, and the roundings of f32."""
    rotation = Rotation(1e6, 48, 0.25, pairs)
    x = np.random.default_rng(4).normal(size=(9, 3, 64)).astype(np.float32)
    tables = transformer.rotary_tables(rotation, np.int32(position), 9)
    actual = transformer.rotate(x, tables, rotation)
    expected = x.astype(np.float64)
    for pair in range(24):
        one, two = (pair, pair + 24) if pairs == "halves" else (2 * pair, 2 * pair + 1)
        angle = (position + np.arange(9))[:, None] * 0.25 * 1e6 ** (-pair / 24)
        numbers = (x[..., one] + 1j * x[..., two]) * np.exp(1j * angle)
        expected[..., one], expected[..., two] = numbers.real, numbers.imag
    bound = (2 * np.pi * 2**-33 * 32009 + 2**-21) * np.abs(x).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


def test_blocks_with_a_window_and_without(tmp_path: Path) -> None:
    model = TinyModel("gemma3", blocks=18, width=640, size=256, kv_heads=1, hidden=64, tied=True)
    dataset = open_weights(model.write(tmp_path / "model.gguf"))
    properties = dict(dataset.properties)
    del properties["gemma3.attention.sliding_window_pattern"]
    actual = read_gguf_configuration(properties, dataset.theta.flatten())
    assert expected_tensors(actual) == model.shapes()
    assert [n for n in range(18) if not actual.has_window(n)] == [5, 11, 17]
    assert (actual.rotation.base, actual.window_rotation.base) == (1e6, 1e4)
    assert actual.attention_scale == 1 / 16
    assert actual.embedding_scale == pytest.approx(640**0.5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TinyModel("bert"), "the model is of the architecture 'bert', which is not supported; "
         "expected one of: gemma3, llama, phi3, qwen2, qwen3, qwen3moe, smollm3"),
        (TinyModel("qwen3", without=["blk.1.attn_k_norm.weight"]), "the file has no tensor "
         "'blk.1.attn_k_norm.weight', which a model of the architecture 'qwen3' needs"),
        (TinyModel("llama", without=["token_embd.weight"]), "the file has no tensor "
         "'token_embd.weight'"),
        (TinyModel("llama", properties={"attention.key_length": 32, "attention.value_length": 32}),
         "tensor 'blk.0.attn_q.weight' has the shape [256, 256], expected [128, 256]"),
        (TinyModel("llama", heads=3, kv_heads=2), "the model has 3 heads and 2 of keys and values, "
         "expected a divisor"),
        (TinyModel("llama", properties={"expert_count": 8}), "the file has no property "
         "'llama.expert_used_count'"),
        (TinyModel("qwen2", properties={"expert_count": 8}), "the model has experts, and only "
         "models of the architectures llama and qwen3moe are supported with them"),
        (TinyModel("qwen2", properties={"rope.scaling.type": "longrope"}),
         "rotary embeddings are scaled by 'longrope', which is not supported; expected none, linear"
         " or yarn"),
        (TinyModel("llama", properties={"rope.scaling.type": "longrope"}),
         "the file has no tensor 'rope_factors_short.weight' of 32 numbers above 0"),
        (TinyModel("llama", properties={"rope.scaling.type": "zzz"}),
         "rotary embeddings are scaled by 'zzz', which is not supported; expected none, linear, "
         "yarn or longrope"),
        (TinyModel("qwen3", properties={"rope.scaling.type": "yarn", "rope.freq_base": 1.0}),
         "property 'qwen3.rope.freq_base' is 1, expected more"),
        (TinyModel("llama", properties={"rope.dimension_count": 63}),
         "63 elements of heads of 64 are turned, expected an even number"),
        (TinyModel("llama", properties={"block_count": 2**31}),
         "the model has 2,147,483,648 blocks, and the file 21 tensors"),
        (TinyModel("llama", blocks=0), "property 'llama.block_count' is 0, expected an integer of "
         "at least 1"),
    ],
    ids=lambda each: each.architecture if isinstance(each, TinyModel) else "",
)  # fmt: skip
def test_files_that_are_refused(model: TinyModel, message: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, UnsupportedError)) as caught:
        opened(model, tmp_path)
    assert str(caught.value).startswith(f"error: {message}")


def test_a_missing_property_is_named() -> None:
    with pytest.raises(InputError, match=r"the file has no property 'llama\.embedding_length'"):
        read_gguf_configuration({"general.architecture": "llama"}, {})
    with pytest.raises(UnsupportedError, match="the file does not say its model's architecture"):
        read_gguf_configuration({}, {})
    wrong = {"general.architecture": "llama", "llama.embedding_length": "wide"}
    with pytest.raises(InputError, match="embedding_length' is wide, expected an integer"):
        read_gguf_configuration(wrong, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention.head_count": 300, "attention.head_count_kv": 300},
            "the file has no property 'llama.attention.key_length'",
        ),
        ({"attention.layer_norm_rms_epsilon": np.inf}, "is inf, expected a number above 0"),
        ({"rope.freq_base": 0.5}, "is 0.5, expected a number of at least 1"),
        ({"rope.freq_base": np.inf}, "is inf, expected a number of at least 1"),
        ({"rope.scaling.factor": 1e-30}, "is 1e-30, expected a number of at least 1e-06"),
        ({"rope.scale_linear": 1e-30}, "is 1e-30, expected a number of at least 1e-06"),
    ],
)
def test_numbers_that_nothing_can_be_computed_with(
    changes: dict[str, float], message: str, tmp_path: Path
) -> None:
    source = open_weights(TinyModel().write(tmp_path / "model.gguf"))
    properties = dict(source.properties)
    for name in ("key_length", "value_length"):
        del properties[f"llama.attention.{name}"]
    properties |= {f"llama.{key}": value for key, value in changes.items()}
    with pytest.raises(InputError, match=message):
        read_gguf_configuration(properties, source.theta.flatten())
