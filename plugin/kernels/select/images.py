"""Images of f32 or bytes that a reduction or a convolution reads through other operations.

Programs widen bytes, subtract their zero point, pad and transpose them::

    %w = stablehlo.convert %q : (tensor<1x128x20x20xi8>) -> tensor<1x128x20x20xi32>
    %d = stablehlo.subtract %w, %zero_point : tensor<1x128x20x20xi32>
    %p = stablehlo.pad %d, %c0, low = [0, 0, 2, 2], high = [0, 0, 2, 2], interior = [0, 0, 0, 0]
    %t = stablehlo.transpose %p, dims = [0, 2, 3, 1]

A kernel reads ``%q``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.windows import pad_amounts
from ...emit import stablehlo
from ...emit.constant_values import uniform_number
from ...emit.operation import element_of, producer_of
from ...emit.trace import traced
from ...numerics.element_types import F32, I8, I16, I32, Array

_CONVERT, _AND, _SUBTRACT = "stablehlo.convert", "stablehlo.and", "stablehlo.subtract"
_PAD, _TRANSPOSE = "stablehlo.pad", "stablehlo.transpose"
_SIGN = 0x80
_MAX_BYTE = 0xFF
"""The greatest unsigned byte, with which signless bytes are masked."""
_ELEMENTS = ("f32", "i8", "i16", "i32")
"""Element types of operands: f32, bytes, and widened bytes."""
READ_THROUGH = (_CONVERT, _AND, _SUBTRACT, _PAD, _TRANSPOSE, "stablehlo.constant")
"""Operations between the images of a kernel and the reduction."""


@dataclass
class Images:
    """The images that a reduction reads through other operations.

    Attributes:
        value: the images.
        order: for each axis of the reduction, the axis of the images.
        padding: for each axis of the reduction, the padding before and after.
        padding_values: the elements of the padding, as the reduction reads them.
        is_unsigned: bytes count as unsigned.
        zero_point: it is subtracted from the bytes.
    """

    value: Value
    order: list[int]
    padding: Array
    padding_values: list[float]
    is_unsigned: bool = False
    zero_point: int = 0

    @classmethod
    def of(cls, operand: Value) -> Images | None:
        """The images of a reduction's operand; None if they are neither f32 nor bytes."""
        if str(operand.type.element_type) not in _ELEMENTS:
            return None
        rank = operand.type.rank
        images = cls(operand, list(range(rank)), np.zeros((rank, 2), np.int64), [])
        while images._skip():
            pass
        element = element_of(images.value.type)
        return images if element in (F32, I8) else None

    @property
    def zero(self) -> float | int | None:
        """The element of the images that the reduction reads as 0; None if there is none."""
        if element_of(self.value.type) == F32:
            return 0.0
        least = 0 if self.is_unsigned else -_SIGN
        is_byte = least <= self.zero_point < least + 2 * _SIGN
        return (self.zero_point + _SIGN) % (2 * _SIGN) - _SIGN if is_byte else None

    def as_read(self, value: Value, operand_type: ir.RankedTensorType) -> Value:
        """Emit the conversion of images to the elements of the reduction's operand.

        Args:
            value: images, or others with their elements and zero point.
            operand_type: the type of the operand; its shape is not read.
        """
        element = operand_type.element_type
        if value.type.element_type == element:
            return value
        wide = traced(stablehlo.convert(value, element))
        if self.is_unsigned:
            wide = wide & _MAX_BYTE
        return (wide - self.zero_point if self.zero_point else wide).value

    def _skip(self) -> bool:
        """Read through the operation that computes the images; False if that is not possible."""
        op = producer_of(self.value)
        if op is None or op.name not in READ_THROUGH or not op.operands:
            return False
        source = op.operands[0]
        number = uniform_number(op.operands[1]) if len(op.operands) == 2 else None
        if op.name == _TRANSPOSE:
            permutation = [int(axis) for axis in op.attributes["permutation"]]
            self.order = [permutation[axis] for axis in self.order]
        elif op.name == _PAD:
            low, high, interior = pad_amounts(op)
            if number is None or interior.any() or min(low.min(), high.min()) < 0:
                return False
            self.padding += np.stack([low, high], 1)[self.order]
            unsigned = int(number) & _MAX_BYTE if self.is_unsigned else number.item()
            self.padding_values.append(unsigned - self.zero_point)
        elif op.name == _CONVERT:
            if str(source.type.element_type) not in ("i8", "i16"):  # others may have no element_of
                return False
            narrow, wide = element_of(source.type), element_of(self.value.type)
            is_extension = wide.is_integer and wide.bits > narrow.bits
            if not is_extension or (self.is_unsigned and narrow != I8):
                return False
        elif number is None or element_of(source.type) not in (I16, I32) or self.is_unsigned:
            return False
        elif op.name == _AND:
            if number != _MAX_BYTE:
                return False
            self.is_unsigned = True
        else:
            self.zero_point += int(number)
        self.value = source
        return True
