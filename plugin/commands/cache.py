"""``subquant cache``."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ..compiler.cache import Cache, default_cache, parse_size
from ..core.reports import plain_table
from ..errors import InputError, UsageError, counted, printable, quoted
from .console import say, show_progress
from .shared_options import json_option

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_UNNAMED = "remembered"
"""The kind of records without a description, which are not listed."""

_folder = click.option(
    "--cache",
    "folder",
    metavar="FOLDER",
    help="The cache.  [default: the variable SUBQUANT_CACHE, or ~/.cache/subquant]",
)


@click.group("cache")
def command() -> None:
    """List, check and remove entries of the compilation cache.

    \b
    subquant cache show
    subquant cache prune --size 2GiB --age 30d
    subquant cache verify
    subquant cache clear --yes
    """


@command.command("show")
@_folder
@json_option("the entries")
def show(folder: str | None, as_json: bool) -> None:
    """List the entries with size and time since the last use."""
    cache = _open(folder)
    entries = sorted(_entries(cache), key=lambda entry: entry["unused_seconds"])
    size = sum(each.size for kind in ("records", "blobs") for each in cache.files(kind))
    if as_json:
        listing = {
            "folder": os.fspath(cache.folder),
            "size": size,
            "limit": cache.limit or None,
            "entries": entries,
        }
        click.echo(json.dumps(listing, indent=2))
        return
    listed = [entry for entry in entries if entry["kind"] != _UNNAMED]
    if listed:
        _print_table(listed)
    kinds = Counter(entry["kind"] for entry in listed)
    summary = ", ".join(counted(count, kind) for kind, count in sorted(kinds.items()))
    limit = f"of {_bytes(cache.limit)}" if cache.limit else "no limit"
    say(f"{summary or 'no entries'}; {_bytes(size)}, {limit}, in {cache.folder}")


@command.command("prune")
@_folder
@click.option("--size", metavar="SIZE", help="Size to prune to, such as 2GiB.")
@click.option("--age", metavar="AGE", help="Remove entries unused for this time, such as 12h, 30d.")
def prune(folder: str | None, size: str | None, age: str | None) -> None:
    """Remove the least recently used entries.

    By default, down to the limit of the cache (the variable SUBQUANT_CACHE_SIZE).
    """
    cache = _open(folder)
    limit = cache.limit or None if size is None and age is None else None
    if size is not None:
        limit = parse_size(size, "--size")
    seconds = None
    if age is not None:
        match = _AGE.fullmatch(age.strip())
        if match is None:
            raise UsageError(f"--age must be an age such as 90m, 12h, 30d or 8w, got {quoted(age)}")
        seconds = float(match.group(1)) * _SECONDS[match.group(2)]
    _report_removed(cache, cache.prune(limit, seconds))


@command.command("clear")
@_folder
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(folder: str | None, yes: bool) -> None:
    """Remove all entries that are not in use."""
    cache = _open(folder)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "cannot ask for confirmation: standard input is no terminal; add --yes"
            )
        click.confirm(f"Remove all of {printable(os.fspath(cache.folder))}?", abort=True, err=True)
    _report_removed(cache, cache.clear())


@command.command("verify", short_help="Read each entry and remove the damaged ones.")
@_folder
def verify(folder: str | None) -> None:
    """Read each entry and remove the damaged ones; fail if there are any.

    An entry that cannot be read is kept, and is a failure too.
    """
    cache = _open(folder)
    counts = Counter[str]()
    with show_progress(f"verify {cache.folder}") as progress:
        for path, is_whole in cache.verify():
            progress(path.name)
            state = "whole" if is_whole else "unreadable" if path.is_file() else "damaged"
            counts[state] += 1
            if not is_whole:
                action = "is removed" if state == "damaged" else "stays"
                say(f"{path} is {state}, and {action}", err=True)
    whole = counts.pop("whole", 0)
    if counts:
        wrong = " and ".join(f"{counted(count, 'file')} {state}" for state, count in counts.items())
        raise InputError(
            f"the cache '{cache.folder}' has {wrong}, {whole:,} whole; removed entries are "
            "compiled again when needed"
        )
    say(f"{counted(whole, 'file')} of {cache.folder}, all whole")


def _open(folder: str | None) -> Cache:
    """Open the cache, empty if the default folder is missing; InputError if it cannot be read."""
    cache = Cache(folder or default_cache())
    try:
        os.listdir(cache.folder)
    except FileNotFoundError:
        if folder is not None:
            raise InputError(f"cannot read '{folder}': No such file or directory") from None
    except OSError as error:
        raise InputError(f"cannot read '{cache.folder}': {error.strerror or error}") from None
    return cache


def _report_removed(cache: Cache, removed: tuple[int, int]) -> None:
    count, size = removed
    say(f"removed {counted(count, 'file')} of {cache.folder}, {_bytes(size)}")


# -- entries --------------------------------------------------------------------------------------


def _entries(cache: Cache) -> Iterator[dict[str, Any]]:
    """Yield each record as JSON values: its description, and the total size of its blobs."""
    sizes = {each.path.name: each.size for each in cache.files("blobs")}
    now = time.time()
    for stored, record in cache.records():
        blob_sizes = [sizes.get(digest) for digest in record.blobs.values()]
        yield {
            "key": stored.path.name,
            "kind": _UNNAMED,
            **record.fields.get("about", {}),
            "size": stored.size + sum(size for size in blob_sizes if size is not None),
            "unused_seconds": round(max(now - stored.used, 0.0), 3),
            "is_whole": None not in blob_sizes,
        }


_TITLES = ("kind", "name", "options", "size", "last used")
_NUMBERS = (3, 4)
"""The columns of numbers."""


def _cells(entry: Mapping[str, Any]) -> list[str]:
    """Return the table row of an entry."""
    options = dict(entry.get("options", {}))
    if "context" in entry:
        options["context"] = entry["context"]
    if "kv_cache" in entry:
        options["kv_cache"] = entry["kv_cache"]
    return [
        entry["kind"],
        printable(str(entry.get("name", ""))),
        printable(" ".join(f"{name}={_option_text(value)}" for name, value in options.items())),
        _bytes(entry["size"]),
        _ago(entry["unused_seconds"]),
    ]


def _option_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_table(entries: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, rows = Console(highlight=False), [_cells(entry) for entry in entries]
    if not console.is_terminal:
        click.echo("\n".join(plain_table(_TITLES, rows, _NUMBERS, "─")))
        return
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, collapse_padding=True)
    for number, title in enumerate(_TITLES):
        is_number = number in _NUMBERS
        table.add_column(
            title,
            justify="right" if is_number else "left",
            no_wrap=is_number or title == "kind",
            overflow="fold",
        )
    for entry, row in zip(entries, rows, strict=True):
        table.add_row(*map(Text, row), style="" if entry["is_whole"] else "dim")
    console.print(table)


def _bytes(size: int) -> str:
    """Return a size in binary units with three digits."""
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
