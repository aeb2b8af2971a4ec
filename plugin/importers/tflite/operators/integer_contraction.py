"""Contractions of quantized operands: accumulators, bias and requantization.

Sources: LiteRT, ``Prepare`` of ``conv.cc``, ``depthwise_conv.cc``, ``fully_connected.cc``,
``kernel_util.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....errors import UnsupportedError
from ....numerics.element_types import AnyArray, Array
from ..arithmetic.requantization import rescale, rescale_int64
from ..arithmetic.single_rounding import rescale_once
from ..call import Call
from ..operand import Operand
from ..reading.model import Tensor
from ..reading.schema import TENSOR_TYPES

_INT32_BOUND = 1 << 31
"""Accumulators of a smaller magnitude fit i32."""
_MAX_BIAS_SCALE_ERROR = np.float32(0.02)
"""LiteRT accepts a bias scale that differs by 2 % of the output scale from that of the products."""


def bias_operand(call: Call, index: int, output_channels: int) -> Operand | None:
    """Return the optional bias, checked to have an element for each output channel."""
    bias = call.optional(index)
    if bias is not None and math.prod(bias.shape) != output_channels:
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {output_channels} channels")
    return bias


def add_float_bias(values: AnyArray, bias: Operand | None) -> AnyArray:
    """Add an optional f32 bias."""
    return values if bias is None else values + bias.value.astype(np.float32)


@dataclass(frozen=True, eq=False)
class IntegerContraction:
    """A contraction of centered storage, its bias, and the scale of its result.

    ``sum (x - zx) * (w - zw) = sum x * (w - zw) - zx * sum (w - zw)``. The second sum is constant
    and is added with the bias. LiteRT accumulates 16-bit activations in 64 bits, unless the
    operator states i32; here they use 64 bits where the bound of the accumulators needs them. Other
    accumulators wrap in 32 bits, in LiteRT and here.

    Args:
        activations: with one scale.
        weights: constant, with one scale, or one for each output channel and zero points of 0.
        bias: in units of the product of both scales.
        axis: the weights' dimension of output channels, which are the last axis of the result.
    """

    call: Call
    activations: Operand
    weights: Operand
    bias: Operand | None
    axis: int

    def compute(self, contraction: Callable[[AnyArray, Array, int, type], AnyArray]) -> AnyArray:
        """Return the storage of the result.

        `contraction` contracts the activations' storage and the centered weights, with a padding
        value, in a dtype.
        """
        call, x = self.call, self.call.per_tensor(self.activations.tensor)
        weights = self._centered_weights()
        reduced_axes = tuple(axis for axis in range(weights.ndim) if axis != self.axis)
        info = np.iinfo(self.activations.value.dtype)
        greatest = max(x.zero_point - int(info.min), int(info.max) - x.zero_point)
        wide = weights.astype(np.int64)
        bound = int(np.abs(wide).sum(axis=reduced_axes).max(initial=0)) * greatest
        offset = -x.zero_point * wide.sum(axis=reduced_axes)
        if self.bias is not None:
            if not self.bias.is_constant:
                raise call.error(f"needs {self.bias.tensor} to be constant", UnsupportedError)
            self._check_bias(self.bias.tensor)
            bias = np.asarray(self.bias.value, np.int64)
            offset = offset + bias.reshape(-1)
            bound += int(np.abs(bias).max(initial=0))
        storage = self.activations.value
        if storage.dtype == np.uint8:
            storage = storage.astype(np.int16)
        weight_type = np.int8 if np.abs(weights + 0.5).max(initial=0) < 128 else np.int16
        needs_int64 = self._accumulates_int64() and bound >= _INT32_BOUND
        dtype = np.int64 if needs_int64 else np.int32
        total = contraction(storage, weights.astype(weight_type), x.zero_point, dtype)
        if offset.any():
            total = total + (offset if needs_int64 else offset.astype(np.uint32).view(np.int32))
        bound = bound if needs_int64 else min(bound, _INT32_BOUND)
        return call.to_storage(self._rescale(total, bound))

    def _centered_weights(self) -> Array:
        call, tensor = self.call, self.weights.tensor
        if not self.weights.is_constant:
            raise call.error(f"needs {tensor} to be constant, and it is computed", UnsupportedError)
        if self.weights.is_float:
            raise call.unsupported_type(self.weights)
        parameters = call.parameters(tensor)
        if parameters.is_per_tensor:
            is_convolution = call.operator.name != "FULLY_CONNECTED"
            if is_convolution and self.activations.tensor.type != "UINT8":
                call.symmetric_scale(self.weights)  # LiteRT subtracts no zero point
            return np.asarray(self.weights.value, np.int16) - np.int16(parameters.zero_point)
        if parameters.axis != self.axis or parameters.zero_points.any():
            raise call.error(
                f"needs scales of {tensor} along dimension {self.axis} and zero points of 0, and "
                f"they are along {parameters.axis}"
            )
        return np.asarray(self.weights.value, np.int16)

    def _check_bias(self, bias: Tensor) -> None:
        """Check type and scale of a bias: like LiteRT, a per-axis one only for its scales' number.

        Raises:
            InputError: it is not of 32 bits, or 64 with activations of 16; or has another scale.
        """
        known = ("INT32", "INT64") if self.activations.tensor.type == "INT16" else ("INT32",)
        if bias.type not in known:
            raise self.call.error(f"adds {bias} of type {bias.type}, expected {' or '.join(known)}")
        parameters = bias.quantization
        if parameters is None:
            return
        x, y = self.call.per_tensor(self.activations.tensor), self.call.per_tensor(self.call.output)
        products = x.scale * self.call.parameters(self.weights.tensor).scales.reshape(-1)
        scales = parameters.scales.reshape(-1)
        is_mismatch = scales.size not in (1, products.size) and products.size != 1
        if is_mismatch or (np.abs(scales - products) > _MAX_BIAS_SCALE_ERROR * y.scale).any():
            raise self.call.error(f"needs a scale of {bias} that is that of the products")
        if parameters.zero_points.any():
            raise self.call.error(f"needs zero points of 0 of {bias}")

    def _accumulates_int64(self) -> bool:
        if self.activations.tensor.type != "INT16":
            return False
        code = getattr(self.call.options, "quantized_bias_type", 0)
        stated = TENSOR_TYPES[code] if 0 < code < len(TENSOR_TYPES) else None
        if code and stated not in ("INT32", "INT64"):
            raise self.call.error(f"has the option quantized_bias_type = {stated or code}")
        if stated is not None and self.bias is not None and self.bias.tensor.type != stated:
            raise self.call.error(
                f"has accumulators of {stated} and a bias of {self.bias.tensor.type}"
            )
        return stated != "INT32" and (self.bias is None or self.bias.tensor.type == "INT64")

    def _rescale(self, total: AnyArray, bound: int) -> AnyArray:
        call, w = self.call, self.call.parameters(self.weights.tensor)
        x, y = call.per_tensor(self.activations.tensor), call.per_tensor(call.output)
        scales = w.scales.reshape(-1)
        factors = np.float64(x.scale) * scales.astype(np.float64) / np.float64(y.scale)
        if call.operator.name == "FULLY_CONNECTED":
            low, high = call.range(call.output)
            return rescale_once(total, factors, bound, low - y.zero_point, high - y.zero_point)
        if self.activations.tensor.type == "UINT8":  # the product of scales is rounded to f32
            factors = (x.scale * scales).astype(np.float64) / np.float64(y.scale)
        return (rescale_int64 if self._accumulates_int64() else rescale)(total, factors)
