"""Arrays on the command line: parsing, reading ``.npy`` files, formatting and comparison."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..core.files import open_input
from ..errors import InputError, UsageError, expected_name, quoted
from ..numerics.element_types import Array, ElementType
from ..signature import ValueType

_NPY_MAGIC = b"\x93NUMPY"
_LITERAL = re.compile(r"((?:\d+x)*)([a-z]+\d+)(?:=(.*))?", re.DOTALL)
_MAX_RANK = 64
"""The greatest number of axes of a NumPy array."""
_MAX_SIZE_DIGITS = 60
"""The number of digits of a size: Python takes long to parse and print integers of thousands."""
_ELEMENTS = ("f32", "f16", "bf16", "f64", "i1", "i4", "i8", "i16", "i32", "i64", "ui8", "ui16")
_LITERAL_EXAMPLE = "2x2xf32=1,2,3,4"
"""The literal that an error shows."""


def split_name(text: str) -> tuple[str, str]:
    """Split ``name=@file.npy`` and ``name=4xf32=1,2,3,4``; the name is "" where there is none."""
    name, separator, value = text.partition("=")
    is_literal = "=" in value and _LITERAL.fullmatch(value.strip())
    if separator and name and (value.startswith("@") or is_literal):
        return name, value
    return "", text


def parse_input(text: str) -> Array:
    """Read ``@file.npy`` or ``2x2xf32=1,2,3,4`` (one number fills the shape; brackets are ignored).

    Raises:
        UsageError: the text is neither.
        InputError: the file cannot be read.
    """
    if text.startswith("@"):
        return read_npy(text[1:])
    match = _LITERAL.fullmatch(text.strip())
    if match is None:
        hint = f"; did you mean {quoted('@' + text)}?" if text.endswith(".npy") else ""
        raise UsageError(
            f"expected @file.npy or a literal such as {_LITERAL_EXAMPLE}, got {quoted(text)}{hint}"
        )
    dims, element, data = match.groups()
    try:
        dtype = ElementType.of_mlir(element).dtype
    except UsageError:
        raise UsageError(
            f"element type {quoted(element)} in {quoted(text)} is not known; "
            f"{expected_name(element, _ELEMENTS)}"
        ) from None
    shape = _shape_of(dims, text)
    if data is None:
        raise UsageError(f"expected '=' and numbers after {quoted(text)}")
    words = re.sub(r"[\[\],]", " ", data).split()
    try:
        numbers = [int(w, 0) if dtype.kind in "iu" else float(w) for w in words]
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            too_large = [n for n in numbers if not info.min <= n <= info.max]
            if too_large:
                raise UsageError(
                    f"{quoted(str(too_large[0]))[1:-1]} does not fit {element} in {quoted(text)}"
                )
        with np.errstate(over="ignore"):  # large floats become infinite
            flat = np.array(numbers, dtype)
    except ValueError:
        raise UsageError(f"expected numbers of type {element} in {quoted(text)}") from None
    count = math.prod(shape)
    if flat.size not in (1, count):
        raise UsageError(
            f"expected {quoted(str(count))[1:-1]} numbers (or one for all), got {flat.size} in "
            f"{quoted(text)}"
        )
    try:
        return np.broadcast_to(flat, (count,)).reshape(shape).copy()
    except (MemoryError, ValueError):
        elements = f"{quoted(str(count))[1:-1]} elements"
        raise UsageError(f"{elements} of type {element} do not fit in memory") from None


def literal_of(type_: ValueType) -> str:
    """Return the literal that `parse_input` accepts for a type: ``2x?xf32=...``."""
    dims = "".join(f"{'?' if size is None else size}x" for size in type_.shape or ())
    return f"{dims}{type_.element}=..."


def _shape_of(dims: str, text: str) -> tuple[int, ...]:
    """Return the dimension sizes of ``2x2x``; UsageError for too many or too large ones."""
    sizes = dims.split("x")[:-1]
    if len(sizes) > _MAX_RANK:
        raise UsageError(
            f"an array has at most {_MAX_RANK} axes, got {len(sizes)} in {quoted(text)}"
        )
    for size in sizes:
        if len(size) > _MAX_SIZE_DIGITS:
            raise UsageError(f"the size {quoted(size)} in {quoted(text)} is too large")
    return tuple(map(int, sizes))


def read_npy(path: str | Path) -> Array:
    """Read a ``.npy`` file (no pickles; two-byte void elements are bf16), or raise InputError.

    The header is a Python literal, and NumPy lets each exception of parsing it escape (`tokenize`,
    `ast`, sorting, sizes beyond 64 bits). Each is therefore reported as an error of the file.
    """
    try:
        with open_input(path) as file:
            if file.read(len(_NPY_MAGIC)) != _NPY_MAGIC:
                raise InputError(
                    f"cannot read '{path}': not a .npy file (one array); write it with numpy.save"
                )
            file.seek(0)
            try:
                array = np.asarray(np.load(file, allow_pickle=False))
            except OSError:
                raise
            except Exception as error:
                raise InputError(f"cannot read '{path}': {_npy_problem(error)}") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from None
    if array.dtype == np.dtype("V2"):
        return np.asarray(array.view(ml_dtypes.bfloat16))
    if array.dtype.kind not in "biufc":
        raise InputError(
            f"cannot read '{path}': it has elements of dtype {quoted(str(array.dtype))}, expected "
            "numbers"
        )
    return array


def _npy_problem(error: Exception) -> str:
    """Return NumPy's message if it is one of its checks, and else that the header is wrong."""
    message = str(error).partition("\n")[0]
    if "allow_pickle" in message:
        return "an array of Python objects, expected numbers"
    if isinstance(error, MemoryError):
        return "the array does not fit in memory"
    if isinstance(error, (ValueError, EOFError)) and message and "unpack" not in message:
        return message if len(message) <= 200 else f"{message[:200]}..."
    return "its header does not describe an array"


def to_npy(array: Array) -> bytes:
    """Return the bytes of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def format_array(array: Array, limit: int = 1024) -> str:
    """Format an array as IREE's tools do: ``2x2xf32=[1 2][3 4]``, cut after `limit` elements."""
    try:
        name = ElementType.of_dtype(array.dtype).name
    except UsageError:
        name = str(array.dtype)
    shape = "".join(f"{n}x" for n in array.shape)
    remaining = [limit]

    def show(part: Array) -> str:
        if part.ndim == 0:
            remaining[0] -= 1
            value = part[()]
            if part.dtype.kind in "iub":
                return str(int(value))
            if not 1e-4 <= abs(float(value)) < 1e7 and float(value) != 0:
                return str(value)
            # The shortest text that reads back as the same number (bf16: as the same f32).
            number: Any = np.float32(value) if part.dtype == ml_dtypes.bfloat16 else value
            return np.format_float_positional(number, trim="-")
        pieces = []
        for item in part:
            if remaining[0] <= 0:
                pieces.append("...")
                break
            pieces.append(show(np.asarray(item)))
        if part.ndim == 1:
            return " ".join(pieces)
        return "".join(f"[{piece}]" for piece in pieces)

    return f"{shape}{name}={show(array)}"


def difference(got: Array, expected: Array, *, atol: float = 0.0, rtol: float = 0.0) -> str | None:
    """Compare two arrays; return a description of the difference, or None.

    Args:
        got, expected: the arrays; shape and dtype must be the same.
        atol, rtol: for floats, ``|got - expected| <= atol + rtol * |expected|``. With both 0 the
            bits must be equal (any NaN equals any NaN).
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return (
            f"expected shape {expected.shape} of {expected.dtype}, got {got.shape} of {got.dtype}"
        )
    if got.dtype.kind in "iub":
        wrong = got != expected
    else:
        wide_got, wide_expected = got.astype(np.float64), expected.astype(np.float64)
        both_nan = np.isnan(wide_got) & np.isnan(wide_expected)
        if atol or rtol:
            with np.errstate(invalid="ignore"):
                is_close = np.abs(wide_got - wide_expected) <= atol + rtol * np.abs(wide_expected)
            wrong = ~(is_close | both_nan | (wide_got == wide_expected))
        else:
            bits = np.dtype(f"u{got.dtype.itemsize}")
            wrong = (
                np.ascontiguousarray(got).view(bits).reshape(got.shape)
                != np.ascontiguousarray(expected).view(bits).reshape(got.shape)
            ) & ~both_nan
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0]) if got.ndim else ()
    return (
        f"{count} of {got.size} elements differ, the first at {list(index)}: expected "
        f"{expected[index]}, got {got[index]}"
    )
