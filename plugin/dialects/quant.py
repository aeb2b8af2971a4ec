"""Upstream's ``quant`` dialect: its types as `QuantizationParameters`, and back.

The bindings have no operation classes for this dialect, so operations are known by name:
``quant.qcast``, ``quant.dcast`` and ``quant.scast``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import numpy as np

from ..core._mlir import Operation, ir, quant
from ..errors import UnsupportedError, VerificationError
from ..numerics.element_types import Array
from ..numerics.parameters import (
    ExpressedType,
    Granularity,
    QuantizationParameters,
    StorageType,
)
from .dense import array_of_dense, dense_of_array

QCASTS = ("quant.qcast", "subquant.qcast")
DCASTS = ("quant.dcast", "subquant.dcast")
SCASTS = ("quant.scast", "subquant.scast")
"""Casts of upstream and of the dialect `subquant`, which also casts unranked tensors."""

_SIGNED_FLAG = 1
"""The flag of signed storage: ``QuantizationFlags::Signed`` of MLIR's ``QuantTypes.h``."""
_MAX_RANK = 32
"""Axes of scales, at most: the bindings return no dense attribute of more as an array."""

_EXPRESSED = {expressed.value: expressed for expressed in ExpressedType}

_UNIFORM = (
    quant.UniformQuantizedType,
    quant.UniformQuantizedPerAxisType,
    quant.UniformQuantizedSubChannelType,
)


def element_type(type_: ir.Type) -> ir.Type:
    """Return the element type of a shaped type, or the type itself."""
    return type_.element_type if isinstance(type_, ir.ShapedType) else type_


def shape_of(type_: ir.ShapedType) -> list[int | None]:
    """The dimension sizes of a shaped type; None if dynamic."""
    return [None if type_.is_dynamic_dim(a) else int(n) for a, n in enumerate(type_.shape)]


def parts_of(type_: ir.Type) -> list[ir.Type]:
    """The types in tuples and function types, or the type itself; each once."""
    leaves: list[ir.Type] = []
    seen: set[ir.Type] = set()
    pending = [type_]
    while pending:  # not recursive: aliases nest tuples as deep as a file is long
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, ir.FunctionType):
            pending += reversed((*current.inputs, *current.results))
        elif isinstance(current, ir.TupleType):
            pending += (current.get_type(n) for n in reversed(range(current.num_types)))
        else:
            leaves.append(current)
    return leaves


def is_quantized(type_: ir.Type) -> bool:
    """True for a quantized type and for a shaped type with quantized elements."""
    return isinstance(element_type(type_), quant.QuantizedType)


def raising(problems: Callable[[Operation], Iterator[str]]) -> Callable[[Operation], None]:
    """Let a function that yields broken rules raise a VerificationError for the first one.

    A rule may rely on those before it.
    """

    @functools.wraps(problems)
    def check(op: Operation) -> None:
        for problem in problems(op):
            raise VerificationError(problem, op)

    return check


# -- types ----------------------------------------------------------------------------------------


def _storage_of(type_: ir.Type, at: Operation | None) -> StorageType:
    storage = type_.storage_type
    if not isinstance(storage, ir.IntegerType):
        raise UnsupportedError(
            f"quantized storage type must be an integer of 2 to 32 bits, got '{storage}'; "
            "write for example i4, u4 or i8",
            at,
        )
    width = int(type_.storage_type_integral_width)
    if not 2 <= width <= 32:
        raise UnsupportedError(
            f"quantized storage type must be an integer of 2 to 32 bits, got '{storage}'", at
        )
    minimum, maximum = int(type_.storage_type_min), int(type_.storage_type_max)
    signed = bool(type_.is_signed)
    if not signed:  # a u32 bound above 2^31-1 may come back as negative
        minimum, maximum = (bound & ((1 << width) - 1) for bound in (minimum, maximum))
    return StorageType(width, signed, minimum, maximum)


def _expressed_of(type_: ir.Type, at: Operation | None) -> ExpressedType:
    # The bindings crash on the missing expressed type of `!quant.any<i8>`.
    untyped = r"!quant\.any<\w+(<[^<>]*>)?>"
    if isinstance(type_, quant.AnyQuantizedType) and re.fullmatch(untyped, str(type_)):
        raise UnsupportedError(
            f"quantized type must name an expressed type, got '{type_}'; "
            "write for example !quant.any<i8:f32>",
            at,
        )
    expressed = _EXPRESSED.get(str(type_.expressed_type))
    if expressed is None:
        raise UnsupportedError(
            f"expressed type must be f16, bf16, f32 or f64, got '{type_.expressed_type}'", at
        )
    return expressed


def raw_scales(type_: ir.Type) -> Array:
    """Return a quantized type's scales as written, before rounding to the expressed type."""
    element = element_type(type_)
    if isinstance(element, quant.UniformQuantizedType):
        return np.array(element.scale, np.float64)
    if isinstance(element, quant.UniformQuantizedPerAxisType):
        return np.array(element.scales, np.float64)
    return array_of_dense(element.scales).astype(np.float64)


def parameters_of(type_: ir.Type, at: Operation | None = None) -> QuantizationParameters | None:
    """Read the parameters of a quantized type (or of a shaped type's elements); None for others.

    Raises:
        UnsupportedError: a quantized type without uniform parameters (``!quant.any``,
            ``!quant.calibrated``), a storage type that is not an integer of 2 to 32 bits, or an
            expressed type other than f16, bf16, f32 and f64.
    """
    element = element_type(type_)
    if not isinstance(element, quant.QuantizedType):
        return None
    if not isinstance(element, _UNIFORM):
        raise UnsupportedError(
            f"quantized type must have uniform parameters, got '{element}'; "
            "expected !quant.uniform<...>",
            at,
        )
    storage = _storage_of(element, at)
    expressed = _expressed_of(element, at)
    granularity: Granularity
    axes: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()
    if isinstance(element, quant.UniformQuantizedType):
        granularity = "per-tensor"
        scales, zero_points = np.array(element.scale), np.array(element.zero_point)
    elif isinstance(element, quant.UniformQuantizedPerAxisType):
        granularity, axes, block_sizes = "per-axis", (int(element.quantized_dimension),), (1,)
        scales, zero_points = np.array(element.scales), np.array(element.zero_points)
    else:
        granularity = "sub-channel"
        axes, block_sizes = tuple(element.quantized_dimensions), tuple(element.block_sizes)
        rank = element.scales.type.rank
        if rank > _MAX_RANK:
            raise UnsupportedError(
                f"scales of a quantized type have rank {rank}; expected at most {_MAX_RANK}", at
            )
        scales, zero_points = map(array_of_dense, (element.scales, element.zero_points))
        if not storage.signed:
            zero_points = zero_points & ((1 << storage.width) - 1)
    return QuantizationParameters(
        storage, expressed, axes, block_sizes, scales, zero_points, granularity
    )


def storage_of_any(
    type_: ir.Type, at: Operation | None = None
) -> tuple[StorageType, ExpressedType] | None:
    """Read storage and expressed type of ``!quant.any<...>``, or return None for another type.

    Raises:
        UnsupportedError: no expressed type, or types outside what `parameters_of` accepts.
    """
    if not isinstance(type_, quant.AnyQuantizedType):
        return None
    return _storage_of(type_, at), _expressed_of(type_, at)


def any_type_of(storage: StorageType, expressed: ExpressedType) -> ir.Type:
    """Write storage and expressed type as ``!quant.any``: undo `storage_of_any`."""
    return quant.AnyQuantizedType.get(
        _SIGNED_FLAG if storage.signed else 0,
        storage_mlir_type(storage),
        expressed_mlir_type(expressed),
        storage.minimum,
        storage.maximum,
    )


def described_type(op: Operation) -> tuple[StorageType, ExpressedType]:
    """Read the attribute ``quantized_type``, a type ``!quant.any<...>``, of an operation.

    Raises:
        VerificationError: it is none.
        UnsupportedError: as `storage_of_any`.
    """
    any_type = getattr(op.attributes["quantized_type"], "value", None)
    described = None if any_type is None else storage_of_any(any_type, op)
    if described is None:
        raise VerificationError(
            "attribute 'quantized_type' must be a type !quant.any<storage<min:max>:expressed>, "
            f"got '{op.attributes['quantized_type']}'",
            op,
        )
    return described


def storage_mlir_type(storage: StorageType) -> ir.Type:
    """Return the signless integer type that stores a value."""
    return ir.IntegerType.get_signless(storage.width)


def expressed_mlir_type(expressed: ExpressedType) -> ir.Type:
    """Return the MLIR type of an expressed type."""
    classes = {"f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "f64": ir.F64Type}
    return classes[expressed.value].get()


def with_axis(element: ir.Type, axis: int) -> ir.Type:
    """Return a per-axis type with another quantized dimension, its scales as they are written."""
    return quant.UniformQuantizedPerAxisType.get(
        _SIGNED_FLAG if element.is_signed else 0,
        element.storage_type,
        element.expressed_type,
        list(element.scales),
        list(element.zero_points),
        axis,
        element.storage_type_min,
        element.storage_type_max,
    )


def type_of(parameters: QuantizationParameters) -> ir.Type:
    """Write parameters as an MLIR type. A context and a location must be current."""
    storage, scales, zero_points = parameters.storage, parameters.scales, parameters.zero_points
    storage_type = storage_mlir_type(storage)
    expressed_type = expressed_mlir_type(parameters.expressed)
    types = (_SIGNED_FLAG if storage.signed else 0, storage_type, expressed_type)
    bounds = (storage.minimum, storage.maximum)
    if parameters.granularity == "per-tensor":
        return quant.UniformQuantizedType.get(*types, float(scales), int(zero_points), *bounds)
    if parameters.granularity == "per-axis":
        return quant.UniformQuantizedPerAxisType.get(
            *types,
            [float(scale) for scale in scales],
            [int(zero_point) for zero_point in zero_points],
            parameters.axes[0],
            *bounds,
        )
    return quant.UniformQuantizedSubChannelType.get(
        *types,
        dense_of_array(scales, expressed_type),
        dense_of_array(zero_points, storage_type),
        list(parameters.axes),
        list(parameters.block_sizes),
        *bounds,
    )
