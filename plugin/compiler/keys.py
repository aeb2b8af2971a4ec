"""Cache keys: BLAKE3 of source, options, versions, code and CPU, without a parse of the module.

`key_of_source` has the bytes of the source and of all further files that it is read from, the
options, the versions, and the CPU if code is made for this machine. `key_of_bytecode` identifies a
lowered module. Sources with the same lowering share it, and so do versions of subquant.

A key has the contents of subquant's code, not its version number, which stays the same during
development, nor its path or times, so that machines share entries. It has no name of the source,
which executables do not contain.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from ..core.cpu_features import simulated_host_cpu
from ..core.files import file_beside, kind_of, open_input
from ..core.versions import PINNED_VERSIONS, versions_of
from ..errors import SubquantError
from ..formats.gguf_splits import part_files
from ..iree_hooks import session
from .compile_options import CompileOptions, Emit
from .digests import (
    Digest,
    FileDigests,
    FileIdentity,
    are_settled,
    digest_of,
    digest_of_fields,
    identity_of,
    identity_of_path,
)
from .flags import values_of, with_values
from .iree_driver import uses_session
from .mlir_client import Input, Source, external_files, input_of

if TYPE_CHECKING:
    from .store import Store

_KEY_VERSION = 1
"""The version of keys and entries; no version finds entries of another."""
_PACKAGE = str(Path(__file__).parent.parent)
_SESSION_FILES = sorted(map(str, Path(session.__file__).parent.glob("*.py")))
"""The code in the process of IREE's compiler."""


@dataclass(frozen=True)
class Key:
    """The key of a compilation, and the identities of its files when they were hashed."""

    text: Digest
    files: tuple[tuple[str, FileIdentity], ...] = ()

    @property
    def is_valid(self) -> bool:
        """True if the files have not changed: a result of them belongs to this key."""
        return all(identity_of_path(path) == identity for path, identity in self.files)


def key_of_source(
    source: Source | Input,
    options: CompileOptions,
    emit: Emit = "vmfb",
    *,
    parameters: bool = False,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    memo: Store | None = None,
) -> Key:
    """Return the key of a compilation; InputError if a file cannot be read.

    Args:
        source, options, emit, weights: as in
            `subquant.compiler.compilation.compile_to_bytes`.
        parameters: large constants go to a parameter file.
    """
    module = input_of(source)
    files = FileDigests(memo, _KEY_VERSION)
    data = module.data if module.path is None else None
    source_digest = digest_of(data) if data is not None else files.digest(module.path or "")
    packages = ["ml_dtypes", "numpy"]
    further: dict[str, Digest] = {}
    is_onnx = _is_onnx(module)
    if is_onnx:
        packages.append("onnx")
        further = {name: files.digest(path) for name, path in files_beside(module, data).items()}
    flags, files_of_flags = _files_of_flags(options.iree_flags, files)
    fields = {
        "form": _KEY_VERSION,
        "emit": emit,
        "source": source_digest,
        "read as": "onnx" if is_onnx else "",
        "further": further,
        "options": {**asdict(options), "iree_flags": flags},
        "flags": files_of_flags,
        "compiler": _custom_compiler(files),
        "parameters": parameters,
        "weights": {
            scope: _weights(weights_files(path), files) for scope, path in (weights or {}).items()
        },
        "code": code_digest(memo),
        "versions": versions_of([*PINNED_VERSIONS, *packages]),
        "machine": machine_of(options),
    }
    return Key(digest_of_fields(fields), tuple(files.identities.items()))


def key_of_bytecode(bytecode: bytes, options: CompileOptions, memo: Store | None = None) -> Digest:
    """Return the key of the executable that IREE's compiler makes of a lowered module."""
    files = FileDigests(memo, _KEY_VERSION)
    flags, files_of_flags = _files_of_flags(options.flags, files)
    return digest_of_fields({
        "form": _KEY_VERSION,
        "bytecode": digest_of(bytecode),
        "options": flags,
        "flags": files_of_flags,
        "compiler": _custom_compiler(files),
        "versions": versions_of(["iree-base-compiler"]),
        "machine": machine_of(options),
        "session": [files.digest(path) for path in _SESSION_FILES if uses_session(options)],
    })  # fmt: skip


def weights_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files that weights are read from, in order.

    For a split GGUF model these are its splits. For a folder they are its ``.safetensors`` and
    ``.json`` files, which count for a file of either kind too: an index, or the configuration.
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
    paths = [
        os.path.join(folder, each) for each in entries if each.endswith((".safetensors", ".json"))
    ]
    return paths if os.path.isdir(name) else [name, *paths]


def _weights(paths: Sequence[str], files: FileDigests) -> list[list[str]]:
    """Return the digests of files, with their names if several files refer to each other."""
    if len(paths) == 1:
        return [[files.digest(paths[0])]]
    return [[os.path.basename(path), files.digest(path)] for path in paths]


def _custom_compiler(files: FileDigests) -> Digest:
    """Return the digest of an ``iree-compile`` outside of the package, which has no version."""
    if "IREE_TOOL_PATH" not in os.environ:
        return ""
    from .iree_driver import compiler_path

    return files.digest(compiler_path())


def _files_of_flags(
    flags: Sequence[str], files: FileDigests
) -> tuple[list[str], dict[str, Digest]]:
    """Return flags of ``iree-compile`` without the folders of their files, and the digests."""
    paths = filter(os.path.isfile, values_of(flags))
    names = {path: f"{number} {os.path.basename(path)}" for number, path in enumerate(paths)}
    return with_values(flags, names), {name: files.digest(path) for path, name in names.items()}


# -- ONNX -----------------------------------------------------------------------------------------

_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f]|[\x80-\xff][\x01-\x7f])")
_HEAD_BYTES = 16
"""The bytes of a file that tell its format."""


def _is_onnx(module: Input) -> bool:
    if module.file.lower().endswith(".onnx"):
        return True
    if module.path is None:
        return kind_of(module.data[:_HEAD_BYTES]) == "onnx"
    try:
        with open_input(module.path) as file:
            return kind_of(file.read(_HEAD_BYTES)) == "onnx"
    except SubquantError:
        return False


def files_beside(module: Input, data: bytes | None = None) -> dict[str, str]:
    """Return names and paths of the external data files of an ONNX model; InputError if unreadable.

    Other sources have none. Names that `subquant.core.files.file_beside` refuses are left out.

    A tensor names its file by the pair of strings ``location`` and the name. The bytes are searched
    for such pairs, since a parse needs the package `onnx` and 0.5 s. A model with other occurrences
    of the word, or another encoding of the pair, is parsed.
    """
    if not _is_onnx(module):
        return {}
    if data is None and module.path is not None:
        with open_input(module.path) as file:
            data = file.read()
    data = module.data if data is None else data
    words = data.count(b"location")
    matches = list(_LOCATION.finditer(data)) if words else []
    names = set()
    for match in matches:
        first, *second = match.group(1)
        length = first if not second else (first & 0x7F) | second[0] << 7
        names.add(data[match.end() : match.end() + length].decode(errors="replace"))
    if len(matches) != words:
        names = {*external_files(module)}
    paths = {name: file_beside(module.path or module.file, name) for name in sorted(names)}
    return {name: path for name, path in paths.items() if path is not None}


# -- code and machine -----------------------------------------------------------------------------

_code_digest: list[Digest] = []


def code_digest(memo: Store | None = None) -> Digest:
    """Return the digest of the contents and names of subquant's files."""
    if not _code_digest:
        _code_digest.append(_digest_of_code(memo))
    return _code_digest[0]


def _digest_of_code(memo: Store | None) -> Digest:
    files = sorted(_code(_PACKAGE))
    identities = [identity_of(status) for _, status in files]
    listed = [[path, *identity] for (path, _), identity in zip(files, identities, strict=True)]
    name = digest_of_fields({"form": _KEY_VERSION, "code": listed})
    digest = None if memo is None else memo.recall(name)
    if digest is not None:
        return digest
    hasher = blake3()
    for path, _ in files:
        relative = os.path.relpath(path, _PACKAGE).replace(os.sep, "/")
        data = Path(path).read_bytes()
        hasher.update(f"{relative}\0{len(data)}\0".encode())
        hasher.update(data)
    digest = hasher.hexdigest()
    if memo is not None and are_settled(identities):
        memo.remember(name, digest)
    return digest


def _code(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _code(entry.path)
            elif entry.name.endswith((".py", ".json")):
                yield entry.path, entry.stat()


def machine_of(options: CompileOptions) -> list[str]:
    """Return the kind of this machine, and its CPU if code is made for it."""
    kind = [sys.platform, *(os.uname()[-1:] if hasattr(os, "uname") else ())]
    return [*kind, *(host_cpu() if is_for_host(options) else ())]


def is_for_host(options: CompileOptions) -> bool:
    """True if code is made for the CPU of this machine, by an option or a flag."""
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
    """Return the lines of ``/proc/cpuinfo`` that identify the first core, or the simulated CPU."""
    if simulated_host_cpu():
        return (simulated_host_cpu(),)
    identifying_lines: list[str] = []
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if identifying_lines and not value:  # the end of the first core
                    break
                if name.strip() in _CPU_LINES:
                    identifying_lines.append(f"{name.strip()}:{value.strip()}")
    except OSError:
        import platform

        identifying_lines.append(platform.processor())
    return tuple(identifying_lines)
