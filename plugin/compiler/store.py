"""A folder of records and blobs that processes and machines share: whole, and bounded.

::

    records/ab/KEY      the digest of what follows; JSON; a line break for each time it was used
    blobs/cd/DIGEST     bytes, under their own digest
    writing/NAME.part   what is being written
    locks/KEY.lock      who makes what is not there yet

**Whole.** A file is written in ``writing``, closed, and then renamed, which is atomic on local and
network file systems; it is closed before because a network file system may keep what is written
until then. What is read is compared with its digest. So nothing needs to be forced to the disk:
what a machine that lost its power has left half written is not read. What is damaged counts as
absent, and is removed. Nothing relies on locks, which only spare others the same work.

**Bounded.** A writer looks at the size of the whole with a probability in proportion to what it has
written, once for each `_LOOKS`-th of the limit on average, and then removes what was used the
longest time ago until `_LEFT` of the limit is left. There is no count that could go wrong, and
nobody waits. It grows beyond the limit by one part in eight with a probability of e^-8, 0.03%.

**Used.** The time of a use is the time of change of the file, since reading may leave no time
behind (``relatime``, ``noatime``). It is set to the present by the clock of the file system, as is
that of new files, so that the clocks of the machines do not count. Who writes does not remove what
it writes, however large that is; and nobody removes what is `Held` (where the file system has
locks), since a process has mapped it.

A process that is killed leaves files in ``writing``, which are removed an hour later.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..core.files import open_input, open_whole
from ..errors import InputError, SubquantError
from ..isolation.cancellation import check_cancelled
from .keys import Digest, digest_of, digest_of_file, digest_of_open

__all__ = ["Held", "Record", "Store", "Stored"]

_LOOKS = 32
_LEFT = 7 / 8
_BLOCK = 4096
_CHUNK = 1 << 20
_STALE = 3600.0
"""Seconds after which nobody is writing a file any more."""

_LONGEST_WAIT = 600.0
"""Seconds for which a process waits for another: it may be one that a lost machine left."""

_LONGEST_PAUSE = 0.25

_NAMES = {
    "records": re.compile("[0-9a-f]{64}"),
    "blobs": re.compile("[0-9a-f]{64}"),
    "writing": re.compile(r".*\.part"),
    "locks": re.compile(r".*\.lock"),
}
_USED = b"\n"


@dataclass(frozen=True)
class Record:
    """What is kept under a key.

    Args:
        fields: JSON values.
        blobs: what belongs to it, by the name of its part.
        uses: how often it was found.
    """

    fields: Mapping[str, Any]
    blobs: Mapping[str, Digest] = field(default_factory=dict)
    uses: int = 0


class Stored(NamedTuple):
    """A file of the store.

    Args:
        used: when, by the clock of the file system, in seconds.
        size: in bytes, as much as it takes on a disk.
        path: of the file.
    """

    used: float
    size: int
    path: Path


class Held:
    """A blob that is open, and not removed to make room until it is closed."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Copy the blob, which shares its blocks where the file system can do that.

        Raises:
            OSError: it cannot be written.
        """
        with open_whole(path) as file:
            _copy(self._handle, file.fileno())

    def close(self) -> None:
        """Let it be removed."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Store:
    """The folder.

    Args:
        folder: where it is; made when something is written.
        limit: bytes; 0 for no limit.
        on_damage: called with a line about each file that is damaged, and was removed.
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
        """Return a record if it is there and whole."""
        path = self._path("records", key)
        data = _read(path)
        if data is None:
            return None
        try:
            return _record_of(data)
        except ValueError:
            self._remove_damaged(path)
            return None

    def write(self, key: Digest, fields: Mapping[str, Any], blobs: Mapping[str, Digest]) -> None:
        """Keep a record, in place of what there is under the key.

        Raises:
            OSError: the folder cannot be written.
        """
        text = json.dumps({"fields": fields, "blobs": blobs}).encode()
        self._put(self._path("records", key), digest_of(text).encode() + b"\n" + text)

    def use(self, key: Digest, record: Record) -> None:
        """Note that a record and its blobs are used, if that is possible."""
        with contextlib.suppress(OSError):
            handle = os.open(self._path("records", key), os.O_WRONLY | os.O_APPEND)
            try:
                os.write(handle, _USED)  # which sets the time too
            finally:
                os.close(handle)
        for digest in record.blobs.values():
            self._touch(self._path("blobs", digest))

    def touch(self, key: Digest) -> None:
        """Let a record stay as if it were used."""
        self._touch(self._path("records", key))

    @staticmethod
    def _touch(path: Path) -> None:
        with contextlib.suppress(OSError):
            os.utime(path)  # without a time: that of the file system's clock

    def recall(self, name: str) -> str | None:
        """Return what `remember` was told."""
        record = self.read(name)
        if record is None:
            return None
        self.touch(name)
        return str(record.fields["remembered"])

    def remember(self, name: str, text: str) -> None:
        """Keep a text in a record, if that is possible."""
        with contextlib.suppress(OSError):
            self.write(name, {"remembered": text}, {})

    # -- blobs ------------------------------------------------------------------------------------

    def blob(self, digest: Digest) -> bytes | None:
        """Return a blob if it is there and whole."""
        path = self._path("blobs", digest)
        data = _read(path)
        if data is None or digest_of(data) == digest:
            return data
        self._remove_damaged(path)
        return None

    def hold(self, digest: Digest) -> Held | None:
        """Open a blob if it is there and whole."""
        path = self._path("blobs", digest)
        with contextlib.suppress(SubquantError, OSError), open_input(path) as file:
            _lock(file.fileno(), exclusive=False)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return None  # it was removed meanwhile
            if digest_of_open(file) == digest:
                return Held(path, os.dup(file.fileno()))
            self._remove_damaged(path)
        return None

    def keep(self, data: bytes) -> Digest:
        """Keep bytes.

        Raises:
            OSError: the folder cannot be written.
        """
        digest = digest_of(data)
        path = self._path("blobs", digest)
        if not self._has(digest):
            self._put(path, data)
        return digest

    def keep_file(self, path: str | os.PathLike[str], *, move: bool = False) -> Digest:
        """Keep the bytes of a file.

        Args:
            path: the file.
            move: it is one that `temporary` gave, and may be taken.

        Raises:
            InputError, OSError: it cannot be read, or the folder cannot be written.
        """
        digest = digest_of_file(path)
        target = self._path("blobs", digest)
        if self._has(digest):
            return digest
        if move:
            _rename(Path(path), target)
            return digest
        with self.temporary() as part:
            with open_input(path) as source, open(part, "xb") as made:
                _copy(source.fileno(), made.fileno())
            if digest_of_file(part) != digest:  # it was written to meanwhile
                raise InputError(f"'{os.fspath(path)}' changed while it was read")
            _rename(part, target)
        return digest

    def _has(self, digest: Digest) -> bool:
        """Whether a blob is there and whole, which is then as if it were used."""
        held = self.hold(digest)
        if held is None:
            return False
        self._touch(held.path)
        held.close()
        return True

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Give the path of a file to write, which is removed after the block.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self._part()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    # -- one for all that ask ---------------------------------------------------------------------

    @contextlib.contextmanager
    def reserved(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold a key while what belongs under it is made; others that ask for the key wait.

        The lock is a file, held by the operating system until the block or the process ends. Where
        there are no such locks, or the folder cannot be written, nobody waits, and each makes it.

        Args:
            key: of a record, which should be read again inside the block.
            on_wait: called before waiting for another holder.
        """
        path = self.folder / "locks" / f"{key}.lock"
        handle = self._locked(path, on_wait)
        try:
            yield
        finally:
            if handle is not None:
                path.unlink(missing_ok=True)
                os.close(handle)
                self._remove_stale_locks()

    def _locked(self, path: Path, on_wait: Callable[[], None]) -> int | None:
        """Open and lock a file; None where that is not possible, or takes too long."""
        end, pause = None, 0.005
        while True:
            try:
                handle = _try_to_lock(path)
            except OSError:
                return None
            if handle is not None:
                return handle
            if end is None:
                on_wait()
                end = time.monotonic() + _LONGEST_WAIT
            elif time.monotonic() > end:
                return None
            check_cancelled()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _remove_stale_locks(self) -> None:
        """Remove the locks that processes have left that were killed."""
        for path in (self.folder / "locks").glob("*.lock"):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDWR)
                try:
                    if _lock(handle, exclusive=True):
                        path.unlink()  # whoever waits for it looks whether it is there
                finally:
                    os.close(handle)

    # -- the whole --------------------------------------------------------------------------------

    def files(self, kind: str) -> Iterator[Stored]:
        """The files of ``records``, ``blobs``, ``writing`` or ``locks``."""
        pattern = _NAMES[kind]
        for folder in _folders(self.folder / kind, in_parts=kind in ("records", "blobs")):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if not pattern.fullmatch(entry.name):
                        continue
                    with contextlib.suppress(OSError):  # it is removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        size = -(-status.st_size // _BLOCK) * _BLOCK
                        yield Stored(status.st_mtime, size, Path(entry.path))

    def make_room(self, written: int, spared: Collection[Digest]) -> None:
        """Remove what was not used for long if there is too much, looking at that now and then.

        Args:
            written: bytes that were written since the last call.
            spared: the keys and digests of what is needed now.
        """
        chance = int.from_bytes(os.urandom(4), "little") / 2**32
        if self.limit and chance * self.limit < max(written, _BLOCK) * _LOOKS:
            self.prune(self.limit, left=_LEFT, spared=spared)

    def prune(
        self,
        limit: int | None = None,
        age: float | None = None,
        *,
        left: float = 1.0,
        spared: Collection[Digest] = (),
    ) -> tuple[int, int]:
        """Remove what was used the longest time ago.

        Args:
            limit: the bytes that may stay.
            age: the seconds for which unused things may stay.
            left: the part of `limit` that stays if there is more.
            spared: what is not removed, whatever its age.

        Returns:
            How many files and bytes were removed.
        """
        now = self.now()
        self._remove_stale_parts(now)
        found = sorted((*self.files("records"), *self.files("blobs")))
        total = before = sum(each.size for each in found)
        wanted = total if limit is None or total <= limit else int(limit * left)
        count = 0
        for each in found:
            is_old = age is not None and now - each.used > age
            if total <= wanted and not is_old:
                break
            if each.path.name not in spared and self._remove_unless_held(each):
                count, total = count + 1, total - each.size
        return count, before - total

    def clear(self) -> tuple[int, int]:
        """Remove all that is not held, and return how many files and bytes were removed.

        While somebody holds a key, what is being written stays: it may be for that.
        """
        count = size = 0
        for kind in ("locks", "records", "blobs", "writing"):
            if kind == "writing" and any(self.files("locks")):
                break
            for each in self.files(kind):
                if self._remove_unless_held(each):
                    count, size = count + 1, size + each.size
        return count, size

    def verify(self) -> Iterator[tuple[Path, bool | None]]:
        """Read each record and blob; a damaged one is removed.

        Yields:
            The path, and whether it is whole; None where it cannot be read, and stays.
        """
        for each in itertools.chain(self.files("blobs"), self.files("records")):
            is_whole: bool | None = False
            try:
                is_whole = _is_whole(each.path)
            except (SubquantError, OSError):
                if not os.path.lexists(each.path):  # it was removed meanwhile
                    continue
                is_whole = None if each.path.is_file() else False
            if is_whole is False:
                self._remove_damaged(each.path)
            yield each.path, is_whole

    def records(self) -> Iterator[tuple[Stored, Record]]:
        """The records that are whole."""
        for each in self.files("records"):
            data = _read(each.path)
            with contextlib.suppress(ValueError):
                if data is not None:
                    yield each, _record_of(data)

    def now(self) -> float:
        """The present by the clock of the file system, or of this machine if it is not writable."""
        if not self.folder.is_dir():
            return time.time()
        try:
            with self.temporary() as path:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                return path.stat().st_mtime
        except OSError:
            return time.time()

    # -- files ------------------------------------------------------------------------------------

    def _path(self, kind: str, name: Digest) -> Path:
        return self.folder / kind / name[:2] / name

    def _part(self) -> Path:
        return self.folder / "writing" / f"{os.urandom(16).hex()}.part"

    def _put(self, path: Path, data: bytes) -> None:
        part = self._part()
        try:
            with open(part, "xb", buffering=0, opener=_open) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            _rename(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def _remove_damaged(self, path: Path) -> None:
        self._on_damage(f"{path} is damaged, and is removed")
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _remove_unless_held(self, stored: Stored) -> bool:
        try:
            # Some file systems lock for writing only what is open for it.
            handle = os.open(stored.path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
        except PermissionError:
            handle = -1
        except OSError:
            return False
        try:
            if handle >= 0:
                _lock(handle, exclusive=True)
            stored.path.unlink()
            return True
        except OSError:
            return False
        finally:
            if handle >= 0:
                os.close(handle)

    def _remove_stale_parts(self, now: float) -> None:
        for each in self.files("writing"):
            if now - each.used > _STALE:
                with contextlib.suppress(OSError):
                    each.path.unlink(missing_ok=True)


def _record_of(data: bytes) -> Record:
    """Read a record; ValueError if it is not whole."""
    head, _, rest = data.partition(b"\n")
    text = rest.rstrip(_USED + b"\0")  # zeros are where machines have appended at the same time
    if digest_of(text).encode() != head:
        raise ValueError
    found = json.loads(text)
    return Record(found["fields"], found["blobs"], len(rest) - len(text))


def _is_whole(path: Path) -> bool:
    """Whether a record or a blob is; errors if it cannot be read."""
    if path.parent.parent.name == "blobs":
        return digest_of_file(path) == path.name
    with open_input(path) as file, contextlib.suppress(ValueError):
        _record_of(file.read())
        return True
    return False


def _read(path: Path) -> bytes | None:
    try:
        with open_input(path) as file:
            return file.read()
    except (SubquantError, OSError):
        return None


def _open(path: str | os.PathLike[str], flags: int) -> int:
    """Make a file, and its folder if that is not there: most often it is."""
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def _rename(path: Path, target: Path) -> None:
    try:
        os.replace(path, target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)


def _copy(source: int, target: int) -> None:
    """Copy a file from its beginning."""
    size = os.fstat(source).st_size
    position = 0
    with contextlib.suppress(OSError, AttributeError):  # of another file system, or another system
        while position < size:
            count = os.copy_file_range(source, target, size - position, position)
            if not count:
                break
            position += count
    os.lseek(source, position, os.SEEK_SET)
    os.lseek(target, position, os.SEEK_SET)
    with os.fdopen(os.dup(source), "rb") as rest, os.fdopen(os.dup(target), "wb") as made:
        while data := rest.read(_CHUNK):
            made.write(data)


def _try_to_lock(path: Path) -> int | None:
    """Make, open and lock a file; None while another has locked it.

    Raises:
        OSError: it cannot be made, or there are no locks.
    """
    handle = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        if not _lock(handle, exclusive=True):
            path.unlink(missing_ok=True)
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        # The holder before removed the file: what is locked may no longer be at its path.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _lock(handle: int, *, exclusive: bool) -> bool:
    """Lock an open file, until it is closed; False where there are no locks.

    Raises:
        BlockingIOError: another has locked it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _folders(folder: Path, *, in_parts: bool) -> Iterator[Path]:
    if not in_parts:
        yield folder
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if re.fullmatch("[0-9a-f]{2}", entry.name):
                yield Path(entry.path)
