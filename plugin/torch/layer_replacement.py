"""Replacement of a module's layers by those of `subquant.torch.nn`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .nn.conv2d import Conv2d
from .nn.embedding import Embedding
from .nn.linear import Linear
from .nn.module import ThetaModule, Weights

_CLASSES = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Embedding)


def is_replaceable(module: torch.nn.Module) -> bool:
    """Return True for a ``Linear``, ``Conv2d`` or ``Embedding``, and for derived classes."""
    return isinstance(module, _CLASSES)


def why_kept(layer: Any) -> str | None:
    """Return the reason why a replacement would compute something else; None if it would not."""
    reasons = {
        f"is a {type(layer).__name__}, of a derived class": type(layer) not in _CLASSES,
        "has hooks": bool(layer._forward_hooks or layer._forward_pre_hooks),
        "pads with other values than zeros": getattr(layer, "padding_mode", "zeros") != "zeros",
        "limits the norms of its rows (max_norm)": getattr(layer, "max_norm", None) is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def replacement(layer: Any, weights: Weights, bias: Any = None) -> ThetaModule:
    """Return a layer with the options of `layer` and other weights, on its device."""
    result: ThetaModule
    if isinstance(layer, torch.nn.Conv2d):
        result = Conv2d(
            weights,
            bias,
            stride=layer.stride,
            padding=_padding(layer),
            dilation=layer.dilation,
            groups=layer.groups,
        )
    else:
        result = (Linear if isinstance(layer, torch.nn.Linear) else Embedding)(weights, bias)
    result.to(layer.weight.device).train(layer.training)
    return result


def named_layers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules below a module by their names; a shared one under each of its names."""
    return ((n, m) for n, m in module.named_modules(remove_duplicate=False) if n)


def replace_layers(
    module: torch.nn.Module, replacements: Mapping[torch.nn.Module, ThetaModule]
) -> None:
    """Replace layers of a module in place, wherever they are used."""
    for name, layer in list(named_layers(module)):
        if layer in replacements:
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, replacements[layer])


def _padding(layer: torch.nn.Conv2d) -> Any:
    if layer.padding == "valid":
        return 0
    if layer.padding != "same":
        return layer.padding
    totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)
