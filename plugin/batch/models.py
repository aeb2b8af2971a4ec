"""Models of a batch, and the names of their outputs.

Arguments are paths, patterns (``models/**/*.tflite``, for shells that do not expand them), and
lists. A list is a response file ``@FILE`` with one path or pattern a line (so names with spaces
need no quotes), or with NUL-terminated names, as ``find -print0`` writes them. A path that exists
is never a pattern or a list, even with brackets or ``@`` in its name.

An output mirrors the path of its model below the base folder: ``a/x.mlir`` becomes
``OUT/a/x.vmfb``, independent of the other models, so that later runs know it. The base is the
current folder; if a model lies outside of it and no base is named, the base is the common folder of
all models.
"""

from __future__ import annotations

import codecs
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..compiler.compile_options import Emit
from ..core.files import read_input
from ..errors import InputError, UsageError, quoted


@dataclass(frozen=True)
class Model:
    """Path of a model; the stem and path of its output in the output folder, with "/"."""

    path: str
    stem: str
    output: str


def is_list(word: str) -> bool:
    """True for ``@FILE``, if there is no file of that very name."""
    return word.startswith("@") and len(word) > 1 and not os.path.exists(word)


def is_pattern(word: str) -> bool:
    """True for a pattern, if there is no file of that very name."""
    return glob.has_magic(word) and not os.path.lexists(word)


def find_models(
    arguments: Iterable[str],
    output: str | os.PathLike[str],
    read_stdin: Callable[[], bytes] | None = None,
) -> list[str]:
    """Return the paths of models without duplicates, in the order of the arguments.

    The matches of a pattern are sorted by name. A pattern matches nothing in the output folder,
    unless the current folder lies there too.

    Args:
        read_stdin: reads the list ``@-``.

    Raises:
        InputError: a list cannot be read.
        UsageError: a pattern matches nothing, an argument is a folder, or a list contains a list.
    """
    models: dict[str, str] = {}
    excluded = os.path.abspath(output)
    if _is_below(os.getcwd(), excluded):
        excluded = ""
    for word in arguments:
        words = _read_list(word[1:], read_stdin) if is_list(word) else [word]
        for path in words:
            for each in _expanded(path, excluded) if is_pattern(path) else [path]:
                if each == "-":
                    raise UsageError("standard input is one model; give it alone")
                if os.path.isdir(each):
                    example = os.path.join(glob.escape(each), "**", "*.mlir")
                    raise UsageError(
                        f"{quoted(each)} is a folder; give a pattern, such as {quoted(example)}"
                    )
                models.setdefault(os.path.abspath(each), each)
    return list(models.values())


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _expanded(pattern: str, excluded: str) -> list[str]:
    """Return the files that a pattern matches outside of a folder; UsageError if there are none."""
    files = [path for path in {*_matches(pattern)} if os.path.isfile(path)]
    if excluded:
        files = [path for path in files if not _is_below(os.path.abspath(path), excluded)]
    if not files:
        raise UsageError(f"no file matches {quoted(pattern)}")
    return sorted(files)


_ANY_FOLDERS = re.compile(r"(?:^|(?<=/))\*\*(?:/+|$)")


def _matches(pattern: str) -> Iterator[str]:
    """Return the matches of `glob.glob`, without its 40 rounds through links to a parent folder."""
    any_folders = _ANY_FOLDERS.search(pattern)
    if any_folders is None:
        yield from glob.iglob(pattern)
        return
    head, tail = pattern[: any_folders.start()], pattern[any_folders.end() :] or "*"
    for start in glob.iglob(head) if head else [""]:
        for folder in _folders_below(start):
            yield from _matches(os.path.join(glob.escape(folder), tail))


def _folders_below(start: str) -> Iterator[str]:
    """Return a folder and all folders below that are not hidden, links included."""
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            status = os.stat(folder or os.curdir)
            identity = status.st_dev, status.st_ino
            if identity in above:
                continue
            with os.scandir(folder or os.curdir) as entries:
                names = [each.name for each in entries if each.is_dir()]
        except OSError:
            continue
        yield folder
        inside = above | {identity}
        waiting += [(os.path.join(folder, n), inside) for n in names if not n.startswith(".")]


def _read_list(file: str, read_stdin: Callable[[], bytes] | None) -> Iterator[str]:
    data = read_stdin() if file == "-" and read_stdin is not None else read_input(file)
    data = data.removeprefix(codecs.BOM_UTF8)  # written by editors on Windows
    is_by_null = b"\0" in data
    for line in data.split(b"\0") if is_by_null else data.splitlines():
        word = os.fsdecode(line if is_by_null else line.strip())
        if not word or (word.startswith("#") and not is_by_null):
            continue
        if is_list(word):
            raise InputError(f"the list '{file}' names another list, {quoted(word)}")
        yield word


def name_outputs(
    paths: Sequence[str],
    output: str | os.PathLike[str],
    emit: Emit,
    base: str | os.PathLike[str] | None = None,
) -> list[Model]:
    """Return the models with the names of their outputs.

    Args:
        emit: the format, which is the suffix of the outputs.
        base: the base folder of the names; by default the current folder, or the common folder of
            all models, if one lies outside of the current folder.

    Raises:
        UsageError: a model lies outside of the base, two would have one output, or an output is a
            model.
    """
    start = os.path.abspath(base) if base is not None else _common_folder(paths)
    sources = {os.path.realpath(path): path for path in paths}
    models: dict[str, Model] = {}
    for path in paths:
        whole = os.path.abspath(path)
        if not _is_below(whole, start):
            raise UsageError(
                f"{quoted(path)} does not lie in the folder {quoted(os.fspath(base or start))}, "
                "from which outputs are named; give another with --base"
            )
        stem = os.path.splitext(os.path.relpath(whole, start))[0].replace(os.sep, "/")
        model = Model(path, stem, f"{stem}.{emit}")
        where = os.path.join(output, model.output)
        other = models.setdefault(model.output, model)
        if other is not model:
            raise UsageError(
                f"{quoted(other.path)} and {quoted(path)} would both become {quoted(where)}; "
                "rename one, or compile it to another folder"
            )
        if os.path.realpath(where) in sources:
            raise UsageError(f"the output {quoted(where)} is a model; give another folder with -o")
    return list(models.values())


def _common_folder(paths: Sequence[str]) -> str:
    """Return the current folder if all models lie there, or their deepest common folder."""
    here = os.path.abspath(os.curdir)
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    if all(_is_below(folder, here) for folder in folders):
        return here
    return os.path.commonpath(folders)
