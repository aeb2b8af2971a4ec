"""Placements on devices and collective operations, on the one device of an executable.

JAX writes them for a function over a mesh of one device. IREE refuses the placements, and fails
collective operations at run time ("collectives not implemented"). In a group of one device:

* ``custom_call`` of a placement, ``all_gather``, ``all_reduce``, ``all_to_all``,
  ``collective_broadcast``, ``collective_reduce``, ``reduce_scatter``: the operands.
* ``collective_permute``: the operand if device 0 sends to itself, else zeros.
* ``partition_id`` and ``replica_id``: 0.

Source: StableHLO specification.
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import splat
from ...errors import UnsupportedError
from ..base import NoMatch, Pattern, Replacement, is_held_by_async_start

_PLACEMENTS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
"""Custom calls of JAX that place a tensor on devices."""


def _drop_placement(op: Operation) -> Replacement:
    """Replace a placement on devices by its operand."""
    types = [each.type for each in (*op.operands, *op.results)]
    is_placement = op.attributes["call_target_name"].value in _PLACEMENTS
    if not is_placement or len(types) != 2 or types[0] != types[1]:
        return NoMatch("is no placement of a whole tensor")
    return op.operands[0]


def _drop_exchange(op: Operation) -> Replacement:
    """Replace an exchange within groups of one device by its operands."""
    if is_held_by_async_start(op):
        return NoMatch("is the operation that async_start holds")
    groups = np.array(op.attributes["replica_groups"])
    if groups.size and groups.shape[1] > 1:
        raise _several_devices(groups.shape[1], op)
    if [each.type for each in op.operands] != [each.type for each in op.results]:
        return NoMatch("has results of other types than its operands")
    return list(op.operands)


def _permute(op: Operation) -> Replacement:
    """Replace an exchange between pairs of devices by the operand, or zeros."""
    if is_held_by_async_start(op):
        return NoMatch("is the operation that async_start holds")
    pairs = np.array(op.attributes["source_target_pairs"]).reshape(-1, 2)
    if pairs.any():
        raise _several_devices(int(pairs.max()) + 1, op)
    return op.operands[0] if len(pairs) else _zeros(op.results[0].type)


def _index(op: Operation) -> Replacement:
    """Replace the index of this device by 0."""
    return _zeros(op.results[0].type)


def _zeros(type_: ir.Type) -> Value:
    return emit_stablehlo.constant_of(splat(0, type_))


def _several_devices(count: int, op: Operation) -> UnsupportedError:
    return UnsupportedError(
        f"exchanges tensors between {count} devices, and an executable computes on one; export the "
        "program for one device",
        op,
    )


SINGLE_DEVICE: dict[str, Pattern] = {
    "stablehlo.collective_permute": _permute,
    "stablehlo.custom_call": _drop_placement,
    "stablehlo.partition_id": _index,
    "stablehlo.replica_id": _index,
    **dict.fromkeys(
        [
            "stablehlo.all_gather",
            "stablehlo.all_reduce",
            "stablehlo.all_to_all",
            "stablehlo.collective_broadcast",
            "stablehlo.collective_reduce",
            "stablehlo.reduce_scatter",
        ],
        _drop_exchange,
    ),
}
"""Patterns, by operation."""
