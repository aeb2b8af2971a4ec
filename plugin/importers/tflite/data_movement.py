"""Quantization parameters of data movement operators.

Each element of their results is an element of an operand, or a fill value. LiteRT
copies storage and assumes that operands and results have equal parameters. With exact semantics,
storage is requantized where the parameters differ::

    result = operator(requantize(operand, operand's parameters, result's parameters))
    requantize(q, (s, z), (s', z')) = clamp(round_half_even((q - z) * s / s' + z'))

Results of SPLIT and UNPACK may have different parameters. Then the operator moves the operand's
storage, and each result is requantized.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ...errors import UnsupportedError
from ...numerics.element_types import AnyArray, Array, ElementType
from ...numerics.requantization import Term, requantize
from .call import Call
from .operand import Operand, is_quantized, quantization_parameters
from .reading.model import Tensor

_ALL = None
MOVED_INPUTS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        ("BATCH_TO_SPACE_ND", "BROADCAST_TO", "DENSIFY", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER",
         "GATHER_ND", "MIRROR_PAD", "PAD", "RESHAPE", "RESIZE_NEAREST_NEIGHBOR",
         "REVERSE_SEQUENCE", "REVERSE_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH",
         "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
        (0,),
    ),
    **dict.fromkeys(("EMBEDDING_LOOKUP", "FILL", "SPLIT"), (1,)),
    **dict.fromkeys(("DYNAMIC_UPDATE_SLICE", "MATRIX_SET_DIAG", "STABLEHLO_PAD"), (0, 1)),
    **dict.fromkeys(("DILATE", "PADV2"), (0, 2)),
    **dict.fromkeys(("SELECT", "SELECT_V2"), (1, 2)),
    **dict.fromkeys(("ONE_HOT", "SPARSE_TO_DENSE"), (2, 3)),
    **dict.fromkeys(("CONCATENATION", "PACK"), _ALL),
}  # fmt: skip
"""The inputs whose elements each operator moves; None for all inputs. Other inputs are indices,
shapes and conditions."""

_EQUAL_PARAMETER_INPUTS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        ("BATCH_TO_SPACE_ND", "EXPAND_DIMS", "MIRROR_PAD", "REDUCE_MAX", "REDUCE_MIN",
         "SPACE_TO_BATCH_ND", "UNPACK"),
        (0,),
    ),
    "FILL": (1,),
    "PACK": _ALL,
    "PADV2": (2,),
}  # fmt: skip
"""The inputs for which LiteRT requires the parameters of the results. For other operators it copies
storage whatever the parameters are."""

Requantize = Callable[[AnyArray, Tensor, Tensor], AnyArray]
"""A function that requantizes storage of one tensor to storage of another tensor."""


def moved_inputs(
    call: Call, of_operators: Mapping[str, tuple[int, ...] | None] = MOVED_INPUTS
) -> list[int]:
    """Return the inputs whose elements an operator moves, or computes with."""
    indices = of_operators.get(call.operator.name)
    return [
        index
        for index, operand in enumerate(call.inputs)
        if operand is not None and (indices is None or index in indices)
    ]


def check_equal_parameters(call: Call) -> None:
    """Raise UnsupportedError for types or parameters that differ where LiteRT refuses them too."""
    if call.operator.name in MOVED_INPUTS:
        types = {call.input(index).tensor.type for index in moved_inputs(call)}
        if len(types) > 1:
            raise call.error(
                f"moves elements of {' and '.join(sorted(types))}, expected one type",
                UnsupportedError,
            )
    if call.operator.name not in _EQUAL_PARAMETER_INPUTS:
        return
    inputs = [call.inputs[index] for index in moved_inputs(call, _EQUAL_PARAMETER_INPUTS)]
    for operand, result in itertools.product(filter(None, inputs), call.operator.outputs):
        if not same_parameters(operand.tensor, result):
            raise call.error(
                f"moves storage of {operand.tensor} to {result} of another scale, which LiteRT "
                "refuses; --semantics exact requantizes it",
                UnsupportedError,
            )


def same_parameters(first: Tensor, second: Tensor) -> bool:
    """Return True if a storage value expresses the same real number in both tensors."""
    if not is_quantized(first) and not is_quantized(second):
        return True
    x, y = first.quantization, second.quantization
    if x is None or y is None or not (x.is_per_tensor and y.is_per_tensor):
        return False
    return first.type == second.type and x.scale == y.scale and x.zero_point == y.zero_point


def requantize_constant(storage: Array, source: Tensor, target: Tensor) -> Array:
    """Requantize constant storage exactly, with NumPy; both tensors have one scale."""
    x, y = quantization_parameters(source), quantization_parameters(target)
    zero_point = x.zero_points.astype(np.int64)
    centered = storage.astype(np.int64) - zero_point
    bound = max(abs(limit - int(zero_point)) for limit in (x.storage.minimum, x.storage.maximum))
    factor = np.array(Fraction(float(x.scales)) / Fraction(float(y.scales)), object)
    rounded = requantize([Term(centered, bound, factor)], y.zero_points, y.storage).value
    clipped = np.clip(rounded, y.storage.minimum, y.storage.maximum)
    return np.asarray(clipped, ElementType.parse(target.element).dtype)


def compute_on_storage(
    call: Call, requantized: Requantize, compute: Callable[[Call], list[AnyArray]]
) -> list[AnyArray] | None:
    """Move storage with the importer `compute`, requantized where scales differ.

    The result is None if an operand or a result has no single scale, so that the operator has to be
    computed on expressed values.
    """
    indices, results = moved_inputs(call), call.operator.outputs
    operands = [operand for index in indices if (operand := call.inputs[index]) is not None]
    tensors = [*(operand.tensor for operand in operands), *results]
    if not any(map(is_quantized, tensors)):
        return compute(call)
    if not all(is_quantized(each) and call.parameters(each).is_per_tensor for each in tensors):
        return None
    is_uniform = all(same_parameters(results[0], each) for each in results)
    target = results[0] if is_uniform or not operands else operands[0].tensor
    inputs = list(call.inputs)
    for index, operand in zip(indices, operands, strict=True):
        value = requantized(operand.value, operand.tensor, target)
        inputs[index] = Operand(_with_parameters(operand.tensor, target), value, operand.variable)
    outputs = tuple(_with_parameters(each, target) for each in results)
    operator = replace(call.operator, outputs=outputs)
    values = compute(replace(call, operator=operator, inputs=inputs))
    return [requantized(value, target, each) for value, each in zip(values, results, strict=True)]


def _with_parameters(tensor: Tensor, target: Tensor) -> Tensor:
    return replace(tensor, type=target.type, quantization=target.quantization)
