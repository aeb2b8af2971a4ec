"""Targets of compressed-tensors: which layers a group of settings, or ``ignore``, names.

A target is the name of a layer, ``re:`` with a regular expression that matches the beginning of
the name, or the name of a class. Checkpoints have no classes: each packed layer is a ``Linear``.

Expressions come from a file, and Python's matcher takes exponential time for some of them. So no
group may be repeated, few quantifiers may be unbounded, and names are bounded.

Source: ``compressed_tensors.utils.match``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.strict_json import shown
from ...errors import InputError, Place, UnsupportedError

_CLASS = "Linear"
_PREFIX = "re:"
_MAX_EXPRESSION = 1000
_MAX_NAME = 300
"""The greatest number of characters of a name that an expression is matched with."""
_MAX_UNBOUNDED = 4
"""The greatest number of ``*``, ``+`` and ``{`` in an expression."""
_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Escapes and character classes, whose characters are no quantifiers."""


@dataclass(frozen=True)
class Target:
    """One target."""

    text: str
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, text: str, key: str, location: Place | None) -> Target:
        """Parse a target.

        Raises:
            InputError: the regular expression is not valid.
            UnsupportedError: it is one that may take exponential time.
        """
        if not text.startswith(_PREFIX):
            return cls(text)
        expression = text.removeprefix(_PREFIX)
        simple = _ESCAPED.sub("x", expression)
        unbounded = sum(simple.count(mark) for mark in "*+{")
        if (
            len(expression) > _MAX_EXPRESSION
            or unbounded > _MAX_UNBOUNDED
            or re.search(r"\)[*+{]", simple)
        ):
            raise UnsupportedError(
                f"'{key}' has the regular expression {shown(expression)}, expected at most "
                f"{_MAX_UNBOUNDED} of '*', '+' and '{{', none of them after a group",
                location,
            )
        try:
            return cls(text, re.compile(expression))
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(
                f"'{key}' has the regular expression {shown(expression)}, which is not valid: "
                f"{shown(str(error))[1:-1]}",
                location,
            ) from None

    def names(self, layer: str) -> bool:
        """Return True if the target is the layer's name, or its expression matches the name."""
        if self.pattern is None:
            return self.text == layer
        return len(layer) <= _MAX_NAME and self.pattern.match(layer) is not None

    @property
    def is_class(self) -> bool:
        """Return True for the class of linear layers."""
        return self.text == _CLASS


def priority(targets: Sequence[Target], layer: str) -> tuple[int, str] | None:
    """Return how specific the targets are for a layer, the least being the most specific.

    Returns:
        0 for a name, 1 for an expression and 2 for a class, and the text, as the library sorts
        targets of one kind by their texts; None if no target names the layer.
    """
    ranks = [(0 if t.pattern is None else 1, t.text) for t in targets if t.names(layer)]
    ranks += [(2, t.text) for t in targets if t.is_class]
    return min(ranks, default=None)
