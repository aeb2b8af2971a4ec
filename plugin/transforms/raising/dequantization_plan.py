"""Plans of raised dequantizations: storage, blocks, and one parameter for each block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.dense import dense_of_array, known_integer
from ...dialects.quant import any_type_of, expressed_mlir_type, storage_mlir_type
from ...dialects.subquant import UNPACK
from ...emit import stablehlo, subquant
from ...emit.operation import is_used, value, with_element, with_shape
from ...numerics.packed_integers import plane_shapes
from ...numerics.parameters import StorageType
from ..base import NoMatch, producer_named, value_before
from .bit_fields import Field
from .contractions import Split
from .facts import MAX_STORAGE_BITS, ExpressedFact, IntegerFact
from .narrow_constants import NarrowStorage, narrow_storage, packed_constant
from .tensor_views import TensorView
from .views import Part as Dim
from .views import View, aligned


@dataclass(frozen=True)
class StorageForm:
    """Storage of the integers of a dequantization: a tensor, or packed words.

    Attributes:
        view: the position of each integer in the storage.
        type: the storage type.
        zero_points: the zero points, or None.
        root: the tensor, or the bit field of words and whether their nibbles are swapped.
        zero_root: the same for packed zero points, else None.
    """

    view: View
    type: StorageType
    zero_points: TensorView | None
    root: Value | tuple[Field, bool]
    zero_root: tuple[Field, bool] | None = None

    @classmethod
    def of(cls, integers: IntegerFact) -> list[StorageForm]:
        """The possible storages, packed words first."""
        packed = cls._packed(integers)
        storages = [] if packed is None else [packed]
        if integers.storage is not None and integers.type.width <= MAX_STORAGE_BITS:
            zero_points = integers.zero_points
            if zero_points is not None or integers.zero_field is None:
                storage = integers.storage
                storages.append(cls(storage.view, integers.type, zero_points, storage.root))
        return storages

    @classmethod
    def _packed(cls, integers: IntegerFact) -> StorageForm | None:
        """The storage in words; None where it is incomplete, or zero points do not fit."""
        field, zero_field = integers.field, integers.zero_field
        packed = None if field is None else field.packed()
        if field is None or packed is None or not field.is_complete:
            return None
        root, (least, most) = (field, packed[1]), field.type.type_range
        bias = np.int64(-field.bias)
        if zero_field is not None:
            zero = zero_field.packed()
            if zero is None or (zero_field.type, zero_field.bias) != (field.type, field.bias):
                return None
            zero_part = TensorView(None, zero[0])
            return cls(packed[0], field.type, zero_part, root, (zero_field, zero[1]))
        part = integers.zero_points
        if part is None and field.bias:
            part = TensorView(None, View(()).broadcast((), packed[0].shape), np.zeros((), np.int64))
        if part is not None and part.numbers is not None:
            numbers = part.numbers + bias
            if numbers.min() < least or numbers.max() > most:
                return None
            part = replace(part, numbers=numbers)
        elif part is not None:
            element = part.root.type.element_type
            if field.bias or element.width > field.width or element.is_unsigned == field.signed:
                return None
        return cls(packed[0], field.type, part, root)


@dataclass(frozen=True)
class DequantizationPlan:
    """A dequantization in the order of its storage.

    Attributes:
        fact: the expressed values.
        stored: the storage of their integers.
        blocks: the block sizes.
        grids: the scales, zero points and offsets, one element for each block.
        order: for each axis of the storage, the split axis of the program.
        split: the sizes that each axis of the program is split into.
    """

    fact: ExpressedFact
    stored: StorageForm
    blocks: list[int]
    grids: dict[str, TensorView]
    order: list[int]
    split: Split

    @classmethod
    def of(cls, fact: ExpressedFact) -> DequantizationPlan | NoMatch:
        """Find the blocks that a fact's parameters are constant on."""
        plan: DequantizationPlan | NoMatch = NoMatch(
            "takes some of the integers that words have, not all"
        )
        for stored in StorageForm.of(fact.integers):
            plan = cls._of(fact, stored)
            if isinstance(plan, DequantizationPlan):
                break
        return plan

    @classmethod
    def _of(cls, fact: ExpressedFact, stored: StorageForm) -> DequantizationPlan | NoMatch:
        one = TensorView(None, View(()).broadcast((), stored.view.shape), np.ones(()))
        named = {f"scales {number}": part for number, part in enumerate(fact.scales or (one,))}
        if stored.zero_points is not None and fact.real_zero_points is not None:
            return NoMatch("has zero points of integers and of floats")
        optional = {
            "zero_points": stored.zero_points,
            "offsets": fact.offsets,
            "real_zero_points": fact.real_zero_points,
        }
        named |= {name: part for name, part in optional.items() if part is not None}
        split_axes = aligned([stored.view, *(part.view for part in named.values())])
        if split_axes is None:
            return NoMatch("has scales along parts of an axis that do not divide each other")
        if any(not stride for axis in split_axes[0] for _, stride in axis):
            return NoMatch("has integers that are broadcast")
        runs = [_runs(axis) for axis in split_axes[0]]
        storage, *parameters = [
            [axis[a:b] for axis, own in zip(each, runs, strict=True) for a, b in own]
            for each in split_axes
        ]
        # The axes in the order of the storage; axes of size 1 keep their position.
        long = [axis for axis, dims in enumerate(storage) if dims]
        by_stride = iter(sorted(long, key=lambda axis: -storage[axis][0][1]))
        order = [next(by_stride) if dims else axis for axis, dims in enumerate(storage)]
        if not _is_row_major([part for axis in order for part in storage[axis]]):
            return NoMatch("has integers that are stored with others between them")
        counts = [_dims_of_blocks([each[axis] for each in parameters]) for axis in order]
        blocks = [
            math.prod(n for n, _ in storage[axis][count:])
            for axis, count in zip(order, counts, strict=True)
        ]
        if all(size == 1 for size in blocks) and math.prod(stored.view.shape) > 1:
            return NoMatch("has a scale for each element")
        grids = {
            name: replace(part, view=_grid(own, order, counts))
            for (name, part), own in zip(named.items(), parameters, strict=True)
        }
        split = [
            [math.prod(n for n, _ in axis[a:b]) for a, b in own]
            for axis, own in zip(split_axes[0], runs, strict=True)
        ]
        return cls(fact, stored, blocks, grids, order, split)

    def with_narrow_storage(
        self, packed_constants: dict[tuple[Value, NarrowStorage], Value]
    ) -> DequantizationPlan:
        """Emit the packed constant of a constant storage that fits fewer bits, once each.

        The result is the plan that reads it, or the same plan.
        """
        stored, zero_points = self.stored, self.stored.zero_points
        no_numbers = zero_points is not None and zero_points.numbers is None
        if isinstance(stored.root, tuple) or no_numbers:
            return self
        numbers = np.zeros((), np.int64) if zero_points is None else zero_points.numbers
        assert numbers is not None
        narrow = narrow_storage(stored.root, stored.type, numbers)
        if narrow is None:
            return self
        key = stored.root, narrow
        if key not in packed_constants:
            packed_constants[key] = packed_constant(stored.root, stored.type, narrow)
        grids = dict(self.grids)
        if narrow.offset:
            shape = grids["scales 0"].view.shape
            zero = TensorView(None, View(()).broadcast((), shape), np.zeros((), np.int64))
            part = grids.get("zero_points", zero)
            assert part.numbers is not None
            grids["zero_points"] = replace(part, numbers=part.numbers + narrow.offset)
        root = packed_constants[key]
        return replace(self, stored=replace(stored, root=root, type=narrow.type), grids=grids)

    def emit(self) -> tuple[Value, Value]:
        """Emit the dequantization; return it with split axes and in the program's shape."""
        expressed, stored = self.fact.expressed, self.stored
        real = expressed_mlir_type(expressed)
        scales: Value | None = None
        for name, part in self.grids.items():
            if name.startswith("scales"):
                factor = _tensor_of(part, real)
                if scales is not None:  # the product is exact
                    left, right = (stablehlo.convert(each, real) for each in (scales, factor))
                    factor = value("stablehlo.multiply", [left, right], left.type)
                scales = factor
        assert scales is not None  # there is one at least
        offsets = zero_points = None
        if "real_zero_points" in self.grids:
            zero_points, offsets = self._split_zero_points(scales, real)
        if "offsets" in self.grids:
            offsets = _tensor_of(self.grids["offsets"], real)
            if self.fact.subtracts:
                offsets = value("stablehlo.negate", [offsets], offsets.type)
        sizes, root = [size for axis in self.split for size in axis], _tensor_at(stored.root)
        storage = _reshaped_storage(root, [sizes[axis] for axis in self.order])
        if isinstance(stored.root, tuple) and storage != root and not is_used(root):
            root.owner.operation.erase()  # its planes are reshaped instead
        result = subquant.dequantize(
            storage,
            scales,
            self.blocks,
            ir.TypeAttr.get(any_type_of(stored.type, expressed)),
            real,
            self._zero_points() if zero_points is None else zero_points,
            offsets,
        )
        if self.fact.widened is not None:
            result = stablehlo.convert(result, expressed_mlir_type(self.fact.widened))
        back = [self.order.index(axis) for axis in range(len(self.order))]
        split = stablehlo.transpose(result, back)
        return split, stablehlo.reshape(split, self.stored.view.shape)

    def _split_zero_points(self, scales: Value, real: ir.Type) -> tuple[Value, Value | None]:
        """The nearest integers ``z'`` of zero points ``z``, and the offsets ``-(z - z') * s``.

        There are no offsets where the zero points are converted integers of the storage's range.
        """
        part, (low, high) = self.grids["real_zero_points"], self.stored.type.type_range
        converted = _converted_integers(part.root, low, high) if part.numbers is None else None
        if converted is not None:
            tensor = _tensor_of(replace(part, root=converted), real)
            return stablehlo.convert(_signless(tensor), _storage(self.stored.type)), None
        zeros = _tensor_of(part, real)
        bounds = [stablehlo.constant(bound, real) for bound in (low, high)]
        nearest = value("stablehlo.round_nearest_even", [zeros], zeros.type)
        nearest = stablehlo.clamp(bounds[0], nearest, bounds[1])
        rest = value("stablehlo.subtract", [nearest, zeros], zeros.type)
        offsets = value("stablehlo.multiply", [rest, stablehlo.convert(scales, real)], zeros.type)
        i32 = ir.IntegerType.get_signless(32)
        integers = stablehlo.convert(stablehlo.convert(nearest, i32), _storage(self.stored.type))
        return integers, offsets

    def _zero_points(self) -> Value | None:
        """The zero points as storage; None if there are none or all are 0."""
        part, storage = self.grids.get("zero_points"), self.stored.type
        if part is None or (part.numbers is not None and not part.numbers.any()):
            return None
        if self.stored.zero_root is not None:
            part = replace(part, root=_tensor_at(self.stored.zero_root))
        return _signless(_tensor_of(part, storage_mlir_type(storage)))


def _converted_integers(zero_points: Value, low: int, high: int) -> Value | None:
    """The clamped integers that float zero points are; None if some may be out of range."""
    conversion = producer_named(zero_points, "stablehlo.convert")
    if conversion is None or not isinstance(
        conversion.operands[0].type.element_type, ir.IntegerType
    ):
        return None
    integers: Value = conversion.operands[0]
    source = value_before(integers, "stablehlo.convert", "stablehlo.reshape")
    clamp = producer_named(source, "stablehlo.clamp")
    if clamp is None or not isinstance(source.type.element_type, ir.IntegerType):
        return None
    least, most = (known_integer(clamp.operands[index]) for index in (0, 2))
    is_in_range = least is not None and most is not None and low <= least and most <= high
    return integers if is_in_range and not integers.type.element_type.is_unsigned else None


def _storage(type_: StorageType) -> ir.Type:
    """The signless integer type of storage."""
    return ir.IntegerType.get_signless(type_.width)


def _tensor_at(root: Value | tuple[Field, bool]) -> Value:
    """The tensor of stored integers."""
    return root[0].unpacked(is_reversed=root[1]) if isinstance(root, tuple) else root


def _runs(dims: Sequence[Dim]) -> list[tuple[int, int]]:
    """The ranges of an axis' dimensions that are contiguous; at least one."""
    starts = [0]
    for index, (outer, inner) in enumerate(itertools.pairwise(dims), 1):
        if outer[1] != inner[0] * inner[1]:
            starts.append(index)
    return list(zip(starts, [*starts[1:], len(dims)], strict=True))


def _is_row_major(dims: Sequence[Dim]) -> bool:
    expected = 1
    for size, stride in reversed(dims):
        if stride != expected:
            return False
        expected *= size
    return True


def _dims_of_blocks(parameters: Sequence[Sequence[Dim]]) -> int:
    """The number of dimensions of an axis, but trailing ones along which no parameter varies."""
    count = len(parameters[0])
    while count and not any(dims[count - 1][1] for dims in parameters):
        count -= 1
    return count


def _grid(dims: Sequence[Sequence[Dim]], order: Sequence[int], counts: Sequence[int]) -> View:
    """The view of a parameter with one element for each block."""
    return View(tuple(tuple(dims[axis][:n]) for axis, n in zip(order, counts, strict=True)))


def _tensor_of(part: TensorView, element: ir.Type) -> Value:
    """A view as a tensor of its shape."""
    shape = list(part.view.shape)
    if part.numbers is not None:
        numbers = part.numbers.reshape(-1)[part.view.indices().reshape(-1)]
        return stablehlo.constant_of(dense_of_array(numbers.reshape(shape), element))
    dims = [each for axis in part.view.axes for each in axis]
    indices = [index for index, (_, stride) in enumerate(dims) if stride]
    by_stride = sorted(indices, key=lambda index: -dims[index][1])
    tensor = stablehlo.reshape(part.root, [dims[index][0] for index in by_stride])
    tensor = stablehlo.transpose(tensor, [by_stride.index(index) for index in indices])
    broadcast = with_shape(tensor.type, [size for size, _ in dims])
    return stablehlo.reshape(stablehlo.broadcast(tensor, broadcast, indices), shape)


def _reshaped_storage(root: Value, shape: Sequence[int]) -> Value:
    """Signless integers in another shape; packed ones stay packed where rows fill bytes."""
    root = _signless(root)
    unpacking = producer_named(root, UNPACK)
    if unpacking is None:
        return stablehlo.reshape(root, shape)
    bits = [int(count) for count in unpacking.attributes["bits"]]
    shapes = plane_shapes(shape, bits)
    if list(root.type.shape) == list(shape) or shapes is None:
        return stablehlo.reshape(root, shape)
    planes = [
        stablehlo.reshape(plane, shape)
        for plane, shape in zip(unpacking.operands, shapes, strict=True)
    ]
    return subquant.unpack(planes, bits, root.type.element_type)


def _signless(tensor: Value) -> Value:
    """Integers as signless ones, without a ``bitcast_convert`` that made them signed."""
    element = ir.IntegerType.get_signless(tensor.type.element_type.width)
    if tensor.type.element_type == element:
        return tensor
    type_ = with_element(tensor.type, element)
    bitcast = producer_named(tensor, "stablehlo.bitcast_convert")
    if bitcast is not None and bitcast.operands[0].type == type_:
        return bitcast.operands[0]
    return value("stablehlo.bitcast_convert", [tensor], type_)
