"""Load the weights of a checkpoint into a PyTorch module, quantized as the checkpoint has them.

>>> model = LlamaForCausalLM(config).eval()                          # doctest: +SKIP
>>> print(subquant.torch.load_weights(model, "checkpoint"))          # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..errors import UsageError, quoted
from ..layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..weights.sources import open_weights
from ..weights.theta import Theta
from .layer_replacement import is_replaceable, named_layers, replace_layers, replacement, why_kept
from .nn.module import ThetaModule
from .torch_arrays import tensor_of_array

_MAX_LISTED = 5
"""The number of names that an error lists."""


@dataclass(frozen=True)
class LoadedWeights:
    """Report on the weights that a module got.

    Attributes:
        quantized: the weights of replaced layers, by the names of the layers.
        dequantized: the reason for each quantized weight that is stored as floats, by its name.
        floats: the names of parameters and buffers that got floats.
    """

    quantized: Mapping[str, InferenceTensor]
    dequantized: Mapping[str, str]
    floats: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for each quantized weight."""
        report = [f"{name}: {tensor!r}" for name, tensor in self.quantized.items()]
        report += [f"{name}: as floats: {why}" for name, why in self.dequantized.items()]
        return "\n".join([*report, f"{len(self.floats)} tensors of floats"])


def load_weights(module: torch.nn.Module, weights: Theta | str | os.PathLike[str]) -> LoadedWeights:
    """Load tensors by their names, as ``load_state_dict`` does; keep quantized weights packed.

    A ``Linear``, ``Conv2d`` or ``Embedding`` with a quantized weight, or with quantizers, is
    replaced by the layer of `subquant.torch.nn`. Other quantized tensors are dequantized.

    Args:
        module: a module with the checkpoint's names, with any parameters.
        weights: a tree of tensors, or what `subquant.weights.open_weights` opens: a folder with the
            weights of GPTQ, AWQ, compressed-tensors and others, an archive.

    Returns:
        The quantized and the other tensors.

    Raises:
        UsageError: a tensor of either side is missing in the other one, or has another shape. Then
            the module is not changed.
        InputError, UnsupportedError: as `open_weights`.
    """
    theta = weights if isinstance(weights, Theta) else open_weights(weights).theta
    state = module.state_dict(keep_vars=True)
    tensors = _with_shared(theta.flatten(), state)
    quantizers = {name: tensor for name, tensor in tensors.items() if name not in state}
    replacements: dict[torch.nn.Module, ThetaModule] = {}
    quantized: dict[str, InferenceTensor] = {}
    dequantized: dict[str, str] = {}
    used: set[str] = set()
    by_weight: dict[int, ThetaModule] = {}
    for name, layer in named_layers(module):
        weight = tensors.get(f"{name}.weight")
        own = {key: t for key, t in quantizers.items() if key.rpartition(".")[0] == name}
        if not is_replaceable(layer) or weight is None:
            continue
        if not isinstance(weight, QuantizedTensor) and not own:
            continue
        reason = why_kept(layer)
        if reason is not None:
            dequantized[f"{name}.weight"] = f"the layer {reason}"
            continue
        names = [f"{name}.{key}" for key in ("weight", "bias") if f"{name}.{key}" in tensors]
        of_layer = {key: tensors[key] for key in names} | own
        used |= of_layer.keys()
        quantized[name] = weight
        if layer not in replacements:
            by_key = {key.rpartition(".")[2]: tensor for key, tensor in of_layer.items()}
            replaced = replacements[layer] = replacement(layer, Theta(by_key))
            _share_weight(replaced, by_weight.setdefault(id(weight), replaced))
    _check(tensors, state, used)
    floats = []
    for name in state.keys() - used:
        tensor = tensors[name]
        if isinstance(tensor, QuantizedTensor):
            dequantized.setdefault(name, "no layer of subquant.torch.nn has it")
        else:
            floats.append(name)
    with torch.no_grad():
        for name in state.keys() - used:
            state[name].copy_(_floats_of(tensors[name]))
    replace_layers(module, replacements)
    return LoadedWeights(quantized, dequantized, tuple(sorted(floats)))


def _with_shared(
    tensors: Mapping[str, InferenceTensor], state: Mapping[str, torch.Tensor]
) -> dict[str, InferenceTensor]:
    """Add the tensors of parameters that are others under a second name, as tied embeddings are."""
    named = dict(tensors)
    by_parameter = {id(state[name]): tensor for name, tensor in tensors.items() if name in state}
    for name, parameter in state.items():
        if name not in named and id(parameter) in by_parameter:
            named[name] = by_parameter[id(parameter)]
    return named


def _share_weight(layer: ThetaModule, other: ThetaModule) -> None:
    """Let a layer have the planes of another one with the same weight, as tied embeddings do."""
    for name, plane in other.named_buffers():
        if name.startswith("weight"):
            setattr(layer, name, plane)


def _check(
    tensors: Mapping[str, InferenceTensor], state: Mapping[str, torch.Tensor], used: set[str]
) -> None:
    """Refuse tensors that one side lacks, and other shapes."""
    for what, names in (
        ("the module has no parameter or buffer for the tensors", tensors.keys() - state - used),
        ("the weights have no tensors for", state.keys() - tensors.keys()),
    ):
        if names:
            listed = ", ".join(quoted(name) for name in sorted(names)[:_MAX_LISTED])
            more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
            raise UsageError(f"{what} {listed}{more}")
    for name, parameter in state.items():
        if tuple(parameter.shape) != tuple(tensors[name].shape):
            raise UsageError(
                f"tensor {quoted(name)} has the shape {tuple(tensors[name].shape)}, expected "
                f"{tuple(parameter.shape)}"
            )


def _floats_of(tensor: InferenceTensor) -> torch.Tensor:
    if isinstance(tensor, QuantizedTensor):
        return tensor_of_array(tensor.unpack().dequant())
    assert isinstance(tensor, PrimitiveTensor)  # `_check`
    return tensor_of_array(tensor.array)
