"""Cost of quantization: the next tokens that a model expects before and after.

Both models read chunks of a text that was not used to calibrate. As in `models/perplexity`, the
second half of each chunk is scored. The model before has the logits ``a``, the model after ``b``.
The token ``t`` comes next::

    perplexity = exp(mean(-log softmax(b)[t]))
    KL divergence = mean(sum_v softmax(a)[v] (log softmax(a)[v] - log softmax(b)[v]))    in nats
    equal top tokens = mean(argmax a = argmax b)

Logits are computed for a slice of the vocabulary at a time, and the sums are updated as in a
softmax that is computed online: memory holds no logits of the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ExecutionError, UsageError
from ..layouts import InferenceTensor, PrimitiveTensor
from ..models.memory import return_free_memory
from ..models.perplexity import mean_perplexity
from ..models.source import ModelSource
from ..models.transformer import normalize, project_to_logits
from ..numerics.element_types import Array
from ..ops.layers import Embedding
from ..weights.theta import Theta
from .block_runner import BlockRunner
from .moments import BlockMoments
from .worker_threads import WorkerThreads

LOGITS_AT_ONCE = 1 << 20
"""Logits that are computed in one step: 4 MiB for each model."""

Block = Mapping[str, InferenceTensor]
"""Tensors of a block in floats, by their names in it."""
OnMoments = Callable[[int, Block, Block, BlockMoments], None]
"""Called with a block's number, its tensors before and after, and the moments before."""


@dataclass(frozen=True)
class ModelCost:
    """Next tokens before and after quantization.

    Attributes:
        tokens: the number of scored tokens.
        kl_divergence: the mean Kullback-Leibler divergence of the distributions, in nats.
        same_top_token: the share of tokens whose likeliest next token is the same.
    """

    tokens: int
    perplexity_before: float
    perplexity_after: float
    kl_divergence: float
    same_top_token: float


def model_cost(
    before: ModelSource,
    after: ModelSource,
    chunks: Sequence[Array],
    on_block: Callable[[int, int], None] = lambda number, count: None,
    on_moments: OnMoments | None = None,
    *,
    threads: int | None = None,
) -> ModelCost:
    """Compare the next tokens that two models expect.

    Args:
        chunks: int32 ``[T]`` each, of 4 tokens or more.
        on_block: called before each block with its number, from 0, and the number of blocks.
        on_moments: called with the moments of the inputs of each block's layers.
        threads: the number of threads, by default one for each core; results do not depend on it.

    Raises:
        UsageError: the models have other numbers of blocks, or other vocabularies.
        ExecutionError: the logits are no numbers.
    """
    check_same_shape(before, after)
    with WorkerThreads(threads) as workers:
        runners = [BlockRunner(each, chunks, workers) for each in (before, after)]
        return_free_memory()  # of the quantization
        states = []
        for source, runner in zip((before, after), runners, strict=True):
            states.append(runner.embeddings())
            source.release_pages()
        for number in range(before.configuration.blocks):
            on_block(number, before.configuration.blocks)
            blocks = [each.weights(number) for each in runners]
            if on_moments is not None:
                moments = runners[0].moments(number, blocks[0], states[0])
                on_moments(number, blocks[0], blocks[1], moments)
            states = [
                runner.run(number, block, each)
                for runner, block, each in zip(runners, blocks, states, strict=True)
            ]
            before.release_pages()
            after.release_pages()
        return next_token_cost((before, after), runners, chunks, states, workers)


def next_token_cost(
    sources: Sequence[ModelSource],
    runners: Sequence[BlockRunner],
    chunks: Sequence[Array],
    states: Sequence[Sequence[Array]],
    workers: WorkerThreads,
) -> ModelCost:
    """Compare the next tokens by the hidden states of two models after their last blocks.

    Args:
        sources, runners: those of the model before, and of the model after.
        chunks: int32 ``[T]`` each.
        states: for each model the hidden states of each chunk, float32 ``[T, width]``.
    """
    statistics = NextTokens(np.concatenate([chunk[len(chunk) // 2 + 1 :] for chunk in chunks]))
    scored = [np.concatenate([state[len(state) // 2 : -1] for state in each]) for each in states]
    layers = [OutputLayer(*each) for each in zip(runners, scored, strict=True)]
    vocabulary = sources[0].configuration.vocabulary
    step = max(1, LOGITS_AT_ONCE // len(scored[0]))
    for start in range(0, vocabulary, step):
        tokens = np.arange(start, min(start + step, vocabulary), dtype=np.int32)
        first, second = workers.map(lambda layer: layer.logits(tokens), layers)  # noqa: B023
        statistics.add(start, first, second)
        for source in sources:
            source.release_pages()
    return statistics.cost()


def check_same_shape(before: ModelSource, after: ModelSource) -> None:
    """Refuse models of another number of blocks, or another vocabulary; UsageError."""
    for name in ("blocks", "vocabulary"):
        first, second = (getattr(each.configuration, name) for each in (before, after))
        if first != second:
            what = "blocks" if name == "blocks" else "tokens in their vocabularies"
            raise UsageError(
                f"'{before.path}' and '{after.path}' are no quantizations of one model: they have "
                f"{first:,} and {second:,} {what}"
            )


class OutputLayer:
    """The output layer of a model, for the hidden states ``[T, width]`` after the last block.

    Attributes:
        positions: ``T``.
    """

    def __init__(self, runner: BlockRunner, states: Array) -> None:
        self._configuration = runner.configuration
        self.positions = len(states)
        self._normed = normalize(self._configuration, runner.floats("output_norm"), states)
        tied = self._configuration.tied
        self._layer = runner.stored("token_embd" if tied else "output").flatten()
        self._rows = Embedding(Theta(self._layer))

    def logits(self, tokens: Array) -> Array:
        """Return the logits of some tokens, ``[T, tokens]``."""
        tensors: dict[str, InferenceTensor] = {
            **self._layer,
            "weight": PrimitiveTensor(np.asarray(self._rows(tokens), np.float32)),
        }
        bias = self._layer.get("bias")
        if isinstance(bias, PrimitiveTensor):
            tensors["bias"] = PrimitiveTensor(bias.array[tokens])
        return np.asarray(project_to_logits(self._configuration, Theta(tensors), self._normed))


class NextTokens:
    """Statistics of two models' logits, which come by slices of the vocabulary.

    Args:
        targets: the token that comes next, ``[T]``.
    """

    def __init__(self, targets: Array) -> None:
        self._targets = targets
        count = len(targets)
        self._before, self._after = _OnlineSoftmax(targets), _OnlineSoftmax(targets)
        self._difference = np.zeros(count)  # sum exp(a - maximum of a) (a - b)

    def add(self, start: int, before: Array, after: Array) -> None:
        """Add the logits ``[T, tokens]`` of tokens from the number `start` on."""
        scale, exponentials = self._before.add(start, before)
        self._after.add(start, after)
        products = exponentials * (before - after)
        self._difference = self._difference * scale + products.sum(-1, dtype=np.float64)

    def cost(self) -> ModelCost:
        """Return the result, after all logits.

        Raises:
            ExecutionError: some of them are no numbers.
        """
        before, after = self._before, self._after
        for each in (before, after):
            if not np.isfinite(each.log_sum()).all():
                raise ExecutionError("some of the model's logits are not finite")
        divergence = self._difference / before.sums + after.log_sum() - before.log_sum()
        return ModelCost(
            tokens=len(self._targets),
            perplexity_before=mean_perplexity(before.surprises().tolist())[0],
            perplexity_after=mean_perplexity(after.surprises().tolist())[0],
            kl_divergence=float(np.maximum(divergence, 0).mean()),
            same_top_token=float((before.top == after.top).mean()),
        )


class _OnlineSoftmax:
    """Maximum, sum of exponentials, and likeliest token of logits that come slice by slice."""

    def __init__(self, targets: Array) -> None:
        count = len(targets)
        self._targets = targets
        self._maximum = np.full(count, -np.inf)
        self._of_target = np.zeros(count)
        self.sums = np.zeros(count)
        self.top = np.zeros(count, np.int64)

    def add(self, start: int, logits: Array) -> tuple[Array, Array]:
        """Add logits; return the factor of earlier sums, and the exponentials."""
        likeliest = logits.argmax(-1)
        rows = np.arange(len(logits))
        greatest = logits[rows, likeliest].astype(np.float64)
        is_greater = greatest > self._maximum
        self.top = np.where(is_greater, likeliest + start, self.top)
        maximum = np.maximum(greatest, self._maximum)
        scale: Array = np.exp(self._maximum - maximum)
        exponentials = np.exp(logits - maximum[:, None].astype(np.float32))
        self.sums = self.sums * scale + exponentials.sum(-1, dtype=np.float64)
        self._maximum = maximum
        inside = (self._targets >= start) & (self._targets < start + logits.shape[1])
        self._of_target[inside] = logits[inside, self._targets[inside] - start]
        return scale, exponentials

    def log_sum(self) -> Array:
        """Return ``log(sum exp(logits))``."""
        result: Array = np.log(self.sums) + self._maximum
        return result

    def surprises(self) -> Array:
        """Return the negative log-likelihood of each token that comes next."""
        return self.log_sum() - self._of_target
