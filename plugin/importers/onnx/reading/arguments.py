"""The extents of arguments: the file's, or where it leaves one open, what the import says.

An open extent has a name in the file, or is called ``input.axis`` here. The batch is the open
extent in the first dimension of inputs, and whatever else has its name: 1, or what ``--batch``
says. Others are given as ``--dim name=N``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....errors import Place, SubquantError, UnsupportedError, UsageError, expected_name, quoted
from ...options import ImportOptions
from .model import Model, TensorType, is_too_large

__all__ = ["Argument", "arguments_of", "open_extents"]


@dataclass(frozen=True)
class Argument:
    """An input with its extents.

    Args:
        type: as the file says.
        shape: of the argument; of one element of a dynamic batch.
        is_batched: the first extent is that of a dynamic batch.
    """

    type: TensorType
    shape: tuple[int, ...]
    is_batched: bool


def arguments_of(model: Model, options: ImportOptions, batch: int | None = None) -> list[Argument]:
    """The inputs of a model.

    Args:
        model: as read.
        options: of the import.
        batch: in place of what they say.

    Raises:
        UnsupportedError: an extent is open, or a batch is asked for that no input leaves open.
        UsageError: an extent is given that no input leaves open.
    """
    place = Place(model.file)
    given = {name: int(extent) for name, extent in map(_pair, options.dims)}
    opened = {each.name: dict(_open(each, place)) for each in model.inputs}
    _check_given(given, [name for axes in opened.values() for name in axes.values()], place)
    batches = {axes[0] for axes in opened.values() if 0 in axes and axes[0] not in given}
    if options.batch and not batches:
        _refuse_batch(model, options, place)
    size = batch or options.batch_size or 1
    arguments = []
    for each in model.inputs:
        names, what = opened[each.name], f"the input {quoted(each.name)}"
        extents = []
        for axis, extent in enumerate(each.shape or ()):
            if axis not in names:
                extents.append(int(extent or 0))
                continue
            name = names[axis]
            if name not in given and name not in batches:
                raise UnsupportedError(_is_open(what, axis, name), place)
            extents.append(given.get(name, size))
        if is_too_large(extents):
            raise UnsupportedError(f"{what} has the shape {extents}, too many elements", place)
        inner = sorted(set(names.values()) & batches if names.get(0) not in batches else ())
        is_dynamic = options.batch == "dynamic"
        if is_dynamic and (inner or any(names.get(a) in batches for a in names if a)):
            raise UnsupportedError(
                f"{what} has the batch in another dimension than the first; give --batch a number",
                place,
            )
        arguments.append(Argument(each, tuple(extents), is_dynamic and names.get(0) in batches))
    return arguments


def _is_open(what: str, axis: int, name: str) -> str:
    return f"{what} has an open extent in dimension {axis}; say it with --dim {name}=N"


def open_extents(model: Model) -> dict[str, str]:
    """Return the open extents that an import must be told, by name, each with its message."""
    place = Place(model.file)
    opened = {each.name: dict(_open(each, place)) for each in model.inputs}
    batches = {axes[0] for axes in opened.values() if 0 in axes}
    hints: dict[str, str] = {}
    for each in model.inputs:
        for axis, name in opened[each.name].items():
            if name not in batches:
                hints.setdefault(name, _is_open(f"the input {quoted(each.name)}", axis, name))
    return hints


def _pair(text: str) -> tuple[str, str]:
    name, _, extent = text.rpartition("=")
    return name, extent


def _open(input_: TensorType, place: Place) -> Iterator[tuple[int, str]]:
    """The axes of an input whose extents are open, and what they are called."""
    if input_.shape is None:
        raise UnsupportedError(f"the input {quoted(input_.name)} has no shape", place)
    for axis, extent in enumerate(input_.shape):
        if not isinstance(extent, int):
            yield axis, extent or f"{input_.name}.{axis}"


def _check_given(given: Mapping[str, int], names: Sequence[str], place: Place) -> None:
    for name in given:
        if name not in names:
            expected = expected_name(name, dict.fromkeys(names))
            error: SubquantError = UsageError(
                f"no open extent is called {quoted(name)}; {expected}", place
            )
            raise error


def _refuse_batch(model: Model, options: ImportOptions, place: Place) -> None:
    """No extent in a first dimension is open; one that is as asked for is no error."""
    for each in model.inputs:
        first = each.shape[0] if each.shape else None
        if first is not None and first != options.batch_size:
            raise UnsupportedError(
                f"the input {quoted(each.name)} has the batch {first} in the file; --batch is for "
                "an open one",
                place,
            )
