"""BERT- and ViT-like encoders of PyTorch with random weights, quantized to int8.

BERT-like: tokens, post-norm blocks (arXiv:1810.04805). ViT-like: 16x16 patches of an image of
224x224, a class token, pre-norm blocks (arXiv:2010.11929). Both have GELU in blocks four times as
wide, and `scaled_dot_product_attention`.

========  ======================================================================================
method    quantization
========  ======================================================================================
XNNPACK   PT2E: inputs and results of layers and additions, a scale each; weights by channel
X86       PT2E: inputs of layers, u8, a scale each; weights by channel
dynamic   torchao: rows of the inputs of layers, at run time; weights by channel
========  ======================================================================================

`quantized_module` returns the program for subquant, and the same one for ONNX Runtime
(`benchmarks.exported_onnx`). With ``dynamic`` the latter is quantized by ONNX Runtime's
`quantize_dynamic`, which has one scale for all rows, and the exact result is the float module's.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

METHODS = ("XNNPACK", "X86", "dynamic")
_NEEDED = ("torch", "torchao", "onnx")
_TOKENS, _VOCABULARY = 128, 2048
_PIXELS, _PATCH = 224, 16
_CALIBRATION_CALLS = 4


def missing_libraries() -> list[str]:
    """Return the libraries that the cases need, and that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


@dataclass(frozen=True)
class QuantizedModule:
    """A quantized encoder.

    Args:
        program: the exported module, as bytecode of MLIR.
        onnx: the model for ONNX Runtime.
        x: the input.
        exact: the result of eager PyTorch.
    """

    program: bytes
    onnx: bytes
    x: Array
    exact: Array


def _block(width: int, heads: int, *, is_pre_norm: bool) -> Any:
    from torch import Tensor, nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
            self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)

        def attend(self, x: Tensor) -> Tensor:
            query, key, value = (
                layer(x).view(*x.shape[:2], heads, width // heads).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            attended = functional.scaled_dot_product_attention(query, key, value)
            return self.out(attended.transpose(1, 2).reshape(x.shape))

        def feed_forward(self, x: Tensor) -> Tensor:
            return self.down(functional.gelu(self.up(x)))

        def forward(self, x: Tensor) -> Tensor:
            if is_pre_norm:
                x = x + self.attend(self.first_norm(x))
                return x + self.feed_forward(self.second_norm(x))
            x = self.first_norm(x + self.attend(x))
            return self.second_norm(x + self.feed_forward(x))

    return Block()


def _bert(width: int, heads: int, layers: int) -> Any:
    import torch
    from torch import Tensor, nn

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(_VOCABULARY, width)
            self.positions = nn.Parameter(torch.randn(_TOKENS, width) * 0.02)
            self.norm = nn.LayerNorm(width)
            blocks = (_block(width, heads, is_pre_norm=False) for _ in range(layers))
            self.blocks = nn.Sequential(*blocks)

        def forward(self, ids: Tensor) -> Tensor:
            return self.blocks(self.norm(self.words(ids) + self.positions))

    return Bert()


def _vit(width: int, heads: int, layers: int) -> Any:
    import torch
    from torch import Tensor, nn

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, _PATCH, _PATCH)
            self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
            count = (_PIXELS // _PATCH) ** 2 + 1
            self.positions = nn.Parameter(torch.randn(1, count, width) * 0.02)
            blocks = (_block(width, heads, is_pre_norm=True) for _ in range(layers))
            self.blocks = nn.Sequential(*blocks)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, image: Tensor) -> Tensor:
            x = self.patches(image).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Vit()


def _drawn_input(kind: str) -> Any:
    import torch

    if kind == "BERT":
        return torch.randint(0, _VOCABULARY, (1, _TOKENS))
    return torch.randn(1, 3, _PIXELS, _PIXELS)


def _pt2e(module: Any, x: Any, method: str, kind: str) -> Any:
    """Quantize a module by PT2E, with ranges of `_CALIBRATION_CALLS` inputs."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    if method == "XNNPACK":
        from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

        config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
        quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    else:
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        config = x86.get_default_x86_inductor_quantization_config()
        quantizer = x86.X86InductorQuantizer().set_global(config)
    prepared = prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)
    prepared(x)
    for _ in range(_CALIBRATION_CALLS - 1):
        prepared(_drawn_input(kind))
    return convert_pt2e(prepared)


def _dynamic_onnx(model: bytes) -> bytes:
    """Quantize a model of floats by ONNX Runtime's `quantize_dynamic`, with signed weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float.onnx"), Path(folder, "dynamic.onnx")
        before.write_bytes(model)
        quantize_dynamic(before, after, per_channel=True, weight_type=QuantType.QInt8)
        return after.read_bytes()


def quantized_module(
    kind: str, width: int, heads: int, layers: int, method: str
) -> QuantizedModule:
    """Make an encoder, ``BERT`` or ``ViT``, and quantize it by one of `METHODS`."""
    logging.disable(logging.WARNING)  # torchao's of its own deprecations, torch.export's
    warnings.filterwarnings("ignore")
    import torch

    import subquant.torch

    from .exported_onnx import onnx_model

    torch.manual_seed(0)
    make = {"BERT": _bert, "ViT": _vit}[kind]
    module, x = make(width, heads, layers).eval(), _drawn_input(kind)
    with torch.no_grad():
        if method == "dynamic":
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

            exact = module(x).numpy()
            model = _dynamic_onnx(onnx_model(torch.export.export(module, (x,))))
            quantize_(module, Int8DynamicActivationInt8WeightConfig())
            exported = torch.export.export(module, (x,))
        else:
            module = _pt2e(module, x, method, kind)
            exact = module(x).numpy()
            exported = torch.export.export(module, (x,))
            model = onnx_model(exported)
    program = subquant.torch.export(exported).bytecode
    return QuantizedModule(program, model, x.numpy(), exact)
