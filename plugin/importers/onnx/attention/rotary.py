"""Rotary position embeddings: pairs of elements of each head are rotated by angles of positions.

Sources: ONNX, RotaryEmbedding 23; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import numpy as np

from ....numerics.element_types import AnyArray
from ..call import Call, importer
from ..elementwise.float_operands import as_input_type, float_input
from ..movement.gather import rows_of


def rotated(x: AnyArray, cosines: AnyArray, sines: AnyArray, *, is_interleaved: bool) -> AnyArray:
    """Return ``[B, S, N, H]`` with the first elements of each head rotated.

    Args:
        x: the heads.
        cosines, sines: ``[B, S, n]``, or broadcast to it, for the first ``2 * n`` elements.
        is_interleaved: pairs are neighbors; else an element and the one ``n`` after it.
    """
    half = cosines.shape[-1]
    cos, sin = (each.reshape((*each.shape[:-1], 1, half)) for each in (cosines, sines))
    first, rest = x[..., : 2 * half], x[..., 2 * half :]
    if is_interleaved:
        pairs = first.reshape((*first.shape[:-1], half, 2))
        low, high = pairs[..., 0], pairs[..., 1]
    else:
        low, high = first[..., :half], first[..., half:]
    components = [low * cos - high * sin, low * sin + high * cos]
    if is_interleaved:
        result = np.stack(components, axis=-1).reshape(first.shape)
    else:
        result = np.concatenate(components, axis=-1)
    return np.concatenate([result, rest], axis=-1) if rest.shape[-1] else result


def _heads(call: Call, x: AnyArray, heads: int, name: str) -> AnyArray:
    """Return ``[B, S, N * H]`` or ``[B, N, S, H]`` as ``[B, S, N, H]``."""
    shape = tuple(x.shape)
    if len(shape) == 4:
        return x.transpose(0, 2, 1, 3)
    if len(shape) != 3:
        raise call.error(f"has {name} of shape {list(shape)}, expected three or four dimensions")
    if heads < 1 or shape[2] % heads:
        raise call.error(f"has {heads} heads in {list(shape)}")
    return x.reshape((*shape[:2], heads, shape[2] // heads))


def _embedded(
    call: Call, x: AnyArray, cosines: AnyArray, sines: AnyArray, positions: AnyArray
) -> AnyArray:
    """Rotate ``[B, S, N, H]``, and return it in the shape and type of input 0.

    Cosines and sines have a row for each of the positions ``[B, S]``, and are ``[B, S, n]`` without
    positions.
    """
    shape, width, half = call.input(0).shape, x.shape[-1], cosines.shape[-1]
    size = call.attribute("rotary_embedding_dim", 0) or width
    if tuple(cosines.shape) != tuple(sines.shape) or 2 * half != size or size > width:
        raise call.error(
            f"turns {size} of {width} elements with cosines of shape {list(cosines.shape)} and "
            f"sines of shape {list(sines.shape)}"
        )
    if positions is not None:
        if tuple(positions.shape) != tuple(x.shape[:2]):
            raise call.error(f"has position_ids of shape {list(positions.shape)} for {list(shape)}")
        cosines = rows_of(call, cosines, positions, "cos_cache")
        sines = rows_of(call, sines, positions, "sin_cache")
    if tuple(cosines.shape[:-1]) != tuple(x.shape[:2]):
        raise call.error(f"has cos_cache of shape {list(cosines.shape)} for {list(shape)}")
    is_interleaved = bool(call.attribute("interleaved", 0))
    result = rotated(x, cosines, sines, is_interleaved=is_interleaved)
    result = result.reshape(shape) if len(shape) == 3 else result.transpose(0, 2, 1, 3)
    return as_input_type(call, 0, result)


@importer("RotaryEmbedding")
def rotary_embedding(call: Call) -> AnyArray:
    """RotaryEmbedding-23: ``X, cos_cache, sin_cache, position_ids``."""
    x, cosines, sines = (float_input(call, index) for index in range(3))
    is_flat = len(x.shape) == 3
    heads = call.integer("num_heads") if is_flat else call.attribute("num_heads", 0)
    positions = None if call.optional(3) is None else call.array(3)
    return _embedded(call, _heads(call, x, heads, "X"), cosines, sines, positions)


@importer("com.microsoft.RotaryEmbedding")
def contributed_rotary_embedding(call: Call) -> AnyArray:
    """RotaryEmbedding-1: ``input, position_ids, cos_cache, sin_cache``."""
    x, positions = float_input(call, 0), call.array(1)
    cosines, sines = float_input(call, 2), float_input(call, 3)
    if call.attribute("is_packed_batching", 0):
        raise call.unsupported("has packed batches (is_packed_batching = 1)")
    if call.attribute("scale", 1.0) != 1.0:
        raise call.unsupported(f"has the scale {call.attribute('scale')}")
    heads = call.attribute("num_heads", 0) or x.shape[-1] // (2 * cosines.shape[-1])
    x = _heads(call, x, heads, "an input")
    batch, length = x.shape[:2]
    if positions.size == 1:
        positions = positions.reshape(1, 1) + np.arange(length, dtype=np.int64).reshape(1, -1)
        positions = np.broadcast_to(positions, (batch, length))
    return _embedded(call, x, cosines, sines, positions)
