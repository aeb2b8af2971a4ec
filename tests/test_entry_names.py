"""Entry points of executables: names that never change, older executables, control block."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from subquant.iree_hooks import entry_names
from subquant.iree_hooks.control_block import (
    CONTROL_BLOCK_WORDS,
    WORDS,
    decode_worker_program,
    encode_worker_program,
)
from subquant.runtime.entry_points import (
    async_entries,
    loop_limit_setter,
    sync_entries,
    worker_program,
)


def module_of(reflections: dict[str, dict[str, str]]) -> Any:
    """A module of IREE's virtual machine with functions, and the reflection of each."""
    functions = {
        name: SimpleNamespace(name=name, reflection=reflection)
        for name, reflection in reflections.items()
    }
    return SimpleNamespace(function_names=[*functions], lookup_function=functions.__getitem__)


def test_the_strings_of_all_versions() -> None:
    """Executables of older versions have these strings; a new meaning needs a new string."""
    assert {name: getattr(entry_names, name) for name in entry_names.__all__} == {
        "ALLOCATE_SUFFIX": "$memory",
        "ASYNC_SUFFIX": "$fenced",
        "BOUND_SUFFIX": "$bound",
        "PREPACKED_SUFFIX": "$laid_out",
        "RECORD_SUFFIX": "$record",
        "REPLAY_SUFFIX": "$replay",
        "SET_CONTROL_BLOCK": "__subquant_team",
        "SET_LOOP_LIMIT": "__subquant_bound_loops",
        "SYNC_SUFFIX": "$unfenced",
        "WORKER": "__subquant_threads",
        "WORKER_PROGRAM_KEY": "subquant.team.2",
        "WORKGROUP": "{}$work",
    }


def test_an_executable_without_variants_runs_its_functions() -> None:
    """IREE's own compiler writes no variants."""
    module = module_of({"f": {}})
    function = module.lookup_function("f")
    (entry,) = sync_entries(module, [function])
    assert entry.run is function
    assert {entry.allocate, entry.bound, entry.record, entry.replay} == {None}
    assert async_entries(module) == {}
    assert worker_program(module) is loop_limit_setter(module) is None


def test_variants_are_found_by_their_suffixes() -> None:
    module = module_of({name: {} for name in ("f", "f$unfenced", "f$memory", "g$fenced")})
    (entry,) = sync_entries(module, [module.lookup_function("f")])
    assert (entry.run.name, entry.allocate.name, entry.bound) == ("f$unfenced", "f$memory", None)
    assert async_entries(module)["g"].name == "g$fenced"


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("subquant.team.2", encode_worker_program(b"program"), b"program"),
        ("subquant.team.2", "damaged", None),
        ("subquant.team.1", encode_worker_program(b"program"), None),
        ("subquant.team.3", encode_worker_program(b"program"), None),
    ],
)
def test_a_worker_program_of_another_version_is_not_used(
    key: str, text: str, expected: bytes | None
) -> None:
    """Its control block has other words: the program runs without a pool."""
    assert worker_program(module_of({"__subquant_team": {key: text}})) == expected


def test_words_of_the_control_block() -> None:
    """They differ, fit the block, and words of different writers are in different cache lines."""
    assert len({*WORDS.values()}) == len(WORDS)
    assert max(WORDS.values()) < CONTROL_BLOCK_WORDS
    job = ("range", "function", "environment", "state", "grid_x", "grid_y")
    assert {WORDS[name] // 8 for name in job} == {0}
    cache_lines = [WORDS[name] // 16 for name in ("range", "done", "busy", "stop")]
    assert len({*cache_lines}) == len(cache_lines)


@pytest.mark.parametrize("text", ["", "x", "eA==", "\N{SNOWMAN}"])
def test_a_damaged_worker_program(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_worker_program(text)
