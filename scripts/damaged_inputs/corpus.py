"""The valid inputs from which the others are made."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import struct
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import ROOT

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


ARTIFACT_VERSIONS = (
    "0.9.0", "0.14.0", "0.17.0", "0.19.0", "1.0.0", "1.4.0", "1.9.0", "1.15.0", "1.19.0",
)  # fmt: skip
"""Versions of StableHLO in the first bytes of its artifacts."""


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


def make_corpus() -> Corpus:
    """Read and write the valid inputs."""
    from safetensors.numpy import save

    from subquant.compiler.compilation import compile_to_bytes
    from subquant.compiler.lowering import bytecode_of
    from subquant.core._mlir import ir
    from subquant.dialects import create_context
    from subquant.formats.irpa_writer import create_archive

    corpus = Corpus()
    files = [*(ROOT / "examples").glob("*.mlir"), *(ROOT / "tests").rglob("*.mlir")]
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
    cache = ROOT / ".cache/fuzz"
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


def _add_artifacts(corpus: Corpus) -> None:
    """Programs of the conformance suite, and JAX's, as artifacts of all versions and in VHLO."""
    from subquant.compiler.reading import parse_bytes
    from subquant.conformance.suite import programs
    from subquant.core._mlir import stablehlo
    from subquant.dialects import create_context

    for arguments in [*corpus.jax, *(each.text().encode() for each in programs()[::16])]:
        version = ARTIFACT_VERSIONS[len(corpus.modules) % len(ARTIFACT_VERSIONS)]
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

    def shaped(*shapes: int, dtype: str = "f4") -> Any:
        return jax.ShapeDtypeStruct(shapes, dtype)

    x, rows = shaped(2, 16), shaped(*export.symbolic_shape("n, 16"))
    weight = {"q": shaped(16, 4, dtype="i1"), "s": shaped(4)}
    narrow = jax.ShapeDtypeStruct((16, 4), jnp.int4)
    calls = [
        (linear, x, weight), (linear, rows, weight), (in_blocks, x, narrow, shaped(2, 4)),
        (nibbles, x, shaped(8, 4, dtype="u1")), (steps, x), (attention, shaped(5, 2, 4)),
        (convolved, shaped(1, 2, 5, 5), shaped(3, 2, 3, 3, dtype="i1")),
        (chosen, shaped(9, 4, dtype="i1"), shaped(3, dtype="i4")),
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
    sys.path.append(str(ROOT / "tests"))
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
