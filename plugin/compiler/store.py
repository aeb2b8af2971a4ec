"""Store: a bounded folder of records and blobs, shared by processes and machines.

::

    records/ab/KEY      the digest of the rest; JSON
    blobs/cd/DIGEST     bytes, under their own digest
    writing/NAME.part   files that are being written
    writing/KEY.lock    locks of keys whose result is being computed

**Integrity.** A file is written in ``writing``, closed, and then renamed, which is atomic on local
and network file systems; a network file system may delay writes until the file is closed. Each read
compares the digest. No file is therefore forced to the disk: a half-written file of a machine that
lost its power is not used. A damaged file counts as missing, and is removed. Correctness never
depends on locks, which only avoid repeated work. A large blob (`MIN_BYTES_FOR_MEMO`) is hashed
once while inode, size and times are unchanged, as described in `digests`; its data are forced to
the disk before that is remembered. `verify` hashes it again.

**Eviction.** A writer checks the total size with a probability in proportion to the bytes that it
has written, `_CHECKS_PER_LIMIT` times per limit on average, and evicts the least recently used
files until `_SIZE_AFTER_EVICTION` of the limit is left. There is no counter that could go wrong,
and no process waits. The store exceeds the limit by one eighth with a probability of e^-8, 0.03%.

**Use.** The time of a use is the file's modification time, because reads may not set the access
time (``relatime``, ``noatime``). For a large blob it is that of the record of its check, because a
changed time would make the check due again. A writer does not evict the files that it writes, and
no process evicts a `PinnedBlob` (on file systems with locks), because another process has mapped
it.

Killed processes leave files in ``writing``, which are removed after a day.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..core.files import open_input
from ..errors import InputError, SubquantError
from ..isolation.cancellation import current_work
from . import digests
from .digests import (
    Digest,
    are_settled,
    digest_of,
    digest_of_fields,
    digest_of_file,
    digest_of_open,
    identity_of,
)
from .store_files import (
    PinnedBlob,
    Record,
    StoredFile,
    copy_file,
    create_with_folder,
    lock_file,
    parse_record,
    read_file,
    remove_unless_locked,
    rename,
    touch,
)

_CHECKS_PER_LIMIT = 32
"""The average number of checks of the total size while as many bytes as the limit are written.

With fewer, the store exceeds its limit by more: on average by 1/32 of it.
"""
_SIZE_AFTER_EVICTION = 7 / 8
"""The fraction of the limit that an eviction leaves, so that the next one is not due at once."""
_BLOCK_BYTES = 4096
"""The bytes that a smaller file counts as: a block of a file system."""
_STALE_SECONDS = 86400.0
"""The age of a file in ``writing`` that no process writes any more."""
_MAX_WAIT_SECONDS = 600.0
"""The time for which a process waits for a lock: a lost machine may have left it."""
_MAX_POLL_SECONDS = 0.25
"""The greatest time between two tries to take a lock."""
_FILE_NAMES = {
    "records": re.compile("[0-9a-f]{64}"),
    "blobs": re.compile("[0-9a-f]{64}"),
    "writing": re.compile(r".*\.(part|lock)"),
}


class Store:
    """A folder of records and blobs.

    Args:
        folder: its path; the first write creates it.
        limit: bytes; 0 for no limit.
        on_damage: called with a line about each damaged file, which is removed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        limit: int = 0,
        on_damage: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._on_damage = on_damage

    # -- records ----------------------------------------------------------------------------------

    def read(self, key: Digest) -> Record | None:
        """Return an intact record; None if there is none."""
        path = self._path("records", key)
        data = read_file(path)
        try:
            return None if data is None else parse_record(data)
        except ValueError:
            self._remove_damaged(path)
            return None

    def write(self, key: Digest, fields: Mapping[str, Any], blobs: Mapping[str, Digest]) -> None:
        """Write a record, and replace that of the key; OSError if the folder cannot be written."""
        text = json.dumps({"fields": fields, "blobs": blobs}).encode()
        self._write(self._path("records", key), digest_of(text).encode() + b"\n" + text)

    def use(self, key: Digest, record: Record) -> None:
        """Set the times of a record and its blobs, if that is possible."""
        touch(self._path("records", key))
        for digest in record.blobs.values():
            self._touch_blob(digest)

    def recall(self, name: str) -> str | None:
        """Return the text of `remember`; None if there is none."""
        record = self.read(name)
        if record is None:
            return None
        self.use(name, record)
        return str(record.fields["remembered"])

    def remember(self, name: str, text: str) -> None:
        """Write a text to a record, if that is possible."""
        with contextlib.suppress(OSError):
            self.write(name, {"remembered": text}, {})

    # -- blobs ------------------------------------------------------------------------------------

    def blob(self, digest: Digest) -> bytes | None:
        """Return the bytes of an intact blob; None if there is none."""
        path = self._path("blobs", digest)
        data = read_file(path)
        if data is None or digest_of(data) == digest:
            return data
        self._remove_damaged(path)
        return None

    def pin(self, digest: Digest, *, rehash: bool = False) -> PinnedBlob | None:
        """Open an intact blob; None if there is none.

        Args:
            rehash: hash also a large blob that was intact before, and has not changed.
        """
        path = self._path("blobs", digest)
        with contextlib.suppress(SubquantError, OSError), open_input(path) as file:
            lock_file(file.fileno(), exclusive=False)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return None  # it was removed after it was opened
            if self._is_intact(digest, file, rehash=rehash):
                return PinnedBlob(path, os.dup(file.fileno()))
            self._remove_damaged(path)
        return None

    def _is_intact(self, digest: Digest, file: IO[bytes], *, rehash: bool) -> bool:
        """Return True if an open blob has its digest, which is computed or remembered."""
        status = os.fstat(file.fileno())
        is_large = status.st_size >= digests.MIN_BYTES_FOR_MEMO
        name = _name_of_check(digest, status)
        if is_large and not rehash and self.recall(name) is not None:
            return True
        if digest_of_open(file) != digest:
            return False
        identity = identity_of(status)
        is_unchanged = identity_of(os.fstat(file.fileno())) == identity
        if is_large and is_unchanged and are_settled([identity]):
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())
                self.remember(name, "intact")
        return True

    def _touch_blob(self, digest: Digest) -> None:
        """Set the time of a blob, unless it is large: `recall` sets that of its check."""
        path = self._path("blobs", digest)
        with contextlib.suppress(OSError):
            if path.stat().st_size < digests.MIN_BYTES_FOR_MEMO:
                touch(path)

    def _use_of_blob(self, digest: Digest, status: os.stat_result) -> float:
        """Return the time of the last use of a blob."""
        used = status.st_mtime
        if status.st_size >= digests.MIN_BYTES_FOR_MEMO:
            check = self._path("records", _name_of_check(digest, status))
            with contextlib.suppress(OSError):
                used = max(used, check.stat().st_mtime)
        return used

    def keep(self, data: bytes) -> Digest:
        """Write bytes as a blob; OSError if the folder cannot be written."""
        digest = digest_of(data)
        if not self._has(digest):
            self._write(self._path("blobs", digest), data)
        return digest

    def keep_file(self, path: str | os.PathLike[str], *, move: bool = False) -> Digest:
        """Write the contents of a file as a blob.

        Args:
            move: the file is one of `temporary`, and may be renamed.

        Raises:
            InputError, OSError: it cannot be read, or the folder cannot be written.
        """
        digest = digest_of_file(path)
        target = self._path("blobs", digest)
        if self._has(digest):
            return digest
        if move:
            rename(Path(path), target)
            return digest
        with self.temporary() as part:
            with open_input(path) as source, open(part, "xb") as copy:
                copy_file(source.fileno(), copy.fileno())
            if digest_of_file(part) != digest:
                raise InputError(f"'{os.fspath(path)}' changed while it was read")
            rename(part, target)
        return digest

    def _has(self, digest: Digest) -> bool:
        """True if a blob is intact; its eviction is delayed like by a use."""
        blob = self.pin(digest)
        if blob is None:
            return False
        blob.close()
        self._touch_blob(digest)
        return True

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Return the path of a file, removed after the block; OSError for an unwritable folder."""
        path = self._part()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    # -- locks of keys ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def reserved(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Lock a key while its result is computed; other processes that ask for the key wait.

        The operating system holds the lock until the end of the block or the process. Without
        locks, or in a folder that cannot be written, no process waits, and each computes it.

        Args:
            key: the key of a record, which the block should read again.
            on_wait: called before a wait for another process.
        """
        path = self.folder / "writing" / f"{key}.lock"
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                handle = create_with_folder(path, os.O_RDWR | os.O_CREAT)
                stack.callback(os.close, handle)
                if _wait_for_lock(handle, on_wait):
                    stack.callback(path.unlink, missing_ok=True)
            yield

    # -- the whole store --------------------------------------------------------------------------

    def files(self, kind: str) -> Iterator[StoredFile]:
        """Yield the files of ``records``, ``blobs`` or ``writing``."""
        top = self.folder / kind
        folders = top.glob("[0-9a-f][0-9a-f]") if kind in ("records", "blobs") else [top]
        for folder in folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if _FILE_NAMES[kind].fullmatch(entry.name):
                        with contextlib.suppress(OSError):  # another process has removed it
                            yield self._stored_file(kind, entry)

    def _stored_file(self, kind: str, entry: os.DirEntry[str]) -> StoredFile:
        """Return a file with its last use and its size on disk; OSError if it is gone."""
        status = entry.stat(follow_symlinks=False)
        size = -(-status.st_size // _BLOCK_BYTES) * _BLOCK_BYTES
        used = self._use_of_blob(entry.name, status) if kind == "blobs" else status.st_mtime
        return StoredFile(used, size, Path(entry.path))

    def evict(self, written: int, spared: Collection[Digest]) -> None:
        """Evict the least recently used files of a full store; 32 checks per limit written.

        Keys and digests in `spared` stay.
        """
        chance = int.from_bytes(os.urandom(4), "little") / 2**32
        if self.limit and chance * self.limit < max(written, _BLOCK_BYTES) * _CHECKS_PER_LIMIT:
            self.prune(self.limit, remaining_fraction=_SIZE_AFTER_EVICTION, spared=spared)

    def prune(
        self,
        limit: int | None = None,
        age: float | None = None,
        *,
        remaining_fraction: float = 1.0,
        spared: Collection[Digest] = (),
    ) -> tuple[int, int]:
        """Remove the least recently used files.

        Args:
            limit: the bytes that may stay.
            age: the seconds since the last use after which a file is removed.
            remaining_fraction: the fraction of `limit` that stays if there is more.
            spared: keys and digests to keep.

        Returns:
            The numbers of removed files and bytes.
        """
        now = time.time()
        for part in self.files("writing"):
            if now - part.used > _STALE_SECONDS:
                remove_unless_locked(part.path)
        files = sorted((*self.files("records"), *self.files("blobs")))
        total = before = sum(each.size for each in files)
        target = total if limit is None or total <= limit else int(limit * remaining_fraction)
        count = 0
        for each in files:
            is_old = age is not None and now - each.used > age
            if total <= target and not is_old:
                break
            if each.path.name not in spared and remove_unless_locked(each.path):
                count, total = count + 1, total - each.size
        return count, before - total

    def clear(self) -> tuple[int, int]:
        """Remove all records and blobs that are not pinned, and return their number and bytes."""
        return self.prune(age=-math.inf)

    def verify(self) -> Iterator[tuple[Path, bool]]:
        """Read each record and blob, which removes damaged ones.

        Yields:
            The path, and whether the file is intact.
        """
        for each in self.files("blobs"):
            blob = self.pin(each.path.name, rehash=True)
            yield each.path, blob is not None
        for each in self.files("records"):
            yield each.path, self.read(each.path.name) is not None

    def records(self) -> Iterator[tuple[StoredFile, Record]]:
        """Yield the intact records."""
        for each in self.files("records"):
            data = read_file(each.path)
            with contextlib.suppress(ValueError):
                if data is not None:
                    yield each, parse_record(data)

    # -- files ------------------------------------------------------------------------------------

    def _path(self, kind: str, name: Digest) -> Path:
        return self.folder / kind / name[:2] / name

    def _part(self) -> Path:
        return self.folder / "writing" / f"{os.urandom(16).hex()}.part"

    def _write(self, path: Path, data: bytes) -> None:
        part = self._part()
        try:
            with open(part, "xb", buffering=0, opener=create_with_folder) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            rename(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def _remove_damaged(self, path: Path) -> None:
        self._on_damage(f"{path} is damaged, and is removed")
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _name_of_check(digest: Digest, status: os.stat_result) -> Digest:
    """Return the key of the record which says that a blob of this status was intact.

    The number of the device is left out, which machines that share a folder choose themselves.
    """
    _, *identity = identity_of(status)
    return digest_of_fields({"intact": digest, "identity": identity})


def _wait_for_lock(handle: int, on_wait: Callable[[], None]) -> bool:
    """Lock an open file; False if another process has locked it for `_MAX_WAIT_SECONDS`."""
    end, pause = None, 0.005
    while end is None or time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            lock_file(handle, exclusive=True)
            return True
        if end is None:
            on_wait()
            end = time.monotonic() + _MAX_WAIT_SECONDS
        current_work().check()
        time.sleep(pause)
        pause = min(2 * pause, _MAX_POLL_SECONDS)
    return False
