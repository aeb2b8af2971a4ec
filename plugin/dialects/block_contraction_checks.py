"""Verification of ``subquant.block_contraction`` and ``subquant.unpack``."""

from __future__ import annotations

from collections.abc import Sequence

from ..core._mlir import Operation, Value, ir
from ..errors import VerificationError
from ..numerics.packed_integers import PLANE_BITS
from ..numerics.parameters import ExpressedType, StorageType
from .block_contraction import (
    _FLOAT_BITS,
    _NAMES,
    ACTIVATION_BLOCK_SIZES,
    ACTIVATION_TYPES,
    Term,
    _plane_bits,
    _storage_shape,
    sum_type,
    terms_of,
)
from .quant import described_type, element_type
from .subquant import operands_of


def check_block_contraction(op: Operation) -> None:
    """Raise a VerificationError unless the operation is as the file's text says."""
    described = described_type(op)
    maps = _maps(op)
    operands = operands_of(op)
    for name, value in (*operands.items(), ("result", op.results[0])):
        if not isinstance(value.type, ir.RankedTensorType):
            _fail(op, f"{_spoken(name)} must be a ranked tensor, got '{value.type}'")
    check_planes(op, operands, "plane_bits", "storage", "storage_high")
    _check_activation_type(op)
    types = [operands["activations"].type, _storage_type(op, operands), op.results[0].type]
    indices = []
    for name, map_, type_ in zip(_NAMES, maps, types, strict=True):
        terms = terms_of(map_)
        if terms is None:
            _fail(
                op,
                f"the indexing map of {name} must have loops, or sums of two loops times "
                f"constants, got '{map_}'",
            )
            return
        if len(terms) != type_.rank:
            _fail(
                op,
                f"the indexing map of {name} must have {type_.rank} results, one for each "
                f"axis, got '{map_}'",
            )
        indices.append(terms)
    _check_loops(op, indices, maps)
    _check_dimension_sizes(op, indices, types)
    _check_blocks(op, indices, operands, types)
    _check_elements(op, operands, *described)


def _fail(op: Operation, message: str) -> None:
    raise VerificationError(message, op)


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _maps(op: Operation) -> list[ir.AffineMap]:
    attribute = op.attributes["indexing_maps"]
    items = list(attribute) if isinstance(attribute, ir.ArrayAttr) else []
    maps = [item.value for item in items if isinstance(item, ir.AffineMapAttr)]
    counts = {(map_.n_dims, map_.n_symbols) for map_ in maps}
    if len(items) != 3 or len(maps) != 3 or len(counts) != 1 or maps[0].n_symbols:
        _fail(
            op,
            "attribute 'indexing_maps' must have three maps of the same loops, for activations, "
            f"storage and result, got '{attribute}'",
        )
    return maps


def _check_loops(
    op: Operation, indices: Sequence[list[list[Term]]], maps: Sequence[ir.AffineMap]
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


def _storage_type(op: Operation, operands: dict[str, Value]) -> ir.Type:
    """The type of the storage, unpacked."""
    type_, bits = operands["storage"].type, _plane_bits(op)
    if bits is None or not type_.has_static_shape:
        return type_
    with op.location:
        return ir.RankedTensorType.get(_storage_shape(type_, bits), type_.element_type)


def _check_activation_type(op: Operation) -> None:
    if "activation_type" not in op.attributes:
        return
    attribute = op.attributes["activation_type"]
    if not isinstance(attribute, ir.StringAttr) or attribute.value not in ACTIVATION_TYPES:
        expected = " or ".join(f'"{name}"' for name in ACTIVATION_TYPES)
        _fail(op, f"attribute 'activation_type' must be {expected}, got '{attribute}'")


def check_unpack(op: Operation) -> None:
    """Raise a VerificationError unless a ``subquant.unpack`` is as the dialect's text says."""
    operands = operands_of(op)
    for name, value in (*operands.items(), ("result", op.results[0])):
        if not isinstance(value.type, ir.RankedTensorType):
            _fail(op, f"{name} must be a ranked tensor, got '{value.type}'")
    check_planes(op, operands, "bits", "low", "high")
    bits = [int(count) for count in op.attributes["bits"]]
    expected, type_ = list(operands["low"].type.shape), op.results[0].type
    if not operands["low"].type.is_dynamic_dim(len(expected) - 1):
        expected[-1] = expected[-1] * 8 // bits[0]
    if list(type_.shape) != expected:
        _fail(op, f"result must have the shape {_dims(expected)}, got '{type_}'")
    element = type_.element_type
    if not isinstance(element, ir.IntegerType) or not sum(bits) <= element.width <= 8:
        _fail(op, f"result must have integers of {sum(bits)} to 8 bits, got '{element}'")


def check_planes(
    op: Operation, operands: dict[str, Value], attribute: str, low: str, high: str
) -> None:
    """Check the operands that are planes, and the attribute that has the bits of each."""
    if attribute not in op.attributes:
        if high in operands:
            _fail(op, f"has operand '{_spoken(high)}' without attribute '{attribute}'")
        return
    bits_attribute = op.attributes[attribute]
    bits = (
        tuple(map(int, bits_attribute)) if isinstance(bits_attribute, ir.DenseI64ArrayAttr) else ()
    )
    if bits not in PLANE_BITS.values():
        expected = ", ".join(str(list(counts)) for counts in PLANE_BITS.values())
        _fail(op, f"attribute '{attribute}' must be array<i64: ...> of one of {expected}, got "
                  f"'{bits_attribute}'")  # fmt: skip
    if (len(bits) > 1) != (high in operands):
        _fail(op, f"attribute '{attribute}' has {len(bits)} entries, and there are "
                  f"{1 + (high in operands)} planes")  # fmt: skip
    for name in (low, high):
        if name not in operands:
            continue
        type_ = operands[name].type
        if (
            str(type_.element_type) != "i8"
            or not type_.rank
            or type_.is_dynamic_dim(type_.rank - 1)
        ):
            _fail(op, f"{_spoken(name)} must be a tensor of i8 whose last axis is static, got "
                      f"'{type_}'")  # fmt: skip
    first = operands[low].type
    if int(first.shape[-1]) * 8 // bits[0] * min(bits) % 8:
        _fail(op, f"{_spoken(low)} has a last axis of {first.shape[-1]} bytes, and its integers "
                  f"of {min(bits)} bits would not fill the bytes of the other plane")  # fmt: skip
    if high in operands:
        expected_shape = list(first.shape)
        expected_shape[-1] = expected_shape[-1] * bits[1] // bits[0]
        if list(operands[high].type.shape) != expected_shape:
            _fail(op, f"{_spoken(high)} must have the shape {_dims(expected_shape)}, got "
                      f"'{operands[high].type}'")  # fmt: skip


def _check_dimension_sizes(
    op: Operation, indices: Sequence[list[list[Term]]], types: Sequence[ir.Type]
) -> None:
    """Dimensions that one loop indexes have equal sizes; a window stays inside its axis."""
    sizes: dict[int, int | None] = {}
    for name, terms, type_ in zip(_NAMES, indices, types, strict=True):
        for number, axis in enumerate(terms):
            if len(axis) > 1:
                continue
            loop, size = axis[0][0], _dimension_size(type_, number)
            known = sizes.get(loop)
            if size is not None and known is not None and size != known:
                _fail(op, f"axis {number} of {name} has the size {size}, expected {known}, "
                          f"that of loop {loop}")  # fmt: skip
            sizes[loop] = size if known is None else known
    for number, axis in enumerate(indices[0]):
        if len(axis) == 1:
            continue
        size, counts = _dimension_size(types[0], number), [sizes[loop] for loop, _ in axis]
        if size is None or None in counts:
            _fail(op, f"axis {number} of activations has a window and a dynamic size")
        reach = 1 + sum(
            ((count or 0) - 1) * factor for count, (_, factor) in zip(counts, axis, strict=True)
        )
        if size is not None and reach > size and 0 not in counts:
            _fail(op, f"axis {number} of activations has the size {size}, and its window "
                      f"reaches {reach}")  # fmt: skip


def _dimension_size(type_: ir.Type, axis: int) -> int | None:
    return None if type_.is_dynamic_dim(axis) else int(type_.shape[axis])


def _check_blocks(
    op: Operation,
    indices: Sequence[list[list[Term]]],
    operands: dict[str, Value],
    types: Sequence[ir.Type],
) -> None:
    attribute, type_ = op.attributes["block_sizes"], types[1]
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
    for axis, (dimension, size) in enumerate(zip(shape, sizes, strict=True)):
        if size < 1 or dimension % size:
            _fail(op, f"block size along axis {axis} of storage must divide its size {dimension}, "
                      f"got {size}")  # fmt: skip
        loop, bits = indices[1][axis][0][0], _plane_bits(op)
        if bits and axis == len(shape) - 1 and 1 < size < dimension and size * min(bits) % 8:
            _fail(op, f"block size along axis {axis} of storage must fill bytes of its planes, a "
                      f"multiple of {8 // min(bits)}, got {size}")  # fmt: skip
        if loop in windowed and size not in (1, dimension):
            _fail(op, f"axis {axis} of storage is a window's and has blocks of {size}; expected "
                      f"1 or {dimension}")  # fmt: skip
        if 1 < size < dimension and [(loop, 1)] in indices[0]:
            other = indices[0].index([(loop, 1)])
            if types[0].is_dynamic_dim(other):
                _fail(op, f"axis {other} of activations is dynamic, and storage has blocks there")
    _check_activation_blocks(op, shape, sizes)
    expected = [dimension // size for dimension, size in zip(shape, sizes, strict=True)]
    for name in ("scales", "zero_points", "offsets"):
        if name in operands and [int(n) for n in operands[name].type.shape] != expected:
            _fail(op, f"{_spoken(name)} must have the shape {_dims(expected)}, one for each "
                      f"block, got '{operands[name].type}'")  # fmt: skip


def _check_activation_blocks(op: Operation, shape: Sequence[int], sizes: Sequence[int]) -> None:
    if ACTIVATION_BLOCK_SIZES not in op.attributes:
        return
    attribute = op.attributes[ACTIVATION_BLOCK_SIZES]
    own = list(map(int, attribute)) if isinstance(attribute, ir.DenseI64ArrayAttr) else []
    if len(own) != len(sizes):
        _fail(op, f"attribute '{ACTIVATION_BLOCK_SIZES}' must be array<i64: ...> of {len(sizes)} "
                  f"entries, one for each axis of storage, got '{attribute}'")  # fmt: skip
    for axis, (size, block, dimension) in enumerate(zip(own, sizes, shape, strict=True)):
        if size != block and (block == 1 or size < 1 or size % block or dimension % size):
            _fail(op, f"the block size of activations along axis {axis} of storage must be that of "
                      f"storage, {block}, or a multiple of it that divides {dimension} where "
                      f"blocks have several elements, got {size}")  # fmt: skip


def _dims(shape: Sequence[int]) -> str:
    return "x".join("?" if n < 0 else str(n) for n in shape) or "scalar"


def _check_elements(
    op: Operation, operands: dict[str, Value], storage: StorageType, expressed: ExpressedType
) -> None:
    stored, bits = str(element_type(operands["storage"].type)), _plane_bits(op)
    if bits is not None and not sum(bits) <= storage.width <= 8:
        _fail(op, f"storage has {sum(bits)} bits in its planes, expected a storage type of as "
                  f"many to 8 bits, got {storage}")  # fmt: skip
    if bits is None and stored != f"i{storage.width}":
        _fail(op, f"storage must have elements of the storage type 'i{storage.width}', got "
                  f"'{stored}'")  # fmt: skip
    accumulator = str(sum_type(expressed))
    for name in ("activations", "scales", "offsets", "result"):
        value = op.results[0] if name == "result" else operands.get(name)
        if value is None:
            continue
        element = str(element_type(value.type))
        if _FLOAT_BITS.get(element, 99) > _FLOAT_BITS[accumulator] and name != "result":
            _fail(op, f"{_spoken(name)} must have a floating-point type not wider than the "
                      f"accumulator type '{accumulator}', got '{element}'")  # fmt: skip
        if element not in _FLOAT_BITS:
            _fail(op, f"result must have a floating-point type, got '{element}'")
    if "zero_points" in operands:
        zero = element_type(operands["zero_points"].type)
        if not isinstance(zero, ir.IntegerType) or not 2 <= zero.width <= storage.width:
            _fail(op, f"zero points must have an integer type of 2 to {storage.width} bits, not "
                      f"wider than the storage type, got '{zero}'")  # fmt: skip
