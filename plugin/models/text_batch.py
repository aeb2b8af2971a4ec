"""Continuous batching: texts that are written together, a token of each in one call.

Up to 8 texts are active. A call of `SessionBatch.next` reads the last token of each; a text that
ends makes room for the next prompt. Each text has a key-value cache and random numbers of its own,
and each row of a call has the bits of a call of one token, so the texts are those written alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..numerics.element_types import Array
from .generation import Generation
from .interface import STEP_TOKENS
from .sampling import Sampling

if TYPE_CHECKING:
    from .loading import Model
    from .session import Session


@dataclass
class _BatchedSession:
    """Session whose next logits were computed together with those of others."""

    session: Session
    logits: list[Array] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The number of tokens that the text has read: one less than the session, after a call."""
        return self.session.position - len(self.logits)

    @property
    def context(self) -> int:
        """The maximum number of tokens."""
        return self.session.context

    def prompt(self, tokens: Sequence[int]) -> Array:
        """Append tokens; as `Session.prompt`."""
        return self.session.prompt(tokens)

    def next(self, token: int) -> Array:
        """Return the logits after the token that the batch has read."""
        return self.logits.pop()


@dataclass
class BatchedText:
    """A text of a batch.

    Attributes:
        number: its prompt's number, from 0.
        generation: its tokens and statistics.
        text: the text so far.
    """

    number: int
    generation: Generation
    text: str = ""


class TextBatch(Iterator[BatchedText]):
    """Iterator over texts, each as soon as it ends.

    Args:
        model: a model that was loaded with the steps ``batch``.
        prompts: the tokens of each prompt.
        sampling: options of each text; a seed is that of each.
        max_tokens: the maximum number of tokens of each text.

    Raises:
        UsageError: as `Generation`, and as `Session.prompt`, when a text is started.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.calls = 0
        """Calls that read a token of each active text."""
        self._model, self._batch = model, model.session_batch()
        self._sampling, self._max_tokens = sampling, max_tokens
        self._waiting = deque(enumerate(prompts))
        self._active: list[tuple[BatchedText, _BatchedSession]] = []
        self._ended: deque[BatchedText] = deque()
        self._free: list[Session] = []

    def __next__(self) -> BatchedText:
        while not self._ended:
            while self._waiting and len(self._active) < STEP_TOKENS:
                self._start(*self._waiting.popleft())
            if self._active:
                self._step()
            elif not self._ended:
                raise StopIteration
        return self._ended.popleft()

    def _start(self, number: int, tokens: Sequence[int]) -> None:
        """Read a prompt, in the session of a text that ended if there is one."""
        session = self._free.pop() if self._free else self._model.session()
        session.rewind(0)
        batched = _BatchedSession(session)
        generation = Generation(
            batched,
            self._model.tokenizer,
            tokens,
            sampling=self._sampling,
            max_tokens=self._max_tokens,
        )
        self._advance(BatchedText(number, generation), batched)

    def _step(self) -> None:
        """Read the last token of each active text that has room, and sample the next one."""
        active, self._active = self._active, []
        reading = [each for each in active if each[1].position < each[1].context]
        if reading:
            self.calls += 1
            sessions = [session.session for _, session in reading]
            tokens = [text.generation.tokens[-1] for text, _ in reading]
            for (_, session), logits in zip(
                reading, self._batch.next(sessions, tokens), strict=True
            ):
                session.logits.append(logits)
        for text, session in active:
            self._advance(text, session)

    def _advance(self, text: BatchedText, session: _BatchedSession) -> None:
        """Sample a token, and file the text under those that are active or have ended."""
        text.text += text.generation.step()
        if text.generation.statistics.end:
            self._ended.append(text)
            self._free.append(session.session)
        else:
            self._active.append((text, session))
