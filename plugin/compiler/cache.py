"""Compilation cache: the results of compilations in a `Store`, under keys of their inputs.

There are two kinds of keys (`subquant.compiler.keys`). The record of a source has the whole result
of a compilation: remarks, signatures, and the digests of executable and parameter file. It is read
before any parse. The record of a lowered module has the executable only: after a change of subquant
that lowers a module as before, IREE's compiler, which takes most of the time, need not run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.versions import PINNED_VERSIONS, versions_of
from ..errors import EnvironmentProblem, Remark, UsageError, quoted
from .compile_options import CompileOptions
from .digests import Digest
from .keys import code_digest
from .store import Store
from .store_files import PinnedBlob, Record

DEFAULT_SIZE = 10 << 30
"""The default limit in bytes: a language model of 8 billion 4-bit parameters, or 100,000 modules.

The compiler caches ccache (5 GiB) and sccache (10 GiB) have similar limits.
"""

_EXECUTABLE, _PARAMETERS = "executable", "parameters"
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*(?:([kKMGTP])(i?))?B?\s*")
_UNITS = " KMGTP"


_OFF = ("0", "off", "no", "false", "none")
"""Values of ``SUBQUANT_CACHE`` that mean no cache."""


def cache_of_environment() -> str:
    """Return the folder in ``SUBQUANT_CACHE``; nothing if it is not set, or says off."""
    named = os.environ.get("SUBQUANT_CACHE", "")
    return "" if named.lower() in _OFF else named


def default_cache() -> Path:
    """Return ``SUBQUANT_CACHE``, or the default folder.

    Raises:
        UsageError: the variable says off.
        EnvironmentProblem: there is no home.
    """
    if named := cache_of_environment():
        return Path(named)
    if off := os.environ.get("SUBQUANT_CACHE"):
        raise UsageError(
            f"the variable SUBQUANT_CACHE is '{off}', which means no cache, and this needs one: "
            "language models are read from it; name a folder (./0 for one of that name), or unset "
            "the variable"
        )
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        home = os.path.expanduser("~")
        if home == "~":  # a user without an entry, as in a container
            raise EnvironmentProblem(
                "there is no home folder for the cache; name a folder by the variable "
                "SUBQUANT_CACHE"
            )
        base = os.path.join(home, ".cache")
    return Path(base) / "subquant"


def parse_size(text: str, subject: str) -> int:
    """Read a size such as ``10GiB`` or ``500 MB``; UsageError about `subject` for other text."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{subject} must be a size such as 10GiB, 500MB or 4096, got {quoted(text)}"
        )
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _UNITS.index((unit or " ").upper()))


@dataclass(frozen=True)
class CompileResult:
    """The result of a compilation.

    Args:
        executable: the executable.
        signature_texts: the signatures, as in `subquant.compiler.mlir_client.LoweredModule`.
        remarks: remarks without the name of the source.
        parameters: the parameter archive; None for none.
    """

    executable: bytes
    signature_texts: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[Remark] = ()
    parameters: PinnedBlob | None = None


class Cache(Store):
    """A folder of results of compilations; UsageError if ``SUBQUANT_CACHE_SIZE`` is no size."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        on_damage: Callable[[str], object] = lambda line: None,
    ) -> None:
        text = os.environ.get("SUBQUANT_CACHE_SIZE")
        limit = parse_size(text, "the variable SUBQUANT_CACHE_SIZE") if text else DEFAULT_SIZE
        super().__init__(folder, limit, on_damage)

    def find(self, key: Digest) -> CompileResult | None:
        """Return the intact result of a source; None if there is none."""
        record = self.read(key)
        executable = self._executable(record)
        if record is None or executable is None:
            return None
        parameters = None
        if _PARAMETERS in record.blobs:
            parameters = self.pin(record.blobs[_PARAMETERS])
            if parameters is None:
                return None
        self.use(key, record)
        remarks = [Remark.from_json(fields) for fields in record.fields["remarks"]]
        return CompileResult(executable, record.fields["signatures"], remarks, parameters)

    @contextlib.contextmanager
    def found_or_reserved(
        self, key: Digest, notify: Callable[[str], None]
    ) -> Iterator[CompileResult | None]:
        """Find the result of a source; if there is none, lock its key while it is computed."""
        result = self.find(key)
        if result is not None:
            yield result
            return
        with self.reserved(key, lambda: notify("wait for the same compilation elsewhere")):
            yield self.find(key)

    def find_lowered(self, key: Digest) -> bytes | None:
        """Return the intact executable of a lowered module; None if there is none."""
        record = self.read(key)
        executable = self._executable(record)
        if record is not None and executable is not None:
            self.use(key, record)
        return executable

    def _executable(self, record: Record | None) -> bytes | None:
        return None if record is None else self.blob(record.blobs.get(_EXECUTABLE, ""))

    def add_lowered(self, key: Digest, executable: bytes, about: Mapping[str, Any]) -> None:
        """Write the executable of a lowered module; OSError if the folder cannot be written."""
        self.write(key, {"about": dict(about)}, {_EXECUTABLE: self.keep(executable)})

    def add(
        self,
        key: Digest,
        result: CompileResult,
        about: Mapping[str, Any],
        *,
        parameters: str | os.PathLike[str] | None = None,
        move: bool = False,
        lowered: Digest | None = None,
    ) -> None:
        """Write the result of a compilation; InputError, OSError if the folder cannot be written.

        Args:
            about: the `description` of the entry.
            parameters: the parameter archive; None for none.
            move: the archive is a temporary file of the store, and may be renamed.
            lowered: the key of the lowered module, whose executable is written too.
        """
        blobs = {_EXECUTABLE: self.keep(result.executable)}
        written = len(result.executable)
        if parameters is not None:
            written += os.path.getsize(parameters)
            blobs[_PARAMETERS] = self.keep_file(parameters, move=move)
        values = {
            "about": dict(about),
            "signatures": dict(result.signature_texts),
            "remarks": [asdict(remark) for remark in result.remarks],
        }
        spared = {key, *blobs.values()}
        if lowered is not None:
            spared.add(lowered)
            lowered_about = {**about, "kind": "lowered module"}
            self.write(lowered, {"about": lowered_about}, {_EXECUTABLE: blobs[_EXECUTABLE]})
        self.write(key, values, blobs)
        self.evict(written, spared)


def description(kind: str, name: str, options: CompileOptions) -> dict[str, Any]:
    """Return the description of an entry for users: kind, name, options and versions.

    The version of subquant is the start of the digest of its code.
    """
    default = CompileOptions()
    chosen = {
        declared.name: getattr(options, declared.name)
        for declared in fields(options)
        if getattr(options, declared.name) != getattr(default, declared.name)
    }
    versions = {"subquant": code_digest()[:12], **versions_of(PINNED_VERSIONS)}
    return {"kind": kind, "name": name, "options": chosen, "versions": versions}
