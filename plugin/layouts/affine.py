"""Integers with scales and zero points for blocks along any axes: the sub-channel type as planes.

Source: MLIR's ``quant.uniform`` with sub-channel quantization.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError, UsageError
from ..numerics.array_functions import filled, is_known, scatter
from ..numerics.block_form import BlockForm
from ..numerics.element_types import AnyArray, Array
from ..numerics.packed_integers import PLANE_BITS, PackedIntegers, plane_shapes
from ..numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from .base import FLOAT_DTYPES, BlockLayout, integers_of


class BlockAffineLayout(BlockLayout):
    """``(q - z) * d`` for blocks along any axes: the sub-channel type as planes.

    Packed storage lies as `subquant.numerics.packed_integers` says, signed values plus half their
    range. With `order`, the planes hold the columns of a matrix in another order, so that columns
    of one block are consecutive: `dequant` restores the order, and `subquant.ops.linear` gathers
    the other operand instead.

    Planes:
        d: scales, of shape ``ceil(shape / block_shape)``.
        qs: storage values, of the tensor's shape; packed ones of 2 or 4 bits are bytes (uint8).
        qs_low, qs_high: in place of ``qs`` the two planes of packed ones of 3, 5 or 6 bits.
        z: integer zero points, of the shape of ``d``; 0 if left out.
        order: the column of the matrix that each stored column is, ``[..., K]`` (int32), with the
            axes before those of the matrix; ascending if left out.

    Metadata:
        block_shape: the extents of a block, one an axis.
        storage: ``i4``, ``u8`` and so on, with the range if it is narrower: ``i8<-127:127>``.
        packed: whether the storage is; false if left out.
    """

    PLANES: ClassVar = ("d", "qs?", "qs_low?", "qs_high?", "z?", "order?")
    METADATA: ClassVar = ("block_shape", "storage", "packed")

    @classmethod
    def of(
        cls,
        stored: Array,
        scales: Array,
        zero_points: Array | None,
        block_shape: Sequence[int],
        storage: StorageType,
        order: Array | None = None,
    ) -> BlockAffineLayout:
        """The layout of storage values, packed where they have 2 to 6 bits and rows fill bytes.

        Scales and zero points have the shape ``ceil(shape / block_shape)``; storage values and
        blocks are in the order of the plane `order`.
        """
        bits = PLANE_BITS.get(storage.width)
        packed = bits is not None and plane_shapes(stored.shape, bits) is not None
        planes = {"qs": stored}
        metadata: dict[str, object] = {
            "block_shape": [int(n) for n in block_shape],
            "storage": str(storage),
        }
        if packed:
            planes = _integers(storage).pack(stored)
            metadata["packed"] = True
        arrays = {"d": scales, **planes, "z": zero_points, "order": order}
        return cls(stored.shape, arrays, metadata)

    @classmethod
    def of_words(
        cls,
        words: Array,
        scales: Array,
        zero_points: Array | None,
        block_shape: Sequence[int],
        storage: StorageType,
    ) -> BlockAffineLayout:
        """The layout of storage values of 2 or 4 bits in words of 32, which become its plane.

        The words ``[N, W]`` have the first value in their lowest bits, and signed values plus half
        their range. The other arguments are those of `of`.
        """
        plane = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
        metadata = {
            "block_shape": [int(n) for n in block_shape],
            "storage": str(storage),
            "packed": True,
        }
        shape = (len(plane), plane.shape[1] * 8 // storage.width)
        return cls(shape, {"d": scales, "qs": plane, "z": zero_points}, metadata)

    def check(self) -> None:
        """Check the grid of blocks, and the planes of packed storage."""
        block = self.metadata.get("block_shape")
        is_list = isinstance(block, list) and len(block) == len(self.shape)
        if not is_list or not all(isinstance(n, int) and n >= 1 for n in block or ()):
            raise InputError(
                f"'block_shape' of {self.name} must be a list of {len(self.shape)} positive "
                f"integers, got {block!r}"
            )
        grid = tuple(-(-n // b) for n, b in zip(self.shape, block or (), strict=True))
        self.expect("d", grid, *FLOAT_DTYPES)
        self.expect("z", grid)
        try:
            StorageType.parse(self.metadata.get("storage", ""))
        except UsageError as error:
            raise InputError(f"'storage' of {self.name}: {error.message}") from None
        self._check_storage()
        self._check_order()

    def _check_order(self) -> None:
        order = self.planes.get("order")
        if order is None:
            return
        if len(self.shape) < 2:
            raise InputError(f"{self.name} of shape {self.shape} has an order, expected a matrix")
        self.expect("order", (*self.shape[:-2], self.shape[-1]), "int32")
        if is_known(order) and (np.sort(order, axis=-1) != np.arange(self.shape[-1])).any():
            raise InputError(
                f"plane 'order' of {self.name} must have each column of {self.shape[-1]} once"
            )

    def in_stored_order(self) -> BlockAffineLayout:
        """The matrix with its columns as the planes hold them: column ``i`` is ``order[i]``."""
        planes = {name: plane for name, plane in self.planes.items() if name != "order"}
        return type(self)(self.shape, planes, self.metadata)

    def dequant(self, dtype: npt.DTypeLike = np.float32) -> Any:
        """The values, with the columns in the order of the matrix."""
        order = self.planes.get("order")
        if order is None:
            return super().dequant(dtype)
        *leading, rows, columns = self.shape
        axes = (*range(len(leading)), len(leading) + 1, len(leading))
        stored = self.in_stored_order().dequant(dtype).transpose(axes).reshape((-1, rows))
        ordered = scatter(stored, flat_columns(order), stored, "set")
        return ordered.reshape((*leading, columns, rows)).transpose(axes)

    def _check_storage(self) -> None:
        names = [name for name in self.planes if name[0] == "q"]
        expected: dict[str, tuple[int, ...]] = {"qs": self.shape}
        if packed := self.expect_boolean("packed", False):
            bits = PLANE_BITS.get(self.storage.width)
            shapes = None if bits is None else plane_shapes(self.shape, bits)
            if shapes is None:
                raise InputError(
                    f"{self.name} of shape {self.shape} has storage {self.storage}, which cannot "
                    "be packed"
                )
            expected = dict(zip(_integers(self.storage).bits, shapes, strict=True))
        if sorted(names) != sorted(expected):
            raise InputError(
                f"{self.name} with storage {self.storage} has the planes {sorted(names)}, expected "
                f"{list(expected)}"
            )
        for name, shape in expected.items():
            self.expect(name, shape, *(["uint8"] if packed else []))

    @property
    def storage(self) -> StorageType:
        """The storage type."""
        return StorageType.parse(self.metadata["storage"])

    @property
    def is_packed(self) -> bool:
        """True if the storage is packed into bytes."""
        return bool(self.metadata.get("packed", False))

    def stored(self) -> AnyArray:
        """The storage values in the shape of the tensor."""
        return _integers(self.storage).unpack(self.planes) if self.is_packed else self.planes["qs"]

    @property
    def row_block(self) -> int | None:
        """The block size along the last axis, if it divides it and is 1 along the others."""
        *leading, last = self.metadata["block_shape"]
        divides = last <= self.shape[-1] and self.shape[-1] % last == 0
        return last if divides and all(size == 1 for size in leading) else None

    @property
    def has_block_form(self) -> bool:
        """False if the planes have the columns in another order."""
        return "order" not in self.planes

    def block_form(self) -> BlockForm:
        """The integers; zero points in the type of the storage, in whose range they are.

        Raises:
            UsageError: the planes have the columns in another order: see `in_stored_order`.
        """
        self._expect_no_order()
        zero_points = self.planes.get("z")
        if self.is_packed:
            integers = _integers(self.storage)
            stored = integers.packed(self.planes, self.shape)
            if integers.zero:
                there = np.int32(0) if zero_points is None else zero_points
                scales = self.planes["d"]
                zeros = filled(scales, scales.shape, 0, np.dtype(np.int32))
                zero_points = zeros + there + integers.zero
        else:
            stored = self.planes["qs"]
        return BlockForm(
            stored,
            integers_of(stored, self.storage.width),
            tuple(min(b, n) for b, n in zip(self.metadata["block_shape"], self.shape, strict=True)),
            self.planes["d"],
            None if zero_points is None else zero_points.astype(stored.dtype),
        )

    def _expect_no_order(self) -> None:
        if not self.has_block_form:
            raise UsageError(f"{self.name} with an order of columns has no blocks of the matrix")

    def parameters(self) -> QuantizationParameters:
        """The same as a quantized type.

        Raises:
            UsageError: the planes have the columns in another order.
        """
        self._expect_no_order()
        scales, block = np.asarray(self.planes["d"]), self.metadata["block_shape"]
        axes = tuple(a for a, (n, b) in enumerate(zip(self.shape, block, strict=True)) if b != n)
        zero_points = np.asarray(self.planes.get("z", np.zeros(scales.shape, np.int64)))
        shape = scales.shape if axes else ()
        return QuantizationParameters(
            self.storage,
            ExpressedType.of_dtype(scales.dtype),
            axes,
            tuple(block[axis] for axis in axes),
            scales.reshape(shape),
            zero_points.reshape(shape),
            "sub-channel" if axes else "per-tensor",
        )


def flat_columns(order: AnyArray) -> AnyArray:
    """Return the plane `order` ``[..., K]`` as positions in ``[... * K]``, of one axis."""
    columns = order.shape[-1]
    matrices = order.reshape((-1, columns))
    if matrices.shape[0] == 1:
        return matrices.reshape((-1,))
    first = np.arange(matrices.shape[0], dtype=np.int32) * np.int32(columns)
    return (matrices + first[:, None]).reshape((-1,))


def _integers(storage: StorageType) -> PackedIntegers:
    """Packing of storage in the planes of a `BlockAffineLayout`."""
    return PackedIntegers.of("qs", storage.width, 2 ** (storage.width - 1) * storage.signed)
