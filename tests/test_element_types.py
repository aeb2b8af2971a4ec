"""The table of element types: names, kinds, widths and dtypes."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from subquant.errors import UnsupportedError, UsageError
from subquant.numerics.element_types import BOOL, F32, I32, ElementType

FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@pytest.mark.parametrize("width", range(2, 65))
@pytest.mark.parametrize("letter", ["i", "u"])
def test_integers_of_every_width(letter: str, width: int) -> None:
    element = ElementType.parse(f"{letter}{width}")
    container = next(bits for bits in (8, 16, 32, 64) if bits >= width)
    assert str(element) == element.name == f"{letter}{width}"
    assert element.kind == {"i": "int", "u": "uint"}[letter]
    assert element.bits == width
    assert element.dtype == np.dtype(f"{letter}{container // 8}")
    assert element.is_integer
    assert not element.is_float
    assert ElementType.of_dtype(element.dtype) == ElementType.parse(f"{letter}{container}")


@pytest.mark.parametrize("name", ["i1", "u1"])
def test_truth_values(name: str) -> None:
    element = ElementType.parse(name)
    assert (element.kind, element.bits, element.dtype) == ("bool", 1, np.dtype(bool))
    assert not element.is_integer
    assert not element.is_float
    assert ElementType.of_dtype(np.dtype(bool)) == BOOL


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    element = ElementType.parse(name)
    dtype = np.dtype(FLOATS[name])
    assert (element.kind, element.bits, element.dtype) == ("float", 8 * dtype.itemsize, dtype)
    assert element.is_float
    assert not element.is_integer
    assert ElementType.of_dtype(dtype) is element


@pytest.mark.parametrize(
    ("text", "name"),
    [("i8", "i8"), ("si8", "i8"), ("ui16", "u16"), ("si64", "i64"), ("f32", "f32"), ("i1", "i1")],
)
def test_the_text_of_mlir(text: str, name: str) -> None:
    assert ElementType.of_mlir(text) is ElementType.parse(name)


@pytest.mark.parametrize("name", ["i0", "i65", "u99", "i08", "f8", "int8", "s8", "", "i8x"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected an element type among f16, bf16, f32, f64, i1"):
        ElementType.parse(name)


def test_other_dtypes_are_refused() -> None:
    for dtype in ("O", "U3", "c8", "M8[s]"):
        with pytest.raises(UnsupportedError, match="expected integers or floats, got the dtype"):
            ElementType.of_dtype(np.dtype(dtype))


def test_types_are_known_by_their_names() -> None:
    assert {F32: 1, I32: 2}[ElementType.parse("i32")] == 2
    assert F32 != I32


def test_a_type_is_one_object() -> None:
    """Types are compared by identity, so that a copy must be the type itself."""
    for name in ("i1", "u1", "i4", "u8", "i64", "f32", "bf16"):
        type_ = ElementType.parse(name)
        assert type_ is ElementType.parse(name)
        assert copy.deepcopy(type_) is type_
        assert pickle.loads(pickle.dumps(type_)) is type_
