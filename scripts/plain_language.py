#!/usr/bin/env python3
"""Check that prose and names are plain: the ratchet of ``scripts/lint``.

    python scripts/plain_language.py              fails if a count is above its limit
    python scripts/plain_language.py --list       every hit: file:line: kind: text
    python scripts/plain_language.py --lower      lowers the limits to the counts of today

Kinds:

* ``subject``: the first sentence of a docstring, or of the string below a constant or field, begins
  with a word that is no noun ("What", "Which", "Of", "How", ...): it has no subject.
* ``referent``: prose in which a pronoun stands for a noun ("what is", "so many", "of these").
* ``name``: a variable, parameter, function or class whose name says that something was done
  ("given", "found", "made"), and not what it holds.

The limits are in ``scripts/plain_language.json``, for each folder and kind. They only fall: write
the sentence anew with its noun, or give the variable the name of its content.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parent.parent
_LIMITS = Path(__file__).with_suffix(".json")
_FOLDERS = ("plugin", "tests", "scripts", "docs")
KINDS = ("subject", "referent", "name")

_NO_SUBJECT = re.compile(
    r"(as|behind|beside|besides|from|how|of|such|that|those|what|when|where|whether|which|who|whose)\b",
    re.IGNORECASE,
)
_NO_REFERENT = re.compile(
    r"\b(?:what (?:is|are|was|were|it|they|of|a|an|the|has|have|does|do|there|this|that|each|one"
    r"|follows|comes|stands|remains|can|may|to|no|else|others)"
    r"|(?:by|for|in|of|than|with) what|so (?:many|few)|as of|of (?:these|those)|such (?:a|an|that)"
    r"|who (?:asks|calls|compiles|gives|has|puts|reads|takes|waits|wants|writes)|besides)\b",
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(
    r"_*(?:again|ahead|around|asked|begins?|begun|behind|found|given|held|kept|lines|made|near"
    r"|others|parts|pictures|places?|room|said|served|shares|stairs|sums|taken|told|turn(?:s|ed)?"
    r"|wanted)_*"
)
_CODE = re.compile(r"::\n\n(?:[ \t]+.*\n?|\n)+|``[^`]*``|`[^`]*`")


class Hit(NamedTuple):
    """A place whose prose or name is not plain."""

    file: str
    line: int
    kind: str
    text: str


def hits_of_python(text: str, file: str) -> Iterator[Hit]:
    """Yield the hits in Python source; prose is docstrings, strings as statements, and comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(prose := node.value.value, str):
                if _NO_SUBJECT.match(prose.strip()):
                    yield Hit(file, node.lineno, "subject", prose.strip().split("\n")[0])
                yield from _referents(prose, file, node.lineno)
        elif (name := _defined_name(node)) and _SAYS_NOTHING.fullmatch(name):
            yield Hit(file, getattr(node, "lineno", 0), "name", name)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _referents(token.string, file, token.start[0])


def hits_of_markdown(text: str, file: str) -> Iterator[Hit]:
    """Yield the hits in the prose of a Markdown page; fenced blocks are no prose."""
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced:
            yield from _referents(line, file, number)


def _referents(prose: str, file: str, line: int) -> Iterator[Hit]:
    for match in _NO_REFERENT.finditer(_CODE.sub(" x ", prose)):
        yield Hit(file, line, "referent", match.group(0))


def _defined_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else None


def hits_of(folder: str) -> Iterator[Hit]:
    """Yield the hits in the Python files and the Markdown pages of a folder."""
    for path in sorted((_ROOT / folder).rglob("*")):
        name = path.relative_to(_ROOT).as_posix()
        if path.suffix == ".py":
            yield from hits_of_python(path.read_text(), name)
        elif path.suffix == ".md":
            yield from hits_of_markdown(path.read_text(), name)


def main() -> int:
    """Parse the command line; return 1 if a count is above its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every hit")
    parser.add_argument("--lower", action="store_true", help="lower the limits to the counts")
    arguments = parser.parse_args()
    limits: dict[str, dict[str, int]] = json.loads(_LIMITS.read_text())
    is_above = False
    for folder in _FOLDERS:
        hits = list(hits_of(folder))
        counts = Counter(hit.kind for hit in hits)
        for kind in KINDS:
            limit = limits[folder][kind]
            if counts[kind] > limit:
                is_above = True
                print(f"{folder}: {counts[kind]} hits of '{kind}', expected at most {limit}")
            if arguments.list or counts[kind] > limit:
                for hit in hits:
                    if hit.kind == kind:
                        print(f"  {hit.file}:{hit.line}: {kind}: {hit.text}")
            if arguments.lower:
                limits[folder][kind] = min(limit, counts[kind])
    if arguments.lower:
        _LIMITS.write_text(json.dumps(limits, indent=2) + "\n")
    if is_above:
        print("see the examples of plain sentences and names in docs/contributing.md")
    return int(is_above)


if __name__ == "__main__":
    sys.exit(main())
