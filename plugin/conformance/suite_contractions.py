"""Programs of the suite: ``dot_general``, ``convolution`` and ``dynamic_conv``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from .program import Attributes, Program, Quantized, Tensor
from .suite_types import TYPES, element_of, generic, result_types, tensor

Axes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of the left and of the right operand."""

_Element = str | Quantized

_CHANNELS = Quantized("i8", (0.1, 0.02, 0.3, 0.004), axis=1)
_CHANNELS_OUT = Quantized("i32", (0.005, 0.001, 0.015, 0.0002), axis=1)
_CHANNELS_I8 = Quantized("i8", (0.5, 0.1, 1.5, 0.02), (1, -2, 3, 0), axis=1)
_CHANNELS_I4 = Quantized("i4", (0.1, 0.02, 0.3, 0.004), axis=1)

DOT: dict[str, tuple[_Element, _Element, _Element]] = {
    "i8-to-i8": ("i8", Quantized("i8", 0.07), "i8b"),
    "i8-to-i32": ("i8", Quantized("i8", 0.07), Quantized("i32", 0.0035)),
    "i8-to-i32-other-scale": ("i8", Quantized("i8", 0.07), "i32b"),
    "u8-to-u8": ("u8", Quantized("u8", 0.01), "u8b"),
    "i4-to-i4": ("i4", Quantized("i4", 0.3), "i4b"),
    "u4-to-u4": ("u4", Quantized("u4", 0.3), "u4b"),
    "i4-to-i8": ("i4", Quantized("i4", 0.3), "i8"),
    "i16-to-i32": ("i16", Quantized("i16", 0.002), "i32b"),
    "i16-to-i16": ("i16", Quantized("i16", 0.002), Quantized("i16", 0.5, 3)),
    "i8-saturates": ("i8", Quantized("i8", 0.07), "i8f"),
    "i8-ties": ("i8u", "i8u", "i8_4"),
    "i8-scale-near-one": ("i8u", Quantized("i8", 1.0005), "i32u"),
    "i8-narrow": ("i8n", "i8n", "i8n"),
    "f16": ("i8_f16", Quantized("i8", 0.1, expressed="f16"), "i8b_f16"),
    "bf16": ("i8_bf16", Quantized("i8", 0.125, expressed="bf16"), "i8b_bf16"),
    "f64": ("i8_f64", Quantized("i8", 0.1, expressed="f64"), "i8b_f64"),
    "axis-to-axis-i32": ("i8", _CHANNELS, _CHANNELS_OUT),
    "axis-to-axis-i8": ("i8", _CHANNELS, _CHANNELS_I8),
    "axis-to-tensor-i8": ("i8", _CHANNELS, "i8c"),
    "axis-i4-to-i8": (Quantized("i4", 0.5, 1), _CHANNELS_I4, _CHANNELS_I8),
    "hybrid": ("f32", "i8p", "f32"),
    "hybrid-u8": ("f32", "u8b", "f32"),
    "hybrid-i4": ("f32", "i4u", "f32"),
    "hybrid-axis": ("f32", _CHANNELS, "f32"),
    "hybrid-f16": ("f16", Quantized("i8", 0.1, expressed="f16"), "f16"),
    "hybrid-bf16": ("bf16", Quantized("i8", 0.1, expressed="bf16"), "bf16"),
    "hybrid-f64": ("f64", Quantized("i8", 0.1, expressed="f64"), "f64"),
}
"""Dots of 3x8 by 8x4: left, right and result type."""

DOT_DIMENSIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Axes, Axes]] = {
    "transposed-rhs": ((3, 8), (4, 8), ((), ()), ((1,), (1,))),
    "transposed-lhs": ((8, 3), (8, 4), ((), ()), ((0,), (0,))),
    "batch": ((2, 3, 5), (2, 5, 4), ((0,), (0,)), ((2,), (1,))),
    "batch-inside": ((3, 2, 5), (5, 4, 2), ((1,), (2,)), ((2,), (0,))),
    "two-batches": ((2, 3, 4, 5), (3, 2, 5), ((0, 1), (1, 0)), ((3,), (2,))),
    "two-contracted": ((3, 4, 5), (5, 4, 2), ((), ()), ((1, 2), (1, 0))),
    "vector-vector": ((9,), (9,), ((), ()), ((0,), (0,))),
    "matrix-vector": ((3, 9), (9,), ((), ()), ((1,), (0,))),
    "outer": ((3,), (4,), ((), ()), ((), ())),
    "nothing-contracted-of-zero": ((3, 0), (0, 2), ((), ()), ((1,), (0,))),
    "one-by-one": ((1, 1), (1, 1), ((), ()), ((1,), (0,))),
    "long": ((2, 515), (515, 3), ((), ()), ((1,), (0,))),
}
"""Shapes of both sides, batching dimensions and contracting dimensions."""


def dot_of(
    name: str, lhs: Tensor, rhs: Tensor, result: str | Quantized, batch: Axes, contract: Axes,
    **more: Any,
) -> Program:  # fmt: skip
    """Return a dot of two tensors with batching and contracting dimensions."""
    terms = int(np.prod([lhs.shape[axis] for axis in contract[0]], dtype=np.int64))
    attributes = {"batch": batch, "contract": contract, "terms": terms}
    numbers = ", ".join(
        f"{side}_{kind}_dimensions = {list(dims)}"
        for kind, pair in (("batching", batch), ("contracting", contract))
        for side, dims in zip(("lhs", "rhs"), pair, strict=True)
    )
    (out,) = result_types("dot_general", (lhs, rhs), attributes, ("f32",))
    dynamic = (0,) if 0 in lhs.dynamic else ()
    return Program(
        name, "dot_general", (lhs, rhs), (Tensor(out.shape, result, dynamic),),
        generic("dot_general", 2, f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"),
        "dot_general", attributes, interpreted=terms > 0, **more,
    )  # fmt: skip


def dots() -> Iterator[Program]:
    """Yield the dots: `DOT`, `DOT_DIMENSIONS`, and dots that IREE alone computes wrongly."""
    plain, weights = (((), ()), ((1,), (0,))), Quantized("i8", 0.07)
    rows: list[tuple[str, Tensor, Tensor, _Element, Axes, Axes]] = [
        (variant, Tensor((3, 8), element_of(left)), Tensor((8, 4), element_of(right)),
         element_of(out), *plain)
        for variant, (left, right, out) in DOT.items()
    ]  # fmt: skip
    for variant, (left_shape, right_shape, batch, contract) in DOT_DIMENSIONS.items():
        left, right = tensor(left_shape, "i8"), Tensor(right_shape, weights)
        rows += [
            (f"{variant}-to-i8", left, right, TYPES["i8c"], batch, contract),
            (f"{variant}-to-i32", left, right, TYPES["i32b"], batch, contract),
            (f"{variant}-hybrid", tensor(left_shape, "f32"), tensor(right_shape, "i8p"), "f32",
             batch, contract),
        ]  # fmt: skip
    dynamic = tensor((5, 8), "i8", (0,))
    rows += [
        ("dynamic-rows", dynamic, Tensor((8, 4), weights), TYPES["i8c"], *plain),
        ("dynamic-rows-axis", dynamic, Tensor((8, 4), _CHANNELS), _CHANNELS_I8, *plain),
    ]
    for variant, lhs, rhs, result, batch, contract in rows:
        yield dot_of(f"dot_general/{variant}", lhs, rhs, result, batch, contract)
    # The wrong numbers of reference/stablehlo-quantization.md, measured with IREE alone.
    for variant, x, y, rest in (
        ("wraps-instead-of-saturating", [[100]], [[100]], ("i8u", "i8_4", "i8u")),
        ("truncates-instead-of-rounding", [[7]], [[1]], ("i8u", "i8u", "i8_4")),
    ):
        a, b, c = (TYPES[name] for name in rest)
        yield dot_of(f"dot_general/{variant}", Tensor((1, 1), a), Tensor((1, 1), b), c, *plain,
                     inputs={0: x, 1: y})  # fmt: skip
    per_axis = Quantized("i8", (1.0, 2.0), axis=1), Quantized("i32", (1.0, 4.0), axis=1)
    yield dot_of("dot_general/first-scale-for-all", tensor((1, 2), "i8u"),
                 Tensor((2, 2), per_axis[0]), per_axis[1], *plain,
                 inputs={0: [[4, 4]], 1: [[4, 4], [4, 4]]})  # fmt: skip
    # A sub-channel weight under a dot.
    for variant, element, shape, contract in (
        ("blocks-i4", Quantized("i4", ((0.5,), (0.25,), (1.0,)), blocks=((0, 4), (1, 5))),
         (12, 5), ((1,), (0,))),
        ("blocks-u4-rhs-transposed",
         Quantized("u4", ((0.5, 0.25),) * 5, ((8, 7),) * 5, blocks=((0, 1), (1, 6))),
         (5, 12), ((1,), (1,))),
    ):  # fmt: skip
        dot = dot_of(f"dot_general/{variant}", tensor((3, 12), "f32"), Tensor(shape, "f32"), "f32",
                     ((), ()), contract)  # fmt: skip
        types = {"w": Tensor(shape, "f32")}
        product = dot.body.replace("%a1", "%w").replace("$a1", "$w")
        body = f"%w = quant.dcast %a1 : $a1 to $w\n{product}"
        arguments = (dot.arguments[0], Tensor(shape, element))
        yield replace(dot, arguments=arguments, body=body, types=types, interpreted=False)


CONVOLUTION: dict[str, Attributes] = {
    "nhwc-valid": {},
    "nhwc-same": {"padding": ((1, 1), (1, 1))},
    "nhwc-uneven-padding": {"padding": ((0, 2), (3, 1))},
    "nhwc-negative-padding": {"padding": ((-1, 1), (1, -1))},
    "nhwc-strided": {"strides": (2, 3), "padding": ((1, 1), (1, 1))},
    "nhwc-lhs-dilated": {"lhs_dilation": (2, 2), "padding": ((1, 1), (1, 1))},
    "nhwc-rhs-dilated": {"rhs_dilation": (2, 1)},
    "nhwc-everything": {"strides": (2, 1), "padding": ((2, 1), (1, 3)), "lhs_dilation": (2, 1),
                        "rhs_dilation": (1, 2)},
    "nhwc-reversed": {"reversal": (True, True)},
    "nhwc-transposed": {"reversal": (True, True), "lhs_dilation": (2, 2),
                        "padding": ((1, 1), (2, 2))},
    "nhwc-groups": {"groups": 2, "rhs": (2, 3, 1, 4)},
    "nhwc-depthwise": {"groups": 2, "rhs": (3, 3, 1, 2), "padding": ((1, 1), (1, 1))},
    "nhwc-depthwise-strided": {"groups": 2, "rhs": (3, 3, 1, 4), "strides": (2, 2),
                               "rhs_dilation": (1, 2), "padding": ((1, 1), (2, 1))},
    "nhwc-depthwise-transposed": {"groups": 2, "rhs": (2, 3, 1, 4), "lhs_dilation": (2, 2),
                                  "reversal": (True, True), "padding": ((1, 1), (2, 2))},
    "nhwc-batch-groups": {"batch_groups": 2, "lhs": (2, 5, 6, 2)},
    "nchw-oihw": {"layout": ("bf01", "oi01", "bf01"), "lhs": (1, 2, 5, 6), "rhs": (4, 2, 2, 3)},
    "nchw-oihw-padded": {"layout": ("bf01", "oi01", "bf01"), "lhs": (1, 2, 5, 6),
                         "rhs": (4, 2, 2, 3), "padding": ((1, 1), (2, 0))},
    "nhwc-ohwi": {"layout": ("b01f", "o01i", "b01f"), "rhs": (4, 2, 3, 2)},
    "mixed-layout": {"layout": ("f0b1", "1oi0", "01bf"), "lhs": (2, 5, 1, 6), "rhs": (3, 4, 2, 2),
                     "padding": ((1, 0), (0, 1))},
    "1d": {"layout": ("b0f", "0io", "b0f"), "lhs": (2, 7, 2), "rhs": (3, 2, 4),
           "padding": ((1, 1),)},
    "1d-dilated-groups": {"layout": ("bf0", "oi0", "bf0"), "lhs": (2, 4, 9), "rhs": (4, 2, 3),
                          "groups": 2, "rhs_dilation": (2,), "padding": ((2, 2),)},
    "3d": {"layout": ("b012f", "012io", "b012f"), "lhs": (1, 3, 4, 3, 2), "rhs": (2, 2, 2, 2, 4),
           "padding": ((1, 0), (0, 1), (1, 1))},
    "0d": {"layout": ("bf", "io", "bf"), "lhs": (3, 5), "rhs": (5, 4)},
    "pointwise": {"rhs": (1, 1, 2, 4)},
}  # fmt: skip
"""Convolutions of 1x5x6x2 (NHWC) by 2x3x2x4 (HWIO), and what differs from that."""

_OUT_AXIS = (0.1, 0.02, 0.3, 0.004)
CONVOLUTION_TYPES: dict[str, tuple[_Element, _Element, _Element]] = {
    "i8-to-i8": ("i8", Quantized("i8", 0.07), "i8c"),
    "i8-to-i32": ("i8", Quantized("i8", 0.07), Quantized("i32", 0.0035)),
    "rhs-zero-point": ("i8", Quantized("i8", 0.07, -6), "i8c"),
    "u8": ("u8", Quantized("u8", 0.02, 128), "u8b"),
    "i4": ("i4", Quantized("i4", 0.3), "i4b"),
    "i16-to-i32": ("i16", Quantized("i16", 0.002), "i32b"),
    "saturates": ("i8", Quantized("i8", 0.07), "i8f"),
    "bf16": ("i8_bf16", Quantized("i8", 0.125, expressed="bf16"), "i8b_bf16"),
    "f16": ("i8_f16", Quantized("i8", 0.1, expressed="f16"), "i8b_f16"),
    "f64": ("i8_f64", Quantized("i8", 0.1, 3, expressed="f64"), "i8b_f64"),
    "axis-to-axis-i8": ("i8", "axis-i8", "out-i8"),
    "axis-to-axis-i32": ("i8", "axis-i8", "out-i32"),
    "axis-to-tensor": ("i8", "axis-i8", "i8c"),
    "hybrid": ("f32", "i8", "f32"),
    "hybrid-axis": ("f32", "axis-i8", "f32"),
    "hybrid-bf16": ("bf16", "i8_bf16", "bf16"),
}
"""Left, kernel and result types; ``axis-`` and ``out-`` have a scale for each output channel."""


_OF_EACH = ("i8-to-i8", "i8-to-i32", "rhs-zero-point", "hybrid", "axis-to-axis-i8",
            "axis-to-axis-i32")  # fmt: skip
"""The types that each convolution has; the last two if there are four output channels."""


def convolution_of(
    name: str, row: Attributes, types: tuple[_Element, _Element, _Element]
) -> Program:
    """Return a convolution: a row of `CONVOLUTION` with left, kernel and result types."""
    layout = row.get("layout", ("b01f", "01io", "b01f"))
    count = len(layout[0]) - 2
    per_axis = {
        "axis-i8": Quantized("i8", _OUT_AXIS, axis=layout[1].index("o")),
        "out-i8": Quantized("i8", (0.5, 0.1, 1.5, 0.02), (1, -2, 3, 0), axis=layout[2].index("f")),
        "out-i32": Quantized("i32", tuple(s * 0.05 for s in _OUT_AXIS),
                             axis=layout[2].index("f")),
    }  # fmt: skip
    left, right, out = (
        per_axis.get(t) or element_of(t) if isinstance(t, str) else t for t in types
    )
    lhs = Tensor(row.get("lhs", (1, 5, 6, 2)), left)
    rhs = Tensor(row.get("rhs", (2, 3, 2, 4)), right)
    attributes = {**row, "layout": layout}
    attributes["terms"] = rhs.shape and int(np.prod(rhs.shape)) // rhs.shape[layout[1].index("o")]
    (result,) = result_types("convolution", (lhs, rhs), attributes, ("f32",))
    window = {
        "stride": [*row.get("strides", (1,) * count)],
        "pad": [[*pair] for pair in row.get("padding", ((0, 0),) * count)],
        "lhs_dilate": [*row.get("lhs_dilation", (1,) * count)],
        "rhs_dilate": [*row.get("rhs_dilation", (1,) * count)],
        "reverse": [*row.get("reversal", (False,) * count)],
    }
    numbers = "x".join(f"[{', '.join(part)}]" for part in layout[:2])
    numbers += f"->[{', '.join(layout[2])}]"
    text = ", ".join(f"{key} = {value}" for key, value in window.items()).lower()
    body = (
        f"%r0 = stablehlo.convolution(%a0, %a1) dim_numbers = {numbers}, "
        f"window = {{{text}}} {{batch_group_count = {row.get('batch_groups', 1)} : i64, "
        f"feature_group_count = {row.get('groups', 1)} : i64}} : ($a0, $a1) -> $r0"
    )
    return Program(name, "convolution", (lhs, rhs),
                   (Tensor(result.shape, out),), body, "convolution", attributes)  # fmt: skip


def convolutions() -> Iterator[Program]:
    """Yield the convolutions: each layout and window with several types."""
    for variant, row in CONVOLUTION.items():
        rhs, layout = row.get("rhs", (2, 3, 2, 4)), row.get("layout", ("b01f", "01io", "b01f"))
        channels = rhs[layout[1].index("o")] == len(_OUT_AXIS) and "batch_groups" not in row
        for name in _OF_EACH if channels else _OF_EACH[:4]:
            yield convolution_of(f"convolution/{variant}-{name}", row, CONVOLUTION_TYPES[name])
    same = CONVOLUTION["nhwc-same"]
    dilated = {**CONVOLUTION["nhwc-everything"], "rhs": (3, 2, 2, 4)}
    for name, types in CONVOLUTION_TYPES.items():
        variant, row = ("strided-dilated", dilated) if name in _OF_EACH else ("same", same)
        yield convolution_of(f"convolution/{variant}-{name}", row, types)
    for name in ("i8-to-i8", "i8-to-i32"):
        base = convolution_of("convolution/dynamic", same, CONVOLUTION_TYPES[name])
        attributes = (
            "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, "
            "batch_group_count = 1 : i64, feature_group_count = 1 : i64"
        )
        pads = {"p": ("1", "tensor<2x2xi64>")}
        body = generic("dynamic_conv", 2, attributes, constants=pads)
        yield replace(base, name=f"dynamic_conv/{name}", op="dynamic_conv", body=body)
