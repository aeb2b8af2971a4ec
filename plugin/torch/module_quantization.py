"""Quantize the weights of a PyTorch module, and replace its layers by those of `subquant.torch.nn`.

>>> report = subquant.torch.quantize_module(model, WeightQuantization(bits=4))   # doctest: +SKIP
>>> print(report)                                                                # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedError, UsageError, quoted
from ..layouts import PlanarQuantizedTensor
from ..weights.quantizing import LayerError, WeightQuantization, layer_error, quantize_array
from .layer_replacement import (
    is_replaceable,
    named_layers,
    replace_layers,
    replacement,
    why_kept,
)
from .nn.module import ThetaModule
from .torch_arrays import array_of_tensor


@dataclass(frozen=True)
class ModuleQuantization:
    """Report on a quantized module.

    Attributes:
        errors: the error of each quantized weight, under the name of its module.
        unchanged: the reason for each other module with weights of two axes or more, by its name.
    """

    errors: tuple[LayerError, ...]
    unchanged: Mapping[str, str]

    def __str__(self) -> str:
        """Return a line for each module."""
        modules = [
            f"{each.name}: {'x'.join(map(str, each.shape))}, {each.bits_per_element:.2f} bits an "
            f"element, signal to noise {each.signal_to_noise:.1f} dB"
            for each in self.errors
        ]
        return "\n".join(
            [*modules, *(f"{name}: unchanged: {why}" for name, why in self.unchanged.items())]
        )


def quantize_module(
    module: torch.nn.Module, how: WeightQuantization | Mapping[str, WeightQuantization | None]
) -> ModuleQuantization:
    """Replace ``Linear``, ``Conv2d`` and ``Embedding`` in a module by quantized ones, in place.

    Args:
        module: a module that contains them.
        how: the quantization of all weights, or one for each regular expression: the first that
            finds a match in the name of a layer applies; None keeps the layer.

    Returns:
        The errors of the weights, and the layers that stay as they are.

    Raises:
        UsageError: the module is a layer itself, or an expression is none or matches no layer.
        UsageError, UnsupportedError: a layer cannot be quantized as it is asked for: it has blocks
            that do not divide its last axis, other padding than zeros, a limit of norms, hooks, or
            is of a derived class. Then the module is not changed.
    """
    if is_replaceable(module):
        raise UsageError(
            f"the module is a {type(module).__name__}, which cannot be replaced in place; quantize "
            "a module that contains it"
        )
    rules = _Rules(how)
    unchanged: dict[str, str] = {}
    errors: list[LayerError] = []
    replacements: dict[torch.nn.Module, ThetaModule] = {}
    for name, layer in named_layers(module):
        if not is_replaceable(layer):
            if any(p.ndim > 1 for p in layer.parameters(recurse=False)):
                unchanged[name] = f"a {type(layer).__name__} is not replaced"
            continue
        quantization = rules.of(name)
        if quantization is None:
            unchanged[name] = "no quantization is given for its name"
        elif layer not in replacements:
            replacements[layer], error = _quantized(name, layer, quantization)
            errors.append(error)
    rules.check()
    replace_layers(module, replacements)
    return ModuleQuantization(tuple(errors), unchanged)


class _Rules:
    """Quantizations by regular expressions of names."""

    def __init__(self, how: WeightQuantization | Mapping[str, WeightQuantization | None]) -> None:
        if not isinstance(how, WeightQuantization | Mapping):
            raise UsageError(
                "expected a WeightQuantization, such as WeightQuantization(bits=4), or a mapping "
                f"from regular expressions to them, got {how!r:.100}"
            )
        by_pattern = {"": how} if isinstance(how, WeightQuantization) else dict(how)
        self._unused = set(by_pattern)
        self._rules = []
        for pattern, quantization in by_pattern.items():
            try:
                self._rules.append((re.compile(pattern), quantization))
            except re.error as error:
                raise UsageError(f"'{pattern}' is no regular expression: {error}") from None

    def of(self, name: str) -> WeightQuantization | None:
        """Return the quantization of the first expression that matches."""
        for pattern, quantization in self._rules:
            if pattern.search(name):
                self._unused.discard(pattern.pattern)
                return quantization
        return None

    def check(self) -> None:
        """Refuse expressions that applied to no layer."""
        for pattern, _ in self._rules:
            if pattern.pattern in self._unused:
                raise UsageError(
                    f"the expression '{pattern.pattern}' applies to no Linear, Conv2d or Embedding"
                )


def _quantized(name: str, layer: Any, how: WeightQuantization) -> tuple[ThetaModule, LayerError]:
    reason = why_kept(layer)
    if reason is not None:
        raise UnsupportedError(
            f"the layer {quoted(name)} {reason}; keep it: give its name None as quantization"
        )
    array = array_of_tensor(layer.weight)
    try:
        weight = PlanarQuantizedTensor(quantize_array(array, how), name)
    except (UnsupportedError, UsageError) as error:
        raise type(error)(
            f"the weight of {type(layer).__name__} {quoted(name)} {error.message}; give its name a "
            "quantization of its own, for example one with granularity='axis'"
        ) from None
    bias = getattr(layer, "bias", None)
    return replacement(layer, weight, bias), layer_error(weight, array)
