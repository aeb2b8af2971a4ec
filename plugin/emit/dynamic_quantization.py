"""Dynamic quantization of activations to int8, a scale for each block.

`subquant.numerics.block_contraction` has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core._mlir import Value, ir
from ..numerics.block_contraction import activation_scale
from ..numerics.casts import Cast, Division
from ..numerics.element_types import I8, ElementType
from ..numerics.parameters import ExpressedType, StorageType
from . import linalg
from .linalg import DimSize
from .operation import mlir_type
from .values import Scalars, scalar

_INT8 = StorageType(8, True, -127, 127)


def rounded(
    tensor: Value,
    shape: Sequence[DimSize],
    reduced: Sequence[bool],
    total: ElementType,
    division: Division,
) -> tuple[Value, Value]:
    """Quantize a tensor of floats to int8 with dynamic scales.

    Args:
        shape: its sizes.
        reduced: True for each axis along which one scale is shared.
        total: the type of the arithmetic, f32 or f64.

    Returns:
        The integers, and the scales, which have the axes that are not reduced.
    """
    rank, wide = len(shape), mlir_type(total)
    axes = [axis for axis in range(rank) if not reduced[axis]]
    scale_map = ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(axis) for axis in axes])
    every, own = linalg.identity_map(rank), linalg.identity_map(len(axes))
    of_scales = [shape[axis] for axis in axes]

    def greater(x: Value, so_far: Value) -> Value:
        return np.maximum(scalar(so_far), abs(scalar(x).convert(total))).value

    greatest = linalg.generic(
        [tensor],
        linalg.filled(of_scales, Scalars().known(0.0, total).value),
        [every, scale_map],
        greater,
        ["reduction" if along else "parallel" for along in reduced],
    )
    scales = linalg.generic(
        [greatest],
        linalg.empty(of_scales, wide),
        [own, own],
        lambda x, _: activation_scale(scalar(x)).value,
    )
    cast = Cast(_INT8, ExpressedType(total.name), division=division)

    def quantize(x: Value, scale: Value, _: Value) -> Value:
        return cast.quantize(scalar(x).convert(total), scalar(scale)).value

    integers = linalg.generic(
        [tensor, scales],
        linalg.empty(shape, mlir_type(I8)),
        [every, scale_map, every],
        quantize,
    )
    return integers, scales
