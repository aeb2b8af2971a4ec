"""Einstein sums of StableHLO, beside NumPy's."""

from __future__ import annotations

import re

import numpy as np
import pytest

import subquant
from devices import ON_DEVICES
from subquant.errors import UnsupportedError
from subquant.runtime import Device
from together import Together

EINSUMS = {
    "ab,bc->ac": ("4x17", "17x5"),
    "ab,cb->ca": ("4x17", "5x17"),
    "abc,acd->dab": ("2x3x5", "2x5x4"),
    "ab,cd->ac": ("3x5", "2x4"),
    "aab,bcd->ca": ("3x3x7", "7x2x2"),
    "aba,ab->": ("4x3x4", "4x3"),
    "...ab,...bc->c...a": ("6x2x3x5", "2x5x4"),
    "abb->a": ("3x6x6",),
    "ab->ba": ("3x5",),
    "a...->...": ("3x4x2",),
}
KINDS = {"i8": "i8", "ui8": "i32", "i8 into": "i32", "i16 into": "i32", "f32": "f32"}


def einsum(rule: str, kind: str) -> tuple[str, list[np.ndarray], np.ndarray]:
    """A program, arguments of it, and what NumPy makes of them."""
    element, into, result = kind.removesuffix(" into"), kind.endswith(" into"), KINDS[kind]
    rng = np.random.default_rng(4)
    shapes = [tuple(map(int, shape.split("x"))) for shape in EINSUMS[rule]]
    if element == "f32":  # small integers, whose sums are exact in any order
        arrays = [rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes]
    else:
        limits = np.iinfo(element.replace("ui", "uint") if "u" in element else f"int{element[1:]}")
        arrays = [
            rng.integers(limits.min, limits.max, shape, limits.dtype, endpoint=True)
            for shape in shapes
        ]
    dtype = np.dtype({"i8": "i1", "i32": "i4", "f32": "f4"}[result])
    expected = np.einsum(rule, *(array.astype(np.int64) for array in arrays)).astype(dtype)
    types = [f"tensor<{shape}x{element}>" for shape in EINSUMS[rule]]
    wide = [type_.replace(element, result) for type_ in types]
    names = [f"%x{number}" for number in range(len(types))]
    statements, values, types_ = [], names, types
    if not into and element != result:
        values, types_ = [f"%w{name[1:]}" for name in names], wide
        statements = [
            f"{value} = stablehlo.convert {name} : ({type_}) -> {other}"
            for value, name, type_, other in zip(values, names, types, wide, strict=True)
        ]
    form = "x".join([*map(str, expected.shape), result])
    op = "einsum" if len(types) == 2 else "unary_einsum"
    parameters = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    text = "\n  ".join([
        f"func.func @main({parameters}) -> tensor<{form}> {{",
        *statements,
        f'%r = "stablehlo.{op}"({", ".join(values)}) {{einsum_config = "{rule}"}} '
        f": ({', '.join(types_)}) -> tensor<{form}>",
        f"return %r : tensor<{form}>",
    ])  # fmt: skip
    return text + "\n}\n", arrays, expected


EINSUM_PROGRAMS = Together({
    f"{rule} {kind}": einsum(rule, kind)[0] for rule in EINSUMS for kind in KINDS
})  # fmt: skip


@ON_DEVICES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", EINSUMS)
@pytest.mark.share(50)
def test_einstein_sums(device: Device, device_name: str, rule: str, kind: str) -> None:
    _, arrays, expected = einsum(rule, kind)
    actual = np.asarray(EINSUM_PROGRAMS.function(f"{rule} {kind}", device)(*arrays))
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == expected.dtype


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("ab,bc", "expected 2 operands and an arrow"),
        ("ab->a", "expected 2 operands and an arrow"),
        ("ab,bc->ad", "expected that an operand has 'd', too"),
        ("abc,bc->ac", "expected 2 labels in 'abc'"),
        ("ab,ac->bc", "expected one size of 'a', got 4 and 17"),
        ("a2,2c->ac", "expected letters and one ellipsis in 'a2'"),
    ],
)
def test_einstein_sums_that_are_none(rule: str, message: str) -> None:
    text = einsum("ab,bc->ac", "f32")[0].replace("ab,bc->ac", rule)
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        subquant.compile(text)
