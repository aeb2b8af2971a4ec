"""Key-value caches: floats, or integers of 8 or 4 bits with constant scales.

A quantized cache has ``round(x / scale)``, saturated to its type. Integers of 4 bits are two to a
byte, the first one in the low bits, with an offset of 8. Attention reads the cache, so new keys and
values are quantized before.

Source: ONNX Runtime, ``ContribOperators.md``; its CPU for the layout of 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....numerics.array_functions import convert, is_known, put_slice
from ....numerics.element_types import F32, I8, I32, U8, AnyArray, ElementType
from ..call import Call
from ..elementwise.float_operands import element_type, float_input
from .attention import positions


@dataclass(frozen=True, eq=False)
class CacheFormat:
    """The elements of a cache, ``[B, G, T, H]``: floats, or integers of `bits` bits.

    The scales broadcast to the cache. Floats have 0 bits and no scales.
    """

    element: ElementType
    bits: int = 0
    scales: AnyArray = None

    @staticmethod
    def of(call: Call, letter: str, scale: int, groups: int, width: int) -> CacheFormat:
        """Return the format that the attributes of GroupQueryAttention state.

        Args:
            letter: ``k`` or ``v``.
            scale: the number of the input with the scales.
            groups: the number of heads of keys.
            width: the number of elements of a head.
        """
        kind = call.attribute(f"{letter}_quant_type", "NONE")
        bits = call.attribute("kv_cache_bit_width") or 8
        if kind == "NONE":
            return CacheFormat(element_type(call, 0))
        counts = {"PER_TENSOR": 1, "PER_CHANNEL": groups * width}
        if kind not in counts or bits not in (8, 4) or (bits == 4 and width % 2):
            raise call.unsupported(f"has {letter}_quant_type {kind!r} with {bits} bits")
        scales = float_input(call, scale, F32)
        if scales.size != counts[kind]:
            raise call.error(f"has {scales.size} scales in {call.input(scale)}, expected "
                             f"{counts[kind]}")  # fmt: skip
        shape = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, groups, 1, width)
        return CacheFormat(I8 if bits == 8 else U8, bits, scales.reshape(shape))

    def stored(self, x: AnyArray) -> AnyArray:
        """Quantize f32 to the format of the cache."""
        if not self.bits:
            return convert(x, self.element)
        high = (1 << (self.bits - 1)) - 1
        steps = np.clip(np.rint(x / self.scales), np.float32(-high - 1), np.float32(high))
        steps = convert(steps, I32)
        if self.bits == 8:
            return convert(steps, self.element)
        pairs = (steps + np.int32(8)).reshape((*x.shape[:-1], x.shape[-1] // 2, 2))
        return convert(pairs[..., 0] | (pairs[..., 1] << np.int32(4)), self.element)

    def dequantize(self, cache: AnyArray) -> AnyArray:
        """Dequantize a cache to f32."""
        if self.bits == 4:
            packed = convert(cache, I32)
            pairs = np.stack([packed & np.int32(15), packed >> np.int32(4)], axis=-1)
            cache = pairs.reshape((*cache.shape[:-1], 2 * cache.shape[-1])) - np.int32(8)
        real = convert(cache, F32)
        return real if self.scales is None else real * self.scales


def present(
    call: Call, index: int, form: CacheFormat, new: AnyArray, starts: AnyArray, total: int
) -> AnyArray:
    """Return the past and the new keys or values of each sequence, and 0 after them.

    Args:
        index: the number of the input with the past.
        new: f32, ``[B, G, S, H]``.
        starts: the position of the first new key of each sequence.
        total: the number of keys in the longest sequence.
    """
    new = form.stored(new)
    batch, groups, length, width = new.shape
    cache_length = 0
    past = None if call.optional(index) is None else call.array(index)
    if past is not None:
        cache_length = past.shape[2] if past.ndim == 4 else -1
        if tuple(past.shape) != (batch, groups, cache_length, width) or past.dtype != new.dtype:
            raise call.error(f"has a past of {past.dtype.name} and shape {list(past.shape)} for "
                             f"{new.dtype.name} and {list(new.shape)}")  # fmt: skip
    elif total != length:
        raise call.error(f"has no past, and {length} new of {total} keys")
    whole = max(cache_length, total)
    if is_known(starts) and not starts.any():
        return _padded(new, whole)
    if is_known(starts) and ((starts < 0) | (starts > cache_length)).any():
        raise call.error(f"has seqlens_k for {starts.tolist()} past keys of {cache_length}")
    columns = positions(new, whole).reshape((1, 1, whole, 1))
    is_past = columns < starts.reshape((batch, 1, 1, 1))
    cache = np.where(is_past, _padded(past, whole), new.dtype.type(0))
    zero, updated = np.int32(0), []
    for n in range(batch):
        own = cache[n : n + 1], new[n : n + 1]
        start = starts[n] if is_known(starts) else starts[n].reshape(())
        updated.append(put_slice(*own, [zero, zero, start, zero]))
    return updated[0] if batch == 1 else np.concatenate(updated, axis=0)


def _padded(x: AnyArray, cache_length: int) -> AnyArray:
    """Return ``[B, G, T, H]`` with 0 after its keys."""
    missing = cache_length - x.shape[2]
    return np.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0))) if missing else x
