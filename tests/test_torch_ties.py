"""PT2E modules beside eager PyTorch: a result differs only where a rounding is at a tie.

Eager PyTorch adds up floats, in an order that depends on the machine; a kernel adds up integers,
exactly. Both round to 8 bits after each layer. The layers are evaluated in float64 here, from the
integers of their inputs: an integer that is not the rounded float64 is closer to a tie than the
error bound of a float32 sum. That holds for each layer of both, so both differ at ties alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytest.importorskip("torchao", reason="PT2E's quantizers are in torchao")

from torch import fx, nn  # noqa: E402
from torch.fx.graph import CodeGen  # noqa: E402
from torch.nn import functional  # noqa: E402

import subquant.torch  # noqa: E402
from test_torch_quantized import Images, pt2e  # noqa: E402  (needs torch)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

UNIT = 2.0**-24
"""The relative error of a float32 operation is at most this."""
SLACK = 1.01
"""Products of errors, which the bounds leave out, are below 1 % of them."""


class Residual(nn.Module):
    """Two convolutions with a residual addition, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.second(x))
        return self.last(x.mean((2, 3)))


@dataclass
class Bounded:
    """A float64 value of each element, and a bound of the error of float32."""

    value: torch.Tensor
    error: torch.Tensor

    def rounded_once(self) -> Bounded:
        return Bounded(self.value, self.error + UNIT * self.value.abs())


class Float64Layers(fx.Interpreter):
    """Evaluation of a PT2E module in float64, with given integers as results of quantizations.

    Attributes:
        near_ties: for each quantization, the share of elements that the bound does not decide.
    """

    def __init__(self, module: fx.GraphModule, integers: dict[str, torch.Tensor]) -> None:
        super().__init__(module)
        self.integers = integers
        self.near_ties: list[float] = []

    def run_node(self, node: fx.Node) -> Any:
        name = str(node.target).rpartition("quantized_decomposed.")[2].removeprefix("aten.")
        method = getattr(self, f"_{name.partition('.')[0].rstrip('_')}", None)
        if node.op != "call_function" or method is None:
            assert node.op != "call_function", name
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if method == self._quantize_per_tensor:
            return self._quantize_per_tensor(node.name, *args)
        return method(*args, **kwargs)

    # -- quantization ------------------------------------------------------------------------------

    def _quantize_per_tensor(
        self, name: str, x: Any, scale: float, zero_point: int, low: int, high: int, _: Any
    ) -> torch.Tensor:
        """Check the integers of a quantization, and return them."""
        x = x if isinstance(x, Bounded) else Bounded(x.double(), torch.zeros(x.shape).double())
        inverse = float(np.float32(1.0 / scale))
        real = Bounded(x.value * inverse, x.error * inverse).rounded_once()
        least, greatest = (
            torch.clamp(torch.round(real.value + sign * real.error * SLACK) + zero_point, low, high)
            for sign in (-1, 1)
        )
        integers = self.integers[name]
        assert ((least <= integers) & (integers <= greatest)).all(), name
        self.near_ties.append((least != greatest).double().mean().item())
        return integers

    def _dequantize_per_tensor(
        self, q: torch.Tensor, scale: float, zero_point: int, *_: Any
    ) -> Bounded:
        value = (q.double() - zero_point) * float(np.float32(scale))
        return Bounded(value, UNIT * value.abs())

    def _dequantize_per_channel(
        self, q: torch.Tensor, scales: torch.Tensor, zero_points: Any, axis: int, *_: Any
    ) -> Bounded:
        shape = [-1 if each == axis else 1 for each in range(q.ndim)]
        zeros = zero_points.double().reshape(shape)
        value = (q.double() - zeros) * scales.float().double().reshape(shape)
        return Bounded(value, UNIT * value.abs())

    # -- layers ------------------------------------------------------------------------------------

    def _contracted(
        self, function: Any, x: Bounded, w: Bounded, bias: torch.Tensor | None, *args: Any
    ) -> Bounded:
        value = function(x.value, w.value, None if bias is None else bias.double(), *args)
        magnitudes = function(
            x.value.abs(), w.value.abs(), None if bias is None else bias.double().abs(), *args
        )
        operands = function(x.error, w.value.abs(), None, *args)
        operands += function(x.value.abs(), w.error, None, *args)
        products = w.value[0].numel() + 2
        return Bounded(value, products * UNIT * magnitudes + operands)

    def _conv2d(self, x: Bounded, w: Bounded, bias: Any = None, *args: Any) -> Bounded:
        return self._contracted(functional.conv2d, x, w, bias, *args)

    def _linear(self, x: Bounded, w: Bounded, bias: Any = None) -> Bounded:
        return self._contracted(functional.linear, x, w, bias)

    def _relu(self, x: Bounded) -> Bounded:
        return Bounded(torch.relu(x.value), x.error)

    def _add(self, x: Bounded, y: Bounded) -> Bounded:
        return Bounded(x.value + y.value, x.error + y.error).rounded_once()

    def _mean(self, x: Bounded, dims: Any) -> Bounded:
        count = int(np.prod([x.value.shape[axis] for axis in dims]))
        magnitudes, error = x.value.abs().mean(dims), x.error.mean(dims)
        return Bounded(x.value.mean(dims), error + (count + 2) * UNIT * magnitudes)


def with_integers(module: fx.GraphModule) -> tuple[fx.GraphModule, list[str]]:
    """A module that returns the results of its quantizations, and their names."""
    [output] = [node for node in module.graph.nodes if node.op == "output"]
    quantizations = [
        node
        for node in module.graph.nodes
        if str(node.target).startswith("quantized_decomposed.quantize_per_tensor")
    ]
    output.args = (tuple(quantizations),)
    module.graph.set_codegen(CodeGen())
    module.recompile()
    return module, [node.name for node in quantizations]


@pytest.mark.parametrize("is_per_channel", [False, True])
@pytest.mark.parametrize("module", [Images, Residual])
def test_results_differ_from_eager_at_ties_only(
    module: type[nn.Module], is_per_channel: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    converted = pt2e(module().eval(), x, is_per_channel=is_per_channel)
    quantized, names = with_integers(converted)
    compiled = subquant.torch.compile(quantized, (x,))
    assert len(names) > 4
    for results in (quantized(x), compiled(x)):
        layers = Float64Layers(quantized, dict(zip(names, results, strict=True)))
        layers.run(x)
        assert len(layers.near_ties) == len(names)
        assert max(layers.near_ties) < 0.02  # the bounds decide nearly all elements
        changed = {name: result.clone() for name, result in layers.integers.items()}
        changed[names[1]].reshape(-1)[0] ^= 2
        with pytest.raises(AssertionError, match=names[1]):
            Float64Layers(quantized, changed).run(x)
