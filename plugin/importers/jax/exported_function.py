"""Reader of functions that ``jax.export`` serialized: a flatbuffer with a StableHLO artifact.

The other fields describe how the arguments of a Python function become the flat ones of the
artifact (trees, shapes, shardings, derivatives). A compiler does not need them.

Source: ``serialization.fbs`` of JAX 0.10, versions 2 to 11 of its serialization.
"""

from __future__ import annotations

import re
from dataclasses import make_dataclass

from ...numerics.element_types import Array
from ..flatbuffer import Reader, Table, unread, vector

_ARTIFACT = re.compile(rb"ML\xefR.StableHLO_v", re.DOTALL)
"""The start of a portable artifact: MLIR bytecode, its version, and its producer."""


_UNREAD = """serialization_version function_name in_tree in_avals out_tree out_avals
nr_devices_short in_shardings out_shardings platforms ordered_effects unordered_effects
disabled_checks"""
ExportedTable = make_dataclass(
    "ExportedTable",
    [*((name, object, unread()) for name in _UNREAD.split()),
     ("mlir_module_serialized", Array, vector("u1"))],
    bases=(Table,),
    frozen=True,
)  # fmt: skip
"""The root table, up to the last field that is read."""


def exported_artifact(data: bytes, file: str) -> bytes | None:
    """Return the StableHLO artifact of an exported function, or None for other files.

    The format has no magic number: a file counts as one if it has an artifact that is not at its
    start.

    Raises:
        InputError: the file is cut, or points outside itself.
    """
    match = _ARTIFACT.search(data)
    if match is None or not match.start():
        return None
    artifact: bytes = Reader(data, file).root(ExportedTable).mlir_module_serialized.tobytes()
    return artifact if _ARTIFACT.match(artifact) else None
