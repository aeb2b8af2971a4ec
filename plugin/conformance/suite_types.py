"""Helpers of the suite's tables: named types, shapes, and the text of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .program import Attributes, Program, Quantized, Tensor
from .semantics import OPERATIONS

TYPES: dict[str, str | Quantized] = {
    "i8": Quantized("i8", 0.05, 3),
    "i8b": Quantized("i8", 0.11, -9),
    "i8c": Quantized("i8", 0.5),  # coarse: sums end in halves of a step
    "i8f": Quantized("i8", 0.003, 12),  # fine: results saturate
    "i8n": Quantized("i8", 0.07, bounds=(-127, 127)),
    "i8p": Quantized("i8", 0.0625),  # powers of two: ties are exact
    "i8u": Quantized("i8", 1.0),  # the integers themselves
    "i8_4": Quantized("i8", 4.0),
    "u8": Quantized("u8", 0.04, 128),
    "u8b": Quantized("u8", 0.1),
    "u8u": Quantized("u8", 1.0),
    "i4": Quantized("i4", 0.5, -1),
    "i4b": Quantized("i4", 0.75, 2),
    "i4u": Quantized("i4", 1.0),
    "u4": Quantized("u4", 0.25, 7),
    "u4b": Quantized("u4", 0.6),
    "i16": Quantized("i16", 0.001, -100),
    "i16b": Quantized("i16", 0.0025, 7),
    "u16": Quantized("u16", 0.0005, 32768),
    "i32": Quantized("i32", 1e-4, 5),
    "i32b": Quantized("i32", 0.0025),
    "i32u": Quantized("i32", 1.0),
    "i8_f16": Quantized("i8", 0.05, -3, expressed="f16"),
    "i8b_f16": Quantized("i8", 0.1, 2, expressed="f16"),
    "i8_bf16": Quantized("i8", 0.0625, 3, expressed="bf16"),
    "i8b_bf16": Quantized("i8", 0.125, -5, expressed="bf16"),
    "i8_f64": Quantized("i8", 0.05, 3, expressed="f64"),
    "i8b_f64": Quantized("i8", 0.12, 1, expressed="f64"),
    "i16_f64": Quantized("i16", 0.001, 9, expressed="f64"),
    "i32_f64": Quantized("i32", 1e-6, 9, expressed="f64"),
    "i32u_f16": Quantized("i32", 1.0, expressed="f16"),
    "i32_bf16": Quantized("i32", 0.0078125, expressed="bf16"),
    **{name: name for name in ("f16", "bf16", "f32", "f64", "i1")},
    **{f"int{width}": f"i{width}" for width in (8, 16, 32, 64)},
}
"""Named types of the suite: storage, scale, zero point, and the expressed type unless f32.

The letter after a storage type tells types apart: ``b`` has another scale and zero point, ``c`` is
coarse, ``f`` fine, ``n`` has a narrow range, ``p`` a power of two as scale, ``u`` the scale 1.
"""

SHAPES: tuple[Tensor, ...] = (
    Tensor((7,), "f32"),
    Tensor((3, 5), "f32"),
    Tensor((), "f32"),
    Tensor((4, 6), "f32", dynamic=(0,)),
    Tensor((2, 0, 3), "f32"),
    Tensor((33,), "f32"),
    Tensor((2, 3, 2), "f32", dynamic=(1, 2)),
)
"""Shapes of element-wise programs; the third is a scalar, the fourth and last are dynamic."""


def tensor(shape: Sequence[int], name: str, dynamic: tuple[int, ...] = ()) -> Tensor:
    """Return a tensor of a named element type."""
    return Tensor(tuple(shape), TYPES[name], dynamic)


def split(row: str) -> tuple[list[str], list[str]]:
    """Split ``"i8 u8 > i8b"`` into the names of operands and of results."""
    operands, _, results = row.partition(">")
    return operands.split(), results.split()


def result_types(
    op: str, arguments: Sequence[Tensor], attributes: Attributes, names: Sequence[str]
) -> tuple[Tensor, ...]:
    """Return the result types: named elements, with the shapes that the operation gives."""
    with np.errstate(all="ignore"):
        kinds = [np.int64 if a.element in ("i32", "i64") else np.float64 for a in arguments]
        inputs = [np.zeros(a.shape, kind) for a, kind in zip(arguments, kinds, strict=True)]
        arrays = OPERATIONS[op](inputs, attributes)
    return tuple(tensor(a.shape, name) for a, name in zip(arrays, names, strict=True))


def generic(
    op: str, operands: int, attributes: str = "", region: str = "",
    constants: Mapping[str, tuple[str, str]] | None = None,
) -> str:  # fmt: skip
    """Return the text of an operation in generic form with one result.

    `constants` are further operands, elements and type by name.
    """
    further = constants or {}
    values = ", ".join([*(f"%a{n}" for n in range(operands)), *(f"%{name}" for name in further)])
    types = ", ".join([*(f"$a{n}" for n in range(operands)), *(t for _, t in further.values())])
    properties = f" <{{{attributes}}}>" if attributes else ""
    body = f" ({region})" if region else ""
    definitions = [
        f"%{name} = stablehlo.constant dense<{elements}> : {type_}\n"
        for name, (elements, type_) in further.items()
    ]
    operation = f'%r0 = "stablehlo.{op}"({values}){properties}{body} : ({types}) -> $r0'
    return "".join(definitions) + operation


def one_operation(
    op: str, variant: str, arguments: Sequence[Tensor], result: Tensor, text: str = "",
    attributes: Attributes | None = None, *, region: str = "",
    constants: Mapping[str, tuple[str, str]] | None = None, **more: Any,
) -> Program:  # fmt: skip
    """Return the program of one operation with one result.

    `text` and `attributes` are the operation's attributes, for MLIR and for the oracle, whose
    operation has the same name.
    """
    body = generic(op, len(arguments), text, region, constants)
    return Program(
        f"{op}/{variant}", op, tuple(arguments), (result,), body, more.pop("oracle", op),
        attributes or {}, **more,
    )  # fmt: skip


def element_of(entry: str | Quantized) -> str | Quantized:
    """Look up a name; a type is taken as it is."""
    return TYPES[entry] if isinstance(entry, str) else entry


def region_body(operation: str, count: int = 1) -> str:
    """Return the region of a reduction over the scalar type ``$e``."""
    left = ", ".join(f"%x{n}: $e" for n in range(count))
    right = ", ".join(f"%y{n}: $e" for n in range(count))
    operations = [
        f'  %s{n} = "stablehlo.{operation}"(%x{n}, %y{n}) : ($e, $e) -> $e' for n in range(count)
    ]
    values = ", ".join(f"%s{n}" for n in range(count))
    types = ", ".join(["$e"] * count)
    return (
        f"{{\n^bb0({left}, {right}):\n" + "\n".join(operations)
        + f"\n  stablehlo.return {values} : {types}\n}}"
    )  # fmt: skip


def neutral(body: str, element: str | Quantized) -> int:
    """Return a storage value to start from: zero for a sum, one for a product, an end else."""
    assert isinstance(element, Quantized)
    low, high = element.range
    zero = int(element.zero_point)
    return {"add": zero, "multiply": zero + 1, "maximum": low, "minimum": high}[body]


I32_OF_I8 = Quantized("i32", 0.05, 3)
"""The accumulation type of sums of `i8`."""
