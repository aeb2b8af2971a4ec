"""Contractions, elementwise functions and casts of programs, each with its result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from combined_values import (
    ULP,
    Ambiguous,
    Element,
    Ints,
    Pairs,
    Quantized,
    Value,
    Writer,
    integers,
    literal,
    settle,
    settle_f32,
)

AxesOfBoth = tuple[Ints, Ints]
"""Axes of the left and of the right operand."""


class Window(NamedTuple):
    """The steps of a window over a tensor, and the dilation of the tensor and of the window."""

    strides: Ints
    padding: Pairs
    base: Ints
    dilation: Ints


def window_positions(x: np.ndarray, size: Ints, window: Window, fill: float) -> np.ndarray:
    """Return the elements of the windows of a tensor: window axes, then positions."""
    strides, padding, base, dilation = window
    inner = [(n - 1) * b + 1 for n, b in zip(x.shape, base, strict=True)]
    padded = np.full([low + n + high for n, (low, high) in zip(inner, padding, strict=True)], fill)
    starts = zip(inner, base, padding, strict=True)
    padded[tuple(slice(low, low + n, b) for n, b, (low, _) in starts)] = x
    counts = [
        (n - (w - 1) * d - 1) // s + 1
        for n, w, d, s in zip(padded.shape, size, dilation, strides, strict=True)
    ]
    seen = [
        padded[
            tuple(
                slice(at * d, at * d + (c - 1) * s + 1, s)
                for at, d, c, s in zip(position, dilation, counts, strides, strict=True)
            )
        ]
        for position in itertools.product(*map(range, size))
    ]
    return np.stack(seen, -1)


def convolve(
    x: np.ndarray, w: np.ndarray, window: Window, groups: int = 1, reversal: Sequence[bool] = ()
) -> np.ndarray:
    """A convolution of (batch, feature, space...) with (output, input, space...)."""
    w = np.flip(w, [2 + d for d, r in enumerate(reversal) if r])
    strides, padding, base, dilation = window
    whole = Window((1, 1, *strides), [(0, 0)] * 2 + [*padding], (1, 1, *base), (1, 1, *dilation))
    seen = window_positions(x, (1, 1, *w.shape[2:]), whole, 0.0)
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


class Arithmetic(Writer):
    """Operations that compute numbers, evaluated as they are written."""

    # Contractions

    def dot(
        self,
        a: Value,
        b: Value,
        contracting: AxesOfBoth,
        element: Element,
        batching: AxesOfBoth = ((), ()),
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
        strides: Ints = (1, 1),
        padding: Pairs = ((0, 0), (0, 0)),
        base: Ints = (1, 1),
        dilation: Ints = (1, 1),
        groups: int = 1,
        batch_groups: int = 1,
        reversal: Sequence[bool] = (False, False),
    ) -> Value:
        space = "".join(str(d) for d in range(len(strides)))
        order_x = [layout.index(c) for c in "bf" + space]
        order_w = [kernel.index(c) for c in "oi" + space]
        window = Window(strides, padding, base, dilation)
        back = [("bf" + space).index(c) for c in layout]

        def product(a: Any, b: Any) -> np.ndarray:
            a = np.broadcast_to(a, x.shape).transpose(order_x)
            b = np.broadcast_to(b, w.shape).transpose(order_w)
            batches, kernels = (np.split(v, batch_groups, 0) for v in (a, b))
            pieces = [
                convolve(*each, window, groups, reversal)
                for each in zip(batches, kernels, strict=True)
            ]
            return np.concatenate(pieces, 1).transpose(back)

        reals = product(x.reals, w.reals)
        depth = int(np.prod(w.shape)) // w.shape[kernel.index("o")]
        array, bound = self.contracted(x, w, reals, product, depth, element)
        names = [", ".join(each) for each in (layout, kernel, layout)]
        lows_highs = literal(np.array(padding))
        attributes = (
            f"dimension_numbers = #stablehlo.conv<[{names[0]}]x[{names[1]}]->[{names[2]}]>, "
            f"window_strides = {integers(strides)}, "
            f"padding = dense<{lows_highs}> : tensor<{len(strides)}x2xi64>, "
            f"lhs_dilation = {integers(base)}, rhs_dilation = {integers(dilation)}, "
            f"window_reversal = array<i1: {', '.join(str(r).lower() for r in reversal)}>, "
            f"feature_group_count = {groups} : i64, batch_group_count = {batch_groups} : i64"
        )
        return self.write(
            "stablehlo.convolution", [x, w], element, array, attributes,
            bound=bound, dynamic=frozenset({layout.index("b")} & x.dynamic),
        )  # fmt: skip

    # Elementwise

    def apply(self, function: str, operands: Sequence[Value], element: Element) -> Value:
        """An elementwise function of StableHLO."""
        with np.errstate(all="ignore"):
            reals = FUNCTIONS[function](*(v.reals for v in operands))
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
        return self.write(f"stablehlo.{function}", operands, element, array, bound=bound)

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
        return self.write("stablehlo.clamp", [low, x, high], element, array, bound=x.bound)

    def compare(self, direction: str, a: Value, b: Value) -> Value:
        test = {"LT": np.less, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal}
        bound = np.add(a.bound, b.bound)
        if np.any(abs(a.reals - b.reals) <= bound) and np.any(bound > 0):
            raise Ambiguous
        array = test[direction](a.reals, b.reals)
        attributes = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return self.write("stablehlo.compare", [a, b], "i1", array, attributes)

    def select(self, predicate: Value, a: Value, b: Value, element: Element) -> Value:
        reals = np.where(predicate.array, a.reals, b.reals)
        array = settle(reals, element) if isinstance(element, Quantized) else reals
        bound = np.where(predicate.array, a.bound, b.bound)
        return self.write("stablehlo.select", [predicate, a, b], element, array, bound=bound)

    # Casts

    def requantize(self, x: Value, element: Quantized) -> Value:
        return self.write("stablehlo.uniform_quantize", [x], element, settle(x.reals, element))

    def quantize(self, x: Value, element: Quantized, dialect: str = "quant") -> Value:
        name = {"quant": "quant.qcast", "stablehlo": "stablehlo.uniform_quantize"}[dialect]
        if np.all(x.bound == 0):
            array = settle_f32(x.array, element)
        else:
            scales, zeros = (element.spread(v, x.shape) for v in (element.scales, element.zeros))
            scaled = abs(x.array) + abs(scales * zeros)
            array = settle(x.array, element, x.bound + 4 * ULP * scaled)
        return self.write(name, [x], element, array)

    def dequantize(self, x: Value, dialect: str = "quant") -> Value:
        name = {"quant": "quant.dcast", "stablehlo": "stablehlo.uniform_dequantize"}[dialect]
        reals = x.reals
        bound = np.where(reals.astype(np.float32) == reals, 0.0, ULP * abs(reals))
        return self.write(name, [x], "f32", reals, bound=bound)

    def dequantize_by(
        self,
        x: Value,
        scales: Value,
        blocks: Ints,
        zeros: Value | None = None,
        offsets: Value | None = None,
    ) -> Value:
        """``subquant.dequantize``: ``(storage - zero point) * scale + offset``."""

        def spread(array: Any, shape: Ints) -> np.ndarray:
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
