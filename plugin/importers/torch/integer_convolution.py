"""Operator ``subquant::convolve_integers``: convolution of integers, which PyTorch lacks on CPUs.

Eager, it is a convolution in f64, which is exact below ``2**53``. `subquant.torch.export` writes a
convolution of integers.
"""

from __future__ import annotations

import torch


@torch.library.custom_op("subquant::convolve_integers", mutates_args=())  # type: ignore[untyped-decorator]
def convolve_integers(
    images: torch.Tensor,
    kernels: torch.Tensor,
    strides: list[int],
    dilations: list[int],
    groups: int,
    is_wide: bool,
) -> torch.Tensor:
    """Convolve integers without padding.

    Args:
        images: ``[N, C, H, W]``, integers.
        kernels: ``[F, C / groups, KH, KW]``, integers.
        strides, dilations: of height and width.
        groups: the number of groups of features.
        is_wide: accumulate in i64, not i32. Sums of products must fit.

    Returns:
        ``[N, F, OH, OW]``, i32 or i64.
    """
    operands = (images.to(torch.float64), kernels.to(torch.float64))
    result = torch.nn.functional.conv2d(*operands, None, strides, 0, dilations, groups)
    return result.to(_accumulator(is_wide))


def decompose_convolution(
    images: torch.Tensor,
    kernels: torch.Tensor,
    strides: list[int],
    dilations: list[int],
    groups: int,
    is_wide: bool,
) -> torch.Tensor:
    """Write the operator as a convolution of i32 or i64."""
    dtype = _accumulator(is_wide)
    x, w = images.to(dtype), kernels.to(dtype)
    result: torch.Tensor = torch.ops.aten.convolution.default(
        x, w, None, strides, [0, 0], dilations, False, [0, 0], groups
    )
    return result


def _accumulator(is_wide: bool) -> torch.dtype:
    return torch.int64 if is_wide else torch.int32


@convolve_integers.register_fake  # type: ignore[untyped-decorator]
def _(
    images: torch.Tensor,
    kernels: torch.Tensor,
    strides: list[int],
    dilations: list[int],
    groups: int,
    is_wide: bool,
) -> torch.Tensor:
    sizes = [
        (extent - (size - 1) * step - 1) // stride + 1
        for extent, size, step, stride in zip(
            images.shape[2:], kernels.shape[2:], dilations, strides, strict=True
        )
    ]
    shape = (images.shape[0], kernels.shape[0], *sizes)
    return images.new_empty(shape, dtype=_accumulator(is_wide))
