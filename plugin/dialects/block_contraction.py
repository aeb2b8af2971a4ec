"""``subquant.block_contraction``: sums of products with a weight in blocks.

What a dot product or convolution with a dequantized weight becomes, whoever wrote the weight: the
one operation that a kernel computes. For indices ``p`` that the result has and ``r`` that are
summed over::

    result[p] = sum_r activations[p, r] * ((storage[p, r] - zero_point) * scale + offset)

where scale, zero point and offset are those of the block of the storage element. As in
``linalg.contract``, ``indexing_maps`` say which loop indexes which axis of activations, storage and
result, so that there is one form for all orders of axes, batches and windows::

    %y = "subquant.block_contraction"(%x, %q, %s, %z)
           {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                             affine_map<(m, n, k) -> (m, n)>],
            block_sizes = array<i64: 1, 32>, quantized_type = !quant.any<u4:f32>,
            operandSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
         : (tensor<5x64xf32>, tensor<7x64xi4>, tensor<7x2xf16>, tensor<7x2xi4>) -> tensor<5x7xf32>

* A loop indexes each axis of storage and of result, each axis another one. An axis of activations
  may be indexed by a window, ``outer * stride + inner * dilation``, where the outer loop is one of
  the result, and the inner one of the storage.
* ``block_sizes`` has one entry for each axis of the storage, whose shape is static, and divides it.
  Scales, zero points and offsets have the shape ``shape / block_sizes``. A window has no blocks.
* The real weight is as ``subquant.dequantize`` defines it, of the expressed type of
  ``quantized_type``. Products and sums are f32 for f16 and bf16, else of the expressed type, the
  sums in any order; they are rounded to the result's element type once.

The meaning in NumPy is `subquant.numerics.block_contraction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._mlir import ir
from ..errors import VerificationError
from ..numerics.parameters import ExpressedType, StorageType
from .quant import described_type, element_type
from .subquant import operands_of

__all__ = ["BlockContraction", "Term", "check_block_contraction", "sum_type", "terms_of"]

Term = tuple[int, int]
"""A loop, and what its index is multiplied by."""

_NAMES = ("activations", "storage", "result")
_FLOAT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


@dataclass(frozen=True)
class BlockContraction:
    """A ``subquant.block_contraction`` as it is read.

    Attributes:
        activations, storage, scales: operands.
        zero_points, offsets: operands, or None.
        indices: for activations, storage and result, the terms that index each axis.
        loops: how many there are.
        block_sizes: for each axis of the storage.
        storage_type, expressed: of ``quantized_type``.
    """

    activations: Any
    storage: Any
    scales: Any
    zero_points: Any
    offsets: Any
    indices: tuple[list[list[Term]], list[list[Term]], list[list[Term]]]
    loops: int
    block_sizes: tuple[int, ...]
    storage_type: StorageType
    expressed: ExpressedType

    @classmethod
    def of(cls, op: Any) -> BlockContraction:
        """Read an operation that has been verified."""
        operands = operands_of(op)
        maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
        described = described_type(op)
        activations, storage, result = (terms_of(map_) for map_ in maps)
        assert activations is not None  # verified
        assert storage is not None
        assert result is not None
        return cls(
            operands["activations"],
            operands["storage"],
            operands["scales"],
            operands.get("zero_points"),
            operands.get("offsets"),
            (activations, storage, result),
            maps[0].n_dims,
            tuple(int(size) for size in op.attributes["block_sizes"]),
            *described,
        )

    @property
    def summed(self) -> list[int]:
        """The loops that the result does not have."""
        kept = {loop for axis in self.indices[2] for loop, _ in axis}
        return [loop for loop in range(self.loops) if loop not in kept]


def sum_type(expressed: ExpressedType) -> ir.Type:
    """What products are summed in."""
    return ir.F64Type.get() if expressed is ExpressedType.F64 else ir.F32Type.get()


def terms_of(map_: ir.AffineMap) -> list[list[Term]] | None:
    """For each result of a map its terms, or None if one is no loop and no sum of two terms."""
    terms = []
    for expression in map_.results:
        is_sum = isinstance(expression, ir.AffineAddExpr)
        parts = [expression.lhs, expression.rhs] if is_sum else [expression]
        found = [_term(part) for part in parts]
        known = [term for term in found if term is not None]
        if len(known) != len(found):
            return None
        terms.append(known)
    return terms


def _term(expression: Any) -> Term | None:
    factor = 1
    if isinstance(expression, ir.AffineMulExpr):
        if not isinstance(expression.rhs, ir.AffineConstantExpr):
            return None
        expression, factor = expression.lhs, expression.rhs.value
    if not isinstance(expression, ir.AffineDimExpr) or factor < 1:
        return None
    return expression.position, factor


# -- verification ---------------------------------------------------------------------------------


def check_block_contraction(op: Any) -> None:
    """Raise a VerificationError unless the operation is as the file's text says."""
    described = described_type(op)
    maps = _maps(op)
    operands = operands_of(op)
    tensors = [operands["activations"], operands["storage"], op.results[0]]
    for name, value in (*operands.items(), ("result", op.results[0])):
        if not isinstance(value.type, ir.RankedTensorType):
            _fail(op, f"{_spoken(name)} must be a ranked tensor, got '{value.type}'")
    indices = []
    for name, map_, value in zip(_NAMES, maps, tensors, strict=True):
        terms = terms_of(map_)
        if terms is None:
            _fail(
                op,
                f"the indexing map of {name} must have loops, or sums of two loops times "
                f"constants, got '{map_}'",
            )
            return
        if len(terms) != value.type.rank:
            _fail(
                op,
                f"the indexing map of {name} must have {value.type.rank} results, one for each "
                f"axis, got '{map_}'",
            )
        indices.append(terms)
    _check_loops(op, indices, maps)
    _check_extents(op, indices, tensors)
    _check_blocks(op, indices, operands)
    _check_elements(op, operands, *described)


def _fail(op: Any, message: str) -> None:
    raise VerificationError(message, op)


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _maps(op: Any) -> list[ir.AffineMap]:
    attribute = op.attributes["indexing_maps"]
    found = list(attribute) if isinstance(attribute, ir.ArrayAttr) else []
    maps = [item.value for item in found if isinstance(item, ir.AffineMapAttr)]
    counts = {(map_.n_dims, map_.n_symbols) for map_ in maps}
    if len(found) != 3 or len(maps) != 3 or len(counts) != 1 or maps[0].n_symbols:
        _fail(
            op,
            "attribute 'indexing_maps' must have three maps of the same loops, for activations, "
            f"storage and result, got '{attribute}'",
        )
    return maps


def _check_loops(
    op: Any, indices: Sequence[list[list[Term]]], maps: Sequence[ir.AffineMap]
) -> None:
    """Each axis of storage and result has a loop of its own; windows are between the two."""
    of: list[set[int]] = []
    for name, terms, map_ in zip(_NAMES, indices, maps, strict=True):
        loops = [loop for axis in terms for loop, _ in axis]
        plain = all(len(axis) == 1 and axis[0][1] == 1 for axis in terms)
        if len(set(loops)) != len(loops) or (name != "activations" and not plain):
            _fail(op, f"the indexing map of {name} must have another loop for each axis, got "
                      f"'{map_}'")  # fmt: skip
        of.append(set(loops))
    activations, storage, result = of
    for axis in indices[0]:
        if len(axis) == 1 and axis[0][1] != 1:
            _fail(op, "the indexing map of activations steps over an axis; expected a window")
        loops = [loop for loop, _ in axis]
        if len(axis) == 2 and not (
            loops[0] in result - storage and loops[1] in storage - result
        ):  # fmt: skip
            _fail(
                op,
                "the indexing map of activations has a window whose first loop is not one of the "
                "result alone, or whose second is not one of the storage alone",
            )
    for loop in range(maps[0].n_dims):
        if loop not in activations | storage:
            _fail(op, f"loop {loop} indexes neither activations nor storage")
        if loop not in result and loop not in storage:
            _fail(op, f"loop {loop} is summed over, and does not index the storage")


def _check_extents(op: Any, indices: Sequence[list[list[Term]]], tensors: Sequence[Any]) -> None:
    """Extents that one loop indexes are equal; a window stays inside its axis."""
    extents: dict[int, int | None] = {}
    for name, terms, value in zip(_NAMES, indices, tensors, strict=True):
        for number, axis in enumerate(terms):
            if len(axis) > 1:
                continue
            loop, extent = axis[0][0], _extent(value.type, number)
            known = extents.get(loop)
            if extent is not None and known is not None and extent != known:
                _fail(op, f"axis {number} of {name} has the extent {extent}, expected {known}, "
                          f"that of loop {loop}")  # fmt: skip
            extents[loop] = extent if known is None else known
    for number, axis in enumerate(indices[0]):
        if len(axis) == 1:
            continue
        extent, counts = _extent(tensors[0].type, number), [extents[loop] for loop, _ in axis]
        if extent is None or None in counts:
            _fail(op, f"axis {number} of activations has a window and a dynamic extent")
        reach = 1 + sum(
            ((count or 0) - 1) * factor for count, (_, factor) in zip(counts, axis, strict=True)
        )
        if extent is not None and reach > extent and 0 not in counts:
            _fail(op, f"axis {number} of activations has the extent {extent}, and its window "
                      f"reaches {reach}")  # fmt: skip


def _extent(type_: Any, axis: int) -> int | None:
    return None if type_.is_dynamic_dim(axis) else int(type_.shape[axis])


def _check_blocks(
    op: Any,
    indices: Sequence[list[list[Term]]],
    operands: dict[str, Any],
) -> None:
    attribute, type_ = op.attributes["block_sizes"], operands["storage"].type
    if not isinstance(attribute, ir.DenseI64ArrayAttr):
        _fail(op, f"attribute 'block_sizes' must be array<i64: ...>, got '{attribute}'")
    sizes = [int(size) for size in attribute]
    if len(sizes) != type_.rank:
        _fail(op, f"attribute 'block_sizes' must have an entry for each of the {type_.rank} axes "
                  f"of storage, got {len(sizes)}")  # fmt: skip
    if not type_.has_static_shape:
        _fail(op, f"storage must have a static shape, got '{type_}'")
    shape = [int(n) for n in type_.shape]
    windowed = {loop for axis in indices[0] if len(axis) > 1 for loop, _ in axis}
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if size < 1 or extent % size:
            _fail(op, f"block size along axis {axis} of storage must divide its extent {extent}, "
                      f"got {size}")  # fmt: skip
        loop = indices[1][axis][0][0]
        if loop in windowed and size not in (1, extent):
            _fail(op, f"axis {axis} of storage is a window's and has blocks of {size}; expected "
                      f"1 or {extent}")  # fmt: skip
        if 1 < size < extent and [(loop, 1)] in indices[0]:
            other = indices[0].index([(loop, 1)])
            if operands["activations"].type.is_dynamic_dim(other):
                _fail(op, f"axis {other} of activations is dynamic, and storage has blocks there")
    expected = [extent // size for extent, size in zip(shape, sizes, strict=True)]
    for name in ("scales", "zero_points", "offsets"):
        if name in operands and [int(n) for n in operands[name].type.shape] != expected:
            _fail(op, f"{_spoken(name)} must have the shape {_dims(expected)}, one for each "
                      f"block, got '{operands[name].type}'")  # fmt: skip


def _dims(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _check_elements(
    op: Any, operands: dict[str, Any], storage: StorageType, expressed: ExpressedType
) -> None:
    stored = str(element_type(operands["storage"].type))
    if stored != f"i{storage.width}":
        _fail(op, f"storage must have elements of the storage type 'i{storage.width}', got "
                  f"'{stored}'")  # fmt: skip
    sums = str(sum_type(expressed))
    for name in ("activations", "scales", "offsets", "result"):
        value = op.results[0] if name == "result" else operands.get(name)
        if value is None:
            continue
        element = str(element_type(value.type))
        if _FLOAT_BITS.get(element, 99) > _FLOAT_BITS[sums] and name != "result":
            _fail(op, f"{_spoken(name)} must have a floating-point type not wider than '{sums}', "
                      f"in which products are summed, got '{element}'")  # fmt: skip
        if element not in _FLOAT_BITS:
            _fail(op, f"result must have a floating-point type, got '{element}'")
    if "zero_points" in operands:
        zero = element_type(operands["zero_points"].type)
        if not isinstance(zero, ir.IntegerType) or not 2 <= zero.width <= storage.width:
            _fail(op, f"zero points must have an integer type of 2 to {storage.width} bits, not "
                      f"wider than the storage type, got '{zero}'")  # fmt: skip
