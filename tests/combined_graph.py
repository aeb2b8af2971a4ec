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

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from combined_arithmetic import FUNCTIONS, Arithmetic, Window, window_positions
from combined_values import (
    ULP,
    Element,
    Ints,
    Pairs,
    Quantized,
    Value,
    declared,
    function_text,
    integers,
    literal,
    names_of,
    settle,
    tensor,
    types_of,
)

Build = Callable[..., Sequence[Value]]
"""A function that writes operations of a `Graph`, given it and values, and returns the results."""


def clamped_slices(starts: Sequence[Value], sizes: Ints, shape: Ints) -> tuple[slice, ...]:
    """Slices of `sizes` at start indices that are clamped to a shape."""
    firsts = [int(np.clip(s.array, 0, e - n)) for s, n, e in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(first, first + n) for first, n in zip(firsts, sizes, strict=True))


class Graph(Arithmetic):
    """A function that is being written, and evaluated."""

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

    def reshape(self, x: Value, shape: Ints, element: Element | None = None) -> Value:
        return self.moved("stablehlo.reshape", x, lambda a: a.reshape(shape), "", element=element)

    def transpose(self, x: Value, order: Ints) -> Value:
        element = x.element
        if isinstance(element, Quantized) and element.axis is not None:
            element = replace(element, axis=list(order).index(element.axis))
        return self.moved(
            "stablehlo.transpose", x, lambda a: a.transpose(order),
            f"permutation = {integers(order)}", element=element,
            dynamic=frozenset(at for at, d in enumerate(order) if d in x.dynamic),
        )  # fmt: skip

    def broadcast(self, x: Value, shape: Ints, dims: Ints) -> Value:
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

    def slice(self, x: Value, starts: Ints, limits: Ints, strides: Ints | None = None) -> Value:
        strides = strides or [1] * len(starts)
        at = tuple(map(slice, starts, limits, strides))
        return self.moved(
            "stablehlo.slice", x, lambda a: a[at],
            f"start_indices = {integers(starts)}, limit_indices = {integers(limits)}, "
            f"strides = {integers(strides)}",
        )  # fmt: skip

    def reverse(self, x: Value, dims: Ints) -> Value:
        return self.moved(
            "stablehlo.reverse", x, lambda a: np.flip(a, tuple(dims)),
            f"dimensions = {integers(dims)}", dynamic=x.dynamic,
        )  # fmt: skip

    def pad(self, x: Value, value: Value, low: Ints, high: Ints, interior: Ints) -> Value:
        def move(array: np.ndarray) -> np.ndarray:
            inner = [(n - 1) * (i + 1) + 1 for n, i in zip(array.shape, interior, strict=True)]
            ends = zip(low, high, inner, strict=True)
            cut = tuple(slice(max(0, -b), n - max(0, -e)) for b, e, n in ends)
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

    def dynamic_slice(self, x: Value, starts: Sequence[Value], sizes: Ints) -> Value:
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
        dims: Ints,
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
            array = settle(combine(values, axis=tuple(dims), initial=float(first)), wide)
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
        window: Ints,
        strides: Ints,
        padding: Pairs,
        dilation: Ints | None = None,
        base: Ints | None = None,
    ) -> Value:
        ones = [1] * len(window)
        fill = float(wide.reals(settle(init.reals, wide)))
        steps = Window(strides, padding, base or ones, dilation or ones)
        seen = window_positions(wide.reals(settle(x.reals, wide)), window, steps, fill)
        reals = FUNCTIONS[function].reduce(seen, axis=-1, initial=fill)
        attributes = (
            f"window_dimensions = {integers(window)}, window_strides = {integers(strides)}, "
            f"base_dilations = {integers(base or ones)}, "
            f"window_dilations = {integers(dilation or ones)}, "
            f"padding = dense<{literal(np.array(padding))}> : tensor<{len(window)}x2xi64>"
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
        head = f"^bb0({declared(named)}):" if named else ""
        end = f'"stablehlo.return"({names_of(results)}) : ({types_of(results)}) -> ()'
        return "{\n    " + "\n    ".join([head, *operations, end]) + "\n  }", results

    def wrote(self, text: str, results: Sequence[Value]) -> list[Value]:
        """Write an operation whose results are known, under new names."""
        base = self.fresh()
        count = f":{len(results)}" if len(results) > 1 else ""
        self.program.append(f"{base}{count} = {text}")
        return [replace(v, name=f"{base}#{at}" if count else base) for at, v in enumerate(results)]

    def loop(self, carried: Sequence[Value], until: int, build: Build) -> list[Value]:
        """A while loop: a counter from 0, and values that the body updates."""
        values = [self.constant("i32", np.int64(0)), *carried]

        def condition(g: Graph, i: Value, *_: Value) -> list[Value]:
            return [g.compare("LT", i, g.constant("i32", np.int64(until)))]

        def body(g: Graph, i: Value, *rest: Value) -> list[Value]:
            one = g.constant("i32", np.int64(1))
            return [g.apply("add", [i, one], "i32"), *build(g, i, *rest)]

        before, _ = self.region(condition, values)
        after, results = self.region(body, values)
        for _ in range(until - 1):
            _, results = self.written(body, results)
        types = types_of(values)
        text = f'"stablehlo.while"({names_of(values)}) ({before}, {after}) : ({types}) -> ({types})'
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
        bodies = ", ".join(text for text, _ in regions)
        types = f"({index.type}) -> ({types_of(results)})"
        text = f'"stablehlo.{name}"({index.name}) ({bodies}) : {types}'
        return self.wrote(text, results)

    def call(self, name: str, build: Build, inputs: Sequence[Value]) -> list[Value]:
        """A call of a private function, which is written at its first call."""
        named = [replace(v, name=self.fresh()) for v in inputs]
        operations, results = self.written(build, named)
        if not any(f"@{name}(" in helper for helper in self.helpers):
            self.helpers.append(function_text(f"private @{name}", named, operations, results))
        types = f"({types_of(inputs)}) -> ({types_of(results)})"
        return self.wrote(f"call @{name}({names_of(inputs)}) : {types}", results)
