"""Trees, linear models and preprocessing of ``ai.onnx.ml`` beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx_models import end, text_of
from onnx_runtime_cases import Case, Cases, case
from subquant.errors import UnsupportedError

Rng = np.random.Generator

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def drawn_trees(
    rng: Rng, kind: str, targets: list[int], *, modes: list[str] = MODES, trees: int = 5
) -> dict[str, Any]:
    """Trees of other depths, with missing values that go to the true child at some nodes."""
    rows: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids",
                              "falsenodeids", "missing_value_tracks_true")
    }  # fmt: skip
    leaves: dict[str, list[Any]] = {n: [] for n in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, depth: int, counter: list[int]) -> int:
        number = counter[0]
        counter[0] += 1
        index = len(rows["treeids"])
        is_leaf = depth == 0 or (depth < 3 and rng.random() < 0.3)
        mode = "LEAF" if is_leaf else str(rng.choice(modes))
        for name, value in (
            ("treeids", tree), ("nodeids", number), ("featureids", int(rng.integers(0, 4))),
            ("values", float(rng.integers(-2, 3))), ("modes", mode), ("truenodeids", 0),
            ("falsenodeids", 0), ("missing_value_tracks_true", int(rng.integers(0, 2))),
        ):  # fmt: skip
            rows[name].append(value)
        if is_leaf:
            for target in targets:
                for name, value in (("treeids", tree), ("nodeids", number), ("ids", target),
                                    ("weights", float(rng.normal()))):  # fmt: skip
                    leaves[name].append(value)
        else:
            rows["truenodeids"][index] = grow(tree, depth - 1, counter)
            rows["falsenodeids"][index] = grow(tree, depth - 1, counter)
        return number

    for tree in range(trees):
        grow(tree, 4, [0])
    return {f"nodes_{name}": each for name, each in rows.items()} | {
        f"{kind}_{name}": each for name, each in leaves.items()
    }


def features(rng: Rng, count: int = 9) -> Any:
    """Small integers, which meet thresholds, and NaN."""
    values = rng.integers(-3, 4, (count, 4)).astype(np.float32)
    values[rng.random((count, 4)) < 0.1] = np.nan
    return values


def positive(attributes: dict[str, Any]) -> dict[str, Any]:
    weights = [abs(each) / 8 for each in attributes["class_weights"]]
    return attributes | {"class_weights": weights}


def trees(rng: Rng) -> dict[str, Case]:
    cases = {}
    ml = "ai.onnx.ml"
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        for targets in (1, 3):
            cases[f"regressor {aggregate} {targets}"] = case(
                f"{ml}.TreeEnsembleRegressor", [features(rng)], n_targets=targets,
                aggregate_function=aggregate, **drawn_trees(rng, "target", list(range(targets))),
                **({"base_values": [0.5] * targets} if aggregate == "SUM" else {}),
            )  # fmt: skip
    for mode in MODES:
        cases[f"regressor {mode}"] = case(
            f"{ml}.TreeEnsembleRegressor", [features(rng)], n_targets=1,
            **drawn_trees(rng, "target", [0], modes=[mode], trees=2),
        )  # fmt: skip
    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        options = {"classlabels_int64s": [7, 5, 9], "post_transform": transform}
        cases[f"classifier of three {transform}"] = case(
            f"{ml}.TreeEnsembleClassifier", [features(rng)], outputs=2,
            **drawn_trees(rng, "class", [0, 1, 2]), **options,
        )  # fmt: skip
    for transform in ("NONE", "LOGISTIC"):
        for sign in ("mixed", "positive"):
            for own in (0, 1):
                drawn = drawn_trees(rng, "class", [own])
                drawn = positive(drawn) if sign == "positive" else drawn
                cases[f"classifier of two {transform} {sign} {own}"] = case(
                    f"{ml}.TreeEnsembleClassifier", [features(rng)], outputs=2,
                    classlabels_int64s=[3, 8], post_transform=transform, **drawn,
                )  # fmt: skip
    drawn = drawn_trees(rng, "class", [0])
    cases["classifier with a base value"] = case(
        f"{ml}.TreeEnsembleClassifier", [features(rng)], outputs=2, classlabels_int64s=[0, 1],
        post_transform="LOGISTIC", base_values=[0.25], **drawn,
    )  # fmt: skip
    return cases


def drawn_numbers(rng: Rng) -> Callable[[int], list[float]]:
    return lambda count: [float(each) for each in rng.normal(size=count)]


def linear(rng: Rng) -> dict[str, Case]:
    cases = {}
    ml = "ai.onnx.ml"
    rows, numbers = rng.normal(size=(6, 4)).astype(np.float32), drawn_numbers(rng)
    for targets in (1, 3):
        cases[f"linear regressor {targets}"] = case(
            f"{ml}.LinearRegressor", [rows], targets=targets, coefficients=numbers(4 * targets),
            intercepts=numbers(targets),
        )  # fmt: skip
    for name, labels, transforms in (("three", [4, 2, 6], ("NONE", "LOGISTIC", "SOFTMAX")),
                                     ("two", [4, 2], ("NONE", "LOGISTIC"))):  # fmt: skip
        scores = 3 if name == "three" else 1
        for transform in transforms:
            cases[f"linear classifier of {name} {transform}"] = case(
                f"{ml}.LinearClassifier", [rows], outputs=2, coefficients=numbers(4 * scores),
                intercepts=numbers(scores), classlabels_ints=labels, post_transform=transform,
            )  # fmt: skip
    for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID"):
        cases[f"support vectors {kernel}"] = case(
            f"{ml}.SVMRegressor", [rows], n_supports=5, coefficients=numbers(5), rho=numbers(1),
            support_vectors=numbers(20), kernel_type=kernel, kernel_params=[0.3, 0.7, 3.0],
        )  # fmt: skip
    cases["support vectors of none"] = case(
        f"{ml}.SVMRegressor", [rows], coefficients=numbers(4), rho=numbers(1),
        kernel_params=[0.0, 0.0, 3.0],
    )  # fmt: skip
    cases["support vectors of one class"] = case(
        f"{ml}.SVMRegressor", [rows], n_supports=5, coefficients=numbers(5), rho=numbers(1),
        support_vectors=numbers(20), kernel_type="RBF", kernel_params=[0.3, 0.0, 3.0], one_class=1,
    )  # fmt: skip
    return cases


def support_vectors(rng: Rng) -> dict[str, Case]:
    cases = {}
    rows, numbers = rng.normal(size=(9, 4)).astype(np.float32), drawn_numbers(rng)

    def classifier(classes: int, kernel: str, *, has_probabilities: bool, **options: Any) -> Case:
        counts = [2, 4, 1, 3][:classes]
        pairs = classes * (classes - 1) // 2
        if has_probabilities:
            options |= {"prob_a": [-abs(n) for n in numbers(pairs)], "prob_b": numbers(pairs)}
        return case(
            "ai.onnx.ml.SVMClassifier", [rows], outputs=2, classlabels_ints=[7, 3, 5, 1][:classes],
            vectors_per_class=counts, support_vectors=numbers(4 * sum(counts)), rho=numbers(pairs),
            coefficients=numbers((classes - 1) * sum(counts)), kernel_type=kernel,
            kernel_params=[0.3, 0.7, 3.0], **options,
        )  # fmt: skip

    for classes in (2, 3, 4):
        for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID"):
            for has_probabilities in (False, True):
                name = f"classes {classes} {kernel}{' with probabilities' * has_probabilities}"
                cases[name] = classifier(classes, kernel, has_probabilities=has_probabilities)
        for transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
            for has_probabilities in (False, True):
                name = f"classes {classes} {transform}{' with probabilities' * has_probabilities}"
                cases[name] = classifier(classes, "RBF", has_probabilities=has_probabilities,
                                         post_transform=transform)  # fmt: skip
    cases["classes 3 PROBIT with probabilities"] = classifier(
        3, "RBF", has_probabilities=True, post_transform="PROBIT"
    )
    for classes in (1, 2, 3):
        for sign in ("mixed", "positive"):
            for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
                weights = numbers(4 * classes)
                weights = [abs(n) / 4 for n in weights] if sign == "positive" else weights
                cases[f"linear classes {classes} {sign} {transform}"] = case(
                    "ai.onnx.ml.SVMClassifier", [rows], outputs=2, coefficients=weights,
                    classlabels_ints=[7, 3, 5][:classes], rho=numbers(1), kernel_type="RBF",
                    kernel_params=[0.3, 0.7, 3.0], post_transform=transform,
                )  # fmt: skip
    cases["linear classifier of three SOFTMAX_ZERO"] = case(
        "ai.onnx.ml.LinearClassifier", [rows.astype(np.float64)], outputs=2,
        coefficients=numbers(12), intercepts=numbers(3), classlabels_ints=[4, 2, 6],
        post_transform="SOFTMAX_ZERO", multi_class=1,
    )  # fmt: skip
    cases["linear classifier of integers"] = case(
        "ai.onnx.ml.LinearClassifier", [rng.integers(-3, 4, (5, 4))], outputs=2,
        coefficients=numbers(8), intercepts=numbers(2), classlabels_ints=[4, 2],
    )  # fmt: skip
    cases["linear regressor PROBIT"] = case(
        "ai.onnx.ml.LinearRegressor", [np.abs(rows) / 9], targets=2,
        coefficients=[0.3, 0.2, 0.1, 0.3, 0.1, 0.1, 0.4, 0.2], intercepts=[0.1, 0.2],
        post_transform="PROBIT",
    )  # fmt: skip
    return cases


def preprocessing(rng: Rng) -> dict[str, Case]:
    cases = {}
    ml = "ai.onnx.ml"
    rows = rng.normal(size=(6, 4)).astype(np.float32)
    holes = features(rng)
    integers = rng.integers(0, 5, (3, 4))
    cases["scaler"] = case(
        f"{ml}.Scaler", [rows], scale=[2.0, 3.0, 0.5, 1.0], offset=[1.0, 0.0, -1.0, 2.0]
    )
    for norm in ("L1", "L2", "MAX"):
        cases[f"normalizer {norm}"] = case(f"{ml}.Normalizer", [rows], norm=norm)
    cases["binarizer"] = case(f"{ml}.Binarizer", [rows], threshold=0.25)
    cases["features"] = case(f"{ml}.ArrayFeatureExtractor", [rows, np.array([[2, 0]])])
    cases["imputer"] = case(
        f"{ml}.Imputer", [holes], imputed_value_floats=[1.0, 2.0, 3.0, 4.0],
        replaced_value_float=float("nan"),
    )  # fmt: skip
    cases["imputer of integers"] = case(
        f"{ml}.Imputer", [integers], imputed_value_int64s=[9], replaced_value_int64=3
    )
    cases["vectorizer"] = case(
        f"{ml}.FeatureVectorizer", [rows, rows[:, :2]], inputdimensions=[4, 2]
    )
    cases["one hot"] = case(f"{ml}.OneHotEncoder", [integers], cats_int64s=[0, 2, 4], zeros=1)
    cases["labels of integers"] = case(
        f"{ml}.LabelEncoder", [integers], keys_int64s=[1, 3], values_int64s=[10, 30],
        default_int64=-7,
    )  # fmt: skip
    cases["labels of floats"] = case(
        f"{ml}.LabelEncoder", [holes], keys_floats=[1.0, -2.0], values_floats=[0.5, 1.5],
        default_float=9.0,
    )  # fmt: skip
    cases["labels as floats"] = case(
        f"{ml}.LabelEncoder", [integers], keys_int64s=[1, 3], values_floats=[0.5, 1.5],
        default_float=9.0,
    )  # fmt: skip
    return cases


def draw() -> dict[str, Case]:
    rng = np.random.default_rng(3)
    return {**trees(rng), **linear(rng), **preprocessing(rng)}


CASES = Cases(draw, tolerance=1e-5, share=4)
test_numpy_computes_as_onnx_runtime, test_devices_compute_as_onnx_runtime = CASES.tests()

MACHINES = Cases(lambda: support_vectors(np.random.default_rng(4)), tolerance=1e-5, share=14)
test_numpy_computes_support_vectors, test_devices_compute_support_vectors = MACHINES.tests()


def test_support_vectors_whose_scores_are_transformed_are_refused() -> None:
    """ONNX Runtime leaves the transformation out."""
    rows = np.zeros((2, 4), np.float32)
    each = case("ai.onnx.ml.SVMRegressor", [rows], n_supports=1, coefficients=[1.0], rho=[0.0],
                support_vectors=[1.0] * 4, kernel_params=[0.1, 0.0, 3.0],
                post_transform="LOGISTIC")  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"SVMRegressor.*post_transform LOGISTIC"):
        text_of(each.typed)


def test_texts_and_maps_are_refused() -> None:
    rows = np.zeros((2, 4), np.float32)
    each = case("ai.onnx.ml.LinearClassifier", [rows], outputs=2, coefficients=[0.0] * 8,
                intercepts=[0.0] * 2, classlabels_strings=["a", "b"])  # fmt: skip
    del each.model.graph.output[0]
    each.model.graph.output[0].CopyFrom(end("y1", ("FLOAT", [2, 2])))
    with pytest.raises(UnsupportedError, match="train the model with integer labels"):
        text_of(each.model)
