"""Speculative decoding by lookup: a draft of the next tokens is copied from the text so far.

Text often repeats parts of the prompt or of itself. If the last tokens, an n-gram, occurred before,
the tokens after that occurrence are the draft. One call of ``verify`` computes the logits after the
next token and after each token of the draft::

    tokens so far   ... the cat sat on the mat . the cat
    n-gram          "the cat", draft "sat on the mat . the cat"
    verify          cat sat on the  mat .    ...
    sampled         sat on  the sofa             "sat", "on", "the" are accepted

A token of the draft is accepted if it is the one that is sampled. The first one that is not, and
those after it, are removed from the key-value cache. Each row of ``verify`` has the bits of a step
of one token, and each token takes one random number, so the text is the same as without drafts.

A call of ``verify`` takes as long as about two steps, and pays with one accepted token. After a
draft without any, the next one waits for a number of tokens that doubles each time.

Source: Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..numerics.element_types import Array
from .interface import STEP_TOKENS

if TYPE_CHECKING:
    from .session import Session

NGRAM_SIZES = (4, 3, 2)
"""Sizes of the n-grams that are looked up, in this order."""

_MAX_PAUSE = 32
"""Tokens that are read without drafts, at most."""


class NgramTable:
    """Tokens of a text, and the position after the latest occurrence of each n-gram."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            end = len(self._tokens)
            # This token follows the n-grams before it.
            for size in NGRAM_SIZES:
                if size <= end:
                    self._ends[tuple(self._tokens[end - size :])] = end
            self._tokens.append(token)

    def draft(self, count: int) -> list[int]:
        """Return up to `count` tokens that followed the longest n-gram at the end of the text.

        They go on with the draft itself if the occurrence is near the end, as in "ha ha ha". The
        list is empty if no n-gram occurred before.
        """
        tokens = self._tokens
        for size in NGRAM_SIZES:
            start = self._ends.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if start is not None:
                draft: list[int] = []
                for index in range(start, start + count):
                    draft.append(
                        tokens[index] if index < len(tokens) else draft[index - len(tokens)]
                    )
                return draft
        return []


@dataclass
class DraftStatistics:
    """Counts of drafts.

    Attributes:
        calls: calls of ``verify``.
        drafted: tokens of drafts that were verified.
        accepted: tokens of drafts that were sampled.
    """

    calls: int = 0
    drafted: int = 0
    accepted: int = 0


class DraftedSession:
    """Session that verifies drafts, with the logits of a `Session`.

    The session is read through this object only: it may be ahead of it by a part of a draft.

    Args:
        session: a session without tokens, of a model that was loaded with the steps ``draft``.
    """

    def __init__(self, session: Session) -> None:
        self.statistics = DraftStatistics()
        self._session = session
        self._table = NgramTable()
        self._position = session.position
        self._draft: list[int] = []
        self._logits: Sequence[Array] = ()
        self._is_ahead, self._accepted = False, 0
        self._pause, self._next_pause = 0, 1

    @property
    def position(self) -> int:
        """The number of tokens that were read."""
        return self._position

    @property
    def context(self) -> int:
        """The maximum number of tokens."""
        return self._session.context

    def prompt(self, tokens: Sequence[int]) -> Array:
        """Append tokens; logits and errors as `Session.prompt`."""
        self._end_draft()
        logits = self._session.prompt(tokens)
        self._table.extend(tokens)
        self._position += len(tokens)
        return logits

    def next(self, token: int) -> Array:
        """Read one token; logits and errors as `Session.next`, whose bits they have."""
        if self._draft and token == self._draft[0]:
            self._table.extend([token])
            self._position += 1
            self._accepted += 1
            self.statistics.accepted += 1
            _, *self._draft = self._draft
            logits, *self._logits = self._logits
            return logits
        self._end_draft()
        draft = self._new_draft(token)
        if draft:
            logits, *self._logits = self._session.verify([token, *draft])
            self._draft, self._is_ahead = draft, True
            self.statistics.calls += 1
            self.statistics.drafted += len(draft)
        else:
            logits = self._session.next(token)
        self._position += 1
        return logits

    def _new_draft(self, token: int) -> list[int]:
        """Append a token to the table, and return the draft of the tokens after it."""
        self._table.extend([token])
        if self._pause:
            self._pause -= 1
            return []
        return self._table.draft(min(STEP_TOKENS, self.context - self._position) - 1)

    def _end_draft(self) -> None:
        """Remove tokens that were not accepted from the cache, and schedule the next draft."""
        if not self._is_ahead:
            return
        if self._accepted:
            self._pause, self._next_pause = 0, 1
        else:
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, _MAX_PAUSE)
        self._session.rewind(self._position)
        self._draft, self._logits = [], []
        self._accepted, self._is_ahead = 0, False
