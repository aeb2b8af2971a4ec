"""Keys: what a compilation is made of, as a hash, without a look into the module.

`key_of_source` is what tells a compilation from others before anything of it is parsed: the bytes
of the source and of all further files that it is read from, the options, the versions, and the CPU
where code is made for the one that is here.
`key_of_bytecode` is what tells a lowered module from others. Sources of one lowering share it, and
so do versions of subquant that lower a source alike.

What of subquant counts is its code, by content: neither its version number, which stays as it is
while somebody works on it, nor where it lies or when it was written, so that machines share. Nor
does the name of a source, which executables do not know.

Bytes are hashed by BLAKE3. 100 MB in the page cache took 32 ms of CPU time, on as many cores as
there are, and hashlib's SHA-256 88 ms on one, which has instructions for it; CPUs without them need
three times that. A file of `_REMEMBERED` bytes and more, and the code, are hashed once: what a
`Memo` knows of files that are as they were, by inode, size and times, is not read again. A change
of contents changes the time of the inode, which programs cannot set, but only as finely as the
clock of the file system, which may be another machine's: a file that changed in the last `_SETTLED`
seconds is not remembered.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

from blake3 import blake3

from ..core.cpu_features import simulated_host_cpu
from ..core.files import file_beside, kind_of, open_input
from ..core.versions import PINNED_VERSIONS, versions_of
from ..errors import SubquantError
from ..formats.gguf_splits import part_files
from ..iree_hooks import session
from .compile_options import CompileOptions, Emit
from .flags import values_of, with_values
from .iree_driver import is_by_session
from .mlir_client import Input, Source, external_files, input_of

__all__ = [
    "Digest",
    "Key",
    "Memo",
    "code_digest",
    "digest_of",
    "digest_of_file",
    "digest_of_open",
    "files_beside",
    "host_cpu",
    "is_for_host",
    "key_of_bytecode",
    "key_of_source",
    "machine_of",
    "weights_files",
]

_FORM = 1
"""Of the keys, and of what is kept under them; another one finds nothing of this."""

_SESSION = sorted(map(str, Path(session.__file__).parent.glob("*.py")))
"""What runs in the process of IREE's compiler."""
_CHUNK = 1 << 22
_PARALLEL = 1 << 20
"""Bytes from which on more than one core hashes."""

_REMEMBERED = 1 << 24
"""Bytes of a file from which on its digest is remembered: hashing as many takes 5 ms."""

_SETTLED = 60.0

Digest: TypeAlias = str
"""BLAKE3 of 256 bits, in hexadecimal digits."""

Identity: TypeAlias = "tuple[int, ...] | None"
"""What tells a file from what it was before; None if there is none."""


class Memo(Protocol):
    """Where digests of files are remembered."""

    def recall(self, name: str) -> str | None:
        """Return what was remembered under a name, if it is there."""

    def remember(self, name: str, text: str) -> None:
        """Remember a text, if that is possible."""


@dataclass(frozen=True)
class Key:
    """The key of a compilation, and the files that it was made of.

    Args:
        text: hexadecimal digits.
        files: the paths, with what the files were when they were hashed.
    """

    text: Digest
    files: tuple[tuple[str, Identity], ...] = ()

    @property
    def holds(self) -> bool:
        """True if the files are as they were: what was made of them belongs to this key."""
        return all(_identity(path) == identity for path, identity in self.files)


def key_of_source(
    source: Source | Input,
    options: CompileOptions,
    emit: Emit = "vmfb",
    *,
    parameters: bool = False,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    memo: Memo | None = None,
) -> Key:
    """Return the key of a compilation.

    Args:
        source, options, emit, weights: as of `subquant.compiler.compilation.compile_to_bytes`.
        parameters: constants go to a file of parameters.
        memo: where digests of large files are remembered.

    Raises:
        InputError: a file cannot be read.
    """
    given = input_of(source)
    files = _Files(memo)
    if given.path is None:
        data: bytes | None = given.data
        made_of = digest_of(given.data)
    else:
        data = None
        made_of = files.digest(given.path)
    needs = ["ml_dtypes", "numpy"]
    further: dict[str, Digest] = {}
    if _is_onnx(given):
        needs.append("onnx")
        further = {name: files.digest(path) for name, path in files_beside(given, data).items()}
    flags, files_of_flags = _files_of_flags(options.iree_flags, files)
    fields = {
        "form": _FORM,
        "emit": emit,
        "source": made_of,
        "read as": "onnx" if _is_onnx(given) else "",
        "further": further,
        "options": {**asdict(options), "iree_flags": flags},
        "flags": files_of_flags,
        "compiler": _other_compiler(files),
        "parameters": parameters,
        "weights": {
            scope: _weights(weights_files(path), files) for scope, path in (weights or {}).items()
        },
        "code": code_digest(memo),
        "versions": versions_of([*PINNED_VERSIONS, *needs]),
        "machine": machine_of(options),
    }
    return Key(_digest_of_fields(fields), tuple(files.seen.items()))


def key_of_bytecode(bytecode: bytes, options: CompileOptions, memo: Memo | None = None) -> Digest:
    """Return the key of what IREE's compiler makes of a lowered module."""
    files = _Files(memo)
    flags, files_of_flags = _files_of_flags(options.flags, files)
    fields = {
        "form": _FORM,
        "bytecode": digest_of(bytecode),
        "options": flags,
        "flags": files_of_flags,
        "compiler": _other_compiler(files),
        "versions": versions_of(["iree-base-compiler"]),
        "machine": machine_of(options),
        "session": [files.digest(each) for each in _SESSION if is_by_session(options)],
    }
    return _digest_of_fields(fields)


def _digest_of_fields(fields: Mapping[str, Any]) -> Digest:
    return digest_of(json.dumps(fields, sort_keys=True).encode("utf-8", "surrogateescape"))


# -- files ----------------------------------------------------------------------------------------


def digest_of(data: bytes | memoryview) -> Digest:
    """Return the digest of bytes."""
    return blake3(data, max_threads=_threads(len(data))).hexdigest()


def digest_of_file(path: str | os.PathLike[str]) -> Digest:
    """Return the digest of a file.

    It is read, not mapped: a file that somebody shortens meanwhile is no signal.

    Raises:
        InputError: it cannot be read, or is no regular file.
        OSError: reading failed on the way.
    """
    with open_input(path) as file:
        return digest_of_open(file)


def digest_of_open(file: IO[bytes]) -> Digest:
    """Return the digest of a file that is open, from where it is on."""
    size = os.fstat(file.fileno()).st_size
    hasher = blake3(max_threads=_threads(size))
    buffer = memoryview(bytearray(min(size + 1, _CHUNK)))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        hasher.update(buffer[:count])
    return hasher.hexdigest()


_threads_of: list[int] = []
"""The process that has started BLAKE3's threads: one that is forked from it would wait for them."""


def _threads(size: int) -> int:
    """How many threads may hash so many bytes."""
    if size < _PARALLEL or _threads_of not in ([], [os.getpid()]):
        return 1
    _threads_of[:] = [os.getpid()]
    return blake3.AUTO


def _identity(path: str) -> Identity:
    """What tells a file from what it was before."""
    try:
        return _identity_of(os.stat(path))
    except (OSError, ValueError):  # ValueError: it can be no path
        return None


_SIZE, _TIMES = 2, 3
"""Where the size is in an identity, and from where on the times are."""


def _identity_of(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class _Files:
    """Digests of files, with what the files were when they were hashed."""

    def __init__(self, memo: Memo | None) -> None:
        self._memo = memo
        self.seen: dict[str, Identity] = {}

    def digest(self, path: str) -> Digest:
        """The digest of a file; "" if it is none that can be read, which the reader will say."""
        path = os.path.abspath(path)
        self.seen[path] = None
        try:
            # A network file system looks at the file again when it is opened, not before.
            with open_input(path) as file:
                identity = _identity_of(os.fstat(file.fileno()))
                found = self._digest(path, file, identity)
                if _identity_of(os.fstat(file.fileno())) != identity:
                    return ""  # which holds no more
        except (SubquantError, OSError):
            self.seen[path] = _identity(path)  # a folder, say, which it stays
            return ""
        self.seen[path] = identity
        return found

    def _digest(self, path: str, file: IO[bytes], identity: tuple[int, ...]) -> Digest:
        if self._memo is None or identity[_SIZE] < _REMEMBERED:
            return digest_of_open(file)
        name = _digest_of_fields({"form": _FORM, "file": path, "identity": identity})
        known = self._memo.recall(name)
        if known is not None:
            return known
        found = digest_of_open(file)
        if _has_settled([identity]):
            self._memo.remember(name, found)
        return found


def _has_settled(identities: Sequence[tuple[int, ...]]) -> bool:
    newest = max(max(identity[_TIMES:]) for identity in identities)
    return newest / 1e9 < time.time() - _SETTLED


def weights_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files that weights are read from, in order.

    Those of a GGUF model in several parts are its parts. Those of a folder are its
    ``.safetensors`` and ``.json`` files. They count too for a file of these, which is an index, or
    read with the configuration beside it.
    """
    name = os.fspath(path)
    folder = name
    if not os.path.isdir(name):
        if not name.lower().endswith((".safetensors", ".json")):
            return part_files(name)
        folder = os.path.dirname(name) or "."
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return [name]
    found = [
        os.path.join(folder, each) for each in entries if each.endswith((".safetensors", ".json"))
    ]
    return found if os.path.isdir(name) else [name, *found]


def _weights(paths: Sequence[str], files: _Files) -> list[list[str]]:
    """The digests of files, by their names where there are several, which find each other."""
    if len(paths) == 1:
        return [[files.digest(paths[0])]]
    return [[os.path.basename(path), files.digest(path)] for path in paths]


def _other_compiler(files: _Files) -> Digest:
    """The digest of ``iree-compile``, if it is not that of the package, which has a version."""
    if "IREE_TOOL_PATH" not in os.environ:
        return ""
    from .iree_driver import compiler_path

    return files.digest(compiler_path())


def _files_of_flags(flags: Sequence[str], files: _Files) -> tuple[list[str], dict[str, Digest]]:
    """Flags of ``iree-compile`` without the folders of files that they name, and these files.

    Such as a specification of tuning: what it says counts, not where it lies.
    """
    paths = filter(os.path.isfile, values_of(flags))
    names = {path: f"{number} {os.path.basename(path)}" for number, path in enumerate(paths)}
    return with_values(flags, names), {name: files.digest(path) for path, name in names.items()}


# -- ONNX -----------------------------------------------------------------------------------------

_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f]|[\x80-\xff][\x01-\x7f])")
_HEAD = 16


def _is_onnx(given: Input) -> bool:
    if given.file.lower().endswith(".onnx"):
        return True
    if given.path is None:
        return kind_of(given.data[:_HEAD]) == "onnx"
    try:
        with open_input(given.path) as file:
            return kind_of(file.read(_HEAD)) == "onnx"
    except SubquantError:
        return False


def files_beside(given: Input, data: bytes | None = None) -> dict[str, str]:
    """Return the names of the files that an ONNX model has tensors in, and where they are.

    Other sources have none. A name that `subquant.core.files.file_beside` refuses is left out.

    A tensor says so by the pair of strings ``location`` and the name, which is looked for in the
    bytes: to parse them takes the package `onnx`, and 0.5 s. A model that has the word elsewhere,
    or writes the pair in another way, is parsed.

    Args:
        given: the source.
        data: its bytes, if they are known.

    Raises:
        InputError: it cannot be read.
    """
    if not _is_onnx(given):
        return {}
    if data is None and given.path is not None:
        with open_input(given.path) as file:
            data = file.read()
    data = given.data if data is None else data
    words = data.count(b"location")
    found = list(_LOCATION.finditer(data)) if words else []
    names = set()
    for match in found:
        first, *second = match.group(1)
        length = first if not second else (first & 0x7F) | second[0] << 7
        names.add(data[match.end() : match.end() + length].decode(errors="replace"))
    if len(found) != words:
        names = {*external_files(given)}
    paths = {name: file_beside(given.path or given.file, name) for name in sorted(names)}
    return {name: path for name, path in paths.items() if path is not None}


# -- code, and the machine ------------------------------------------------------------------------

_PACKAGE = str(Path(__file__).parent.parent)


_known_code: list[Digest] = []


def code_digest(memo: Memo | None = None) -> Digest:
    """Return the digest of subquant's code: the contents of its files, with their names in it."""
    if not _known_code:
        _known_code.append(_digest_of_code(memo))
    return _known_code[0]


def _digest_of_code(memo: Memo | None) -> Digest:
    files = sorted(_code(_PACKAGE))
    identities = [_identity_of(status) for _, status in files]
    seen = [[path, *identity] for (path, _), identity in zip(files, identities, strict=True)]
    name = _digest_of_fields({"form": _FORM, "code": seen})
    known = None if memo is None else memo.recall(name)
    if known is not None:
        return known
    hasher = blake3()
    for path, _ in files:
        inside = os.path.relpath(path, _PACKAGE).replace(os.sep, "/")
        data = Path(path).read_bytes()
        hasher.update(f"{inside}\0{len(data)}\0".encode())
        hasher.update(data)
    found = hasher.hexdigest()
    if memo is not None and _has_settled(identities):
        memo.remember(name, found)
    return found


def _code(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _code(entry.path)
            elif entry.name.endswith((".py", ".json")):
                yield entry.path, entry.stat()


def machine_of(options: CompileOptions) -> list[str]:
    """What of this machine counts: the kind that it is, and the CPU where a flag says ``host``."""
    kind = [sys.platform, *(os.uname()[-1:] if hasattr(os, "uname") else ())]
    return [*kind, *(host_cpu() if is_for_host(options) else ())]


def is_for_host(options: CompileOptions) -> bool:
    """True if code is made for the CPU of this machine, as a flag says."""
    if options.target == "llvm-cpu" and options.target_cpu == "host":
        return True
    return any("host" in flag for flag in options.iree_flags)


_CPU_LINES = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),  # x86
    *("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part"),  # Arm
    *("isa", "uarch"),  # RISC-V
)


@functools.cache
def host_cpu() -> tuple[str, ...]:
    """Return what tells this machine's CPU from another's: what Linux says of the first core."""
    if simulated_host_cpu():
        return (simulated_host_cpu(),)
    found: list[str] = []
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if found and not value:  # the end of a core: the others are not even written
                    break
                if name.strip() in _CPU_LINES:
                    found.append(f"{name.strip()}:{value.strip()}")
    except OSError:
        import platform

        found.append(platform.processor())
    return tuple(found)
