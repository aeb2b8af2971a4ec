"""``subquant.attention``: the attention of some queries to the keys and values of a cache.

::

    %y = "subquant.attention"(%query, %keys, %values, %position)
           {scale = 0.0625 : f32, window = 512 : i64, softcap = 0.0 : f32}
         : (tensor<?x4x256xf32>, tensor<2048x1x256xf16>, tensor<2048x1x256xf16>, tensor<i32>)
           -> tensor<?x4x256xf32>

The query ``[T, heads, D]`` has a row for each of ``T`` positions that follow each other, of which
``position`` is the first. The caches ``[context, kv_heads, D]`` have one for each position that
there can be, and those of the query are written already. The first ``heads / kv_heads`` heads
attend the first head of the caches, and so on: for the query ``t`` of head ``h``, with
``k = h / (heads / kv_heads)``::

    first(t) = max(0, position + t - window + 1)        (0 without a window)
    score[j] = scale * sum_d query[t, h, d] * keys[j, k, d]
    score[j] = softcap * tanh(score[j] / softcap)       (if there is a softcap)
    weight[j] = exp(score[j] - max_j score[j])
    result[t, h, d] = sum_j weight[j] * values[j, k, d] / sum_j weight[j]

over the keys ``first(t) <= j <= position + t``. All is computed in f32, the sums in any order.

* ``position`` counts as ``clamp(0, position, context - T)``, as the start of a
  ``stablehlo.dynamic_update_slice`` does, which writes the caches.
* ``window`` is 0 where a query attends all keys before it, and ``softcap`` 0 where scores are as
  they are.
* ``T`` may be dynamic, and must not be more than the context.

The meaning in NumPy is `subquant.numerics.attention`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..errors import VerificationError

_OPERANDS = ("query", "keys", "values", "position")


@dataclass(frozen=True)
class Attention:
    """A ``subquant.attention`` as it is read.

    Attributes:
        scale: what scores are multiplied by.
        window: how many keys a query attends at most, less than the context; 0 for all.
        softcap: what scores are bounded by, or 0.
    """

    query: Value
    keys: Value
    values: Value
    position: Value
    scale: float
    window: int
    softcap: float

    @classmethod
    def of(cls, op: Operation) -> Attention:
        """Read an operation that has been verified."""
        scale, window, softcap = (
            op.attributes[name].value for name in ("scale", "window", "softcap")
        )
        query, keys, values, position = op.operands
        limit = int(window) if int(window) < int(keys.type.shape[0]) else 0
        return cls(query, keys, values, position, float(scale), limit, float(softcap))

    @property
    def count(self) -> int | None:
        """The number of queries, ``T``; None if it is dynamic."""
        type_ = self.query.type
        return None if type_.is_dynamic_dim(0) else int(type_.shape[0])

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return int(self.query.type.shape[1])

    @property
    def depth(self) -> int:
        """The size of a head, ``D``."""
        return int(self.query.type.shape[2])

    @property
    def context(self) -> int:
        """The number of keys in the cache."""
        return int(self.keys.type.shape[0])

    @property
    def groups(self) -> int:
        """The number of heads in the caches, ``kv_heads``."""
        return int(self.keys.type.shape[1])


def check_attention(op: Operation) -> None:
    """Check the operands and attributes of a ``subquant.attention``.

    Raises:
        VerificationError: one is not as the text of this file says.
    """
    query, keys, values, position = (operand.type for operand in op.operands)
    for name, type_ in zip(_OPERANDS[:3], (query, keys, values), strict=True):
        if not isinstance(type_, ir.RankedTensorType) or type_.rank != 3:
            raise VerificationError(f"{name} must be a tensor of 3 dimensions, got '{type_}'", op)
    if not isinstance(query.element_type, ir.F32Type) or _dynamic(query) - {0}:
        raise VerificationError(
            f"query must have elements of f32, and a dynamic first dimension only, got '{query}'",
            op,
        )
    if not isinstance(keys.element_type, (ir.F16Type, ir.F32Type)) or _dynamic(keys):
        raise VerificationError(
            f"keys must have elements of f16 or f32 and static dimensions, got '{keys}'", op
        )
    if values != keys:
        raise VerificationError(f"values must be of the type of keys, '{keys}', got '{values}'", op)
    if str(position) != "tensor<i32>":
        raise VerificationError(f"position must be 'tensor<i32>', got '{position}'", op)
    if op.results[0].type != query:
        raise VerificationError(
            f"result must be of the type of the query, '{query}', got '{op.results[0].type}'", op
        )
    _check_extents(op, [int(n) for n in query.shape], [int(n) for n in keys.shape])
    _check_attributes(op)


def _dynamic(type_: ir.RankedTensorType) -> set[int]:
    return {axis for axis in range(type_.rank) if type_.is_dynamic_dim(axis)}


def _check_extents(op: Operation, query: list[int], keys: list[int]) -> None:
    (count, heads, depth), (context, groups, of_keys) = query, keys
    if depth != of_keys:
        raise VerificationError(
            f"query and keys must have rows of one length, got {depth} and {of_keys}", op
        )
    if not all((heads, depth, context, groups)):
        raise VerificationError("heads, rows and context must have elements, got none", op)
    if heads % groups:
        raise VerificationError(
            f"the heads of the query must be a multiple of those of the keys, got {heads} and "
            f"{groups}",
            op,
        )
    if count > context:
        raise VerificationError(
            f"{count} queries are more than the {context} positions of the keys", op
        )


def _check_attributes(op: Operation) -> None:
    for name in ("scale", "softcap"):
        attribute = op.attributes[name]
        is_f32 = isinstance(attribute, ir.FloatAttr) and isinstance(attribute.type, ir.F32Type)
        if not is_f32 or not math.isfinite(attribute.value):
            raise VerificationError(
                f"attribute '{name}' must be a finite number of type f32, got '{attribute}'", op
            )
    if op.attributes["softcap"].value < 0:
        raise VerificationError(
            f"attribute 'softcap' must be at least 0, got {op.attributes['softcap'].value:g}", op
        )
    window = op.attributes["window"]
    if not isinstance(window, ir.IntegerAttr) or str(window.type) != "i64":
        raise VerificationError(f"attribute 'window' must be of type i64, got '{window}'", op)
    if window.value < 0:
        raise VerificationError(f"attribute 'window' must be at least 0, got {window.value}", op)
