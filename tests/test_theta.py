"""Trees of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from subquant.compiler.parameter_archive import _unused
from subquant.errors import InputError
from subquant.layouts import InferenceTensor, PrimitiveTensor
from subquant.weights import Theta


def tensor(name: str, value: float = 0.0) -> PrimitiveTensor:
    return PrimitiveTensor(np.full((2, 3), value, np.float32), name)


def theta() -> Theta:
    return Theta([tensor("blk.0.w", 1), tensor("blk.1.w", 2), tensor("blk.1.b", 3), tensor("out")])


def test_a_tree_is_made_of_dotted_names() -> None:
    tree = theta()
    assert tree.keys == ["blk", "out"]
    assert tree("blk").keys == ["0", "1"]
    assert list(tree("blk", 1).flatten()) == ["w", "b"]
    assert list(tree.flatten()) == ["blk.0.w", "blk.1.w", "blk.1.b", "out"]
    assert len(tree) == 4
    assert "blk.1" in tree
    assert "blk.2" not in tree


def test_paths_are_names_numbers_or_both() -> None:
    tree = theta()
    for path in (("blk", 1, "b"), ("blk.1.b",), ("blk.1", "b")):
        assert tree.tensor(*path).arrays["blk.1.b"][0, 0] == 3
        assert tree(*path) is tree.tensor(*path)
    assert tree("blk.1").tensor("b").name == "blk.1.b"
    assert tree.optional_tensor("blk.1.x") is None
    assert tree.optional_tensor("blk.1") is None


def test_what_is_missing_is_named_with_what_is_there() -> None:
    with pytest.raises(InputError, match=r"no tensor is named 'blk\.1\.x'; there are: w, b"):
        theta().tensor("blk", 1, "x")
    with pytest.raises(InputError, match=r"no tensor is named 'blk\.1'"):
        theta().tensor("blk.1")
    with pytest.raises(InputError, match=r"no tensor is named 'out\.w\.x'; there are: blk, out"):
        theta()("out.w.x")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], "'a' is the name of two tensors"),
        (["a", "a.b"], "'a.b' is below the name of another tensor"),
        (["a.b", "a"], "'a' is the name of a level of the tree"),
        (["a." * 10_000], "has 10000 levels, expected at most 100"),
    ],
)
def test_names_that_collide_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Theta([tensor(name) for name in names])


def test_names_of_large_constants_do_not_collide() -> None:
    used: set[str] = set()
    preferred = ["constant", "constant", "a.b.c", "a.b", "a", "a.b.c", "a.b.c.d", "constant"]
    names = [_unused(name, used) for name in preferred]
    assert names[:3] == ["constant", "constant_1", "a.b.c"]
    assert len(Theta([tensor(name) for name in names]).flatten()) == len(preferred)


def test_transform_replaces_drops_and_splits() -> None:
    def halves(t: InferenceTensor) -> Any:
        if t.name == "out":
            return None
        if t.name == "blk.0.w":
            assert isinstance(t, PrimitiveTensor)
            return [PrimitiveTensor(t.array[:1], "a.top"), PrimitiveTensor(t.array[1:], "a.rest")]
        return t

    changed = theta().transform(halves, lambda t: t.with_name(f"m.{t.name}"))
    assert list(changed.flatten()) == ["m.a.top", "m.a.rest", "m.blk.1.w", "m.blk.1.b"]


def test_renamed_names_tensors_by_their_paths() -> None:
    tree = Theta({"x.y": tensor("elsewhere")})
    assert tree.tensor("x.y").name == "elsewhere"
    assert tree.renamed().tensor("x.y").name == "x.y"
