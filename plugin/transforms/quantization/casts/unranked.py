"""Unranked tensors reshaped around their quantized axes (RFC, Case 2).

With ``n`` quantized axes a tensor becomes one of ``2 n + 1`` axes: each quantized axis, and between
them the other axes collapsed into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .... import emit
from ....core._mlir import Operation, Value, ir
from ....emit import linalg
from ....emit.linalg import name_and_place
from ....emit.operation import index_type, tensor_type
from ....errors import UnsupportedError
from ....numerics.parameters import QuantizationParameters
from .run_time_checks import check_block_count


@dataclass(frozen=True)
class RankedAroundAxes:
    """An unranked tensor as a ranked one.

    Attributes:
        shape: the shape of the unranked tensor, a ``tensor<?xindex>``.
        tensor: the ranked tensor.
        sizes, counts: its block size (None for one block) and number of blocks along each axis.
    """

    shape: Value
    tensor: Value
    sizes: tuple[int | None, ...]
    counts: tuple[int, ...]

    @staticmethod
    def of(
        source: Value, parameters: QuantizationParameters, op: Operation, *, ragged: bool
    ) -> RankedAroundAxes:
        """Reshape a tensor, and check its sizes at run time; last blocks may be `ragged`."""
        shape = emit.value("shape.shape_of", [source], tensor_type([None], index_type()))
        axes = sorted(parameters.axes)
        dims: list[int | Value] = []
        sizes: list[int | None] = []
        counts: list[int] = []
        blocks = _block_counts(parameters, axes, op)
        if axes:
            last, rank = axes[-1], emit.scalar(linalg.dim(shape, 0))
            linalg.check(
                (rank >= last + 1).value,
                f"{name_and_place(op)}: rank must be at least {last + 1} at run time, for the "
                f"quantized dimension {last}",
            )
        following = 0
        for axis, count in zip(axes, blocks, strict=True):
            size = parameters.block_size_of(axis)
            assert size is not None  # axes are the quantized ones
            dims.append(_element_count(shape, following, axis))
            dim = linalg.extract(shape, [linalg.constant_index(axis)])
            is_open = ragged and size > 1
            check_block_count(op, axis, dim, size, count, ragged=is_open)
            dims.append(dim if is_open else size * count)
            sizes += [None, size]
            counts += [1, count]
            following = axis + 1
        dims.append(_element_count(shape, following, None))
        values = [linalg.constant_index(dim) if isinstance(dim, int) else dim for dim in dims]
        static = [dim if isinstance(dim, int) else None for dim in dims]
        type_ = tensor_type(static, source.type.element_type)
        ranked = emit.value("tensor.reshape", [source, linalg.from_elements(values)], type_)
        return RankedAroundAxes(shape, ranked, (*sizes, None), (*counts, 1))

    def unranked(self, result: Value) -> Value:
        """Reshape a result of the ranked shape to the original unranked shape."""
        type_ = ir.UnrankedTensorType.get(result.type.element_type)
        return emit.value("tensor.reshape", [result, self.shape], type_)


def _block_counts(
    parameters: QuantizationParameters, axes: Sequence[int], op: Operation
) -> tuple[int, ...]:
    """The number of blocks along each quantized axis."""
    counts = parameters.scales.shape
    if not axes or len(counts) == len(axes):
        return counts if axes else ()
    full = parameters.full_grid_shape(parameters.scales.ndim)
    if full is None:
        raise UnsupportedError(
            f"scales of shape {counts} do not fit the quantized dimensions {list(axes)}; run "
            "verify-quantization first",
            op,
        )
    return tuple(full[axis] for axis in axes)


def _element_count(shape: Value, first: int, end: int | None) -> Value:
    """The number of elements of the axes from `first` to before `end` (None: to the last)."""
    if end is not None:
        shape = _split(shape, end)[0]
    if first:
        shape = _split(shape, first)[1]
    return emit.value("shape.num_elements", [shape], index_type())


def _split(shape: Value, axis: int) -> Sequence[Value]:
    operands = [shape, linalg.constant_index(axis)]
    split = emit.create("shape.split_at", operands, [shape.type, shape.type])
    results: Sequence[Value] = split.results
    return results
