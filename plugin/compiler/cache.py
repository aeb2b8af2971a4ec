"""What compilations have given, kept in a `Store` under the keys of what they were made of.

There are two kinds of keys, as `keys` says, and a record under each. That of a source has all that
a compilation gives: remarks, signatures, the digests of the executable and of the file of
parameters. It is found before anything is parsed. That of a lowered module has the executable
only: where subquant itself has changed, and lowers a module as before, IREE's compiler need not
run, which takes most of the time. A change of a line of subquant changes each key of the first
kind, and few of the second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.versions import PINNED_VERSIONS, versions_of
from ..errors import EnvironmentProblem, Remark, UsageError, quoted
from .compile_options import CompileOptions
from .keys import Digest, code_digest
from .store import Held, Store

__all__ = ["DEFAULT_SIZE", "Cache", "Made", "default_cache", "description", "parse_size"]

DEFAULT_SIZE = 10 << 30
"""Bytes of the cache if nothing else is said.

A language model of 8 billion parameters of 4 bits, or a hundred thousand small modules: what the
compilers' caches ccache (5 GiB) and sccache (10 GiB) take, and a small part of a disk.
"""

_EXECUTABLE, _PARAMETERS = "executable", "parameters"
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*(?:([kKMGTP])(i?))?B?\s*")
_POWERS = " KMGTP"


def default_cache() -> Path:
    """The folder of what is kept: the variable ``SUBQUANT_CACHE``, or one of the user's caches.

    Raises:
        EnvironmentProblem: nothing says where these are.
    """
    named = os.environ.get("SUBQUANT_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        home = os.path.expanduser("~")
        if home == "~":  # as in a container, for a user who is not in its list
            raise EnvironmentProblem(
                "there is no home folder for the cache; name a folder by the variable "
                "SUBQUANT_CACHE"
            )
        base = os.path.join(home, ".cache")
    return Path(base) / "subquant"


def parse_size(text: str, what: str) -> int:
    """Read a number of bytes, such as ``10GiB``, ``500 MB`` or ``4096``.

    Raises:
        UsageError: the text is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{what} must be a size such as 10GiB, 500MB or 4096, got {quoted(text)}")
    number, unit, binary = found.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _POWERS.index((unit or " ").upper()))


def _limit() -> int:
    text = os.environ.get("SUBQUANT_CACHE_SIZE")
    return parse_size(text, "the variable SUBQUANT_CACHE_SIZE") if text else DEFAULT_SIZE


@dataclass(frozen=True)
class Made:
    """What a compilation has given.

    Args:
        executable: its bytes.
        signature_texts: as of `subquant.compiler.mlir_client.LoweredModule`.
        remarks: on the source, whose file they do not name.
        parameters: the archive, if there is one.
    """

    executable: bytes
    signature_texts: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[Remark] = ()
    parameters: Held | None = None


class Cache(Store):
    """A folder of what compilations have given.

    Args:
        folder: where it is.
        on_damage: as of `Store`.

    Raises:
        UsageError: the variable ``SUBQUANT_CACHE_SIZE`` is no size.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        on_damage: Callable[[str], object] = lambda line: None,
    ) -> None:
        super().__init__(folder, _limit(), on_damage)

    def find(self, key: Digest) -> Made | None:
        """Return what is kept under the key of a source, if it is there and whole."""
        record = self.read(key)
        if record is None:
            return None
        executable = self.blob(record.blobs.get(_EXECUTABLE, ""))
        if executable is None:
            return None
        parameters = None
        if _PARAMETERS in record.blobs:
            parameters = self.hold(record.blobs[_PARAMETERS])
            if parameters is None:
                return None
        self.use(key, record)
        if "lowered" in record.fields:
            self.touch(record.fields["lowered"])
        remarks = [Remark.from_json(fields) for fields in record.fields["remarks"]]
        return Made(executable, record.fields["signatures"], remarks, parameters)

    def find_lowered(self, key: Digest) -> bytes | None:
        """Return what is kept under the key of a lowered module, if it is there and whole."""
        record = self.read(key)
        if record is None:
            return None
        executable = self.blob(record.blobs.get(_EXECUTABLE, ""))
        if executable is not None:
            self.use(key, record)
        return executable

    def add_lowered(self, key: Digest, executable: bytes, about: Mapping[str, Any]) -> None:
        """Keep what IREE's compiler has made of a lowered module.

        Raises:
            InputError, OSError: the folder cannot be written.
        """
        self._name_lowered(key, self.keep(executable), about)

    def _name_lowered(self, key: Digest, blob: Digest, about: Mapping[str, Any]) -> None:
        self.write(key, {"about": dict(about)}, {_EXECUTABLE: blob})

    def add(
        self,
        key: Digest,
        made: Made,
        about: Mapping[str, Any],
        *,
        parameters: str | os.PathLike[str] | None = None,
        move: bool = False,
        lowered: Digest | None = None,
    ) -> None:
        """Keep what a compilation has given.

        Args:
            key: of the source.
            made: what was made; its parameters do not count.
            about: what the entry is, of `description`.
            parameters: the archive, if there is one.
            move: the archive is a temporary file of the store, and may be taken.
            lowered: the key of the lowered module, which is kept too.

        Raises:
            InputError, OSError: the folder cannot be written.
        """
        blobs = {_EXECUTABLE: self.keep(made.executable)}
        written = len(made.executable)
        if parameters is not None:
            written += os.path.getsize(parameters)
            blobs[_PARAMETERS] = self.keep_file(parameters, move=move)
        described = {
            "about": dict(about),
            "signatures": dict(made.signature_texts),
            "remarks": [asdict(remark) for remark in made.remarks],
        }
        spared = {key, *blobs.values()}
        if lowered is not None:
            described["lowered"] = lowered
            spared.add(lowered)
            self._name_lowered(lowered, blobs[_EXECUTABLE], {**about, "kind": "lowered module"})
        self.write(key, described, blobs)
        self.make_room(written, spared)


def description(kind: str, name: str, options: CompileOptions) -> dict[str, Any]:
    """Return what an entry is, for people: a kind, a name, options that were chosen, versions.

    That of subquant is the beginning of the digest of its code.
    """
    default = CompileOptions()
    chosen = {
        declared.name: getattr(options, declared.name)
        for declared in fields(options)
        if getattr(options, declared.name) != getattr(default, declared.name)
    }
    versions = {"subquant": code_digest()[:12], **versions_of(PINNED_VERSIONS)}
    return {"kind": kind, "name": name, "options": chosen, "versions": versions}
