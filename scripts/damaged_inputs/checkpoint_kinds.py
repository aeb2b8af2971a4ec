"""Kinds of inputs that are folders of Hugging Face checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import random
import tempfile
from pathlib import Path

import numpy as np

from .case import Case
from .checkpoint_damage import draw_damage
from .checkpoint_json import Damage, Files, folders
from .corpus import Corpus

_TEXTS = ("Hello, world 12! \n\n  x", "<|user|>\u00e9\U0001f600<|end|>", "")
_WITH_TOKENIZERS = ("compressed_int4", "gemma3", "llama")
"""Folders whose vocabulary is that of their tokenizer."""
_CONVERSATION = [{"role": "user", "content": "Hello"}]
_LONGEST_MESSAGE = 4000


def checkpoints(rng: random.Random, corpus: Corpus) -> Case:
    """Damaged checkpoints: the command line reads them, or the model is loaded and compared."""
    name, damage = draw_damage(rng)
    files = {os.path.normpath(f"d/{file}"): data for file, data in damage.files.items()}
    commands = (
        (["inspect", "d"], None),
        (["inspect", "d", "--json"], None),
        (["import", "d", "-o", "out.irpa"], "out.irpa"),
        (["quantize", "d", "-o", "out.irpa"], "out.irpa"),
    )  # fmt: skip
    if rng.random() < 0.3:
        arguments, output = rng.choice(commands)
        return Case(list(arguments), files, output)
    load = functools.partial(_load, name, damage)
    return Case(["generate", "--model", "d", "--emit", "out"], files, call=load)


def checkpoint_programs(rng: random.Random, corpus: Corpus) -> Case:
    """Damaged checkpoints, written as programs; on request, by ``--kinds``."""
    _, damage = draw_damage(rng)
    files = {os.path.normpath(f"d/{file}"): data for file, data in damage.files.items()}
    return Case(["generate", "--model", "d", "--emit", "out", "--context", "64"], files)


def checkpoint_answers(rng: random.Random, corpus: Corpus) -> Case:
    """Damaged checkpoints that generate text; on request, as each is compiled for seconds."""
    name, damage = draw_damage(rng)
    while name not in _WITH_TOKENIZERS:
        name, damage = draw_damage(rng)
    files = {os.path.normpath(f"d/{file}"): data for file, data in damage.files.items()}
    arguments = ["generate", "--model", "d", "--prompt", "Hello", "--max-tokens", "2", "--context",
                 "32", *(["--chat"] if damage.renders else [])]  # fmt: skip
    return Case(arguments, files)


def _load(name: str, damage: Damage) -> tuple[int, str]:
    """Load the folder ``d``; return the status, and the fault."""
    from subquant.errors import SubquantError

    try:
        digest = digest_of(Path("d"), renders=damage.renders)
    except SubquantError as error:
        message = str(error)
        if damage.expected == "equal":
            return 1, f"refused: {name}: {damage.what}: {message}"
        if not message.strip() or len(message) > _LONGEST_MESSAGE:
            return (
                1,
                f"message of {len(message)} characters: {name}: {damage.what}: {message[:500]}",
            )
        if not message.replace("\n", "").isprintable():
            return 1, f"unprintable: {name}: {damage.what}: {message!r}"
        if "d/" not in message and "'d'" not in message and not message.startswith("d: "):
            return 1, f"not located: {name}: {damage.what}: {message[:500]}"
        print(f"{name}: {damage.what}: {message}")
        return 1, ""
    if damage.expected == "refused":
        return 0, f"accepted: {name}: {damage.what}"
    if damage.expected in ("changed", "equal"):
        is_equal = digest == _expected_digest(name, renders=damage.renders)
        if is_equal != (damage.expected == "equal"):
            return 0, f"{'silent' if is_equal else 'wrong'}: {name}: {damage.what}"
    return 0, ""


@functools.cache
def _expected_digest(name: str, *, renders: bool) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), folders()[name])
        return digest_of(Path(folder), renders=renders)


def _write(folder: Path, files: Files) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def digest_of(folder: Path, *, renders: bool) -> bytes:
    """Return a digest of all that a model is computed from, and of its tokens.

    Raises:
        SubquantError: the folder is refused.
    """
    from subquant.errors import Place, SubquantError
    from subquant.layouts import QuantizedTensor
    from subquant.models.source import open_model

    source = open_model(folder)
    configuration = dataclasses.asdict(source.configuration)
    digest = hashlib.sha256(repr(configuration).encode())
    for name, tensor in sorted(source.tensors.items()):
        planes = {"": getattr(tensor, "array", None)}
        if isinstance(tensor, QuantizedTensor):
            layout = tensor.unpack()
            digest.update(repr((type(layout).__name__, layout.metadata)).encode())
            planes = dict(layout.planes)
        digest.update(repr((name, tensor.name, tuple(tensor.shape))).encode())
        for plane, array in planes.items():
            if array is not None:
                digest.update(f"{plane} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
    try:
        tokenizer = source.tokenizer()
        for text in _TEXTS:
            tokens = tokenizer.encode(text)
            digest.update(repr((tokens, tokenizer.decode(tokens))).encode())
            stream = tokenizer.stream()
            digest.update("".join([*map(stream.put, tokens), stream.end()]).encode())
        ends = sorted(tokenizer.end_tokens)
        digest.update(repr((ends, tokenizer.start_token, tokenizer.adds_start)).encode())
        if renders:
            digest.update(source.chat(tokenizer).render(_CONVERSATION).encode())
    except SubquantError as error:
        raise error.located(Place(str(folder))) from None
    return digest.digest()
