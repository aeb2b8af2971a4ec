"""Complex tensors as pairs of real ones, and functions of them.

Sources: ``aten/src/ATen/native/BinaryOps.cpp``, ``c10/util/complex_math.h`` of PyTorch 2.13.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


class NoTranslation(Exception):
    """A function of complex numbers that has none in real ones; its node says where."""


@dataclass(frozen=True)
class ComplexPair:
    """A complex tensor: its real and its imaginary part, of one shape and type."""

    real: Tensor
    imag: Tensor

    @property
    def conjugate(self) -> ComplexPair:
        """The conjugate."""
        return ComplexPair(self.real, torch.neg(self.imag))

    @property
    def magnitude(self) -> Tensor:
        """The absolute value."""
        return torch.hypot(self.real, self.imag)

    @property
    def angle(self) -> Tensor:
        """The angle."""
        return torch.atan2(self.imag, self.real)


def parts_of(value: Any) -> tuple[Any, Any]:
    """The real and the imaginary part of a pair, a real tensor, or a number."""
    if isinstance(value, ComplexPair):
        return value.real, value.imag
    if isinstance(value, torch.Tensor):
        return value, torch.zeros_like(value)
    return (value.real, value.imag) if isinstance(value, complex) else (value, 0)


def _sum(left: Any, right: Any, *, alpha: Any = 1, sign: int = 1) -> ComplexPair:
    scaled = _product(right, sign * alpha) if alpha != 1 or sign < 0 else right
    return ComplexPair(*(a + b for a, b in zip(parts_of(left), parts_of(scaled), strict=True)))


def _product(left: Any, right: Any) -> ComplexPair:
    """``left * right``; a real factor multiplies both parts."""
    pairs = [isinstance(each, (ComplexPair, complex)) for each in (left, right)]
    if not all(pairs):
        factor, other = (right, left) if pairs[0] else (left, right)
        return ComplexPair(*(each * factor for each in parts_of(other)))
    return _bilinear(torch.mul, left, right)


def _bilinear(function: Callable[[Any, Any], Any], left: Any, right: Any) -> ComplexPair:
    """A function that is linear in both operands."""
    (a, b), (c, d) = parts_of(left), parts_of(right)
    if not isinstance(left, (ComplexPair, complex)):
        return ComplexPair(function(left, c), function(left, d))
    if not isinstance(right, (ComplexPair, complex)):
        return ComplexPair(function(a, right), function(b, right))
    return ComplexPair(
        function(a, c) - function(b, d),
        function(a, d) + function(b, c),
    )


def _quotient(left: Any, right: Any) -> ComplexPair:
    """The divisor is scaled by its greater part, so that its square does not overflow."""
    if not isinstance(right, (ComplexPair, complex)):
        return ComplexPair(*(each / right for each in parts_of(left)))
    if isinstance(right, complex):
        return _product(left, 1 / right)
    scale = torch.maximum(right.real.abs(), right.imag.abs())
    scaled = ComplexPair(right.real / scale, right.imag / scale)
    square = scaled.real * scaled.real + scaled.imag * scaled.imag
    product = _product(left, scaled.conjugate)
    return ComplexPair(product.real / square / scale, product.imag / square / scale)


def polar(magnitude: Tensor, angle: Tensor) -> ComplexPair:
    """The number of a magnitude and an angle."""
    return ComplexPair(magnitude * torch.cos(angle), magnitude * torch.sin(angle))


def _exp(value: ComplexPair) -> ComplexPair:
    return polar(torch.exp(value.real), value.imag)


def _log(value: ComplexPair) -> ComplexPair:
    return ComplexPair(torch.log(value.magnitude), value.angle)


def _sqrt(value: ComplexPair) -> ComplexPair:
    """The root with a positive real part: ``t = sqrt((|x| + |re|) / 2)`` and ``|im| / (2 t)``."""
    root = torch.sqrt((value.magnitude + value.real.abs()) / 2)
    is_zero = root == 0
    ratio = value.imag.abs() / (2 * torch.where(is_zero, torch.ones_like(root), root))
    is_right = value.real >= 0
    imag = torch.where(is_right, ratio, root)
    negative = value.imag < 0
    return ComplexPair(torch.where(is_right, root, ratio), torch.where(negative, -imag, imag))


def _power(value: Any, exponent: Any) -> ComplexPair:
    """Products for exponents of 2 and 3, else ``exp(y * log(x))``."""
    if isinstance(exponent, (int, float)) and exponent in (1, 2, 3):
        result: ComplexPair = value
        for _ in range(int(exponent) - 1):
            result = _product(result, value)
        return result
    if isinstance(value, (int, float)):
        return _exp(_product(exponent, math.log(value)))
    base = value if isinstance(value, ComplexPair) else ComplexPair(*parts_of(value))
    return _exp(_product(_log(base), exponent))


def _norm(
    value: ComplexPair, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    return torch.linalg.vector_norm(value.magnitude, ord, dim, keepdim, dtype=dtype)


def _equal(left: Any, right: Any) -> Tensor:
    (a, b), (c, d) = parts_of(left), parts_of(right)
    return torch.logical_and(torch.eq(a, c), torch.eq(b, d))


def _einsum(equation: str, operands: Sequence[Any], *, path: Any = None) -> ComplexPair:
    def of_two(left: Any, right: Any) -> Any:
        return torch.einsum(equation, left, right)

    if len(operands) == 1:
        return ComplexPair(*(torch.einsum(equation, each) for each in parts_of(operands[0])))
    if len(operands) != 2:
        raise NoTranslation
    return _bilinear(of_two, *operands)


def _sign(value: ComplexPair) -> ComplexPair:
    size = value.magnitude
    return _quotient(value, torch.where(size == 0, torch.ones_like(size), size))


def _linear(value: Any, weight: Any, bias: Any = None) -> ComplexPair:
    product = _bilinear(torch.nn.functional.linear, value, weight)
    return product if bias is None else _sum(product, bias)


def _padded(
    value: ComplexPair, sides: Sequence[int], mode: Any = "constant", number: Any = None
) -> ComplexPair:
    """``pad``, or ``constant_pad_nd``, whose third operand is the number."""
    if not isinstance(mode, str):
        mode, number = "constant", mode
    pad = torch.nn.functional.pad
    if mode != "constant":
        return ComplexPair(*(pad(each, sides, mode) for each in parts_of(value)))
    fillings = zip(parts_of(value), parts_of(number or 0.0), strict=True)
    return ComplexPair(*(torch.constant_pad_nd(each, sides, filling) for each, filling in fillings))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: lambda x: x.magnitude for name in ("abs", "absolute")},
    **dict.fromkeys(("mul", "multiply"), _product),
    **dict.fromkeys(("div", "divide", "true_divide"), _quotient),
    **{name: lambda x: x.conjugate for name in ("_conj", "conj", "conj_physical")},
    **dict.fromkeys(("constant_pad_nd", "pad"), _padded),
    "add": _sum,
    "angle": lambda x: x.angle,
    "complex": lambda real, imag: ComplexPair(*torch.broadcast_tensors(real, imag)),
    "einsum": _einsum,
    "eq": _equal,
    "exp": _exp,
    "imag": lambda x: x.imag,
    "linalg_vector_norm": _norm,
    "linear": _linear,
    "log": _log,
    "ne": lambda x, y: torch.logical_not(_equal(x, y)),
    "polar": polar,
    "pow": _power,
    "real": lambda x: x.real,
    "reciprocal": lambda x: _quotient(1.0, x),
    "rsub": lambda x, y, alpha=1: _sum(y, x, alpha=alpha, sign=-1),
    "sgn": _sign,
    "sqrt": _sqrt,
    "square": lambda x: _product(x, x),
    "sub": lambda x, y, alpha=1: _sum(x, y, alpha=alpha, sign=-1),
    "view_as_complex": lambda x: ComplexPair(x[..., 0], x[..., 1]),
    "view_as_real": lambda x: torch.stack([x.real, x.imag], -1),
    **{
        name: functools.partial(_bilinear, getattr(torch, name))
        for name in ("bmm", "dot", "inner", "matmul", "mm", "mv", "outer")
    },
}
"""Functions with a complex operand or result, by the name of the operator."""

LINEAR: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("_unsafe_view", "alias", "broadcast_to", "chunk", "clone", "contiguous", "cumsum"),
            *("detach", "detach_", "diagonal", "expand", "expand_as", "flatten", "flip", "gather"),
            *("index", "index_select", "lift_fresh_copy", "mean", "movedim", "narrow", "neg"),
            *("permute", "repeat", "reshape", "resolve_conj", "resolve_neg", "roll", "select"),
            *("slice", "split", "split_with_sizes", "squeeze", "sum", "t", "tile", "transpose"),
            *("tril", "triu", "unbind", "unflatten", "unfold", "unsqueeze", "view"),
        ),
        (0,),
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), (0,)),
    **dict.fromkeys(("copy", "slice_scatter", "select_scatter"), (0, 1)),
    **dict.fromkeys(("index_put", "masked_fill"), (0, 2)),
    "scatter": (0, 3),
    "where": (1, 2),
}
"""Operators that treat both parts alike, with the positions of the operands that have parts."""

CREATED = ("empty", "empty_like", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like")
"""Operators that create a tensor of an element type."""
