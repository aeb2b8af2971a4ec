"""Tensors with a data-dependent dimension size, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from devices import ON_DEVICES
from onnx_models import OPSET, computed, model, node, text_of
from onnx_runtime import run_onnx_runtime
from subquant.errors import ExecutionError, UnsupportedError
from subquant.runtime import Device

Array = np.ndarray[Any, Any]


def whole(
    nodes: Sequence[Any], inputs: Mapping[str, Array], outputs: Mapping[str, str],
    constants: Mapping[str, Any] | None = None, opset: int = OPSET,
) -> onnx.ModelProto:  # fmt: skip
    """A model whose results have no declared shapes."""
    for number, each in enumerate(nodes):
        each.name = f"the {each.op_type} {number}"
    return model(nodes, inputs, outputs, constants or {}, opset)


def check(
    proto: onnx.ModelProto, inputs: Mapping[str, Array], device: Device | None, tolerance: float = 0
) -> None:
    """Compare with ONNX Runtime, extents included."""
    expected = run_onnx_runtime(proto, inputs)
    results = computed(proto, device, *inputs.values())
    for result, right, output in zip(results, expected, proto.graph.output, strict=True):
        assert (result.shape, result.dtype) == (right.shape, right.dtype), output.name
        np.testing.assert_allclose(
            result.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=tolerance,
            err_msg=output.name,
        )  # fmt: skip


CPU_AND_NUMPY = pytest.mark.parametrize("device_name", ["numpy", "cpu"])


@pytest.fixture(name="device_or_none")
def _device_or_none(device_name: str, request: pytest.FixtureRequest) -> Device | None:
    return None if device_name == "numpy" else request.getfixturevalue(device_name)


def drawn(dtype: Any, shape: Sequence[int], share: float = 0.5) -> Array:
    """Small numbers, and zeros."""
    rng = np.random.default_rng(len(shape) + 3)
    values = rng.integers(1, 5, shape) * (rng.random(shape) < share)
    return np.asarray(values.astype(dtype))


DTYPES = {
    name: np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "float32", "float64")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip


@CPU_AND_NUMPY
def test_non_zero_of_every_type_has_as_many_columns_as_elements(
    device_or_none: Device | None,
) -> None:
    inputs = {name: drawn(dtype, (3, 5)) for name, dtype in DTYPES.items()}
    for name in ("float16", "float32", "float64", "bfloat16"):
        special = [np.nan, -0.0, np.inf, 1e-45 if name == "float32" else 1e-7]
        inputs[name][0, :4] = np.array(special).astype(inputs[name].dtype)
    nodes = [node("NonZero", [name], [f"y_{name}"]) for name in inputs]
    proto = whole(nodes, inputs, {f"y_{name}": "INT64" for name in inputs})
    results = computed(proto, device_or_none, *inputs.values())
    for (name, value), result in zip(inputs.items(), results, strict=True):
        np.testing.assert_array_equal(result, np.stack(np.nonzero(value)), err_msg=name)


SHAPES = [(), (1,), (7,), (0,), (2, 0, 3), (4, 3), (2, 3, 4), (2, 1, 3, 2), (1, 1), (1, 130)]


@CPU_AND_NUMPY
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_non_zero_of_every_rank(device_or_none: Device | None, share: float) -> None:
    inputs = {f"x{n}": drawn(np.float32, shape, share) for n, shape in enumerate(SHAPES)}
    nodes = [node("NonZero", [name], [f"y_{name}"]) for name in inputs]
    proto = whole(nodes, inputs, {f"y_{name}": "INT64" for name in inputs})
    check(proto, inputs, device_or_none)


def test_non_zero_of_nothing_has_no_columns_on_vulkan(vulkan: Device) -> None:
    inputs = {"x": drawn(np.float32, (3, 4), 0), "y": drawn(np.float32, (3, 4))}
    nodes = [node("NonZero", ["x"], ["p"]), node("NonZero", ["y"], ["q"])]
    check(whole(nodes, inputs, {"p": "INT64", "q": "INT64"}), inputs, vulkan)


def test_non_zero_of_many_elements_counts_all(cpu: Device) -> None:
    inputs = {"x": drawn(np.int32, (3, 70_001), 0.01)}
    check(whole([node("NonZero", ["x"], ["p"])], inputs, {"p": "INT64"}), inputs, cpu)


FOLLOWING = [
    node("NonZero", ["mask"], ["columns"]),
    node("Transpose", ["columns"], ["indices"], perm=[1, 0]),
    node("GatherND", ["x", "indices"], ["elements"]),
    node("Shape", ["indices"], ["extents"]),
    node("Size", ["indices"], ["size"]),
    node("Cast", ["indices"], ["floats"], to=TensorProto.FLOAT),
    node("Gather", ["columns", "first"], ["rows"], axis=0),
    node("Unsqueeze", ["elements", "ends"], ["elements_3d"]),
    node("Squeeze", ["elements_3d", "ends"], ["squeezed"]),
    node("Mul", ["elements", "weight"], ["scaled"]),
    node("Greater", ["elements", "half"], ["is_great"]),
    node("Where", ["is_great", "elements", "half"], ["chosen"]),
    node("NonZero", ["is_great"], ["inner"]),
    node("CumSum", ["elements", "zero_scalar"], ["sums"]),
    node("Unsqueeze", ["elements", "one"], ["column"]),
    node("Expand", ["column", "expanded_shape"], ["expanded"]),
    node("Reshape", ["rows", "minus_one"], ["flat_rows"]),
    node("Gather", ["x", "flat_rows"], ["slices"], axis=0),
    node("Add", ["slices", "bias"], ["biased"]),
    node("Softmax", ["biased"], ["softmax"], axis=-1),
    node("ReduceMax", ["biased", "last"], ["greatest"], keepdims=0),
    node("ReduceSum", ["biased", "zero"], ["total"], keepdims=0),
    node("ReduceMax", ["biased"], ["whole_greatest"], keepdims=1),
    node("MatMul", ["slices", "matrix"], ["product"]),
    node("Gemm", ["slices", "matrix", "bias_of_two"], ["gemm"]),
    node("Concat", ["slices", "biased"], ["wide"], axis=1),
    node("Concat", ["slices", "x", "slices"], ["long"], axis=0),
    node("Slice", ["slices", "zero", "two"], ["head"]),
    node("Slice", ["slices", "one", "most", "zero", "two"], ["every_other"]),
    node("Slice", ["slices", "zero", "minus_one"], ["but_last"]),
    node("Slice", ["slices", "one", "three", "last"], ["part"]),
    node("Reshape", ["slices", "flat_shape"], ["reshaped"]),
    node("Flatten", ["slices"], ["flattened"]),
    node("Compress", ["slices", "is_great"], ["compressed"], axis=0),
    node("ArgMax", ["slices"], ["best"], axis=1, keepdims=0),
    node("TopK", ["slices", "two"], ["top", "top_places"], axis=1),
    node("Add", ["flat_rows", "one"], ["flat_index"]),
    node("Div", ["seven", "flat_index"], ["quotient"]),
    node("OneHot", ["flat_rows", "depth", "values"], ["one_hot"]),
    node("QuantizeLinear", ["slices", "scale", "point"], ["quantized"]),
    node("DequantizeLinear", ["quantized", "scale", "point"], ["dequantized"]),
    node("Split", ["slices", "sizes"], ["left", "right"], axis=1),
    node("LayerNormalization", ["slices", "gamma"], ["normed"]),
]
"""Nodes of one model; each result is compared."""
FOLLOWING_CONSTANTS = {
    "first": np.array([0]), "ends": np.array([0, 2]), "weight": np.float32(0.5), "last": [1],
    "bias": drawn(np.float32, (1, 4)), "zero": [0], "one": [1], "two": [2], "three": [3],
    "minus_one": [-1], "most": [np.iinfo(np.int64).max], "half": np.float32(2),
    "matrix": drawn(np.float32, (4, 2)), "bias_of_two": drawn(np.float32, (2,)),
    "flat_shape": [-1, 4], "zero_scalar": np.array(0), "expanded_shape": [1, 3],
    "seven": [7], "depth": np.array(5), "values": np.array([0, 1], np.float32),
    "scale": np.float32(0.5), "point": np.uint8(3), "sizes": [1, 3],
    "gamma": drawn(np.float32, (4,)),
}  # fmt: skip
FOLLOWING_TYPES = dict.fromkeys(
    ("elements", "floats", "slices", "elements_3d", "squeezed", "scaled", "biased", "softmax",
     "greatest", "total", "whole_greatest", "product", "gemm", "wide", "long", "head",
     "every_other", "but_last", "part", "reshaped", "flattened", "chosen", "compressed", "top",
     "sums", "expanded", "one_hot", "dequantized", "left", "right", "normed"), "FLOAT",
) | dict.fromkeys(
    ("extents", "size", "rows", "inner", "best", "top_places", "quotient"), "INT64"
) | {"is_great": "BOOL", "quantized": "UINT8"}  # fmt: skip


def following(x: Array, mask: Array, *removed: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of `FOLLOWING`."""
    inputs = {"x": x, "mask": mask}
    constants = {
        name: np.asarray(value, np.int64) if isinstance(value, list) else np.asarray(value)
        for name, value in FOLLOWING_CONSTANTS.items()
    }
    nodes, types = without(FOLLOWING, FOLLOWING_TYPES, removed)
    return whole(nodes, inputs, types, constants), inputs


X = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32) * 3


@CPU_AND_NUMPY
@pytest.mark.parametrize("share", [0.6, 1])
def test_operators_keep_the_number_of_rows(device_or_none: Device | None, share: float) -> None:
    proto, inputs = following(X, drawn(np.int32, (3, 4), share))
    check(proto, inputs, device_or_none, tolerance=1e-5)


def test_operators_keep_zero_rows(cpu: Device) -> None:
    # ONNX Runtime refuses the greatest of no elements.
    proto, inputs = following(X, np.zeros((3, 4), np.int32), "whole_greatest")
    check(proto, inputs, cpu, tolerance=1e-5)


def without(
    nodes: Sequence[Any], types: Mapping[str, str], names: Collection[str]
) -> tuple[list[Any], dict[str, str]]:
    """The nodes and types of results but for some results."""
    retained = {name: type_ for name, type_ in types.items() if name not in names}
    return [each for each in nodes if not set(names) & set(each.output)], retained


def test_operators_keep_the_number_of_rows_on_vulkan(vulkan: Device) -> None:
    proto, inputs = following(X, drawn(np.int32, (3, 4), 0.3))
    check(proto, inputs, vulkan, tolerance=1e-5)


SELECTED = [
    node("NonZero", ["mask"], ["columns"]),
    node("Transpose", ["columns"], ["indices"]),
    node("GatherND", ["x", "indices"], ["elements"]),
]

REFUSED = {
    "a longer axis": node("Mul", ["elements", "twelve"], ["y"]),
    "the last of the best rows": node("ArgMax", ["elements"], ["y"], select_last_index=1),
    "sorted rows": node("Hardmax", ["elements"], ["y"], axis=0),
    "axes of one element": node("Squeeze", ["elements"], ["y"]),
    "images of a size": node("Resize", ["images", "", "", "sizes"], ["y"]),
    "scales of rows": node("LayerNormalization", ["floats", "scales"], ["y"]),
    "another shape": node("Reshape", ["indices", "flat"], ["y"]),
    "two counts": node("Add", ["elements", "others"], ["y"]),
    "a sum of products": node("MatMul", ["elements", "twelve"], ["y"]),
    "a loop": node("Scan", ["elements"], ["y"], num_scan_inputs=1, body=helper.make_graph(
        [node("Identity", ["p"], ["q"])], "body", [helper.make_empty_tensor_value_info("p")],
        [helper.make_empty_tensor_value_info("q")])),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_operators_that_would_read_padding_are_refused_by_name(kind: str) -> None:
    other_nodes = [
        node("NonZero", ["x"], ["other_columns"]),
        node("Transpose", ["other_columns"], ["other_indices"]),
        node("GatherND", ["x", "other_indices"], ["others"]),
    ]
    constants = {
        "twelve": np.ones(12, np.float32), "flat": [-1], "ones": [1, 2, 3],
        "sizes": [12, 1, 4, 4], "scales": np.ones((12, 1), np.float32),
    }  # fmt: skip
    inputs = {"x": X, "mask": drawn(np.int32, (3, 4))}
    images = node("Unsqueeze", ["elements", "ones"], ["images"])
    floats = node("Cast", ["indices"], ["floats"], to=TensorProto.FLOAT)
    nodes = [*SELECTED, *other_nodes, images, floats, REFUSED[kind]]
    proto = whole(nodes, inputs, {"y": "FLOAT"}, constants)
    with pytest.raises(UnsupportedError, match=f"{REFUSED[kind].op_type}.*known only when"):
        text_of(proto)


BOUNDS = {
    "the last two": ([-2], [1 << 40], [1]), "all but two": ([0], [-2], [1]),
    "backward": ([-1], [-(1 << 40)], [-1]), "every third backward": ([5], [-(1 << 40)], [-3]),
    "backward to the second": ([1 << 40], [1], [-1]), "from the last on": ([-4], [-1], [2]),
    "beyond": ([9], [1 << 40], [1]), "none": ([3], [2], [1]),
}  # fmt: skip


@CPU_AND_NUMPY
@pytest.mark.parametrize("share", [0, 0.3, 0.6])
def test_slices_of_bounded_tensors(device_or_none: Device | None, share: float) -> None:
    constants: dict[str, Any] = {"axes": [0]}
    nodes = list(SELECTED)
    for number, bounds in enumerate(BOUNDS.values()):
        constants |= {f"b{number}.{n}": np.array(each) for n, each in enumerate(bounds)}
        names = [f"b{number}.0", f"b{number}.1", "axes", f"b{number}.2"]
        nodes.append(node("Slice", ["indices", *names], [f"y{number}"]))
    constants |= {"starts": [-3, 1], "ends": [7, 2], "both": [0, 1]}
    nodes.append(node("Slice", ["indices", "starts", "ends", "both"], ["y"]))
    outputs = {output.output[0]: "INT64" for output in nodes[len(SELECTED) :]}
    inputs = {"x": X, "mask": drawn(np.int32, (3, 4), share)}
    constants = {name: np.asarray(value, np.int64) for name, value in constants.items()}
    check(whole(nodes, inputs, outputs, constants), inputs, device_or_none)


ROWS = [
    *SELECTED,
    node("Gather", ["elements", "places"], ["gathered"]),
    node("Gather", ["indices", "first"], ["gathered_rows"]),
    node("TopK", ["elements", "two"], ["greatest", "greatest_places"]),
    node("TopK", ["elements", "two"], ["least", "least_places"], largest=0),
    node("ArgMax", ["elements"], ["best"], keepdims=0),
    node("ArgMin", ["indices"], ["worst"], axis=0),
    node("Softmax", ["elements"], ["softmax"], axis=0),
    node("LogSoftmax", ["indices_as_floats"], ["log_softmax"], axis=0),
    node("CumSum", ["elements", "axis"], ["sums"], reverse=1, exclusive=1),
    node("Greater", ["elements", "zero"], ["is_positive"]),
    node("NonZero", ["is_positive"], ["positive_columns"]),
    node("Squeeze", ["positive_columns", "first"], ["positive"]),
    node("Gather", ["elements", "positive"], ["positive_elements"]),
]
ROWS_TYPES = {
    "gathered": "FLOAT", "gathered_rows": "INT64", "greatest": "FLOAT", "greatest_places": "INT64",
    "least": "FLOAT", "least_places": "INT64", "best": "INT64", "worst": "INT64",
    "softmax": "FLOAT", "log_softmax": "FLOAT", "sums": "FLOAT", "positive_elements": "FLOAT",
}  # fmt: skip


def rows_of(share: float) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of `ROWS`."""
    inputs = {"x": X, "mask": drawn(np.int32, (3, 4), share)}
    constants = {
        "places": np.array([0, -1, -2]), "first": np.array([0]), "two": np.array([2]),
        "axis": np.array(0), "zero": np.float32(0),
    }  # fmt: skip
    cast = node("Cast", ["indices"], ["indices_as_floats"], to=TensorProto.FLOAT)
    nodes = [*SELECTED, cast, *ROWS[len(SELECTED) :]]
    return whole(nodes, inputs, ROWS_TYPES, constants), inputs


@CPU_AND_NUMPY
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_handlers_read_valid_rows_only(device_or_none: Device | None, share: float) -> None:
    check(*rows_of(share), device_or_none, tolerance=1e-5)


@ON_DEVICES
def test_a_call_that_takes_a_padding_row_fails(device: Device) -> None:
    proto, inputs = rows_of(0.2)
    with pytest.raises(ExecutionError, match=r"takes (other|2 of fewer) rows"):
        computed(proto, device, inputs["x"], np.eye(3, 4, dtype=np.int32)[:1].repeat(3, 0) * 0)


TWICE = [
    *SELECTED,
    node("NonZero", ["mask"], ["columns_again"]),
    node("Transpose", ["columns_again"], ["indices_again"]),
    node("GatherND", ["y", "indices_again"], ["others"]),
    node("Mul", ["elements", "others"], ["products"]),
    node("Concat", ["elements", "others", "two"], ["long"], axis=0),
    node("Concat", ["others", "elements", "two"], ["long_others"], axis=0),
    node("Slice", ["elements", "one", "three"], ["part"]),
    node("Slice", ["others", "one", "three"], ["other_part"]),
    node("Sub", ["part", "other_part"], ["differences"]),
    node("Gather", ["columns", "first"], ["row_places"]),
    node("Squeeze", ["row_places", "zero"], ["rows_of"]),
    node("Gather", ["x", "rows_of"], ["slices"]),
    node("Unsqueeze", ["slices", "one"], ["slices_3d"]),
    node("Reshape", ["slices_3d", "same_and_rest"], ["flat_slices"]),
    node("ReduceMean", ["slices", "zero"], ["mean"], keepdims=0),
    node("ReduceMean", ["slices"], ["whole_mean"]),
    node("ScatterND", ["y", "indices", "products"], ["scattered"]),
    node("ScatterND", ["y", "indices", "products"], ["added"], reduction="add"),
    node("Transpose", ["row_places"], ["row_columns"]),
    node("ScatterND", ["x", "row_columns", "slices"], ["scattered_rows"]),
]
TWICE_TYPES = dict.fromkeys(
    ("products", "long", "long_others", "differences", "flat_slices", "mean", "whole_mean",
     "scattered", "added", "scattered_rows"), "FLOAT",
)  # fmt: skip


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_operators_on_two_tensors_with_the_same_rows(cpu: Device, share: float) -> None:
    inputs = {"x": X, "y": X[::-1].copy(), "mask": drawn(np.int32, (3, 4), share)}
    constants = {
        "two": np.ones(2, np.float32), "one": np.array([1]), "three": np.array([3]),
        "zero": np.array([0]), "first": np.array([0]), "same_and_rest": np.array([0, -1]),
    }  # fmt: skip
    # ONNX Runtime refuses to reshape nothing to -1.
    nodes, types = without(TWICE, TWICE_TYPES, () if share else ("flat_slices",))
    check(whole(nodes, inputs, types, constants), inputs, cpu, tolerance=1e-5)


SHAPED = [
    *SELECTED,
    node("Gather", ["columns", "zero"], ["row_places"]),
    node("Squeeze", ["row_places", "zero"], ["rows_of"]),
    node("Gather", ["images", "rows_of"], ["chosen"]),  # [?, 2, 3]
    node("Shape", ["chosen"], ["shape"]),
    node("ConstantOfShape", ["shape"], ["zeros"]),
    node("Gather", ["shape", "scalar_zero"], ["number"]),
    node("Range", ["scalar_zero", "number", "scalar_one"], ["numbers"]),
    node("Unsqueeze", ["number", "zero"], ["number_1d"]),
    node("Concat", ["number_1d", "minus_one"], ["flat_shape"], axis=0),
    node("Reshape", ["chosen", "flat_shape"], ["flat"]),
    node("Concat", ["one", "number_1d", "two"], ["expanded_shape"], axis=0),
    node("Expand", ["pair", "expanded_shape"], ["expanded"]),
    node("Slice", ["shape", "zero", "one"], ["first_extent"]),
    node("Concat", ["first_extent", "six"], ["torch_shape"], axis=0),
    node("Shape", ["torch_shape"], ["rank"]),
    node("ConstantOfShape", ["rank"], ["ones"],
         value=numpy_helper.from_array(np.array([1], np.int64))),
    node("Mul", ["ones", "minus_one"], ["minus_ones"]),
    node("Equal", ["torch_shape", "minus_ones"], ["is_open"]),
    node("Where", ["is_open", "ones", "torch_shape"], ["closed_shape"]),
    node("Expand", ["flat", "closed_shape"], ["same"]),
    node("Expand", ["single", "closed_shape"], ["many"]),
    node("Add", ["same", "many"], ["sum"]),
    node("Mul", ["number", "number"], ["square"]),
    node("Cast", ["number"], ["count_as_float"], to=TensorProto.FLOAT),
    node("Identity", ["shape"], ["extents"]),
]  # fmt: skip
SHAPED_TYPES = dict.fromkeys(("zeros", "flat", "expanded", "same", "sum", "count_as_float"),
                             "FLOAT") | dict.fromkeys(("numbers", "square", "extents"),
                                                      "INT64")  # fmt: skip


@pytest.mark.parametrize("share", [0, 0.3, 0.7])
def test_shapes_are_computed_from_a_count(cpu: Device, share: float) -> None:
    inputs = {
        "x": X, "mask": drawn(np.int32, (3, 4), share),
        "images": np.arange(18, dtype=np.float32).reshape(3, 2, 3),
        "pair": np.array([[3, 4]], np.float32), "single": np.array([[5]], np.float32),
    }  # fmt: skip
    constants = {
        "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "six": np.array([6]),
        "minus_one": np.array([-1]), "scalar_zero": np.array(0), "scalar_one": np.array(1),
    }  # fmt: skip
    # ONNX Runtime refuses to reshape nothing to -1.
    nodes, types = without(SHAPED, SHAPED_TYPES, () if share else ("flat", "same", "sum"))
    check(whole(nodes, inputs, types, constants), inputs, cpu)


@CPU_AND_NUMPY
def test_compress_by_a_computed_condition(device_or_none: Device | None) -> None:
    inputs = {
        "x": X, "rows": np.array([True, False, True]), "short": np.array([False, True]),
        "flat": drawn(np.bool_, (12,)), "none": np.zeros(3, np.bool_),
    }  # fmt: skip
    nodes = [
        node("Compress", ["x", "rows"], ["a"], axis=0),
        node("Compress", ["x", "short"], ["b"], axis=1),
        node("Compress", ["x", "flat"], ["c"]),
        node("Compress", ["x", "none"], ["d"], axis=-2),
        node("Greater", ["a", "zero"], ["positive"]),
        node("ReduceMax", ["a", "one"], ["greatest"], keepdims=0),
        node("Greater", ["greatest", "zero"], ["is_positive"]),
        node("Compress", ["a", "is_positive"], ["e"], axis=0),
        node("Compress", ["a", "constant"], ["f"], axis=1),
    ]
    constants = {"zero": np.float32(0), "one": np.array([1]), "constant": np.array([True, False])}
    proto = whole(nodes, inputs, dict.fromkeys("abcdef", "FLOAT"), constants)
    check(proto, inputs, device_or_none)


def boxes(batches: int, count: int, *, is_center: bool = False, seed: int = 0) -> Array:
    """Boxes that overlap, some of which are equal, have swapped corners, or no area."""
    rng = np.random.default_rng(seed)
    corners = rng.random((batches, count, 2)) * 2
    sizes = rng.random((batches, count, 2)) * 0.8
    sizes[:, 3 % count] = 0
    if not is_center:
        sizes *= np.where(rng.random(sizes.shape) < 0.2, -1, 1)
        corners = np.concatenate([corners, corners + sizes], axis=2)
    else:
        corners = np.concatenate([corners, sizes], axis=2)
    corners[:, count // 2] = corners[:, 0]
    return corners.astype(np.float32)


def scores(batches: int, classes: int, count: int, seed: int = 0) -> Array:
    """Scores, some of which are equal."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 20, (batches, classes, count)) / 20).astype(np.float32)


NMS = {
    "all inputs": ((2, 3, 20), {"m": [4], "i": [0.4], "s": [0.3]}, {}),
    "centers": ((1, 2, 30), {"m": [10], "i": [0.2], "s": [0.5]}, {"center_point_box": 1}),
    "no threshold of scores": ((2, 2, 15), {"m": [100], "i": [0.1]}, {}),
    "no overlap": ((1, 1, 12), {"m": [5]}, {}),
    "no limit": ((1, 2, 12), {}, {}),
    "a limit of 0": ((1, 2, 12), {"m": [0], "i": [0.5]}, {}),
    "only scores": ((1, 2, 12), {"m": [1 << 62], "s": [0.6]}, {}),
    "scalars": ((1, 2, 12), {"m": 3, "i": 0.5, "s": 0.1}, {}),
    "none is good enough": ((2, 2, 12), {"m": [3], "i": [0.5], "s": [2.0]}, {}),
    "one box": ((1, 1, 1), {"m": [3], "i": [0.5], "s": [0.0]}, {}),
}
NMS_DTYPES = {"m": np.int64, "i": np.float32, "s": np.float32}


def suppression(
    kind: str, *, is_constant: bool, opset: int = 11
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one NonMaxSuppression; its limits are constants, or arguments too."""
    (batches, classes, count), limits, attributes = NMS[kind]
    arrays = {
        "b": boxes(batches, count, is_center=bool(attributes)),
        "c": scores(batches, classes, count),
    }
    limit_arrays = {name: np.asarray(value, NMS_DTYPES[name]) for name, value in limits.items()}
    names = ["b", "c", *(name if name in limit_arrays else "" for name in "mis")]
    while not names[-1]:
        names.pop()
    nms = node("NonMaxSuppression", names, ["y"], **attributes)
    inputs = arrays if is_constant else {**arrays, **limit_arrays}
    return whole([nms], inputs, {"y": "INT64"}, limit_arrays if is_constant else {}, opset), inputs


@CPU_AND_NUMPY
@pytest.mark.parametrize("kind", NMS)
def test_non_max_suppression(kind: str, device_or_none: Device | None) -> None:
    check(*suppression(kind, is_constant=True), device_or_none)


def test_non_max_suppression_with_computed_limits(cpu: Device) -> None:
    check(*suppression("all inputs", is_constant=False), cpu)


@ON_DEVICES
def test_a_detector_selects_boxes_scores_and_classes(device: Device) -> None:
    """The end of a detector: boxes behind the suppression, the best 5 of them, in one table."""
    nodes = [
        node("NonMaxSuppression", ["b", "c", "m", "i", "s"], ["selected"]),
        node("Slice", ["selected", "zero", "five", "zero"], ["head"]),
        node("Split", ["head", "ones"], ["batch", "class", "box"], axis=1),
        node("Concat", ["batch", "box"], ["box_index"], axis=1),
        node("GatherND", ["b", "box_index"], ["own_boxes"]),
        node("GatherND", ["c", "head"], ["own_scores"]),
        node("Unsqueeze", ["own_scores", "one"], ["score_column"]),
        node("Cast", ["class"], ["class_column"], to=TensorProto.FLOAT),
        node("Concat", ["own_boxes", "score_column", "class_column"], ["table"], axis=1),
        node("Gather", ["selected", "two"], ["indices"], axis=1),
        node("Squeeze", ["indices", "one"], ["flat"]),
        node("Shape", ["flat"], ["count"]),
        node("Gather", ["labels", "flat"], ["names"]),
    ]
    constants = {
        "m": [4], "zero": [0], "five": [5], "one": [1], "two": [2], "ones": [1, 1, 1],
    }  # fmt: skip
    constants = {name: np.array(value, np.int64) for name, value in constants.items()} | {
        "i": np.array([0.4], np.float32), "s": np.array([0.5], np.float32),
        "labels": np.arange(20, dtype=np.int32) * 3,
    }  # fmt: skip
    inputs = {"b": boxes(2, 20), "c": scores(2, 3, 20)}
    outputs = {"table": "FLOAT", "count": "INT64", "names": "INT32", "selected": "INT64"}
    check(whole(nodes, inputs, outputs, constants, 13), inputs, device)


@CPU_AND_NUMPY
def test_unique_of_elements_and_slices(device_or_none: Device | None) -> None:
    rng = np.random.default_rng(3)
    inputs = {
        "f": rng.integers(-3, 3, (3, 7)).astype(np.float32) / 2,
        "i": rng.integers(-9, 9, (40,)), "b": rng.integers(0, 3, (6, 2, 2)).astype(np.int8),
        "one": np.zeros(1, np.float32),
    }  # fmt: skip
    attributes: list[tuple[str, dict[str, int]]] = [
        ("f", {}), ("f", {"sorted": 0}), ("f", {"axis": 1}), ("f", {"axis": 0, "sorted": 0}),
        ("i", {}), ("i", {"sorted": 0}), ("b", {"axis": 0}), ("b", {"axis": -1}), ("one", {}),
    ]  # fmt: skip
    nodes, types = [], {}
    for number, (name, options) in enumerate(attributes):
        outputs = [f"{kind}{number}" for kind in ("y", "first", "place", "count")]
        nodes.append(node("Unique", [name], outputs, **options))
        value = {"f": "FLOAT", "i": "INT64", "b": "INT8", "one": "FLOAT"}[name]
        types |= {outputs[0]: value, **dict.fromkeys(outputs[1:], "INT64")}
    check(whole(nodes, inputs, types), inputs, device_or_none)


def test_unique_of_many_elements_is_refused_by_name() -> None:
    inputs = {"x": np.zeros(100_000, np.float32)}
    with pytest.raises(UnsupportedError, match=r"Unique.*compares 100000 elements"):
        text_of(whole([node("Unique", ["x"], ["y"])], inputs, {"y": "FLOAT"}))


def branch(nodes: Sequence[Any], outputs: Sequence[str], name: str) -> Any:
    """The graph of a branch."""
    for number, each in enumerate(nodes):
        each.name = f"{name} {number}"
    ends = [helper.make_empty_tensor_value_info(output) for output in outputs]
    return helper.make_graph(list(nodes), name, [], ends)


@ON_DEVICES
@pytest.mark.parametrize("share", [0, 0.4])
def test_branches_with_bounded_tensors(device: Device, share: float) -> None:
    """A detector without boxes returns an empty constant, or selects."""
    then = branch(
        [node("Identity", ["nothing"], ["p"]), node("Identity", ["two"], ["q"]),
         node("NonZero", ["x"], ["r"])],
        ["p", "q", "r"], "nothing",
    )  # fmt: skip
    otherwise = branch(
        [node("Gather", ["x", "rows_of"], ["s"]), node("Identity", ["number"], ["t"]),
         node("Identity", ["columns"], ["u"])],
        ["s", "t", "u"], "some",
    )  # fmt: skip
    nodes = [
        node("NonZero", ["mask"], ["columns"]),
        node("Gather", ["columns", "zero"], ["row_places"]),
        node("Squeeze", ["row_places", "zero"], ["rows_of"]),
        node("Size", ["rows_of"], ["number"]),
        node("Equal", ["number", "none"], ["is_empty"]),
        node("If", ["is_empty"], ["rows", "n", "places"], then_branch=then, else_branch=otherwise),
        node("Add", ["rows", "half"], ["sums"]),
    ]
    inputs = {"x": X, "mask": drawn(np.int32, (3, 4), share)}
    constants = {
        "zero": np.array([0]), "none": np.array(0), "two": np.array(2), "half": np.float32(0.5),
        "nothing": np.zeros((0, 4), np.float32),
    }  # fmt: skip
    types = {"rows": "FLOAT", "n": "INT64", "places": "INT64", "sums": "FLOAT"}
    check(whole(nodes, inputs, types, constants), inputs, device)
