"""Text that a model writes, token by token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import UsageError
from ..numerics.element_types import Array
from .drafts import DraftedSession, DraftStatistics
from .sampling import Sampler, Sampling
from .tokenizer import AnyTokenizer

End = Literal["", "end token", "max tokens", "context", "closed"]
"""Reason for the end of a text: the end token, or a limit; empty before the end."""


class TokenReader(Protocol):
    """A `Session`, or an object that reads tokens as one does."""

    @property
    def position(self) -> int:
        """The number of tokens that were read."""
        ...

    @property
    def context(self) -> int:
        """The maximum number of tokens."""
        ...

    def prompt(self, tokens: Sequence[int], /) -> Array:
        """Append tokens; return the logits after the last, ``[vocabulary]``."""
        ...

    def next(self, token: int, /) -> Array:
        """Read one token, otherwise as `prompt`."""
        ...


@dataclass
class Statistics:
    """Counts and times of a generation.

    Attributes:
        tokens: generated tokens, the end token included.
        seconds: seconds from the first generated token to the last.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    end: End = ""

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt that were read in a second."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Tokens that were read and written in a second, after the first."""
        return (self.tokens - 1) / self.seconds if self.seconds and self.tokens > 1 else 0.0


class Generation(Iterator[str]):
    """Iterator over pieces of generated text, each as soon as its UTF-8 characters are complete.

    The prompt is read at the first step. The iteration may stop at any time; the session then has
    read the text so far.

    Args:
        session: the session; it continues after its tokens.
        tokens: the prompt.
        max_tokens: generated tokens, at most; None for as many as the context has room for.

    Raises:
        UsageError: the prompt has no tokens, or `max_tokens` is negative.
    """

    def __init__(
        self,
        session: TokenReader,
        tokenizer: AnyTokenizer,
        tokens: Sequence[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if not tokens:
            raise UsageError("the prompt has no tokens; expected a text")
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens}, expected 0 or more")
        self.statistics = Statistics(prompt_tokens=len(tokens))
        self.tokens: list[int] = []
        """The generated tokens, the end token included."""
        self.drafts: DraftStatistics | None = None
        """Counts of drafts, if the session has any."""
        if isinstance(session, DraftedSession):
            self.drafts = session.statistics
        self._session = session
        self._prompt = tokens
        self._stream = tokenizer.stream()
        self._ends = tokenizer.end_tokens
        self._sampler = Sampler(sampling or Sampling())
        self._max_tokens = max_tokens
        self._logits: Array | None = None

    def __next__(self) -> str:
        while not self.statistics.end:
            text = self.step()
            if text:
                return text
        raise StopIteration

    def close(self) -> None:
        """End the text here."""
        self.statistics.end = self.statistics.end or "closed"

    def step(self) -> str:
        """Read the pending tokens, draw a token, and return the text that it completes.

        It is not called after the end.
        """
        statistics = self.statistics
        start = time.perf_counter()
        if self._logits is None:
            self._logits = self._session.prompt(self._prompt)
            statistics.prompt_seconds = time.perf_counter() - start
        elif self._session.position >= self._session.context:
            return self._end("context")
        else:
            self._logits = self._session.next(self.tokens[-1])
        if self._max_tokens is not None and len(self.tokens) >= self._max_tokens:  # it may be 0
            return self._end("max tokens")
        token = self._sampler.choose(self._logits)
        self.tokens.append(token)
        statistics.tokens += 1
        if statistics.tokens > 1:
            statistics.seconds += time.perf_counter() - start
        if token in self._ends:
            return self._end("end token")
        text = self._stream.put(token)
        if len(self.tokens) == self._max_tokens:
            return text + self._end("max tokens")
        return text

    def _end(self, end: End) -> str:
        self.statistics.end = end
        return self._stream.end()
