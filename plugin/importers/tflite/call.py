"""Call of an operator: the argument of operator importers, and their registry.

An operator importer is a function of a `Call` that returns the values of the outputs. Values are
NumPy arrays or traced values of a program; the same formulas run on both. The value of a quantized
tensor is its storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...numerics.array_functions import beside, convert
from ...numerics.block_form import BlockForm
from ...numerics.element_types import I32, AnyArray, DType, ElementType
from ..operator_registry import BaseCall, OperatorRegistry
from .arithmetic.requantization import (
    ACTIVATION_BOUNDS,
    activation_range,
    clamp_activation,
    saturating_cast,
)
from .operand import Operand, is_quantized, quantization_parameters
from .operator_record import OperatorRecord
from .reading.model import Operator, Quantization, Tensor
from .reading.schema import ACTIVATIONS, PADDINGS, TENSOR_TYPES

if TYPE_CHECKING:  # it imports this module
    from .graph_evaluator import GraphEvaluator

_WITH_TANH = frozenset(
    ("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "RNN", "SVDF",
     "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN")
)  # fmt: skip
"""The operators whose fused activation function may be TANH; LiteRT ignores TANH in others."""


_INTEGERS = frozenset(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64))
"""The types of positions, sizes and axes."""


class _MissingOptionError(InputError, AttributeError):
    """The file lacks an option: it has no options, or those of another operator."""


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
        inputs: the operands; None for an optional input that is absent.
        context: the evaluation of the model: its subgraphs and variables.
        record: the record of the options and inputs that the importer reads.
        is_dequantized: operands and results are floats, dequantized by the caller, which also
            clamps results to the fused activation function.
    """

    operator: Operator
    inputs: Sequence[Operand | None]
    context: GraphEvaluator
    record: OperatorRecord
    is_dequantized: bool = False

    @property
    def subject(self) -> tuple[Operator, Place]:
        """The operator, and the file."""
        return self.operator, self.context.location

    def optional(self, index: int) -> Operand | None:
        """Return an input that may be absent, and record the read."""
        self.record.inputs.get(str(index))
        return super().optional(index)

    def all_inputs(self) -> list[Operand]:
        """Return all inputs of an operator without optional ones."""
        return [self.input(index) for index in range(len(self.inputs))]

    @property
    def output(self) -> Tensor:
        """The only output."""
        if len(self.operator.outputs) != 1:
            raise self.error(f"has {len(self.operator.outputs)} outputs, expected 1")
        return self.operator.outputs[0]

    # -- options ----------------------------------------------------------------------------------

    @property
    def options(self) -> Any:
        """The options of the operator; reading an option that the file lacks is an error."""
        return _Options(self)

    @property
    def activation(self) -> str:
        """The fused activation function, ``NONE`` where there is none."""
        number = getattr(self.options, "fused_activation_function", 0)
        if not 0 <= number < len(ACTIVATIONS):
            raise self.error(f"has the unknown option fused_activation_function = {number}")
        return ACTIVATIONS[number]

    def padding(
        self, input_sizes: Sequence[int], filter_sizes: Sequence[int], strides: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return the padding before and after each spatial dimension."""
        number = self.options.padding
        if not 0 <= number < len(PADDINGS):
            raise self.error(f"has the unknown padding {number}")
        if PADDINGS[number] == "VALID":
            return [(0, 0)] * len(input_sizes)
        pairs = []
        for length, size, stride in zip(input_sizes, filter_sizes, strides, strict=True):
            total = max((-(-length // stride) - 1) * stride + size - length, 0)
            pairs.append((total // 2, total - total // 2))
        return pairs

    def check_count(self, option: str, count: int) -> None:
        """Refuse a wrong option that repeats the number of inputs or outputs; 0 is unspecified."""
        stated = getattr(self.options, option, 0)
        if stated not in (0, count):
            raise self.error(f"has the option {option} = {stated}, and {count} tensors")

    def check_type(self, option: str) -> None:
        """Refuse an option that repeats the type of the output wrongly."""
        number = getattr(self.options, option, None)
        if number is None:
            return
        stated = TENSOR_TYPES[number] if 0 <= number < len(TENSOR_TYPES) else str(number)
        if stated != self.output.type:
            raise self.error(
                f"has the option {option} = {stated}, and {self.output} is of type "
                f"{self.output.type}"
            )

    # -- constant inputs --------------------------------------------------------------------------

    def _constant_integers(self, index: int) -> AnyArray:
        """Return a constant input, checked to have integers."""
        if self.input(index).tensor.type not in _INTEGERS:
            raise self.unsupported_type(self.input(index))
        return self.constant(index)

    def constant_list(self, index: int) -> list[int]:
        """Return the elements of a constant input of integers."""
        return [int(n) for n in self._constant_integers(index).reshape(-1)]

    def constant_axis(self, index: int, rank: int) -> int:
        """Return the non-negative axis in a constant input of one element."""
        numbers = self._constant_integers(index).reshape(-1)
        if numbers.size != 1:
            raise self.error(f"has {numbers.size} axes in input {index}, expected 1")
        return self.checked_axis(int(numbers[0]), rank)

    def constant_axes(self, index: int, rank: int) -> tuple[int, ...]:
        """Return the non-negative axes in a constant input, in ascending order."""
        numbers = self.constant_list(index)
        return tuple(sorted({self.checked_axis(axis, rank) for axis in numbers}))

    def constant_integers(self, index: int, *shape: int) -> AnyArray:
        """Return the integers of a constant input, in a shape.

        Raises:
            InputError: the input has another number of elements.
        """
        numbers = self._constant_integers(index)
        if numbers.size != math.prod(shape):
            raise self.error(
                f"has a constant of shape {list(numbers.shape)} as input {index}, expected "
                f"{list(shape)}"
            )
        return numbers.reshape(shape)

    # -- types and quantization -------------------------------------------------------------------

    def alike(self, *indices: int, has_result: bool = True) -> list[Operand]:
        """Return inputs of one type, all with scales or none; those of the result, too.

        Raises:
            InputError: they differ.
        """
        operands = [self.input(index) for index in indices]
        tensors = [operand.tensor for operand in operands]
        if has_result and not self.is_dequantized:  # else the result is quantized by the caller
            tensors.append(self.output)
        types = [f"{each.type}{' with a scale' * is_quantized(each)}" for each in tensors]
        for tensor, text in zip(tensors, types, strict=True):
            if text != types[0]:
                raise self.error(
                    f"has {tensors[0]} of {types[0]} and {tensor} of {text}, expected one type"
                )
        return operands

    def unsupported_type(self, operand: Operand) -> SubquantError:
        """Return the error of an operand whose type the importer does not support."""
        message = f"does not support operands of type {operand.tensor.type}"
        return self.error(message, UnsupportedError)

    def require_float(self, operand: Operand) -> None:
        """Refuse an operand without float elements."""
        if not operand.is_float:
            raise self.error(
                f"needs operands of a float type, got {operand.tensor.type}", UnsupportedError
            )

    def dtype(self, tensor: Tensor) -> DType:
        """Return the dtype of a tensor's value."""
        return ElementType.parse(tensor.element).dtype

    def parameters(self, tensor: Tensor) -> Quantization:
        """Return the quantization parameters of a tensor that must be quantized."""
        if tensor.quantization is None:
            raise self.error(f"needs scales of {tensor}, which is {tensor.type} without any")
        return tensor.quantization

    def per_tensor(self, tensor: Tensor) -> Quantization:
        """Return the parameters of a tensor that must have one scale."""
        quantization = self.parameters(tensor)
        if not quantization.is_per_tensor:
            raise self.error(f"needs one scale of {tensor}, which has {quantization.scales.size}")
        return quantization

    def symmetric_scale(self, operand: Operand) -> np.float32:
        """Return the scale of a tensor that must have one scale and a zero point of 0."""
        quantization = self.per_tensor(operand.tensor)
        if quantization.zero_point:
            raise self.error(
                f"needs a zero point of 0 of {operand.tensor}, got {quantization.zero_point}",
                UnsupportedError,
            )
        return quantization.scale

    def centered(self, operand: Operand) -> AnyArray:
        """Return the storage minus its zero point, in 32 bits."""
        zero_point = self.per_tensor(operand.tensor).zero_point
        wide = convert(operand.value, I32)
        return wide - zero_point if zero_point else wide

    def to_storage(self, total: AnyArray, tensor: Tensor | None = None) -> AnyArray:
        """Add the zero point of an output, and clamp to the range of its activation."""
        tensor = tensor or self.output
        zero_point = self.per_tensor(tensor).zero_point
        if zero_point:
            total = total + zero_point
        return saturating_cast(total, *self.range(tensor), self.dtype(tensor))

    def range(self, tensor: Tensor) -> tuple[int, int]:
        """Return the range of an output's storage values after its fused activation."""
        info, y = np.iinfo(self.dtype(tensor)), self.per_tensor(tensor)
        if self.activation not in ACTIVATION_BOUNDS:
            raise self.unsupported_activation()
        ends = int(info.min), int(info.max)
        return activation_range(self.activation, y.scale, y.zero_point, *ends)

    def activated(self, value: AnyArray) -> AnyArray:
        """Apply the fused activation function to floats, or to integers without a scale."""
        name = self.activation
        if name == "NONE" or self.is_dequantized:
            return value
        if name in ACTIVATION_BOUNDS:
            return clamp_activation(value, name)
        if name == "TANH" and self.operator.name in _WITH_TANH:
            return np.tanh(value)
        raise self.unsupported_activation()

    def unsupported_activation(self) -> SubquantError:
        """Return the error of a fused activation function that the operator does not have."""
        return self.error(
            f"has the option fused_activation_function = {self.activation}, which LiteRT ignores",
            UnsupportedError,
        )

    def expressed(self, operand: Operand, like: AnyArray) -> AnyArray:
        """Return the expressed (dequantized) f32 values of weights.

        Integer weights stay integers in the program, with their scales. `like` is a value of the
        program.
        """
        tensor, value = operand.tensor, operand.value
        if operand.is_float:
            return value.astype(np.float32)
        self.parameters(tensor)  # raises for a tensor without scales
        parameters, shape = quantization_parameters(tensor), operand.shape
        scales, zero_points = (
            array.reshape(parameters.grid_shape(shape))
            for array in (parameters.scales, parameters.zero_points)
        )
        element = parameters.storage.element
        form = BlockForm(
            beside(like, value, element) if operand.is_constant else value,
            parameters.storage,
            parameters.block_shape(shape),
            scales,
            zero_points.astype(value.dtype) if zero_points.any() else None,
        )
        return form.dequantize(parameters.expressed)

    # -- variables --------------------------------------------------------------------------------

    def assign(self, index: int, value: AnyArray) -> None:
        """Assign a value to an input that is a variable, which keeps it until the next call."""
        operand = self.input(index)
        if operand.variable is None:
            raise self.error(f"needs {operand.tensor} to be a variable, and it is none")
        self.context.write(operand.variable, value.reshape(operand.shape))


OperatorImporter: TypeAlias = Callable[[Call], Any]
"""An operator importer returns the value of the only output, or a list of the values of all."""

IMPORTERS: OperatorRegistry[OperatorImporter] = OperatorRegistry()
importer = IMPORTERS.register

CUSTOM_IMPORTERS: OperatorRegistry[OperatorImporter] = OperatorRegistry()
custom_importer = CUSTOM_IMPORTERS.register
