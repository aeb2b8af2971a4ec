"""Dense attributes as NumPy's arrays, and back: exactly, for every width of integer and float."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import ml_dtypes
import numpy as np

from ..core._mlir import Operation, Value, ir
from ..errors import VerificationError
from ..numerics.element_types import Array, DType, ElementType
from ..numerics.packed_integers import wrapped
from ..numerics.small_floats import FLOAT8_FORMATS

CONSTANTS = ("arith.constant", "stablehlo.constant")
"""Constant operations, whose attribute ``value`` is their result."""


def array_of_dense(attribute: ir.DenseElementsAttr) -> Array:
    """Return the elements of a dense attribute: integers as int64, floats in their type."""
    array = narrow_array_of_dense(attribute)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array


def narrow_array_of_dense(attribute: ir.DenseElementsAttr) -> Array:
    """Return the elements as `array_of_dense`; integers of 8, 16 and 32 bits in their own dtype.

    The bindings give a buffer for 8-, 16-, 32- and 64-bit elements only; the others (i4, i12,
    bf16, ...) are read from the attribute's text, which is exact.
    """
    type_ = attribute.type
    shape = tuple(type_.shape)
    element = str(type_.element_type)
    if element == "i1":
        return -np.array(attribute).astype(np.int64)
    if re.fullmatch(r"[su]?i(8|16|32|64)|f16|f32|f64", element):
        return np.array(attribute)
    text, small = str(attribute), _SMALL_FLOATS.get(element)
    width = small.itemsize * 8 if small is not None else int(element.lstrip("siu"))
    hexadecimal = re.match(r'dense<"0x([0-9A-Fa-f]*)">', text)
    if hexadecimal:
        count, size = math.prod(shape), (width + 7) // 8
        raw = np.zeros((count, 8), np.uint8)
        raw[:, :size] = np.frombuffer(bytes.fromhex(hexadecimal.group(1)), np.uint8).reshape(
            -1, size
        )
        flat = raw.view("<i8").reshape(count)
    else:
        numbers = re.findall(r"0x[0-9A-Fa-f]+|[-+0-9.eE]+", text[len("dense<") : text.index(">")])
        flat = np.array(
            [int(n, 0) if small is None else _bits_of_text(n, small) for n in numbers], np.int64
        )
    values = np.full(shape, flat[0]) if flat.size == 1 else flat.reshape(shape)
    return wrapped(values, width) if small is None else values.astype(f"u{width // 8}").view(small)


_SMALL_FLOATS: dict[str, DType] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    **{name: np.dtype(each.dtype) for name, each in FLOAT8_FORMATS.items()},
}
"""Floats that the bindings have no buffer for."""


def _bits_of_text(text: str, dtype: DType) -> int:
    if text.startswith("0x"):
        return int(text, 16)
    return int(np.array(float(text), np.float32).astype(dtype).view(f"u{dtype.itemsize}"))


def dense_of_array(array: Array, element: ir.Type) -> ir.DenseElementsAttr:
    """Return a dense attribute for `array` with elements of MLIR type `element`.

    Integers are wrapped to the width of `element`, so unsigned values keep their bits. MLIR holds
    an integer in the least number of bytes (an i24 in three).
    """
    type_ = ir.RankedTensorType.get(list(array.shape), element)
    if array.dtype.itemsize == 1 and str(element) == "i8":
        values, size = array, 1
    elif isinstance(element, ir.IntegerType):
        width = element.width
        values = wrapped(array.astype("<i8"), width)
        size = (width + 7) // 8
    else:
        values = array.astype(ElementType.parse(str(element)).dtype)
        size = values.dtype.itemsize
    raw = np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8)[:, :size]
    if (raw == raw[:1]).all():
        raw = raw[:1]  # a buffer of one element is a splat
    return ir.DenseElementsAttr.get(np.ascontiguousarray(raw), type=type_)


_RESOURCE = re.compile(r'^ +(?:\w+|"[^"]*"): "0x[0-9A-Fa-f]{8}([0-9A-Fa-f]*)"$', re.MULTILINE)
"""A resource as it is printed: four bytes of alignment, and its own."""
_NAME_OF_RESOURCE = re.compile(r"dense_resource<([^>]*)>")


def elements_attribute(op: Operation) -> str:
    """Return the name of the attribute that has the elements of a constant."""
    return "values" if op.name == "tosa.const" else "value"


def resource_of(op: Operation) -> ir.DenseResourceElementsAttr | None:
    """Return the resource that a constant is; None for a constant with elements of its own."""
    attribute = op.attributes[elements_attribute(op)]
    if isinstance(attribute, ir.DenseElementsAttr):
        return None
    try:
        return ir.DenseResourceElementsAttr(attribute)
    except ValueError:
        return None  # sparse elements


def elements_of_resource(op: Operation, type_: ir.ShapedType) -> ir.DenseElementsAttr:
    """Return the elements of a constant of a type that is a resource.

    The bindings give no access to a resource. It is printed in a module that refers to it alone.

    Raises:
        VerificationError: there is no such resource, it has another size, or a boolean of it is
            neither 0 nor 1.
    """
    with op.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            op.clone()
        text = module.operation.get_asm()
    match, name = _RESOURCE.search(text), _NAME_OF_RESOURCE.search(text)
    assert name is not None
    if match is None:
        raise VerificationError(
            f"has the resource '{name.group(1)}', which the module does not contain; print it with "
            "its resources (without --mlir-elide-resource-strings-if-larger)",
            op,
        )
    data = np.frombuffer(bytes.fromhex(match.group(1)), np.uint8)
    element = type_.element_type
    width = element.width
    count, size = math.prod(type_.shape), -(-width // 8)
    if len(data) != count * size:
        raise VerificationError(
            f"has the resource '{name.group(1)}' of {len(data)} bytes; '{type_}' has "
            f"{count * size} bytes",
            op,
        )
    if width == 1:
        if (data > 1).any():
            raise VerificationError(
                f"has the resource '{name.group(1)}' of booleans, whose byte {data.argmax()} is "
                f"{data.max()}; expected 0 or 1",
                op,
            )
        with op.context:
            return dense_of_array(data.astype(np.int64).reshape(type_.shape), element)
    elements = data.reshape(count, size)
    if count and (elements == elements[:1]).all():
        data = elements[0]  # a buffer of one element is a splat
    with op.context:
        return ir.DenseElementsAttr.get(np.ascontiguousarray(data), type=type_)


def constant_attribute(
    value: Value, operations: Collection[str] = CONSTANTS
) -> ir.DenseElementsAttr | None:
    """Return the dense attribute of a constant, one of `operations`; None for other values."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in operations:
        return None
    attribute = owner.operation.attributes[elements_attribute(owner.operation)]
    return attribute if isinstance(attribute, ir.DenseElementsAttr) else None


def constant_array(value: Value, operations: Collection[str] = CONSTANTS) -> Array | None:
    """Return the elements of a constant as `array_of_dense`; None for other values."""
    attribute = constant_attribute(value, operations)
    return None if attribute is None else array_of_dense(attribute)


def splat_attribute(
    value: Value, through: Collection[str] = ("stablehlo.broadcast_in_dim",)
) -> ir.DenseElementsAttr | None:
    """Return the attribute of a constant whose elements are equal; None for other values.

    Args:
        through: operations between the constant and the value, which keep elements equal.
    """
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.operation.name in through:
        value = owner.operation.operands[0]
        owner = value.owner
    attribute = constant_attribute(value)
    return attribute if attribute is not None and attribute.is_splat else None


def known_integer(value: Value) -> int | None:
    """The integer that all elements of a constant, or of a broadcast of one, are; else None."""
    attribute = splat_attribute(value)
    if attribute is None:
        return None
    if not isinstance(attribute.type.element_type, ir.IntegerType):
        return None
    return int(attribute.get_splat_value().value)
