"""The ratchet of plain language: which prose and which names it counts."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return importlib.import_module("plain_language")


RIDDLE = '''"""What is done with the rest."""

LIMIT = 2
"""Of a kernel, at least."""


def told(given):  # so many of these as of the last call
    """Return what is in `what is`, and ``such a``::

        what is = such a
    """
    found, index = given
    return found
'''
PLAIN = '''"""Remainder loops: peeled or masked."""

MIN_MACS = 2
"""The smallest number of multiply-accumulates that pays for a kernel call."""


def sign_offset(operand):  # VPDPBUSD multiplies u8 by s8
    """Return the offset that makes `what is` unsigned."""
    index = operand
    return index
'''


def test_a_riddle_is_counted(checker: ModuleType) -> None:
    hits = list(checker.hits_of_python(RIDDLE, "riddle.py"))
    assert Counter(hit.kind for hit in hits) == {"subject": 2, "referent": 5, "name": 3}
    assert {hit.text for hit in hits if hit.kind == "name"} == {"told", "given", "found"}


def test_plain_source_is_not_counted(checker: ModuleType) -> None:
    assert not list(checker.hits_of_python(PLAIN, "plain.py"))


def test_fenced_blocks_of_pages_are_not_counted(checker: ModuleType) -> None:
    page = "The cache evicts entries.\n```\nwhat is this\n```\nA call, and what is behind it.\n"
    assert [(hit.line, hit.text) for hit in checker.hits_of_markdown(page, "page.md")] == [
        (5, "what is")
    ]


def test_a_count_above_its_limit_fails(
    checker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    for folder in ("plugin", "tests", "scripts", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "plugin" / "riddle.py").write_text(RIDDLE)
    limits = {folder: dict.fromkeys(checker.KINDS, 4) for folder in ("tests", "scripts", "docs")}
    limits["plugin"] = {"subject": 2, "referent": 4, "name": 9}
    (tmp_path / "limits.json").write_text(json.dumps(limits))
    monkeypatch.setattr(checker, "_ROOT", tmp_path)
    monkeypatch.setattr(checker, "_LIMITS", tmp_path / "limits.json")
    monkeypatch.setattr("sys.argv", ["plain_language.py", "--lower"])
    assert checker.main() == 1
    assert "plugin: 5 hits of 'referent', expected at most 4" in capsys.readouterr().out
    lowered = json.loads((tmp_path / "limits.json").read_text())
    assert lowered["plugin"] == {"subject": 2, "referent": 4, "name": 3}
    assert lowered["docs"] == {"subject": 0, "referent": 0, "name": 0}
