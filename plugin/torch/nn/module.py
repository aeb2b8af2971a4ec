"""Modules that take their tensors from a `Theta`, and keep them as buffers.

A tensor of one array is a buffer of its name. A quantized tensor has a buffer for each plane of its
layout: ``weight_d``, ``weight_qs``. A static quantizer has buffers ``q_input_rscale`` and
``q_input_offset``. So ``state_dict``, ``to`` and ``torch.export`` treat them as other tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from ...errors import UsageError
from ...layouts import (
    DynamicScaledQuantizer,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
    StaticScaledQuantizer,
)
from ...numerics.element_types import AnyArray
from ...weights.theta import Theta
from .. import torch_functions as _translations  # noqa: F401  registers them
from ..torch_arrays import TorchArray, array_of_tensor, tensor_of_array

Weights: TypeAlias = "Theta | InferenceTensor | torch.Tensor"
"""The tensors of a module: a node of a tree with their names, or the weight alone."""


class ThetaModule(torch.nn.Module):  # type: ignore[misc]
    """A module whose tensors are given to it.

    Args:
        weights: a node of a `Theta` with the names in `TENSORS`, or the tensor ``weight``.
        bias: the bias, if `weights` is the weight alone.

    Raises:
        UsageError: a tensor is missing, is none that the module uses, or is of a kind that it
            cannot use.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ("weight",)
    """The names of the tensors that the module uses; all but the weight may be missing."""

    def __init__(
        self, weights: Weights, bias: InferenceTensor | torch.Tensor | None = None
    ) -> None:
        super().__init__()
        tensors = _named(weights, bias)
        unknown = [name for name in tensors if name not in self.TENSORS]
        if unknown or "weight" not in tensors:
            raise UsageError(
                f"{type(self).__name__} has the tensors {sorted(tensors)}, expected 'weight' and "
                f"no other than {', '.join(self.TENSORS)}"
            )
        without_arrays: dict[str, InferenceTensor] = {}
        for name, tensor in tensors.items():
            planar = tensor.to_planar() if isinstance(tensor, QuantizedTensor) else tensor
            arrays = _buffers(name, planar)
            for buffer, array in arrays.items():
                self.register_buffer(buffer, tensor_of_array(np.array(array)))
            without_arrays[name] = _without_arrays(planar, name)
        self._tensors = without_arrays

    def __getattr__(self, name: str) -> Any:
        """Return the buffers; a quantized ``weight`` dequantized, and None for no ``bias``."""
        tensors: dict[str, InferenceTensor] = self.__dict__.get("_tensors", {})
        if name == "bias" and tensors and name not in tensors:
            return None
        if name == "weight" and isinstance(tensors.get(name), QuantizedTensor):
            return reals_of(self._of_buffers(name))
        return super().__getattr__(name)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the weight, whatever its planes are."""
        return self._tensors["weight"].shape

    def _theta(self) -> Theta:
        """The tensors, with the buffers as their arrays."""
        return Theta({name: self._of_buffers(name) for name in self._tensors})

    def _of_buffers(self, name: str) -> InferenceTensor:
        tensor = self._tensors[name]
        if isinstance(tensor, PlanarQuantizedTensor):
            layout = tensor.layout
            planes = {plane: self._buffer(f"{name}_{plane}") for plane in layout.planes}
            return PlanarQuantizedTensor(layout.with_planes(planes), name)
        if isinstance(tensor, StaticScaledQuantizer):
            quantizer = copy.copy(tensor)
            quantizer.reciprocal_scale = self._buffer(f"{name}_rscale")
            if tensor.offset is not None:
                quantizer.offset = self._buffer(f"{name}_offset")
            return quantizer
        if isinstance(tensor, PrimitiveTensor):
            return PrimitiveTensor(self._buffer(name), name)
        return tensor

    def _buffer(self, name: str) -> AnyArray:
        return TorchArray(getattr(self, name))

    def extra_repr(self) -> str:
        """The layouts of the tensors, as PyTorch prints them."""
        return ", ".join(
            f"{name}={tensor.layout!r}" if isinstance(tensor, PlanarQuantizedTensor)
            else f"{name}={type(tensor).__name__}"
            for name, tensor in self._tensors.items()
        )  # fmt: skip


def _named(weights: Weights, bias: Any) -> Mapping[str, InferenceTensor]:
    if isinstance(weights, Theta):
        if bias is not None:
            raise UsageError("the bias is a tensor of the Theta: give it no other")
        return weights.flatten()
    tensors = {"weight": weights} if bias is None else {"weight": weights, "bias": bias}
    return {name: _inference_tensor(tensor, name) for name, tensor in tensors.items()}


def _inference_tensor(tensor: Any, name: str) -> InferenceTensor:
    if isinstance(tensor, InferenceTensor):
        return tensor
    if not isinstance(tensor, (torch.Tensor, np.ndarray)):
        raise UsageError(f"'{name}' is a {type(tensor).__name__}, expected a tensor")
    return PrimitiveTensor(array_of_tensor(tensor), name)


def _buffers(name: str, tensor: InferenceTensor) -> dict[str, AnyArray]:
    """The arrays of a tensor by the names of their buffers."""
    if isinstance(tensor, PlanarQuantizedTensor):
        return {f"{name}_{plane}": array for plane, array in tensor.layout.planes.items()}
    if isinstance(tensor, StaticScaledQuantizer):
        arrays = {f"{name}_rscale": tensor.reciprocal_scale}
        return arrays if tensor.offset is None else arrays | {f"{name}_offset": tensor.offset}
    if isinstance(tensor, PrimitiveTensor):
        return {name: tensor.array}
    if isinstance(tensor, DynamicScaledQuantizer):
        return {}
    raise UsageError(f"'{name}' is a {type(tensor).__name__}, which no module of PyTorch takes")


def _without_arrays(tensor: InferenceTensor, name: str) -> InferenceTensor:
    """The same tensor with arrays that take no memory, under another name."""
    if isinstance(tensor, PlanarQuantizedTensor):
        layout = copy.copy(tensor.layout)
        layout.planes = {plane: _placeholder(a) for plane, a in layout.planes.items()}
        return PlanarQuantizedTensor(layout, name)
    if isinstance(tensor, PrimitiveTensor):
        return PrimitiveTensor(_placeholder(tensor.array), name)
    return tensor.with_name(name)


def _placeholder(array: AnyArray) -> AnyArray:
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def reals_of(result: AnyArray) -> torch.Tensor:
    """Return the result of a layer as a tensor of floats."""
    reals = result.unpack().dequant() if isinstance(result, QuantizedTensor) else result
    assert isinstance(reals, TorchArray)
    return reals.tensor
