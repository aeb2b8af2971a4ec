"""Kinds of inputs that are arguments, options, executables, killed commands and added pieces."""

from __future__ import annotations

import functools
import importlib
import random
import signal
import sys
from typing import Any

from . import ROOT
from .case import Case
from .corpus import CAST, Corpus
from .mutations import mutate_bytes, mutate_text


def literals(rng: random.Random, corpus: Corpus) -> Case:
    """Arguments of a run, as text."""
    known = ("2x8xf32=1,2,3,4", "2x8xf32=0", "3xf32=1 2 3", "2", "4xi1=1,0,1,1", "0.5", "i32=7",
             "@x.npy", "x.npy", "@", "2x8xf32=@x.npy", "nan", "2x8xi8=1", "4xf32", "=", "xf32=1",
             "0xf32=", "-1xf32=1", "2x8xf32=[[1,2],[3,4]]", "inf", "1e999", "true")  # fmt: skip
    inputs = [rng.choice(known) for _ in range(rng.choice((1, 1, 3, 3, 0, 2)))]
    if rng.random() < 0.8 and inputs:
        inputs[0] = mutate_text(rng, inputs[0], list(known))
    arguments = ["run", "x.vmfb"]
    for value in inputs:
        arguments += ["--input", value.replace("\0", "0")]
    arguments += (
        ["--function", rng.choice(("main", "sum", "mai", ""))] if rng.random() < 0.5 else []
    )
    arguments += ["--quantized-io"] if rng.random() < 0.3 else []
    files = {"x.vmfb": corpus.executables[0], "x.npy": rng.choice(corpus.npy)}
    return Case(arguments, files)


def signatures(rng: random.Random, corpus: Corpus) -> Case:
    """Executables whose recorded signatures are changed, in place."""
    data = bytearray(corpus.executables[0])
    start = data.index(b'{"version"')
    end = data.index(b"\0", start)
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(start, end)
        data[position] = rng.choice((*b'{}[]",:0123456789-ntf.', rng.randrange(1, 256)))
    return Case(
        rng.choice((["run", "x.vmfb", "--input", "2x8xf32=1"], ["inspect", "x.vmfb"])),
        {"x.vmfb": bytes(data)},
    )


def executables(rng: random.Random, corpus: Corpus) -> Case:
    """Changed executables, looked at."""
    data = mutate_bytes(rng, corpus.executables[0], most=3)
    return Case(["inspect", "x.vmfb", *(["--json"] if rng.random() < 0.5 else [])],
                {"x.vmfb": data})  # fmt: skip


def options(rng: random.Random, corpus: Corpus) -> Case:
    """Any options of any command."""
    from subquant.cli import COMMANDS, main

    name = rng.choice([n for n in COMMANDS if n != "conformance"])
    command: Any = main.get_command(None, name)  # type: ignore[arg-type]
    arguments = [name]
    while hasattr(command, "commands"):  # a group, such as that of the cache
        arguments.append(rng.choice(sorted(command.commands)))
        command = command.commands[arguments[-1]]
    known = [option for parameter in command.params for option in parameter.opts]
    arguments += [rng.choice(("x.mlir", "x.vmfb", "x.safetensors", "d", "-", "nowhere", ""))]
    for _ in range(rng.randrange(1, 5)):
        option = rng.choice(known)
        if not option.startswith("-") or option in ("--stream",):
            continue
        arguments.append(option)
        if rng.random() < 0.7:
            arguments.append(rng.choice((
                "0", "-1", "4", "vulkan", "llvm-cpu", "x.mlir", "out", "d", "nowhere/out", "host",
                "znver99", "exact", "json", "1e9", "main", "a=b", "model=x.safetensors", "", "[/x]",
                "9" * 30,
            )))  # fmt: skip
    if rng.random() < 0.2:
        arguments[rng.randrange(1, len(arguments))] = mutate_text(
            rng, rng.choice(arguments), known
        ).replace("\0", "")
    files = {"x.mlir": CAST.encode(), "x.vmfb": corpus.executables[0],
             "x.safetensors": corpus.safetensors[0], "d/a": b""}  # fmt: skip
    return Case(arguments, files)


def piece_case(format_: str, rng: random.Random, corpus: Corpus) -> Case:
    """A known file with one piece added or changed: an error names it, or it is used (`pieces`)."""
    if str(ROOT / "scripts") not in sys.path:
        sys.path.append(str(ROOT / "scripts"))
    from pieces import answer

    base, piece = importlib.import_module(f"pieces.{format_}").draw(rng)
    return Case(["inspect", next(iter(piece.files))], piece.files,
                call=functools.partial(answer, base, piece))  # fmt: skip


def kills(rng: random.Random, corpus: Corpus) -> Case:
    """Compilations that are ended at any moment; only on request, by ``--kinds kills``."""
    text = CAST.replace("0.25", repr(rng.uniform(0.1, 1)))
    number = rng.choice((signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP))
    arguments = ["compile", "x.mlir", "-o", "out.vmfb"]
    return Case(arguments, {"x.mlir": text.encode()}, "out.vmfb", (number, rng.uniform(0, 2.5)))
