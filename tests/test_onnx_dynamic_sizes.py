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
from onnx_models import computed, node, text_of
from onnx_runtime import CPU_AND_NUMPY, Array, check, drawn, whole
from subquant.errors import ExecutionError, UnsupportedError
from subquant.runtime import Device

X = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32) * 3


DTYPES = {
    name: np.dtype(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "float32", "float64")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip


def non_zeros(inputs: Mapping[str, Array]) -> onnx.ModelProto:
    """A NonZero of each input."""
    nodes = [node("NonZero", [name], [f"y_{name}"]) for name in inputs]
    return whole(nodes, inputs, {f"y_{name}": "INT64" for name in inputs})


@pytest.mark.long
@CPU_AND_NUMPY
def test_non_zero_of_every_type_has_as_many_columns_as_elements(
    device: Device | None,
) -> None:
    inputs = {name: drawn(dtype, (3, 5)) for name, dtype in DTYPES.items()}
    for name in ("float16", "float32", "float64", "bfloat16"):
        special = [np.nan, -0.0, np.inf, 1e-45 if name == "float32" else 1e-7]
        inputs[name][0, :4] = np.array(special).astype(inputs[name].dtype)
    results = computed(non_zeros(inputs), device, *inputs.values())
    for (name, value), result in zip(inputs.items(), results, strict=True):
        np.testing.assert_array_equal(result, np.stack(np.nonzero(value)), err_msg=name)


SHAPES = [(), (1,), (7,), (0,), (2, 0, 3), (4, 3), (2, 3, 4), (2, 1, 3, 2), (1, 1), (1, 130)]


@pytest.mark.long
@CPU_AND_NUMPY
@pytest.mark.parametrize("share", [0, 0.5, 1])
@pytest.mark.share(6)
def test_non_zero_of_every_rank(device: Device | None, share: float) -> None:
    inputs = {f"x{n}": drawn(np.float32, shape, share) for n, shape in enumerate(SHAPES)}
    check(non_zeros(inputs), inputs, device)


def test_non_zero_of_nothing_has_no_columns_on_vulkan(vulkan: Device) -> None:
    inputs = {"x": drawn(np.float32, (3, 4), 0), "y": drawn(np.float32, (3, 4))}
    check(non_zeros(inputs), inputs, vulkan)


@pytest.mark.long
def test_non_zero_of_many_elements_counts_all(cpu: Device) -> None:
    inputs = {"x": drawn(np.int32, (3, 70_001), 0.01)}
    check(non_zeros(inputs), inputs, cpu)


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


def without(
    nodes: Sequence[Any], types: Mapping[str, str], names: Collection[str]
) -> tuple[list[Any], dict[str, str]]:
    """The nodes and types of results but for some results."""
    retained = {name: type_ for name, type_ in types.items() if name not in names}
    return [each for each in nodes if not set(names) & set(each.output)], retained


@pytest.mark.parametrize(
    ("device_name", "share"),
    [
        *((name, share) for name in ("numpy", "cpu") for share in (0.6, 1)),
        ("cpu", 0),
        pytest.param("vulkan", 0.3, marks=pytest.mark.vulkan),
    ],
)
@pytest.mark.share(12)
def test_operators_keep_the_number_of_rows(device: Device | None, share: float) -> None:
    inputs = {"x": X, "mask": drawn(np.int32, (3, 4), share)}
    # ONNX Runtime refuses the greatest of no elements.
    nodes, types = without(FOLLOWING, FOLLOWING_TYPES, () if share else ("whole_greatest",))
    check(whole(nodes, inputs, types, FOLLOWING_CONSTANTS), inputs, device, tolerance=1e-5)


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
def test_slices_of_bounded_tensors(device: Device | None, share: float) -> None:
    constants: dict[str, Any] = {"axes": [0]}
    nodes = list(SELECTED)
    for number, bounds in enumerate(BOUNDS.values()):
        constants |= {f"b{number}.{n}": each for n, each in enumerate(bounds)}
        names = [f"b{number}.0", f"b{number}.1", "axes", f"b{number}.2"]
        nodes.append(node("Slice", ["indices", *names], [f"y{number}"]))
    none = f"y{list(BOUNDS).index('none')}"
    nodes.append(node("Slice", [none, "b0.0", "b0.1", "axes"], ["none of none"]))
    constants |= {"starts": [-3, 1], "ends": [7, 2], "both": [0, 1]}
    nodes.append(node("Slice", ["indices", "starts", "ends", "both"], ["y"]))
    outputs = {output.output[0]: "INT64" for output in nodes[len(SELECTED) :]}
    inputs = {"x": X, "mask": drawn(np.int32, (3, 4), share)}
    check(whole(nodes, inputs, outputs, constants), inputs, device)


ROWS = [
    *SELECTED,
    node("Cast", ["indices"], ["indices_as_floats"], to=TensorProto.FLOAT),
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
    return whole(ROWS, inputs, ROWS_TYPES, constants), inputs


@CPU_AND_NUMPY
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_handlers_read_valid_rows_only(device: Device | None, share: float) -> None:
    check(*rows_of(share), device, tolerance=1e-5)


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


@pytest.mark.long
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
def test_compress_by_a_computed_condition(device: Device | None) -> None:
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
    check(whole(nodes, inputs, dict.fromkeys("abcdef", "FLOAT"), constants), inputs, device)
