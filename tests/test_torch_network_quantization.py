"""Post-training quantization of PyTorch modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import subquant
from programs import LONG

torch = pytest.importorskip("torch")
pytest.importorskip("torch_mlir")

import subquant.torch  # noqa: E402


class Residual(torch.nn.Module):  # type: ignore[misc]
    """A block of ResNet with batch normalization, and a classifier with a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(16)
        self.pool = torch.nn.MaxPool2d(3, 2, 1)
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.second_norm = torch.nn.BatchNorm2d(16)
        self.mean = torch.nn.AdaptiveAvgPool2d(1)
        self.hidden = torch.nn.Linear(16, 32)
        self.last = torch.nn.Linear(32, 10)
        for norm in (self.first_norm, self.second_norm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.first_norm(self.first(x))))
        x = torch.relu(x + self.second_norm(self.second(x)))
        return self.last(torch.relu(self.hidden(self.mean(x).flatten(1))))


def test_a_residual_network_in_integers() -> None:
    torch.manual_seed(0)
    module = Residual().eval()
    samples = torch.randn(24, 3, 16, 16)
    exported = subquant.torch.export(module, (samples[:4],))
    network = subquant.quantize_network(exported, [samples[:20]], held_out=0)
    assert [(row.operation, row.result) for row in network.layers] == [
        *(("convolution", "int8"), ("convolution", "int8"), ("add", "int8"), ("mean", "int8")),
        *(("dot", "int8"), ("dot", "f32")),
    ]
    result = subquant.compile(network.bytecode).main(samples[20:])
    expected = module(samples[20:]).detach().numpy()
    assert np.linalg.norm(result - expected) < 0.03 * np.linalg.norm(expected)
    if LONG:  # norms are folded
        prepared = subquant.compile(network.float_bytecode).main(samples[20:])
        np.testing.assert_allclose(prepared, expected, atol=1e-5)


def test_layers_of_an_encoder_are_quantized() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    samples = torch.randn(10, 6, 32)
    exported = subquant.torch.export(layer.eval(), (samples[:2],))
    network = subquant.quantize_network(exported, {"src": samples})
    quantized = [row.shape for row in network.layers if row.computes == "int8"]
    assert quantized == [(32, 96), (32, 32), (32, 64), (64, 32)]
    assert {row.why_float for row in network.layers if row.computes == "f32"} == {
        "both operands are computed"
    }
    assert network.outputs[0] is not None
    assert network.outputs[0] > 30


def test_a_file_of_an_exported_program(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    torch.export.save(
        torch.export.export(module.eval(), (torch.ones(2, 16),)), tmp_path / "net.pt2"
    )
    network = subquant.quantize_network(tmp_path / "net.pt2", bits=8, activations="float")
    assert [(row.name, row.computes, row.shape) for row in network.layers] == [
        ("0", "w8", (16, 8)),
        ("2", "w8", (8, 4)),
    ]
