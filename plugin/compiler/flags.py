"""Values in flags of ``iree-compile``: ``--flag=VALUE``, ``NAME=VALUE``, ``VALUE,VALUE``, ``A@B``.

The flags do not tell which values are files: a value is a file if a file has its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_VALUE = re.compile(r"(?<=[=,@])[^=,@]+")


def values_of(flags: Sequence[str]) -> list[str]:
    """Return the values in flags, each once."""
    return [*dict.fromkeys(value for flag in flags for value in _VALUE.findall(flag))]


def with_values(flags: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return flags with some values replaced."""
    return [_VALUE.sub(lambda match: values.get(match[0], match[0]), flag) for flag in flags]
