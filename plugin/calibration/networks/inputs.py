"""Calibration inputs: a folder of ``.npy`` files, or arrays by name.

A folder has, for each input of the network, one of:

* ``NAME.npy``: an array of all samples;
* ``NAME/``: a folder of ``.npy`` files in natural order (``2.npy`` is before ``10.npy``), one or
  more samples each.

The files of a network with one input may be in the folder itself. The first axis of an input is
its batch: an array of ``S`` samples for an input of shape ``[B, ...]`` has the shape ``[S, ...]``,
and is cut into ``S / B`` batches. A file may also have the shape of one sample without that axis,
or one more axis, of whole batches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.files import open_input
from ...errors import InputError, UsageError, counted, quoted
from ...numerics.element_types import Array, ElementType
from ...signature import ValueType

InputSource = str | os.PathLike[str] | Mapping[str, Array] | Sequence[Array]
"""A folder; arrays by name; or an array for each input of the network, in its order."""


@dataclass(frozen=True)
class _Batch:
    """One batch of an input: an element of an array's view as batches."""

    batches: Array
    index: int
    source: str

    def load(self) -> Array:
        array = np.ascontiguousarray(self.batches[self.index])
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{self.source} has a NaN or an infinity in batch {self.index}")
        return array


class CalibrationInputs:
    """The batches of calibration inputs, which are read when they are used."""

    def __init__(self, source: InputSource, inputs: Sequence[ValueType]) -> None:
        """Find the arrays, and check their names, types and shapes.

        Raises:
            InputError: a file is missing or cannot be read, or an array does not fit its input.
        """
        self.names = [each.name or f"input{number}" for number, each in enumerate(inputs)]
        arrays = _arrays(source, self.names)
        self._batches: list[list[_Batch]] = []
        for name, type_ in zip(self.names, inputs, strict=True):
            batches = []
            for array, where in arrays[name]:
                view = _in_batches(array, type_, where)
                batches += [_Batch(view, index, where) for index in range(len(view))]
            self._batches.append(batches)
        counts = [len(each) for each in self._batches]
        if len(set(counts)) > 1:
            pairs = zip(self.names, counts, strict=True)
            listed = ", ".join(f"{count} of {name}" for name, count in pairs)
            raise InputError(f"the inputs have unlike numbers of batches: {listed}")
        self.count = counts[0] if counts else 0
        if not self.count:
            raise InputError("there are no calibration inputs: expected at least one batch")

    def batch(self, index: int) -> list[Array]:
        """Return the arrays of a batch, in the order of the inputs; InputError for a NaN."""
        return [batches[index].load() for batches in self._batches]

    def split(self, held_out: float) -> tuple[list[int], list[int]]:
        """Return the batches for calibration and the held-out ones, spread over the inputs.

        At least one batch is held out of a fraction above 0; one batch alone serves both.
        """
        every = list(range(self.count))
        count = min(max(round(self.count * held_out), 1), self.count - 1)
        if not held_out or not count:
            return every, every if held_out else []
        held_out_batches = {int((index + 0.5) * self.count / count) for index in range(count)}
        return [each for each in every if each not in held_out_batches], sorted(held_out_batches)


_Named = Mapping[str, list[tuple[Array, str]]]


def _arrays(source: InputSource, names: Sequence[str]) -> _Named:
    if isinstance(source, (str, os.PathLike)):
        return _arrays_of_folder(Path(source), names)
    if isinstance(source, Mapping):
        _check_names(set(source), names, "the arrays are named")
        return {name: [(np.asarray(source[name]), f"the input {quoted(name)}")] for name in names}
    if len(source) != len(names):
        raise UsageError(
            f"the network has {counted(len(names), 'input')} ({', '.join(names)}), and "
            f"{counted(len(source), 'array')} are given"
        )
    pairs = zip(names, source, strict=True)
    return {name: [(np.asarray(array), f"the input {quoted(name)}")] for name, array in pairs}


def _arrays_of_folder(folder: Path, names: Sequence[str]) -> _Named:
    if not folder.is_dir():
        raise InputError(f"'{folder}' is no folder; expected one with a .npy file for each input")
    files = sorted(folder.glob("*.npy"), key=_natural)
    folders = {each.name: each for each in folder.iterdir() if each.is_dir()}
    has_names = any(f"{name}.npy" in [f.name for f in files] or name in folders for name in names)
    if len(names) == 1 and files and not has_names:
        return {names[0]: [_load(file) for file in files]}
    names_in_folder = {file.stem for file in files} | {
        name for name in folders if _npy_files(folders[name])
    }
    if not names_in_folder:
        raise InputError(f"the folder '{folder}' has no .npy files")
    _check_names(names_in_folder, names, f"the folder '{folder}' has inputs named")
    return {
        name: [
            _load(file)
            for file in (
                [folder / f"{name}.npy"] if name not in folders else _npy_files(folders[name])
            )
        ]
        for name in names
    }


def _check_names(names_in_folder: set[str], names: Sequence[str], subject: str) -> None:
    if names_in_folder != set(names):
        raise InputError(
            f"{subject} {', '.join(map(quoted, sorted(names_in_folder)))}; the network's are "
            f"{', '.join(map(quoted, names))}"
        )


def _npy_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npy"), key=_natural)


def _natural(path: Path) -> list[tuple[int, int | str]]:
    """Sort key in which digits compare as numbers."""
    words = re.findall(r"\d+|\D+", path.name)
    return [(0, int(word)) if word.isdigit() else (1, word) for word in words]


def _load(path: Path) -> tuple[Array, str]:
    with open_input(path):
        pass
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False), f"'{path}'"
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"'{path}' is no array of NumPy: {error}") from None


def _in_batches(array: Array, type_: ValueType, where: str) -> Array:
    """Return a view of whole batches of an input along the first axis."""
    assert type_.shape is not None  # networks have ranked inputs
    shape = [int(n or 0) for n in type_.shape]
    dtype = ElementType.of_mlir(type_.element).dtype
    if array.dtype != dtype:
        raise InputError(
            f"{where} has the type {array.dtype.name}, expected {dtype.name}; convert it with "
            f"array.astype('{dtype.name}')"
        )
    size, own = list(array.shape), (shape or [1])[0]
    if size[1:] == shape:  # whole batches
        return array
    if shape and size == shape[1:] and own == 1:  # one sample
        return array[None, None]
    if len(size) != len(shape) or size[1:] != shape[1:]:
        raise InputError(
            f"{where} has the shape {size}, expected {shape}, or a multiple of {own} along the "
            "first axis"
        )
    if size[0] % own:
        raise InputError(
            f"{where} has {counted(size[0], 'sample')}, which batches of {own} do not divide"
        )
    return array.reshape((-1, *shape))
