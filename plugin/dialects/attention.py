"""``subquant.attention``: the attention of some queries to the keys and values of a cache.

::

    %y = "subquant.attention"(%query, %keys, %values, %position)
           {scale = 0.0625 : f32, window = 512 : i64, softcap = 0.0 : f32}
         : (tensor<?x4x256xf32>, tensor<2048x1x256xf16>, tensor<2048x1x256xf16>, tensor<i32>)
           -> tensor<?x4x256xf32>

The query ``[T, heads, D]`` has a row for each of ``T`` positions that follow each other, of which
``position`` is the first. The caches ``[context, kv_heads, row]`` have one for each position that
there can be, and those of the query are written already. Their rows have the elements of a head in
a format of `subquant.numerics.cache_formats`: ``D`` elements of f32 or f16, or the bytes (i8) of
``int8`` or ``int4``, decoded in the formulas below. Keys and values may be in different formats of
bytes.

The first ``heads / kv_heads`` heads attend the first head of the caches, and so on: for the query
``t`` of head ``h``, with ``k = h / (heads / kv_heads)``::

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
* With ``causal = false`` each query attends all keys of the context, as in an encoder: ``position``
  is not read, there is no window, and ``T`` may be more than the context. The result is 0 where all
  scores are -inf, and not NaN. Without the attribute it is true.

The meaning in NumPy is `subquant.numerics.attention`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..numerics.cache_formats import CACHE_FORMATS, CacheFormat
from ..numerics.element_types import ElementType
from .quant import raising

_OPERANDS = ("query", "keys", "values", "position")


@dataclass(frozen=True)
class Attention:
    """A ``subquant.attention`` as it is read.

    Attributes:
        scale: what scores are multiplied by.
        window: how many keys a query attends at most, less than the context; 0 for all.
        softcap: what scores are bounded by, or 0.
        causal: False where each query attends all keys.
    """

    query: Value
    keys: Value
    values: Value
    position: Value
    scale: float
    window: int
    softcap: float
    causal: bool = True

    @classmethod
    def of(cls, op: Operation) -> Attention:
        """Read an operation that has been verified."""
        scale, window, softcap = (
            op.attributes[name].value for name in ("scale", "window", "softcap")
        )
        query, keys, values, position = op.operands
        limit = int(window) if int(window) < int(keys.type.shape[0]) else 0
        causal = bool(op.attributes["causal"].value) if "causal" in op.attributes else True
        return cls(query, keys, values, position, float(scale), limit, float(softcap), causal)

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
    def head_size(self) -> int:
        """The size of a head, ``D``."""
        return int(self.query.type.shape[2])

    @property
    def key_format(self) -> CacheFormat:
        """The format of the keys."""
        return self._format(self.keys)

    @property
    def value_format(self) -> CacheFormat:
        """The format of the values."""
        return self._format(self.values)

    def _format(self, cache: Value) -> CacheFormat:
        storage = _storage(cache.type, self.head_size)
        assert storage is not None  # it is verified
        return storage

    @property
    def context(self) -> int:
        """The number of keys in the cache."""
        return int(self.keys.type.shape[0])

    @property
    def groups(self) -> int:
        """The number of heads in the caches, ``kv_heads``."""
        return int(self.keys.type.shape[1])


@raising
def check_attention(op: Operation) -> Iterator[str]:
    """The broken rules of a ``subquant.attention``, of its operands and attributes.

    The first broken rule is raised: later ones rely on it.
    """
    yield from _check_types(op)
    yield from _check_sizes(op)
    yield from _check_attributes(op)


def _check_types(op: Operation) -> Iterator[str]:
    """The broken rules of element types and ranks."""
    query, keys, values, position = (operand.type for operand in op.operands)
    for name, type_ in zip(_OPERANDS[:3], (query, keys, values), strict=True):
        if not isinstance(type_, ir.RankedTensorType) or type_.rank != 3:
            yield f"{name} must be a tensor of 3 dimensions, got '{type_}'"
    if not isinstance(query.element_type, ir.F32Type) or _dynamic(query) - {0}:
        yield f"query must have elements of f32, and a dynamic first dimension only, got '{query}'"
    for name, cache in (("keys", keys), ("values", values)):
        is_i8 = cache.element_type == ir.IntegerType.get_signless(8)
        if not (is_i8 or _is_float(cache)) or _dynamic(cache):
            expected = "elements of f16, f32 or i8 and static dimensions"
            yield f"{name} must have {expected}, got '{cache}'"
    if values != keys and (_is_float(keys) or _is_float(values)):
        yield f"values must be of the type of keys, '{keys}', got '{values}'"
    if list(values.shape[:2]) != list(keys.shape[:2]):
        yield f"values must have the positions and heads of keys, '{keys}', got '{values}'"
    if str(position) != "tensor<i32>":
        yield f"position must be 'tensor<i32>', got '{position}'"
    result = op.results[0].type
    if result != query:
        yield f"result must be of the type of the query, '{query}', got '{result}'"


def _check_sizes(op: Operation) -> Iterator[str]:
    """The broken rules of heads, positions, and the rows of a cache."""
    query, keys, values, _ = (operand.type for operand in op.operands)
    (_, heads, head_size), (context, groups, row_length) = query.shape, keys.shape
    if _is_float(keys) and head_size != row_length:
        yield f"query and keys must have rows of one length, got {head_size} and {row_length}"
    for name, cache in (("keys", keys), ("values", values)):
        if _storage(cache, head_size) is None:
            lengths = " or ".join(
                f"{each.row_length(head_size)} bytes ({each.name})"
                for each in CACHE_FORMATS
                if each.is_quantized and each.fits(head_size)
            )
            yield (
                f"{name} of i8 must have rows of {lengths} for heads of {head_size} elements, got "
                f"{cache.shape[2]}"
            )
    if not all((heads, head_size, context, groups)):
        yield "heads, rows and context must have elements, got none"
    if heads % groups:
        yield (
            f"the heads of the query must be a multiple of those of the keys, got {heads} and "
            f"{groups}"
        )


def _check_attributes(op: Operation) -> Iterator[str]:
    """The broken rules of attributes."""
    count, context = (int(op.operands[index].type.shape[0]) for index in (0, 1))
    causal = op.attributes["causal"] if "causal" in op.attributes else ir.BoolAttr.get(True)
    if not isinstance(causal, ir.BoolAttr):
        yield f"attribute 'causal' must be true or false, got '{causal}'"
    if causal.value and count > context:
        yield f"{count} queries are more than the {context} positions of the keys"
    for name in ("scale", "softcap"):
        attribute = op.attributes[name]
        is_f32 = isinstance(attribute, ir.FloatAttr) and isinstance(attribute.type, ir.F32Type)
        if not is_f32 or not math.isfinite(attribute.value):
            yield f"attribute '{name}' must be a finite number of type f32, got '{attribute}'"
    softcap, window = op.attributes["softcap"], op.attributes["window"]
    if softcap.value < 0:
        yield f"attribute 'softcap' must be at least 0, got {softcap.value:g}"
    if not isinstance(window, ir.IntegerAttr) or str(window.type) != "i64":
        yield f"attribute 'window' must be of type i64, got '{window}'"
    if window.value < 0:
        yield f"attribute 'window' must be at least 0, got {window.value}"
    if window.value and not causal.value:
        yield f"attribute 'window' must be 0 where 'causal' is false, got {window.value}"


def _is_float(type_: ir.RankedTensorType) -> bool:
    return isinstance(type_.element_type, (ir.F16Type, ir.F32Type))


def _storage(cache: ir.RankedTensorType, head_size: int) -> CacheFormat | None:
    element = ElementType.of_mlir(str(cache.element_type))
    return CacheFormat.stored_as(element, int(cache.shape[2]), head_size)


def _dynamic(type_: ir.RankedTensorType) -> set[int]:
    return {axis for axis in range(type_.rank) if type_.is_dynamic_dim(axis)}
