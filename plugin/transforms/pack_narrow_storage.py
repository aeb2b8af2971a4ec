"""``pack-narrow-storage``: 4-bit arguments and constants are stored two to a byte.

``legalize-integer-widths`` holds i4 in i8. This pass gives public functions bytes for such
arguments, and constants bytes, each with two elements of the last axis, the even one in the low
bits. IREE reads the bytes as i4 (``flow.tensor.bitcast``) and extends elements in the loop that
reads them: measured on llvm-cpu and Vulkan, the extension is in the dispatch of the contraction, in
registers, where an unpacking of bytes by a loop nest of ours is a dispatch of its own.

Before (``%q`` was written as ``tensor<8x64xi4>``)::

    func.func @f(%q: tensor<8x64xi8>) -> ...

After::

    func.func @f(%b: tensor<8x32xi8>) -> ... {
      %n = "flow.tensor.bitcast"(%b) : (tensor<8x32xi8>) -> tensor<8x64xi4>
      %q = linalg.generic ins(%n) { arith.extsi ... : i4 to i8 } -> tensor<8x64xi8>

Left as they are: results, functions that are called in the module, dynamic shapes, and a last axis
whose extent is no multiple of 64 (and not 16 or 32): IREE 3.13 has no masked loads of i4, which it
makes where a vector is no divisor of a loop. The runtime packs arguments as the signature says
(`subquant.signature`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .._mlir import Operation, Value, ir
from ..dialects.dense import array_of_dense, dense_of_array
from ..dialects.quant import element_type, parameters_of
from ..emit import linalg
from ..emit.operation import value, with_element, with_shape
from ..errors import Remark
from ..numerics.packed_integers import pack_bits
from .base import BITS_ATTRIBUTE, SIGNATURE_ATTRIBUTE, UNCHANGED, ModulePass, is_public, named

__all__ = ["PackNarrowStorage"]

_BITS = 4
_VECTOR = 64
"""Elements of the longest vector that IREE loads."""
_SHORTER = (16, 32)
"""Extents of one vector: the usual sizes of blocks."""
_WORTH_PACKING = 256
"""Elements of a constant from which on it is packed; smaller ones are zero points and tables."""


@dataclass(frozen=True)
class PackNarrowStorage(ModulePass):
    """Store 4-bit arguments and constants two to a byte."""

    name: ClassVar[str] = "pack-narrow-storage"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Pack in `module`."""
        changed = False
        operations = named(module, ("arith.constant", "func.call", "func.func"))
        called = {op.attributes["callee"].value for op in operations if op.name == "func.call"}
        for op in operations:
            if op.name == "arith.constant":
                changed |= BITS_ATTRIBUTE in op.attributes and _pack_constant(op)
            elif (
                op.name == "func.func"
                and SIGNATURE_ATTRIBUTE in op.attributes
                and is_public(op)
                and op.attributes["sym_name"].value not in called
            ):
                changed |= _pack_arguments(op)
        return None if changed else UNCHANGED


def _pack_constant(op: Operation) -> bool:
    """Pack a constant, if it is worth it; return whether it was."""
    bits = op.attributes[BITS_ATTRIBUTE].value
    del op.attributes[BITS_ATTRIBUTE]
    attribute, type_ = op.attributes["value"], op.results[0].type
    packed = _packed_type(type_, bits)
    if packed is None or attribute.is_splat or len(attribute) < _WORTH_PACKING:
        return False
    values = array_of_dense(attribute)
    with ir.InsertionPoint(op), op.location:
        array = pack_bits(values & (2**_BITS - 1), _BITS).view(np.int8)
        constant = linalg.constant(dense_of_array(array, packed.element_type))
        # IREE would extend the constant when it compiles, and store that.
        wide = _extended(value("util.optimization_barrier", [constant], packed), type_)
    op.results[0].replace_all_uses_with(wide)
    op.erase()
    return True


def _pack_arguments(function: Operation) -> bool:
    """Pack the arguments of a function that can be; return whether there were any."""
    written = function.attributes[SIGNATURE_ATTRIBUTE].value
    compiled = function.attributes["function_type"].value
    if len(function.regions[0].blocks) == 0 or len(written.inputs) != len(compiled.inputs):
        return False  # a declaration, or an unranked tensor, which is two arguments
    inputs = list(compiled.inputs)
    block = function.regions[0].blocks[0]
    for number, (given, type_) in enumerate(zip(written.inputs, inputs, strict=True)):
        packed = _packed_type(type_, _width(given, function))
        if packed is None:
            continue
        inputs[number] = packed
        argument = block.arguments[number]
        argument.set_type(packed)
        with ir.InsertionPoint.at_block_begin(block), function.location:
            wide = _extended(argument, type_)
        narrow = wide.owner.operation.operands[0].owner.operation
        argument.replace_all_uses_except(wide, [narrow])
    if inputs == list(compiled.inputs):
        return False
    changed = ir.FunctionType.get(inputs, list(compiled.results))
    function.attributes["function_type"] = ir.TypeAttr.get(changed)
    return True


def _width(type_: ir.Type, op: Operation) -> int:
    """The bits of the integers of a type as it was written; 0 for another type."""
    parameters = parameters_of(type_, op)
    element = element_type(type_)
    if parameters is not None:
        return parameters.storage.width
    return element.width if isinstance(element, ir.IntegerType) else 0


def _packed_type(type_: ir.Type, bits: int) -> ir.RankedTensorType | None:
    """Bytes for a tensor of so many bits that is held in bytes, or None."""
    if bits != _BITS or not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return None
    shape = [int(n) for n in type_.shape]
    fits = bool(shape) and (shape[-1] % _VECTOR == 0 or shape[-1] in _SHORTER)
    if not fits or 0 in shape or type_.element_type.width != 8:
        return None
    return with_shape(type_, [*shape[:-1], shape[-1] // 2])


def _extended(packed: Value, type_: ir.RankedTensorType) -> Value:
    """The elements of bytes, in bytes of their own: a loop nest that IREE fuses."""
    narrow = with_element(type_, ir.IntegerType.get_signless(_BITS))
    segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0])}
    read = value("flow.tensor.bitcast", [packed], narrow, segments)
    output = linalg.empty([int(n) for n in type_.shape], type_.element_type)
    identity = linalg.identity_map(type_.rank)

    def body(element: Value, _: Value) -> Value:
        return value("arith.extsi", [element], type_.element_type)

    return linalg.generic([read], output, [identity, identity], body)
