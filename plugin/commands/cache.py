"""``subquant cache``."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..compiler.cache import Cache, default_cache, parse_size
from ..compiler.store import Record, Stored
from ..core.reports import plain_table
from ..errors import InputError, UsageError, counted, printable, quoted
from .console import say, show_progress

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["command"]

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_REMEMBERED = "remembered"

_folder = click.option(
    "--cache",
    "folder",
    metavar="FOLDER",
    help="The cache.  [default: the variable SUBQUANT_CACHE, or ~/.cache/subquant]",
)


@click.group("cache")
def command() -> None:
    """Show what the cache of compilations holds, and remove from it.

    \b
    subquant cache show
    subquant cache prune --size 2GiB --age 30d
    subquant cache verify
    subquant cache clear --yes
    """


@command.command("show")
@_folder
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(folder: str | None, as_json: bool) -> None:
    """Show each entry: what it is, its size, when it was last used, and how often it was found."""
    cache = _open(folder)
    entries = sorted(_entries(cache), key=lambda entry: entry.unused_seconds)
    size = sum(each.size for kind in ("records", "blobs") for each in cache.files(kind))
    if as_json:
        found = {
            "folder": os.fspath(cache.folder),
            "size": size,
            "limit": cache.limit or None,
            "entries": [entry.fields for entry in entries],
        }
        click.echo(json.dumps(found, indent=2))
        return
    shown = [entry for entry in entries if entry.kind != _REMEMBERED]
    if shown:
        _print(shown)
    kinds = Counter(entry.kind for entry in shown)
    listed = ", ".join(counted(count, kind) for kind, count in sorted(kinds.items()))
    limit = f"of {_bytes(cache.limit)}" if cache.limit else "no limit"
    say(f"{listed or 'no entries'}; {_bytes(size)}, {limit}, in {cache.folder}")


@command.command("prune")
@_folder
@click.option("--size", metavar="SIZE", help="What may stay, such as 2GiB.")
@click.option(
    "--age", metavar="AGE", help="Remove what was not used for so long, such as 12h, 30d."
)
def prune(folder: str | None, size: str | None, age: str | None) -> None:
    """Remove what was used the longest time ago.

    By default what is beyond the limit of the cache, the variable SUBQUANT_CACHE_SIZE.
    """
    cache = _open(folder)
    limit = cache.limit or None if size is None and age is None else None
    if size is not None:
        limit = parse_size(size, "--size")
    _say_removed(cache, cache.prune(limit, None if age is None else _parse_age(age)))


@command.command("clear")
@_folder
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(folder: str | None, yes: bool) -> None:
    """Remove all that the cache holds, but what is used at this moment."""
    cache = _open(folder)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked, since the input is no terminal; give --yes")
        click.confirm(f"Remove all of {printable(os.fspath(cache.folder))}?", abort=True, err=True)
    _say_removed(cache, cache.clear())


@command.command("verify")
@_folder
def verify(folder: str | None) -> None:
    """Read all that the cache holds, and remove what is damaged; fail if anything is.

    What cannot be read stays, and is a failure, too.
    """
    cache = _open(folder)
    said = {False: "is damaged, and is removed", None: "cannot be read, and stays"}
    counts = Counter[bool | None]()
    with show_progress(f"verify {cache.folder}") as progress:
        for path, is_whole in cache.verify():
            progress(path.name)
            counts[is_whole] += 1
            if not is_whole:
                say(f"{path} {said[is_whole]}", err=True)
    wrong = [
        f"{counted(counts[is_whole], 'file')} {what}"
        for is_whole, what in ((False, "damaged"), (None, "not to be read"))
        if counts[is_whole]
    ]
    if wrong:
        raise InputError(
            f"of the cache '{cache.folder}' {' and '.join(wrong)}, {counts[True]:,} whole; what "
            "was removed is compiled again when it is needed"
        )
    say(f"{counted(counts[True], 'file')} of {cache.folder}, all whole")


def _open(folder: str | None) -> Cache:
    """The cache; a folder that is not there is an empty one.

    Raises:
        InputError: it is no folder, or cannot be read.
    """
    cache = Cache(folder or default_cache())
    try:
        os.listdir(cache.folder)
    except FileNotFoundError:
        if folder is not None:
            raise InputError(f"cannot read '{folder}': No such file or directory") from None
    except OSError as error:
        raise InputError(f"cannot read '{cache.folder}': {error.strerror or error}") from None
    return cache


def _parse_age(text: str) -> float:
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--age must be an age such as 90m, 12h, 30d or 8w, got {quoted(text)}")
    return float(found.group(1)) * _SECONDS[found.group(2)]


def _say_removed(cache: Cache, removed: tuple[int, int]) -> None:
    count, size = removed
    say(f"removed {counted(count, 'file')} of {cache.folder}, {_bytes(size)}")


# -- entries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A record, and what belongs to it."""

    key: str
    about: dict[str, Any]
    size: int
    unused_seconds: float
    uses: int
    is_whole: bool

    @property
    def kind(self) -> str:
        return str(self.about.get("kind", _REMEMBERED))

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "kind": self.kind,
            **{name: value for name, value in self.about.items() if name != "kind"},
            "size": self.size,
            "unused_seconds": round(self.unused_seconds, 3),
            "uses": self.uses,
            "is_whole": self.is_whole,
        }


def _entries(cache: Cache) -> Iterable[_Entry]:
    sizes = {each.path.name: each.size for each in cache.files("blobs")}
    now = cache.now()

    def entry(stored: Stored, record: Record) -> _Entry:
        parts = [sizes.get(digest) for digest in record.blobs.values()]
        return _Entry(
            stored.path.name,
            record.fields.get("about", {}),
            stored.size + sum(size for size in parts if size is not None),
            max(now - stored.used, 0.0),
            record.uses,
            None not in parts,
        )

    return [entry(stored, record) for stored, record in cache.records()]


_TITLES = ("kind", "name", "options", "size", "last used", "hits")
_NUMBERS = (3, 4, 5)


def _cells(entry: _Entry) -> list[str]:
    """The row of an entry."""
    options = {**entry.about.get("options", {}), **_context(entry)}
    return [
        entry.kind,
        printable(str(entry.about.get("name", ""))),
        printable(" ".join(f"{name}={_shown(value)}" for name, value in options.items())),
        _bytes(entry.size),
        _ago(entry.unused_seconds),
        f"{entry.uses:,}",
    ]


def _table(entries: Iterable[_Entry]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, title in enumerate(_TITLES):
        is_number = number in _NUMBERS
        table.add_column(
            title,
            justify="right" if is_number else "left",
            no_wrap=is_number or title == "kind",
            overflow="fold",
        )
    for entry in entries:
        table.add_row(*map(Text, _cells(entry)), style="" if entry.is_whole else "dim")
    return table


def _context(entry: _Entry) -> dict[str, Any]:
    return {"context": entry.about["context"]} if "context" in entry.about else {}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _print(entries: Sequence[_Entry]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(_table(entries))
        return
    lines = plain_table(_TITLES, [_cells(entry) for entry in entries], _NUMBERS, "─")
    click.echo("\n".join(lines))


def _bytes(size: int) -> str:
    """A size in binary units, of three digits."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.3g} {units[0]}"


def _ago(seconds: float) -> str:
    for unit, length in reversed(_SECONDS.items()):
        if seconds >= 2 * length and unit != "w":
            return f"{int(seconds // length)} {unit}"
    return "now"
