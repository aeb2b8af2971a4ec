"""Programs of the suite: reductions, with wider accumulation types in the body, and batch_norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy.typing as npt

from .program import Attributes, Program, Quantized, Tensor
from .suite_types import (
    I32_OF_I8,
    TYPES,
    element_of,
    generic,
    neutral,
    one_operation,
    region_body,
    result_types,
    tensor,
)

_Element = str | Quantized
REDUCE: dict[str, tuple[str, _Element, _Element, tuple[int, ...], tuple[int, ...]]] = {
    "add-i8-in-i32": ("add", "i8", I32_OF_I8, (4, 300), (1,)),
    "add-i8-in-i32-no-zero-point": ("add", "i8u", "i32u", (3, 200), (1,)),
    "add-i8-in-i32-other-scale": ("add", "i8", Quantized("i32", 0.01, -7), (4, 30), (1,)),
    "add-u8-in-i32": ("add", "u8u", Quantized("i32", 1.0, 5), (300,), (0,)),
    "add-i4-in-i32": ("add", "i4u", "i32u", (3, 50), (0,)),
    "add-i8-in-i16": ("add", "i8u", Quantized("i16", 1.0), (3, 20), (1,)),
    "add-i8-in-i8": ("add", Quantized("i8", 0.5, 1), Quantized("i8", 0.5, 1), (2, 5), (1,)),
    "add-i16-in-i32": ("add", Quantized("i16", 1.0), "i32u", (2, 40), (1,)),
    "add-i32": ("add", "i32u", "i32u", (2, 12), (1,)),
    "add-all-axes": ("add", "i8u", "i32u", (3, 4, 5), (0, 1, 2)),
    "add-two-axes": ("add", "i8u", "i32u", (3, 4, 5), (0, 2)),
    "add-nothing": ("add", "i8u", "i32u", (3, 0), (1,)),
    "add-f16": ("add", Quantized("i8", 1.0, expressed="f16"), "i32u_f16", (2, 90), (1,)),
    "add-f64": ("add", "i8_f64", Quantized("i32", 0.05, 3, expressed="f64"), (2, 90), (1,)),
    "maximum-i8": ("maximum", "i8", "i8", (3, 20), (1,)),
    "maximum-i8-in-i32": ("maximum", "i8", I32_OF_I8, (3, 20), (1,)),
    "maximum-u8": ("maximum", "u8", "u8", (3, 20), (0,)),
    "maximum-i16": ("maximum", "i16", "i16", (3, 20), (0,)),
    "minimum-i8": ("minimum", "i8", "i8", (3, 20), (1,)),
    "minimum-i4": ("minimum", "i4", "i4", (3, 9), (1,)),
    "minimum-i8-in-i32": ("minimum", "i8", I32_OF_I8, (3, 20), (0,)),
    "multiply-i8-in-i32": ("multiply", "i8u", "i32u", (5, 4), (1,)),
    "multiply-i8": ("multiply", "i8u", "i8u", (3, 3), (1,)),
}  # fmt: skip
"""Body, operand type, accumulation and result type, shape, reduced dimensions."""

WINDOWS: dict[str, Attributes] = {
    "plain": {"window_dimensions": (2, 3)},
    "strided": {"window_dimensions": (2, 2), "window_strides": (2, 2)},
    "padded": {"window_dimensions": (3, 3), "padding": ((1, 1), (0, 2))},
    "base-dilated": {"window_dimensions": (2, 2), "base_dilations": (2, 1)},
    "window-dilated": {"window_dimensions": (2, 2), "window_dilations": (2, 3)},
}
WINDOW_TYPES: dict[str, tuple[str, str | Quantized, str | Quantized]] = {
    "add-i8-in-i32": ("add", "i8", I32_OF_I8),
    "add-u8-in-i32": ("add", "u8u", "i32u"),
    "maximum-i8": ("maximum", "i8", "i8"),
    "minimum-u8": ("minimum", "u8", "u8"),
    "maximum-i8-in-i32": ("maximum", "i8", I32_OF_I8),
}


def _window_text(row: Attributes) -> str:
    texts = []
    for key in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if key in row:
            texts.append(f"{key} = array<i64: {', '.join(map(str, row[key]))}>")
    if "padding" in row:
        pairs = [[*pair] for pair in row["padding"]]
        texts.append(f"padding = dense<{pairs}> : tensor<2x2xi64>")
    return ", ".join(texts)


def reduce_of(
    name: str, body: str, source: _Element, target: _Element, shape: tuple[int, ...],
    axes: tuple[int, ...], bounds: tuple[int, int] | None = None,
) -> Program:  # fmt: skip
    """Return a reduction over `axes`, accumulated in `target`."""
    arguments = (Tensor(shape, source), Tensor((), source))
    attributes = {"dimensions": axes, "body": body}
    (out,) = result_types("reduce", arguments, attributes, ("f32",))
    dims = f"dimensions = array<i64: {', '.join(map(str, axes))}>"
    inputs: dict[int, npt.ArrayLike] = {1: [neutral(body, source)]}
    if bounds is not None:
        inputs[0] = bounds
    return Program(name, "reduce", arguments, (Tensor(out.shape, target),),
                   generic("reduce", 2, dims, region_body(body)), "reduce", attributes,
                   {"e": Tensor((), target)}, inputs)  # fmt: skip


def window_of(name: str, row: Attributes, types: tuple[str, _Element, _Element]) -> Program:
    """Return a ``reduce_window`` of a row of `WINDOWS`: body, operand type, accumulation type."""
    body, source, target = types
    arguments = (Tensor((5, 6), source), Tensor((), source))
    attributes = {**row, "body": body}
    (out,) = result_types("reduce_window", arguments, attributes, ("f32",))
    return Program(name, "reduce_window", arguments, (Tensor(out.shape, target),),
                   generic("reduce_window", 2, _window_text(row), region_body(body)),
                   "reduce_window", attributes, {"e": Tensor((), target)},
                   {1: [neutral(body, source)]})  # fmt: skip


def reductions() -> Iterator[Program]:
    """Yield the reductions of `REDUCE`, windows, and normalizations."""
    for variant, (body, operand, accumulator, shape, axes) in REDUCE.items():
        source, target = element_of(operand), element_of(accumulator)
        # A sum that saturates on the way, or a product that rounds, would depend on the order.
        bounds = (-3, 3) if body == "multiply" else (-20, 20)
        narrow = body == "multiply" or variant == "add-i8-in-i8"
        yield reduce_of(f"reduce/{variant}", body, source, target, shape, axes,
                        bounds if narrow else None)  # fmt: skip
    one, wide = Quantized("i8", 0.05, 3), I32_OF_I8
    two = (Tensor((3, 40), one), Tensor((3, 40), one), Tensor((), one), Tensor((), one))
    text = generic("reduce", 4, "dimensions = array<i64: 1>", region_body("add", count=2))
    text = text.replace("%r0 =", "%r:2 =").replace("-> $r0", "-> ($r0, $r1)")
    yield Program("reduce/two-operands", "reduce", two, (Tensor((3,), wide),) * 2,
                  f"{text}\n{_result_names(2)}", "reduce", {"dimensions": (1,), "body": "add"},
                  {"e": Tensor((), wide)}, {2: [3], 3: [3]})  # fmt: skip
    for variant, row in WINDOWS.items():
        for name, (body, operand, accumulator) in WINDOW_TYPES.items():
            types = (body, element_of(operand), element_of(accumulator))
            yield window_of(f"reduce_window/{variant}-{name}", row, types)
    yield from _select_and_scatters()
    yield from _batch_norms()


def _select_and_scatters() -> Iterator[Program]:
    compare = (
        '{{\n^bb0(%x: $s, %y: $s):\n  %p = "stablehlo.compare"(%x, %y) '
        "<{{comparison_direction = #stablehlo<comparison_direction {direction}>}}> : "
        "($s, $s) -> tensor<i1>\n  stablehlo.return %p : tensor<i1>\n}}"
    )
    rows = (
        ("i8", "i8", "i8", "GE", (2, 2)), ("i8-in-i32", "i8", I32_OF_I8, "GE", (2, 2)),
        ("i8-least", "i8", "i8", "LE", (2, 2)), ("u8", "u8", "u8", "GE", (2, 3)),
        ("i16", "i16", "i16", "GE", (2, 2)),
    )  # fmt: skip
    for variant, operand, accumulator, direction, window in rows:
        source, target = element_of(operand), element_of(accumulator)
        row = {"window_dimensions": window, "window_strides": window}
        small = tuple(n // w for n, w in zip((4, 6), window, strict=True))
        arguments = (Tensor((4, 6), source), Tensor(small, source), Tensor((), source))
        regions = f"{compare.format(direction=direction)}, {region_body('add')}"
        yield one_operation("select_and_scatter", variant, arguments, Tensor((4, 6), target),
                            _window_text(row), {**row, "select": direction, "body": "add"},
                            region=regions, inputs={2: [neutral("add", source)]},
                            types={"e": Tensor((), target), "s": Tensor((), source)})  # fmt: skip


def _batch_norms() -> Iterator[Program]:
    for name in ("i8", "u8", "i16", "i8_bf16"):
        for feature, shape in ((1, (3, 4)), (1, (2, 3, 5))):
            count = shape[feature]
            x, v = tensor(shape, name), tensor((count,), name)
            attribute = f"epsilon = 0.5 : f32, feature_index = {feature} : i64"
            attributes = {"epsilon": 0.5, "feature_index": feature}
            element = TYPES[name]
            assert isinstance(element, Quantized)
            zero = int(element.zero_point)
            positive = (zero, element.range[1])
            rank = len(shape)
            yield one_operation("batch_norm_inference", f"{name}-{rank}d", (x, v, v, v, v), x,
                                attribute, attributes, inputs={4: positive},
                                interpreted=False)  # fmt: skip
            if rank == 3 and name != "i8":
                continue
            for op, arguments, inputs in (
                ("batch_norm_training", (x, v, v), {}),
                ("batch_norm_grad", (x, v, v, v, x), {3: positive}),
            ):
                text = generic(op, len(arguments), attribute).replace("%r0", "%r:3", 1)
                text = text.replace("-> $r0", "-> ($r0, $r1, $r2)")
                yield Program(f"{op}/{name}-{rank}d", op, arguments, (x, v, v),
                              f"{text}\n{_result_names(3)}", op, attributes, {}, inputs,
                              interpreted=False)  # fmt: skip


def _result_names(count: int) -> str:
    """Name the results of an operation with several, through reshapes."""
    return "\n".join(
        f'%r{n} = "stablehlo.reshape"(%r#{n}) : ($r{n}) -> $r{n}' for n in range(count)
    )
