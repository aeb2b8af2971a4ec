"""Compiled models: sessions on devices compared with the oracle, and the cache of models."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_models import SMALL, TinyModel
from programs import LONG
from subquant.compiler.cache import Cache
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import ExecutionError, InputError, Remark, UsageError
from subquant.formats.irpa import Archive
from subquant.models import Session, loading
from subquant.models.gguf_configuration import read_gguf_configuration
from subquant.models.interface import Shape, empty_caches
from subquant.models.module import write_module
from subquant.models.source import open_model
from subquant.runtime import Device, Executable
from subquant.weights.sources import open_weights
from transformer_oracle import Oracle

FLOATS = ("F32", "F16", "BF16", "Q5_0", "Q8_0", "Q3_K", "Q6_K")
INTEGERS = ("Q4_0", "Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K", "Q8_0")
"""Weight types of the two compiled models, which together cover every type.

All blocks of a model have the same seven types in the same order, so kernels are compiled once.
"""
TOKENS = np.random.default_rng(3).integers(0, 300, 20).tolist()
SHAPE = Shape(24, (8, 4))


class Compiled:
    """A tiny compiled model, and the oracle's logits of `TOKENS`."""

    def __init__(
        self, model: TinyModel, device: Device, folder: Path, options: CompileOptions,
        shape: Shape = SHAPE,
    ) -> None:  # fmt: skip
        path = model.write(folder / "model.gguf")
        archive = folder / "model.irpa"
        source = open_weights(path)
        tensors = source.theta.flatten()
        self.configuration = read_gguf_configuration(source.properties, tensors)
        self.shape = shape
        self.remarks: list[Remark] = []
        data = compile_to_bytes(
            write_module(self.configuration, tensors, shape),
            options,
            on_remark=self.remarks.append,
            weights={"model": path},
            parameters=archive,
        )
        self.executable = Executable(data, device, {"model": archive})
        self.expected, _ = Oracle(path).run(TOKENS)

    def session(self) -> Session:
        return Session(self.executable, self.configuration, self.shape)


@pytest.fixture(scope="module")
def floats(cpu: Device, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Activations that stay floats, a window of 8 tokens, biases, scales and a soft cap."""
    folder = tmp_path_factory.mktemp("floats")
    further = {"attn_q.bias": [256], "attn_q.scale": [1], "attn_output.scale": [1]}
    model = TinyModel(
        "gemma3",
        FLOATS,
        properties={"final_logit_softcapping": 3.0, "attention.scale": 0.1},
        extra={f"blk.{n}.{name}": shape for n in range(2) for name, shape in further.items()},
    )
    return Compiled(model, cpu, folder, CompileOptions())


@pytest.fixture(scope="module")
def integers(cpu: Device, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Activations of 8 bits; pieces of one length."""
    folder = tmp_path_factory.mktemp("integers")
    options = CompileOptions(activations="int8", explain=True)
    return Compiled(TinyModel("llama", INTEGERS), cpu, folder, options, Shape(24, (8,)))


def check(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare floats; see `test_transformer.check`."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2**-11 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("context", "pieces"),
    [(1, (16,)), (47, (16,)), (48, (64, 16)), (95, (64, 16)), (96, (128, 64, 16))],
)
def test_pieces_are_not_longer_than_prompts(context: int, pieces: tuple[int, ...]) -> None:
    assert Shape.of_context(context).pieces == pieces


@pytest.mark.long
def test_all_logits_in_pieces(floats: Compiled) -> None:
    check(floats.session().all_logits(TOKENS), floats.expected)


@pytest.mark.parametrize("count", [1, 2, 4, 7, 11, 16, 19])
def test_a_prompt_and_the_tokens_after_it(floats: Compiled, count: int) -> None:
    """Within the window and beyond; of 2, 7 and 11 tokens the last piece is filled up."""
    session = floats.session()
    check(session.prompt(TOKENS[:count]), floats.expected[count - 1])
    assert session.position == count
    for number, token in enumerate(TOKENS[count:], count):
        check(session.next(token), floats.expected[number])


def test_a_prompt_after_others_and_sessions_side_by_side(floats: Compiled) -> None:
    first, second = floats.session(), floats.session()
    first.prompt(TOKENS[:5])
    second.prompt(TOKENS[5:8])
    check(first.prompt(TOKENS[5:]), floats.expected[-1])
    second.reset()
    check(second.prompt(TOKENS[:7]), floats.expected[6])


def test_the_context_is_filled_to_its_end(floats: Compiled) -> None:
    session = floats.session()
    session.prompt(TOKENS)
    for token in TOKENS[:4]:
        logits = session.next(token)
    assert session.position == SHAPE.context == session.context
    assert np.isfinite(logits).all()
    whole = floats.session().prompt([*TOKENS, *TOKENS[:4]])
    np.testing.assert_allclose(whole, logits, rtol=0, atol=2**-11 * np.abs(logits).max())
    with pytest.raises(UsageError, match="1 token after 24 others do not fit into the context"):
        session.next(0)
    assert session.position == 24


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "there are no tokens to read"),
        ([1, 394], "the token 394 is none of the vocabulary's, 0 to 393"),
        ([-1], "the token -1 is none"),
        ([1] * 25, "25 tokens do not fit into the context of 24; give a shorter prompt"),
    ],
)
def test_tokens_that_are_refused(floats: Compiled, tokens: list[int], message: str) -> None:
    session = floats.session()
    for read in (session.prompt, session.all_logits):
        with pytest.raises(UsageError, match=message):
            read(tokens)
    assert session.position == 0


@pytest.mark.parametrize(
    ("name", "count", "position", "message"),
    [
        ("prompt", 0, 0, "there are no tokens to read"),
        ("prompt", 25, 0, "the tokens from the position on do not fit into the context of 24"),
        ("prompt", 100, 0, "do not fit into the context of 24"),
        ("prompt", 24, 1, "do not fit into the context of 24"),
        ("prompt", 1, 24, "do not fit into the context of 24"),
        ("prompt", 1, -1, "do not fit into the context of 24"),
        ("prompt", 2, 2**31 - 1, "do not fit into the context of 24"),
        ("next", 1, 24, "do not fit into the context of 24"),
        ("next", 1, -1, "do not fit into the context of 24"),
        ("all", 4, 24, "do not fit into the context of 24"),
    ],
)
def test_what_the_program_refuses(
    floats: Compiled, name: str, count: int, position: int, message: str
) -> None:
    """Tokens beyond the context are not written, though an update would clamp the offset."""
    caches = [each for cache in empty_caches(floats.configuration, SHAPE.rows) for each in cache]
    with pytest.raises(ExecutionError, match=f"function '{name}' stopped: .*{message}"):
        floats.executable[name](np.zeros(count, np.int32), np.int32(position), *caches)


def test_caches_are_never_copied(floats: Compiled) -> None:
    """In a prompt of several pieces of both lengths, in a token, and where all are scored."""
    session = floats.session()

    def cache_addresses() -> list[int]:
        caches = session._caches
        assert caches is not None
        return [cache._device.host_bytes(cache.view).ctypes.data for cache in caches]

    session.next(TOKENS[0])
    first = cache_addresses()
    session.prompt(TOKENS[1:20])
    session.next(TOKENS[0])
    session.all_logits(TOKENS[:3])
    assert cache_addresses() == first
    assert len(set(first)) == 4


def test_what_ends_a_call_ends_the_session_cleanly(
    floats: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = floats.session()
    session.prompt(TOKENS[:9])
    with monkeypatch.context() as patched:
        patched.setattr(
            "subquant.runtime.executable.Function.invoke",
            lambda *arguments, **options: (_ for _ in ()).throw(KeyboardInterrupt()),
        )
        with pytest.raises(KeyboardInterrupt):
            session.next(TOKENS[9])
    assert session.position == 0
    check(session.prompt(TOKENS[:3]), floats.expected[2])


@pytest.mark.long
def test_activations_of_8_bits(integers: Compiled) -> None:
    """A rounding is up to half of 1 / 127 of the greatest of its block, about 1 % of an activation.

    The errors of a block's elements add up at random, and those of 7 contractions in each of 2
    blocks: a few percent of the logits' own deviation.
    """
    session = integers.session()
    actual = np.array([session.next(token) for token in TOKENS])
    deviation = integers.expected.std()
    assert np.sqrt(((actual - integers.expected) ** 2).mean()) < 0.03 * deviation
    session.reset()
    np.testing.assert_allclose(session.all_logits(TOKENS), actual, rtol=0, atol=0.1 * deviation)


def test_weights_in_blocks_are_computed_by_kernels(integers: Compiled) -> None:
    remarks = [str(remark) for remark in integers.remarks]
    assert remarks
    assert [text for text in remarks if "is computed by a kernel" not in text] == []


@pytest.mark.device
@pytest.mark.skipif(not LONG, reason="10 s; kernels of GPUs have tests of their own")
def test_vulkan(vulkan: Device, tmp_path: Path) -> None:
    options = CompileOptions(target="vulkan", vulkan_target=vulkan.vulkan_target)
    compiled = Compiled(TinyModel("gemma3", ["Q8_0"]), vulkan, tmp_path, options, Shape(24, (8,)))
    session = compiled.session()
    check(session.prompt(TOKENS[:10]), compiled.expected[9])
    for number in range(10, 13):
        check(session.next(TOKENS[number]), compiled.expected[number])


# -- the cache ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = TinyModel("qwen2", ["Q8_0"], blocks=1, vocabulary="gpt2", **SMALL)
    return model.write(tmp_path_factory.mktemp("kept") / "tiny.gguf")


@pytest.fixture(scope="module")
def filled(model_file: Path) -> Path:
    """A cache that a model was loaded with once."""
    folder = model_file.parent / "cache"
    program = f"""
import sys
from subquant.models import load
load({str(model_file)!r}, threads=1, activations="float", cache={str(folder)!r})
assert "subquant.core._mlir" not in sys.modules, "MLIR's memory is the model's"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    return folder


def load_floats(path: Path, cache: Path, **options: Any) -> loading.Model:
    return loading.load(path, threads=1, activations="float", cache=cache, **options)


@pytest.fixture
def no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("subquant.compiler.compilation.compile_to_bytes", fail)


@pytest.mark.usefixtures("no_compilation")
def test_a_model_is_imported_and_compiled_once(model_file: Path, filled: Path) -> None:
    steps: list[str] = []
    model = load_floats(model_file, filled, progress=steps.append)
    assert steps == ["load"]
    expected, _ = Oracle(model_file).run(TOKENS)
    check(model.logits(TOKENS), expected)
    check(model.session().prompt(TOKENS), expected[-1])
    [record] = [each for _, each in Cache(filled).records() if "about" in each.fields]
    about = record.fields["about"]
    assert (about["kind"], about["name"]) == ("language model", str(model_file))
    assert sorted(record.blobs) == ["executable", "parameters"]
    assert len(files(filled / "blobs")) == 2


@pytest.mark.usefixtures("no_compilation")
@pytest.mark.parametrize("options", [{"context": 32}, {"activations": "int8"}])
def test_other_options_are_other_programs(
    model_file: Path, filled: Path, options: dict[str, object]
) -> None:
    with pytest.raises(AssertionError, match="compiled again"):
        loading.load(model_file, threads=1, cache=filled, **{"activations": "float"} | options)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def compilations(filled: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A second emit to the same files gives the same contents."""
    cache, inputs = Cache(filled), []
    [record] = [each for _, each in cache.records() if "about" in each.fields]
    executable, archive = (cache.blob(record.blobs[name]) for name in ("executable", "parameters"))

    def compile_again(source: bytes, options: object, *, parameters: Path, **_: object) -> bytes:
        inputs.append(parameters)
        parameters.write_bytes(archive)
        return executable

    monkeypatch.setattr(loading, "_program", lambda *arguments, **options: b"")
    monkeypatch.setattr("subquant.compiler.compilation.compile_to_bytes", compile_again)
    return inputs


def test_what_is_not_whole_is_made_again(
    model_file: Path, filled: Path, compilations: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(filled, tmp_path / "cache")

    def steps() -> list[str]:
        actual: list[str] = []
        load_floats(model_file, tmp_path / "cache", progress=actual.append)
        return actual

    assert steps() == ["load"]
    assert not compilations
    for count, path in enumerate(files(tmp_path / "cache/blobs")):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert steps() == [f"{path} is damaged, and is removed", "load"]
        assert len(compilations) == 2 * count + 1
        assert path.read_bytes() == whole
        path.unlink()
        assert steps() == ["load"]
        assert len(compilations) == 2 * count + 2
        assert path.read_bytes() == whole
        assert steps() == ["load"]
    assert not any(path.exists() for path in compilations)


def test_what_is_loaded_is_not_removed(model_file: Path, filled: Path, tmp_path: Path) -> None:
    """A model maps its archive; the executable was read."""
    shutil.copytree(filled, tmp_path / "cache")
    model = load_floats(model_file, tmp_path / "cache")
    Cache(tmp_path / "cache").prune(0)
    [archive] = files(tmp_path / "cache")
    assert Archive(archive)
    model.session().prompt(TOKENS)
    size = -(-archive.stat().st_size // 4096) * 4096
    del model
    gc.collect()
    assert Cache(tmp_path / "cache").prune(0) == (1, size)


@pytest.mark.usefixtures("compilations")
def test_a_cache_that_has_no_room(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pinned entry is not evicted, however large it is."""
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", "1 kB")
    model = load_floats(model_file, tmp_path)
    assert len(files(tmp_path / "blobs")) == 2
    model.session().prompt(TOKENS)


@pytest.mark.parametrize("end", ["pass lower-quant-casts", "iree-compile"])
def test_what_ends_a_compilation_leaves_nothing(model_file: Path, tmp_path: Path, end: str) -> None:
    """After the kernels' tiles were written, and after all of the archive was."""

    def interrupt(step: str) -> None:
        if step == end:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loading.load(model_file, threads=1, cache=tmp_path, progress=interrupt)
    assert files(tmp_path) == []


@pytest.mark.parametrize("context", [0, 65])
def test_contexts_that_are_refused(model_file: Path, tmp_path: Path, context: int) -> None:
    with pytest.raises(UsageError, match=f"the context is {context}, expected 1 to 64"):
        loading.load(model_file, context=context, cache=tmp_path)


def test_positions_are_integers_of_32_bits(model_file: Path) -> None:
    source = open_model(model_file)
    name = f"{source.properties['general.architecture']}.context_length"
    properties = {**source.properties, name: 2**62}
    configuration = read_gguf_configuration(properties, source.tensors)
    with pytest.raises(UsageError, match=r"is 2,147,483,648, expected 1 to 1,073,741,824$"):
        loading._shape(replace(source, configuration=configuration), 2**31, "f16")


def test_a_folder_that_cannot_be_written(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write '.*': Not a directory"):
        loading.load(model_file, cache=tmp_path / "file" / "cache")


def test_what_is_emitted_is_readable(model_file: Path, tmp_path: Path) -> None:
    """`test_generate` checks that the program compiles and computes the same."""
    module, archive = tmp_path / "m.mlir", tmp_path / "m.irpa"
    loading.emit(model_file, module, archive, context=24)
    text = module.read_text()
    assert '#flow.parameter.named<"model"::"blk.0.attn_q.weight:qs">' in text
    assert "subquant.attention" in text
    assert len(text) < 200_000
