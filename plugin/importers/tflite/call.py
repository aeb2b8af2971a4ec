"""What a kernel sees: the operator with the values of its inputs, and the tensors it computes.

A kernel is a function of a `Call` that returns the values of the outputs. Values are arrays: of
NumPy's, or of a program that is being written, on which the same formulas run. A quantized tensor's
value is its storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...core.option_fields import Activations
from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...numerics.array_functions import beside, convert, is_known
from ...numerics.block_form import BlockForm
from ...numerics.element_types import I32, AnyArray, DType, ElementType
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from ..operator_registry import BaseCall, OperatorRegistry
from .arithmetic import requantization
from .operator_record import OperatorRecord
from .reading.model import Operator, Quantization, Tensor
from .reading.schema import ACTIVATIONS, PADDINGS, TENSOR_TYPES

__all__ = [
    "CUSTOM_KERNELS",
    "KERNELS",
    "Call",
    "Complex",
    "Graphs",
    "Handle",
    "Kernel",
    "Operand",
    "custom_kernel",
    "kernel",
    "parameters_of",
]


_WITH_TANH = frozenset(
    ("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "RNN", "SVDF",
     "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN")
)  # fmt: skip
"""The operators whose fused activation function may be TANH; LiteRT ignores it in others."""

MAX_STORAGE_BITS = 32
"""The widest storage of a quantized type."""


@dataclass(frozen=True, eq=False)
class Operand:
    """An input: the tensor as the file describes it, and its value.

    Args:
        tensor: as the file describes it.
        value: of its elements.
        variable: the name of the variable that the tensor is, or None.
    """

    tensor: Tensor
    value: AnyArray
    variable: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the value."""
        return tuple(self.value.shape) if not isinstance(self.value, Handle) else ()

    @property
    def is_float(self) -> bool:
        """The elements are floats."""
        return self.tensor.is_float

    @property
    def is_constant(self) -> bool:
        """The value is known when the program is written."""
        return is_known(self.value) and not isinstance(self.value, Complex)

    def __str__(self) -> str:
        return str(self.tensor)


class Graphs(Protocol):
    """What kernels need of the model around them."""

    place: Place
    """Of the file, for errors."""

    activations: Activations
    """What float operators with integer weights multiply."""

    def run(self, index: int, inputs: Sequence[AnyArray]) -> list[AnyArray]:
        """Compute a graph of the model."""

    def passed(self, value: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the value of one tensor as the value of another."""

    def kept_as(self, variable: str, like: Tensor) -> Tensor:
        """Return the tensor whose parameters the value of a variable has."""

    def tensors_of(self, index: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the inputs and the outputs of a graph of the model."""

    def lifted(self, value: AnyArray, like: Tensor) -> AnyArray:
        """A value of the program that is written, where one is, of the type of a tensor."""

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable, of the type of a tensor."""

    def write(self, variable: str, value: AnyArray) -> None:
        """Give a variable a value."""


@dataclass(frozen=True)
class Handle:
    """The value of a tensor of type RESOURCE: the name of a variable."""

    variable: str


@dataclass(frozen=True, eq=False)
class Complex:
    """The value of a tensor of type COMPLEX64.

    Args:
        real, imaginary: f32, of one shape.
    """

    real: AnyArray
    imaginary: AnyArray

    @property
    def parts(self) -> tuple[AnyArray, AnyArray]:
        """The real and the imaginary part."""
        return self.real, self.imaginary

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of both parts."""
        return tuple(self.real.shape)


class _MissingOptionError(InputError, AttributeError):
    """The file does not give an option: it has none, or those of another operator."""


class _Options:
    """The options of an operator, as attributes."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        options = self._call.operator.options
        if not hasattr(options, name):
            raise self._call.error(f"has no option {name!r}", _MissingOptionError)
        self._call.record.options.get(name)
        return getattr(options, name)


@dataclass(frozen=True, eq=False)
class Call(BaseCall[Operand]):
    """An operator with the values of its inputs.

    Args:
        operator: as the file describes it.
        inputs: None for an optional one that is absent.
        graphs: what computes other graphs, and keeps variables.
        record: of what is read.
        is_real: the operands are reals, and so are results: their fused activation function is
            left to who quantizes them.
    """

    operator: Operator
    inputs: Sequence[Operand | None]
    graphs: Graphs
    record: OperatorRecord
    is_real: bool = False

    @property
    def subject(self) -> tuple[Operator, Place]:
        """The operator, and the file."""
        return self.operator, self.graphs.place

    def optional(self, index: int) -> Operand | None:
        """Return an input that may be absent, and record that it is read."""
        self.record.inputs.get(str(index))
        return super().optional(index)

    # -- what the operator says -------------------------------------------------------------------

    @property
    def options(self) -> Any:
        """The options of the operator; an error for one that the file does not give."""
        return _Options(self)

    @property
    def activation(self) -> str:
        """The fused activation function, ``NONE`` where there is none."""
        number = getattr(self.options, "fused_activation_function", 0)
        if not 0 <= number < len(ACTIVATIONS):
            raise self.error(f"has the unknown option fused_activation_function = {number}")
        return ACTIVATIONS[number]

    def padding(
        self, extents: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
    ) -> list[tuple[int, int]]:
        """How many elements a window of `sizes` needs before and after each extent."""
        number = self.options.padding
        if not 0 <= number < len(PADDINGS):
            raise self.error(f"has the unknown padding {number}")
        if PADDINGS[number] == "VALID":
            return [(0, 0)] * len(extents)
        pairs = []
        for extent, size, stride in zip(extents, sizes, strides, strict=True):
            total = max((-(-extent // stride) - 1) * stride + size - extent, 0)
            pairs.append((total // 2, total - total // 2))
        return pairs

    # -- values -----------------------------------------------------------------------------------

    def constant_axis(self, index: int, rank: int) -> int:
        """The axis, counted from 0, that a constant input of one element is."""
        numbers = self.constant(index).reshape(-1)
        if numbers.size != 1:
            raise self.error(f"has {numbers.size} axes in input {index}, expected 1")
        return self.checked_axis(int(numbers[0]), rank)

    def constant_axes(self, index: int, rank: int) -> tuple[int, ...]:
        """The axes, counted from 0 and in ascending order, that a constant input lists."""
        numbers = self.constant(index).reshape(-1).tolist()
        return tuple(sorted({self.checked_axis(axis, rank) for axis in numbers}))

    def constant_integers(self, index: int, *shape: int) -> AnyArray:
        """The integers of a constant input, checked to have the elements of a shape.

        Raises:
            InputError: it has another number of elements.
        """
        numbers = self.constant(index)
        if numbers.size != math.prod(shape):
            raise self.error(
                f"has a constant of shape {list(numbers.shape)} as input {index}, expected "
                f"{list(shape)}"
            )
        return numbers.reshape(shape)

    def check_count(self, option: str, count: int) -> None:
        """Check an option that repeats how many inputs or outputs there are; 0 says nothing."""
        stated = getattr(self.options, option, 0)
        if stated not in (0, count):
            raise self.error(f"has the option {option} = {stated}, and {count} tensors")

    def check_type(self, option: str) -> None:
        """Check an option that repeats the type of the output."""
        number = getattr(self.options, option, None)
        if number is None:
            return
        stated = TENSOR_TYPES[number] if 0 <= number < len(TENSOR_TYPES) else str(number)
        if stated != self.output.type:
            raise self.error(
                f"has the option {option} = {stated}, and {self.output} is of type "
                f"{self.output.type}"
            )

    def assign(self, index: int, value: AnyArray) -> None:
        """Give an input that is a variable a value, which it keeps until the next call."""
        operand = self.input(index)
        if operand.variable is None:
            raise self.error(f"needs {operand.tensor} to be a variable, and it is none")
        self.graphs.write(operand.variable, value.reshape(operand.shape))

    @property
    def output(self) -> Tensor:
        """The only output."""
        if len(self.operator.outputs) != 1:
            raise self.error(f"has {len(self.operator.outputs)} outputs, expected 1")
        return self.operator.outputs[0]

    # -- quantization -----------------------------------------------------------------------------

    def parameters(self, tensor: Tensor) -> Quantization:
        """The quantization of a tensor that must have one."""
        if tensor.quantization is None:
            raise self.error(f"needs scales of {tensor}, which is {tensor.type} without any")
        return tensor.quantization

    def per_tensor(self, tensor: Tensor) -> Quantization:
        """The same with one scale."""
        found = self.parameters(tensor)
        if not found.is_per_tensor:
            raise self.error(f"needs one scale of {tensor}, which has {found.scales.size}")
        return found

    def symmetric_scale(self, operand: Operand) -> np.float32:
        """The scale of a tensor that must have one scale, and a zero point of 0."""
        quantization = self.per_tensor(operand.tensor)
        if quantization.zero_point:
            raise self.error(
                f"needs a zero point of 0 of {operand.tensor}, got {quantization.zero_point}",
                UnsupportedError,
            )
        return quantization.scale

    def centered(self, operand: Operand) -> AnyArray:
        """The storage less its zero point, in 32 bits."""
        zero_point = self.per_tensor(operand.tensor).zero_point
        wide = convert(operand.value, I32)
        return wide - zero_point if zero_point else wide

    def stored(self, total: AnyArray, tensor: Tensor | None = None) -> AnyArray:
        """Add the zero point of an output, and clamp to what its activation leaves.

        Args:
            total: integers in units of the scale of the output.
            tensor: the output; the only one by default.
        """
        tensor = tensor or self.output
        zero_point = self.per_tensor(tensor).zero_point
        if zero_point:
            total = total + zero_point
        return requantization.narrowed(total, *self.range(tensor), self.dtype(tensor))

    def range(self, tensor: Tensor) -> tuple[int, int]:
        """The storage values that the activation leaves of an output."""
        info = np.iinfo(self.dtype(tensor))
        found = self.per_tensor(tensor)
        if self.activation not in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1"):
            raise self.wrong_activation()
        low, high = int(info.min), int(info.max)
        return requantization.activation_range(
            self.activation, found.scale, found.zero_point, low, high
        )

    def activated(self, real: AnyArray) -> AnyArray:
        """The fused activation function of floats, or of integers without a scale."""
        name = self.activation
        if name == "NONE" or self.is_real:
            return real
        kind = real.dtype.type
        if name in ("RELU", "RELU6"):
            real = np.maximum(real, kind(0))
            return real if name == "RELU" else np.minimum(real, kind(6))
        if name == "RELU_N1_TO_1":
            return np.minimum(np.maximum(real, kind(-1)), kind(1))
        if name == "TANH" and self.operator.name in _WITH_TANH:
            return np.tanh(real)
        raise self.wrong_activation()

    def wrong_activation(self) -> SubquantError:
        """Return an error of a fused activation function that the operator does not have."""
        return self.error(
            f"has the option fused_activation_function = {self.activation}, which LiteRT ignores",
            UnsupportedError,
        )

    def dtype(self, tensor: Tensor) -> DType:
        """The dtype of a tensor's value."""
        return ElementType.parse(tensor.element).dtype

    def reals(self, operand: Operand, beside_: AnyArray) -> AnyArray:
        """Weights as f32; integers stay so in the program, with what they stand for.

        Args:
            operand: floats, or integers with scales.
            beside_: a value of the program.
        """
        tensor, value = operand.tensor, operand.value
        if operand.is_float:
            return value.astype(np.float32)
        self.parameters(tensor)  # or it raises
        found, shape = parameters_of(tensor), operand.shape
        element = found.storage.element
        scales, zero_points = (
            plane.reshape(found.grid_shape(shape)) for plane in (found.scales, found.zero_points)
        )
        form = BlockForm(
            beside(beside_, value, element) if operand.is_constant else value,
            found.storage,
            found.block_shape(shape),
            scales,
            zero_points.astype(value.dtype) if zero_points.any() else None,
        )
        return form.dequantize(found.expressed)


def parameters_of(tensor: Tensor) -> QuantizationParameters:
    """What the storage values of a tensor stand for."""
    found, element = tensor.quantization, ElementType.parse(tensor.element)
    assert found is not None  # is_stored
    if element.bits > MAX_STORAGE_BITS:
        raise UnsupportedError(
            f"has {tensor} of type {tensor.type} with a scale; a quantized type has at most "
            f"{MAX_STORAGE_BITS} bits"
        )
    storage = StorageType(element.bits, element.kind == "int")
    axes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    scales, zero_points = found.scales, found.zero_points
    if found.block_size:
        axes, sizes = (len(tensor.shape) - 1,), (found.block_size,)
        if math.prod(tensor.shape[:-1]) > 1:  # each index of the other dimensions has scales
            axes = tuple(range(len(tensor.shape)))
            sizes = (*(1,) * (len(tensor.shape) - 1), found.block_size)
    elif found.axis is not None:
        axes, sizes = (found.axis,), (1,)
    else:
        scales, zero_points = scales.reshape(()), zero_points.reshape(())
    return QuantizationParameters(storage, ExpressedType.F32, axes, sizes, scales, zero_points)


Kernel: TypeAlias = Callable[[Call], Any]
"""The value of the only output, or a list of those of all."""

KERNELS: OperatorRegistry[Kernel] = OperatorRegistry()
kernel = KERNELS.register

CUSTOM_KERNELS: OperatorRegistry[Kernel] = OperatorRegistry()
custom_kernel = CUSTOM_KERNELS.register
