"""Check of a new program: calls of several tokens have the bits of single tokens.

Texts with drafts, and texts in batches, are those without because each row of ``verify`` and
``batch`` has the bits of ``next``. The kernels have that by design: sums of a row have one order
for any number of rows. Where IREE's code generation computes a contraction or a norm, it chooses
the order by the shape. So each program is run once before it is cached, and refused if a bit of
logits or caches differs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UnsupportedError
from .interface import STEP_TOKENS
from .session import Session, SessionBatch

_STARTS = (1, 59)
"""Positions of the compared tokens: at the start, and across a block of 64 keys."""
_MAX_START = 1024
"""The edge of a window is tried up to this position; more tokens take seconds to read."""


def check_verify(session: Session, window: int) -> None:
    """Compare ``verify`` with ``next`` at some positions, the edge of a window among them.

    Args:
        session: a session of the program; it is reset.
        window: the keys that a token attends at most; 0 for no such limit.

    Raises:
        UnsupportedError: logits differ.
    """
    starts = [*_STARTS, *([window - STEP_TOKENS // 2] if 64 < window <= _MAX_START else [])]
    rng = np.random.default_rng(0)
    for start in starts:
        if start + STEP_TOKENS > session.context:
            continue
        tokens = rng.integers(0, session.vocabulary, start + STEP_TOKENS).tolist()
        session.reset()
        session.prompt(tokens[:start])
        single = np.array([session.next(token) for token in tokens[start:]])
        session.rewind(start)
        _compare(session.verify(tokens[start:]), single, "drafts")
        # The same keys and values were written if a token after them has the same logits.
        session.rewind(session.position - 1)
        _compare(session.next(tokens[-1])[None], single[-1:], "drafts")


def check_batch(new_session: Callable[[], Session]) -> None:
    """Compare two calls of ``batch`` with ``next``, for sequences of different lengths.

    Args:
        new_session: returns a session of the program.

    Raises:
        UnsupportedError: logits differ.
    """
    rng, sessions = np.random.default_rng(0), [new_session() for _ in range(STEP_TOKENS)]
    context, vocabulary = sessions[0].context, sessions[0].vocabulary
    if context < 3:
        return
    single = new_session()
    lengths = [1 + 8 * number % (context - 2) for number in range(STEP_TOKENS)]
    tokens = rng.integers(0, vocabulary, (STEP_TOKENS, context)).tolist()
    expected = []
    for session, length, own in zip(sessions, lengths, tokens, strict=True):
        session.prompt(own[:length])
        single.reset()
        single.prompt(own[:length])
        expected.append([single.next(token) for token in own[length : length + 2]])
    batch = SessionBatch(new_session)
    for step in range(2):
        pairs = zip(tokens, lengths, strict=True)
        logits = batch.next(sessions, [own[length + step] for own, length in pairs])
        _compare(np.array(logits), np.array([own[step] for own in expected]), "batches")


def _compare(actual: np.ndarray, single: np.ndarray, purpose: str) -> None:
    if np.array_equal(actual.view(np.int32), single.view(np.int32)):
        return
    rows = int((actual != single).any(-1).sum())
    raise UnsupportedError(
        f"the logits of {rows} of {len(single)} tokens that are computed together differ from "
        f"those of single tokens, by up to {np.abs(actual - single).max():.2g}, so {purpose} could "
        "change the text: not all layers have kernels on this device; "
        f"generate without {purpose}"
    )
