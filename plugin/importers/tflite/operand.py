"""Operands of operators: a tensor of the file, and its value while a graph is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import UnsupportedError
from ...numerics.array_functions import is_known
from ...numerics.element_types import AnyArray, ElementType
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from .reading.tensors import Tensor

_MAX_STORAGE_BITS = 32
"""Bits of a storage value, at most, as in MLIR's quantized types; i64 with a scale is refused."""


@dataclass(frozen=True)
class VariableHandle:
    """The value of a tensor of type RESOURCE: the name of a variable."""

    variable: str


@dataclass(frozen=True, eq=False)
class ComplexValue:
    """The value of a tensor of type COMPLEX64: two f32 arrays of one shape."""

    real: AnyArray
    imaginary: AnyArray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of both components."""
        return tuple(self.real.shape)


@dataclass(frozen=True, eq=False)
class Operand:
    """An input of an operator, and its tensor as the file describes it.

    `value` has its elements, or the storage of a quantized tensor; `variable` is the name of the
    variable that the tensor is, or None.
    """

    tensor: Tensor
    value: AnyArray
    variable: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return tuple(self.value.shape) if not isinstance(self.value, VariableHandle) else ()

    @property
    def is_float(self) -> bool:
        """The elements are floats."""
        return self.tensor.is_float

    @property
    def is_quantized(self) -> bool:
        """The elements are integers with a scale."""
        return self.tensor.quantization is not None and not self.is_float

    @property
    def is_constant(self) -> bool:
        """The value is constant while the program is written."""
        return is_known(self.value) and not isinstance(self.value, ComplexValue)

    def __str__(self) -> str:
        return str(self.tensor)


def is_quantized(tensor: Tensor) -> bool:
    """Return True if the values of a tensor are storage: integers with scales."""
    is_number = not tensor.is_float and tensor.type != "BOOL"
    return tensor.quantization is not None and is_number


def quantization_parameters(tensor: Tensor) -> QuantizationParameters:
    """Return the parameters of a quantized tensor in the form of `subquant.numerics`."""
    quantization, element = tensor.quantization, ElementType.parse(tensor.element)
    assert quantization is not None  # is_quantized
    if element.bits > _MAX_STORAGE_BITS:
        raise UnsupportedError(
            f"has {tensor} of type {tensor.type} with a scale; a quantized type has at most "
            f"{_MAX_STORAGE_BITS} bits"
        )
    storage = StorageType(element.bits, element.kind == "int")
    axes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    scales, zero_points = quantization.scales, quantization.zero_points
    if quantization.block_size:
        axes, sizes = (len(tensor.shape) - 1,), (quantization.block_size,)
        if math.prod(tensor.shape[:-1]) > 1:  # each index of the other dimensions has scales
            axes = tuple(range(len(tensor.shape)))
            sizes = (*(1,) * (len(tensor.shape) - 1), quantization.block_size)
    elif quantization.axis is not None:
        axes, sizes = (quantization.axis,), (1,)
    else:
        scales, zero_points = scales.reshape(()), zero_points.reshape(())
    return QuantizationParameters(storage, ExpressedType.F32, axes, sizes, scales, zero_points)
