"""Reports that runs write: JSON that other programs read and that is merged, JUnit XML for CI.

**JSON.** A report is one object, in UTF-8. All have these fields, and each kind has its own beside
them, which its module describes::

    {"version": 1, "report": "conformance" or "compile", "summary": {...}, "results": [...]}

``version`` is that of the form, of all kinds together: it grows when a field goes away or changes
its meaning, and `read_report` refuses another one. A field that is added changes no version: who
reads a report takes the fields that it knows. ``results`` has one object a case or model, in the
order of the input, whatever the order in which they ended; each has at least ``name``, ``status``,
``seconds`` and ``message`` (empty where there is nothing to say).

**JUnit XML** has no specification. This is what Jenkins, GitLab and GitHub's actions read alike: a
``testsuites`` of ``testsuite`` of ``testcase``, counts as attributes, times in seconds; a
``failure`` or ``skipped`` inside a case says why in its attribute ``message``.

**Exit status**: 0, or 1 if anything in the report failed (`Case.failure`); what a command cannot
even begin is an error, with its own.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import InputError, Place, UsageError, printable, quoted
from .files import write_whole

__all__ = [
    "VERSION",
    "Case",
    "Fields",
    "check_places",
    "plain_table",
    "read_report",
    "to_json",
    "to_junit",
    "write_report",
]

VERSION = 1

_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which stand for such bytes."""


@dataclass(frozen=True)
class Case:
    """What JUnit XML says of a case.

    Args:
        suite: the suite that it belongs to.
        group: what it is a case of, inside the suite: a dotted name, its "class".
        name: its own.
        seconds: what it took.
        failure: the kind of failure ("wrong"), or None if it has not failed.
        skipped: true if it did not pass, and that is no failure.
        message: why.
        details: further lines about a failure, such as how to run it again.
    """

    suite: str
    group: str
    name: str
    seconds: float
    failure: str | None = None
    skipped: bool = False
    message: str = ""
    details: str = ""


def to_json(
    report: str,
    summary: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    **fields: Any,
) -> str:
    """Return a report as JSON text.

    Args:
        report: its kind.
        summary: counts.
        results: an object a case, in the order of the input.
        **fields: of this kind.
    """
    values = {"version": VERSION, "report": report, "summary": summary, **fields}
    text = json.dumps({**values, "results": results}, indent=1, ensure_ascii=False)
    # Names of files may have bytes that are no UTF-8, and no reader takes what Python writes then.
    return _HALVES.sub(lambda half: rf"\\u{ord(half[0]):04x}", text) + "\n"


def read_report(path: str | os.PathLike[str], report: str | None = None) -> dict[str, Any]:
    """Read a report.

    Args:
        path: of the JSON file.
        report: the kind that is expected; None for any.

    Raises:
        InputError: it cannot be read, or is no report of that kind and of this version.
    """
    from .strict_json import load_json, shown

    values = load_json(path, "the report")
    place, kind, version = Place(os.fspath(path)), values.get("report"), values.get("version")
    if not isinstance(kind, str) or not isinstance(values.get("results"), list):
        raise InputError("is no report, which has a 'report' and its 'results'", place)
    if version != VERSION:
        raise InputError(f"is a report of version {shown(version)}, expected {VERSION}", place)
    if report is not None and kind != report:
        raise InputError(f"is a report of {quoted(kind)}, expected one of '{report}'", place)
    for number, result in enumerate(values["results"]):
        if not isinstance(result, dict) or not isinstance(result.get("name"), str):
            raise InputError(f"has no name for result {number}", place)
    return values


class Fields:
    """An object of JSON that nobody vouches for: a field has the type that is asked for.

    Args:
        values: the object, if it is one.
        place: the file.
        what: it is, for errors: "result 3".

    Raises:
        InputError: it is no object; and, by each method, a field has another type.
    """

    def __init__(self, values: Any, place: Place, what: str) -> None:
        self.place, self.what = place, what
        if not isinstance(values, dict):
            self.fail("is no object")
        self.values: Mapping[str, Any] = values

    def fail(self, message: str) -> NoReturn:
        """Raise an InputError that says what is wrong with it."""
        raise InputError(f"{self.what} {message}", self.place)

    def _typed(self, name: str, kinds: tuple[type, ...], said: str) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.fail(f"has no '{name}' that is {said}")
        return value

    def text(self, name: str) -> str:
        """Return a text."""
        value: str = self._typed(name, (str,), "a text")
        return value

    def truth(self, name: str) -> bool:
        """Return true or false."""
        value: bool = self._typed(name, (bool,), "true or false")
        return value

    def count(self, name: str) -> int:
        """Return an integer, 0 or more."""
        value: int = self._typed(name, (int,), "an integer")
        if value < 0:
            self.fail(f"has {value} for '{name}', expected 0 or more")
        return value

    def seconds(self, name: str) -> float:
        """Return a time, 0 or more."""
        value = float(self._typed(name, (int, float), "a number"))
        if not 0 <= value < math.inf:
            self.fail(f"has {value} for '{name}', expected 0 or more")
        return value

    def list(self, name: str) -> list[Any]:
        """Return a list."""
        value: list[Any] = self._typed(name, (list,), "a list")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self.list(name)
        if not all(isinstance(each, str) for each in found):
            self.fail(f"has a list '{name}' of other things than texts")
        return tuple(found)

    def object(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self.values.get(name), self.place, f"'{name}' of {self.what}")


def to_junit(title: str, cases: Iterable[Case]) -> bytes:
    """Return cases as JUnit XML: suites and cases in the order in which they are given.

    Args:
        title: of all of it, such as ``subquant conformance``.
        cases: of any suites.
    """
    root = ElementTree.Element("testsuites", name=title)
    by_suite: dict[str, list[Case]] = {}
    for case in cases:
        by_suite.setdefault(case.suite, []).append(case)
    for name, chosen in by_suite.items():
        suite = ElementTree.SubElement(
            root, "testsuite", name=printable(name), tests=str(len(chosen)),
            failures=str(sum(case.failure is not None for case in chosen)), errors="0",
            skipped=str(sum(case.skipped for case in chosen)),
            time=f"{sum(case.seconds for case in chosen):.3f}",
        )  # fmt: skip
        for case in chosen:
            element = ElementTree.SubElement(
                suite, "testcase", classname=printable(case.group), name=printable(case.name),
                time=f"{case.seconds:.3f}",
            )  # fmt: skip
            message = printable(case.message, keep="\n\t")  # what XML does not know, too
            if case.failure is not None:
                child = ElementTree.SubElement(
                    element, "failure", type=case.failure, message=message
                )
                child.text = printable(case.details, keep="\n\t") or None
            elif case.skipped:
                ElementTree.SubElement(element, "skipped", message=message)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def plain_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int], rule: str = ""
) -> Iterator[str]:
    """Return the lines of a table for a file, as long as they need to be.

    Rich needs 0.6 ms for a row, which it may have to wrap.

    Args:
        titles: of the columns.
        rows: of a text for each column.
        right: the columns that stand on the right.
        rule: a character, of which the line below the titles is made.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    for number, row in enumerate([titles, *rows]):
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if column in right else cell + space)
        yield "  ".join(cells).rstrip()
        if rule and not number:
            yield rule * (sum(widths) + 2 * len(widths) - 2)


def check_places(*paths: str | None) -> None:
    """Check, before a run that may take hours, that reports can be written.

    Args:
        *paths: of the files; None for no report.

    Raises:
        InputError: one is a folder, or is to be in what is none, or in one that cannot be written.
        UsageError: two would be one file.
    """
    seen = set()
    for path in paths:
        if not path:
            continue
        real = os.path.realpath(path)  # a link stays, and what it points to is written
        if real in seen and (os.path.isfile(real) or not os.path.exists(real)):
            raise UsageError(f"two reports would be written to '{path}'; give each a file")
        seen.add(real)
        folder = os.path.dirname(real)
        if os.path.isdir(real):
            reason = errno.EISDIR
        elif os.path.exists(real) and not os.path.isfile(real):
            continue  # a device or a pipe, which is written where it is
        elif not os.path.exists(folder):
            reason = errno.ENOENT
        elif not os.path.isdir(folder):
            reason = errno.ENOTDIR
        elif not os.access(folder, os.W_OK | os.X_OK):
            reason = errno.EACCES
        else:
            continue
        raise InputError(f"cannot write '{path}': {os.strerror(reason)}")


def write_report(path: str, data: str | bytes) -> None:
    """Write a report, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        write_whole(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None
