"""Rotary embeddings, as ``config.json`` describes them.

transformers 5 writes ``rope_parameters``, an object, or for Gemma 3 one for each type of layers.
Earlier versions write ``rope_theta`` and ``rope_scaling``. Where a file has both, they have to say
the same.

Source: transformers 5.24, ``modeling_rope_utils.py``.
"""

from __future__ import annotations

import math

from ...core.json_settings import Settings, is_positive
from ...core.strict_json import shown
from ...errors import InputError, UnsupportedError
from ..rotary_embedding import Llama3Scaling, LongRope, Rotation, Yarn

_TYPES = ("default", "linear", "yarn", "llama3", "longrope")
"""The types of scaling."""


def read_rotation(
    settings: Settings,
    layer_type: str | None,
    base: float,
    size: int,
    context: int,
    *,
    rotates_partially: bool = False,
) -> Rotation:
    """Read the rotary embeddings of the layers of a type.

    Args:
        layer_type: ``full_attention`` or ``sliding_attention``; None for an architecture whose
            layers all have the same.
        base: the default of ``rope_theta``.
        size: the size of a head.
        context: the model's greatest number of tokens.
        rotates_partially: the architecture may rotate a part of each head.
    """
    rope = settings.part("rope_parameters")
    if rope is not None and layer_type is not None and rope.values():
        by_type = {key: rope.part(key) for key in ("full_attention", "sliding_attention")}
        rope.finish()
        rope = by_type[layer_type]
    old = settings.part("rope_scaling")
    old_base = settings.number("rope_theta") if settings.get("rope_theta") is not None else None
    if rope is None:
        rope = old or Settings({})
    elif old is not None and layer_type != "sliding_attention":
        _check_same(rope, old)
    base = rope.number("rope_theta", old_base or base)
    if old_base is not None and layer_type != "sliding_attention" and old_base != base:
        raise InputError(
            f"'rope_theta' is {old_base:g}, and 'rope_parameters.rope_theta' is {base:g}, which "
            "contradict each other; leave the wrong one out"
        )
    share = _rotary_share(settings, rope)
    if share != 1 and not rotates_partially:
        raise InputError(
            f"'partial_rotary_factor' is {share:g}, expected 1, as the architecture rotates all "
            "elements of a head"
        )
    rotary_size = int(size * share)
    if rotary_size % 2 or not 0 < rotary_size <= size:
        raise InputError(
            f"{rotary_size} elements of heads of {size} are rotated, expected an even number of "
            "them; see 'partial_rotary_factor'"
        )
    kind = _type_of(rope)
    if kind not in _TYPES:
        raise UnsupportedError(
            f"rotary embeddings are scaled by {shown(kind)}, which is not supported; expected one "
            f"of: {', '.join(_TYPES)}"
        )
    key = "original_max_position_embeddings"
    original = settings.count(key, context)
    if settings.get(key) is not None and rope.values().get(key, original) != original:
        raise rope.error(key, f"{original}, as '{key}' of the model is; leave the wrong one out")
    if kind == "longrope":
        original = rope.count(key, settings.get(key), least=2)
        rotation = _long_rope(rope, base, rotary_size, original, context)
    else:
        rotation = _scaled(rope, kind, base, rotary_size, original)
    rope.finish()
    return rotation


def _check_same(rope: Settings, old: Settings) -> None:
    """Refuse a ``rope_scaling`` with another value than ``rope_parameters``."""
    values = {"rope_type": _type_of(rope)} | rope.values()
    for key, value in old.values().items():
        name = "rope_type" if key == "type" else key
        if values.get(name) != value:
            other = f"is {shown(values[name])}" if name in values else "is missing"
            raise InputError(
                f"'rope_scaling.{key}' is {shown(value)}, and 'rope_parameters.{name}' {other}, "
                "which contradict each other; leave the wrong one out"
            )


def _rotary_share(settings: Settings, rope: Settings) -> float:
    """Return the share of the elements of a head that are rotated."""
    key = "partial_rotary_factor"
    share, old_share = (
        None if each.get(key) is None else each.number(key) for each in (rope, settings)
    )
    if share is not None and old_share is not None and share != old_share:
        raise rope.error(key, f"{old_share:g}, as '{key}' of the model is; leave the wrong one out")
    result = next((each for each in (share, old_share) if each is not None), 1.0)
    if result > 1:
        raise InputError(f"'{key}' is {result:g}, expected at most 1")
    return result


def _type_of(rope: Settings) -> str:
    new, old = (rope.get(key) for key in ("rope_type", "type"))
    if new is not None and old is not None and new != old:
        raise rope.error("type", f"{shown(new)}, as 'rope_type' is")
    name = rope.value(str, "rope_type" if new is not None else "type", default="default")
    return "longrope" if name == "su" else name  # the first files of Phi 3


def _long_rope(rope: Settings, base: float, size: int, original: int, context: int) -> Rotation:
    """Return the rotary embeddings of LongRoPE.

    Args:
        context: the model's greatest number of tokens.
    """
    divisors = {}
    for key in ("short_factor", "long_factor"):
        values = rope.get(key)
        is_list = isinstance(values, list) and len(values) == size // 2
        if not is_list or not all(map(is_positive, values)):
            raise rope.error(key, f"{size // 2} numbers above 0")
        divisors[key] = tuple(map(float, values))
    factor = rope.number("factor", context / original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return Rotation(
        base, size, 1.0, "halves", long_rope=LongRope(original, *divisors.values()),
        attention_factor=rope.number("attention_factor", default),
    )  # fmt: skip


def _scaled(rope: Settings, kind: str, base: float, size: int, original: int) -> Rotation:
    """Return the rotary embeddings with a type of scaling.

    Args:
        original: the default of ``original_max_position_embeddings``.
    """
    if kind == "default":
        return Rotation(base, size, 1.0, "halves")
    scale = 1 / rope.number("factor")
    if kind == "linear":
        return Rotation(base, size, scale, "halves")
    original = rope.count("original_max_position_embeddings", original)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.error("low_freq_factor", f"less than 'high_freq_factor', {high:g}")
        return Rotation(base, size, scale, "halves", llama3=Llama3Scaling(original, low, high))
    if base == 1.0:
        raise rope.error("rope_theta", "more than 1, as YaRN divides by its logarithm")
    if not rope.flag("truncate", True):
        raise UnsupportedError("'truncate' of YaRN is false, which is not supported")
    factor = rope.get("attention_factor")
    yarn = Yarn(original, rope.number("beta_fast", Yarn.fast), rope.number("beta_slow", Yarn.slow))
    if yarn.slow >= yarn.fast:
        raise rope.error("beta_slow", f"less than 'beta_fast', {yarn.fast:g}")
    if original < 2 * math.pi * yarn.slow:  # transformers' ramp would fall
        raise InputError(
            f"'original_max_position_embeddings' is {original}, expected at least 2 pi times "
            f"'beta_slow' of YaRN, {yarn.slow:g}"
        )
    attention_factor = None if factor is None else rope.number("attention_factor")
    return Rotation(base, size, scale, "halves", yarn=yarn, attention_factor=attention_factor)
