"""Storage of key-value caches, and sessions with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attention_programs import FORMATS
from checkpoint_folders import FOLDERS
from devices import ON_DEVICES, compile_for
from gguf_models import SMALL, TinyModel
from programs import LONG
from subquant.emit.trace import trace
from subquant.errors import UnsupportedError, UsageError
from subquant.models import Model, Session, emit, load, transformer
from subquant.models.architectures import Pairs
from subquant.models.gguf_configuration import read_gguf_configuration
from subquant.models.interface import Shape, empty_caches
from subquant.models.rotary_embedding import Rotation
from subquant.models.source import open_model
from subquant.models.transformer import key_scales
from subquant.numerics.array_functions import put_slice
from subquant.numerics.cache_formats import CacheFormat
from subquant.runtime import Device
from subquant.weights.sources import open_weights
from transformer_oracle import Oracle

FLOAT_FOLDERS = [
    "gemma3", "llama", "llama_yarn", "mistral", "phi3_partial", "qwen2_window", "qwen3"
]  # fmt: skip


def load_folder(name: str, cache: Path, **options: Any) -> tuple[Model, np.ndarray, np.ndarray]:
    """Load a checkpoint; return it, and tokens with transformers' logits after each."""
    model = load(FOLDERS / name, activations="float", cache=cache, context=64, **options)
    expected = np.load(FOLDERS / name / "expected.npz")
    return model, expected["tokens"], expected["logits"]


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The greatest difference of logits, as a fraction of the greatest logit of their token."""
    greatest = np.abs(expected).max(-1)
    return float((np.abs(actual - expected).max(-1) / greatest).max())


@pytest.mark.skipif(not LONG, reason="8 s; the short suite compares caches with the oracle")
@pytest.mark.parametrize("name", FLOAT_FOLDERS)
def test_a_cache_of_f32_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """Tokens in batches, a prompt, and single tokens after it; windows slide."""
    model, tokens, expected = load_folder(name, tmp_path, kv_cache="f32")
    assert error_of(model.logits(tokens.tolist()), expected) < 5e-6
    session = model.session()
    assert error_of(session.prompt(tokens[:10].tolist()), expected[9]) < 5e-6
    after = np.array([session.next(int(token)) for token in tokens[10:]])
    assert error_of(after, expected[10:]) < 5e-6


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two key-value heads of 32 elements, and a block."""
    path = tmp_path_factory.mktemp("cache") / "tiny.gguf"
    return TinyModel("llama", ["Q8_0"], blocks=1, **SMALL).write(path)


@pytest.mark.parametrize(
    ("name", "cache", "size"),
    [
        ("f32", "32x2x32xf32", 512),
        ("f16", "32x2x32xf16", 256),
        ("int8", "32x2x34xi8", 136),
        ("int4", "32x2x18xi8", 104),
    ],
)
def test_emitted_programs_have_the_caches(
    name: Any, cache: str, size: int, model_file: Path, tmp_path: Path
) -> None:
    module = tmp_path / "model.mlir"
    emit(model_file, module, tmp_path / "model.irpa", context=16, kv_cache=name)
    assert f"tensor<{cache}>" in module.read_text()
    configuration = open_model(model_file).configuration
    assert Shape.of_context(16, name).cache_bytes_per_token(configuration) == size


def test_unknown_caches_are_refused(model_file: Path) -> None:
    wrong: Any = "f8"
    message = "the key-value cache is 'f8', expected one of: f32, f16, int8, int4"
    with pytest.raises(UsageError, match=message):
        load(model_file, kv_cache=wrong)


def test_heads_that_are_no_groups_are_refused() -> None:
    message = "the heads of the model have 16 elements, expected a multiple of 32 for .* of int4; "
    with pytest.raises(UnsupportedError, match=f"{message}choose int8, f16 or f32"):
        load(FOLDERS / "gemma3", kv_cache="int4")


def cache_addresses(session: Session) -> list[int]:
    """The addresses of a session's caches on a CPU."""
    caches = session._caches
    assert caches is not None
    return [cache._device.host_bytes(cache.view).ctypes.data for cache in caches]


@pytest.mark.skipif(not LONG, reason="6 s; the integers themselves are compared to the bit")
@pytest.mark.parametrize(("name", "bound"), [("int8", 0.01), ("int4", 0.2)])
@pytest.mark.share(4)
def test_sessions_with_integers(name: Any, bound: float, model_file: Path, tmp_path: Path) -> None:
    """Logits are near those of f32, and the same tokens in other pieces give the same."""
    tokens = np.random.default_rng(3).integers(0, 300, 24).tolist()
    model = load(
        model_file, activations="float", cache=tmp_path, context=32, kv_cache=name, threads=1
    )
    expected, _ = Oracle(model_file).run(tokens)
    logits = model.logits(tokens)
    assert 1e-5 < error_of(logits, expected) < bound
    session = model.session()
    session.prompt(tokens[:11])
    addresses = cache_addresses(session)
    after = np.array([session.next(token) for token in tokens[11:]])
    assert error_of(after, logits[11:]) < bound / 5  # a sum of f32 in another order may round up
    assert cache_addresses(session) == addresses  # they are updated in place


# -- scales of keys -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("halves", [4, 8, 2**-10, 4, 4, 8, 2**-10, 4, 4, 2**-10]),
        ("neighbors", [4, 4, 1, 1, 8, 8, 1, 1, 4, 2**-10]),
    ],
)
def test_key_scales_are_powers_of_two(pairs: Pairs, expected: list[float]) -> None:
    """Roots of quotients of weights, of which eight are of rotated pairs; 0 counts as 2**-20."""
    keys = np.float32([16, 1, 0, -3, 4, -64, 0, 0.1, 5.9, 0])
    queries = np.float32([1, -1, -2, 0, 1, 1, 0, 0.1, -0.3, 1])
    scales = key_scales(keys, queries, Rotation(1e4, 8, 1.0, pairs))
    assert scales.tolist() == expected


@pytest.mark.parametrize("architecture", ["gemma3", "qwen3"])
def test_key_scales_change_no_logit_of_a_cache_of_f32(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TinyModel(architecture).write(tmp_path / "model.gguf")
    dataset, tokens = open_weights(path), np.arange(3, 15, dtype=np.int32)
    configuration = read_gguf_configuration(dataset.properties, dataset.theta.flatten())
    used = []

    def logits(scales_of: Any) -> np.ndarray:
        monkeypatch.setattr(transformer, "key_scales", scales_of)
        x = transformer.embed(configuration, dataset.theta, tokens)
        caches = empty_caches(configuration, 16, "f32")
        x, _ = transformer.run_blocks(configuration, dataset.theta, x, np.int32(0), caches)
        return np.asarray(transformer.logits(configuration, dataset.theta, x))

    def recorded(*arguments: Any) -> Any:
        used.append(key_scales(*arguments))
        return used[-1]

    np.testing.assert_array_equal(logits(recorded), logits(lambda *_: np.float32(1)))
    assert len(used) == configuration.blocks
    assert (np.concatenate(used) != 1).any()


def test_key_scales_reduce_errors_of_scores() -> None:
    """Weights of 1/8 to 8: without scales, the greatest element decides the error of all."""
    generator, size, storage = np.random.default_rng(4), 128, FORMATS["int8"]
    weights = np.tile(2 ** generator.uniform(-3, 3, (2, size // 2)), 2).astype(np.float32)
    arrays = generator.normal(size=(2, 200, 1, size)).astype(np.float32)
    queries, keys = arrays * weights[:, None, None]

    def error(scale: np.ndarray | np.float32) -> float:
        decoded = storage.decode(storage.encode(keys / scale), size) * scale
        return float(np.std(np.einsum("qhd,khd->qk", queries, decoded - keys)))

    scales = key_scales(weights[1], weights[0], Rotation(1e4, size, 1.0, "halves"))
    assert error(scales) < 0.6 * error(np.float32(1))


# -- formats --------------------------------------------------------------------------------------

INTEGERS = {name: FORMATS[name] for name in ("int8", "int4")}


def heads_of(size: int, count: int = 4096) -> np.ndarray:
    """Heads of all magnitudes: halves of steps, zeros, and one outlier in some of them."""
    generator = np.random.default_rng(size)
    heads = generator.normal(size=(count, 2, size)) * 10.0 ** generator.integers(
        -20, 20, (count, 2, 1)
    )
    heads[::7, :, 3] *= 100
    heads[5] = 0
    heads[6] = 1e-31
    heads[7::9] = np.rint(heads[7::9, :, :1] * 0 + generator.integers(-254, 255, (1, 2, size))) / 2
    heads[7::9, :, ::32] = 127
    return heads.astype(np.float32)


def expected_groups(storage: CacheFormat, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The formula in float64: scales and integers of groups."""
    size = storage.group_size(heads.shape[-1])
    groups = heads.reshape(*heads.shape[:-1], -1, size).astype(np.float64)
    greatest = np.abs(groups).max(-1, keepdims=True)
    if storage.bits == 8:
        scales = np.float32(greatest) * np.float32(1 / 127)
    else:
        scales = np.where(groups.max(-1, keepdims=True) == greatest, -greatest, greatest) / 8
    scales = scales.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    scales = np.where(greatest < 2.0**-100, 0, scales)
    integers = np.rint(np.divide(groups, scales, out=np.zeros_like(groups), where=scales != 0))
    return scales[..., 0], np.minimum(integers, 127 if storage.bits == 8 else 7)


@pytest.mark.parametrize("size", [32, 64, 20])
@pytest.mark.parametrize("name", INTEGERS)
def test_rows_are_those_of_the_formula(name: str, size: int) -> None:
    storage, heads = INTEGERS[name], heads_of(size)
    if not storage.fits(size):
        return
    scales, integers = expected_groups(storage, heads)
    assert (integers.min(), integers.max()) == ((-127, 127) if storage.bits == 8 else (-8, 7))
    rows = storage.encode(heads)
    assert (rows.dtype, rows.shape[-1]) == (np.int8, storage.row_length(size))
    bits = np.ascontiguousarray(rows[..., storage.value_length(size) :]).view(np.uint16)
    np.testing.assert_array_equal(bits.view(ml_dtypes.bfloat16).astype(np.float64), scales)
    decoded = storage.decode(rows, size)
    np.testing.assert_array_equal(decoded, (integers * scales[..., None]).reshape(heads.shape))
    error = np.abs(decoded.reshape(integers.shape) - heads.reshape(integers.shape))
    is_clamped = (storage.bits == 4) & (integers == 7)
    steps = np.abs(scales[..., None]) * np.where(is_clamped, 1.04, 0.5)
    assert (error <= steps * (1 + 2.0**-20) + 2.0**-100).all()


def test_bytes_of_rows() -> None:
    for name, size in {"f32": 1024, "f16": 512, "int8": 256 + 16, "int4": 128 + 16}.items():
        assert FORMATS[name].row_bytes(256) == size
    int4 = FORMATS["int4"]
    heads = np.arange(-16, 16, dtype=np.float32) / np.float32(2)
    rows = int4.encode(heads)
    expected = np.minimum(np.rint(heads).astype(int), 7)
    assert [byte & 15 for byte in rows[:16]] == [each & 15 for each in expected[:16]]
    assert [byte >> 4 for byte in rows[:16]] == expected[16:].tolist()
    assert rows[16:].tobytes() == b"\x80\x3f"  # 1 in bf16


@pytest.mark.parametrize("name", INTEGERS)
def test_heads_with_infinities_and_nan_decode_to_nan(name: str) -> None:
    heads = np.ones((3, 32), np.float32)
    heads[0, 3], heads[1, 4] = np.inf, np.nan
    decoded = INTEGERS[name].decode(INTEGERS[name].encode(heads), 32)
    assert np.isnan(decoded[:2]).all()
    np.testing.assert_allclose(decoded[2], 1, rtol=2**-8)


@ON_DEVICES
def test_programs_store_and_read_the_bits_of_the_formula(device: Device) -> None:
    for name, size in (("int8", 64), ("int8", 20), ("int4", 64)):
        storage, heads = INTEGERS[name], heads_of(size, 256)

        def written(cache: Any, x: Any, position: Any, storage: CacheFormat = storage) -> Any:
            cache = put_slice(cache, storage.encode(x), [position, np.int32(0), np.int32(0)])
            return cache, storage.decode(cache, x.shape[-1])

        cache = np.zeros((300, 2, storage.row_length(size)), np.int8)
        types = [(each.shape, each.dtype) for each in (cache, heads)]
        module = trace(written, [*types, ((), np.int32)])
        actual, decoded = compile_for(module, device).main(cache, heads, np.int32(9))
        cache[9 : 9 + len(heads)] = storage.encode(heads)
        np.testing.assert_array_equal(actual, cache)
        np.testing.assert_array_equal(decoded, storage.decode(cache, size))
