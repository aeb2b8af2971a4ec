"""Engine of ``subquant inspect`` for modules: quantized tensors, their sizes and their precision.

`inspect_module` makes one `InspectedTensor` of each value with a quantized type, and of each
storage tensor that ``subquant.quantize`` writes or ``subquant.dequantize`` reads. The table, the
JSON and the plots show these records, and therefore agree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..core._mlir import Operation, Value, ir, place_of
from ..dialects import quant
from ..dialects.dense import constant_array
from ..dialects.quant import element_type, is_quantized
from ..dialects.subquant import BLOCK_CONTRACTION, OPERAND_OPS, UNPACK, operands_of
from ..emit.operation import producer_named
from ..emit.stablehlo_semantics import reshape_source
from ..errors import VerificationError
from ..numerics.element_types import Array
from ..numerics.parameters import Granularity, QuantizationParameters
from ..transforms.base import NAMES_ATTRIBUTES, value_before, walk
from .inspected_tensors import InspectedTensor

Number = TypeVar("Number", int, float)


def inspect_module(module: ir.Module) -> list[InspectedTensor]:
    """Describe every quantized tensor of `module`, in program order, each value once.

    The result of a function is the value that it returns, so it has a record of its own only in a
    declaration.

    Raises:
        UnsupportedError: a quantized type that `parameters_of` does not represent.
        VerificationError: a ``subquant`` operation without its required attributes.
    """
    names = ir.AsmState(module.operation)
    of_type: dict[ir.Type, InspectedTensor] = {}
    tensors: dict[Value | tuple[Operation, str], InspectedTensor] = {}

    def describe(type_: ir.Type, op: Operation) -> InspectedTensor:
        if not is_quantized(type_):
            return _of_operands(op)
        if type_ not in of_type:
            of_type[type_] = _of_type(type_, op)
        return of_type[type_]

    for op in walk(module.operation):
        for value, where in _values(op):
            if value not in tensors:
                tensors[value] = replace(
                    describe(value.type, op),
                    name=_given_name(value) or value.get_name(names),
                    function=_function_of(op),
                    place=place_of(value.location),
                    where=where,
                    holds_scales=_holds_scales(value),
                )
        for type_, name, where in _declared(op):
            tensors[op, name] = replace(
                describe(type_, op),
                name=name,
                function=_function_of(op),
                place=place_of(op.location),
                where=where,
            )
    return list(tensors.values())


def _given_name(value: Value) -> str:
    """Return the source name of an argument; "" if it has none."""
    owner = value.owner
    if not isinstance(owner, ir.Block) or not _is_function(owner.owner):
        return ""
    attribute = owner.owner.attributes.get(NAMES_ATTRIBUTES[0])
    texts = list(attribute) if isinstance(attribute, ir.ArrayAttr) else []
    names = [text.value if isinstance(text, ir.StringAttr) else "" for text in texts]
    number = list(owner.arguments).index(value)
    return str(names[number]) if number < len(names) else ""


def _values(op: Operation) -> Iterator[tuple[Value, str]]:
    """Yield the quantized values that `op` defines or describes, and their kinds."""
    if op.name in _READS_STORAGE:
        yield _storage_of(op), f"operand of '{op.name}'"
    for result in op.results:
        if op.name == "subquant.quantize" or is_quantized(result.type):
            yield result, f"result of '{op.name}'"
    for number, block in enumerate(block for region in op.regions for block in region):
        where = f"block argument of '{op.name}'" if number or not _is_function(op) else "argument"
        yield from ((value, where) for value in block.arguments if is_quantized(value.type))


def _declared(op: Operation) -> Iterator[tuple[ir.Type, str, str]]:
    """Yield the quantized types in the signature of a declaration."""
    if _is_function(op) and not any(len(region.blocks) for region in op.regions):
        signature = op.attributes["function_type"].value
        for types, name, where in (
            (signature.inputs, "argument", "argument"),
            (signature.results, "result", "function result"),
        ):
            for number, type_ in enumerate(types):
                if is_quantized(type_):
                    yield type_, f"{name} {number}", where


_HAS_PARAMETERS = (*OPERAND_OPS, BLOCK_CONTRACTION)
_READS_STORAGE = ("subquant.dequantize", BLOCK_CONTRACTION)


def _storage_of(op: Operation) -> Value:
    """The storage operand of an operation of `_READS_STORAGE`, or the operand of a quantize."""
    operands = operands_of(op)
    return operands["storage"] if op.name == BLOCK_CONTRACTION else operands["input"]


def _is_function(op: Operation) -> bool:
    return "function_type" in op.attributes and "sym_name" in op.attributes


def _function_of(op: Operation) -> str:
    while op is not None and not _is_function(op):
        op = op.parent
    return "" if op is None else op.attributes["sym_name"].value


def _holds_scales(value: Value) -> bool:
    """Tell whether all that is dequantized from `value` serves as parameters of other tensors."""
    readers = [use.owner for use in value.uses if use.owner.name == "subquant.dequantize"]
    uses = [use for reader in readers for use in reader.results[0].uses]
    return bool(uses) and all(
        use.owner.name in _HAS_PARAMETERS
        and list(operands_of(use.owner))[use.operand_number] in ("scales", "offsets")
        for use in uses
    )


def _shape_of(type_: ir.Type) -> tuple[int | None, ...] | None:
    if not isinstance(type_, ir.ShapedType):
        return ()
    if not type_.has_rank:
        return None
    sizes = (None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    return tuple(sizes)


def _range(values: Array, number: Callable[[Any], Number]) -> tuple[Number, Number] | None:
    return (number(values.min()), number(values.max())) if values.size else None


_unnamed = functools.partial(InspectedTensor, "", "", None, "")
"""A tensor whose name and location are not known yet."""


def _of_type(type_: ir.Type, op: Operation) -> InspectedTensor:
    parameters = quant.parameters_of(type_, op)
    assert parameters is not None  # is_quantized was asked
    zero_bits = 0 if parameters.is_symmetric else parameters.storage.width
    return _unnamed(
        shape=_shape_of(type_),
        parameters=parameters,
        scale_type=parameters.expressed.value,
        scale_count=parameters.scales.size,
        scale_range=_range(parameters.scales, float),
        zero_point_range=_range(parameters.zero_points, int),
        scale_bits=parameters.expressed.dtype.itemsize * 8 + zero_bits,
    )


def _of_operands(op: Operation) -> InspectedTensor:
    """Describe the storage tensor of an operation whose scales are an operand."""
    named = {name: op.attributes[name] for name in op.attributes}
    sizes, quantized = named.get("block_sizes"), named.get("quantized_type")
    types = (
        quant.storage_of_any(quantized.value, op) if isinstance(quantized, ir.TypeAttr) else None
    )
    if types is None or not isinstance(sizes, ir.DenseI64ArrayAttr):
        requirement = (
            "must have 'block_sizes = array<i64: ...>' and 'quantized_type = !quant.any<...>'"
        )
        raise VerificationError(f"{requirement}, got {sizes} and {quantized}", op)
    storage, expressed = types
    operands = operands_of(op)
    grid = _shape_of(operands["scales"].type)
    axes = tuple(a for a in range(len(sizes)) if grid is None or grid[a : a + 1] != (1,))
    blocks = tuple(sizes[axis] for axis in axes)
    zero_bits = 0
    scales = constant_array(operands["scales"])
    zero_points: Array = np.zeros((), np.int64)
    zero_range: tuple[int, int] | None = (0, 0)
    if "zero_points" in operands:
        zero_bits, zero_range = element_type(operands["zero_points"].type).width, None
        constant = constant_array(operands["zero_points"])
        if constant is not None:
            zero_points = constant if storage.signed else constant & ((1 << zero_bits) - 1)
            zero_range = _range(zero_points, int)
            if zero_range is not None and zero_range[0] == zero_range[1]:
                zero_bits = 0  # a number of the code
    shown = np.full(zero_points.shape, np.nan) if scales is None else scales
    if zero_points.ndim and zero_points.shape != shown.shape:
        requirement = f"must have scales and zero points of one shape, got {shown.shape} and "
        raise VerificationError(f"{requirement}{zero_points.shape}", op)
    zero_points = np.broadcast_to(zero_points, shown.shape)
    granularity: Granularity = "sub-channel" if axes else "per-tensor"
    if not axes and shown.size == 1:
        shown, zero_points = shown.reshape(()), zero_points.reshape(())
    elif blocks == (1,):
        granularity = "per-axis"
        if shown.ndim:
            shown, zero_points = shown.reshape(-1), zero_points.reshape(-1)
    return _unnamed(
        shape=_shape_of(_storage_of(op).type),
        parameters=QuantizationParameters(
            storage, expressed, axes, blocks, shown, zero_points, granularity
        ),
        scale_type=str(element_type(operands["scales"].type)),
        scale_count=None if grid is None or None in grid else math.prod(n or 0 for n in grid),
        scale_range=None if scales is None else _range(scales, float),
        zero_point_range=zero_range,
        plane_bits=_plane_bits(op),
        scale_bits=zero_bits
        + sum(_scale_bits(operands[name]) for name in ("scales", "offsets") if name in operands),
    )


def _plane_bits(op: Operation) -> int | None:
    """Return the bits of an integer in the planes of the storage; None where it has no planes."""
    attributes = {name: op.attributes[name] for name in op.attributes}
    unpacking = None if op.name == BLOCK_CONTRACTION else _unpacking_of(_storage_of(op))
    bits = attributes.get("plane_bits") if unpacking is None else unpacking.attributes["bits"]
    return None if bits is None else sum(int(count) for count in bits)


def _unpacking_of(storage: Value) -> Operation | None:
    """Return the unpacking of integers, or of their indices in a table; None without any."""
    source = reshape_source(storage)
    lookup = producer_named(source, "stablehlo.gather")
    if lookup is not None:
        source = value_before(lookup.operands[1], "stablehlo.convert", "stablehlo.reshape")
    return producer_named(source, UNPACK)


def _scale_bits(scales: Value) -> float:
    """Bits of one scale: of its type, or of the super-block that it is dequantized from."""
    inner = None if isinstance(scales.owner, ir.Block) else scales.owner.operation
    if inner is not None and inner.name == "subquant.dequantize":
        bits = _of_operands(inner).bits_per_element
        if bits is not None:
            return bits
    return float(element_type(scales.type).width)
