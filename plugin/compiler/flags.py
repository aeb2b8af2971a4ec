"""What flags of ``iree-compile`` say: ``--flag=VALUE``, ``NAME=VALUE``, ``VALUE,VALUE``, ``A@B``.

Nothing tells which flags name files: a value is a file if there is one of that name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["values_of", "with_values"]

_VALUE = re.compile(r"(?<=[=,@])[^=,@]+")


def values_of(flags: Sequence[str]) -> list[str]:
    """Return what flags say, each value once."""
    return [*dict.fromkeys(value for flag in flags for value in _VALUE.findall(flag))]


def with_values(flags: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return flags that say other values in place of some."""
    return [_VALUE.sub(lambda found: values.get(found[0], found[0]), flag) for flag in flags]
