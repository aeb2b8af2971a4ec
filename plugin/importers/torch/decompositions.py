"""Decompositions of the operators that torch-mlir 20261001 does not lower, into ATen operators.

Each repeats the eager computation of PyTorch, operation for operation, so that results have the
same bits. Source: `torch/ao/quantization/fx/_decomposed.py` of PyTorch 2.13.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ...errors import UnsupportedError
from . import pooling
from .bit_operations import bit_operations
from .dynamic_axes import dynamic_axes_operators
from .elementwise import elementwise_operators, floor_divide
from .grid_sampling import grid_sampling_operators
from .half_precision import half_operators
from .indexing import indexing_operators
from .integer_convolution import decompose_convolution
from .integer_promotion import integer_operators
from .ordering import ordering_operators
from .reshapes import reshaping_operators
from .resizing import resizing_operators
from .scattering import scattering_operators
from .source_lines import nodes_of
from .special_functions import special_functions
from .windows import window_operators

Tensor: TypeAlias = torch.Tensor
Table = dict[Any, Callable[..., Any]]


def _per_axis(parameter: Tensor, rank: int, axis: int) -> Tensor:
    """Reshape one parameter for each channel, so that it broadcasts along `axis`."""
    return parameter.reshape([-1 if each == axis % rank else 1 for each in range(rank)])


def _quantize(
    values: Tensor, scale: Any, zero_point: Any, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    """Quantize: ``clamp(round(values * (1 / scale)) + zero_point, low, high)``.

    Shapes: parameters broadcast to `values`. Ties round to even.
    """
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.to(torch.float32)
    return torch.clamp(torch.round(values * (1.0 / scale)) + zero_point, low, high).to(dtype)


def _dequantize(
    values: Tensor,
    scale: Any,
    zero_point: Any,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Dequantize: ``(values - zero_point) * scale``, in `out_dtype`, or f32."""
    result: Tensor = (values.to(out_dtype or torch.float32) - zero_point) * scale
    return result


def _scalar(parameter: Tensor) -> Tensor:
    """Reshape a parameter of one element to rank 0, which promotes types as a number does."""
    return parameter.reshape(())


def _quantize_by_tensors(
    values: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    return _quantize(values, _scalar(scale), _scalar(zero_point), low, high, dtype)


def _dequantize_by_tensors(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    parameters = _scalar(scale), _scalar(zero_point)
    return _dequantize(values, *parameters, low, high, dtype, out_dtype=out_dtype)


def _quantize_per_channel(
    values: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Tensor:
    rank = values.dim()
    zero_points = _per_axis(zero_points, rank, axis)
    return _quantize(values, _per_axis(scales, rank, axis), zero_points, low, high, dtype)


def _dequantize_per_channel(
    values: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    rank = values.dim()
    offset = 0 if zero_points is None else _per_axis(zero_points, rank, axis)
    centered = values.to(out_dtype or torch.float32) - offset
    return centered * _per_axis(scales, rank, axis)


def _choose_qparams(
    values: Tensor, low: int, high: int, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute an affine scale and zero point from the range of `values`, extended to contain 0.

    Returns:
        The scale (f64) and the zero point (i64), of shape [1].
    """
    least, largest = torch.aminmax(values)
    least, largest = torch.clamp(least, max=0.0), torch.clamp(largest, min=0.0)
    scale = torch.clamp((largest - least) / float(high - low), min=epsilon)
    zero_point = torch.clamp(low - torch.round(least / scale).to(torch.int32), low, high)
    return scale.to(torch.float64).reshape(1), zero_point.to(torch.int64).reshape(1)


def _integer_matmul(left: Tensor, right: Tensor) -> Any:
    """Multiply u8 by i8 as i8 by i8: ``(left - 128) @ right + 128 * sum(right)``, exactly.

    torchao writes u8 activations on x86 CPUs, and shifts the accumulators back. Operands of type i8
    need no decomposition.
    """
    if left.dtype != torch.uint8:
        return NotImplemented
    shifted = (left.to(torch.int32) - 128).to(torch.int8)
    correction = 128 * torch.sum(right, dim=0, keepdim=True, dtype=torch.int32)
    return torch.ops.aten._int_mm.default(shifted, right) + correction


def _scaled_matmul(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
    fast: bool = False,
) -> Any:
    """Multiply 8-bit floats with their scales in f32, as PyTorch does on CPUs.

    Scales are of one number, or one for each row of `left` and each column of `right`. Sources:
    ``_scaled_mm_out_cpu_emulated`` in ``aten/src/ATen/native/Blas.cpp``.
    """
    if result_scale is not None:
        return NotImplemented
    operands = left.to(torch.float32) * left_scale, right.to(torch.float32) * right_scale
    result = torch.matmul(*operands)
    return (result if bias is None else result + bias).to(dtype or left.dtype)


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """Return zeros for a tensor whose elements are written later."""
    # torch.full of a dynamic size is written by this operator.
    zero = torch.scalar_tensor(0, dtype=dtype or torch.get_default_dtype(), device=device)
    return zero.expand(size).clone(memory_format=torch.contiguous_format)


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    """Return zeros for a tensor whose elements are written later; strides have no meaning."""
    return _empty(size, dtype=options.get("dtype"), device=options.get("device"))


def _as_strided(
    values: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Reshape a tensor whose elements are contiguous before and after; refuse other strides.

    torch-mlir takes the elements of the tensor in their order for those of its memory.
    """
    if not values.is_contiguous() or values.storage_offset():
        raise UnsupportedError(
            "as_strided of a tensor that is not contiguous is not compiled; write it as slices, or "
            "make its operand contiguous()"
        )
    contiguous = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    if storage_offset or list(stride) != contiguous or values.numel() != math.prod(size):
        return NotImplemented
    return values.reshape(size)


def _without_freedom(*, has_mean: bool) -> Callable[..., Any]:
    """Return a variance or deviation, which divides by 0 if a correction leaves no elements."""

    def decomposed(
        values: Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        axes = list(range(values.dim())) if not dim else [axis % values.dim() for axis in dim]
        count = math.prod(values.shape[axis] for axis in axes)
        freedom = 1 if correction is None else correction
        if isinstance(count, torch.SymInt) or count > freedom:
            return NotImplemented
        mean = torch.mean(values, axes, keepdim=True)
        squares = (values - mean) * (values - mean)
        spread = torch.sum(squares, axes, keepdim=keepdim) / 0.0
        if not has_mean:
            return spread
        return spread, mean if keepdim else torch.mean(values, axes)

    return decomposed


def _multiply_vector(
    values: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.mv(matrix, vector)
    return (values if beta == 1 else values * beta) + (product if alpha == 1 else product * alpha)


def _distance(left: Tensor, right: Tensor, p: float = 2) -> Any:
    return torch.linalg.vector_norm(left - right, p)


def _divide(left: Tensor, right: Any, *, rounding_mode: str | None) -> Any:
    """Divide without rounding, which torch-mlir knows as another operator, or rounding down."""
    if rounding_mode == "floor":
        return floor_divide(left, right)
    return NotImplemented if rounding_mode else torch.div(left, right)


def _roll(values: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Roll by slices: torch-mlir writes slices of dynamic size, which IREE refuses."""
    if not dims:
        flat = _roll(values.reshape(-1), shifts, [0])
        return flat.reshape(values.shape)
    for shift, axis in zip(shifts, dims, strict=True):
        size = values.shape[axis]
        if isinstance(size, torch.SymInt):
            positions = torch.remainder(torch.arange(size) - shift, size)
            positions = _per_axis(positions, values.dim(), axis).expand(values.shape)
            values = torch.gather(values, axis, positions)
            continue
        start = -shift % size if size else 0
        if start:
            pieces = values.narrow(axis, start, size - start), values.narrow(axis, 0, start)
            values = torch.cat(pieces, axis)
    return values


def _layer_norm(
    values: Tensor,
    shape: Sequence[int],
    scale: Tensor | None,
    offset: Tensor | None,
    epsilon: float,
) -> Any:
    """Normalize the last axes of f32 in f32, as PyTorch does: torch-mlir sums squares in f64.

    ``(x - mean) / sqrt(mean((x - mean)**2) + epsilon) * scale + offset``

    Returns:
        The result, the mean, and the reciprocal of the root; NotImplemented for other types.
    """
    if values.dtype != torch.float32:
        return NotImplemented
    axes = [*range(values.dim() - len(shape), values.dim())]
    mean = torch.mean(values, axes, keepdim=True)
    centered = values - mean
    variance = torch.mean(centered * centered, axes, keepdim=True)
    factor = torch.rsqrt(variance + epsilon)
    result = centered * factor
    if scale is not None:
        result = result * scale
    if offset is not None:
        result = result + offset
    return result, mean, factor


_OF_TOKENS = (
    *("choose_qparams_per_token", "choose_qparams_per_token_asymmetric"),
    *("quantize_per_token", "dequantize_per_token", "dequantize_per_channel_group"),
)
"""Operators whose implementations in PyTorch are decompositions."""


def decomposition_table() -> Table:
    """Return the table for `torch.export.ExportedProgram.run_decompositions`.

    It has PyTorch's core decompositions, those that torch-mlir asks for, and the ones of this file.
    """
    from torch._decomp import get_decompositions
    from torch.ao.quantization.fx import _decomposed  # registers the operators, too
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    quantized, aten = torch.ops.quantized_decomposed, torch.ops.aten
    of_pytorch = get_decompositions(
        [aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d]
    )
    table: Table = dict(get_decomposition_table()) | of_pytorch
    for operators in (
        bit_operations,
        dynamic_axes_operators,
        elementwise_operators,
        grid_sampling_operators,
        indexing_operators,
        ordering_operators,
        reshaping_operators,
        scattering_operators,
        special_functions,
        window_operators,
    ):
        table |= operators()
    table |= {
        quantized.quantize_per_tensor.default: _quantize,
        quantized.quantize_per_tensor.tensor: _quantize_by_tensors,
        quantized.dequantize_per_tensor.default: _dequantize,
        quantized.dequantize_per_tensor.tensor: _dequantize_by_tensors,
        quantized.quantize_per_channel.default: _quantize_per_channel,
        quantized.dequantize_per_channel.default: _dequantize_per_channel,
        quantized.choose_qparams.tensor: _choose_qparams,
        **{getattr(quantized, name).default: getattr(_decomposed, name) for name in _OF_TOKENS},
        aten._int_mm.default: _integer_matmul,
        aten._scaled_mm.default: _scaled_matmul,
        aten.empty.memory_format: _empty,
        torch.ops.subquant.convolve_integers.default: decompose_convolution,
        aten.empty_strided.default: _empty_strided,
        aten.as_strided.default: _as_strided,
        aten.as_strided_copy.default: torch.as_strided,
        aten.native_layer_norm.default: _layer_norm,
        aten.std.correction: _without_freedom(has_mean=False),
        aten.var.correction: _without_freedom(has_mean=False),
        aten.var_mean.correction: _without_freedom(has_mean=True),
        aten.addmv.default: _multiply_vector,
        aten.dist.default: _distance,
        aten.div.Tensor_mode: _divide,
        aten.div.Scalar_mode: _divide,
        aten.roll.default: _roll,
        aten.max_pool2d_with_indices.default: pooling.max_pool_with_indices,
        aten.max_pool3d_with_indices.default: pooling.max_pool_with_indices,
        aten.avg_pool1d.default: pooling.avg_pool,
        aten.avg_pool2d.default: pooling.avg_pool,
        aten.avg_pool3d.default: pooling.avg_pool,
        aten._adaptive_avg_pool2d.default: pooling.adaptive_avg_pool,
        aten._adaptive_avg_pool3d.default: pooling.adaptive_avg_pool,
        aten.adaptive_max_pool2d.default: pooling.adaptive_max_pool,
        aten.adaptive_max_pool3d.default: pooling.adaptive_max_pool,
    }
    table |= resizing_operators(table)
    table |= half_operators(table)
    return table | integer_operators(table)


def _grouped_matmul(values: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row by the matrix of its expert.

    Shapes: `values` [rows, K], sorted by expert; `weight` [experts, K, N]; `ends` [experts], the
    row behind the last one of each expert. Rows behind all are 0. The products of all experts are
    computed: the number of rows of an expert depends on data.
    """
    rows = torch.arange(values.shape[0])[:, None]
    starts = torch.nn.functional.pad(ends[:-1], (1, 0))
    is_of_expert = torch.logical_and(rows >= starts, rows < ends)  # [rows, experts]
    products = torch.matmul(values, weight)  # [experts, rows, N]
    return torch.where(is_of_expert.T[..., None], products, 0.0).sum(0)


def custom_decompositions(program: torch.export.ExportedProgram) -> Table:
    """Return the decompositions of libraries' own operators in a program, of torchao's above all.

    PyTorch decomposes the ones that it has not met before a program, and preserves the others.
    """
    nodes = [node.target for node in nodes_of(program) if node.op == "call_function"]
    operators = [each for each in nodes if isinstance(each, torch._ops.OpOverload)]
    names = {each.namespace for each in operators} - {
        "aten",
        "prim",
        "prims",
        "quantized_decomposed",
    }
    table: Table = {}
    for name in sorted(names):
        namespace = getattr(torch.ops, name)
        for packet in [getattr(namespace, each) for each in namespace]:
            for overload in packet.overloads():
                operator = getattr(packet, overload)
                if str(operator) == "transformers.grouped_mm_fallback.default":
                    table[operator] = _grouped_matmul
                elif operator._can_decompose():
                    key = torch._C.DispatchKey.CompositeImplicitAutograd
                    table[operator] = functools.partial(operator._op_dk, key)
    return table
