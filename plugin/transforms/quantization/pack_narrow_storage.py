"""``pack-narrow-storage``: bit-pack arguments, constants and parameters of 2 to 6 bits.

Programs have tensors of whole integers. This pass gives public functions bytes for arguments of
2, 3, 4, 5 or 6 bits (integers, or quantized values with this storage), and constants and globals
bytes, in the layout of `subquant.numerics.packed_integers`; ``subquant.unpack`` unpacks them. If
they are a block-quantized weight, ``fuse-block-contractions`` makes the bytes an operand of the
contraction; elsewhere ``lower-packed-storage`` unpacks them.

Before::

    func.func @f(%q: tensor<8x64xi4>) -> ...

After::

    func.func @f(%b: tensor<8x32xi8>) -> ... {
      %q = "subquant.unpack"(%b) {bits = array<i64: 4>} : (tensor<8x32xi8>) -> tensor<8x64xi4>

These are not packed, but have an integer in each byte:

* results, and arguments of functions that are called in the module;
* dynamic shapes, and a last axis whose integers do not fill bytes (a multiple of 2 for 4 bits, of 4
  for 2 and 6, of 8 for 3 and 5);
* globals that are stored to, and constants of fewer than 256 elements: zero points and tables.

The runtime packs arguments by the signature (`subquant.signature`); a parameter's file has bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense, dense_of_array
from ...dialects.quant import parameters_of, storage_mlir_type
from ...dialects.subquant import UNPACK
from ...emit import linalg, stablehlo, subquant
from ...emit.operation import tensor_type, value, with_element
from ...errors import Remark
from ...numerics.element_types import Array
from ...numerics.packed_integers import PLANE_BITS, pack_planes, packed_shape, plane_shapes
from ..base import (
    UNCHANGED,
    ModulePass,
    is_public,
    named,
    producer_named,
    record_signature,
    value_before,
)

MIN_PACKED_ELEMENTS = 256
"""Elements from which on a constant is packed; smaller ones stay unpacked."""


@dataclass(frozen=True)
class PackNarrowStorage(ModulePass):
    """Store narrow integers in the bytes of planes."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Pack in `module`."""
        uses = ("func.call", "util.global.load", "util.global.store", UNPACK)
        operations = named(module, (*CONSTANTS, *uses, "func.func", "util.global"))
        called = {op.attributes["callee"].value for op in operations if op.name == "func.call"}
        stored_to = {
            op.attributes["global"].value for op in operations if op.name == "util.global.store"
        }
        loads = [op for op in operations if op.name == "util.global.load"]
        packed: dict[str, PackedForm] = {}
        changed = False
        for op in operations:
            if op.name in CONSTANTS:
                changed |= _pack_constant(op)
            elif op.name == UNPACK:
                changed |= _keep_packed(op)
            elif op.name == "func.func":
                if is_public(op) and op.attributes["sym_name"].value not in called:
                    changed |= _pack_arguments(op)
            elif op.name == "util.global":
                name = op.attributes["sym_name"].value
                form = None if name in stored_to else _pack_global(op)
                if form is not None:
                    packed[name] = form
        for op in loads:
            form = packed.get(op.attributes["global"].value)
            if form is not None:
                with ir.InsertionPoint(op), op.location:
                    symbol = {"global": op.attributes["global"]}
                    bytes_ = value("util.global.load", [], form.bytes, symbol)
                    op.results[0].replace_all_uses_with(form.unpacked(bytes_))
                op.erase()
        return None if changed or packed else UNCHANGED


@dataclass(frozen=True)
class PackedForm:
    """A tensor type of narrow integers, and the type of its packed bytes.

    `element` is its integer type, or its storage type if it is quantized; an integer has `bits`
    bits in each plane.
    """

    type: ir.RankedTensorType
    element: ir.IntegerType
    bits: tuple[int, ...]
    bytes: ir.RankedTensorType

    @classmethod
    def of(cls, type_: ir.Type, op: Operation) -> PackedForm | None:
        """The packing of a tensor type, or None if it is not packed."""
        if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
            return None
        parameters, element = parameters_of(type_, op), type_.element_type
        if parameters is not None:
            element = storage_mlir_type(parameters.storage)
        if not isinstance(element, ir.IntegerType) or type_.encoding is not None:
            return None
        bits = PLANE_BITS.get(element.width)
        shape = None if bits is None else packed_shape([int(n) for n in type_.shape], bits)
        if bits is None or shape is None or 0 in shape:
            return None
        byte = ir.IntegerType.get_signless(8)
        return cls(type_, element, bits, tensor_type(shape, byte))

    def unpacked(self, bytes_: Value) -> Value:
        """Unpack the tensor from its bytes."""
        shape = [int(n) for n in self.type.shape]
        shapes = plane_shapes(shape, self.bits)
        assert shapes is not None  # checked by `of`
        planes, first = [bytes_], 0
        if len(shapes) > 1:
            planes = []
            for plane in shapes:
                end = first + math.prod(plane)
                section = stablehlo.slice_(bytes_, [first], [end], [1])
                planes.append(stablehlo.reshape(section, plane))
                first = end
        signless = ir.IntegerType.get_signless(self.element.width)
        integers = subquant.unpack(planes, self.bits, signless)
        if self.element != signless:
            type_ = with_element(integers.type, self.element)
            integers = value("stablehlo.bitcast_convert", [integers], type_)
        if self.type.element_type == self.element:
            return integers
        return value("subquant.scast", [integers], self.type)

    def packed(self, integers: Array) -> ir.DenseElementsAttr:
        """The bytes of integers of the type's shape."""
        planes = pack_planes(integers.astype(np.int8, copy=False), self.bits)
        array = np.concatenate([plane.reshape(-1) for plane in planes])
        shape = [int(n) for n in self.bytes.shape]
        return dense_of_array(array.view(np.int8).reshape(shape), self.bytes.element_type)

    def constant(self, integers: Array) -> Value:
        """Unpack a constant of packed bytes."""
        return self.unpacked(_barrier(linalg.constant(self.packed(integers))))


def _pack_constant(op: Operation) -> bool:
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or attribute.is_splat:
        return False
    form = PackedForm.of(op.results[0].type, op) if len(attribute) >= MIN_PACKED_ELEMENTS else None
    if form is None or form.type.element_type != form.element:
        return False
    with ir.InsertionPoint(op), op.location:
        op.results[0].replace_all_uses_with(form.constant(array_of_dense(attribute)))
    op.erase()
    return True


def _keep_packed(op: Operation) -> bool:
    """Put barriers behind planes that are constants, so that IREE does not unpack them."""
    is_changed = False
    for number, operand in enumerate(op.operands):
        if producer_named(value_before(operand, "stablehlo.reshape"), *CONSTANTS) is not None:
            with ir.InsertionPoint(op), op.location:
                op.operands[number] = _barrier(operand)
            is_changed = True
    return is_changed


def _barrier(bytes_: Value) -> Value:
    """Bytes that IREE does not fold at compile time: it would store them unpacked."""
    return value("util.optimization_barrier", [bytes_], bytes_.type)


def _pack_arguments(function: Operation) -> bool:
    if len(function.regions[0].blocks) == 0:
        return False  # a declaration
    type_ = function.attributes["function_type"].value
    inputs, block = list(type_.inputs), function.regions[0].blocks[0]
    for number, input_type in enumerate(type_.inputs):
        form = PackedForm.of(input_type, function)
        if form is None:
            continue
        inputs[number] = form.bytes
        argument = block.arguments[number]
        with ir.InsertionPoint.at_block_begin(block), function.location:
            first = value("builtin.unrealized_conversion_cast", [argument], form.bytes)
            unpacked = form.unpacked(first)
        argument.replace_all_uses_except(unpacked, [first.owner.operation])
        argument.set_type(form.bytes)
        first.replace_all_uses_with(argument)
        first.owner.operation.erase()
    if inputs == list(type_.inputs):
        return False
    record_signature(function)
    changed = ir.FunctionType.get(inputs, list(type_.results))
    function.attributes["function_type"] = ir.TypeAttr.get(changed)
    return True


def _pack_global(op: Operation) -> PackedForm | None:
    """Pack a global; None for mutable ones, without initial value, or of types not packed."""
    form = PackedForm.of(op.attributes["type"].value, op)
    if form is None or "is_mutable" in op.attributes or "initial_value" not in op.attributes:
        return None
    initial: Any = op.attributes["initial_value"]
    if isinstance(initial, ir.DenseElementsAttr):
        op.attributes["initial_value"] = form.packed(array_of_dense(initial))
    else:
        name, _, _ = str(initial).rpartition(" : ")  # a parameter, of a dialect of IREE's
        op.attributes["initial_value"] = ir.Attribute.parse(f"{name} : {form.bytes}")
    op.attributes["type"] = ir.TypeAttr.get(form.bytes)
    return form
