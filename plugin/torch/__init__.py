"""Compile PyTorch modules, quantized ones included, with the results of eager PyTorch.

>>> import torch, subquant.torch
>>> module = torch.nn.Linear(64, 32).eval()                          # doctest: +SKIP
>>> compiled = subquant.torch.compile(module, (torch.ones(4, 64),))  # doctest: +SKIP
>>> compiled(torch.ones(4, 64))                                      # doctest: +SKIP

It needs PyTorch: ``pip install subquant[torch]``.
"""

from __future__ import annotations

from ..weights.quantizing import WeightQuantization
from . import nn
from .compiled_module import CompiledModule
from .compiled_module import compile_module as compile
from .exported_module import ExportedModule
from .exported_module import export_module as export
from .module_quantization import ModuleQuantization, quantize_module
from .module_weights import LoadedWeights, load_weights

__all__ = [
    "CompiledModule",
    "ExportedModule",
    "LoadedWeights",
    "ModuleQuantization",
    "WeightQuantization",
    "compile",
    "export",
    "load_weights",
    "nn",
    "quantize_module",
]
