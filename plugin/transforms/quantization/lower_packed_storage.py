"""``lower-packed-storage``: lower ``subquant.unpack`` to loops over bytes.

Packed integers that ``fuse-block-contractions`` has not fused into a contraction are unpacked into
bytes, one bit plane at a time. A loop reads a byte and writes a word with each of its integers in a
byte, and the bytes of the words are the result (``flow.tensor.bitcast``): IREE vectorizes this
elementwise loop. A loop over (byte, position in the byte) takes 1.8 times as long (16 Mi integers
of 4 bits and the product that reads them, llvm-cpu); targets whose smallest elements have 32 bits
get it.

Before::

    %q = "subquant.unpack"(%b) {bits = array<i64: 4>} : (tensor<8x32xi8>) -> tensor<8x64xi8>

After::

    %w = linalg.generic ins(%b : tensor<8x32xi8>) outs(%e : tensor<8x32xi16>) { ... }
    %q = "flow.tensor.bitcast"(%w) : (tensor<8x32xi16>) -> tensor<8x64xi8>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...core.option_fields import Containers
from ...dialects.subquant import UNPACK
from ...emit import ArrayLike, linalg, scalar
from ...emit.operation import element_of, mlir_type, value, with_shape
from ...errors import Remark
from ...numerics.array_functions import convert
from ...numerics.element_types import U8, ElementType
from ...numerics.packed_integers import integer_at
from ..base import UNCHANGED, ModulePass, named


@dataclass(frozen=True)
class LowerPackedStorage(ModulePass):
    """Lower every ``subquant.unpack``.

    Options:
        containers: see ``legalize-integer-widths``.
    """

    containers: Containers = 8

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Lower in `module`."""
        unpacks = named(module, [UNPACK])
        for op in unpacks:
            with ir.InsertionPoint(op), op.location:
                result = _unpacked(op, whole_words=self.containers == 8)
            op.results[0].replace_all_uses_with(result)
            op.erase()
        return None if unpacks else UNCHANGED


def _unpacked(op: Operation, *, whole_words: bool) -> Value:
    """The integers of all planes, in the type of the result."""
    unpack = _unpacked_words if whole_words else _unpacked_positions
    bits = [int(count) for count in op.attributes["bits"]]
    planes = [unpack(plane, count) for plane, count in zip(op.operands, bits, strict=True)]
    type_ = op.results[0].type
    element = element_of(type_.element_type)
    if len(planes) == 1 and element.bits == 8:
        return linalg.cast(planes[0], type_)

    def joined(*bytes_: Value) -> Value:
        low, *high = (scalar(byte, U8) for byte in bytes_[:-1])
        for plane in high:
            low = low | (plane << bits[0])
        return convert(low, element).value

    identity = linalg.identity_map(type_.rank)
    output = linalg.empty(linalg.sizes(planes[0]), type_.element_type)
    result = linalg.generic(planes, output, [identity] * (len(planes) + 1), joined)
    return linalg.cast(result, type_)


def _unpacked_words(plane: Value, bits: int) -> Value:
    """The integers of a plane in bytes of their own, a word for each byte of the plane."""
    if bits == 1:
        plane, count = _unpacked_words(plane, 4), 4
    else:
        count = 8 // bits
    word = ElementType.parse(f"u{8 * count}")

    def spread(byte: Value, _: Value) -> Value:
        packed = scalar(byte, U8)
        total: ArrayLike = None
        for position in range(count):
            integer = convert(integer_at([packed], [position], [bits]), word)
            total = integer if total is None else total | (integer << (8 * position))
        return total.value

    *outer_sizes, last = linalg.sizes(plane)
    identity = linalg.identity_map(plane.type.rank)
    output = linalg.empty([*outer_sizes, last], mlir_type(word))
    words = linalg.generic([plane], output, [identity] * 2, spread)
    dynamic = [size for size in outer_sizes if not isinstance(size, int)]
    *outer, _ = (int(n) for n in plane.type.shape)
    assert isinstance(last, int)  # verified
    type_ = with_shape(plane.type, [*outer, last * count])
    segments = ir.DenseI32ArrayAttr.get([1, len(dynamic), len(dynamic)])
    attributes = {"operandSegmentSizes": segments}
    return value("flow.tensor.bitcast", [words, *dynamic, *dynamic], type_, attributes)


def _unpacked_positions(plane: Value, bits: int) -> Value:
    """The integers of a plane in elements of their own, by a loop over positions in a byte."""
    count, rank = 8 // bits, plane.type.rank
    byte = ir.AffineMap.get(rank + 1, 0, [ir.AffineExpr.get_dim(n) for n in range(rank)])

    def pick(element: Value, _: Value) -> Value:
        position = scalar(linalg.loop_index(rank)).convert(U8)
        result: Value = integer_at([scalar(element, U8)], [position], [bits]).value
        return result

    output = linalg.empty([*linalg.sizes(plane), count], plane.type.element_type)
    integers = linalg.generic([plane], output, [byte, linalg.identity_map(rank + 1)], pick)
    return linalg.collapse(integers, [*([axis] for axis in range(rank - 1)), [rank - 1, rank]])
