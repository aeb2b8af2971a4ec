"""Session of a model: tokens in, logits out, with the key-value cache of all earlier tokens."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..errors import UsageError, counted
from ..numerics.element_types import AnyArray, Array
from ..runtime import DeviceArray, Executable
from .configuration import Configuration
from .interface import STEP_TOKENS, Shape, empty_caches
from .prompt_cache import PromptCache

_FIRST_CACHE = 2
"""The index of the first cache among the arguments of a function."""


class Session:
    """Sequence of tokens with its key-value cache, of a program of `subquant.models.module`.

    Args:
        prompt_cache: a file with the keys and values of prompts; they are read, and written, when
            `prompt` appends the first tokens, which raises `PromptCache`'s errors.
    """

    def __init__(
        self,
        executable: Executable,
        configuration: Configuration,
        shape: Shape,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        self._executable = executable
        self._prompt_cache = prompt_cache
        self._configuration = configuration
        self._shape = shape
        self.reset()

    def reset(self) -> None:
        """Forget all tokens."""
        self._position = 0
        self._caches: Sequence[DeviceArray] | None = None

    def rewind(self, position: int) -> None:
        """Remove the tokens from a position on; UsageError if there are not as many."""
        if not 0 <= position <= self._position:
            raise UsageError(
                f"the position is {position:,}, expected 0 to {self._position:,}, as many tokens "
                "as were read"
            )
        self._position = position

    @property
    def position(self) -> int:
        """The number of tokens in the cache."""
        return self._position

    @property
    def context(self) -> int:
        """The maximum number of tokens."""
        return self._shape.context

    @property
    def vocabulary(self) -> int:
        """The number of different tokens, and of logits."""
        return self._configuration.vocabulary

    def prompt(self, tokens: Iterable[int]) -> Array:
        """Append at least one token; return the logits after the last, float32 ``[vocabulary]``.

        Raises:
            UsageError: there is no token, one that the vocabulary does not have, or no room for
                them. Nothing is read then.
        """
        checked = self._checked(tokens)
        if self._prompt_cache is not None and not self._position:
            return self._cached_prompt(self._prompt_cache, checked)
        name = "next" if len(checked) == 1 else "prompt"
        return np.asarray(self._read(name, np.array(checked, np.int32)))

    def _cached_prompt(self, file: PromptCache, tokens: list[int]) -> Array:
        """Read a prompt from the start, with the keys and values of a file, which is written."""
        rows = file.load(tokens)
        if rows:
            self._restore(rows)
        name = "next" if len(tokens) == 1 else "prompt"  # a rest of one token is a piece of prompts
        logits = self._read(name, np.array(tokens[self._position :], np.int32))
        assert self._caches is not None
        file.save(tokens, map(np.asarray, self._caches))
        return np.asarray(logits)

    def _restore(self, rows: Sequence[AnyArray]) -> None:
        """Begin with the first rows of each cache."""
        empty = empty_caches(self._configuration, self._shape.rows, self._shape.kv_cache)
        arrays = [np.array(each) for cache in empty for each in cache]
        for array, own in zip(arrays, rows, strict=True):
            array[: len(own)] = own
        put = self._executable["next"].put
        self._caches = [put(number, array) for number, array in enumerate(arrays, _FIRST_CACHE)]
        self._position = len(rows[0])

    def next(self, token: int) -> Array:
        """Read one token, otherwise as `prompt`."""
        return self.prompt([token])

    def all_logits(self, tokens: Iterable[int]) -> Array:
        """Append tokens, and return the logits after each, ``[T, vocabulary]``."""
        checked = self._checked(tokens)
        size = self._shape.pieces[-1]
        logits = np.empty((len(checked), self._configuration.vocabulary), np.float32)
        for start in range(0, len(checked), size):
            piece = np.zeros(size, np.int32)
            count = min(size, len(checked) - start)
            piece[:count] = checked[start : start + count]
            batch = np.asarray(self._read("all", piece, count))
            logits[start : start + count] = batch[:count]
        return logits

    def verify(self, tokens: Iterable[int]) -> Array:
        """Append up to `STEP_TOKENS` tokens in one call, otherwise as `all_logits`.

        The logits are those of `next` for each token, bit for bit. The model was loaded with the
        steps ``draft``.
        """
        checked = self._checked(tokens)
        if len(checked) > STEP_TOKENS:
            raise UsageError(f"there are {len(checked)} tokens, expected 1 to {STEP_TOKENS}")
        padded = np.zeros(STEP_TOKENS, np.int32)
        padded[: len(checked)] = checked
        return np.asarray(self._read("verify", padded, len(checked)))[: len(checked)]

    def _checked(self, tokens: Iterable[int]) -> list[int]:
        checked = [operator.index(token) for token in tokens]
        size = self._configuration.vocabulary
        if not checked:
            raise UsageError("there are no tokens to read; a prompt has one at least")
        wrong = next((token for token in checked if not 0 <= token < size), None)
        if wrong is not None:
            raise UsageError(f"the token {wrong} is none of the vocabulary's, 0 to {size - 1}")
        if self._position + len(checked) > self.context:
            before = f" after {self._position:,} others" if self._position else ""
            raise UsageError(
                f"{counted(len(checked), 'token')}{before} do not fit into the context of "
                f"{self.context:,}; give a shorter prompt, or a greater context"
            )
        return checked

    def _read(self, name: str, tokens: Array, count: int | None = None) -> DeviceArray:
        """Call a function that appends the first `count` tokens, and return its logits.

        The caches are donated and updated in place. If the call is interrupted (Ctrl-C, say), they
        are lost, and the session is empty.
        """
        position = self._position
        caches = self._take_caches()
        cache_arguments = range(_FIRST_CACHE, _FIRST_CACHE + len(caches))
        result: DeviceArray
        result, *written = self._executable[name].invoke(
            [tokens, np.int32(position), *caches], resident=True, donate=cache_arguments
        )
        self._caches = written
        self._position = position + (len(tokens) if count is None else count)
        return result

    def _take_caches(self) -> Sequence[DeviceArray]:
        """Return the caches for a call that they are donated to, and leave an empty session."""
        caches = self._caches
        if caches is None:
            empty = empty_caches(self._configuration, self._shape.rows, self._shape.kv_cache)
            # Repeated zeros take memory where tokens are written.
            arrays = (each for cache in empty for each in cache)
            put = self._executable["next"].put
            caches = [put(number, array) for number, array in enumerate(arrays, _FIRST_CACHE)]
        self.reset()
        return caches


class SessionBatch:
    """Sessions of a program with the steps ``batch``, whose next tokens are read in one call."""

    def __init__(self, new_session: Callable[[], Session]) -> None:
        self._new_session = new_session
        self._spare: list[Session] = []

    def next(self, sessions: Sequence[Session], tokens: Sequence[int]) -> list[Array]:
        """Read a token in each of 1 to `STEP_TOKENS` sessions; return the logits after each.

        They have the bits of `Session.next`. If the call is interrupted, the sessions are empty.

        Raises:
            UsageError: as `Session.next`; or there are other numbers of sessions or tokens.
        """
        if len(sessions) != len(tokens) or not 1 <= len(sessions) <= STEP_TOKENS:
            raise UsageError(
                f"there are {len(sessions)} sessions and {len(tokens)} tokens, expected as many, "
                f"1 to {STEP_TOKENS}"
            )
        if len(sessions) == 1:
            return [sessions[0].next(tokens[0])]
        checked = [each._checked([token])[0] for each, token in zip(sessions, tokens, strict=True)]
        missing = STEP_TOKENS - len(sessions)
        self._spare += [self._new_session() for _ in range(missing - len(self._spare))]
        every = [*sessions, *self._spare[:missing]]
        positions = [each.position for each in every]
        caches = [cache for each in every for cache in each._take_caches()]
        arguments: list[Array | DeviceArray] = [
            np.array([*checked, *[0] * missing], np.int32),
            np.array(positions, np.int32),
            *caches,
        ]
        logits, *written = (
            every[0]
            ._executable["batch"]
            .invoke(arguments, resident=True, donate=range(_FIRST_CACHE, len(arguments)))
        )
        count = len(caches) // STEP_TOKENS
        for number, (each, position) in enumerate(zip(every, positions, strict=True)):
            each._caches = written[number * count : (number + 1) * count]
            each._position = position + (number < len(sessions))  # spare ones stay empty
        return list(np.asarray(logits)[: len(sessions)])
