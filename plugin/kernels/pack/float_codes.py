"""Weights of floats: formats of their elements, as kernels decode them.

In a program, a weight of bf16 or f16 is widened before it is multiplied::

    %w = util.global.load @weight : tensor<262144x640xbf16>
    %f = stablehlo.convert %w : (tensor<262144x640xbf16>) -> tensor<262144x640xf32>
    %y = stablehlo.dot_general %x, %f ... : (...) -> tensor<1x262144xf32>

A kernel reads the 16-bit floats from memory and widens them in registers, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core._mlir import Value, ir
from ...numerics.element_types import ElementType


@dataclass(frozen=True)
class FloatCodes:
    """Format of the floats of a weight, by the name of its element type: ``bf16`` or ``f16``."""

    name: str

    @property
    def element(self) -> ElementType:
        """The element type."""
        return ElementType.parse(self.name)

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return self.element.bits

    @property
    def k_pack(self) -> int:
        """Elements of a k-pack of two bytes."""
        return 16 // self.bits

    @classmethod
    def of(cls, storage: Value) -> FloatCodes | None:
        """Return the format of a tensor, or None."""
        element = storage.type.element_type
        if not isinstance(element, ir.BF16Type | ir.F16Type):
            return None
        return cls(str(element))
