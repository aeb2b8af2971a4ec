"""Operators that move elements: each element of a result is an element of an operand, or a fill.

LiteRT copies storage values, and takes the parameters of operands and results for equal. With exact
semantics, storage values are requantized where the parameters differ::

    moved = operator(requantize(operand, operand's parameters, result's parameters))
    requantize(q, (s, z), (s', z')) = clamp(round_half_even((q - z) * s / s' + z'))

A result of SPLIT or UNPACK may have parameters of its own: then the operand's storage is moved
first, and each result is requantized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ...errors import UnsupportedError
from ...numerics.element_types import AnyArray, Array, ElementType
from ...numerics.requantization import Term, requantize
from .call import Call, Operand, parameters_of
from .reading.model import Tensor

__all__ = [
    "MOVERS",
    "check_equal_parameters",
    "data_operands",
    "is_stored",
    "moved",
    "requantized_storage",
    "same_parameters",
]

_ALL = None
_FIRST = (0,)
MOVERS: dict[str, tuple[int, ...] | None] = {
    "BATCH_TO_SPACE_ND": _FIRST,
    "BROADCAST_TO": _FIRST,
    "CONCATENATION": _ALL,
    "DENSIFY": _FIRST,
    "DEPTH_TO_SPACE": _FIRST,
    "DILATE": (0, 2),
    "DYNAMIC_UPDATE_SLICE": (0, 1),
    "EMBEDDING_LOOKUP": (1,),
    "EXPAND_DIMS": _FIRST,
    "FILL": (1,),
    "GATHER": _FIRST,
    "GATHER_ND": _FIRST,
    "MATRIX_SET_DIAG": (0, 1),
    "MIRROR_PAD": _FIRST,
    "ONE_HOT": (2, 3),
    "PACK": _ALL,
    "PAD": _FIRST,
    "PADV2": (0, 2),
    "RESHAPE": _FIRST,
    "RESIZE_NEAREST_NEIGHBOR": _FIRST,
    "REVERSE_SEQUENCE": _FIRST,
    "REVERSE_V2": _FIRST,
    "SELECT": (1, 2),
    "SELECT_V2": (1, 2),
    "SLICE": _FIRST,
    "SPACE_TO_BATCH_ND": _FIRST,
    "SPACE_TO_DEPTH": _FIRST,
    "SPARSE_TO_DENSE": (2, 3),
    "SPLIT": (1,),
    "SPLIT_V": _FIRST,
    "SQUEEZE": _FIRST,
    "STABLEHLO_PAD": (0, 1),
    "STRIDED_SLICE": _FIRST,
    "TILE": _FIRST,
    "TRANSPOSE": _FIRST,
    "UNPACK": _FIRST,
}
"""The inputs whose elements each operator moves; None for all. Other inputs are positions, shapes
and conditions."""

_EQUAL: dict[str, tuple[int, ...] | None] = {
    "BATCH_TO_SPACE_ND": _FIRST,
    "EXPAND_DIMS": _FIRST,
    "FILL": (1,),
    "MIRROR_PAD": _FIRST,
    "PACK": _ALL,
    "PADV2": (2,),
    "REDUCE_MAX": _FIRST,
    "REDUCE_MIN": _FIRST,
    "SPACE_TO_BATCH_ND": _FIRST,
    "UNPACK": _FIRST,
}
"""The inputs that LiteRT wants to have the parameters of the results; of other operators it copies
storage whatever the parameters are."""

Requantize = Callable[[AnyArray, Tensor, Tensor], AnyArray]
"""The storage of a second tensor for the storage of a first one."""


def is_stored(tensor: Tensor) -> bool:
    """Return True if the values of a tensor are storage: integers with scales."""
    is_number = not tensor.is_float and tensor.type != "BOOL"
    return tensor.quantization is not None and is_number


def data_operands(call: Call) -> list[int]:
    """Return the numbers of the inputs whose elements an operator reads as reals."""
    moved_inputs = MOVERS.get(call.operator.name)
    return [
        index
        for index, operand in enumerate(call.inputs)
        if operand is not None and (moved_inputs is None or index in moved_inputs)
    ]


def check_equal_parameters(call: Call) -> None:
    """Raise UnsupportedError for an operator between scales that LiteRT refuses, too."""
    if call.operator.name not in _EQUAL:
        return
    inputs = _EQUAL[call.operator.name]
    for index, operand in enumerate(call.inputs):
        if operand is None or not (inputs is None or index in inputs):
            continue
        for result in call.operator.outputs:
            are_stored = is_stored(operand.tensor) and is_stored(result)
            if are_stored and not same_parameters(operand.tensor, result):
                raise call.error(
                    f"moves storage of {operand.tensor} to {result} of another scale, which LiteRT "
                    "refuses; --semantics exact requantizes it",
                    UnsupportedError,
                )


def same_parameters(first: Tensor, second: Tensor) -> bool:
    """Return True if a storage value stands for the same real in both tensors."""
    if not is_stored(first) and not is_stored(second):
        return True
    x, y = first.quantization, second.quantization
    if x is None or y is None or not (x.is_per_tensor and y.is_per_tensor):
        return False
    return first.type == second.type and x.scale == y.scale and x.zero_point == y.zero_point


def requantized_storage(storage: Array, source: Tensor, target: Tensor) -> Array:
    """Requantize the storage of one tensor for another exactly, by NumPy; each has one scale."""
    x, y = parameters_of(source), parameters_of(target)
    zero_point = x.zero_points.astype(np.int64)
    centered = storage.astype(np.int64) - zero_point
    bound = max(abs(limit - int(zero_point)) for limit in (x.storage.minimum, x.storage.maximum))
    factor = np.array(Fraction(float(x.scales)) / Fraction(float(y.scales)), object)
    rounded = requantize([Term(centered, bound, factor)], y.zero_points, y.storage).value
    clipped = np.clip(rounded, y.storage.minimum, y.storage.maximum)
    return np.asarray(clipped, ElementType.parse(target.element).dtype)


def moved(
    call: Call, requantized: Requantize, compute: Callable[[Call], list[AnyArray]]
) -> list[AnyArray] | None:
    """Compute a mover on storage, requantized where parameters differ.

    Args:
        call: of an operator of `MOVERS`.
        requantized: between tensors with one scale each.
        compute: the operator's kernel on storage.

    Returns:
        The storage of each result; None if an operand or a result has no single scale, so that the
        operator has to be computed on reals.
    """
    numbers, results = data_operands(call), call.operator.outputs
    operands = [operand for index in numbers if (operand := call.inputs[index]) is not None]
    tensors = [*(operand.tensor for operand in operands), *results]
    if not any(map(is_stored, tensors)):
        return compute(call)
    if not all(map(_has_one_scale, tensors)):
        return None
    is_uniform = all(same_parameters(results[0], each) for each in results)
    target = results[0] if is_uniform or not operands else operands[0].tensor
    inputs = list(call.inputs)
    for index, operand in zip(numbers, operands, strict=True):
        inputs[index] = _with_parameters(operand, target, requantized)
    operator = replace(call.operator, outputs=tuple(_like(each, target) for each in results))
    values = compute(replace(call, operator=operator, inputs=inputs))
    return [requantized(value, target, each) for value, each in zip(values, results, strict=True)]


def _has_one_scale(tensor: Tensor) -> bool:
    return is_stored(tensor) and tensor.quantization is not None and (
        tensor.quantization.is_per_tensor
    )  # fmt: skip


def _like(tensor: Tensor, target: Tensor) -> Tensor:
    return replace(tensor, type=target.type, quantization=target.quantization)


def _with_parameters(operand: Operand, target: Tensor, requantized: Requantize) -> Operand:
    value = requantized(operand.value, operand.tensor, target)
    return Operand(_like(operand.tensor, target), value, operand.variable)
