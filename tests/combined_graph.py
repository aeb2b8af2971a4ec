"""Programs written together with their results: each method writes an operation and evaluates it.

The values are of the specifications alone: a quantized value is its storage as integers, an
operation on quantized values is that of the reals ``(storage - zero point) * scale``, in float64,
quantized once (StableHLO, "Execution semantics of quantized operation"). A value within ``2**-20``
of a step from a tie counts as a tie, as ``docs/numerics.md`` says. Sums of products of
integers are exact in float64 where the scales have few bits.

An f32 value is a float64 with an error bound for any order of its sums. Where
a value is quantized and the bound reaches over a tie, the result is `Ambiguous`, and
the program is drawn again with other inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

ULP = 2.0**-24
"""The rounding error of one f32 operation, relative to its result."""


class Ambiguous(Exception):
    """An f32 value so near a tie that its rounding decides which integer is right."""


@dataclass(frozen=True)
class Quantized:
    """A quantized type: per tensor, along one axis, or in blocks (`blocks` has axis and size)."""

    storage: str
    scales: Any
    zeros: Any = 0
    axis: int | None = None
    blocks: tuple[tuple[int, int], ...] = ()
    limits: tuple[int, int] | None = None
    expressed: str = "f32"
    plain: bool = False  # storage as integers without a sign, for `subquant.dequantize`

    @property
    def bits(self) -> int:
        return int(self.storage[1:])

    @property
    def range(self) -> tuple[int, int]:
        if self.limits is not None:
            return self.limits
        if self.storage[0] == "u":
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        width = next(w for w in (8, 16, 32) if w >= self.bits)
        return np.dtype(f"{'uint' if self.storage[0] == 'u' else 'int'}{width}")

    def spread(self, values: Any, shape: Sequence[int]) -> np.ndarray:
        """Scales or zero points, one for each element."""
        values = np.asarray(values, np.float64)
        if self.axis is not None and values.ndim:
            values = values.reshape([-1 if d == self.axis else 1 for d in range(len(shape))])
        elif self.blocks:
            for axis, extent in enumerate(shape):
                values = np.repeat(values, dict(self.blocks).get(axis, extent), axis)
        return np.broadcast_to(values, shape)

    def reals(self, storage: np.ndarray) -> np.ndarray:
        zeros = self.spread(self.zeros, storage.shape)
        return (storage - zeros) * self.spread(self.scales, storage.shape)

    def in_storage(self, array: np.ndarray) -> np.ndarray:
        """Storage as the runtime takes and gives it."""
        if self.plain and self.storage[0] == "u":
            return as_signed(array, self.bits).astype(f"int{8 * self.dtype.itemsize}")
        return array.astype(self.dtype)

    def __str__(self) -> str:
        if self.plain:
            return f"i{self.bits}"
        low_high = "<{}:{}>".format(*self.limits) if self.limits else ""
        head = f"{self.storage}{low_high}:{self.expressed}"
        scales = np.asarray(self.scales, np.float64)
        zeros = np.broadcast_to(np.asarray(self.zeros), scales.shape)
        if self.axis is not None:
            head += f":{self.axis}"
        if self.blocks:
            head += ":{" + ", ".join(f"{axis}:{size}" for axis, size in self.blocks) + "}"
        return f"!quant.uniform<{head}, {_nested(scales, zeros)}>"


def as_signed(array: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned integers as the signed ones with the same bits."""
    return np.where(array >= 2 ** (bits - 1), array - 2**bits, array)


def _nested(scales: np.ndarray, zeros: np.ndarray) -> str:
    if scales.ndim == 0:
        return f"{float(scales):.17e}:{int(zeros)}"
    return "{" + ", ".join(_nested(s, z) for s, z in zip(scales, zeros, strict=True)) + "}"


Element = Quantized | str
"""A quantized type, or the name of an element type: ``f32``, ``i1``, ``i32``."""


@dataclass(frozen=True)
class Value:
    """A value of a program: `array` is storage of int64, a float64, integers, or truth values."""

    name: str
    element: Element
    array: np.ndarray
    bound: np.ndarray | float = 0.0
    dynamic: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element, self.dynamic)

    @property
    def reals(self) -> np.ndarray:
        return self.element.reals(self.array) if isinstance(self.element, Quantized) else self.array


Build = Callable[..., Sequence[Value]]
"""A function that writes operations of a `Graph`, given it and values, and returns the results."""


def tensor(shape: Sequence[int], element: Element, dynamic: frozenset[int] = frozenset()) -> str:
    dims = "".join("?x" if d in dynamic else f"{n}x" for d, n in enumerate(shape))
    return f"tensor<{dims}{element}>"


def settle(reals: np.ndarray, element: Quantized, error: Any = None) -> np.ndarray:
    """The storage of reals: the nearest, ties to even after the zero point is added, saturated.

    `error` bounds the error of the reals, and `Ambiguous` is raised where it decides. Without it
    they are exact, but for float64's own rounding, and near ties are ties.
    """
    low, high = element.range
    scaled = reals / element.spread(element.scales, reals.shape)
    scaled = scaled + element.spread(element.zeros, reals.shape)
    if error is not None:
        error = error / element.spread(element.scales, reals.shape)
        below, above = (np.clip(np.rint(scaled + e), low, high) for e in (-error, error))
        if (below != above).any():
            raise Ambiguous
    else:
        tie = np.rint(scaled * 2) / 2
        scaled = np.where(abs(scaled - tie) < 2.0**-20, tie, scaled)
    return np.clip(np.rint(scaled), low, high).astype(np.int64)


def settle_f32(reals: np.ndarray, element: Quantized) -> np.ndarray:
    """The storage of f32 values, in f32 as the specification writes it."""
    low, high = element.range
    x = reals.astype(np.float32)
    scales = element.spread(element.scales, x.shape).astype(np.float32)
    scaled = x / scales + element.spread(element.zeros, x.shape).astype(np.float32)
    return np.clip(np.rint(scaled.astype(np.float64)), low, high).astype(np.int64)


def window_positions(
    x: np.ndarray,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int],
    dilation: Sequence[int],
    fill: float,
) -> np.ndarray:
    """Return the elements of the windows of a tensor: window axes, then positions."""
    inner = [(n - 1) * b + 1 for n, b in zip(x.shape, base, strict=True)]
    padded = np.full([low + n + high for n, (low, high) in zip(inner, padding, strict=True)], fill)
    padded[
        tuple(slice(low, low + n, b) for n, b, (low, _) in zip(inner, base, padding, strict=True))
    ] = x
    counts = [
        (n - (w - 1) * d - 1) // s + 1
        for n, w, d, s in zip(padded.shape, window, dilation, strides, strict=True)
    ]
    seen = [
        padded[
            tuple(
                slice(at * d, at * d + (c - 1) * s + 1, s)
                for at, d, c, s in zip(position, dilation, counts, strides, strict=True)
            )
        ]
        for position in itertools.product(*map(range, window))
    ]
    return np.stack(seen, -1)


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    reversal: Sequence[bool],
) -> np.ndarray:
    """A convolution of (batch, feature, space...) with (output, input, space...)."""
    w = np.flip(w, [2 + d for d, r in enumerate(reversal) if r])
    window = w.shape[2:]
    seen = window_positions(
        x,
        (1, 1, *window),
        (1, 1, *strides),
        ((0, 0), (0, 0), *padding),
        (1, 1, *base),
        (1, 1, *dilation),
        0.0,
    )
    pieces = []
    for xs, ws in zip(np.split(seen, groups, 1), np.split(w, groups, 0), strict=True):
        flat = ws.reshape(*ws.shape[:2], -1)
        pieces.append(np.moveaxis(np.tensordot(xs, flat, ([1, xs.ndim - 1], [1, 2])), -1, 1))
    return np.concatenate(pieces, 1)


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negate": np.negative,
    "abs": np.abs,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "exponential": np.exp,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "cosine": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}

EXACT = ("add", "subtract", "multiply", "maximum", "minimum", "negate", "abs")
"""Linear or bilinear: a value within the tie tolerance counts as a tie."""


@dataclass
class Graph:
    """A function that is being written, and evaluated."""

    rng: np.random.Generator
    name: str = "main"
    program: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    arguments: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    count: int = 0

    # The text

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def write(
        self,
        operation: str,
        operands: Sequence[Value],
        element: Element,
        array: np.ndarray,
        attributes: str = "",
        *,
        bound: Any = 0.0,
        dynamic: frozenset[int] = frozenset(),
        region: str = "",
        pretty: bool = False,
    ) -> Value:
        """Write an operation of one result, in generic form or as TOSA's are written."""
        value = Value(self.fresh(), element, array, bound, dynamic)
        names = ", ".join(v.name for v in operands)
        types = ", ".join(v.type for v in operands)
        attributes = f" {{{attributes}}}" if attributes else ""
        self.program.append(
            f"{value.name} = "
            + (f"{operation} {names}" if pretty else f'"{operation}"({names}){region}')
            + f"{attributes} : ({types}) -> {value.type}"
        )
        return value

    def text(self) -> str:
        arguments = ", ".join(f"{v.name}: {v.type}" for v in self.arguments)
        types = ", ".join(v.type for v in self.results)
        names = ", ".join(v.name for v in self.results)
        body = "\n".join(f"  {line}" for line in self.program)
        head = f"func.func @{self.name}({arguments}) -> ({types}) {{"
        return "\n".join([*self.helpers, head, body, f"  return {names} : {types}", "}"])

    # Arguments and constants

    def storage(self, element: Quantized, shape: Sequence[int]) -> np.ndarray:
        """Storage values, the ends of the range among them."""
        low, high = element.range
        if high - low > 2**17:
            low, high = -(2**16), 2**16
        array = self.rng.integers(low, high + 1, shape)
        ends = self.rng.integers(0, 16, shape)
        return np.where(ends == 0, low, np.where(ends == 1, high, array))

    def argument(
        self, element: Element, shape: Sequence[int], dynamic: Sequence[int] = (), spread: float = 2
    ) -> Value:
        return self.argument_of(element, self.draw(element, shape, spread), dynamic)

    def draw(self, element: Element, shape: Sequence[int], spread: float = 2) -> np.ndarray:
        if isinstance(element, Quantized):
            return self.storage(element, shape)
        if element == "f32":
            reals = self.rng.normal(0, spread, shape).astype(np.float32)
            return reals.astype(np.float64)
        if element == "i1":
            return self.rng.integers(0, 2, shape).astype(bool)
        return self.rng.integers(0, 100, shape)

    def argument_of(self, element: Element, array: Any, dynamic: Sequence[int] = ()) -> Value:
        """An argument with these values."""
        name = f"%arg{len(self.arguments)}"
        value = Value(name, element, np.asarray(array), 0.0, frozenset(dynamic))
        self.arguments.append(value)
        return value

    def constant(self, element: Element, array: Any) -> Value:
        array = np.asarray(array)
        if isinstance(element, Quantized):
            signed = array.astype(np.int64)
            if element.storage[0] == "u":
                signed = as_signed(signed, element.bits)
            name, kind = self.fresh(), tensor(array.shape, f"i{element.bits}")
            self.program.append(f"{name} = arith.constant dense<{_literal(signed)}> : {kind}")
            value = Value(self.fresh(), element, array)
            self.program.append(f"{value.name} = quant.scast {name} : {kind} to {value.type}")
            return value
        value = Value(self.fresh(), element, array)
        literal = _literal(array, element == "f32")
        self.program.append(f"{value.name} = stablehlo.constant dense<{literal}> : {value.type}")
        return value

    def weight(self, element: Element, shape: Sequence[int], constant: bool = False) -> Value:
        if constant:
            return self.constant(element, self.draw(element, shape))
        return self.argument(element, shape)

    # Contractions

    def dot(
        self,
        a: Value,
        b: Value,
        contracting: tuple[Sequence[int], Sequence[int]],
        element: Element,
        batching: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Value:
        def ordered(v: Value, side: int, last: bool) -> tuple[list[int], list[int]]:
            used = [*batching[side], *contracting[side]]
            free = [d for d in range(len(v.shape)) if d not in used]
            inner = list(contracting[side])
            return [*batching[side], *(free + inner if last else inner + free)], free

        order_a, free_a = ordered(a, 0, True)
        order_b, free_b = ordered(b, 1, False)
        batch = [a.shape[d] for d in batching[0]]
        rows, columns = [a.shape[d] for d in free_a], [b.shape[d] for d in free_b]
        depth = int(np.prod([a.shape[d] for d in contracting[0]]))

        def product(x: Any, y: Any) -> np.ndarray:
            x = np.broadcast_to(x, a.shape).transpose(order_a).reshape(*batch, -1, depth)
            y = np.broadcast_to(y, b.shape).transpose(order_b).reshape(*batch, depth, -1)
            return (x @ y).reshape(*batch, *rows, *columns)

        reals = product(a.reals, b.reals)
        axes = [(a, d) for d in (*batching[0], *free_a)] + [(b, d) for d in free_b]
        dynamic = frozenset(at for at, (v, d) in enumerate(axes) if d in v.dynamic)
        numbers = ", ".join(
            f"{side}_{kind}_dimensions = {list(which[at])}"
            for kind, which in (("batching", batching), ("contracting", contracting))
            for at, side in enumerate(("lhs", "rhs"))
        )
        attributes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
        array, bound = self.contracted(a, b, reals, product, depth, element)
        return self.write(
            "stablehlo.dot_general", [a, b], element, array, attributes,
            bound=bound, dynamic=dynamic,
        )  # fmt: skip

    def contracted(
        self,
        a: Value,
        b: Value,
        reals: np.ndarray,
        product: Callable[[Any, Any], np.ndarray],
        depth: int,
        element: Element,
    ) -> tuple[np.ndarray, Any]:
        """The result of a contraction: settled, or an f32 sum with its bound."""
        if isinstance(element, Quantized):
            return settle(reals, element), 0.0
        error_b = b.bound
        if isinstance(b.element, Quantized):  # a weight is dequantized first
            error_b = ULP * abs(b.reals)
        x, y = abs(a.reals), abs(b.reals)
        bound = product(x, error_b) + product(a.bound, y + error_b)
        return reals, bound + (depth + 4) * ULP * product(x, y)

    def convolution(
        self,
        x: Value,
        w: Value,
        element: Element,
        *,
        layout: str = "b01f",
        kernel: str = "01io",
        strides: Sequence[int] = (1, 1),
        padding: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
        base: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        batch_groups: int = 1,
        reversal: Sequence[bool] = (False, False),
    ) -> Value:
        space = "".join(str(d) for d in range(len(strides)))
        order_x = [layout.index(c) for c in "bf" + space]
        order_w = [kernel.index(c) for c in "oi" + space]
        back = [("bf" + space).index(c) for c in layout]

        def product(a: Any, b: Any) -> np.ndarray:
            a = np.broadcast_to(a, x.shape).transpose(order_x)
            b = np.broadcast_to(b, w.shape).transpose(order_w)
            pieces = [
                convolve(each, kernels, strides, padding, base, dilation, groups, reversal)
                for each, kernels in zip(
                    np.split(a, batch_groups, 0), np.split(b, batch_groups, 0), strict=True
                )
            ]
            return np.concatenate(pieces, 1).transpose(back)

        reals = product(x.reals, w.reals)
        depth = int(np.prod(w.shape)) // w.shape[kernel.index("o")]
        array, bound = self.contracted(x, w, reals, product, depth, element)
        names = [", ".join(each) for each in (layout, kernel, layout)]
        lows_highs = _literal(np.array(padding))
        attributes = (
            f"dimension_numbers = #stablehlo.conv<[{names[0]}]x[{names[1]}]->[{names[2]}]>, "
            f"window_strides = {integers(strides)}, "
            f"padding = dense<{lows_highs}> : tensor<{len(strides)}x2xi64>, "
            f"lhs_dilation = {integers(base)}, rhs_dilation = {integers(dilation)}, "
            f"window_reversal = array<i1: {', '.join(str(r).lower() for r in reversal)}>, "
            f"feature_group_count = {groups} : i64, batch_group_count = {batch_groups} : i64"
        )
        batch = layout.index("b")
        dynamic = frozenset({batch} & x.dynamic)
        return self.write(
            "stablehlo.convolution", [x, w], element, array, attributes,
            bound=bound, dynamic=dynamic,
        )  # fmt: skip

    # Elementwise

    def apply(self, function: str, operands: Sequence[Value], element: Element) -> Value:
        """An elementwise function of StableHLO."""
        with np.errstate(all="ignore"):
            reals = FUNCTIONS[function](*(v.reals for v in operands))
        dynamic = frozenset().union(*(v.dynamic for v in operands))
        bound: Any = 0.0
        if isinstance(element, Quantized):
            array = settle(reals, element)
            if function not in EXACT:
                scaled = reals / element.spread(element.scales, reals.shape)
                inside = np.isfinite(scaled) & (abs(scaled) < 2**20)
                tie = abs(np.where(inside, scaled, 0) % 1 - 0.5)
                if ((tie < 1e-5) & (tie > 0) & inside).any():
                    raise Ambiguous
        elif element == "f32":
            array, bound = reals, self.error(function, operands, reals)
        else:
            array = reals
        return self.write(
            f"stablehlo.{function}", operands, element, array, bound=bound, dynamic=dynamic
        )

    def error(self, function: str, operands: Sequence[Value], reals: np.ndarray) -> Any:
        """Return the error bound of an f32 function of f32 operands."""
        bounds = [v.bound for v in operands]
        exact = all(np.all(b == 0) for b in bounds)
        if exact and function in EXACT and np.all(reals.astype(np.float32) == reals):
            return 0.0
        if function in ("add", "subtract"):
            return sum(bounds) + 2 * ULP * abs(reals)
        if function in ("maximum", "minimum"):
            return np.maximum(*bounds)
        if function in ("negate", "abs"):
            return bounds[0]
        if function == "multiply":
            a, b = (abs(v.array) for v in operands)
            return a * bounds[1] + (b + bounds[1]) * bounds[0] + 2 * ULP * abs(reals)
        if function == "divide":
            b = abs(operands[1].array)
            return (bounds[0] + abs(reals) * bounds[1]) / (b - bounds[1]) + 8 * ULP * abs(reals)
        if function == "exponential":
            return reals * (np.expm1(bounds[0]) + 32 * ULP)
        if function == "rsqrt":
            return reals * (bounds[0] / operands[0].array + 32 * ULP)
        if function in ("tanh", "logistic"):
            return bounds[0] + 64 * ULP
        raise NotImplementedError(function)

    def clamp(self, low: Value, x: Value, high: Value, element: Element) -> Value:
        reals = np.minimum(np.maximum(x.reals, low.reals), high.reals)
        array = settle(reals, element) if isinstance(element, Quantized) else reals
        return self.write(
            "stablehlo.clamp", [low, x, high], element, array, bound=x.bound, dynamic=x.dynamic
        )

    def compare(self, direction: str, a: Value, b: Value) -> Value:
        test = {"LT": np.less, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal}
        if np.any(abs(a.reals - b.reals) <= np.add(a.bound, b.bound)) and np.any(
            np.add(a.bound, b.bound) > 0
        ):
            raise Ambiguous
        array = test[direction](a.reals, b.reals)
        attributes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return self.write("stablehlo.compare", [a, b], "i1", array, attributes, dynamic=a.dynamic)

    def select(self, predicate: Value, a: Value, b: Value, element: Element) -> Value:
        reals = np.where(predicate.array, a.reals, b.reals)
        array = settle(reals, element) if isinstance(element, Quantized) else reals
        bound = np.where(predicate.array, a.bound, b.bound)
        return self.write(
            "stablehlo.select", [predicate, a, b], element, array, bound=bound, dynamic=a.dynamic
        )

    # Casts

    def requantize(self, x: Value, element: Quantized) -> Value:
        array = settle(x.reals, element)
        return self.write("stablehlo.uniform_quantize", [x], element, array, dynamic=x.dynamic)

    def quantize(self, x: Value, element: Quantized, dialect: str = "quant") -> Value:
        name = {"quant": "quant.qcast", "stablehlo": "stablehlo.uniform_quantize"}[dialect]
        if np.all(x.bound == 0):
            array = settle_f32(x.array, element)
        else:
            offsets = element.spread(element.scales, x.shape) * element.spread(
                element.zeros, x.shape
            )
            scaled = abs(x.array) + abs(offsets)
            array = settle(x.array, element, x.bound + 4 * ULP * scaled)
        return self.write(name, [x], element, array, dynamic=x.dynamic)

    def dequantize(self, x: Value, dialect: str = "quant") -> Value:
        name = {"quant": "quant.dcast", "stablehlo": "stablehlo.uniform_dequantize"}[dialect]
        reals = x.reals
        bound = np.where(reals.astype(np.float32) == reals, 0.0, ULP * abs(reals))
        return self.write(name, [x], "f32", reals, bound=bound, dynamic=x.dynamic)

    def dequantize_by(
        self,
        x: Value,
        scales: Value,
        blocks: Sequence[int],
        zeros: Value | None = None,
        offsets: Value | None = None,
    ) -> Value:
        """``subquant.dequantize``: ``(storage - zero point) * scale + offset``."""

        def spread(array: Any, shape: Sequence[int]) -> np.ndarray:
            array = np.broadcast_to(array, shape)
            for axis, size in enumerate(blocks):
                array = np.repeat(array, size, axis)
                array = np.take(array, np.arange(x.shape[axis]), axis)
            return array

        whole = spread(scales.array, scales.shape)
        difference = x.array - (0 if zeros is None else spread(zeros.array, zeros.shape))
        product = difference * whole
        reals = product + (0 if offsets is None else spread(offsets.array, offsets.shape))
        bound = abs(difference) * spread(scales.bound, scales.shape) + 2 * ULP * abs(product)
        if offsets is not None:
            bound = bound + spread(offsets.bound, offsets.shape) + 2 * ULP * abs(reals)
        operands = [v for v in (x, scales, zeros, offsets) if v is not None]
        segments = ", ".join(str(int(v is not None)) for v in (x, scales, zeros, offsets))
        assert isinstance(x.element, Quantized)
        attributes = (
            f"block_sizes = {integers(blocks)}, "
            f"quantized_type = !quant.any<{x.element.storage}:{x.element.expressed}>, "
            f"operandSegmentSizes = array<i32: {segments}>"
        )
        return self.write("subquant.dequantize", operands, "f32", reals, attributes, bound=bound)

    # Movement

    def moved(
        self,
        operation: str,
        x: Value,
        move: Callable[[np.ndarray], np.ndarray],
        attributes: str,
        *,
        element: Element | None = None,
        dynamic: frozenset[int] = frozenset(),
        further_operands: Sequence[Value] = (),
    ) -> Value:
        bound = move(np.broadcast_to(x.bound, x.shape)) if np.any(x.bound) else 0.0
        return self.write(
            operation,
            [x, *further_operands],
            x.element if element is None else element,
            move(x.array),
            attributes,
            bound=bound,
            dynamic=dynamic,
        )

    def reshape(self, x: Value, shape: Sequence[int], element: Element | None = None) -> Value:
        return self.moved("stablehlo.reshape", x, lambda a: a.reshape(shape), "", element=element)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        element = x.element
        if isinstance(element, Quantized) and element.axis is not None:
            element = replace(element, axis=list(order).index(element.axis))
        return self.moved(
            "stablehlo.transpose", x, lambda a: a.transpose(order),
            f"permutation = {integers(order)}", element=element,
            dynamic=frozenset(at for at, d in enumerate(order) if d in x.dynamic),
        )  # fmt: skip

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        def move(array: np.ndarray) -> np.ndarray:
            wide = [1] * len(shape)
            for d, n in zip(dims, array.shape, strict=True):
                wide[d] = n
            return np.broadcast_to(array.reshape(wide), shape)

        element = x.element
        if isinstance(element, Quantized) and element.axis is not None:
            element = replace(element, axis=dims[element.axis])
        return self.moved(
            "stablehlo.broadcast_in_dim", x, move, f"broadcast_dimensions = {integers(dims)}",
            element=element,
        )  # fmt: skip

    def slice(
        self,
        x: Value,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> Value:
        strides = strides or [1] * len(starts)
        at = tuple(map(slice, starts, limits, strides))
        return self.moved(
            "stablehlo.slice", x, lambda a: a[at],
            f"start_indices = {integers(starts)}, limit_indices = {integers(limits)}, "
            f"strides = {integers(strides)}",
        )  # fmt: skip

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        return self.moved(
            "stablehlo.reverse", x, lambda a: np.flip(a, tuple(dims)),
            f"dimensions = {integers(dims)}", dynamic=x.dynamic,
        )  # fmt: skip

    def pad(
        self,
        x: Value,
        value: Value,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int],
    ) -> Value:
        def move(array: np.ndarray) -> np.ndarray:
            inner = [(n - 1) * (i + 1) + 1 for n, i in zip(array.shape, interior, strict=True)]
            cut = tuple(
                slice(max(0, -b), n - max(0, -e)) for b, e, n in zip(low, high, inner, strict=True)
            )
            wide = np.full(inner, value.array)
            wide[tuple(slice(None, None, i + 1) for i in interior)] = array
            more = [(max(0, b), max(0, e)) for b, e in zip(low, high, strict=True)]
            return np.pad(wide[cut], more, constant_values=value.array)

        return self.moved(
            "stablehlo.pad", x, move,
            f"edge_padding_low = {integers(low)}, edge_padding_high = {integers(high)}, "
            f"interior_padding = {integers(interior)}", further_operands=[value],
        )  # fmt: skip

    def concatenate(self, values: Sequence[Value], dim: int) -> Value:
        array = np.concatenate([v.array for v in values], dim)
        bound = np.concatenate([np.broadcast_to(v.bound, v.shape) for v in values], dim)
        return self.write(
            "stablehlo.concatenate", values, values[0].element, array,
            f"dimension = {dim} : i64", bound=bound,
        )  # fmt: skip

    def rows(self, x: Value, indices: Value) -> Value:
        """A gather of rows, start indices clamped."""
        sizes = [1, *x.shape[1:]]
        offsets = list(range(1, len(x.shape)))
        attributes = (
            f"dimension_numbers = #stablehlo.gather<offset_dims = {offsets}, "
            "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
            f"slice_sizes = {integers(sizes)}, indices_are_sorted = false"
        )
        at = np.clip(indices.array[:, 0], 0, x.shape[0] - 1)
        return self.moved(
            "stablehlo.gather", x, lambda a: a[at], attributes, further_operands=[indices]
        )

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
        at = clamped_slices(starts, sizes, x.shape)
        return self.moved(
            "stablehlo.dynamic_slice", x, lambda a: a[at], f"slice_sizes = {integers(sizes)}",
            further_operands=starts,
        )  # fmt: skip

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Value:
        array = x.array.copy()
        array[clamped_slices(starts, update.shape, x.shape)] = update.array
        return self.write("stablehlo.dynamic_update_slice", [x, update, *starts], x.element, array)

    # Reductions

    def body(self, function: str, element: Element) -> str:
        """A region that combines two scalars."""
        a, b, c = self.fresh(), self.fresh(), self.fresh()
        kind = tensor((), element)
        return (
            f" ({{\n  ^bb0({a}: {kind}, {b}: {kind}):\n"
            f'    {c} = "stablehlo.{function}"({a}, {b}) : ({kind}, {kind}) -> {kind}\n'
            f'    "stablehlo.return"({c}) : ({kind}) -> ()\n  }})'
        )

    def reduce(
        self,
        function: str,
        x: Value,
        init: Value,
        dims: Sequence[int],
        wide: Element,
        element: Element | None = None,
    ) -> Value:
        """A reduction in the type `wide`, which no partial sum may leave.

        With `element` it is ``subquant.reduce``, whose result has a type of its own.
        """
        name = "stablehlo.reduce" if element is None else "subquant.reduce"
        combine = FUNCTIONS[function].reduce
        retained = [d for d in range(len(x.shape)) if d not in dims]
        dynamic = frozenset(at for at, d in enumerate(retained) if d in x.dynamic)
        bound: Any = 0.0
        if isinstance(wide, Quantized):
            values = wide.reals(settle(x.reals, wide))
            first = wide.reals(settle(init.reals, wide))
            reals = combine(values, axis=tuple(dims), initial=float(first))
            array = settle(reals, wide)
            if element is not None:
                array = settle(wide.reals(array), element)
        else:
            array = combine(x.array, axis=tuple(dims), initial=float(init.array))
            bounds = np.broadcast_to(x.bound, x.shape)
            if function == "add":
                count = x.array.size // max(1, array.size)
                bound = (count + 2) * ULP * np.sum(abs(x.array), axis=tuple(dims))
                bound = bound + np.sum(bounds, axis=tuple(dims))
            else:
                bound = np.max(bounds, axis=tuple(dims))
        return self.write(
            name, [x, init], wide if element is None else element, array,
            f"dimensions = {integers(dims)}", bound=bound, dynamic=dynamic,
            region=self.body(function, wide),
        )  # fmt: skip

    def reduce_window(
        self,
        function: str,
        x: Value,
        init: Value,
        wide: Quantized,
        window: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        dilation: Sequence[int] | None = None,
        base: Sequence[int] | None = None,
    ) -> Value:
        ones = [1] * len(window)
        fill = float(wide.reals(settle(init.reals, wide)))
        seen = window_positions(
            wide.reals(settle(x.reals, wide)), window, strides, padding, base or ones,
            dilation or ones, fill,
        )  # fmt: skip
        reals = FUNCTIONS[function].reduce(seen, axis=-1, initial=fill)
        attributes = (
            f"window_dimensions = {integers(window)}, window_strides = {integers(strides)}, "
            f"base_dilations = {integers(base or ones)}, "
            f"window_dilations = {integers(dilation or ones)}, "
            f"padding = dense<{_literal(np.array(padding))}> : tensor<{len(window)}x2xi64>"
        )
        return self.write(
            "stablehlo.reduce_window", [x, init], wide, settle(reals, wide), attributes,
            region=self.body(function, wide),
        )  # fmt: skip

    # Regions and calls

    def written(self, build: Build, inputs: Sequence[Value]) -> tuple[list[str], list[Value]]:
        """The operations that compute results of inputs, apart from the program; the results."""
        outside, self.program = self.program, []
        results = list(build(self, *inputs))
        operations, self.program = self.program, outside
        return operations, results

    def region(self, build: Build, inputs: Sequence[Value]) -> tuple[str, list[Value]]:
        """A block's text, and its results for its inputs."""
        named = [replace(v, name=self.fresh()) for v in inputs]
        operations, results = self.written(build, named)
        names = ", ".join(v.name for v in results)
        types = ", ".join(v.type for v in results)
        head = f"^bb0({', '.join(f'{v.name}: {v.type}' for v in named)}):" if named else ""
        text_lines = [head, *operations, f'"stablehlo.return"({names}) : ({types}) -> ()']
        return "{\n    " + "\n    ".join(text_lines) + "\n  }", results

    def wrote(self, text: str, results: Sequence[Value]) -> list[Value]:
        """Write an operation whose results are known, under new names."""
        base = self.fresh()
        count = f":{len(results)}" if len(results) > 1 else ""
        self.program.append(f"{base}{count} = {text}")
        return [replace(v, name=f"{base}#{at}" if count else base) for at, v in enumerate(results)]

    def loop(self, carried: Sequence[Value], until: int, build: Build) -> list[Value]:
        """A while loop: a counter from 0, and values that the body updates."""
        start = self.constant("i32", np.int64(0))
        values = [start, *carried]

        def condition(g: Graph, i: Value, *_: Value) -> list[Value]:
            return [g.compare("LT", i, g.constant("i32", np.int64(until)))]

        def body(g: Graph, i: Value, *rest: Value) -> list[Value]:
            one = g.constant("i32", np.int64(1))
            return [g.apply("add", [i, one], "i32"), *build(g, i, *rest)]

        before, _ = self.region(condition, values)
        after, results = self.region(body, values)
        for _ in range(until - 1):
            _, results = self.written(body, results)
        names = ", ".join(v.name for v in values)
        types = ", ".join(v.type for v in values)
        text = f'"stablehlo.while"({names}) ({before}, {after}) : ({types}) -> ({types})'
        return self.wrote(text, results)[1:]

    def case(self, index: Value, branches: Sequence[Build]) -> list[Value]:
        """A case, or an if where the index is a truth value; out of range is the last branch."""
        regions = [self.region(branch, []) for branch in branches]
        if index.element == "i1":
            chosen = 0 if index.array else 1
        else:
            chosen = int(index.array) if 0 <= index.array < len(branches) else len(branches) - 1
        name = "if" if index.element == "i1" else "case"
        results = regions[chosen][1]
        types = ", ".join(v.type for v in results)
        bodies = ", ".join(text for text, _ in regions)
        text = f'"stablehlo.{name}"({index.name}) ({bodies}) : ({index.type}) -> ({types})'
        return self.wrote(text, results)

    def call(self, name: str, build: Build, inputs: Sequence[Value]) -> list[Value]:
        """A call of a private function, which is written at its first call."""
        named = [replace(v, name=self.fresh()) for v in inputs]
        operations, results = self.written(build, named)
        types = ", ".join(v.type for v in results)
        head = ", ".join(f"{v.name}: {v.type}" for v in named)
        opening = f"func.func private @{name}({head}) -> ({types}) {{"
        if not any(f"@{name}(" in helper for helper in self.helpers):
            names = ", ".join(v.name for v in results)
            body = "\n".join(f"  {line}" for line in operations)
            self.helpers.append(f"{opening}\n{body}\n  return {names} : {types}\n}}")
        operands = ", ".join(v.name for v in inputs)
        kinds = ", ".join(v.type for v in inputs)
        return self.wrote(f"call @{name}({operands}) : ({kinds}) -> ({types})", results)


def clamped_slices(
    starts: Sequence[Value], sizes: Sequence[int], shape: Sequence[int]
) -> tuple[slice, ...]:
    """Slices of `sizes` at start indices that are clamped to a shape."""
    firsts = [int(np.clip(s.array, 0, e - n)) for s, n, e in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(first, first + n) for first, n in zip(firsts, sizes, strict=True))


def integers(values: Sequence[int]) -> str:
    """An array attribute of i64."""
    return f"array<i64: {', '.join(map(str, values))}>" if len(values) else "array<i64>"


def _literal(array: np.ndarray, real: bool = False) -> str:
    if array.ndim == 0:
        if array.dtype == bool:
            return str(bool(array)).lower()
        return f"{float(array):.9e}" if real else str(int(array))
    return "[" + ", ".join(_literal(each, real) for each in array) + "]"
