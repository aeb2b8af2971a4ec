"""`subquant.core.read_record`: items of a file that nobody read are refused by name."""

from __future__ import annotations

import pytest

from subquant.core.read_record import Irrelevant, ReadRecord
from subquant.errors import InputError, Place, UnsupportedError

PLACE = Place("model.bin")


def test_a_file_whose_items_are_all_read_is_accepted() -> None:
    record = ReadRecord(PLACE)
    tensors = record.track("tensor", {"a": 1, "b": 2})
    assert tensors["a"] + (tensors.get("b") or 0) == 3
    record.finish()


def test_an_unread_item_is_named_with_its_value() -> None:
    record = ReadRecord(PLACE, "node 3 (Conv)")
    record.track("attribute", {"softcap": 30.0})
    with pytest.raises(UnsupportedError) as caught:
        record.finish("export it without")
    assert str(caught.value) == (
        "model.bin: error: node 3 (Conv) has the attribute 'softcap' = 30.0, which subquant does "
        "not use: the results could be wrong without it; export it without"
    )


def test_many_unread_items_of_several_kinds_are_counted() -> None:
    record = ReadRecord(PLACE)
    record.track("tensor", {f"t{n}": object() for n in range(7)})
    record.track("property", {"p": "x" * 100})
    with pytest.raises(UnsupportedError, match=r"'t4' and 3 other items, which .* without them$"):
        record.finish()


def test_names_can_be_listed_and_asked_for_without_reading_values() -> None:
    record = ReadRecord(PLACE)
    tensors = record.track("tensor", {"a": 1})
    assert "a" in tensors
    assert list(tensors) == ["a"]
    assert len(tensors) == 1
    assert tensors.get("c") is None
    assert tensors.untracked["a"] == 1
    assert record.unread() == [("tensor", "a", 1)]
    assert list(tensors.values()) == [1]
    assert record.unread() == []


@pytest.mark.parametrize(
    ("value", "is_irrelevant"), [(0, True), (0.0, False), (False, False), (1, False)]
)
def test_an_item_can_be_irrelevant_with_one_value(value: object, is_irrelevant: bool) -> None:
    record = ReadRecord(PLACE)
    record.track("property", {"x.bias": value}, [Irrelevant("*.bias", "adds nothing", (0,))])
    assert (record.unread() == []) is is_irrelevant


def test_an_irrelevant_item_needs_no_reading() -> None:
    record = ReadRecord(PLACE)
    record.track("property", {"general.author": "x"}, [Irrelevant("general.*", "describes it")])
    record.finish()


def test_an_error_quotes_a_few_lines_of_a_long_type() -> None:
    error = InputError(f"has the type {'x' * 140_000}")
    assert len(str(error)) < 4100
    assert error.message.endswith("... (140,013 characters)")
