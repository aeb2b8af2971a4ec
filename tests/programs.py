"""Passes over programs; generated casts: strategies, MLIR text and adversarial inputs for them.

A `Cast` is one quantization with a tensor shape. `module_text` writes many of them as functions of
one module, so that one compilation tests them all; inputs are always arguments.
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.compiler.targets import Target
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.quant import type_of
from subquant.errors import Remark
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType

WIDTHS = (2, 3, 4, 5, 7, 8, 12, 16, 20, 31, 32)

LONG = os.environ.get("SUBQUANT_LONG") == "1"
"""True for the long suite, ``scripts/test --long``."""


def examples(count: int) -> int:
    """Number of examples of a property test, eight times as many in the long suite."""
    return count * (8 if LONG else 1)


def share_of(names: Iterable[str], count: int) -> list[str]:
    """One of `count` names, in their order; all of them in the long suite.

    For cases that are compiled together, as the mark ``share`` for those that are compiled alone:
    skipped cases are not compiled. The cases with the lowest hashes run, so that they cover all
    kinds and always the same.
    """
    arguments = list(names)
    if LONG:
        return arguments
    by_hash = sorted(arguments, key=lambda name: zlib.crc32(name.encode()))
    retained = set(by_hash[: -(-len(arguments) // count)])
    return [name for name in arguments if name in retained]


def load_script(name: str) -> Any:
    """The module of a script."""
    folder = str(Path(__file__).resolve().parent.parent / "scripts")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def lowered_text(
    program: str | bytes | ir.Module, target: Target = "llvm-cpu", **options: Any
) -> str:
    """The module that IREE compiles, with options as `CompileOptions`."""
    return compile_to_bytes(program, CompileOptions(target, **options), emit="mlir").decode()


def run_passes(
    text: str, passes: str, context: ir.Context | None = None
) -> tuple[ir.Module, list[Remark]]:
    """A program after some passes, and their remarks."""
    module = parse_text(text, create_context() if context is None else context)
    remarks: list[Remark] = []
    run_pipeline(module, parse_pipeline(passes), on_remark=remarks.append)
    return module, remarks


def one_operation(
    operation: str, operands: Sequence[str], *results: str, name: str = "main"
) -> str:
    """A function of one operation on ``%0``, ``%1``..., by the shapes and elements of tensors."""
    arguments, returned = ([f"tensor<{each}>" for each in types] for types in (operands, results))
    parameters = ", ".join(f"%{n}: {type_}" for n, type_ in enumerate(arguments))
    types = ", ".join(returned)
    values = ", ".join(f"%r#{n}" for n in range(len(results)))
    return f"""
func.func @{name}({parameters}) -> ({types}) {{
  %r:{len(results)} = {operation} : ({", ".join(arguments)}) -> ({types})
  return {values} : {types}
}}
"""


PRODUCT = "stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]"
"""A matrix product, for `one_operation`."""


def convolution_of(numbers: str, window: str = "", groups: int = 1, batch_groups: int = 1) -> str:
    """A convolution with some dimension numbers and a window, for `one_operation`."""
    return (
        f"stablehlo.convolution(%0, %1) dim_numbers = {numbers}, window = {{{window}}} "
        f"{{batch_group_count = {batch_groups} : i64, feature_group_count = {groups} : i64}}"
    )


@dataclass(frozen=True)
class Cast:
    """Parameters with a tensor shape; `dynamic` axes are ``?`` in the type."""

    parameters: QuantizationParameters
    shape: tuple[int, ...]
    dynamic: frozenset[int] = frozenset()
    unranked: bool = False

    @property
    def is_ragged(self) -> bool:
        """True when some last block is shorter."""
        blocks = self.parameters.block_shape(self.shape)
        return any(n % b for n, b in zip(self.shape, blocks, strict=True))

    @property
    def dialect(self) -> str:
        """The dialect whose casts accept this one."""
        sub_channel = self.parameters.granularity == "sub-channel"
        collapsed = sub_channel and self.parameters.scales.ndim != len(self.shape)
        unranked = sub_channel and self.unranked
        return "subquant" if self.is_ragged or collapsed or unranked else "quant"

    def tensor(self, element: str) -> str:
        """The MLIR tensor type with an element type."""
        if self.unranked:
            return f"tensor<*x{element}>"
        dims = "".join(f"{'?' if a in self.dynamic else n}x" for a, n in enumerate(self.shape))
        return f"tensor<{dims}{element}>"

    def mlir_type(self) -> str:
        """The quantized type as text (upstream prints enough digits to read it back)."""
        with create_context(), ir.Location.unknown():
            return str(type_of(self.parameters))

    def reals(self, rng: np.random.Generator) -> np.ndarray:
        """Inputs that are hard to quantize: ties, bounds, infinities, NaN, zeros of both signs."""
        parameters = self.parameters
        scales, zeros = elementwise(self)
        low, high = parameters.storage.minimum, parameters.storage.maximum
        kind = rng.integers(0, 8, self.shape)
        span = min(high - low, 400)
        target = rng.integers(low, low + span + 1, self.shape).astype(np.float64)
        target = np.where(kind == 1, target + 0.5, target)
        target = np.where(kind == 2, high + rng.integers(-1, 3, self.shape), target)
        target = np.where(kind == 3, low - rng.integers(-1, 3, self.shape), target)
        target = np.where(kind == 4, rng.uniform(low, high, self.shape), target)
        with np.errstate(all="ignore"):
            reals = ((target - zeros) * scales).astype(parameters.expressed.dtype)
            special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30])
            reals = np.where(
                kind == 7,
                rng.choice(special, self.shape).astype(parameters.expressed.dtype),
                reals,
            )
        return reals.astype(parameters.expressed.dtype)

    def tame_reals(self, rng: np.random.Generator) -> np.ndarray:
        """Inputs where upstream's unrounded, unclamped conversion is defined."""
        scales, zeros = elementwise(self)
        low, high = self.parameters.storage.minimum, self.parameters.storage.maximum
        if self.parameters.expressed in (ExpressedType.F16, ExpressedType.BF16):
            low, high = max(low, -1000), min(high, 1000)
        margin = 0.02 * (high - low)
        target = rng.uniform(low + margin, high - margin, self.shape)
        with np.errstate(all="ignore"):
            return ((target - zeros) * scales).astype(self.parameters.expressed.dtype)

    def stored(self, rng: np.random.Generator) -> np.ndarray:
        """Storage values, the bounds among them."""
        storage = self.parameters.storage
        values = rng.integers(storage.minimum, storage.maximum, self.shape, endpoint=True)
        kind = rng.integers(0, 6, self.shape)
        values = np.where(kind == 0, storage.minimum, values)
        values = np.where(kind == 1, storage.maximum, values)
        return values.astype(storage.dtype)


def elementwise(cast: Cast) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points for every element, by a Python loop over the RFC's pseudocode."""
    parameters = cast.parameters
    scales, zeros = np.zeros(cast.shape), np.zeros(cast.shape)
    if parameters.granularity == "per-tensor":
        return scales + float(parameters.scales), zeros + int(parameters.zero_points)
    grid = [parameters.block_size_of(axis) for axis in range(len(cast.shape))]
    full_scales = parameters.scales.reshape(full_shape(cast)).astype(np.float64)
    full_zeros = parameters.zero_points.reshape(full_shape(cast))
    for index in np.ndindex(*cast.shape):
        block = tuple(0 if b is None else i // b for i, b in zip(index, grid, strict=True))
        scales[index], zeros[index] = full_scales[block], full_zeros[block]
    return scales, zeros


def full_shape(cast: Cast) -> tuple[int, ...]:
    """The number of blocks along each axis of the tensor."""
    blocks = cast.parameters.block_shape(cast.shape)
    return tuple(-(-n // b) for n, b in zip(cast.shape, blocks, strict=True))


@st.composite
def storages(draw: Any, widths: Sequence[int] = WIDTHS) -> StorageType:
    """Any storage type."""
    width, signed = draw(st.sampled_from(widths)), draw(st.booleans())
    full = StorageType(width, signed)
    if draw(st.integers(0, 2)) or width == 2:
        return full
    quarter = (full.maximum - full.minimum) // 4
    return StorageType(
        width,
        signed,
        full.minimum + draw(st.integers(0, quarter)),
        full.maximum - draw(st.integers(0, quarter)),
    )


@st.composite
def casts(
    draw: Any, max_rank: int = 4, expressed: Any = None, widths: Sequence[int] = WIDTHS
) -> Cast:
    """Any cast: granularity x storage x expressed x rank x blocks, static or dynamic."""
    storage = draw(storages(widths))
    expressed_type = draw(st.sampled_from(expressed or list(ExpressedType)))
    rank = draw(st.integers(0, max_rank))
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank)))
    granularity = draw(st.sampled_from(["per-tensor", "per-axis", "sub-channel"]))
    if not rank:
        granularity = "per-tensor"
    axes: list[int] = []
    blocks: list[int] = []
    ragged = draw(st.integers(0, 3)) == 0
    if granularity == "per-axis":
        axes, blocks = [draw(st.integers(0, rank - 1))], [1]
    elif granularity == "sub-channel":
        axes = draw(st.permutations(range(rank)))[: draw(st.integers(1, rank))]
        for axis in axes:
            divisors = [b for b in range(1, shape[axis] + 1) if ragged or not shape[axis] % b]
            blocks.append(draw(st.sampled_from(divisors)))
    sizes = dict(zip(axes, blocks, strict=True))
    grid = tuple(-(-n // sizes[a]) if a in sizes else 1 for a, n in enumerate(shape))
    written = () if granularity == "per-tensor" else grid
    if granularity == "per-axis":
        written = (shape[axes[0]],)
    unranked = draw(st.integers(0, 5)) == 0 and rank > 0
    if unranked and granularity == "sub-channel":
        written = tuple(grid[axis] for axis in sorted(axes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scales = np.exp2(rng.uniform(-6, 3, written))
    if draw(st.booleans()):
        scales = np.exp2(np.round(np.log2(scales)))  # powers of two make exact ties
    zeros = rng.integers(storage.minimum, storage.maximum, written, endpoint=True)
    if draw(st.booleans()):
        zeros = np.zeros(written, int) + max(0, storage.minimum)
    if expressed_type is ExpressedType.F16:  # an infinite zero point is refused
        zeros = np.clip(zeros, -60000, 60000)
        if storage.minimum > 60000 or storage.maximum < -60000:
            storage = StorageType(storage.width, storage.signed)
    parameters = QuantizationParameters(
        storage, expressed_type, tuple(axes), tuple(blocks), scales, zeros, granularity
    )
    dynamic = frozenset(a for a in range(rank) if draw(st.integers(0, 3)) == 0)
    return Cast(parameters, shape, frozenset() if unranked else dynamic, unranked)


def module_text(generated: list[Cast], dialect: str | None = None) -> str:
    """A module with functions ``q0, d0, q1, d1, ...``: the quantize and dequantize of each cast."""
    text_lines = []
    for number, cast in enumerate(generated):
        quantized = cast.mlir_type()
        real = cast.tensor(cast.parameters.expressed.value)
        stored = cast.tensor(quantized)
        name = dialect or cast.dialect
        text_lines.append(f"""
func.func @q{number}(%x: {real}) -> {stored} {{
  %q = "{name}.qcast"(%x) : ({real}) -> {stored}
  return %q : {stored}
}}
func.func @d{number}(%q: {stored}) -> {real} {{
  %x = "{name}.dcast"(%q) : ({stored}) -> {real}
  return %x : {real}
}}""")
    return "\n".join(text_lines)


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """True when two float arrays have the same bits (any NaN equals any NaN)."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    bits = np.dtype(f"u{left.dtype.itemsize}")
    equal = np.ascontiguousarray(left).view(bits) == np.ascontiguousarray(right).view(bits)
    nan = np.isnan(left.astype(np.float64)) & np.isnan(right.astype(np.float64))
    return bool((equal.reshape(left.shape) | nan).all())
