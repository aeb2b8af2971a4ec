"""Files of the machine that asks, where a task is done.

What a task has are JSON values and bytes, and what reads a model, or runs one, wants files: with
tensors of the model, with parameters, with what a flag of IREE's compiler names. A `Parcel` takes
them along with the model. Where the task is done, `unpacked` lays them out under their own names in
a temporary folder, which is gone afterwards; and nobody who asked knows that folder, so that errors
name the files as the caller does (`Unpacked.renamed`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...compiler.flags import values_of, with_values
from ...compiler.keys import files_beside
from ...compiler.mlir_client import Input
from ...core.files import read_input
from ...errors import EnvironmentProblem, SubquantError, UsageError, error_to_json, quoted
from ...isolation.supervisor import locked_folder

__all__ = ["Parcel", "Unpacked", "read_flag_files", "unpacked"]

_REPRODUCER = "subquant.reproducer.mlir"


class Parcel:
    """A model, and the files that it is compiled or run with.

    Args:
        model: its name, and its bytes.
        reproducer: where the caller will write what replays an error.
        as_file: it is to have a path; otherwise it has one only beside files that it has data in.

    Raises:
        InputError: the model, or a file beside it, cannot be read.
    """

    def __init__(
        self, model: Input, reproducer: str | os.PathLike[str], *, as_file: bool = False
    ) -> None:
        self._files: dict[str, bytes] = {}
        self._names = {_REPRODUCER: shlex.quote(os.fspath(reproducer))}
        self._flag_files: dict[str, str] = {}
        self._model: dict[str, str | None] = {"file": model.file, "path": None}
        self._data: list[bytes] = []
        beside = files_beside(model)
        if not as_file and not beside:
            self._data = [model.data]
            return
        for name, path in beside.items():
            if os.path.isfile(path):  # what is missing is for who reads the model to say
                self.add(path, os.path.join("model", os.path.dirname(name)))
        self._model["path"] = self.add(model.file, "model", model.data)

    @property
    def blobs(self) -> list[bytes]:
        """What it contains, for `unpacked`."""
        return [*self._data, *self._files.values()]

    @property
    def label(self) -> dict[str, Any]:
        """What else `unpacked` needs, as JSON values."""
        return {
            "model": self._model,
            "files": [*self._files],
            "names": self._names,
            "flag files": self._flag_files,
        }

    def add(self, path: str, folder: str, data: bytes | None = None) -> str:
        """Take a file along.

        Args:
            path: as the caller calls it.
            folder: where it will be, in the temporary folder; beside others that are put there.
            data: its contents, if they are known.

        Returns:
            What `Unpacked.path` is to be asked for.

        Raises:
            InputError: it cannot be read.
        """
        inside = os.path.join(folder, os.path.basename(path))
        self._files[inside] = read_input(path) if data is None else data
        self._names[os.path.join(folder, "")] = os.path.join(os.path.dirname(path), "")
        return inside

    def add_flag_files(self, files: Mapping[str, bytes]) -> None:
        """Take along what `read_flag_files` has read."""
        for number, (path, data) in enumerate(files.items()):
            self._flag_files[path] = self.add(path, f"flag{number}", data)


def read_flag_files(flags: Sequence[str]) -> dict[str, bytes]:
    """Read the files that flags of IREE's compiler name.

    Nothing tells which flags name files. A value with a separator is taken for a path, and one with
    a dot if there is such a file; others are words, such as ``host``, whatever is there.

    Raises:
        InputError: one cannot be read.
        UsageError: a flag names a folder, or what is not there, such as a file to write.
    """
    found = {}
    for value in values_of(flags):
        has_separator = any(each in value for each in (os.sep, os.altsep) if each)
        if has_separator or ("." in value and os.path.exists(value)):
            if not os.path.isfile(value):
                raise UsageError(
                    f"{quoted(value)}, which --iree-flag names, is no file that can be sent to "
                    "the workers of a cluster; compile without --cluster"
                )
            found[value] = read_input(value)
    return found


@dataclass(frozen=True)
class Unpacked:
    """A parcel, in a temporary folder.

    Args:
        model: the model, by its path or as bytes.
        folder: the folder.
        names: what the caller says, by what lies there.
        moved: where the files are that flags name.
    """

    model: Input
    folder: str
    names: Mapping[str, str]
    moved: Mapping[str, str]

    @property
    def reproducer(self) -> str:
        """Where to write what replays an error."""
        return self.path(_REPRODUCER)

    def path(self, inside: str) -> str:
        """Return the path of a file."""
        return os.path.join(self.folder, inside)

    def read(self, path: str) -> list[bytes]:
        """Return the contents of a file that may have been made; none if it was not."""
        try:
            return [Path(path).read_bytes()]
        except OSError:
            return []

    def read_reproducer(self) -> list[bytes]:
        """Return the reproducer, if there is one; its first line may say how to replay it."""
        found = []
        for data in self.read(self.reproducer):
            head, end, rest = data.partition(b"\n")
            if head.startswith(b"//"):
                head = self._said(head.decode(errors="surrogateescape")).encode(
                    errors="surrogateescape"
                )
            found.append(head + end + rest)
        return found

    def flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """Return flags of IREE's compiler with the paths that their files have here."""
        return tuple(
            with_values(flags, {name: self.path(file) for name, file in self.moved.items()})
        )

    def renamed(self, error: SubquantError) -> dict[str, Any]:
        """Return an error as JSON values, in whose words files are called as the caller does."""
        fields = error_to_json(error)
        fields["message"] = self._said(fields["message"])
        fields["notes"] = [self._said(note) for note in fields["notes"]]
        if fields["place"] is not None:
            file, *where = fields["place"]
            fields["place"] = [self._said(file), *where]
        return fields

    def _said(self, text: str) -> str:
        for ours, theirs in self.names.items():
            text = text.replace(self.path(ours), theirs)
        return text


@contextlib.contextmanager
def unpacked(label: Mapping[str, Any], blobs: Sequence[bytes]) -> Iterator[Unpacked]:
    """Lay the files of a parcel out for a block.

    Args:
        label, blobs: of the `Parcel`.

    Raises:
        EnvironmentProblem: there is no place for them.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(tempfile.gettempdir()))
        except OSError as problem:
            raise EnvironmentProblem(
                f"no temporary folder can be made: {problem.strerror}"
            ) from None
        file, inside = label["model"]["file"], label["model"]["path"]
        if inside is None:
            model = Input(file, data=blobs[0])
        else:
            model = Input(file, os.path.join(folder, inside))
        found = Unpacked(model, folder, label["names"], label["flag files"])
        try:
            for name, data in zip(label["files"], blobs[inside is None :], strict=True):
                path = Path(found.path(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {quoted(os.path.basename(error.filename or folder))} to a "
                f"temporary folder: {error.strerror}"
            ) from None
        yield found
