"""Entry points of a loaded executable: the only file that looks up variants of its functions.

`subquant.iree_hooks.entry_names` has their names. An executable of an older version, or of another
compiler, lacks some of them; its functions then run through their plain entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..iree_hooks.control_block import decode_worker_program
from ..iree_hooks.entry_names import (
    ALLOCATE_SUFFIX,
    ASYNC_SUFFIX,
    BOUND_SUFFIX,
    PREPACKED_SUFFIX,
    RECORD_SUFFIX,
    REPLAY_SUFFIX,
    SET_CONTROL_BLOCK,
    SET_LOOP_LIMIT,
    SYNC_SUFFIX,
    WORKER,
    WORKER_PROGRAM_KEY,
)


@dataclass(frozen=True)
class EntryPoints:
    """Entry points of a function on a synchronous device (`subquant.iree_hooks.sync_entries`).

    Args:
        run: takes the arguments, and returns the results.
        allocate: takes the arguments, and returns buffers and then results that view them; None if
            the executable has no such variant.
        bound: takes the arguments and the buffers, and computes the results there.
        record: takes the same, and returns a command buffer that computes them; None as above.
        replay: takes the command buffer, and executes it.
    """

    run: Any
    allocate: Any = None
    bound: Any = None
    record: Any = None
    replay: Any = None


def sync_entries(module: Any, functions: Sequence[Any]) -> list[EntryPoints]:
    """Return the entry points of functions on a device that computes on submission."""
    names = frozenset(module.function_names)

    def variant(function: Any, suffix: str) -> Any:
        name = function.name + suffix
        return module.lookup_function(name) if name in names else None

    suffixes = (ALLOCATE_SUFFIX, BOUND_SUFFIX, RECORD_SUFFIX, REPLAY_SUFFIX)
    return [
        EntryPoints(
            variant(function, SYNC_SUFFIX) or function,
            *(variant(function, suffix) for suffix in suffixes),
        )
        for function in functions
    ]


def async_entries(module: Any) -> dict[str, Any]:
    """Return the asynchronous entry points by the names of their functions."""
    return {
        name.removesuffix(ASYNC_SUFFIX): module.lookup_function(name)
        for name in module.function_names
        if name.endswith(ASYNC_SUFFIX)
    }


def prepacking_functions(
    name: str, counts: Mapping[int, int], lookup: Callable[[str], Any]
) -> tuple[Any, dict[int, tuple[Any, int]]]:
    """Return the variant of a function with prepacked weights, and the functions that prepack.

    Args:
        name: the name of the function.
        counts: the number of tensors that each weight is packed to, by the weight's argument.
        lookup: returns a function by name; it raises a LookupError if there is none.
    """
    prepack = {
        index: (lookup(f"{name}{PREPACKED_SUFFIX}_{index}"), count)
        for index, count in counts.items()
    }
    return lookup(f"{name}{PREPACKED_SUFFIX}"), prepack


def control_block_setter(module: Any) -> Any:
    """Return the function that takes the control block of a worker pool; None if there is none."""
    return _function(module, SET_CONTROL_BLOCK)


def worker_program(module: Any) -> bytes | None:
    """Return the worker program that an executable records; None for no or another version."""
    setter = control_block_setter(module)
    text = None if setter is None else dict(setter.reflection).get(WORKER_PROGRAM_KEY)
    try:
        return None if text is None else decode_worker_program(text)
    except ValueError:
        return None


def worker_entry(module: Any) -> Any:
    """Return the function of the worker program that a worker runs."""
    return module.lookup_function(WORKER)


def loop_limit_setter(module: Any) -> Any:
    """Return the function that takes the loop limit of the device; None if there is none."""
    return _function(module, SET_LOOP_LIMIT)


def _function(module: Any, name: str) -> Any:
    return module.lookup_function(name) if name in module.function_names else None
