"""Checkpoints of Hugging Face as language models: logits, tokens, errors; beside transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from click.testing import CliRunner
from tokenizers.decoders import DecodeStream

from checkpoint_folders import Checkpoint
from checkpoints import FOLDERS, changed_copy, expected, numpy_logits, relative_error
from gguf_of_checkpoint import write_gguf
from programs import LONG
from subquant.cli import main
from subquant.errors import InputError, UnsupportedError, UsageError
from subquant.formats.tokenizer_files import TokenizerFiles
from subquant.models import load
from subquant.models.huggingface.tokenizer import CheckpointTokenizer
from subquant.models.source import open_model
from subquant.weights.sources import open_weights
from subquant.weights.theta import Dataset, Theta

FLOATS = ["gemma3", "gemma3_images", "llama", "llama2", "llama_linear", "llama_yarn", "mistral",
          "mistral3_images", "phi3", "phi3_longrope", "phi3_partial", "qwen2", "qwen2_window",
          "qwen3", "smollm"]  # fmt: skip
"""Checkpoints of bf16 weights."""
WITH_TOKENIZERS = ["gemma3", "llama"]


@pytest.mark.parametrize("name", FLOATS)
def test_logits_in_numpy(name: str) -> None:
    tokens, reference = expected(name)
    assert relative_error(numpy_logits(FOLDERS / name, tokens), reference) < 3e-6


@pytest.mark.parametrize("name", WITH_TOKENIZERS)
def test_configurations_of_earlier_versions(name: str, tmp_path: Path) -> None:
    """``rope_theta`` and ``rope_scaling`` of transformers 4 in place of ``rope_parameters``."""
    folder = tmp_path / name
    shutil.copytree(FOLDERS / name, folder)
    (folder / "config.json").write_bytes((folder / "config_4x.json").read_bytes())
    (folder / "config_4x.json").unlink()
    assert open_model(folder).configuration == open_model(FOLDERS / name).configuration


ROUNDING = ["compressed_fp8_block", "compressed_fp8_dynamic", "compressed_fp8_static",
            "compressed_mxfp4", "compressed_mxfp8", "compressed_nvfp4", "compressed_w8a8_dynamic",
            "compressed_w8a8_static", "compressed_w8a8_static_asymmetric", "torchao_int8_dynamic",
            "torchao_intx4_dynamic"]  # fmt: skip
"""Checkpoints that ask for rounded inputs of layers."""
TIES = {"compressed_w8a8_dynamic": 5e-3, "torchao_int8_dynamic": 2e-2}
"""Tolerances where the least element of a token is a tie, -127.5 steps: its last bit decides."""


def quantized_logits(name: str) -> tuple[list[int], Any]:
    """Return tokens, and the logits of the library's own quantized forward pass."""
    arrays = np.load(FOLDERS / name / "expected.npz")
    return arrays["tokens"].tolist(), arrays["logits_quantized"]


@pytest.mark.parametrize("name", ROUNDING)
def test_logits_with_rounded_activations(name: str) -> None:
    tokens, reference = quantized_logits(name)
    actual = numpy_logits(FOLDERS / name, tokens, rounds_activations=True)
    assert relative_error(actual, reference) < TIES.get(name, 3e-6)


EVERY = sorted(path.name for path in FOLDERS.iterdir() if (path / "expected.npz").exists())


CONTEXTS = {"phi3_longrope": 32}
"""Contexts that choose the factors of the reference, which is a text of the first context."""


@pytest.mark.parametrize("name", EVERY if LONG else ["llama"])
def test_compiled_logits(name: str) -> None:
    """A prompt and four tokens, across the window of models that have one.

    The short suite compiles Gemma 3 in `test_kv_cache`, Phi 3 and layers of each method below.
    """
    tokens, reference = expected(name)
    context = CONTEXTS.get(name, 64)
    model = load(FOLDERS / name, activations="float", kv_cache="f32", context=context)
    session = model.session()
    actual = [session.prompt(tokens[:20]), *(session.next(token) for token in tokens[20:])]
    assert relative_error(np.stack(actual), reference[19:]) < 5e-6


@pytest.mark.skipif(not LONG, reason="the short suite has one model with layers of each")
@pytest.mark.parametrize("name", ROUNDING)
def test_compiled_logits_with_rounded_activations(name: str) -> None:
    """The default of a checkpoint that asks for rounded inputs."""
    tokens, reference = quantized_logits(name)
    session = load(FOLDERS / name, context=64, kv_cache="f32").session()
    actual = [session.prompt(tokens[:20]), *(session.next(token) for token in tokens[20:])]
    assert relative_error(np.stack(actual), reference[19:]) < 2e-2


def test_a_checkpoint_that_does_not_round_activations() -> None:
    with pytest.raises(UsageError, match="the model says nothing of activations"):
        load(FOLDERS / "llama", activations="checkpoint")


LAYERS_OF_METHODS = {
    "float": {
        "self_attn.q_proj": "gptq_int4_desc_act",
        "self_attn.k_proj": "compressed_int4_asymmetric",
        "self_attn.v_proj": "bitsandbytes_nf4",
        "self_attn.o_proj": "fp8_block",
        "mlp.gate_proj": "compressed_nvfp4a16",
        "mlp.up_proj": "torchao_int4",
        "mlp.down_proj": "gptq_int3",
    },
    "checkpoint": {
        "self_attn.q_proj": "compressed_w8a8_static_asymmetric",
        "self_attn.k_proj": "compressed_fp8_dynamic",
        "self_attn.v_proj": "compressed_nvfp4",
        "self_attn.o_proj": "fp8_block",
        "mlp.gate_proj": "compressed_w8a8_dynamic",
        "mlp.up_proj": "compressed_fp8_static",
        "mlp.down_proj": "compressed_mxfp4",
    },
}
"""Layers, each with the checkpoint whose method packed it, by the activations of the model."""


@pytest.mark.parametrize("activations", LAYERS_OF_METHODS)
@pytest.mark.share(2)
def test_compiled_logits_of_a_model_with_layers_of_each_method(
    activations: Any, tmp_path: Path
) -> None:
    """One program of seven layouts computes the logits of the forward pass in NumPy."""
    base = open_weights(FOLDERS / "llama_linear")
    tensors = base.theta.flatten()
    for layer, method in LAYERS_OF_METHODS[activations].items():
        name = f"model.layers.0.{layer}.weight"
        tensors[name] = open_weights(FOLDERS / method).theta.flatten()[name]
    archive = tmp_path / "model.irpa"
    Dataset(base.properties, Theta(tensors)).save(archive)
    tokens, _ = expected("llama_linear")
    reference = numpy_logits(archive, tokens, rounds_activations=activations == "checkpoint")
    session = load(archive, activations=activations, kv_cache="f32", context=32).session()
    actual = [session.prompt(tokens[:20]), *(session.next(token) for token in tokens[20:])]
    assert relative_error(np.stack(actual), reference[19:]) < 5e-6


def with_layers_of(architecture: str, method: str, folder: Path) -> Path:
    """Write a checkpoint of one architecture with the packed layers of another checkpoint."""
    checkpoint, packed = Checkpoint(architecture), Checkpoint(method)
    layers = [f"model.layers.0.{name}" for name in LINEAR]
    for layer in layers:
        of_layer = {n: a for n, a in packed.arrays.items() if n.startswith(f"{layer}.")}
        checkpoint.replace({f"{layer}.weight": None, **of_layer})
    checkpoint.config["quantization_config"] = packed.quantization
    if method.startswith("compressed"):
        modules = {name.rpartition(".")[0] for name in checkpoint.arrays}
        checkpoint.quantization["ignore"] = sorted(modules - set(layers))
    return checkpoint.write(folder)


LINEAR = [*(f"self_attn.{name}_proj" for name in "qkvo"),
          *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))]  # fmt: skip
OTHER_WIDTHS = ("compressed_fp8_block", "gptq_int4_qwen3")
METHODS = [name for name in EVERY if name.startswith(("compressed", "gptq", "fp8"))
           and not name.startswith(OTHER_WIDTHS)]  # fmt: skip
ARCHITECTURES = ["llama2", "mistral", "qwen2", "qwen2_window", "smollm"]
PAIRS = [(a, m) for a in ARCHITECTURES for m in METHODS]


@pytest.mark.skipif(not LONG, reason="5 s; one model has layers of each method")
@pytest.mark.parametrize(
    ("architecture", "method"),
    PAIRS if LONG else [("qwen2", "compressed_int8_channel")],
)
def test_formats_and_architectures_are_independent(
    architecture: str, method: str, tmp_path: Path
) -> None:
    """The compiled model computes the logits of the forward pass in NumPy."""
    folder = with_layers_of(architecture, method, tmp_path)
    tokens, _ = expected(architecture)
    session = load(folder, activations="float", kv_cache="f32", context=64).session()
    actual = session.prompt(tokens[:20])
    assert relative_error(actual[None], numpy_logits(folder, tokens[:20])[-1:]) < 5e-6


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("llama2", "llama"), ("phi3", "phi3"), ("phi3_partial", "phi3"),
     ("phi3_longrope", "phi3"), ("qwen2", "qwen2"), ("smollm", "llama")],
)  # fmt: skip
def test_logits_of_gguf_files(name: str, architecture: str, tmp_path: Path) -> None:
    """The same models as llama.cpp's converter writes them."""
    tokens, reference = expected(name)
    path = write_gguf(name, architecture, tmp_path / "model.gguf")
    assert relative_error(numpy_logits(path, tokens), reference) < 3e-6


@pytest.mark.long
def test_the_context_chooses_the_factors_of_long_rope(tmp_path: Path) -> None:
    """The first context is of 32 tokens; transformers has other factors for a text of 40."""
    arrays = np.load(FOLDERS / "phi3_longrope" / "expected.npz")
    tokens, reference = arrays["long_tokens"].tolist(), arrays["logits_long"]
    scaling = {"rope.scaling.type": "linear"}  # earlier versions of the converter write none
    gguf = write_gguf("phi3_longrope", "phi3", tmp_path / "model.gguf", **scaling)
    for path in (FOLDERS / "phi3_longrope", gguf):
        assert relative_error(numpy_logits(path, tokens), reference) < 3e-6
    assert relative_error(numpy_logits(gguf, tokens[:24]), reference[:24]) > 1e-3
    for context, is_long in ((33, True), (32, False)) if LONG else ((33, True),):
        model = load(gguf, activations="float", kv_cache="f32", context=context)
        error = relative_error(model.logits(tokens[:24]), reference[:24])
        assert error < 5e-6 if is_long else error > 1e-3


def test_long_rope_excludes_yarn(tmp_path: Path) -> None:
    scaling = {"rope.scaling.type": "yarn"}
    path = write_gguf("phi3_longrope", "phi3", tmp_path / "model.gguf", **scaling)
    with pytest.raises(UnsupportedError, match="by 'yarn', and the file has the divisors"):
        open_model(path)


def test_long_rope_of_llama(tmp_path: Path) -> None:
    """Files have divisors for texts of up to 32 tokens, and others for longer ones."""
    pairs = np.arange(1, 9)
    scaling = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 32,
        "short_factor": (1 + pairs / 16).tolist(),
        "long_factor": (1 + pairs**1.5).tolist(),
    }
    folder = changed_copy("llama2", tmp_path, lambda c: c["rope_parameters"].update(scaling))
    path = write_gguf(str(folder), "llama", tmp_path / "model.gguf")
    tokens = [(7 * number) % 64 for number in range(40)]
    short, long = (numpy_logits(path, tokens[:count]) for count in (32, 40))
    assert relative_error(short, numpy_logits(folder, tokens[:32])) < 3e-6
    assert relative_error(long, numpy_logits(folder, tokens)) < 3e-6
    assert relative_error(long[:32], short) > 1e-3


# -- tokens ----------------------------------------------------------------------------------------


def tokens_of(name: str) -> dict[str, Any]:
    """Return the tokens of transformers."""
    value: dict[str, Any] = json.loads((FOLDERS / name / "tokens.json").read_text())
    return value


@pytest.mark.parametrize("name", WITH_TOKENIZERS)
def test_tokens_are_those_of_transformers(name: str) -> None:
    tokenizer = open_model(FOLDERS / name).tokenizer()
    for case in tokens_of(name)["texts"]:
        assert tokenizer.encode(case["text"]) == case["tokens"], case
        assert tokenizer.encode(case["text"], start=False) == case["tokens_without_special"], case
        assert tokenizer.decode(case["tokens"], special=True) == case["decoded"], case


@pytest.mark.parametrize("name", WITH_TOKENIZERS)
def test_a_stream_decodes_whole_characters(name: str) -> None:
    tokenizer = open_model(FOLDERS / name).tokenizer()
    for case in tokens_of(name)["texts"]:
        stream = tokenizer.stream()
        pieces = [stream.put(token) for token in case["tokens_without_special"]]
        assert "\ufffd" not in "".join(pieces)
        whole = tokenizer.decode(case["tokens_without_special"])
        assert "".join(pieces) + stream.end() == whole, case


@pytest.mark.parametrize("name", WITH_TOKENIZERS)
def test_texts_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    """Any tokens, bytes of parts of characters, control tokens, and a gap of numbers."""
    library = tokenizers.Tokenizer.from_file(str(FOLDERS / name / "tokenizer.json"))
    library.add_tokens(["a piece"])
    library.save(str(tmp_path / "tokenizer.json"))
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    settings["added_tokens"][-1]["id"] += 7
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = CheckpointTokenizer(TokenizerFiles(tmp_path), {})
    rng = np.random.default_rng(1)
    for _ in range(300):
        tokens = rng.integers(0, library.get_vocab_size() + 12, 8).tolist()
        for special in (True, False):
            text = library.decode(tokens, skip_special_tokens=not special)
            assert tokenizer.decode(tokens, special=special) == text
        stream, reference = tokenizer.stream(), DecodeStream(skip_special_tokens=True)
        for token in tokens:
            try:
                text = reference.step(library, token) or ""
            except Exception:  # a byte changes the character before it
                break
            assert stream.put(token) == text


def test_a_byte_that_makes_others_invalid_changes_no_earlier_text() -> None:
    tokenizer = open_model(FOLDERS / "gemma3").tokenizer()
    library = tokenizers.Tokenizer.from_file(str(FOLDERS / "gemma3" / "tokenizer.json"))
    pieces = ["<0xC3>", "<0xA9>", "<0xFF>", "a", "b"]
    stream = tokenizer.stream()
    texts = [stream.put(library.token_to_id(piece)) for piece in pieces]
    assert texts == ["", "\u00e9", "", "\ufffd\ufffda", "b"]
    assert stream.end() == ""


@pytest.mark.parametrize("name", WITH_TOKENIZERS)
def test_a_tokenizer_that_rests_decodes_and_encodes_again(name: str) -> None:
    tokenizer = open_model(FOLDERS / name).tokenizer()
    case = tokens_of(name)["texts"][-1]
    tokenizer.rest()
    assert tokenizer.decode(case["tokens"], special=True) == case["decoded"]
    assert tokenizer.encode(case["text"]) == case["tokens"]


@pytest.mark.parametrize("name", WITH_TOKENIZERS)
def test_conversations_are_those_of_transformers(name: str) -> None:
    source = open_model(FOLDERS / name)
    chat = source.chat(source.tokenizer())
    for conversation in tokens_of(name)["conversations"]:
        for prompt in conversation["prompts"]:
            answer = prompt["add_generation_prompt"]
            assert chat.render(conversation["messages"], answer=answer) == prompt["text"]
            assert chat.encode(conversation["messages"], answer=answer) == prompt["tokens"]


def test_names_of_special_tokens_in_templates(tmp_path: Path) -> None:
    """Older folders have the names in ``special_tokens_map.json``."""
    folder = changed_copy("gemma3", tmp_path, lambda v: v.pop("eos_token"), "tokenizer_config.json")
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<end_of_turn>"}}')
    (folder / "chat_template.jinja").write_text("{{ bos_token, eos_token, unk_token, pad_token }}")
    source = open_model(folder)
    text = source.chat(source.tokenizer()).render([{"role": "user", "content": "A"}])
    assert text == "('<bos>', '<end_of_turn>', '<unk>', '<pad>')"


def test_end_tokens_are_those_of_generation_config(tmp_path: Path) -> None:
    assert open_model(FOLDERS / "llama").tokenizer().end_tokens == {1, 4}
    folder = changed_copy(
        "llama", tmp_path, lambda values: values.pop("eos_token_id"), "generation_config.json"
    )
    (folder / "config.json").write_text(
        json.dumps({**json.loads((folder / "config.json").read_text()), "eos_token_id": 7})
    )
    assert open_model(folder).tokenizer().end_tokens == {7}


def test_tokenizer_settings_with_long_numbers(tmp_path: Path) -> None:
    """Tokenizers without a limit have a ``model_max_length`` of 31 digits."""
    folder = changed_copy(
        "llama", tmp_path, lambda v: v.update(model_max_length=int(1e30)), "tokenizer_config.json"
    )
    assert open_model(folder).tokenizer().encode("a")


def test_text_of_a_user_names_no_control_tokens() -> None:
    tokenizer = open_model(FOLDERS / "llama").tokenizer()
    name = tokenizer.name_of(4)
    assert tokenizer.encode(name, start=False) == [4]
    assert 4 not in tokenizer.encode(name, start=False, special=False)


PROGRAM = ["--activations", "float", "--kv-cache", "f32", "--context", "64"]


def test_generate_and_perplexity(tmp_path: Path) -> None:
    """The options are those of `test_compiled_logits`, whose program is in the cache."""
    folder, page = str(FOLDERS / "llama"), tmp_path / "page.txt"
    page.write_text("The harbor is quiet. " * 12)
    run = CliRunner().invoke(
        main, ["generate", "--model", folder, "--chat", "--prompt", "Where is it?",
               "--max-tokens", "4", "--temperature", "0", "--json", *PROGRAM]
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    assert len(json.loads(run.stdout)["tokens"]) <= 4
    run = CliRunner().invoke(
        main, ["perplexity", "--model", folder, "--text", str(page), "--chunk", "64", *PROGRAM]
    )
    assert run.exit_code == 0, run.output
    assert "perplexity" in run.stdout


def test_archives_of_checkpoints_have_their_tokenizers(tmp_path: Path) -> None:
    archive, folder = tmp_path / "llama.irpa", FOLDERS / "llama"
    for command in (["import", str(folder)], ["quantize", str(folder)]):
        run = CliRunner().invoke(main, [*command, "-o", str(archive)])
        assert run.exit_code == 0, run.output
        source, original = open_model(archive), open_model(folder)
        assert source.configuration == original.configuration
        assert source.tokenizer().encode("The sea") == original.tokenizer().encode("The sea")
        messages = [{"role": "user", "content": "Hi"}]
        texts = [each.chat(each.tokenizer()).render(messages) for each in (source, original)]
        assert texts[0] == texts[1]


def test_archives_without_a_tokenizer(tmp_path: Path) -> None:
    archive = tmp_path / "llama.irpa"
    open_weights(FOLDERS / "llama").save(archive)
    with pytest.raises(InputError, match="no tokenizer; give the folder of the checkpoint"):
        open_model(archive).tokenizer()
