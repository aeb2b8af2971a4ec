"""Helpers of affine implementations: integers, scales and offsets of tensor-scaled layouts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..layouts import QuantizedLayout, TensorScaledLayout
from ..numerics.element_types import AnyArray, DType


def is_affine(layout: object, axis: int | None) -> bool:
    """True for a tensor-scaled layout of integers of one scale, or with scales along `axis`."""
    if not isinstance(layout, TensorScaledLayout):
        return False
    storage = np.dtype(layout.planes["qs"].dtype)
    if storage.kind not in "iu" or storage.itemsize > 2:
        return False
    if "m" in layout.planes and np.dtype(layout.planes["m"].dtype).kind not in "iu":
        return False
    shape = _padded(layout)
    return all(a == axis or n == 1 for a, n in enumerate(shape))


def _padded(layout: QuantizedLayout) -> tuple[int, ...]:
    shape = tuple(layout.planes["d"].shape)
    return (*(1,) * (len(layout.shape) - len(shape)), *shape)


def scales_along(layout: QuantizedLayout, axis: int | None) -> AnyArray:
    """The scales in float32: of shape (), or one for each index of `axis`."""
    scales = layout.planes["d"].astype(np.float32)
    factor = layout.metadata.get("factor", 1.0)
    return _along(layout, scales if factor == 1.0 else scales * np.float32(factor), axis)


def offsets(layout: QuantizedLayout, axis: int | None, dtype: npt.DTypeLike) -> AnyArray | None:
    """The offsets as integers, of the form of `scales_along`; None if there are none."""
    if "m" not in layout.planes:
        return None
    return _along(layout, layout.planes["m"].astype(dtype), axis)


def _along(layout: QuantizedLayout, plane: AnyArray, axis: int | None) -> AnyArray:
    if all(isinstance(n, int) and n == 1 for n in _padded(layout)):
        return plane.reshape(())
    return plane.reshape((1 if axis is None else layout.shape[axis],))


def accumulator(left: QuantizedLayout, right: QuantizedLayout, products: int) -> DType:
    """Return int32, or int64 if `products` multiply-accumulates of storage values may overflow."""
    reach = 1
    for layout in (left, right):
        info = np.iinfo(np.dtype(layout.planes["qs"].dtype))
        reach *= 2 * max(-int(info.min), int(info.max))  # less an offset of the same type
    return np.dtype(np.int32 if reach * products < 1 << 31 else np.int64)
