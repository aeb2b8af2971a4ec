"""Translations of NumPy's functions, and of `subquant.numerics`, for tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..errors import UnsupportedError
from ..importers.torch.integer_convolution import convolve_integers
from ..numerics import array_functions, block_form, convolutions, packed_integers
from ..numerics.element_types import AnyArray, DType, ElementType
from ..numerics.symbolic_arrays import result_dtype
from .torch_arrays import FUNCTIONS, TorchArray, torch_array

__all__: list[str] = []


def _device(*values: AnyArray) -> torch.device | None:
    return next((v.tensor.device for v in values if isinstance(v, TorchArray)), None)


def _tensors(values: Sequence[AnyArray], dtype: DType | None = None) -> list[torch.Tensor]:
    """Return arrays as tensors of one dtype, by default NumPy's result dtype."""
    target, device = dtype or result_dtype(values), _device(*values)
    return [torch_array(value, target, device).tensor for value in values]


def _where(condition: AnyArray, yes: AnyArray, no: AnyArray) -> TorchArray:
    device, dtype = _device(condition, yes, no), result_dtype((yes, no))
    chosen = [torch_array(value, dtype, device).tensor for value in (yes, no)]
    return TorchArray(torch.where(torch_array(condition, device=device).tensor, *chosen))


def _pad(
    array: TorchArray, widths: Sequence[Sequence[int]], mode: str = "constant",
    constant_values: AnyArray = 0,
) -> TorchArray:  # fmt: skip
    if mode != "constant":
        raise UnsupportedError(f"np.pad with the mode '{mode}' has no translation to PyTorch")
    flat = [int(n) for pair in reversed(widths) for n in pair]
    if isinstance(constant_values, TorchArray):  # not a number that the program has
        # IREE 3.13 refuses unsigned zeros of a dynamic shape.
        wide = np.dtype(np.int32) if array.dtype.kind == "u" else array.dtype
        value = constant_values.astype(wide).reshape(())
        shifted = torch.nn.functional.pad((array.astype(wide) - value).tensor, flat)
        return TorchArray(shifted + value.tensor).astype(array.dtype)
    number = np.asarray(constant_values).item()
    return TorchArray(torch.nn.functional.pad(array.tensor, flat, value=number))


def _contract(
    left: AnyArray,
    right: AnyArray,
    axes: Sequence[Sequence[int]],
    batch: Sequence[Sequence[int]] = ((), ()),
    dtype: npt.DTypeLike = np.float32,
) -> TorchArray:
    """Sum products; of the last axes of both, as a product with the transposed right operand."""
    target = np.dtype(dtype)
    (left_axes, right_axes), device = axes, _device(left, right)
    x, y = (torch_array(side, device=device) for side in (left, right))
    if batch != ((), ()) or list(left_axes) != [x.ndim - 1] or list(right_axes) != [1]:
        raise UnsupportedError("a contraction of other axes has no translation to PyTorch")
    if target == np.int32 and {x.dtype.name, y.dtype.name} <= {"int8", "uint8"}:
        product = TorchArray(_multiply_bytes(x.reshape((-1, x.shape[-1])).tensor, y.tensor))
        return product.reshape((*x.shape[:-1], y.shape[0]))
    return TorchArray(torch.matmul(x.astype(target).tensor, y.astype(target).tensor.t()))


def _multiply_bytes(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``rows @ weight.T`` in i32, for ``[M, K]`` and ``[N, K]`` of i8 or u8.

    Kernels multiply i8, so u8 is ``v + 128`` with ``v`` of i8::

        sum_k (x + a)(w + b) = sum_k x w + a sum_k w + b sum_k x + K a b
    """
    (x, x_offset), (w, w_offset) = map(_signed_bytes, (rows, weight))
    product = torch.ops.aten._int_mm.default(x, w.t())
    if x_offset:
        product = product + x_offset * w.sum(1, dtype=torch.int32)
    if w_offset:
        product = product + w_offset * x.sum(1, dtype=torch.int32, keepdim=True)
    if x_offset and w_offset:
        product = product + x_offset * w_offset * x.shape[1]
    return product


def _signed_bytes(integers: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return integers of i8, and the number to add to them."""
    if integers.dtype == torch.int8:
        return integers, 0
    return (integers.to(torch.int32) - 128).to(torch.int8), 128


def _take(table: AnyArray, indices: AnyArray, axis: int = 0) -> TorchArray:
    device = _device(table, indices)
    source = torch_array(table, device=device)
    positions = torch_array(indices, np.dtype(np.int32), device)
    rows = torch.index_select(source.tensor, axis, positions.tensor.reshape(-1))
    return TorchArray(rows.reshape((*source.shape[:axis], *positions.shape,
                                    *source.shape[axis + 1 :])))  # fmt: skip


def _scatter(
    array: AnyArray, indices: AnyArray, updates: AnyArray, function: str = "add"
) -> TorchArray:
    if function != "set":
        raise UnsupportedError(f"a scatter by '{function}' has no translation to PyTorch")
    device = _device(array, indices, updates)
    rows, values = _tensors((array, updates))
    positions = torch_array(indices, np.dtype(np.int64), device).tensor
    return TorchArray(rows.index_copy(0, positions, values))


def _convolve(
    images: AnyArray,
    kernels: AnyArray,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    dtype: npt.DTypeLike = np.float32,
) -> TorchArray:
    device, target = _device(images, kernels), np.dtype(dtype)
    x, w = (torch_array(side, device=device) for side in (images, kernels))
    options = list(strides), list(dilations), groups
    if target.kind == "i":
        is_wide = target.itemsize > 4
        return TorchArray(convolve_integers(x.tensor, w.tensor, *options, is_wide))
    operands = (side.astype(target).tensor for side in (x, w))
    return TorchArray(torch.nn.functional.conv2d(*operands, None, options[0], 0, *options[1:]))


def _beside(value: AnyArray, array: AnyArray, element: ElementType | None = None) -> TorchArray:
    return torch_array(array, None if element is None else element.dtype, _device(value))


def _concatenate(arrays: Sequence[AnyArray], axis: int = 0) -> TorchArray:
    return TorchArray(torch.cat(_tensors(arrays), axis))


def _stack(arrays: Sequence[AnyArray], axis: int = 0) -> TorchArray:
    return TorchArray(torch.stack(_tensors(arrays), axis))


def _repeat(array: TorchArray, repeats: int, axis: int) -> TorchArray:
    return TorchArray(torch.repeat_interleave(array.tensor, int(repeats), axis))


FUNCTIONS.update(
    {
        array_functions.barrier: lambda value: value,
        array_functions.beside: _beside,
        array_functions.scatter: _scatter,
        array_functions.take: _take,
        block_form.dequantize: block_form.dequantize.__wrapped__,  # type: ignore[attr-defined]
        convolutions.contract: _contract,
        convolutions.convolve: _convolve,
        np.broadcast_to: lambda array, shape: TorchArray(array.tensor.broadcast_to(shape)),
        np.concatenate: _concatenate,
        np.pad: _pad,
        np.repeat: _repeat,
        np.reshape: lambda array, shape: array.reshape(shape),
        np.stack: _stack,
        np.transpose: lambda array, axes=(): array.transpose(*axes),
        np.where: _where,
        packed_integers.unpack_planes: packed_integers.unpack_planes.__wrapped__,  # type: ignore[attr-defined]
    }
)
