"""Input bundles: the files of a task, sent with it to the machine that runs it.

A task has JSON values and bytes, but its function needs files: tensors beside a model, parameters,
files named by flags of IREE's compiler. An `InputBundle` contains them. The worker unpacks it into
a temporary folder (`unpack_bundle`), and errors name the files by the caller's paths
(`UnpackedBundle.renamed`).
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

_REPRODUCER = "subquant.reproducer.mlir"


class InputBundle:
    """Model with the files that its compilation or run needs; InputError if one cannot be read.

    Args:
        model: name and bytes.
        reproducer: the caller's path of the reproducer of an error.
        as_file: True to unpack the model to a file; otherwise only if it has external data.
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
            if os.path.isfile(path):  # the reader of the model reports a missing file
                self.add(path, os.path.join("model", os.path.dirname(name)))
        self._model["path"] = self.add(model.file, "model", model.data)

    @property
    def blobs(self) -> list[bytes]:
        """The contents, for `unpack_bundle`."""
        return [*self._data, *self._files.values()]

    @property
    def label(self) -> dict[str, Any]:
        """The names of the contents, as JSON values for `unpack_bundle`."""
        return {
            "model": self._model,
            "files": [*self._files],
            "names": self._names,
            "flag files": self._flag_files,
        }

    def add(self, path: str, folder: str, data: bytes | None = None) -> str:
        """Add a file; InputError if it cannot be read.

        Args:
            path: the caller's path.
            folder: its folder in the temporary folder.
            data: the contents; None to read them.

        Returns:
            The argument of `UnpackedBundle.path` for this file.
        """
        inside = os.path.join(folder, os.path.basename(path))
        self._files[inside] = read_input(path) if data is None else data
        self._names[os.path.join(folder, "")] = os.path.join(os.path.dirname(path), "")
        return inside

    def add_flag_files(self, files: Mapping[str, bytes]) -> None:
        """Add the files of `read_flag_files`."""
        for number, (path, data) in enumerate(files.items()):
            self._flag_files[path] = self.add(path, f"flag{number}", data)


def read_flag_files(flags: Sequence[str]) -> dict[str, bytes]:
    """Read the files that flags of IREE's compiler name.

    A value with a path separator is a path; a value with a dot is a path if the file exists; other
    values are words, such as ``host``.

    Raises:
        InputError: a file cannot be read.
        UsageError: a flag names a folder or a missing file, such as an output.
    """
    files = {}
    for value in values_of(flags):
        has_separator = any(each in value for each in (os.sep, os.altsep) if each)
        if has_separator or ("." in value and os.path.exists(value)):
            if not os.path.isfile(value):
                raise UsageError(
                    f"{quoted(value)}, which --iree-flag names, is no file that can be sent to "
                    "the workers of a cluster; compile without --cluster"
                )
            files[value] = read_input(value)
    return files


@dataclass(frozen=True)
class UnpackedBundle:
    """Bundle in a temporary folder.

    Args:
        model: the model, by its path or as bytes.
        folder: the folder.
        names: the caller's paths by the paths in the folder.
        moved: paths in the folder by the values of flags.
    """

    model: Input
    folder: str
    names: Mapping[str, str]
    moved: Mapping[str, str]

    @property
    def reproducer(self) -> str:
        """The path of the reproducer."""
        return self.path(_REPRODUCER)

    def path(self, inside: str) -> str:
        """Return the path of a file."""
        return os.path.join(self.folder, inside)

    def read(self, path: str) -> list[bytes]:
        """Return the contents of a file, or nothing if it does not exist."""
        try:
            return [Path(path).read_bytes()]
        except OSError:
            return []

    def read_reproducer(self) -> list[bytes]:
        """Return the reproducer, if there is one; its first line may have the replay command."""
        reproducers = []
        for data in self.read(self.reproducer):
            head, end, rest = data.partition(b"\n")
            if head.startswith(b"//"):
                head = self._with_callers_paths(head.decode(errors="surrogateescape")).encode(
                    errors="surrogateescape"
                )
            reproducers.append(head + end + rest)
        return reproducers

    def flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """Return flags of IREE's compiler with the paths that their files have here."""
        return tuple(
            with_values(flags, {name: self.path(file) for name, file in self.moved.items()})
        )

    def renamed(self, error: SubquantError) -> dict[str, Any]:
        """Return an error as JSON values, with the caller's paths."""
        fields = error_to_json(error)
        fields["message"] = self._with_callers_paths(fields["message"])
        fields["notes"] = [self._with_callers_paths(note) for note in fields["notes"]]
        if fields["place"] is not None:
            file, *where = fields["place"]
            fields["place"] = [self._with_callers_paths(file), *where]
        return fields

    def _with_callers_paths(self, text: str) -> str:
        for ours, theirs in self.names.items():
            text = text.replace(self.path(ours), theirs)
        return text


@contextlib.contextmanager
def unpack_bundle(label: Mapping[str, Any], blobs: Sequence[bytes]) -> Iterator[UnpackedBundle]:
    """Unpack a bundle to a temporary folder for a block; EnvironmentProblem if that fails."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(locked_folder(tempfile.gettempdir()))
        except OSError as problem:
            raise EnvironmentProblem(
                f"cannot create a temporary folder: {problem.strerror}"
            ) from None
        file, inside = label["model"]["file"], label["model"]["path"]
        if inside is None:
            model = Input(file, data=blobs[0])
        else:
            model = Input(file, os.path.join(folder, inside))
        bundle = UnpackedBundle(model, folder, label["names"], label["flag files"])
        try:
            for name, data in zip(label["files"], blobs[inside is None :], strict=True):
                path = Path(bundle.path(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot write {quoted(os.path.basename(error.filename or folder))} to a "
                f"temporary folder: {error.strerror}"
            ) from None
        yield bundle
