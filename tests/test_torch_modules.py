"""The modules of ``torch.nn``, one by one: results of eager PyTorch.

The modules of a family are functions of one executable, which is compiled once.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)

Case = tuple[nn.Module, tuple[Any, ...]]

torch.manual_seed(0)
ROWS, SEQUENCE, IMAGE = torch.randn(2, 16), torch.randn(2, 4, 16), torch.randn(2, 4, 8, 8)
VOLUME, OTHER_ROWS = torch.randn(1, 4, 6, 6, 6), torch.randn(2, 16)
INPUTS = {1: SEQUENCE, 2: IMAGE, 3: VOLUME}


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.attention(x, x, x)


def activations() -> dict[str, Case]:
    names = """CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU
    LogSigmoid Mish PReLU ReLU ReLU6 RReLU SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh
    Tanhshrink Dropout AlphaDropout"""
    cases: dict[str, Case] = {name: (getattr(nn, name)(), (ROWS,)) for name in names.split()}
    for name in ("LogSoftmax", "Softmax", "Softmin"):
        cases[name] = getattr(nn, name)(dim=-1), (ROWS,)
    return cases | {
        "Softmax2d": (nn.Softmax2d(), (IMAGE,)),
        "Threshold": (nn.Threshold(0.1, 20.0), (ROWS,)),
    }


def convolutions() -> dict[str, Case]:
    return {
        "Conv1d": (nn.Conv1d(4, 6, 3, padding=1), (SEQUENCE,)),
        "Conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2), (IMAGE,)),
        "Conv2d_circular": (nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), (IMAGE,)),
        "Conv2d_groups": (nn.Conv2d(4, 8, 3, groups=2), (IMAGE,)),
        "Conv2d_reflect": (nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), (IMAGE,)),
        "Conv2d_same": (nn.Conv2d(4, 8, (3, 5), padding="same"), (IMAGE,)),
        "Conv3d": (nn.Conv3d(4, 6, 3), (VOLUME,)),
        "ConvTranspose1d": (
            nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (SEQUENCE,),
        ),
        "ConvTranspose2d": (
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (IMAGE,),
        ),
        "ConvTranspose3d": (nn.ConvTranspose3d(4, 6, 3), (VOLUME,)),
        "Fold": (nn.Fold((8, 8), 3), (torch.randn(2, 36, 36),)),
        "Unfold": (nn.Unfold(3), (IMAGE,)),
    }  # fmt: skip


def poolings() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for rank, x in INPUTS.items():
        cases |= {
            f"AdaptiveAvgPool{rank}d": (getattr(nn, f"AdaptiveAvgPool{rank}d")(2), (x,)),
            f"AvgPool{rank}d": (getattr(nn, f"AvgPool{rank}d")(2), (x,)),
            f"LPPool{rank}d": (getattr(nn, f"LPPool{rank}d")(2, 2), (x.abs(),)),
            f"MaxPool{rank}d": (getattr(nn, f"MaxPool{rank}d")(3, stride=2, padding=1), (x,)),
        }
    for rank in INPUTS:
        name = f"AdaptiveMaxPool{rank}d"
        cases[name] = getattr(nn, name)(2), (INPUTS[rank],)
    return cases | {
        "AdaptiveAvgPool2d_3": (nn.AdaptiveAvgPool2d(3), (IMAGE,)),
        "AdaptiveMaxPool2d_3": (nn.AdaptiveMaxPool2d((3, 5)), (IMAGE,)),
    }


def poolings_with_ceil_mode() -> dict[str, Case]:
    """Windows that end outside: maxima with indices, averages with and without padding."""
    cases: dict[str, Case] = {}
    for size, kernel, stride, padding in (
        (8, 3, 2, 0), (8, 3, 2, 1), (7, 2, 2, 1), (9, 3, 3, 1), (8, 2, 3, 1), (5, 3, 4, 1),
    ):  # fmt: skip
        x = (torch.randn(1, 2, size, size),)
        name = f"{size}_{kernel}_{stride}_{padding}"
        cases[f"max_{name}"] = (
            nn.MaxPool2d(kernel, stride, padding, ceil_mode=True, return_indices=True),
            x,
        )
        for with_padding in (False, True):
            pool = nn.AvgPool2d(
                kernel, stride, padding, ceil_mode=True, count_include_pad=with_padding
            )
            cases[f"average_{name}_{with_padding}"] = pool, x
    for rank in (1, 3):
        for kind in ("Avg", "Max"):
            pool = getattr(nn, f"{kind}Pool{rank}d")(3, 2, 1, ceil_mode=True)
            cases[f"{kind}Pool{rank}d"] = pool, (INPUTS[rank],)
    return cases  # fmt: skip


def paddings() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for rank, x in INPUTS.items():
        for kind in ("Circular", "Reflection", "Replication", "Zero"):
            cases[f"{kind}Pad{rank}d"] = getattr(nn, f"{kind}Pad{rank}d")(1), (x,)
        cases[f"ConstantPad{rank}d"] = getattr(nn, f"ConstantPad{rank}d")(1, 2.0), (x,)
    return cases


def normalizations() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for rank, x in INPUTS.items():
        batch_norm = getattr(nn, f"BatchNorm{rank}d")(4)
        batch_norm(x)  # running means and variances
        cases[f"BatchNorm{rank}d"] = batch_norm, (x,)
        cases[f"InstanceNorm{rank}d"] = getattr(nn, f"InstanceNorm{rank}d")(4, affine=True), (x,)
    return cases | {
        "GroupNorm": (nn.GroupNorm(2, 4), (IMAGE,)),
        "LayerNorm": (nn.LayerNorm(8), (IMAGE,)),
        "LocalResponseNorm": (nn.LocalResponseNorm(2), (IMAGE,)),
        "RMSNorm": (nn.RMSNorm(8), (IMAGE,)),
    }


def recurrences() -> dict[str, Case]:
    return {
        "GRU": (nn.GRU(16, 8), (SEQUENCE,)),
        "GRUCell": (nn.GRUCell(16, 8), (ROWS,)),
        "LSTM": (nn.LSTM(16, 8, 2, bidirectional=True, batch_first=True), (SEQUENCE,)),
        "LSTMCell": (nn.LSTMCell(16, 8), (ROWS,)),
        "RNN": (nn.RNN(16, 8), (SEQUENCE,)),
        "RNNCell": (nn.RNNCell(16, 8), (ROWS,)),
    }


def transformers() -> dict[str, Case]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    target = torch.randn(2, 5, 16)
    return {
        "MultiheadAttention": (SelfAttention(), (SEQUENCE,)),
        "Transformer": (nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (SEQUENCE, target)),
        "TransformerDecoderLayer": (
            nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), (SEQUENCE, target),
        ),
        "TransformerEncoder": (nn.TransformerEncoder(layer, 2), (SEQUENCE,)),
    }  # fmt: skip


def losses_and_resizing() -> dict[str, Case]:
    numbers = torch.randint(0, 10, (2, 3))
    classes = torch.randint(0, 16, (2,))
    cases: dict[str, Case] = {
        name: (getattr(nn, name)(), (ROWS, OTHER_ROWS))
        for name in (
            "CosineSimilarity",
            "HuberLoss",
            "L1Loss",
            "MSELoss",
            "PairwiseDistance",
            "SmoothL1Loss",
        )
    }
    for mode in ("bicubic", "bilinear", "nearest"):
        cases[f"Upsample_{mode}"] = nn.Upsample(scale_factor=2, mode=mode), (IMAGE,)
    return cases | {
        "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), (ROWS, torch.rand(2, 16))),
        "Bilinear": (nn.Bilinear(16, 16, 4), (ROWS, OTHER_ROWS)),
        "ChannelShuffle": (nn.ChannelShuffle(2), (IMAGE,)),
        "CrossEntropyLoss": (nn.CrossEntropyLoss(), (ROWS, classes)),
        "Embedding": (nn.Embedding(10, 4), (numbers,)),
        "EmbeddingBag": (nn.EmbeddingBag(10, 4), (numbers,)),
        "Flatten": (nn.Flatten(), (IMAGE,)),
        "KLDivLoss": (nn.KLDivLoss(reduction="batchmean"), (ROWS, torch.rand(2, 16))),
        "Linear": (nn.Linear(16, 8), (ROWS,)),
        "NLLLoss": (nn.NLLLoss(), (ROWS, classes)),
        "PixelShuffle": (nn.PixelShuffle(2), (IMAGE,)),
        "PixelUnshuffle": (nn.PixelUnshuffle(2), (IMAGE,)),
        "Unflatten": (nn.Unflatten(1, (4, 4)), (ROWS,)),
        "Upsample_corners": (
            nn.Upsample(size=(13, 11), mode="bilinear", align_corners=True), (IMAGE,),
        ),
        "Upsample_linear": (nn.Upsample(scale_factor=2, mode="linear"), (SEQUENCE,)),
        "Upsample_trilinear": (nn.Upsample(scale_factor=2, mode="trilinear"), (VOLUME,)),
    }  # fmt: skip


FAMILIES = (
    activations, convolutions, losses_and_resizing, normalizations, paddings, poolings,
    poolings_with_ceil_mode, recurrences, transformers,
)  # fmt: skip


@pytest.mark.share(6)
@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_modules_compute_as_eager_pytorch(family: Any) -> None:
    cases = family()
    programs = {
        name: torch.export.export(module.eval(), args) for name, (module, args) in cases.items()
    }
    compiled = subquant.torch.compile(programs)
    for name, (module, args) in cases.items():
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*args))
        results = pytree.tree_leaves(compiled.call(name, *args))
        for result, reference in zip(results, expected, strict=True):
            assert (result.shape, result.dtype) == (reference.shape, reference.dtype), name
            limit = 1e-6 * max(float(reference.abs().max()), 1e-30)
            assert float((result - reference).abs().max()) <= limit, name
