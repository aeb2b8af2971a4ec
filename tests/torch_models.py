"""Small models of common architectures, written with ``torch.nn`` alone; needs PyTorch.

`MODELS` has, by name, a model and its inputs for a batch size. All dimensions 0 are the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs: TypeAlias = Callable[[int], tuple[Tensor, ...]]

VOCABULARY, WIDTH = 100, 32


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(16, 10)),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.LeakyReLU(0.1)),
        *(nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()),
    )


class Recurrent(nn.Module):
    """The last result of a recurrence of two layers."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.head = layer(16, 24, 2, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


class Tcn(nn.Module):
    """Causal convolutions with normalized weights and growing dilation."""

    def __init__(self) -> None:
        super().__init__()
        normalized = nn.utils.parametrizations.weight_norm
        self.convolutions = nn.ModuleList(
            normalized(nn.Conv1d(8 if n else 4, 8, 3, dilation=2**n)) for n in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for n, convolution in enumerate(self.convolutions):
            y = functional.relu(convolution(functional.pad(x, (2 * 2**n, 0))))
            x = y + x if n else y
        return self.head(x[:, :, -1])


class ResidualBlock(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(out_channels), nn.ReLU()),
            *(nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layers(x) + self.shortcut(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


class SqueezeExcitation(nn.Module):
    """Channels scaled by a function of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = functional.adaptive_avg_pool2d(x, 1)
        return x * functional.hardsigmoid(self.up(functional.relu(self.down(means))))


class InvertedResidual(nn.Module):
    """The block of MobileNet 3: expansion, depthwise convolution, projection."""

    def __init__(self, channels: int, hidden: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.is_residual = stride == 1 and channels == out_channels
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish()),
            nn.Conv2d(hidden, hidden, 5, stride, 2, groups=hidden, bias=False),
            *(nn.BatchNorm2d(hidden), nn.Hardswish(), SqueezeExcitation(hidden)),
            *(nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def mobilenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish()),
        *(InvertedResidual(8, 16, 8, 1), InvertedResidual(8, 24, 16, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


class UNet(nn.Module):
    """Two levels, with a transposed convolution and an interpolation upwards."""

    def __init__(self) -> None:
        super().__init__()
        self.down_1, self.down_2 = self.convolution(1, 8), self.convolution(8, 16)
        self.middle, self.up_1 = self.convolution(16, 16), self.convolution(32, 8)
        self.transposed, self.head = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(16, 1, 1)

    @staticmethod
    def convolution(channels: int, out_channels: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, out_channels, 3, padding=1),
            nn.GroupNorm(2, out_channels),
            nn.SiLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down_1(x)
        second = self.down_2(functional.max_pool2d(first, 2))
        lowest = self.transposed(self.middle(functional.max_pool2d(second, 2)))
        upper = self.up_1(torch.cat([lowest, second], 1))
        upper = functional.interpolate(upper, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(torch.cat([upper, first], 1))


class Attention(nn.Module):
    """Attention with grouped key-value heads; rotary positions and a causal mask on demand."""

    def __init__(self, heads: int, kv_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, WIDTH // heads
        self.causal = causal
        self.query, self.output = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, kv_heads * self.size)
        self.value = nn.Linear(WIDTH, kv_heads * self.size)

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        frequencies = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = (positions[:, None] * frequencies).repeat(1, 2)
        low, high = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-high, low], -1) * angles.sin()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        query = self.split(self.query(x), self.heads)
        key, value = (self.split(p(x), self.kv_heads) for p in (self.key, self.value))
        if self.causal:
            positions = torch.arange(length)
            query, key = self.rotated(query, positions), self.rotated(key, positions)
        repeats = self.heads // self.kv_heads
        key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
        result = functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.causal
        )
        return self.output(result.transpose(1, 2).reshape(batch, length, width))


class EncoderBlock(nn.Module):
    """A pre-norm block of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(4, 4, causal=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm_1(x), mask)
        return x + self.mlp(self.norm_2(x))


def encoder_blocks() -> nn.ModuleList:
    return nn.ModuleList(EncoderBlock() for _ in range(2))


class Bert(nn.Module):
    """Token and position embeddings, a padding mask, hidden states and a pooled one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.blocks, self.pooler = encoder_blocks(), nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        outside = 1.0 - attention_mask[:, None, None].float()
        mask = outside * torch.finfo(torch.float32).min
        for block in self.blocks:
            x = block(x, mask)
        return {"hidden": x, "pooled": self.pooler(x[:, 0]).tanh()}


class Vit(nn.Module):
    """Patches by a convolution, and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 10)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.blocks = encoder_blocks()

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class WhisperEncoder(nn.Module):
    """Convolutions over a spectrogram, then an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1 = nn.Conv1d(16, WIDTH, 3, padding=1)
        self.conv_2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.register_buffer("positions", torch.randn(20, WIDTH), persistent=False)
        self.blocks, self.norm = encoder_blocks(), nn.LayerNorm(WIDTH)

    def forward(self, mel: Tensor) -> Tensor:
        x = (
            functional.gelu(self.conv_2(functional.gelu(self.conv_1(mel)))).permute(0, 2, 1)
            + self.positions
        )
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class LlamaBlock(nn.Module):
    """RMS norms, grouped attention with rotary positions, and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.attention = Attention(4, 2, causal=True)
        self.gate, self.up = (nn.Linear(WIDTH, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.norm, self.head = nn.RMSNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def floats(*shape: int) -> Inputs:
    """Inputs of one tensor of floats, of this shape behind the batch."""
    return lambda batch: (torch.randn(batch, *shape),)


def tokens(batch: int, length: int = 12) -> tuple[Tensor, ...]:
    return (torch.randint(0, VOCABULARY, (batch, length)),)


def masked_tokens(batch: int) -> tuple[Tensor, ...]:
    lengths = torch.randint(1, 13, (batch, 1))
    return *tokens(batch), (torch.arange(12) < lengths).to(torch.int64)


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "MLP": (mlp, floats(32)),
    "CNN": (cnn, floats(3, 16, 16)),
    "autoencoder": (autoencoder, floats(1, 16, 16)),
    "LSTM": (lambda: Recurrent(nn.LSTM), floats(7, 16)),
    "GRU": (lambda: Recurrent(nn.GRU), floats(7, 16)),
    "TCN": (Tcn, floats(4, 20)),
    "ResNet-like": (resnet, floats(3, 32, 32)),
    "MobileNet-like": (mobilenet, floats(3, 32, 32)),
    "U-Net": (UNet, floats(1, 16, 16)),
    "BERT-like": (Bert, masked_tokens),
    "ViT-like": (Vit, floats(3, 16, 16)),
    "Whisper-like encoder": (WhisperEncoder, floats(16, 40)),
    "Llama-like": (Llama, tokens),
    "TransformerEncoder": (transformer_encoder, floats(9, WIDTH)),
}
