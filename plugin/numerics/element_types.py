"""Element types: the one table of their names, kinds, widths and NumPy dtypes.

Integers narrower than 8 bits, and those of odd widths, are held in the next wider dtype that NumPy
has. Names are MLIR's, with ``u`` in front of the width of an integer that is read as unsigned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError, UsageError

Array: TypeAlias = npt.NDArray[Any]
"""An array of NumPy's."""

AnyArray: TypeAlias = Any
"""Operand of a formula: a number, a NumPy array, or a traced value of a program
(`subquant.numerics.array_functions.Symbolic`). NumPy's functions are annotated for its own arrays
only, so the alias informs readers, not mypy."""

DType: TypeAlias = np.dtype[Any]
"""The dtype of a NumPy array."""

Kind = Literal["bool", "int", "uint", "float"]

_FLOATS: dict[str, npt.DTypeLike] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
_FLOAT_NAMES = {np.dtype(dtype): name for name, dtype in _FLOATS.items()}
FLOAT_DTYPES = frozenset(_FLOAT_NAMES)
"""The dtypes of floats of 16 bits or more."""
_MAX_BITS = 64
"""Bits of an integer type, at most."""


@dataclass(frozen=True, eq=False)
class ElementType:
    """Type of one element of a tensor. There is one object for each name: `parse` returns it.

    Args:
        name: ``i1``, ``i4``, ``u8``, ``f32``, ``bf16`` and so on.
        kind: boolean, signed or unsigned integer, or float.
        dtype: the NumPy dtype that holds it.
    """

    name: str
    kind: Kind
    bits: int
    dtype: DType
    is_integer: bool = field(init=False)
    is_float: bool = field(init=False)

    def __post_init__(self) -> None:
        # Formulas ask at each step: a field takes 0.02 us, a property 0.1.
        object.__setattr__(self, "is_integer", self.kind in ("int", "uint"))
        object.__setattr__(self, "is_float", self.kind == "float")

    @staticmethod
    def parse(name: str) -> ElementType:
        """Return the type of a name.

        Raises:
            UsageError: no element type has this name.
        """
        element = _ELEMENT_TYPES.get(name)
        if element is None:
            raise UsageError(
                f"expected an element type among {', '.join(_FLOATS)}, i1 to i{_MAX_BITS} and u1 "
                f"to u{_MAX_BITS}, got '{name}'"
            )
        return element

    @staticmethod
    def of_mlir(text: str) -> ElementType:
        """Return the type of MLIR's text, where ``si8`` is ``i8`` and ``ui8`` is ``u8``.

        Raises:
            UsageError: see `parse`.
        """
        letter = {"si": "i", "ui": "u"}.get(text[:2])
        return ElementType.parse(text if letter is None else letter + text[2:])

    @staticmethod
    @functools.cache
    def of_dtype(dtype: DType) -> ElementType:
        """Return the type that a NumPy dtype holds all of.

        Raises:
            UnsupportedError: a dtype of something else than integers and floats.
        """
        if dtype in _FLOAT_NAMES:
            return ElementType.parse(_FLOAT_NAMES[dtype])
        letters = {"b": "i", "i": "i", "u": "u"}
        if dtype.kind not in letters:
            raise UnsupportedError(f"expected integers or floats, got the dtype {dtype.name}")
        bits = 1 if dtype.kind == "b" else dtype.itemsize * 8
        return ElementType.parse(f"{letters[dtype.kind]}{bits}")

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], ElementType], tuple[str]]:
        """A copy is the same object."""
        return ElementType.parse, (self.name,)


def _float(name: str) -> ElementType:
    dtype = np.dtype(_FLOATS[name])
    return ElementType(name, "float", dtype.itemsize * 8, dtype)


def _integer(letter: str, bits: int) -> ElementType:
    if bits == 1:
        return ElementType(f"{letter}1", "bool", 1, np.dtype(np.bool_))
    container = next(width for width in (8, 16, 32, 64) if width >= bits)
    kind: Kind = "int" if letter == "i" else "uint"
    return ElementType(f"{letter}{bits}", kind, bits, np.dtype(f"{kind}{container}"))


_ELEMENT_TYPES = {
    element.name: element
    for element in (
        *map(_float, _FLOATS),
        *(_integer(letter, bits) for letter in ("i", "u") for bits in range(1, _MAX_BITS + 1)),
    )
}

BOOL = ElementType.parse("i1")
I8, I16 = ElementType.parse("i8"), ElementType.parse("i16")
I32, I64 = ElementType.parse("i32"), ElementType.parse("i64")
U8, U16, U32 = (ElementType.parse(name) for name in ("u8", "u16", "u32"))
F16, BF16 = ElementType.parse("f16"), ElementType.parse("bf16")
F32, F64 = ElementType.parse("f32"), ElementType.parse("f64")

SHARED_NAMES = {
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "BOOL": "i1",
    **{f"INT{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits}" for bits in (4, 8, 16, 32, 64)},
}
"""Element types by the names that ONNX and TensorFlow Lite have in common."""
