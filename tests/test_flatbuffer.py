"""The reader of flatbuffers: what PyPI's ``flatbuffers`` writes, and what nobody should."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass

import numpy as np
import pytest

from subquant.errors import InputError
from subquant.importers.flatbuffer import (
    Reader,
    Table,
    scalar,
    string,
    table,
    tables,
    union,
    vector,
)


@dataclass(frozen=True)
class Leaf(Table):
    number: int = scalar("i", 7)
    text: str = string()


@dataclass(frozen=True)
class Tree(Table):
    flag: bool = scalar("?", True)
    real: float = scalar("d", 0.5)
    numbers: np.ndarray = vector("i8")  # type: ignore[type-arg]
    leaf: Leaf | None = table(lambda: Leaf)
    leaves: tuple[Leaf, ...] = tables(lambda: Leaf)
    kind: int = scalar("B")
    choice: object = union("kind", lambda: {1: Leaf})


def written(*, shared: bool = False) -> bytes:
    """A tree with two leaves, by PyPI's ``flatbuffers``."""
    if importlib.util.find_spec("flatbuffers") is None:
        pytest.skip("the package 'flatbuffers' is not installed; it comes with ai-edge-litert")
    import flatbuffers

    builder = flatbuffers.Builder(0)

    def leaf(number: int, text: str) -> int:
        name = builder.CreateString(text)
        builder.StartObject(2)
        builder.PrependInt32Slot(0, number, 7)
        builder.PrependUOffsetTRelativeSlot(1, name, 0)
        return int(builder.EndObject())

    first = leaf(-3, "ä")
    second = first if shared else leaf(7, "b")
    builder.StartVector(4, 2, 4)
    builder.PrependUOffsetTRelative(second)
    builder.PrependUOffsetTRelative(first)
    leaves = builder.EndVector()
    numbers = builder.CreateNumpyVector(np.array([1, -2, 1 << 40], np.int64))
    builder.StartObject(7)
    builder.PrependBoolSlot(0, False, True)
    builder.PrependFloat64Slot(1, 2.25, 0.5)
    builder.PrependUOffsetTRelativeSlot(2, numbers, 0)
    builder.PrependUOffsetTRelativeSlot(3, first, 0)
    builder.PrependUOffsetTRelativeSlot(4, leaves, 0)
    builder.PrependUint8Slot(5, 1, 0)
    builder.PrependUOffsetTRelativeSlot(6, second, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_a_tree_as_the_library_writes_it() -> None:
    tree = Reader(written()).root(Tree)
    assert (tree.flag, tree.real) == (False, 2.25)
    np.testing.assert_array_equal(tree.numbers, [1, -2, 1 << 40])
    assert tree.leaf == Leaf(-3, "ä")
    assert tree.leaves == (Leaf(-3, "ä"), Leaf(7, "b"))
    assert tree.choice == Leaf(7, "b")
    assert not tree.numbers.flags.writeable


def test_a_table_that_several_point_to_is_read_once() -> None:
    tree = Reader(written(shared=True)).root(Tree)
    assert tree.leaves[0] is tree.leaves[1] is tree.choice is tree.leaf


def test_absent_fields_have_their_defaults() -> None:
    # A root with a vtable of no fields: distances 8, then vtable (4, 4), then the table.
    data = bytes([8, 0, 0, 0, 4, 0, 4, 0, 4, 0, 0, 0])
    assert Reader(data).root(Tree) == Tree()
    assert Tree().flag
    assert Tree().leaves == ()


def test_an_unknown_kind_of_a_union_is_not_read() -> None:
    data = bytearray(written())
    tree = Reader(bytes(data)).root(Tree)
    assert type(tree.choice) is Leaf
    position = data.rindex(1, 0, 40)  # the kind is a byte of the root's table
    data[position] = 9
    assert type(Reader(bytes(data)).root(Tree).choice) is Table


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the root ends at byte 4, and the file has 0; the file is damaged"),
        (b"\0\0\0\0", "the root points to byte 0 of 4; the file is damaged"),
        (b"\xff\xff\xff\xff", "the root points to byte 4,294,967,295 of 4; the file is damaged"),
        (b"\x04\0\0\0\xff\xff\xff\x7f",
         "the root table has its vtable at byte -2,147,483,643; the file is damaged"),
        (bytes([8, 0, 0, 0, 6, 0, 4, 0, 4, 0, 0, 0]),
         "flag is at byte 4 of a table of 4; the file is damaged"),
    ],
)  # fmt: skip
def test_what_points_outside_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Reader(data, "x.bin").root(Tree)
    assert str(caught.value) == f"x.bin: error: {message}"


def test_damage_is_an_error_or_another_tree() -> None:
    """Nothing but the one error, and no more than the file holds."""
    whole = written()
    rng = random.Random(0)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        try:
            tree = Reader(bytes(data[: rng.randrange(len(data) + 1)])).root(Tree)
        except InputError:
            refused += 1
        else:
            assert len(tree.numbers) * 8 <= len(data)
    assert 500 < refused < 3000
