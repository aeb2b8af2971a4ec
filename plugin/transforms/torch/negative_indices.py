"""Write negative indices as positive ones; torch-mlir 20261001 lowers them to clamped ones.

``x[..., [-1], :]`` would read the first element of the axis. Before::

    %0 = torch.prim.ListConstruct %none, %i : ... -> !torch.list<optional<vtensor>>
    %1 = torch.aten.index.Tensor %x, %0 : ...

After::

    %size = torch.aten.size.int %x, %int1 : ...
    %from_end = torch.aten.add.Scalar %i, %size, %int1 : ...
    %is_negative = torch.aten.lt.Scalar %i, %int0 : ...
    %j = torch.aten.where.self %is_negative, %from_end, %i : ...
    %0 = torch.prim.ListConstruct %none, %j : ...
"""

from __future__ import annotations

import re

from ...core._mlir import Operation, Value, ir
from ...emit.operation import value
from ..base import named, producer_named

_INDEXED = (
    *("torch.aten.index.Tensor", "torch.aten.index.Tensor_hacked_twin"),
    *(
        "torch.aten._unsafe_index.Tensor",
        "torch.aten.index_put",
        "torch.aten.index_put.hacked_twin",
    ),
    "torch.aten._index_put_impl",
)
_LIST = "torch.prim.ListConstruct"
_INDEX = re.compile(r"!torch\.vtensor<(\[.*\]),(?:si64|si32)>")


def normalize_indices(module: Operation) -> None:
    """Add an axis's size to the negative indices of ``index`` and ``index_put``."""
    for op in named(module, _INDEXED):
        indices = producer_named(op.operands[1], _LIST)
        if indices is None or any(",i1>" in str(each.type) for each in indices.operands):
            continue  # a mask counts several axes
        with ir.InsertionPoint(op), op.location:
            normalized = [
                _normalized(op.operands[0], axis, index)
                for axis, index in enumerate(indices.operands)
            ]
            op.operands[1] = value(_LIST, normalized, indices.results[0].type)


def _normalized(indexed: Value, axis: int, index: Value) -> Value:
    """Return an index with the size of the axis added where it is negative."""
    match = _INDEX.fullmatch(str(index.type))
    if match is None:
        return index  # none: the whole axis
    size = value("torch.aten.size.int", [indexed, torch_integer(axis)], torch_type("!torch.int"))
    from_end = value("torch.aten.add.Scalar", [index, size, torch_integer(1)], index.type)
    mask = torch_type(f"!torch.vtensor<{match.group(1)},i1>")
    is_negative = value("torch.aten.lt.Scalar", [index, torch_integer(0)], mask)
    return value("torch.aten.where.self", [is_negative, from_end, index], index.type)


def torch_integer(number: int) -> Value:
    """Return a constant ``!torch.int``."""
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    return value("torch.constant.int", [], torch_type("!torch.int"), {"value": attribute})


def torch_type(text: str) -> ir.Type:
    """Return a type by its text."""
    return ir.Type.parse(text)
