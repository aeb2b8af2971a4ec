#!/usr/bin/env python3
"""Run the command line on damaged inputs, and report failures.

    scripts/fuzz                                1,000 inputs of all kinds
    scripts/fuzz --count 100000 --jobs 2        the long run
    scripts/fuzz --kinds text,bytecode          some kinds
    scripts/fuzz --kinds kills --count 500      compilations that are ended at any moment
    scripts/fuzz --kinds onnx_pieces,tflite_pieces,gguf_pieces,checkpoint_pieces --count 10000
                                                known files with one unknown piece added
    scripts/fuzz --replay text:123 --seed 7     one input again, with its output
    scripts/fuzz --cluster tcp://10.0.0.1:8786  on the workers of a Dask scheduler

Every input follows from its kind, the seed and its number. Failures are:

* a crash, or a traceback;
* an exit status other than 0, 1 and 2;
* a hang: more than ``--seconds``;
* an output file although the status is not 0, or none although it is;
* files left in the temporary folder;
* a piece of a file (an attribute, a tensor, a property, a field) that changes no number and that no
  error names, though the reference runtime computes other numbers, refuses the file, or does not
  know the piece either.

Inputs are run one after another in processes that call the command line as a function, so that an
input costs its own time and not that of a start; a process that ends is a crash, and is replaced.
Failures are kept in ``build/fuzz/KIND-NUMBER``, with a file ``command`` and the output. Exit
status 1 if there is one.

On a cluster a task is a range of numbers: this script runs it there, out of an archive with all
that inputs are made from. The packages that make inputs must be the same there as here. Changed
executables (``executables``, ``signatures``) follow from the CPU too, for which they were compiled.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import os
import random
import re
import resource
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
_KEPT = _ROOT / "build/fuzz"
_MEMORY = 12 << 30  # bytes of a process
_SOON = ("--parse-seconds", "1")  # so that types of 2**40 parts are refused before ``--seconds``
_SHOWN = 12  # failures in full
_RANGE = 500  # inputs of a task on a cluster, whose processes take some seconds to start
_MAKERS = ("jax", "ai-edge-litert", "flatbuffers", "safetensors")
"""Packages that inputs are made with, beside those which all workers must have as here."""


# -- corpus ---------------------------------------------------------------------------------------


@dataclass
class Corpus:
    """Valid inputs, from which the others are made."""

    texts: list[str] = field(default_factory=list)
    generic: list[str] = field(default_factory=list)
    bytecode: list[bytes] = field(default_factory=list)
    executables: list[bytes] = field(default_factory=list)
    npy: list[bytes] = field(default_factory=list)
    safetensors: list[bytes] = field(default_factory=list)
    gguf: list[bytes] = field(default_factory=list)
    irpa: list[bytes] = field(default_factory=list)
    folder: dict[str, bytes] = field(default_factory=dict)
    tflite: list[bytes] = field(default_factory=list)
    onnx: list[bytes] = field(default_factory=list)
    artifacts: list[bytes] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    """In VHLO, the dialect of artifacts."""
    jax: list[bytes] = field(default_factory=list)


CAST = """
!q = !quant.uniform<i8:f32:{0:1, 1:4}, {{0.5:1, 0.25}, {1.0, 2.0:-3}}>
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8x!q> {
  %q = quant.qcast %x : tensor<2x8xf32> to tensor<2x8x!q>
  return %q : tensor<2x8x!q>
}
func.func @sum(%x: tensor<?xf32>, %n: index, %b: tensor<4xi1>) -> (tensor<?xf32>, tensor<4xi1>) {
  %y = arith.addf %x, %x : tensor<?xf32>
  return %y, %b : tensor<?xf32>, tensor<4xi1>
}
"""


def make_corpus() -> Corpus:
    """Read and write the valid inputs."""
    from safetensors.numpy import save

    from subquant.compiler.compilation import compile_to_bytes
    from subquant.compiler.lowering import bytecode_of
    from subquant.core._mlir import ir
    from subquant.dialects import create_context
    from subquant.formats.irpa_writer import create_archive

    corpus = Corpus()
    files = [*(_ROOT / "examples").glob("*.mlir"), *(_ROOT / "tests").rglob("*.mlir")]
    valid = [CAST]
    for path in sorted(files):
        for part in re.split(r"(?m)^// -----.*$", path.read_text()):
            if len(part) < 8000 and part.strip():
                corpus.texts.append(part)
                if "invalid" not in str(path):  # some of which crash the parser
                    valid.append(part)
    for text in valid[::4]:
        context = create_context()
        with contextlib.suppress(Exception), context, contextlib.redirect_stderr(io.StringIO()):
            module = ir.Module.parse(text, context)
            corpus.bytecode.append(bytecode_of(module))
            corpus.generic.append(module.operation.get_asm(print_generic_op_form=True))
    cache = _ROOT / ".cache/fuzz"
    corpus.executables.append(compile_to_bytes(CAST, cache=cache))
    rng = np.random.default_rng(0)
    arrays = {
        "layer.weight": rng.standard_normal((8, 64)).astype(np.float32),
        "layer.bias": rng.standard_normal(8).astype(np.float16),
        "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
        "empty": np.zeros((0, 4), np.float32),
    }
    for array in (*arrays.values(), np.array(True), np.asfortranarray(arrays["layer.weight"])):
        buffer = io.BytesIO()
        np.save(buffer, array)
        corpus.npy.append(buffer.getvalue())
    corpus.safetensors.append(save(arrays, {"format": "pt"}))
    gptq = {
        "l.qweight": rng.integers(0, 1 << 31, (8, 8), np.int32),
        "l.qzeros": rng.integers(0, 1 << 31, (2, 1), np.int32),
        "l.scales": rng.standard_normal((2, 8)).astype(np.float16),
        "l.g_idx": np.arange(64, dtype=np.int32) // 32,
    }
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
              "desc_act": False}  # fmt: skip
    corpus.folder = {
        "model.safetensors": save(gptq),
        "config.json": json.dumps({"quantization_config": config}).encode(),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.irpa"
        with create_archive(path) as writer:
            for name, array in arrays.items():
                writer.add_tensor(name, array)
        corpus.irpa.append(path.read_bytes())
    corpus.gguf.append(_gguf(rng))
    corpus.tflite = _tflite()
    corpus.onnx = _onnx()
    corpus.jax = _jax()
    _add_artifacts(corpus)
    return corpus


_VERSIONS = ("0.9.0", "0.14.0", "0.17.0", "0.19.0", "1.0.0", "1.4.0", "1.9.0", "1.15.0", "1.19.0")
"""Magic bytes of StableHLO's artifacts."""


def _add_artifacts(corpus: Corpus) -> None:
    """Programs of the conformance suite, and JAX's, as artifacts of all versions and in VHLO."""
    from subquant.compiler.reading import parse_bytes
    from subquant.conformance.suite import programs
    from subquant.core._mlir import stablehlo
    from subquant.dialects import create_context

    for arguments in [*corpus.jax, *(each.text().encode() for each in programs()[::16])]:
        version = _VERSIONS[len(corpus.modules) % len(_VERSIONS)]
        with contextlib.suppress(Exception):  # another dialect, or an operation of a later version
            module = parse_bytes(arguments, create_context())
            corpus.artifacts.append(bytes(stablehlo.serialize_portable_artifact(module, version)))
            corpus.modules.append(module)  # which is in VHLO now


def _jax() -> list[bytes]:
    """Functions that JAX has serialized; none without JAX."""
    if importlib.util.find_spec("jax") is None:
        return []
    import jax
    import jax.numpy as jnp
    from jax import export

    q = jnp.asarray(np.arange(-128, 128).reshape(16, 16), jnp.int8)

    def linear(x: Any, weight: Any) -> Any:
        return {"y": x @ (weight["q"].astype(jnp.float32) * weight["s"])}

    def in_blocks(x: Any, q: Any, s: Any) -> Any:
        return x @ (q.astype(jnp.float32).reshape(2, 8, 4) * s[:, None]).reshape(16, 4)

    def nibbles(x: Any, packed: Any) -> Any:
        low, high = packed & 15, jnp.right_shift(packed, 4)
        return x @ jnp.stack([low, high], 1).reshape(16, 4).astype(jnp.float32)

    def steps(x: Any) -> Any:
        return jax.lax.scan(lambda c, row: (c + row @ (q * 0.5), c.sum()), x, jnp.stack([x] * 3))

    def attention(x: Any) -> Any:
        return jax.nn.softmax(jnp.einsum("thd,shd->hts", x, x)) @ x.swapaxes(0, 1)

    def convolved(x: Any, kernel: Any) -> Any:
        return jax.lax.conv(x, kernel.astype(jnp.float32) / 8, (1, 1), "SAME")

    def chosen(table: Any, ids: Any) -> Any:
        rows = jnp.take(table, ids, axis=0).astype(jnp.bfloat16) * 0.25
        return jnp.sort(rows), jnp.argmax(rows), jnp.where(rows > 0, rows, -rows)

    def given(*shapes: int, dtype: str = "f4") -> Any:
        return jax.ShapeDtypeStruct(shapes, dtype)

    x, rows = given(2, 16), given(*export.symbolic_shape("n, 16"))
    weight = {"q": given(16, 4, dtype="i1"), "s": given(4)}
    narrow = jax.ShapeDtypeStruct((16, 4), jnp.int4)
    calls = [
        (linear, x, weight), (linear, rows, weight), (in_blocks, x, narrow, given(2, 4)),
        (nibbles, x, given(8, 4, dtype="u1")), (steps, x), (attention, given(5, 2, 4)),
        (convolved, given(1, 2, 5, 5), given(3, 2, 3, 3, dtype="i1")),
        (chosen, given(9, 4, dtype="i1"), given(3, dtype="i4")),
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = [export.export(jax.jit(function))(*shapes) for function, *shapes in calls]
    return [bytes(each.serialize(vjp_order=n % 2)) for n, each in enumerate(exported)]


def _onnx() -> list[bytes]:
    """ONNX's tests of operators that quantize, with constants; none without the package."""
    if importlib.util.find_spec("onnx") is None:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # raised by other projects' tests
        from onnx import ModelProto, numpy_helper
        from onnx.backend.test.case import node

        for entry in sorted(Path(node.__file__).parent.glob("*.py")):
            if re.search("quantize|qlinear|integer", entry.stem):  # the others compute for seconds
                importlib.import_module(f"{node.__name__}.{entry.stem}")
    actual = []
    for case in sorted(node._NodeTestCases, key=lambda case: str(case.name)):
        if not re.search("quantize|qlinear|integer", case.name):
            continue
        model, (arrays, _) = ModelProto(), case.data_sets[0]
        model.CopyFrom(case.model)
        arguments = list(zip(model.graph.input, arrays, strict=False))[1:]
        for each, array in arguments:  # all but the first as constants
            if isinstance(array, np.ndarray) and array.size < 1000:
                model.graph.initializer.append(numpy_helper.from_array(array, each.name))
                model.graph.input.remove(each)
        actual.append(model.SerializeToString())
    return actual


def _tflite() -> list[bytes]:
    """A model of each operator that the tests have; none without LiteRT's schema."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        return []
    sys.path.append(str(_ROOT / "tests"))
    from tflite_cases import CASES, one_case

    return [one_case(case, np.random.default_rng(0)) for case in CASES.values()]


def _gguf(rng: np.random.Generator) -> bytes:
    """A file of GGUF 3 with metadata of several types and tensors of several block types."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    metadata = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("flag") + struct.pack("<IB", 7, 1),
    ]
    tensors = [("a.weight", (256, 2), 12, 2 * 144), ("b.weight", (32, 4), 2, 4 * 18),
               ("c.weight", (5,), 0, 20), ("d.weight", (64,), 8, 2 * 34)]  # fmt: skip
    infos, data = b"", b""
    for name, shape, kind, size in tensors:
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", kind, len(data))
        data += rng.bytes(size) + b"\0" * (-size % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata)
    head += infos
    return head + b"\0" * (-len(head) % 32) + data


# -- mutations ------------------------------------------------------------------------------------

NUMBERS = ("0", "-1", "1", "7", "63", "64", "65", "255", "256", "65535", "2147483647", "4294967295",
           "-9223372036854775808", "9223372036854775807", "18446744073709551616", "99999999999",
           "1e308", "-0.0", "0x7FC00000", "0xFF", "1" + "0" * 400)  # fmt: skip
TYPES = ("i0", "i1", "i4", "ui8", "si4", "i16", "i65", "i16777215", "index", "none", "f8E4M3FN",
         "bf16", "f64", "f128", "tf32", "complex<f32>", "vector<4xi8>", "memref<4xi8>",
         "tensor<*xf32>", "tensor<?xi8>", "tensor<4xi8, #stablehlo.bounds<4>>", "!quant.any<i8>",
         "!quant.uniform<u8:f32, 0.5:128>", "!quant.uniform<i4:f16:0, {1.0,2.0}>", "tuple<i8>",
         "!quant.uniform<i8:f32:{0:1, 1:2}, {{1.0, 2.0}}>", "!quant.calibrated<f32<-1.0:1.0>>",
         "!stablehlo.token", "!llvm.ptr", "!shape.shape", "() -> ()")  # fmt: skip
_TOKEN = re.compile(r'"[^"\n]*"|[%@#!^]?[\w.$]+|\S')
_NUMBER = re.compile(r"(?<![\w.%#!@^])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_TYPE = re.compile(r"\b(?:u?i\d+|f\d+|bf16|index)\b|tensor<[^<>]*>")


def mutate_text(rng: random.Random, text: str, rest: list[str]) -> str:
    """A text with a few changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        text = rng.choice(_TEXT_MUTATIONS)(rng, text, rest)
    return text


def _replace(rng: random.Random, text: str, pattern: re.Pattern[str], new: str) -> str:
    actual = list(pattern.finditer(text))
    if not actual:
        return text
    match = rng.choice(actual)
    return text[: match.start()] + new + text[match.end() :]


def _number(rng: random.Random, text: str, _: list[str]) -> str:
    return _replace(rng, text, _NUMBER, rng.choice(NUMBERS))


def _type(rng: random.Random, text: str, _: list[str]) -> str:
    return _replace(rng, text, _TYPE, rng.choice(TYPES))


def _token(rng: random.Random, text: str, rest: list[str]) -> str:
    tokens = _TOKEN.findall(rng.choice(rest))
    return _replace(rng, text, _TOKEN, rng.choice(tokens) if tokens else "")


def _drop(rng: random.Random, text: str, _: list[str]) -> str:
    return _replace(rng, text, _TOKEN, "")


def _swap(rng: random.Random, text: str, _: list[str]) -> str:
    actual = list(_TOKEN.finditer(text))
    if len(actual) < 2:
        return text
    first, second = sorted(rng.sample(actual, 2), key=lambda match: match.start())
    middle = text[first.end() : second.start()]
    return text[: first.start()] + second.group() + middle + first.group() + text[second.end() :]


def _cut(rng: random.Random, text: str, _: list[str]) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + text[start + rng.randrange(60) :]


def _twice(rng: random.Random, text: str, _: list[str]) -> str:
    text_lines = text.splitlines(keepends=True) or [""]
    position = rng.randrange(len(text_lines))
    repeated = text_lines[position : position + rng.randrange(1, 4)]
    return "".join([*text_lines[: position + 1], *repeated, *text_lines[position + 1 :]])


def _splice(rng: random.Random, text: str, rest: list[str]) -> str:
    text_lines, more = text.splitlines(keepends=True), rng.choice(rest).splitlines(keepends=True)
    start, position = rng.randrange(len(more) + 1), rng.randrange(len(text_lines) + 1)
    return "".join(
        [*text_lines[:position], *more[start : start + rng.randrange(1, 6)], *text_lines[position:]]
    )


def _characters(rng: random.Random, text: str, _: list[str]) -> str:
    position = rng.randrange(len(text) + 1)
    junk = rng.choice(("\0", "\x1b[2J", "\ufeff", "é", "{", "}}}", "<<<", '"', "//", "\\", "#", "!",
                       "%", "->", "\u202e", "dense<", "\ud7ff", "[" * 40, "-" * 300))  # fmt: skip
    return text[:position] + junk + text[position:]


_TEXT_MUTATIONS: tuple[Callable[[random.Random, str, list[str]], str], ...] = (
    _number, _number, _type, _type, _token, _token, _drop, _swap, _cut, _twice, _splice,
    _characters,
)  # fmt: skip


def mutate_bytes(rng: random.Random, data: bytes, *, most: int = 8) -> bytes:
    """Bytes with a few changes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, most + 1)):
        position = rng.randrange(len(changed) + 1) if rng.random() < 0.7 else rng.randrange(
            min(len(changed), 200) + 1)  # fmt: skip
        kind = rng.randrange(7)
        if kind == 0 and position < len(changed):
            changed[position] ^= 1 << rng.randrange(8)
        elif kind == 1 and position < len(changed):
            changed[position] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del changed[position : position + rng.randrange(1, 40)]
        elif kind == 3:
            changed[position:position] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 4:
            number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40))
            size = rng.choice((4, 8))
            changed[position : position + size] = (number % 2 ** (8 * size)).to_bytes(
                size, "little"
            )
        elif kind == 5:
            changed[position:position] = changed[position : position + rng.randrange(1, 60)]
        else:
            del changed[position:]
    return bytes(changed)


# -- kinds ----------------------------------------------------------------------------------------


@dataclass
class Case:
    """A call of the command line.

    Attributes:
        arguments: of the command; files are named within the case's folder.
        files: their contents.
        output: a file that is there after status 0, and else is not.
        killed: a signal, and after how many seconds a process of its own gets it.
        call: called in place of the command; returns the status and the failure, "" for none.
    """

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    output: str | None = None
    killed: tuple[int, float] | None = None
    call: Callable[[], tuple[int, str]] | None = None


Kind = Callable[[random.Random, Corpus], Case]
KINDS: dict[str, tuple[int, Kind]] = {}
"""Shares in a run, and what makes a case."""


def kind(share: int) -> Callable[[Kind], Kind]:
    """Register a kind of input."""

    def register(function: Kind) -> Kind:
        KINDS[function.__name__] = (share, function)
        return function

    return register


def _module_case(rng: random.Random, data: bytes, name: str) -> Case:
    """A command that reads a module."""
    commands = (
        (["opt", name, "-o", "out.mlir"], "out.mlir"),
        (["inspect", name], None),
        (["inspect", name, "--json"], None),
        (["opt", name, "--passes", "interpreter", "-o", "out.mlir"], "out.mlir"),
        (["compile", name, "--emit", "mlir", "-o", "out.mlir"], "out.mlir"),
        (["compile", name, "--emit", "mlirbc", "-o", "o.mlirbc", "--target", "vulkan",
          "--vulkan-target", rng.choice(("generic", "generic-32bit"))], "o.mlirbc"),
        (["opt", name, "--split-input-file", "--verify-diagnostics"], None),
    )  # fmt: skip
    arguments, output = rng.choice(commands)
    return Case([*arguments, *_SOON], {name: data}, output)


@kind(26)
def text(rng: random.Random, corpus: Corpus) -> Case:
    """Changed text of modules."""
    changed = mutate_text(rng, rng.choice(corpus.texts), corpus.texts)
    return _module_case(rng, changed.encode("utf-8", "surrogatepass"), "x.mlir")


@kind(10)
def bytecode(rng: random.Random, corpus: Corpus) -> Case:
    """Changed bytecode of modules."""
    return _module_case(rng, mutate_bytes(rng, rng.choice(corpus.bytecode)), "x.mlirbc")


@kind(10)
def nesting(rng: random.Random, corpus: Corpus) -> Case:
    """Depths and sizes."""
    count = rng.choice((2, 50, 255, 257, 1000, 5000, 60000, 200000))
    few = min(count, 3000)
    number = rng.choice(NUMBERS)
    makers = (
        lambda: "module {" * few + "}" * few,
        lambda: f"func.func private @f({'tuple<' * count}i8{'>' * count})",
        lambda: f'"a.b"() {{x = {"[" * count}{"]" * count}}} : () -> ()',
        lambda: f'"a.b"() {{x = affine_map<(d0) -> ({" + ".join(["d0"] * count)})>}} : () -> ()',
        lambda: f'"a.b"() {{x = affine_map<(d0) -> ({"-" * count}d0)>}} : () -> ()',
        lambda: f'"a.b"() {{x = affine_map<(d0) -> ({"(" * count}d0{")" * count})>}} : () -> ()',
        lambda: "\n".join(
            [
                "!a0 = i8",
                *(f"!a{n} = tuple<!a{n - 1}, !a{n - 1}>" for n in range(1, min(count, 40))),
                f"func.func private @f(!a{min(count, 40) - 1})",
            ]
        ),
        lambda: (
            "!a0 = i8 "
            + " ".join(f"!a{n} = tuple<!a{n - 1}>" for n in range(1, count))
            + f' "a.b"() : () -> !a{count - 1}'
        ),
        lambda: (
            "#a0 = 1 "
            + " ".join(f"#a{n} = [#a{n - 1}]" for n in range(1, count))
            + f' "a.b"() {{x = #a{count - 1}}} : () -> ()'
        ),
        lambda: f"func.func private @f(tensor<{number}x{number}xi8>)",
        lambda: f"func.func private @f(tensor<{'1x' * count}i8>)",
        lambda: f"func.func private @f(!quant.uniform<i8:f32:{number}, {{1.0:{number}}}>)",
        lambda: f"func.func private @f(!quant.uniform<i8<{number}:{number}>:f32, {number}>)",
        lambda: (
            f"func.func private @f(tensor<4x!quant.uniform<i8:f32:{{0:{number}}}, "
            f"{{{', '.join(['1.0'] * min(count, 5000))}}}>>)"
        ),
        lambda: (
            "func.func private @f(tensor<4x!quant.uniform<i8:f32:{0:1}, "
            f"{'{' * few}1.0{'}' * few}>>)"
        ),
        lambda: f"func.func @f(%x: i8) {{ return %x#{number} : i8 }}",
        lambda: f'%r:{number} = "a.b"() : () -> (i8)',
        lambda: f"func.func @f() {{ {'cf.br ^b0 ^b0: ' * few} return }}",
        lambda: f"func.func @f() {{ {'%0 = arith.constant 1 : i8 ' * 1} return }}" * few,
        lambda: f"// {'x' * count}\n",
        lambda: f'"{"x" * count}"() : () -> ()',
        lambda: f'func.func private @"{"x" * count}"()',
        lambda: f'"a.b"() : () -> () loc({"fused[" * few}"x"{"]" * few})',
        lambda: (
            f'"a.b"() {{x = dense<{number}> : tensor<{number}xi'
            f"{rng.choice((1, 8, 64))}>}} : () -> ()"
        ),
        lambda: f'"a.b"() {{x = dense<"0x{"00" * few}"> : tensor<{few}xi8>}} : () -> ()',
        lambda: f'"a.b"() {{x = dense_resource<{number}> : tensor<4xi8>}} : () -> ()',
        lambda: f"#m = #sparse_tensor.encoding<{{ {number} }}>",
        lambda: "func.func private @f(tensor<2xi8, #sparse_tensor.encoding<{}>>)",
        lambda: CONVOLUTION.format(number, number, number, number, rng.choice(NUMBERS)),
    )
    return _module_case(rng, rng.choice(makers)().encode(), "x.mlir")


CONVOLUTION = """
!x = tensor<1x4x4x1xi8>
func.func @f(%x: !x, %w: tensor<1x1x1x1xi8>) -> tensor<1x4x4x1xi32> {{
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, {}, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [{}, 1], pad = [[{}, 0], [0, 0]], rhs_dilate = [1, {}]}}
    {{batch_group_count = 1 : i64, feature_group_count = {} : i64}}
    : (!x, tensor<1x1x1x1xi8>) -> tensor<1x4x4x1xi32>
  return %y : tensor<1x4x4x1xi32>
}}
"""

UPSTREAM = (
    "canonicalize", "cse", "symbol-dce", "inline", "sccp", "remove-dead-values", "strip-debuginfo",
    "loop-invariant-code-motion", "control-flow-sink", "topological-sort", "mem2reg", "sroa",
    "symbol-privatize", "lower-quant-ops", "strip-func-quant-types", "normalize-quant-types",
    "chlo-legalize-to-stablehlo", "stablehlo-legalize-to-vhlo", "vhlo-legalize-to-stablehlo",
    "stablehlo-canonicalize-dynamism", "stablehlo-aggressive-folder", "stablehlo-refine-shapes",
    "stablehlo-aggressive-simplification", "stablehlo-legalize-to-linalg",
    "stablehlo-convert-to-signless",
    "stablehlo-legalize-quant-to-math", "stablehlo-legalize-qdq-to-quantized-op",
    "stablehlo-legalize-quantized-op-to-qdq", "stablehlo-compatibility-expander",
    "shape-legalize-to-stablehlo", "stablehlo-legalize-composite-to-call", "tosa-to-linalg",
    "tosa-to-linalg-named", "tosa-to-arith", "tosa-to-tensor", "tosa-to-scf", "tosa-validate",
    "tosa-layerwise-constant-fold", "tosa-infer-shapes", "tosa-make-broadcastable",
    "linalg-generalize-named-ops", "linalg-fuse-elementwise-ops", "linalg-fold-unit-extent-dims",
    "convert-linalg-to-loops", "convert-scf-to-cf", "convert-tensor-to-linalg", "arith-expand",
    "arith-unsigned-when-equivalent", "int-range-optimizations", "convert-arith-to-llvm",
    "convert-func-to-llvm", "one-shot-bufferize", "fold-tensor-subset-ops",
    "empty-tensor-to-alloc-tensor",
    "resolve-shaped-type-result-dims", "affine-simplify-structures", "lower-affine",
)  # fmt: skip


@kind(12)
def pipelines(rng: random.Random, corpus: Corpus) -> Case:
    """Passes in any order on modules, changed or not."""
    from subquant.core.option_fields import choices_of, spelling_of
    from subquant.transforms import PASSES, load_pass

    steps = []
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.4:
            steps.append(rng.choice(UPSTREAM))
            continue
        name = rng.choice(list(PASSES))
        options = []
        for option in dataclasses.fields(load_pass(name)):
            if rng.random() < 0.3:
                choices = choices_of(load_pass(name), option.name) or ("true", "false", "7")
                value = rng.choice([*choices, "x"])
                options.append(f"{spelling_of(option)}={value}".replace("_", "-"))
        steps.append(name + (f"{{{' '.join(options)}}}" if options else ""))
    passes = ",".join(steps)
    if rng.random() < 0.15:
        passes = mutate_text(rng, passes, corpus.texts)
    inputs = rng.choice(corpus.texts)
    if rng.random() < 0.4:
        inputs = mutate_text(rng, inputs, corpus.texts)
    data = inputs.encode("utf-8", "surrogatepass")
    passes = passes.replace("\0", "")
    arguments = ["opt", "x.mlir", "--passes", passes, "-o", "out.mlir", *_SOON]
    return Case(arguments, {"x.mlir": data}, "out.mlir")


_ATTRIBUTE = re.compile(r"[\w.]+ = (?:[^,<>{}\[\]()\"]+|\"[^\"]*\"|[\w.#!]*<[^<>]*>|\[[^\[\]]*\])")


@kind(10)
def attributes(rng: random.Random, corpus: Corpus) -> Case:
    """Operations in their generic form without some attributes, or with other values."""
    arguments = rng.choice(corpus.generic)
    for _ in range(rng.choice((1, 1, 2, 4))):
        actual = list(_ATTRIBUTE.finditer(arguments))
        if not actual:
            break
        match = rng.choice(actual)
        name, _, _ = match.group().partition(" = ")
        value = rng.choice(("unit", "1 : i64", "-1 : i64", '"x"', "[]", "array<i64>", "i8",
                            "array<i64: 99999999999>", "dense<1> : tensor<2x2xi64>", "true",
                            "affine_map<(d0) -> (d0)>", "{}", "@f", "1.0 : f64"))  # fmt: skip
        new = "" if rng.random() < 0.5 else f"{name} = {value}"
        arguments = arguments[: match.start()] + new + arguments[match.end() :]
        arguments = re.sub(r"([{<]\s*),|,\s*(?=[}>])", lambda m: m.group(1) or "", arguments)
        arguments = arguments.replace(", ,", ",")
    return _module_case(rng, arguments.encode(), "x.mlir")


@kind(6)
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


@kind(6)
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


def _weights_case(rng: random.Random, name: str, files: dict[str, bytes]) -> Case:
    arguments, output = rng.choice((
        (["inspect", name], None),
        (["inspect", name, "--json"], None),
        (["import", name, "-o", "out.irpa"], "out.irpa"),
        (["quantize", name, "-o", "out.irpa"], "out.irpa"),
        (["quantize", name, "-o", "out.irpa", "--bits", rng.choice(("2", "3", "4", "8", "9")),
          "--granularity", rng.choice(("block", "axis", "tensor", "x")), "--asymmetric"],
         "out.irpa"),
    ))  # fmt: skip
    return Case(list(arguments), files, output)


@kind(5)
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
    return _weights_case(rng, "x.safetensors", {"x.safetensors": data})


@kind(3)
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
    return _weights_case(rng, "d", {f"d/{name}": data for name, data in files.items()})


@kind(5)
def gguf(rng: random.Random, corpus: Corpus) -> Case:
    """Changed GGUF."""
    return _weights_case(rng, "x.gguf", {"x.gguf": mutate_bytes(rng, rng.choice(corpus.gguf))})


@kind(8)
def tflite(rng: random.Random, corpus: Corpus) -> Case:
    """Changed TensorFlow Lite models: bytes, or fields of their tables."""
    if not corpus.tflite:
        data = b"\x1c\0\0\0TFL3" + rng.randbytes(rng.randrange(200))
    elif rng.random() < 0.5:
        data = mutate_bytes(rng, rng.choice(corpus.tflite), most=4)
    else:
        data = mutate_tables(rng, rng.choice(corpus.tflite))
    commands = (
        (["inspect", "x.tflite"], None),
        (["inspect", "x.tflite", "--json"], None),
        (["opt", "x.tflite", "-o", "out.mlir"], "out.mlir"),
        (["compile", "x.tflite", "--emit", "mlir", "-o", "out.mlir",
          "--semantics", rng.choice(("litert", "exact")),
          "--batch", rng.choice(("", "1", "3", "dynamic"))], "out.mlir"),
        (["compile", "x.tflite", "--emit", "mlirbc", "-o", "o.mlirbc", "--every-tensor",
          "--activations", "int8", "--target", "vulkan", "--vulkan-target", "generic"],
         "o.mlirbc"),
    )  # fmt: skip
    arguments, output = rng.choice(commands)
    return Case([*arguments, *_SOON], {"x.tflite": data}, output)


@kind(8)
def onnx(rng: random.Random, corpus: Corpus) -> Case:
    """Changed ONNX models: bytes, or parts of their graphs."""
    if not corpus.onnx:
        data = b"\x08\x07" + rng.randbytes(rng.randrange(200))
    elif rng.random() < 0.25:
        data = mutate_bytes(rng, rng.choice(corpus.onnx), most=4)
    else:
        data = mutate_graph(rng, rng.choice(corpus.onnx), rng.choice(corpus.onnx))
    commands = (
        (["inspect", "x.onnx"], None),
        (["opt", "x.onnx", "-o", "out.mlir"], "out.mlir"),
        (["compile", "x.onnx", "--emit", "mlir", "-o", "out.mlir",
          "--batch", rng.choice(("", "1", "3"))], "out.mlir"),
        (["compile", "x.onnx", "--emit", "mlirbc", "-o", "o.mlirbc", "--target", "vulkan",
          "--vulkan-target", "generic"], "o.mlirbc"),
    )  # fmt: skip
    arguments, output = rng.choice(commands)
    return Case([*arguments, *_SOON], {"x.onnx": data}, output)


@kind(8)
def artifacts(rng: random.Random, corpus: Corpus) -> Case:
    """Changed portable artifacts of StableHLO."""
    return _artifact_case(rng, mutate_artifact(rng, corpus), "x.mlirbc")


@kind(8)
def jax(rng: random.Random, corpus: Corpus) -> Case:
    """Changed functions of JAX, and others' artifacts in their place."""
    data = rng.choice(corpus.jax or corpus.artifacts)
    if rng.random() < 0.5:
        return _artifact_case(rng, mutate_bytes(rng, data, most=4), "x.jax")
    start = data.index(b"ML\xefR")
    size = int.from_bytes(data[start - 4 : start], "little")
    if rng.random() < 0.5 or not corpus.jax:
        artifact = mutate_artifact(rng, corpus)
    else:
        artifact = mutate_bytes(rng, data[start : start + size], most=4)
    # As the last vector, to which the field points that has the distance to the one before.
    positions = [
        n for n in range(start) if int.from_bytes(data[n : n + 4], "little") == start - 4 - n
    ]
    changed = bytearray(data + b"\0" * (-len(data) % 4))
    for position in positions:
        changed[position : position + 4] = (len(changed) - position).to_bytes(4, "little")
    changed += len(artifact).to_bytes(4, "little") + artifact
    return _artifact_case(rng, bytes(changed), "x.jax")


def _artifact_case(rng: random.Random, data: bytes, name: str) -> Case:
    raising = "pack-narrow-storage,raise-dequantization{explain=true},fuse-block-contractions"
    if rng.random() < 0.2:
        arguments = ["opt", name, "--passes", raising, "-o", "out.mlir", *_SOON]
        return Case(arguments, {name: data}, "out.mlir")
    return _module_case(rng, data, name)


def mutate_artifact(rng: random.Random, corpus: Corpus) -> bytes:
    """An artifact with a few bytes changed, or a few attributes, operands or types."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, rng.choice(corpus.artifacts), most=4)
    from subquant.compiler.lowering import bytecode_of
    from subquant.transforms.base import walk

    module, rest = (rng.choice(corpus.modules) for _ in range(2))
    with module.context:
        changed = module.operation.clone()
        operations = walk(changed)
        # Of another module in text: attributes of one context do not belong to another.
        more = [each for each in walk(rest.operation) if len(each.attributes)] or operations
        for _ in range(rng.choice((1, 1, 2, 4))):
            with contextlib.suppress(Exception):  # a text that is no attribute, a name that is none
                _change_operation(rng, rng.choice(operations), operations, rng.choice(more))
        data = bytecode_of(changed)
    version = rng.choice(
        (*_VERSIONS, "1.19.0", "0.8.0", "2.0.0", "1.99.99", "", "1", ".", "9" * 19)
    )
    return data[:5] + b"StableHLO_v" + version.encode() + data[data.index(b"\0", 5) :]


def _change_operation(rng: random.Random, op: Any, operations: list[Any], other: Any) -> None:
    """Change an attribute, an operand or the type of a result."""
    from subquant.core._mlir import ir

    names = list(op.attributes)
    change = rng.randrange(5)
    if change == 0 and names and len(other.attributes):
        used = str(other.attributes[rng.choice(list(other.attributes))])
        op.attributes[rng.choice(names)] = ir.Attribute.parse(used)
    elif change in (1, 2) and names:
        name = rng.choice(names)
        written = str(op.attributes[name])
        op.attributes[name] = ir.Attribute.parse(
            _replace(rng, written, _NUMBER, rng.choice(NUMBERS))
        )
    elif change == 3 and len(op.operands):
        op.operands[rng.randrange(len(op.operands))] = rng.choice(
            [result for each in operations[: operations.index(op)] for result in each.results]
        )
    elif len(op.results):
        type_ = rng.choice([result.type for each in operations for result in each.results])
        if rng.random() < 0.5:
            type_ = ir.Type.parse(_replace(rng, str(type_), _EXTENT, rng.choice(("0", "3", "64x"))))
        rng.choice(list(op.results)).set_type(type_)


_EXTENT = re.compile(r"\b\d+(?=x)|f32|i32|i8")


def mutate_graph(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A model with a few parts of its graph changed."""
    from onnx import ModelProto

    model, more = ModelProto.FromString(data), ModelProto.FromString(other)
    graph = model.graph
    for _ in range(rng.randrange(1, 4)):
        node = rng.choice(graph.node)
        change = rng.randrange(9)
        if change == 0:
            node.op_type = rng.choice(more.graph.node).op_type
        elif change == 1 and node.input:
            del node.input[rng.randrange(len(node.input))]
        elif change == 2:
            node.input.append(rng.choice([*node.input, *node.output, "", "nothing"]))
        elif change == 3 and graph.initializer:
            rng.choice(graph.initializer).dims.append(rng.choice(_ODD))
        elif change == 4 and graph.initializer:
            rng.choice(graph.initializer).data_type = rng.randrange(30)
        elif change == 5 and graph.initializer:
            tensor = rng.choice(graph.initializer)
            tensor.dims[:] = [rng.choice((0, 1, 2, 3, 2**31)) for _ in tensor.dims]
        elif change == 6:
            node.attribute.extend(rng.choice(more.graph.node).attribute)
        elif change == 7 and node.attribute:
            rng.choice(node.attribute).i = rng.choice(_ODD)
        elif change == 8 and graph.input:
            shape = rng.choice(graph.input).type.tensor_type.shape
            if shape.dim:
                rng.choice(shape.dim).dim_value = rng.choice(_ODD)
    if rng.random() < 0.2:
        model.opset_import[0].version = rng.choice((0, 1, 9, 10, 13, 19, 21, 23, 99, 2**40))
    return bytes(model.SerializeToString())


_ODD = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 9, 17, 127, 128, 255, 1 << 16, 2**31 - 1)


def mutate_tables(rng: random.Random, data: bytes) -> bytes:
    """A model with a few fields changed, and written again."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    fields = list(_fields(model))
    for _ in range(rng.randrange(1, 4)):
        owner, name = rng.choice(fields)
        value = getattr(owner, name)
        if isinstance(value, (bool, int, np.integer)):
            setattr(owner, name, rng.choice(_ODD))
        elif isinstance(value, float):
            setattr(owner, name, rng.choice((0.0, -1.0, 1e38, 1e-38, float("nan"), float("inf"))))
        elif value is None or isinstance(value, bytes) or hasattr(value, "__dict__"):
            setattr(owner, name, None)
        elif len(value) and isinstance(value[0], (int, float, np.number)):
            listed = [v.item() if isinstance(v, np.number) else v for v in value]
            listed[rng.randrange(len(listed))] = rng.choice(_ODD)
            setattr(owner, name, listed[: rng.choice((len(listed), len(listed), 0, 1))])
        else:
            setattr(owner, name, list(value)[: rng.randrange(len(value) + 1)])
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except Exception:  # a number that its field has no bits for, a table without a field
        return mutate_bytes(rng, data)
    return bytes(builder.Output())


def _fields(table: Any) -> Iterator[tuple[Any, str]]:
    """Return the fields of a table and of its sub-tables."""
    for name, value in vars(table).items():
        yield table, name
        for each in value if isinstance(value, list) else [value]:
            if hasattr(each, "__dict__"):
                yield from _fields(each)


@kind(4)
def irpa(rng: random.Random, corpus: Corpus) -> Case:
    """Changed parameter archives."""
    return _weights_case(rng, "x.irpa", {"x.irpa": mutate_bytes(rng, rng.choice(corpus.irpa))})


@kind(2)
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
    case = _weights_case(rng, "x.safetensors", {"x.safetensors": save({name: array})})
    if case.output:
        case.arguments[0] = "quantize"
    return case


@kind(3)
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


@kind(3)
def executables(rng: random.Random, corpus: Corpus) -> Case:
    """Changed executables, looked at."""
    data = mutate_bytes(rng, corpus.executables[0], most=3)
    return Case(["inspect", "x.vmfb", *(["--json"] if rng.random() < 0.5 else [])],
                {"x.vmfb": data})  # fmt: skip


@kind(5)
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


def _piece_case(format_: str, rng: random.Random, corpus: Corpus) -> Case:
    """A known file with one piece added or changed: an error names it, or it is used (`pieces`)."""
    if str(_ROOT / "scripts") not in sys.path:
        sys.path.append(str(_ROOT / "scripts"))
    from pieces import answer

    base, piece = importlib.import_module(f"pieces.{format_}").draw(rng)
    return Case(["inspect", next(iter(piece.files))], piece.files,
                call=functools.partial(answer, base, piece))  # fmt: skip


KINDS |= {
    f"{name}_pieces": (0, functools.partial(_piece_case, format_))
    for name, format_ in (("onnx", "onnx"), ("tflite", "tflite"), ("gguf", "gguf"),
                          ("checkpoint", "checkpoints"))
}  # fmt: skip


@kind(0)
def kills(rng: random.Random, corpus: Corpus) -> Case:
    """Compilations that are ended at any moment; only on request, by ``--kinds kills``."""
    text = CAST.replace("0.25", repr(rng.uniform(0.1, 1)))
    number = rng.choice((signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP))
    arguments = ["compile", "x.mlir", "-o", "out.vmfb"]
    return Case(arguments, {"x.mlir": text.encode()}, "out.vmfb", (number, rng.uniform(0, 2.5)))


# -- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """Outcome of an input: its status, and the failure, if any."""

    kind: str
    number: int
    status: int
    wrong: str | None
    seconds: float


def make_case(seed: int, name: str, number: int, corpus: Corpus) -> Case:
    """The input of a kind, a seed and a number."""
    return KINDS[name][1](random.Random(f"{seed} {name} {number}"), corpus)


def serve(seed: int) -> None:
    """Run the inputs that standard input names, and write how each ended to standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers, names = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "r")
    corpus = make_corpus()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    base = Path(os.environ["FUZZ_FOLDER"])
    answers.write("ready\n")
    answers.flush()
    for line in names:
        name, number = line.split()
        folder = base / "case"
        folder.mkdir()
        case = make_case(seed, name, int(number), corpus)
        write_case(case, folder)
        run = run_case if case.killed is None else run_killed
        status, wrong = run(case, folder)
        if wrong is None:
            shutil.rmtree(folder)
        else:
            folder.rename(base / f"{name}-{number}")
        answers.write(json.dumps([status, wrong]) + "\n")
        answers.flush()


def write_case(case: Case, folder: Path) -> None:
    """Write the files of an input, and its command."""
    (folder / "command").write_text("subquant " + shlex.join(case.arguments), errors="replace")
    for name, data in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def run_case(case: Case, folder: Path) -> tuple[int, str | None]:
    """Call the command line in this process; return the status and the failure."""
    from subquant.cli import main

    temporary = Path(tempfile.gettempdir())
    before = set(temporary.iterdir())
    printed = os.open(folder / "printed", os.O_RDWR | os.O_CREAT)
    retained, home = [os.dup(stream) for stream in (1, 2)], Path.cwd()
    wrong, status = None, 0
    os.chdir(folder)
    try:
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        if case.call is not None:
            status, called = case.call()
            wrong = called or None
        else:
            main(case.arguments, prog_name="subquant")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        status, wrong = 1, "raised: " + traceback.format_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for stream_number, copy in enumerate(retained, 1):
            os.dup2(copy, stream_number)
            os.close(copy)
        os.close(printed)
        os.chdir(home)
    text = (folder / "printed").read_bytes()
    left = {path for path in set(temporary.iterdir()) - before if path.exists()}
    if wrong is None and case.call is None:
        wrong = _what_is_wrong(case, folder, status, text, left)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return status, wrong


def run_killed(case: Case, folder: Path) -> tuple[int, str | None]:
    """Start the command, send it the signal, check its remains; then run it again."""
    assert case.killed is not None
    number, seconds = case.killed
    temporary, token = Path(tempfile.gettempdir()), f"FUZZ_TOKEN={folder.parent.name}-{time.time()}"
    before = set(temporary.iterdir())
    cache = {"SUBQUANT_CACHE": str(folder.parent / "cache")}
    environment = {**os.environ, **cache, "FUZZ_TOKEN": token.partition("=")[2]}
    command = [sys.executable, "-m", "subquant", *case.arguments]
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=printed, stderr=printed)  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        if process.poll() is None:
            process.send_signal(number)
        status = process.wait(60)
    until = time.monotonic() + 10
    while _processes_with(token) and time.monotonic() < until:
        time.sleep(0.02)
    running = _processes_with(token)
    for number in running:
        os.kill(number, signal.SIGKILL)
    if running:
        return status, f"{len(running)} processes are left"
    left = set(temporary.iterdir()) - before
    if left:
        return status, f"left behind: {', '.join(path.name for path in left)}"
    printed_text = (folder / "printed").read_bytes()
    if b"Traceback (most recent call last)" in printed_text and b"subquant" in printed_text:
        return status, "a traceback"  # and not of Python that is only starting
    names = {path.name for path in folder.iterdir()} - {"command", "printed", *case.files}
    whole = folder / case.output if case.output else folder
    if names - {case.output}:
        return status, f"left behind: {', '.join(sorted(names))}"
    created = whole.read_bytes() if whole.exists() else None
    if status == 0 and created is None:
        return status, "exit status 0, and there is no output"
    environment = {**os.environ, **cache}
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, timeout=120
    )
    if completed.returncode != 0:
        return status, f"afterwards: {completed.stderr.decode(errors='replace')}"
    if created is not None and created != whole.read_bytes():
        return status, "the output is not whole"
    result = subprocess.run([sys.executable, "-m", "subquant", "run", case.output or "", "--input",
                             "2x8xf32=0", "--function", "main"], cwd=folder, capture_output=True,
                            check=False, timeout=120)  # fmt: skip
    if result.returncode != 0:
        return status, f"the executable does not run: {result.stderr.decode(errors='replace')}"
    return status, None


def _processes_with(token: str) -> list[int]:
    """The processes that have the token in their environment."""
    actual = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if token.encode() in path.read_bytes().split(b"\0"):
                actual.append(int(path.parent.name))
    return actual


def _what_is_wrong(
    case: Case, folder: Path, status: int, printed: bytes, left: set[Path]
) -> str | None:
    if b"Traceback (most recent call last)" in printed:
        return "a traceback"
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if b"\x1b[2J" in printed:
        return "an escape sequence of the input"
    if left:
        return f"left behind: {', '.join(path.name for path in left)}"
    if case.output is not None and (folder / case.output).exists() != (status == 0):
        return f"exit status {status}, and {case.output} is {'' if status else 'not '}there"
    if status and not printed.strip():
        return f"exit status {status} without a word"
    return None


class Server:
    """A process that runs inputs."""

    def __init__(self, seed: int, folder: Path, seconds: float) -> None:
        self.seed, self.folder, self.seconds = seed, folder, seconds
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str, number: int) -> Ended:
        """Run one input."""
        process = self._started()
        started = time.monotonic()
        assert process.stdin is not None
        process.stdin.write(f"{name} {number}\n")
        process.stdin.flush()
        answer = self._answer(self.seconds * (10 if name == "kills" else 1))
        used = time.monotonic() - started
        if answer:
            status, wrong = json.loads(answer)
            return Ended(name, number, status, wrong, used)
        code = None if answer is None else process.wait()
        wrong = f"took more than {self.seconds:g} s" if code is None else f"ended with {code}"
        self.stop()
        with contextlib.suppress(OSError):
            (self.folder / "case").rename(self.folder / f"{name}-{number}")
        return Ended(name, number, code or -1, wrong, used)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            temporary = self.folder / "tmp"
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(self.folder / "case", ignore_errors=True)
            temporary.mkdir(parents=True)
            environment = {
                **os.environ,
                "FUZZ_FOLDER": str(self.folder),
                "TMPDIR": str(temporary),
                "SUBQUANT_CACHE": str(self.folder / "cache"),  # some of them clear it
            }
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--serve", "--seed", str(self.seed)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=environment, cwd=self.folder,
            )  # fmt: skip
            if self._answer(300) != "ready\n":
                raise SystemExit("fuzz: the process that runs inputs did not start")
        return self._process

    def _answer(self, seconds: float) -> str | None:
        """Return the next line, "" if the process ended, and None if there is none in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else None

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None


def numbers_of(kinds: list[str], count: int) -> Iterator[tuple[str, int]]:
    """Kinds in turn by their shares, each with its next number."""
    fractions = {name: KINDS[name][0] for name in kinds}
    if not any(fractions.values()):
        fractions = dict.fromkeys(kinds, 1)
    total, arguments = sum(fractions.values()), Counter[str]()
    for position in range(count):
        name = max(kinds, key=lambda n: fractions[n] * (position + 1) / total - arguments[n])
        yield name, arguments[name]
        arguments[name] += 1


def main() -> None:
    """Run inputs, and show what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0, help="of all inputs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--jobs", type=int, help="processes side by side  [default: 1]")
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="of a Dask scheduler, whose workers run the inputs"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        help="that an input may take; a killed one ten times as many",
    )
    parser.add_argument("--replay", metavar="KIND:NUMBER", help="run one input, and show all of it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--results", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cluster is not None and (arguments.jobs is not None or arguments.replay):
        parser.error("--cluster has others run the inputs: give neither --jobs nor --replay")
    kinds = arguments.kinds.split(",")
    unknown = set(kinds) - KINDS.keys()
    if unknown:
        parser.error(
            f"no kinds are named {', '.join(unknown)}; expected some of {', '.join(KINDS)}"
        )
    if arguments.serve:
        serve(arguments.seed)
        return
    with tempfile.TemporaryDirectory(prefix="subquant-fuzz-") as scratch:
        if arguments.replay:
            name, _, number = arguments.replay.partition(":")
            server = Server(arguments.seed, Path(scratch), arguments.seconds)
            ended = server.run(name, int(number))
            server.stop()
            retained = _keep(Path(scratch), ended)
            print(f"{ended}\n{retained or 'nothing wrong'}")
            raise SystemExit(ended.wrong is not None)
        if arguments.results:
            _run_range(arguments, kinds, Path(scratch))
            return
        tally = _Tally(arguments.seed)
        whole = True
        if arguments.cluster is None:
            _run_here(arguments, kinds, Path(scratch), tally)
        else:
            whole = _run_on_cluster(arguments, tally)
        if tally.statuses or whole:
            tally.show()
    raise SystemExit(bool(tally.failures) or not whole)


class _Tally:
    """Outcomes of inputs, printed on arrival."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.statuses: Counter[int] = Counter()
        self.failures: list[Ended] = []
        self.slowest = Ended("", 0, 0, None, 0)
        self.started = time.monotonic()

    def add(self, ended: Ended) -> None:
        """Note how an input ended."""
        self.statuses[ended.status] += 1
        if ended.seconds > self.slowest.seconds:
            self.slowest = ended
        if ended.wrong is not None:
            self.failures.append(ended)
            if len(self.failures) <= _SHOWN:
                print(f"{ended.kind}:{ended.number}: {ended.wrong.strip()[-600:]}", flush=True)
        done = self.statuses.total()
        if sys.stderr.isatty() and done % 20 == 0:
            print(f"\r{done} inputs, {len(self.failures)} failures", end="", file=sys.stderr)

    def show(self) -> None:
        """Print the sums."""
        by_kind = Counter(ended.kind for ended in self.failures)
        if by_kind:
            print(", ".join(f"{name}: {count}" for name, count in by_kind.most_common()))
        statuses = (f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        slowest, used = self.slowest, time.monotonic() - self.started
        print(
            f"{self.statuses.total():,} inputs, {len(self.failures):,} failures (seed {self.seed}; "
            f"exit status {', '.join(statuses)}; slowest {slowest.kind}:{slowest.number} "
            f"{slowest.seconds:.1f} s; {used:.0f} s)"
        )


def _ended(arguments: Any, work: list[tuple[str, int]], folder: Path) -> Iterator[Ended]:
    """Run inputs one after another; files of failing inputs stay in the folder."""
    folder.mkdir()
    server = Server(arguments.seed, folder, arguments.seconds)
    try:
        for name, number in work:
            yield server.run(name, number)
    finally:
        server.stop()


def _work(arguments: Any, kinds: list[str]) -> list[tuple[str, int]]:
    return list(numbers_of(kinds, arguments.first + arguments.count))[arguments.first :]


def _run_here(arguments: Any, kinds: list[str], scratch: Path, tally: _Tally) -> None:
    jobs, work = arguments.jobs or 1, _work(arguments, kinds)

    def collect(share: int) -> None:
        folder = scratch / str(share)
        for ended in _ended(arguments, work[share::jobs], folder):
            if ended.wrong is not None:
                _keep(folder, ended)
            tally.add(ended)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(collect, range(jobs)))


# -- on a cluster ---------------------------------------------------------------------------------

_RESULTS, _FILES = "results.json", "kept/"
_START = """
import os, sys, zipfile
folder = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "tree")
with zipfile.ZipFile(sys.argv[0]) as archive:
    archive.extractall(folder)
script = os.path.join(folder, "scripts", "fuzz.py")
os.execv(sys.executable, [sys.executable, script, *sys.argv[1:]])
"""
"""Start of the archive: it unpacks itself, and runs this script."""


def make_archive() -> bytes:
    """This script and the files that inputs are made from, as a program."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _START)
        paths = [Path(__file__).resolve(), *(_ROOT / "examples").glob("*.mlir")]
        for pattern in ("*.mlir", "tflite_*.py", "gguf_models.py"):
            paths += (_ROOT / "tests").rglob(pattern)
        paths += (_ROOT / "scripts/pieces").glob("*.py")
        for path in paths:
            archive.write(path, path.relative_to(_ROOT))
    return buffer.getvalue()


def _run_on_cluster(inputs: Any, tally: _Tally) -> bool:
    """Have workers run the inputs; true if they ran all."""
    from subquant.batch.engines import Task, run_tasks
    from subquant.errors import SubquantError

    archive = make_archive()
    options = ["--kinds", inputs.kinds, "--seed", str(inputs.seed), "--seconds",
               str(inputs.seconds)]  # fmt: skip
    last = inputs.first + inputs.count

    def task(first: int) -> Task:
        count = min(_RANGE, last - first)
        arguments = [*options, "--first", str(first), "--count", str(count), "--results"]
        return Task(
            f"inputs {first} to {first + count - 1}",
            "subquant.batch.engines.tasks:run_archive",
            {"arguments": arguments},
            [archive],
        )

    missing: list[str] = []
    tasks = map(task, range(inputs.first, last, _RANGE))
    try:
        with contextlib.closing(run_tasks(tasks, cluster=inputs.cluster)) as run:
            for done in run:
                why = done.error and str(done.error)
                if done.error is None and not done.blobs:
                    why = f"exit status {done.value['status']}: {done.value['errors'][-600:]}"
                if not why:
                    why = _take(done.blobs[0], tally)
                if why:
                    missing.append(done.task.name)
                    print(f"{done.task.name}, {done.worker}: {why}", flush=True)
    except SubquantError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return False
    return not missing


def _take(results: bytes, tally: _Tally) -> str | None:
    """Record the outcome of a range, and keep its files; or report why it does not count."""
    with zipfile.ZipFile(io.BytesIO(results)) as archive:
        actual = json.loads(archive.read(_RESULTS))
        if actual["made_with"] != _made_with():
            return f"inputs are made with {actual['made_with']} there, and here {_made_with()}"
        names = [name for name in archive.namelist() if name.startswith(_FILES)]
        with tempfile.TemporaryDirectory(prefix="subquant-fuzz-") as scratch:
            archive.extractall(scratch, names)
            for fields in actual["ended"]:
                ended = Ended(**fields)
                if ended.wrong is not None:
                    _keep(Path(scratch) / _FILES, ended)
                tally.add(ended)
    return None


def _run_range(arguments: Any, kinds: list[str], scratch: Path) -> None:
    """Run a range on a worker, and write how each input ended, with the files of failures."""
    folder = scratch / "range"
    every = list(_ended(arguments, _work(arguments, kinds), folder))
    actual = {"made_with": _made_with(), "ended": [dataclasses.asdict(ended) for ended in every]}
    with zipfile.ZipFile(arguments.results, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_RESULTS, json.dumps(actual))
        for ended in every:
            if ended.wrong is not None:
                for path in sorted((folder / f"{ended.kind}-{ended.number}").rglob("*")):
                    archive.write(path, _FILES + path.relative_to(folder).as_posix())


def _made_with() -> dict[str, str | None]:
    """Return the versions of the generators of inputs."""
    from subquant.core.versions import versions_of

    return dict(versions_of(_MAKERS))


def _keep(folder: Path, ended: Ended) -> Path | None:
    """Move the files of a failure to where they stay."""
    name = f"{ended.kind}-{ended.number}"
    if not (folder / name).exists():
        return None
    _KEPT.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(_KEPT / name, ignore_errors=True)
    shutil.move(folder / name, _KEPT / name)
    (_KEPT / name / "wrong").write_text(f"{ended}\n{ended.wrong}")
    return _KEPT / name


if __name__ == "__main__":
    main()
