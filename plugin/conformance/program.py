"""Programs of the suite: types, text and inputs, without MLIR and without the project's arithmetic.

A `Program` is one operation with the types of its operands and results. `Program.text` has
quantized types, for the compiler, or f64 for every quantized and float type, for StableHLO's
reference interpreter. Its inputs come from a generator whose seed is the program's name.
"""

from __future__ import annotations

import re
import string
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, SupportsInt, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
DType: TypeAlias = np.dtype[Any]
Attributes: TypeAlias = Mapping[str, Any]
"""Attributes of an operation for the oracle, by the specification's names."""

Numbers: TypeAlias = Any
"""A number, several along an axis, or a nested tuple for blocks."""

DTYPES: dict[str, DType] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}
"""Element types of a program's arguments and results that are not quantized."""

_FLOATS = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class Quantized:
    """A quantized element type.

    Args:
        storage: ``i8``, ``u4`` and so on.
        scale: one scale; several along `axis`; a nested tuple for blocks.
        zero_point: of the form of `scale`, or one for all.
        axis: the quantized dimension of a per-axis type.
        expressed: ``f16``, ``bf16``, ``f32`` or ``f64``.
        bounds: a storage range that is narrower than the type's.
        blocks: block sizes by axis, for a sub-channel type.
    """

    storage: str
    scale: Numbers
    zero_point: Numbers = 0
    axis: int | None = None
    expressed: str = "f32"
    bounds: tuple[int, int] | None = None
    blocks: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """Bits of storage."""
        return int(self.storage[1:])

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest storage value."""
        if self.bounds is not None:
            return self.bounds
        if self.storage.startswith("u"):
            return 0, 2**self.width - 1
        return -(2 ** (self.width - 1)), 2 ** (self.width - 1) - 1

    @property
    def dtype(self) -> DType:
        """The NumPy dtype that holds storage values."""
        width = next(w for w in (8, 16, 32) if w >= self.width)
        return np.dtype(f"{'u' if self.storage.startswith('u') else 'i'}{width // 8}")

    def __str__(self) -> str:
        bounds = "" if self.bounds is None else f"<{self.bounds[0]}:{self.bounds[1]}>"
        head = f"{self.storage}{bounds}:{self.expressed}"
        scales = np.asarray(self.scale, np.float64)
        zero_points = np.broadcast_to(np.asarray(self.zero_point, np.int64), scales.shape)
        if self.blocks:
            sizes = ",".join(f"{axis}:{size}" for axis, size in self.blocks)
            return f"!quant.uniform<{head}:{{{sizes}}}, {_nested(scales, zero_points)}>"
        pairs = [_pair(s, z) for s, z in zip(scales.flat, zero_points.flat, strict=True)]
        if self.axis is not None:
            return f"!quant.uniform<{head}:{self.axis}, {{{', '.join(pairs)}}}>"
        return f"!quant.uniform<{head}, {pairs[0]}>"


def _pair(scale: SupportsFloat, zero_point: SupportsInt) -> str:
    # MLIR reads "1e-05" as the integer 1 and a name: a number needs its point.
    mantissa, exponent, power = repr(float(scale)).partition("e")
    number = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{number}{exponent}{power}:{int(zero_point)}"


def _nested(scales: Array, zero_points: Array) -> str:
    if not scales.ndim:
        return _pair(scales, zero_points)
    texts = [_nested(s, z) for s, z in zip(scales, zero_points, strict=True)]
    return f"{{{', '.join(texts)}}}"


@dataclass(frozen=True)
class Tensor:
    """A tensor type, with the extents that it has at run time; dynamic axes are written ``?``."""

    shape: tuple[int, ...]
    element: str | Quantized
    dynamic: tuple[int, ...] = ()

    def text(self, as_float: bool = False) -> str:
        """Return the MLIR type; with `as_float` in f64, extents static, for the interpreter."""
        element = self.element
        if as_float and (isinstance(element, Quantized) or element in _FLOATS):
            element = "f64"
        dims = [
            "?" if axis in self.dynamic and not as_float else str(n)
            for axis, n in enumerate(self.shape)
        ]
        return f"tensor<{''.join(f'{dim}x' for dim in dims)}{element}>"

    @property
    def is_quantized(self) -> bool:
        """True for a tensor of quantized elements."""
        return isinstance(self.element, Quantized)


@dataclass(frozen=True)
class Program:
    """Program: a function with one operation.

    Args:
        name: ``op/variant``, unique in the suite.
        op: the operation that is tested.
        arguments, results: the types; in `body` they are ``$a0``, ``$r0`` and so on, and the
            values ``%a0`` and ``%r0``.
        body: MLIR text, without the return.
        oracle: the key of `subquant.conformance.semantics.OPERATIONS`.
        attributes: the operation's attributes for the oracle.
        types: further types that `body` names, as ``$name``.
        inputs: for an argument's number, the array to give, or (least, greatest) of its values.
        runs: False for an operation that one device cannot execute: it is only lowered.
        interpreted: False if StableHLO's interpreter cannot run the float form.
    """

    name: str
    op: str
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    body: str
    oracle: str
    attributes: Attributes = field(default_factory=dict)
    types: Mapping[str, Tensor] = field(default_factory=dict)
    inputs: Mapping[int, npt.ArrayLike] = field(default_factory=dict)
    runs: bool = True
    interpreted: bool = True

    def text(self, symbol: str = "main", *, as_float: bool = False) -> str:
        """Return the function; with `as_float` in f64 in place of quantized and float types."""
        names = {f"a{n}": tensor for n, tensor in enumerate(self.arguments)}
        names |= {f"r{n}": tensor for n, tensor in enumerate(self.results)}
        names |= dict(self.types)
        texts = {name: tensor.text(as_float) for name, tensor in names.items()}
        body = string.Template(self.body).substitute(texts)
        arguments = ", ".join(f"%{n}: {texts[n]}" for n in names if re.fullmatch(r"a\d+", n))
        values = [f"r{n}" for n in range(len(self.results))]
        types = ", ".join(texts[name] for name in values)
        returned = ", ".join(f"%{name}" for name in values)
        indented = "\n".join(f"  {line}" for line in body.strip().splitlines())
        ending = f"return {returned} : {types}" if values else "return"
        return f"func.func @{symbol}({arguments}) -> ({types}) {{\n{indented}\n  {ending}\n}}\n"

    def make_inputs(self) -> list[Array]:
        """Return an array for each argument: storage values where it is quantized."""
        generator = np.random.default_rng(zlib.crc32(self.name.encode()))
        arrays = []
        for number, tensor in enumerate(self.arguments):
            values = self.inputs.get(number)
            if values is None or isinstance(values, tuple):
                arrays.append(_draw(generator, tensor, values))
            else:
                arrays.append(np.asarray(values, _dtype(tensor)).reshape(tensor.shape))
        return arrays


def _dtype(tensor: Tensor) -> DType:
    element = tensor.element
    return element.dtype if isinstance(element, Quantized) else DTYPES[element]


def _draw(
    generator: np.random.Generator, tensor: Tensor, bounds: tuple[float, float] | None
) -> Array:
    """Draw values; storage values include the least, the greatest and the zero point."""
    element = tensor.element
    size = int(np.prod(tensor.shape, dtype=np.int64))
    dtype = _dtype(tensor)
    if not isinstance(element, Quantized) and dtype.kind not in "biu":
        reals = generator.uniform(*(bounds or (-4.0, 4.0)), size)
        return np.asarray(reals.astype(dtype)).reshape(tensor.shape)
    if isinstance(element, Quantized):
        low, high = element.range
    else:
        low, high = (0, 1) if dtype.kind == "b" else (-100, 100)
    if bounds is not None:
        low, high = (int(bound) for bound in bounds)
    narrow = (max(low, -(2**20)), min(high, 2**20))  # larger i32 values only at the ends
    values = generator.integers(narrow[0], narrow[1], size, dtype=np.int64, endpoint=True)
    if isinstance(element, Quantized) and bounds is None and size > 3:
        special = (low, high, int(np.ravel(element.zero_point)[0]))
        values[generator.permutation(size)[:3]] = special
    return np.asarray(values.astype(dtype)).reshape(tensor.shape)
