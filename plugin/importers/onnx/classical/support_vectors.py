"""Support vector machines: a kernel function of the features and each support vector.

A classifier has a decision function for each pair of classes, which votes for one of them. It can
have a logistic function for each pair: an iteration finds the probabilities of classes that agree
best with those of the pairs.

Sources: ONNX, SVMClassifier 1, SVMRegressor 1; ONNX Runtime, ``svmclassifier.cc``; T.-F. Wu et al.,
"Probability estimates for multi-class classification by pairwise coupling".
"""

from __future__ import annotations

import numpy as np

from ....numerics.array_functions import convert, repeat_while, take
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, AnyArray, Array
from ..call import Call, importer
from .scores import feature_rows, first_greatest, floats, integer_labels, logistic, post_transformed


@importer("ai.onnx.ml.SVMRegressor")
def svm_regressor(call: Call) -> AnyArray:
    """SVMRegressor-1: a weighted sum of the kernel function at each support vector."""
    features, count = feature_rows(call), call.attribute("n_supports", 0)
    weights, rho = floats(call, "coefficients"), floats(call, "rho")
    vectors, kind = floats(call, "support_vectors"), call.attribute("kernel_type", "LINEAR")
    parameters = floats(call, "kernel_params")
    if not count:
        kind, vectors, count = "LINEAR", weights, 1
        weights = np.ones(1, np.float32)
    if vectors.size != count * features.shape[1] or weights.size != count or rho.size != 1:
        raise call.error(f"has {count} supports of {vectors.size} numbers and {rho.size} offsets")
    products = _kernel_function(call, features, vectors.reshape(count, -1), kind, parameters)
    scores = contract(products, weights[None, :], ([1], [1])) + rho
    if call.attribute("one_class", 0):
        one = np.ones((), np.float32)
        scores = np.where(scores > np.float32(0), one, -one)
    if call.attribute("post_transform", "NONE") != "NONE":
        raise call.unsupported(
            f"has the post_transform {call.attribute('post_transform')}, which runtimes leave out; "
            "leave it out, and transform the scores after the call"
        )
    return scores


def _kernel_function(
    call: Call, rows: AnyArray, vectors: Array, kind: str, parameters: Array
) -> AnyArray:
    gamma, offset, degree = parameters.tolist() if parameters.size == 3 else (0.0, 0.0, 3.0)
    if kind == "RBF":
        difference = rows[:, None, :] - vectors[None, :, :]
        squares = (difference * difference).sum(axis=2, dtype=np.float32)
        return np.exp(squares * np.float32(-gamma))
    products = contract(rows, vectors, ([1], [1]))
    if kind == "LINEAR":
        return products
    inner = products * np.float32(gamma) + np.float32(offset)
    if kind == "SIGMOID":
        return np.tanh(inner)
    if kind != "POLY" or degree != round(degree) or not 1 <= degree <= 16:
        raise call.unsupported(f"has the kernel_type {kind!r} of degree {degree}")
    result = inner
    for _ in range(round(degree) - 1):
        result = result * inner
    return result


@importer("ai.onnx.ml.SVMClassifier")
def svm_classifier(call: Call) -> list[AnyArray]:
    """SVMClassifier-1: the label with the most votes, and scores or probabilities."""
    labels = np.array(integer_labels(call, "classlabels_ints", "classlabels_strings"), np.int64)
    features, coefficients = feature_rows(call), floats(call, "coefficients")
    rho, transform = floats(call, "rho"), call.attribute("post_transform", "NONE")
    counts = [int(n) for n in call.attribute("vectors_per_class") or []]
    probabilities = floats(call, "prob_a"), floats(call, "prob_b")
    kind, parameters = call.attribute("kernel_type", "LINEAR"), floats(call, "kernel_params")
    vectors = floats(call, "support_vectors")
    if not sum(counts):
        return _linear_classes(call, labels, features, coefficients, rho, transform)
    total, width = sum(counts), features.shape[1]
    pairs = [(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels))]
    sizes = (vectors.size, coefficients.size, rho.size, len(counts))
    expected = (total * width, (len(labels) - 1) * total, len(pairs), len(labels))
    if len(labels) < 2 or sizes != expected or any(
        each.size not in (0, len(pairs)) for each in probabilities
    ):  # fmt: skip
        raise call.error(
            f"has {sizes[0]} numbers of support vectors, {sizes[1]} coefficients, {sizes[2]} "
            f"offsets and {sizes[3]} classes of vectors, expected {expected[0]}, {expected[1]}, "
            f"{expected[2]} and {expected[3]}"
        )
    products = _kernel_function(call, features, vectors.reshape(total, width), kind, parameters)
    matrix = _pair_weights(coefficients.reshape(len(labels) - 1, total), counts, pairs)
    scores = contract(products, matrix, ([1], [1])) + rho
    label = take(labels, first_greatest(_votes(scores, pairs, len(labels))), 0)
    if probabilities[0].size:
        of_pairs = _pair_probabilities(scores, *probabilities)
        return [label, post_transformed(call, _coupled(of_pairs, pairs, len(labels)), transform)]
    if len(labels) > 2:
        return [label, post_transformed(call, scores, transform)]
    if transform not in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        raise call.unsupported(
            f"has one score for two classes and the post_transform {transform}, which is not "
            "lowered; leave it out, and transform the scores after the call"
        )
    if transform == "LOGISTIC":
        return [label, np.concatenate([logistic(-scores), logistic(scores)], axis=1)]
    other = -scores if transform == "NONE" else np.ones((), np.float32) - scores
    return [label, np.concatenate([other, scores], axis=1)]


def _linear_classes(
    call: Call, labels: Array, features: AnyArray, coefficients: Array, rho: Array, transform: str
) -> list[AnyArray]:
    """Classes of a linear machine, which has coefficients for each class and no vectors."""
    count = len(labels)
    if not count or coefficients.size != count * features.shape[1] or not rho.size:
        raise call.error(
            f"has {coefficients.size} coefficients and {rho.size} offsets for {count} classes of "
            f"{features.shape[1]} features"
        )
    scores = contract(features, coefficients.reshape(count, -1), ([1], [1])) + rho[:1]
    label = take(labels, first_greatest(scores), 0)
    if count == 2 and not floats(call, "prob_a").size:
        greatest = scores.max(axis=1)
        is_second = greatest > np.float32(0)
        if (coefficients >= 0).all():
            is_second = greatest >= np.float32(0.5)
        label = np.where(is_second, labels[1], label)
    return [label, scores if count == 1 else post_transformed(call, scores, transform)]


def _pair_weights(coefficients: Array, counts: list[int], pairs: list[tuple[int, int]]) -> Array:
    """Return the weight of each support vector in the decision function of each pair of classes.

    Args:
        coefficients: of each vector against each other class, ``[classes - 1, vectors]``.
        counts: the number of vectors of each class.
        pairs: of classes.
    """
    ends = np.cumsum(counts)
    weights = np.zeros((len(pairs), coefficients.shape[1]), np.float32)
    for row, (i, j) in enumerate(pairs):
        first, second = (slice(ends[n] - counts[n], ends[n]) for n in (i, j))
        weights[row, first] = coefficients[j - 1, first]
        weights[row, second] = coefficients[i, second]
    return weights


def _votes(scores: AnyArray, pairs: list[tuple[int, int]], classes: int) -> AnyArray:
    """Return the number of pairs that are decided for each class, i32."""
    gains = np.zeros((len(pairs), classes), np.int32)
    for row, (i, j) in enumerate(pairs):
        gains[row, i], gains[row, j] = 1, -1
    is_first = convert(scores > np.float32(0), I32)
    return contract(is_first, gains, ([1], [0]), dtype=np.int32) + (gains < 0).sum(
        axis=0, dtype=np.int32
    )


_LEAST = 1e-7
"""The least probability of a class in a pair."""


def _pair_probabilities(scores: AnyArray, slopes: Array, offsets: Array) -> AnyArray:
    """Return the probability of the first class of each pair."""
    one = np.ones((), np.float32)
    probability = one - logistic(scores * slopes + offsets)
    return np.minimum(np.maximum(probability, np.float32(_LEAST)), one - np.float32(_LEAST))


_MAX_STEPS = 100
"""The greatest number of iterations; each changes every probability once."""
_TOLERANCE = 0.005
"""The residual, times the number of classes, at which a row is done."""


def _coupled(of_pairs: AnyArray, pairs: list[tuple[int, int]], classes: int) -> AnyArray:
    """Return the probabilities of classes, ``[rows, classes]``, that agree best with the pairs.

    They minimize ``p Q p`` with ``Q[i, i] = sum(r[j, i]^2)`` and ``Q[i, j] = -r[j, i] r[i, j]``.
    """
    count, one = of_pairs.shape[0], np.ones((), np.float32)
    ratio = {pair: of_pairs[:, n] for n, pair in enumerate(pairs)}
    ratio |= {(j, i): one - of_pairs[:, n] for n, (i, j) in enumerate(pairs)}
    q: list[list[AnyArray]] = [[None] * classes for _ in range(classes)]
    for i in range(classes):
        for j in (j for j in range(classes) if j != i):
            square = ratio[j, i] * ratio[j, i]
            q[i][i] = square if q[i][i] is None else q[i][i] + square
            q[i][j] = -(ratio[j, i] * ratio[i, j])
    matrix = np.stack([np.stack(row, axis=-1) for row in q], axis=-2)

    def step(index: AnyArray, is_done: AnyArray, p: AnyArray) -> list[AnyArray]:
        products = (matrix * p[:, None, :]).sum(axis=2, dtype=np.float32)
        total = (p * products).sum(axis=1, dtype=np.float32)
        error = np.abs(products - total[:, None]).max(axis=1)
        is_done = is_done | (error < np.float32(_TOLERANCE / classes))
        following = p
        for i in range(classes):
            difference = (total - products[:, i]) / q[i][i]
            factor = one + difference
            unit = (np.arange(classes) == i).astype(np.float32)
            following = following + difference[:, None] * unit
            total = (
                (total + difference * (difference * q[i][i] + np.float32(2) * products[:, i]))
                / factor / factor
            )  # fmt: skip
            products = (products + difference[:, None] * matrix[:, i, :]) / factor[:, None]
            following = following / factor[:, None]
        return [index + np.int32(1), is_done, np.where(is_done[:, None], p, following)]

    def continues(index: AnyArray, is_done: AnyArray, p: AnyArray) -> AnyArray:
        return (index < np.int32(_MAX_STEPS)) & (convert(is_done, I32).min() < np.int32(1))

    start = np.full((count, classes), 1 / classes, np.float32)
    # A value of the program, if one is written: the loop is one of it.
    is_none_done = of_pairs[:, 0] < np.float32(0)
    _, _, probabilities = repeat_while(
        continues, step, [np.zeros((), np.int32), is_none_done, start]
    )
    return probabilities
