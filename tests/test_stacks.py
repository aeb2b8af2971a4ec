"""Stacks of the tensors of each checkpoint format: weights of experts as one tensor."""

from __future__ import annotations

import numpy as np
import pytest

from checkpoints import FOLDERS
from subquant.layouts import QuantizedTensor, find_tensor, stack
from subquant.models.source import open_model
from subquant.ops.linear import chosen_linear

PACKED = sorted(
    path.name
    for path in FOLDERS.iterdir()
    if "quantization_config" in (path / "config.json").read_text()
)
"""Checkpoints of packed weights."""


def packed_weights(name: str) -> list[QuantizedTensor]:
    tensors = open_model(FOLDERS / name).tensors.values()
    return [each for each in tensors if isinstance(each, QuantizedTensor)]


@pytest.mark.parametrize("name", PACKED)
def test_stacks_of_every_format(name: str) -> None:
    """A stack has the values, planes and outline of its tensors; chosen matrices are multiplied."""
    rng = np.random.default_rng(0)
    for tensor in packed_weights(name):
        if len(tensor.shape) != 2:
            continue
        whole = stack([tensor, tensor, tensor], "layer.[0-2].weight")
        assert isinstance(whole, QuantizedTensor)
        assert whole.shape == (3, *tensor.shape)
        values, planar = tensor.unpack().dequant(), whole.to_planar()
        np.testing.assert_array_equal(planar.layout.dequant(), np.stack([values] * 3))
        outline = whole.outline()  # type: ignore[attr-defined]
        assert outline.layout.metadata == planar.layout.metadata
        assert {key: (plane.shape, plane.dtype) for key, plane in outline.arrays.items()} == {
            key: (plane.shape, plane.dtype) for key, plane in planar.arrays.items()
        }
        x = rng.normal(size=(2, 3, tensor.shape[1])).astype(np.float32)
        expected = np.einsum("bmk,nk->bmn", x, values)
        actual = chosen_linear(x, whole, np.array([2, 0], np.int32))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_tensors_by_the_name_of_their_stack() -> None:
    tensors = {f"a.{number}.weight": packed_weights("gptq_int4")[0] for number in range(3)}
    assert find_tensor("a.[0-2].weight", tensors).shape[0] == 3
    assert find_tensor("a.1.weight", tensors) is tensors["a.1.weight"]
    with pytest.raises(KeyError):
        find_tensor("a.[0-3].weight", tensors)
    with pytest.raises(KeyError):
        find_tensor("a.b.weight", tensors)
