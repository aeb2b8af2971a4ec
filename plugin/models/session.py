"""A conversation with a model: tokens in, logits out, and the caches of what was read before."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError
from ..numerics.element_types import Array
from ..runtime import Executable
from .configuration import Configuration
from .module import Shape
from .transformer import Cache, empty_caches

__all__ = ["Session"]

_FIRST = 2
"""The number of the first argument that is a cache."""


class Session:
    """Tokens one after the other.

    Args:
        executable: of `subquant.models.module.write_module`.
        configuration: of the model.
        shape: what the program was written for.
    """

    def __init__(self, executable: Executable, configuration: Configuration, shape: Shape) -> None:
        self._executable = executable
        self._configuration = configuration
        self._shape = shape
        self.reset()

    def reset(self) -> None:
        """Forget all tokens."""
        self._position = 0
        self._caches: Sequence[Any] | None = None

    @property
    def position(self) -> int:
        """How many tokens were read."""
        return self._position

    @property
    def context(self) -> int:
        """How many tokens there is room for."""
        return self._shape.context

    def prompt(self, tokens: Iterable[int]) -> Array:
        """Read tokens after those that were read before.

        Args:
            tokens: at least one.

        Returns:
            The logits of what follows the last, float32 ``[vocabulary]``.

        Raises:
            UsageError: there is no token, one that the vocabulary does not have, or no room for
                them. Nothing is read then.
        """
        *before, last = self._checked(tokens)
        for size, piece in _pieces(before, self._shape.pieces):
            self._call(f"read_{size}", piece, size)
        return self._next(last)

    def next(self, token: int) -> Array:
        """Read one token, otherwise as `prompt`."""
        [checked] = self._checked([token])
        return self._next(checked)

    def all_logits(self, tokens: Iterable[int]) -> Array:
        """Read tokens as `prompt`, and return what follows each, ``[T, vocabulary]``."""
        checked = self._checked(tokens)
        logits = np.empty((len(checked), self._configuration.vocabulary), np.float32)
        done = 0
        for size, piece in _pieces(checked, [self._shape.scored]):
            [found] = self._call(f"score_{size}", piece, size)
            logits[done : done + len(piece)] = found[: len(piece)]
            done += len(piece)
        return logits

    def _checked(self, tokens: Iterable[int]) -> list[int]:
        found = [operator.index(token) for token in tokens]
        size = self._configuration.vocabulary
        if not found:
            raise UsageError("there are no tokens to read; a prompt has one at least")
        wrong = next((token for token in found if not 0 <= token < size), None)
        if wrong is not None:
            raise UsageError(f"the token {wrong} is none of the vocabulary's, 0 to {size - 1}")
        if self._position + len(found) > self.context:
            before = f" after {self._position:,} others" if self._position else ""
            raise UsageError(
                f"{len(found):,} tokens{before} do not fit into the context of {self.context:,}; "
                "give a shorter prompt, or a greater context"
            )
        return found

    def _next(self, token: int) -> Array:
        [logits] = self._call("next", [token], 1)
        return logits

    def _call(self, name: str, tokens: Sequence[int], size: int) -> list[Array]:
        """Call a function of `size` tokens with at most as many.

        The caches are given up, and written in place. So what ends a call before it has given them
        back (Ctrl-C, say) ends what was read, too: nothing is remembered of it.
        """
        function = self._executable[name]
        given = np.zeros(size, np.int32)
        given[: len(tokens)] = tokens
        position, caches = self._position, self._caches
        if caches is None:
            empty = [each for pair in self._empty() for each in pair]
            caches = [function.put(number, each) for number, each in enumerate(empty, _FIRST)]
        self.reset()
        places = range(_FIRST, _FIRST + len(caches))
        found = function.invoke([given, np.int32(position), *caches], resident=True, donate=places)
        results = len(found) - len(caches)
        self._caches = found[results:]
        self._position = position + len(tokens)
        return [np.asarray(each) for each in found[:results]]

    def _empty(self) -> list[Cache]:
        return empty_caches(self._configuration, self._shape.rows)


def _pieces(tokens: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """Tokens in pieces, each with the size of the function that reads it.

    Args:
        tokens: all of them.
        sizes: descending. A piece has the greatest of which it fills half, or the least.
    """
    start = 0
    while start < len(tokens):
        left = len(tokens) - start
        size = next((each for each in sizes if 2 * left >= each), sizes[-1])
        yield size, tokens[start : start + size]
        start += size
