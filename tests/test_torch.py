"""PyTorch modules: results of eager PyTorch, names, variables, files and errors."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from torch import nn  # noqa: E402

import subquant.torch  # noqa: E402  (needs torch)
from subquant.dialects import create_context  # noqa: E402
from subquant.errors import ExecutionError, InputError, UnsupportedError, UsageError  # noqa: E402
from subquant.importers.torch.exported_file import write_module  # noqa: E402
from subquant.isolation.limits import time_limit  # noqa: E402


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(x)))


class Counter(nn.Module):
    """Returns a buffer before and after its update, and uses one that no file stores."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mask", torch.arange(10) % 3 == 0)
        self.register_buffer("offset", torch.arange(4.0), persistent=False)
        self.register_buffer("bytes", torch.tensor([250, 7], dtype=torch.uint8))
        self.register_buffer("zeros", torch.tensor([0.0, -0.0]))
        self.register_buffer("empty", torch.zeros(0, 3))

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, object]:
        before = self.count * 1.0
        self.count.add_(1.0)
        self.calls += 1
        self.mask.logical_not_()
        self.bytes.add_(3)
        return {
            "bytes": self.bytes.clone(),
            "signs": (x[0, :2] * 0 + 1 / self.zeros, self.empty),
            "y": self.linear(x) * scale + self.offset,
            "counts": (before, self.count + 0, x > 0, self.calls * 2),
            "mask": self.mask | False,
        }


def error_of(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result - expected).abs().max() / expected.abs().max())


def seeded(module: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return module().eval()


def test_a_module_computes_as_eager_pytorch() -> None:
    module, x = seeded(Mlp), torch.randn(4, 64)
    compiled = subquant.torch.compile(module, (torch.zeros(4, 64),))
    with torch.no_grad():
        assert error_of(compiled(x), module(x)) < 1e-6
    assert "x: tensor<4x64xf32>" in str(compiled.executable.main)


def test_one_executable_takes_several_sizes_of_a_dynamic_batch() -> None:
    module = seeded(Mlp)
    batch = torch.export.Dim("batch", min=1, max=64)
    compiled = subquant.torch.compile(
        module, (torch.zeros(4, 64),), dynamic_shapes={"x": {0: batch}}
    )
    for size in (1, 7, 64):
        x = torch.randn(size, 64)
        with torch.no_grad():
            assert error_of(compiled(x), module(x)) < 1e-6


class Parts(nn.Module):
    """Adds a tensor, every second row of a tensor twice as long, and one without its first row."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x + y[::2] + z[1:]


def test_dimensions_that_disagree_are_refused_at_run_time() -> None:
    size = torch.export.Dim("size", min=2, max=10)
    args = tuple(torch.zeros(n, 2) for n in (4, 8, 5))
    shapes = {"x": {0: size}, "y": {0: 2 * size}, "z": {0: size + 1}}
    compiled = subquant.torch.compile(Parts().eval(), args, dynamic_shapes=shapes)
    x, y, z = torch.randn(3, 2), torch.randn(6, 2), torch.randn(4, 2)
    assert torch.equal(compiled(x, y, z), Parts()(x, y, z))
    for sizes, message in {
        (3, 7, 4): "dimension 0 of argument 'y' must be 2\\*n, where n is dimension 0",
        (3, 6, 5): "dimension 0 of argument 'z' must be n \\+ 1",
        (1, 2, 2): "dimension 0 of argument 'x' must be at least 2",
        (11, 22, 12): "dimension 0 of argument 'x' must be at most 10",
    }.items():
        with pytest.raises(ExecutionError, match=message):
            compiled(*(torch.zeros(n, 2) for n in sizes))


def test_an_updated_buffer_is_kept_between_calls() -> None:
    module, x = seeded(Counter), torch.randn(2, 8)
    compiled = subquant.torch.compile(module, (x,), {"scale": 3.0})
    for count in range(3):
        result = compiled(x, scale=3.0)
        before, after, positive, twice = result["counts"]
        assert torch.equal(result["mask"], (torch.arange(10) % 3 == 0) == (count % 2 == 1))
        assert twice.item() == 2 * (count + 1)
        assert before.tolist() == [count] * 4
        assert after.tolist() == [count + 1] * 4
        assert torch.equal(positive, x > 0)
        assert result["bytes"].tolist() == [(250 + 3 * (count + 1)) % 256, 10 + 3 * count]
        infinities, empty = result["signs"]
        assert infinities.tolist() == [float("inf"), float("-inf")]
        assert empty.shape == (0, 3)
    expected = module(x, scale=3.0)["y"].detach()
    assert error_of(result["y"], expected) < 1e-6


def test_results_have_the_names_of_their_paths() -> None:
    compiled = subquant.torch.compile(seeded(Counter), (torch.zeros(2, 8),))
    text = str(compiled.executable.main)
    assert all(name in text for name in ("y:", "counts.0:", "counts.2: tensor<2x8xi1>"))


class Keywords(nn.Module):
    """Subtracts a keyword argument from another."""

    def forward(self, *, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


def test_arguments_of_another_structure_are_refused() -> None:
    compiled = subquant.torch.compile(seeded(Counter), (torch.zeros(2, 8),), {"scale": 3.0})
    with pytest.raises(UsageError, match=r"exported as the constant 3\.0, found 4\.0"):
        compiled(torch.zeros(2, 8), scale=4.0)
    with pytest.raises(UsageError, match=r"exported as the constant 3\.0, found 3"):
        compiled(torch.zeros(2, 8), scale=3)
    with pytest.raises(UsageError, match="expected the keyword arguments scale, got no keyword"):
        compiled(torch.zeros(2, 8))
    with pytest.raises(UsageError, match="expected 1 positional argument, got 2"):
        compiled(torch.zeros(2, 8), torch.zeros(2, 8), scale=3.0)
    with pytest.raises(UsageError, match="expected arguments of the structure TreeSpec"):
        compiled([torch.zeros(2, 8)], scale=3.0)
    for tensor in (torch.zeros(2, 8).to_sparse(), torch.zeros(2, 8, device="meta")):
        with pytest.raises(UnsupportedError, match="argument 'x': expected a dense tensor"):
            compiled(tensor, scale=3.0)


def test_calls_read_the_structure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's ``call_spec`` defines a class each time, in a quarter of a millisecond."""
    module = seeded(Mlp)
    x = torch.ones(2, 64)
    compiled = subquant.torch.compile(module, (x,))
    before = compiled(x)
    monkeypatch.delattr(torch.export.ExportedProgram, "call_spec")
    assert torch.equal(compiled(x), before)


def test_example_arguments_are_a_tuple() -> None:
    with pytest.raises(UsageError, match=r"as a tuple, such as \(x,\), got a Tensor"):
        subquant.torch.compile(seeded(Mlp), torch.ones(2, 64))


def test_keywords_have_no_order() -> None:
    module = Keywords().eval()
    one, two = torch.ones(3), torch.full((3,), 2.0)
    compiled = subquant.torch.compile(module, (), {"x": one, "y": two})
    assert compiled(y=two, x=one).tolist() == compiled(x=one, y=two).tolist() == [-1.0] * 3
    assert compiled(x=torch._neg_view(one), y=two).tolist() == [-3.0] * 3


def test_functions_share_one_executable() -> None:
    module = seeded(Mlp)
    programs = {
        f"batch_{size}": torch.export.export(module, (torch.zeros(size, 64),)) for size in (1, 8)
    }
    compiled = subquant.torch.compile(programs)
    for size in (1, 8):
        x = torch.randn(size, 64)
        with torch.no_grad():
            assert error_of(compiled.call(f"batch_{size}", x), module(x)) < 1e-6
    with pytest.raises(UsageError, match="no function is named 'main'; expected one of: batch_1"):
        compiled(torch.zeros(1, 64))


class Reader(nn.Module):
    """Reads the count of a `Counter`."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter

    def forward(self) -> torch.Tensor:
        return self.counter.count + 0


def test_functions_share_the_buffers_that_they_update() -> None:
    counter = seeded(Counter)
    reader = Reader(counter).eval()  # type: ignore[arg-type]
    x = torch.zeros(2, 8)
    programs = {
        "count": torch.export.export(counter, (x,)),
        "read": torch.export.export(reader, ()),
    }
    compiled = subquant.torch.compile(programs)
    for count in range(1, 3):
        compiled.call("count", x)
        assert compiled.call("read").tolist() == [count] * 4


def test_an_exported_file_compiles(tmp_path: Path) -> None:
    module, x = seeded(Mlp), torch.randn(4, 64)
    path = tmp_path / "mlp.pt2"
    torch.export.save(torch.export.export(module, (x,)), path)
    executable = subquant.compile(path)
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(np.asarray(executable.main(x.numpy())), expected, atol=1e-6)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mlp.pt2"
    torch.export.save(torch.export.export(seeded(Mlp), (torch.zeros(4, 64),)), path)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(InputError, match="cannot read the exported program"):
        subquant.compile(path)


def test_the_limit_of_the_parser_is_none_of_pytorch() -> None:
    with time_limit(100.0):
        with pytest.raises(InputError, match="cannot read the exported program"):
            write_module(b"cut", create_context())
        assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


class Eigenvalues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x)


def test_an_operator_without_a_lowering_is_refused_at_its_line() -> None:
    with pytest.raises(UnsupportedError, match="linalg_eig") as caught:
        subquant.torch.compile(Eigenvalues().eval(), (torch.zeros(4, 4),))
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


class Operation(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


REFUSED = {
    "draws random numbers": torch.rand_like,
    "makes a size or a number of Python from the data": torch.nonzero,
    "updates its argument 'x' in place": lambda x: x.add_(1),
    "'convert_element_type' is of torch.float8_e5m2, which is not exchanged": lambda x: x.to(
        torch.float8_e5m2
    ),
    "the result 'complex_1' is complex": lambda x: torch.complex(x, x),
    "the program has the control flow 'map_impl'": lambda x: torch._higher_order_ops.map(
        torch.sin, x
    ),
    "as_strided of a tensor that is not contiguous": lambda x: x[::2].as_strided((2,), (1,)),
    "GuardOnDataDependent.*select by torch.where": lambda x: x if x.sum() > 0 else -x,
    "DataDependentOutput.*select by torch.where": lambda x: x if torch.equal(x, x) else -x,
    "NameError": lambda x: x + undefined,  # noqa: F821
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_operation_that_depends_on_more_than_values_is_refused(message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        subquant.torch.export(Operation(REFUSED[message]).eval(), (torch.ones(4),))
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_a_refusal_in_a_layer_of_pytorch_is_at_the_users_line() -> None:
    module = nn.Sequential(nn.FractionalMaxPool2d(2, 2, _random_samples=torch.ones(1, 4, 2)))
    with pytest.raises(UnsupportedError, match="fractional_max_pool2d") as caught:
        subquant.torch.compile(Operation(module.eval()).eval(), (torch.zeros(1, 4, 6, 6),))
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_results_that_are_no_tensors_are_returned() -> None:
    batch = torch.export.Dim("batch")
    module = Operation(lambda x: (x + 1, None, x.shape[0], "text", 2.5)).eval()
    compiled = subquant.torch.compile(module, (torch.zeros(4),), dynamic_shapes=({0: batch},))
    result = compiled(torch.zeros(3))
    assert result[0].tolist() == [1.0] * 3
    assert result[1:] == (None, 3, "text", 2.5)


def test_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Mlp is in training mode.*call module.eval\(\)"):
        subquant.torch.export(Mlp(), (torch.zeros(4, 64),))
