"""Operator ``subquant::convolve_integers``: convolution of integers, which PyTorch lacks on CPUs.

Eager, it is a convolution in f64, which is exact below ``2**53``. `subquant.torch.export` writes a
convolution of integers.
"""

from __future__ import annotations

import functools

import torch


def decompose_convolution(
    images: torch.Tensor,
    kernels: torch.Tensor,
    strides: list[int],
    dilations: list[int],
    groups: int,
    is_wide: bool,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Convolve integers without padding.

    Args:
        images: ``[N, C, H, W]``, integers.
        kernels: ``[F, C / groups, KH, KW]``, integers.
        strides, dilations: of height and width.
        groups: the number of groups of features.
        is_wide: accumulate in i64, not i32. Sums of products must fit.
        dtype: the type of the convolution; None for that of the result.

    Returns:
        ``[N, F, OH, OW]``, i32 or i64.
    """
    accumulator = torch.int64 if is_wide else torch.int32
    operands = [each.to(dtype or accumulator) for each in (images, kernels)]
    result: torch.Tensor = torch.ops.aten.convolution.default(
        *operands, None, strides, [0, 0], dilations, False, [0, 0], groups
    )
    return result.to(accumulator)


convolve_integers = torch.library.custom_op(
    "subquant::convolve_integers",
    functools.partial(decompose_convolution, dtype=torch.float64),
    mutates_args=(),
    schema="(Tensor images, Tensor kernels, int[] strides, int[] dilations, int groups, "
    "bool is_wide) -> Tensor",
)
"""The operator; see `decompose_convolution`, into which it is exported."""
convolve_integers.register_fake(decompose_convolution)
