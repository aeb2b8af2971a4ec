"""Ensembles of decision trees: all trees of all rows descend together, one level at a time.

The nodes of all trees are in tables: feature, threshold, the two children, and flags of the
comparisons that lead to the true child. The state is one node for each row and tree; a leaf is its
own child, so the number of levels of the deepest tree is the number of steps. A node that tests for
membership in a set is a chain of nodes that compare with one element each.

Sources: ONNX, TreeEnsemble 5, TreeEnsembleRegressor 3, TreeEnsembleClassifier 3; ONNX Runtime,
``tree_ensemble_aggregator.h``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....numerics.array_functions import repeat_while, take
from ....numerics.convolutions import contract
from ....numerics.element_types import AnyArray, DType
from ..call import Call, Operand, importer
from .scores import feature_rows, first_greatest, integer_labels, listed, logistic, post_transformed

_LESS, _EQUAL, _GREATER, _UNORDERED = 1, 2, 4, 8
"""Flags of a node: comparisons of a feature with its threshold that lead to the true child."""
_FLAGS = {
    "BRANCH_LEQ": _LESS | _EQUAL,
    "BRANCH_LT": _LESS,
    "BRANCH_GTE": _GREATER | _EQUAL,
    "BRANCH_GT": _GREATER,
    "BRANCH_EQ": _EQUAL,
    "BRANCH_NEQ": _LESS | _GREATER | _UNORDERED,
    "LEAF": 0,
}
_NUMBERED_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ",
                   "BRANCH_MEMBER")  # fmt: skip
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class _Forest:
    """The nodes of all trees.

    Args:
        targets: the number of targets or classes.
        features, thresholds, flags, true, false: the tables of nodes; a leaf is its own child.
        leaves: target and weight of each entry, by node.
        roots: the first node of each tree.
    """

    targets: int
    features: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    true: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    leaves: list[list[tuple[int, float]]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add(self, feature: int = 0, threshold: float = 0.0, flags: int = 0) -> int:
        """Add a node that is a leaf until it has children."""
        number = len(self.features)
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.flags.append(flags)
        self.true.append(number)
        self.false.append(number)
        self.leaves.append([])
        return number

    def depth(self, call: Call) -> int:
        """Return the number of steps from a root to the farthest leaf."""
        level, depth = set(self.roots), 0
        while True:
            pairs = ((node, {self.true[node], self.false[node]}) for node in level)
            level = {child for node, children in pairs for child in children - {node}}
            if not level:
                return depth
            depth += 1
            if depth > len(self.features):
                raise call.error("has a node that is its own descendant")

    def tables(self, fill: float, dtype: DType) -> tuple[Any, Any]:
        """Return the weights of each node and target, and whether it has an entry for it."""
        weights = np.full((len(self.leaves), self.targets), fill, np.float64)
        present = np.zeros(weights.shape, np.int32)
        for node, entries in enumerate(self.leaves):
            for target, weight in entries:
                first = not present[node, target]
                weights[node, target] = weight if first else weights[node, target] + weight
                present[node, target] = 1
        return weights.astype(dtype), present


def _descended(call: Call, forest: _Forest, rows: AnyArray) -> AnyArray:
    """Compute the leaf of each row and tree, i32 ``[rows, trees]``."""
    count, width = rows.shape
    if forest.features and not 0 <= min(forest.features) <= max(forest.features) < width:
        raise call.error(f"has features beyond the {width} of its input")
    depth = forest.depth(call)
    roots = np.array(forest.roots, np.int32)
    start = np.broadcast_to(roots[None, :], (count, len(roots)))
    values = rows.reshape(-1)
    first = np.arange(count, dtype=np.int32)[:, None] * np.int32(width)
    features, flags, true, false = (
        np.array(each, np.int32)
        for each in (forest.features, forest.flags, forest.true, forest.false)
    )
    thresholds = np.array(forest.thresholds, np.float64).astype(rows.dtype)

    def step(level: AnyArray, node: AnyArray) -> list[AnyArray]:
        flat = node.reshape(-1)

        def of_nodes(table: Any) -> AnyArray:
            return take(table, flat, 0).reshape(node.shape)

        feature = (of_nodes(features) + first).reshape(-1)
        value = take(values, feature, 0).reshape(node.shape)
        threshold, flag = of_nodes(thresholds), of_nodes(flags)
        is_number = value == value
        code = np.where(
            value < threshold, np.int32(_LESS),
            np.where(value == threshold, np.int32(_EQUAL),
                     np.where(is_number, np.int32(_GREATER), np.int32(_UNORDERED))),
        )  # fmt: skip
        is_true = (flag & code) != np.int32(0)
        return [level + np.int32(1), np.where(is_true, of_nodes(true), of_nodes(false))]

    initial = [call.lifted(np.asarray(0, np.int32)), call.lifted(np.ascontiguousarray(start))]
    _, node = repeat_while(lambda level, _: level < np.int32(depth), step, initial)
    return node


def _aggregated(
    forest: _Forest, node: AnyArray, aggregate: str, dtype: DType
) -> tuple[AnyArray, AnyArray]:
    """Compute the scores of each row and target, and whether a leaf has an entry for it."""
    fill = {"MIN": math.inf, "MAX": -math.inf}.get(aggregate, 0.0)
    weights, present = forest.tables(fill, dtype)
    shape = (*node.shape, forest.targets)
    each = take(weights, node.reshape(-1), 0).reshape(shape)
    is_leaf = np.array([child == n for n, child in enumerate(forest.true)])
    has: AnyArray = np.ones((1, forest.targets), np.int32)
    if not present[is_leaf].all():
        has = take(present, node.reshape(-1), 0).reshape(shape).max(axis=1)
    if aggregate == "MIN":
        scores = each.min(axis=1)
    elif aggregate == "MAX":
        scores = each.max(axis=1)
    else:  # IREE computes a product apart from its users
        scores = contract(each, np.ones(node.shape[1], dtype), ([1], [0]), dtype=dtype)
        if aggregate == "AVERAGE":
            scores = scores / np.asarray(len(forest.roots), dtype)
        return scores, has
    return np.where(has != 0, scores, np.zeros((), dtype)), has


def _numbers(call: Call, name: str) -> list[Any]:
    """Return a list of numbers, from an attribute or its form as a tensor."""
    return listed(call, f"{name}_as_tensor") or listed(call, name)


def _node_lists(
    call: Call, count: int, *further: Sequence[Any]
) -> tuple[list[int], list[list[int]], list[int]]:
    """Return features, true and false children, and flags of missing values; one for each node.

    The lists `further` of the nodes must have the same length.
    """
    features = listed(call, "nodes_featureids")
    children = [listed(call, f"nodes_{side}nodeids") for side in ("true", "false")]
    missing = listed(call, "nodes_missing_value_tracks_true") or [0] * count
    if any(len(each) != count for each in (features, *children, missing, *further)):
        raise call.error(f"has {count} nodes, and attributes of other lengths")
    return features, children, missing


def _forest(call: Call, kind: str, targets: int) -> _Forest:
    """Return the trees of a regressor or classifier, whose nodes have numbers in trees."""
    forest = _Forest(targets)
    trees, numbers, modes = (listed(call, f"nodes_{n}") for n in ("treeids", "nodeids", "modes"))
    thresholds = _numbers(call, "nodes_values")
    features, children, missing = _node_lists(call, len(trees), numbers, modes, thresholds)
    if not trees:
        raise call.error("has 0 nodes, and attributes of other lengths")
    node_numbers: dict[tuple[int, int], int] = {}
    for index, key in enumerate(zip(trees, numbers, strict=True)):
        if modes[index] not in _FLAGS or key in node_numbers:
            raise call.error(f"has the mode {modes[index]!r}, or one node twice")
        if key[0] not in {tree for tree, _ in node_numbers}:
            forest.roots.append(index)
        flags = _FLAGS[modes[index]] | (_UNORDERED if missing[index] else 0)
        node_numbers[key] = forest.add(features[index], thresholds[index], flags)
    for index, tree in enumerate(trees):
        if modes[index] != "LEAF":
            for side, table in zip(children, (forest.true, forest.false), strict=True):
                if (tree, side[index]) not in node_numbers:
                    raise call.error(f"has the child {side[index]} of tree {tree}, which is absent")
                table[index] = node_numbers[tree, side[index]]
        else:
            forest.features[index] = 0
    own = [listed(call, f"{kind}_{n}") for n in ("treeids", "nodeids", "ids")]
    weights = _numbers(call, f"{kind}_weights")
    if any(len(each) != len(weights) for each in own):
        raise call.error(f"has {len(weights)} weights, and attributes of other lengths")
    for tree, number, target, weight in zip(*own, weights, strict=True):
        if (tree, number) not in node_numbers or not 0 <= target < targets:
            raise call.error(f"has a weight of node {number} of tree {tree} for target {target}")
        forest.leaves[node_numbers[tree, number]].append((target, weight))
    return forest


@importer("ai.onnx.ml.TreeEnsembleRegressor")
def tree_ensemble_regressor(call: Call) -> AnyArray:
    """TreeEnsembleRegressor-5: weights of the leaves of a row, aggregated by target."""
    targets, rows = call.attribute("n_targets", 1), feature_rows(call, keeps_f64=True)
    forest = _forest(call, "target", targets)
    node = _descended(call, forest, rows)
    dtype = rows.dtype
    scores, _ = _aggregated(forest, node, call.attribute("aggregate_function", "SUM"), dtype)
    base = _numbers(call, "base_values")
    if base:
        if len(base) != targets:
            raise call.error(f"has {len(base)} base_values for {targets} targets")
        scores = scores + np.array(base, dtype)
    result = post_transformed(call, scores, call.attribute("post_transform", "NONE"))
    return result.astype(np.float32)


@importer("ai.onnx.ml.TreeEnsembleClassifier")
def tree_ensemble_classifier(call: Call) -> list[AnyArray]:
    """TreeEnsembleClassifier-5: the label with the greatest sum, and all scores."""
    labels = integer_labels(call, "classlabels_int64s", "classlabels_strings")
    if len(labels) < 2:
        raise call.unsupported(f"has {len(labels)} labels, expected 2 or more")
    rows = feature_rows(call, keeps_f64=True)
    forest = _forest(call, "class", len(labels))
    scores, has = _aggregated(forest, _descended(call, forest, rows), "SUM", rows.dtype)
    base = _numbers(call, "base_values")
    transform = call.attribute("post_transform", "NONE")
    entries = [entry for each in forest.leaves for entry in each]
    if len(labels) > 2:
        if base:
            if len(base) != len(labels):
                raise call.error(f"has {len(base)} base_values for {len(labels)} classes")
            scores, has = scores + np.array(base, scores.dtype), has * 0 + 1
        lowest = np.asarray(-np.inf, scores.dtype)
        best = first_greatest(np.where(has != 0, scores, lowest))
        label = take(np.array(labels, np.int64), best, 0)
        return [label, post_transformed(call, scores, transform).astype(np.float32)]
    if len({target for target, _ in entries}) != 1:
        raise call.unsupported(
            "has weights for both of two classes, whose label the specification and ONNX Runtime "
            "choose differently; export it with the weights of one class only"
        )
    if len(base) == 2 or (base and entries[0][0] == 1):
        raise call.unsupported(
            f"has weights for one class of two and {len(base)} base_values, which the "
            "specification leaves open; add them to the weights of a leaf"
        )
    own = scores[:, entries[0][0]] + np.asarray(sum(base), scores.dtype)
    is_positive = all(weight >= 0 for _, weight in entries)
    limit = np.asarray(0.5 if is_positive else 0.0, scores.dtype)
    label = np.where(own > limit, np.int64(labels[1]), np.int64(labels[0]))
    if entries[0][0] == 1:
        both = post_transformed(call, scores, transform)
    elif transform == "LOGISTIC":
        both = np.stack([logistic(-own), logistic(own)], axis=-1)
    elif is_positive:
        both = np.stack([np.asarray(1, own.dtype) - own, own], axis=-1)
    else:
        both = np.stack([-own, own], axis=-1)
    return [label, both.astype(np.float32)]


@importer("ai.onnx.ml.TreeEnsemble")
def tree_ensemble(call: Call) -> Operand:
    """TreeEnsemble-5: trees whose leaves have one target, and whose nodes can test sets."""
    rows, targets = feature_rows(call, keeps_f64=True), call.attribute("n_targets", 1)
    forest = _newest_forest(call, targets)
    number, transform = call.attribute("aggregate_function", 1), call.attribute("post_transform", 0)
    node = _descended(call, forest, rows)
    scores, _ = _aggregated(forest, node, _AGGREGATES[number], rows.dtype)
    result = post_transformed(call, scores, _TRANSFORMS[transform])
    return call.typed(result.astype(call.array(0).dtype))


def _newest_forest(call: Call, targets: int) -> _Forest:
    forest = _Forest(targets)
    modes, splits = listed(call, "nodes_modes"), listed(call, "nodes_splits")
    are_leaves = [listed(call, f"nodes_{side}leafs") for side in ("true", "false")]
    features, children, missing = _node_lists(call, len(modes), splits, *are_leaves)
    ids, weights = listed(call, "leaf_targetids"), listed(call, "leaf_weights")
    if len(ids) != len(weights):
        raise call.error(f"has {len(modes)} nodes, and attributes of other lengths")
    membership = listed(call, "membership_values")  # sets, which NaN separates
    by_nan = itertools.groupby(membership, math.isnan)
    members = iter([list(group) for is_nan, group in by_nan if not is_nan])
    ends: list[list[int]] = []  # the nodes of a chain, which have one true child
    for index, mode in enumerate(modes):
        if not 0 <= mode < len(_NUMBERED_MODES):
            raise call.error(f"has the mode {mode}")
        name, unordered = _NUMBERED_MODES[mode], _UNORDERED if missing[index] else 0
        if name == "BRANCH_MEMBER":
            values = next(members, [])
            if not values:
                raise call.error("has fewer sets of members than nodes that ask for them")
            ends.append([forest.add(features[index], each, _EQUAL | unordered) for each in values])
        else:
            ends.append([forest.add(features[index], splits[index], _FLAGS[name] | unordered)])
    first = [forest.add() for _ in weights]
    for node, target, weight in zip(first, ids, weights, strict=True):
        if not 0 <= target < targets:
            raise call.error(f"has a weight for target {target} of {targets}")
        forest.leaves[node].append((target, weight))
    for index, chain in enumerate(ends):
        goals = []
        for side, flags in zip(children, are_leaves, strict=True):
            table = first if flags[index] else [each[0] for each in ends]
            if not 0 <= side[index] < len(table):
                raise call.error(f"has the child {side[index]} of {len(table)}")
            goals.append(table[side[index]])
        for position, node in enumerate(chain):
            is_last = position == len(chain) - 1
            forest.true[node] = goals[0]
            forest.false[node] = goals[1] if is_last else chain[position + 1]
    roots = listed(call, "tree_roots")
    if not roots or not 0 <= min(roots) <= max(roots) < len(ends):
        raise call.error(f"has the roots {roots} of {len(ends)} nodes")
    forest.roots.extend(ends[root][0] for root in roots)
    return forest
