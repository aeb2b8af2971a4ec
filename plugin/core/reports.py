"""Reports of runs: JSON for other programs, which can be merged, and JUnit XML for CI.

**JSON.** A report is one object, in UTF-8, with these fields and those of its kind, which its
module describes::

    {"version": 1, "report": "conformance" or "compile", "summary": {...}, "results": [...]}

``version`` is that of the format of all kinds: it grows when a field is removed or changes its
meaning, and `read_report` refuses another one. A new field changes no version: readers ignore
unknown fields. ``results`` has one object for each case or model, in the order of the input; each
has at least ``name``, ``status``, ``seconds`` and ``message`` (which may be empty).

**JUnit XML** has no specification. This is the form that Jenkins, GitLab and GitHub's actions read
alike: ``testsuites`` of ``testsuite`` of ``testcase``, counts as attributes, times in seconds; a
``failure`` or ``skipped`` inside a case has the reason in its attribute ``message``.

**Exit status**: 0, or 1 if anything in the report failed (`Case.failure`). An error before the run
has its own status.
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
from .files import write_atomically, writing

VERSION = 1
"""The version of JSON reports; reports of other versions are refused."""

_SURROGATES = re.compile("[\ud800-\udfff]")
"""Surrogates, which stand for bytes that are no UTF-8."""


@dataclass(frozen=True)
class Case:
    """A case in JUnit XML.

    Args:
        group: the "class" of the case inside the suite, a dotted name.
        failure: the kind of failure ("wrong"), or None if it has not failed.
        skipped: it did not pass, and this is no failure.
        message: the reason.
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
    """Return a report as JSON text."""
    values = {"version": VERSION, "report": report, "summary": summary, **fields}
    text = json.dumps({**values, "results": results}, indent=1, ensure_ascii=False)
    # File names may have bytes that are no UTF-8; Python writes them in a form that readers refuse.
    return _SURROGATES.sub(lambda half: rf"\\u{ord(half[0]):04x}", text) + "\n"


def read_report(path: str | os.PathLike[str], report: str | None = None) -> dict[str, Any]:
    """Read a report of a kind, or of any; InputError for other files and versions."""
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
    """An untrusted JSON object, whose methods return fields of an expected type.

    Args:
        place: the location of the file.
        subject: the name of the object in errors: "result 3".

    Raises:
        InputError: it is no object; each method raises it for a field of another type.
    """

    def __init__(self, values: Any, place: Place, subject: str) -> None:
        self.place, self.subject = place, subject
        if not isinstance(values, dict):
            self.fail("is no object")
        self.values: Mapping[str, Any] = values

    def fail(self, message: str) -> NoReturn:
        """Raise an InputError about the object."""
        raise InputError(f"{self.subject} {message}", self.place)

    def _typed(self, name: str, kinds: tuple[type, ...], type_text: str) -> Any:
        value = self.values.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.fail(f"has no '{name}' that is {type_text}")
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
        items = self.list(name)
        if not all(isinstance(each, str) for each in items):
            self.fail(f"has a list '{name}' of other things than texts")
        return tuple(items)

    def object(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self.values.get(name), self.place, f"'{name}' of {self.subject}")


def to_junit(title: str, cases: Iterable[Case]) -> bytes:
    """Return cases as JUnit XML, in their order, with a title such as ``subquant conformance``."""
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
            message = printable(case.message, keep="\n\t")  # XML has no control characters
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
    """Yield the lines of a table for a file, without a limit of their length.

    Rich needs 0.6 ms for a row, which it may have to wrap. Columns in `right` are right-aligned;
    `rule` is the character of the line below the titles.
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
    """Raise InputError, before a run that may take hours, if a report cannot be written.

    UsageError: two paths are the same file. None stands for no report.
    """
    seen = set()
    for path in paths:
        if not path:
            continue
        real = os.path.realpath(path)  # a link stays, and its target is written
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
    with writing(path):
        write_atomically(path, data.encode() if isinstance(data, str) else data)
