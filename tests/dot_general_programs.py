"""Programs of one ``dot_general``, with dimensions in drawn orders and many of one element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_DTYPES = {"u8": np.uint8, "i8": np.int8, "i32": np.int32, "f32": np.float32}
_KINDS = (("u8", "u8"), ("i8", "i8"), ("u8", "i8"), ("f32", "f32"), ("i32", "i32"))


@dataclass(frozen=True)
class Dot:
    """A program, its arguments, and its result as NumPy computes it in i64."""

    text: str
    arguments: tuple[np.ndarray, ...]
    expected: np.ndarray


def drawn_dot(seed: int) -> Dot:
    """A product with zero to two dimensions each of batch, M and N, and one or two of K.

    Operands of 8 bits are quantized and have zero points, so that sums of both correct the product.
    From a product of other elements the program subtracts the left operand's sums along K.
    """
    rng = np.random.default_rng(seed)
    elements = _KINDS[seed % len(_KINDS)]
    groups = _groups(rng)
    choices = [[1, 2, 4, 4, 5], [1, 4]][int(rng.integers(2))]
    extents = {loop: int(rng.choice(choices)) for group in groups for loop in group}
    batch, rows, columns, depth = groups
    left, right = ("".join(rng.permutation([*batch + free + depth])) for free in (rows, columns))
    rows, columns = (_in_order(loops, of) for loops, of in ((left, rows), (right, columns)))
    result = batch + rows + columns
    shapes = [[extents[loop] for loop in loops] for loops in (left, right, result)]
    arguments = tuple(map(_drawn_argument, [rng] * 2, elements, shapes))
    zero_points = [int(rng.choice([0, 3, 7])) if "8" in elements[0] else 0, 0]
    x, y = arguments[0].astype(np.int64) - zero_points[0], arguments[1].astype(np.int64)
    expected = np.einsum(f"{left},{right}->{result}", x, y)

    written = list(map(_written, elements, zero_points))
    written.append("!quant.uniform<i32:f32, 1.0>" if "8" in elements[0] else elements[0])
    types = list(map(_tensor, shapes, written))
    body = [
        f"%0 = stablehlo.dot_general %a, %b, "
        f"batching_dims = {_axes(left, batch)} x {_axes(right, batch)}, "
        f"contracting_dims = {_axes(left, depth)} x {_axes(right, depth)} "
        f": ({types[0]}, {types[1]}) -> {types[2]}"
    ]
    if "8" not in elements[0]:
        free = [loop for loop in left if loop not in depth]
        sum_type = _tensor([extents[loop] for loop in free], elements[0])
        body += [
            f"%c = stablehlo.constant dense<0> : tensor<{elements[0]}>".replace(
                "<0> : tensor<f", "<0.0> : tensor<f"
            ),
            f"%1 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = "
            f"{sorted(_axes(left, depth))} : ({types[0]}, tensor<{elements[0]}>) -> {sum_type}",
            f"%2 = stablehlo.broadcast_in_dim %1, dims = {[result.index(loop) for loop in free]} "
            f": ({sum_type}) -> {types[2]}",
            f"%r = stablehlo.subtract %0, %2 : {types[2]}",
        ]
        expected = expected - np.einsum(f"{left}->{batch + rows}", x).reshape(
            [extents[loop] for loop in batch + rows] + [1] * len(columns)
        )
    returned = "%0" if "8" in elements[0] else "%r"
    statements = "".join(f"  {line}\n" for line in body)
    text = f"func.func @main(%a: {types[0]}, %b: {types[1]}) -> {types[2]} {{\n{statements}"
    return Dot(f"{text}  return {returned} : {types[2]}\n}}", arguments, expected)


def _groups(rng):
    """Names of the dimensions: batch, M, N and K."""
    counts = [*rng.integers(0, 3, 3), rng.integers(1, 3)]
    return [
        "".join(names[:count])
        for names, count in zip(("ab", "mo", "np", "kl"), counts, strict=True)
    ]


def _in_order(loops, of):
    """Some of the dimensions of an operand, in its order, as the result has them."""
    return "".join(loop for loop in loops if loop in of)


def _drawn_argument(rng, element, shape):
    low, high = {"u8": (0, 256), "i8": (-128, 128)}.get(element, (-9, 10))
    return rng.integers(low, high, shape).astype(_DTYPES[element])


def _axes(loops, of):
    return [loops.index(loop) for loop in of]


def _written(element, zero_point):
    return f"!quant.uniform<{element}:f32, 1.0:{zero_point}>" if "8" in element else element


def _tensor(shape, element):
    return "tensor<" + "".join(f"{extent}x" for extent in shape) + f"{element}>"
