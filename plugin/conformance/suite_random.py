"""Programs drawn at random: an operation, its types with scales and zero points, and its shapes.

Program number n is always the same. The tables of the suite have the known corner cases;
random programs search for others.
"""

from __future__ import annotations

import numpy as np

from .program import Program, Quantized, Tensor
from .suite_contractions import CONVOLUTION, Axes, convolution_of, dot_of
from .suite_elementwise import BINARY, UNARY
from .suite_reductions import WINDOWS, reduce_of, window_of
from .suite_types import generic

_STORAGE = ("i4", "u4", "i8", "i8", "i8", "u8", "u8", "i16", "u16", "i32")
_EXPRESSED = ("f32", "f32", "f32", "f32", "f32", "f32", "f64", "bf16", "f16")
_KINDS = ("unary", "binary", "binary", "requantize", "dot", "dot", "convolution", "reduce",
          "window")  # fmt: skip


def random_programs(count: int) -> list[Program]:
    """Return the first `count` programs."""
    return [_program(number) for number in range(count)]


def _program(number: int) -> Program:
    draw = np.random.default_rng(number)
    kind = str(draw.choice(_KINDS))
    name = f"random/{number:04d}"
    if kind == "unary":
        return _elementwise(draw, name, str(draw.choice(sorted(UNARY))), 1)
    if kind == "binary":
        return _elementwise(draw, name, str(draw.choice(sorted(BINARY))), 2)
    if kind == "requantize":
        expressed = str(draw.choice(_EXPRESSED))
        source, target = (_element(draw, _storage(draw), expressed) for _ in range(2))
        shape = _shape(draw)
        return Program(f"{name}-uniform_quantize", "uniform_quantize", (Tensor(shape, source),),
                       (Tensor(shape, target),), generic("uniform_quantize", 1), "identity",
                       interpreted=False)  # fmt: skip
    if kind == "dot":
        return _dot(draw, name)
    if kind == "convolution":
        return _convolution(draw, name)
    return _reduction(draw, name, windowed=kind == "window")


def _storage(draw: np.random.Generator) -> str:
    return str(draw.choice(_STORAGE))


def _shape(draw: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in draw.integers(1, 7, draw.integers(0, 4)))


def _scale(draw: np.random.Generator) -> float:
    """A power of two one time in three: it makes exact ties."""
    if draw.random() < 0.33:
        return float(2.0 ** draw.integers(-7, 2))
    return float(f"{2.0 ** draw.uniform(-7, 1):.3g}")


def _element(
    draw: np.random.Generator, storage: str, expressed: str, zero_point: bool = True
) -> Quantized:
    low, high = Quantized(storage, 1.0).range
    zero = int(draw.integers(max(low, -1000), min(high, 1000), endpoint=True))
    return Quantized(storage, _scale(draw), zero if zero_point else 0, expressed=expressed)


def _elementwise(draw: np.random.Generator, name: str, op: str, count: int) -> Program:
    storage, expressed = _storage(draw), str(draw.choice(_EXPRESSED))
    types = [_element(draw, storage, expressed) for _ in range(count + 1)]
    shape = _shape(draw)
    tensors = [Tensor(shape, element) for element in types]
    return Program(f"{name}-{op}", op, tuple(tensors[:-1]), (tensors[-1],), generic(op, count), op)


def _kernel(
    draw: np.random.Generator, storage: str, expressed: str, channels: int, axis: int
) -> Quantized:
    """A right-hand side: without a zero point, half the time with a scale for each channel."""
    if draw.random() < 0.5:
        return _element(draw, storage, expressed, zero_point=False)
    scales = tuple(_scale(draw) for _ in range(channels))
    return Quantized(storage, scales, axis=axis, expressed=expressed)


def _output(
    draw: np.random.Generator, storage: str, expressed: str, kernel: Quantized, axis: int
) -> Quantized:
    """A result: of the storage of the operands or i32, per axis if the kernel is."""
    wide = str(draw.choice((storage, "i32")))
    if kernel.axis is None or draw.random() < 0.3:
        return _element(draw, wide, expressed)
    return Quantized(wide, tuple(_scale(draw) for _ in kernel.scale), 3, axis, expressed)


def _dot(draw: np.random.Generator, name: str) -> Program:
    m, k, n, batch = (int(v) for v in draw.integers(1, 9, 4))
    k = int(draw.choice((k, k, 130)))
    storage = str(draw.choice(_STORAGE[:-1]))
    expressed = str(draw.choice(_EXPRESSED))
    batched = draw.random() < 0.3
    left = Tensor((batch, m, k) if batched else (m, k), _element(draw, storage, expressed))
    kernel = _kernel(draw, storage, expressed, n, 2 if batched else 1)
    right = Tensor((batch, k, n) if batched else (k, n), kernel)
    out = _output(draw, storage, expressed, kernel, 2 if batched else 1)
    dims: tuple[Axes, Axes] = (((0,), (0,)), ((2,), (1,))) if batched else (((), ()), ((1,), (0,)))
    return dot_of(f"{name}-dot_general", left, right, out, *dims)


def _convolution(draw: np.random.Generator, name: str) -> Program:
    rows = {n: r for n, r in CONVOLUTION.items() if "group" not in n and "depth" not in n}
    chosen = str(draw.choice(sorted(rows)))
    row = rows[chosen]
    layout = row.get("layout", ("b01f", "01io", "b01f"))
    storage, expressed = str(draw.choice(_STORAGE[:-1])), str(draw.choice(_EXPRESSED))
    kernel = _kernel(draw, storage, expressed, 4, layout[1].index("o"))
    types = (
        _element(draw, storage, expressed), kernel,
        _output(draw, storage, expressed, kernel, layout[2].index("f")),
    )  # fmt: skip
    return convolution_of(f"{name}-convolution-{chosen}", row, types)


def _reduction(draw: np.random.Generator, name: str, windowed: bool) -> Program:
    """A sum in a wider type of the same scale (so that no step rounds), or a maximum."""
    storage = str(draw.choice(_STORAGE[:-1]))
    source = _element(draw, storage, str(draw.choice(("f32", "f64"))))
    body = str(draw.choice(("add", "maximum", "minimum")))
    zero = int(draw.integers(-50, 50))
    wide = Quantized("i32", source.scale, zero, expressed=source.expressed)
    target = wide if body == "add" or draw.random() < 0.3 else source
    if windowed:
        return window_of(f"{name}-reduce_window", WINDOWS[str(draw.choice(sorted(WINDOWS)))],
                         (body, source, target))  # fmt: skip
    shape = (*_shape(draw)[:2], int(draw.integers(1, 40)))
    axes = tuple(sorted({int(axis) for axis in draw.integers(0, len(shape), 2)}))
    return reduce_of(f"{name}-reduce", body, source, target, shape, axes)
