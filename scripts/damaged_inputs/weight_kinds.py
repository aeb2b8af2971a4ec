"""Kinds of inputs that are arrays, checkpoints, GGUF and parameter archives."""

from __future__ import annotations

import random
import struct

import numpy as np

from .case import Case, weights_case
from .corpus import CAST, Corpus
from .mutations import mutate_bytes, mutate_text


def npy(rng: random.Random, corpus: Corpus) -> Case:
    """Changed files of arrays."""
    data = rng.choice(corpus.npy)
    if rng.random() < 0.6:
        head, _, rest = data.partition(b"\n")
        text = mutate_text(rng, head[10:].decode("latin-1"), ["{'descr': '<f4', 'shape': (2, 8)}"])
        encoded = text.encode("utf-8", "replace")[:60000] + b"\n"
        data = head[:8] + struct.pack("<H", len(encoded)) + encoded + rest
    else:
        data = mutate_bytes(rng, data)
    files = {"x.vmfb": corpus.executables[0], "x.npy": data, "x.mlir": CAST.encode()}
    command = rng.choice((["run", "x.vmfb"], ["exec", "x.mlir", "--interpret-only"]))
    return Case([*command, "--function", "main", "--input", "@x.npy"], files)


def safetensors(rng: random.Random, corpus: Corpus) -> Case:
    """Changed safetensors: headers as JSON, and bytes."""
    data = rng.choice(corpus.safetensors)
    if rng.random() < 0.6:
        size = int.from_bytes(data[:8], "little")
        head = mutate_text(rng, data[8 : 8 + size].decode(), ['{"a/x]": [1, {"dtype": "F16"}]}'])
        encoded = head.encode("utf-8", "surrogatepass")
        data = struct.pack("<Q", len(encoded)) + encoded + data[8 + size :]
    else:
        data = mutate_bytes(rng, data)
    return weights_case(rng, "x.safetensors", {"x.safetensors": data})


def folders(rng: random.Random, corpus: Corpus) -> Case:
    """Changed checkpoints in folders."""
    files = dict(corpus.folder)
    name = rng.choice(list(files))
    if name.endswith("json"):
        files[name] = mutate_text(rng, files[name].decode(), ['{"bits": [4], "x": null}']).encode(
            "utf-8", "surrogatepass")  # fmt: skip
    else:
        files[name] = mutate_bytes(rng, files[name])
    if rng.random() < 0.1:
        del files[rng.choice(list(files))]
    return weights_case(rng, "d", {f"d/{name}": data for name, data in files.items()})


def gguf(rng: random.Random, corpus: Corpus) -> Case:
    """Changed GGUF."""
    return weights_case(rng, "x.gguf", {"x.gguf": mutate_bytes(rng, rng.choice(corpus.gguf))})


def irpa(rng: random.Random, corpus: Corpus) -> Case:
    """Changed parameter archives."""
    return weights_case(rng, "x.irpa", {"x.irpa": mutate_bytes(rng, rng.choice(corpus.irpa))})


def values(rng: random.Random, corpus: Corpus) -> Case:
    """Weights of any numbers and shapes, quantized."""
    from safetensors.numpy import save

    generator = np.random.default_rng(rng.getrandbits(32))
    shape = tuple(rng.choice((0, 1, 2, 7, 32, 33, 64)) for _ in range(rng.randrange(4)))
    reals = generator.standard_normal(shape) * 10.0 ** rng.choice((0, -40, 38, 300, -300))
    with np.errstate(all="ignore"):
        array = np.asarray(reals.astype(rng.choice((np.float16, np.float32, np.float64))))
    if array.size and rng.random() < 0.3:
        array.reshape(-1)[0] = rng.choice((np.nan, np.inf, -np.inf, -0.0))
    name = rng.choice(("a.weight", "a[/x]", "\x1b[2J", "", "a" * 300, "é", "../a", "a\nb"))
    case = weights_case(rng, "x.safetensors", {"x.safetensors": save({name: array})})
    if case.output:
        case.arguments[0] = "quantize"
    return case
