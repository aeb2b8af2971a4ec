"""Read what ``jax.export`` writes: a flatbuffer with a StableHLO portable artifact in it.

The rest of the file says how the arguments of a Python function become the flat ones of the
artifact (trees, shapes, shardings, derivatives), which a compiler does without.

Source: ``serialization.fbs`` of JAX 0.10, versions 2 to 11 of its serialization.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...numerics.element_types import Array
from ..flatbuffer import Reader, Table, unread, vector

__all__ = ["exported_artifact"]

_ARTIFACT = re.compile(rb"ML\xefR.StableHLO_v", re.DOTALL)
"""How an artifact begins: MLIR's bytecode, of a version, and who wrote it."""


@dataclass(frozen=True)
class ExportedTable(Table):
    """The root, as far as it is read."""

    serialization_version: None = unread()
    function_name: None = unread()
    in_tree: None = unread()
    in_avals: None = unread()
    out_tree: None = unread()
    out_avals: None = unread()
    nr_devices_short: None = unread()
    in_shardings: None = unread()
    out_shardings: None = unread()
    platforms: None = unread()
    ordered_effects: None = unread()
    unordered_effects: None = unread()
    disabled_checks: None = unread()
    mlir_module_serialized: Array = vector("u1")


def exported_artifact(data: bytes, file: str = "-") -> bytes | None:
    """Return the artifact in a function that ``jax.export`` serialized, or None if it is none.

    The format has no magic number: what has an artifact somewhere, and not at its start, counts as
    one.

    Raises:
        InputError: the file is cut, or points outside itself.
    """
    found = _ARTIFACT.search(data)
    if found is None or not found.start():
        return None
    artifact = Reader(data, file).root(ExportedTable).mlir_module_serialized.tobytes()
    return artifact if _ARTIFACT.match(artifact) else None
