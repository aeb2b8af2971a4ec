"""Second moments of the inputs of layers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..models.routed_inputs import RoutedInputs
from ..numerics.element_types import Array
from .gptq import Factor, compensated, damped, factored
from .worker_threads import WorkerThreads


@dataclass(frozen=True)
class InputMoments:
    """Second moments of a layer's inputs ``X [T, K]``, and what GPTQ computes of them.

    Attributes:
        matrix: ``X^T X``, float32 ``[K, K]``.
        tokens: ``T``.
        errors: ``(F - X)^T X`` for the inputs ``F`` of the float model, float32 ``[K, K]``,
            estimated by some tokens; None if they are not known.
    """

    matrix: Array
    tokens: int
    errors: Array | None = None

    @functools.cached_property
    def damped(self) -> Array:
        """The matrix with damping, see `gptq.damped`."""
        return damped(self.matrix, self.tokens)

    @functools.cached_property
    def factor(self) -> Factor:
        """The factor of the damped matrix."""
        return factored(self.damped)

    def compensated(self, weight: Array) -> Array:
        """Return the weight that makes up for the errors of the inputs, see `gptq.compensated`."""
        if self.errors is None:
            return weight
        return compensated(weight, self.errors, self.factor)


@dataclass
class BlockMoments:
    """Statistics of the inputs of a block's layers; layers with one input share them.

    Attributes:
        first_names: the name of the first layer with the same input, by the name of a layer.
        tokens: the number of inputs.
        compared_tokens: the number of inputs that are compared with those of the float model.
        routed: the inputs of a block's experts, of each group of chunks.
    """

    first_names: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    compared_tokens: int = 0
    routed: dict[str, list[RoutedInputs]] = field(default_factory=dict, repr=False)
    _matrices: dict[str, Array] = field(default_factory=dict, repr=False)
    _maxima: dict[str, Array] = field(default_factory=dict, repr=False)
    _errors: dict[str, Array] = field(default_factory=dict, repr=False)

    def add(
        self,
        inputs: Sequence[Mapping[str, Array | RoutedInputs]],
        threads: WorkerThreads,
        float_inputs: Sequence[Mapping[str, Array | RoutedInputs]] = (),
    ) -> None:
        """Add the inputs of layers, ``[T, K]`` by name, of some chunks of tokens.

        Args:
            float_inputs: those that the float model has, of the first chunks.
        """
        names: dict[int, str] = {}
        for each in inputs:
            for name, array in each.items():
                if isinstance(array, RoutedInputs):
                    self.routed.setdefault(name, []).append(array)
        for name, array in inputs[0].items():
            if not isinstance(array, RoutedInputs):
                self.first_names[name] = names.setdefault(id(array), name)

        def add_inputs_of(name: str) -> None:
            x = joined[name]
            matrix, maxima = x.T @ x, np.maximum(x.max(0), -x.min(0))
            if name in self._matrices:
                matrix += self._matrices[name]
                np.maximum(maxima, self._maxima[name], out=maxima)
            self._matrices[name], self._maxima[name] = matrix, maxima

        def add_errors_of(name: str) -> None:
            of_floats = np.concatenate([each[name] for each in float_inputs])
            x = joined[name][: len(of_floats)]
            errors = (of_floats - x).T @ x
            if name in self._errors:
                errors += self._errors[name]
            self._errors[name] = errors

        joined = {name: np.concatenate([each[name] for each in inputs]) for name in names.values()}
        steps = [(add_inputs_of, name) for name in joined]
        steps += [(add_errors_of, name) for name in joined if float_inputs]
        # Those that take the longest are begun first.
        steps.sort(key=lambda step: -joined[step[1]].shape[1])
        threads.map(lambda step: step[0](step[1]), steps)
        first = next(iter(names.values()))
        self.tokens += sum(len(each[first]) for each in inputs)
        self.compared_tokens += sum(len(each[first]) for each in float_inputs)

    def of(self, name: str) -> Array:
        """Return ``X^T X`` of the inputs ``X`` of a layer, ``[K, K]``."""
        return self._matrices[self.first_names[name]]

    def maxima(self, name: str) -> Array:
        """Return the greatest magnitude of each input of a layer, ``[K]``."""
        return self._maxima[self.first_names[name]]

    def inputs_of_expert(self, name: str, expert: int) -> Array | None:
        """Return the inputs of an expert's layer, ``[rows, K]``; None if it has none."""
        rows = [each.of(expert) for each in self.routed.get(name, ())]
        return np.concatenate(rows) if any(map(len, rows)) else None

    def divide(self, name: str, scales: Array) -> None:
        """Divide the inputs of a layer, and of all layers with the same inputs, by scales."""
        self._matrices[self.first_names[name]] /= np.outer(scales, scales)
        self._maxima[self.first_names[name]] /= scales

    def pop(self, first_name: str) -> InputMoments:
        """Remove and return the moments of the layers with one input."""
        errors = self._errors.pop(first_name, None)
        if errors is not None:
            errors *= np.float32(self.tokens / self.compared_tokens)
        return InputMoments(self._matrices.pop(first_name), self.tokens, errors)
