"""Storage formats of a key-value cache: how a head of a token lies in memory.

A cache is an array ``[context, kv_heads, row]`` whose rows are heads of ``D`` elements:

``f32``, ``f16``
    the elements themselves, rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.option_fields import KvCache
from ..errors import UsageError, expected_name
from .element_types import F16, F32, ElementType


@dataclass(frozen=True)
class CacheFormat:
    """Storage format of keys and values.

    Attributes:
        name: the name, as in the option ``--kv-cache``.
        element: the element type of the cache.
    """

    name: KvCache
    element: ElementType

    @staticmethod
    def named(name: str) -> CacheFormat:
        """Return the format of a name; UsageError if there is none."""
        for each in CACHE_FORMATS:
            if each.name == name:
                return each
        known = expected_name(name, [each.name for each in CACHE_FORMATS])
        raise UsageError(f"the key-value cache is '{name}', {known}")

    def row_length(self, head_size: int) -> int:
        """Return the elements of a row of the cache, for a head of `head_size` elements."""
        return head_size

    def row_bytes(self, head_size: int) -> int:
        """Return the bytes of a row of the cache."""
        return self.row_length(head_size) * self.element.bits // 8


CACHE_FORMATS = (CacheFormat("f32", F32), CacheFormat("f16", F16))
"""All formats."""
