"""Reader of functions that ``jax.export`` serialized: a flatbuffer with a StableHLO artifact.

The other fields describe how the arguments of a Python function become the flat ones of the
artifact (trees, shapes, shardings, derivatives). A compiler does not need them.

Source: ``serialization.fbs`` of JAX 0.10, versions 2 to 11 of its serialization.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...numerics.element_types import Array
from ..flatbuffer import Reader, Table, unread, vector

_ARTIFACT = re.compile(rb"ML\xefR.StableHLO_v", re.DOTALL)
"""The start of a portable artifact: MLIR bytecode, its version, and its producer."""


@dataclass(frozen=True)
class ExportedTable(Table):
    """The root table, up to the last field that is read."""

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
    """Return the StableHLO artifact of an exported function, or None for other files.

    The format has no magic number: a file counts as one if it has an artifact that is not at its
    start.

    Raises:
        InputError: the file is cut, or points outside itself.
    """
    match = _ARTIFACT.search(data)
    if match is None or not match.start():
        return None
    artifact = Reader(data, file).root(ExportedTable).mlir_module_serialized.tobytes()
    return artifact if _ARTIFACT.match(artifact) else None
