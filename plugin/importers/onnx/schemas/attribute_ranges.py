"""The values that attributes of ONNX nodes can have: booleans, enumerations, counts.

ONNX's schemas say that an attribute is an integer or a text, and only their documentation says
which. `onnx.checker` accepts ``saturate = 2`` and ``num_heads = -1``; runtimes refuse them, take a
default, or compute with them. Here they are refused, whether or not an importer reads the
attribute.

Sources: ONNX, "Operator Schemas"; ONNX Runtime, ``docs/ContribOperators.md`` and the checks of its
kernels (CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ....errors import quoted


@dataclass(frozen=True)
class _Range:
    """The valid values of an attribute, or of each element of a list, and their words."""

    expected: str
    admits: Callable[[Any], bool]


def _one_of(*values: Any) -> _Range:
    return _Range(" or ".join(map(str, values)), lambda value: value in values)


def _at_least(least: int) -> _Range:
    return _Range(f"{least} or more", lambda value: value >= least)


_BOOLEAN, _COUNT, _POSITIVE = _one_of(0, 1), _at_least(1), _Range("> 0", lambda value: value > 0)
_KERNEL_TYPE = _one_of("LINEAR", "POLY", "RBF", "SIGMOID")
_REDUCTION = _one_of("none", "add", "mul", "max", "min")

_RANGES: dict[str, _Range] = {
    **dict.fromkeys(
        ("align_corners", "allowzero", "antialias", "causal", "ceil_mode", "center_point_box",
         "channels_last", "count_include_pad", "detect_negative", "detect_positive", "do_rotary",
         "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved", "inverse",
         "is_causal", "is_packed_batching", "keepdims", "largest", "layout", "linear_before_reset",
         "multi_class", "new_axis", "nodes_falseleafs", "nodes_missing_value_tracks_true",
         "nodes_trueleafs", "noop_with_empty_axes", "one_class", "onesided",
         "past_present_share_buffer", "periodic", "reverse", "rotary_interleaved", "saturate",
         "scan_input_directions", "scan_output_directions", "select_last_index",
         "sliding_window_cache", "sorted", "spatial", "state_channels_last", "storage_order",
         "training_mode", "transA", "transB", "transBatchA", "transBatchB", "unidirectional",
         "upper", "zeros"),
        _BOOLEAN,
    ),
    **dict.fromkeys(
        ("blocksize", "chunk_size", "dilations", "group", "hidden_size", "kernel_shape",
         "kv_num_heads", "n_targets", "num_groups", "num_outputs", "num_scan_inputs",
         "offset_group", "output_height", "output_shape", "output_width", "pooled_shape",
         "q_num_heads", "size", "strides", "targets"),
        _COUNT,
    ),
    **dict.fromkeys(
        ("batch_dims", "block_size", "n_supports", "output_padding", "rotary_embedding_dim",
         "sampling_ratio", "softcap"),
        _at_least(0),
    ),
    **dict.fromkeys(("left_window_size", "right_window_size"), _at_least(-1)),
    **dict.fromkeys(
        ("GRU.direction", "LSTM.direction", "RNN.direction",
         "com.microsoft.DynamicQuantizeLSTM.direction"),
        _one_of("forward", "reverse", "bidirectional"),
    ),
    "auto_pad": _one_of("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "clip": _POSITIVE,
    "post_transform": _one_of("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"),
    "round_mode": _one_of("up", "down", "nearest"),
    "smooth_softmax": _one_of(-1, 0, 1),
    "Attention.qk_matmul_output_mode": _one_of(0, 1, 2, 3),
    "Attention.scale": _POSITIVE,
    "BitShift.direction": _one_of("LEFT", "RIGHT"),
    "DepthToSpace.mode": _one_of("DCR", "CRD"),
    "Gelu.approximate": _one_of("none", "tanh"),
    "GridSample.mode": _one_of("linear", "bilinear", "nearest", "cubic", "bicubic"),
    "GridSample.padding_mode": _one_of("zeros", "border", "reflection"),
    "GlobalLpPool.p": _COUNT,
    "LpNormalization.p": _one_of(1, 2),
    "LpPool.p": _COUNT,
    "Pad.mode": _one_of("constant", "reflect", "edge", "wrap"),
    "Resize.coordinate_transformation_mode": _one_of(
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize",
    ),
    "Resize.keep_aspect_ratio_policy": _one_of("stretch", "not_larger", "not_smaller"),
    "Resize.mode": _one_of("nearest", "linear", "cubic"),
    "Resize.nearest_mode": _one_of("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "RoiAlign.coordinate_transformation_mode": _one_of("half_pixel", "output_half_pixel"),
    "RoiAlign.mode": _one_of("avg", "max"),
    "RotaryEmbedding.num_heads": _at_least(0),
    "ScatterElements.reduction": _REDUCTION,
    "ScatterND.reduction": _REDUCTION,
    "SpaceToDepth.mode": _one_of("DCR", "CRD"),
    "TensorScatter.mode": _one_of("linear", "circular"),
    "Upsample.mode": _one_of("nearest", "linear"),
    "ai.onnx.ml.Normalizer.norm": _one_of("MAX", "L1", "L2"),
    "ai.onnx.ml.SVMClassifier.kernel_type": _KERNEL_TYPE,
    "ai.onnx.ml.SVMRegressor.kernel_type": _KERNEL_TYPE,
    "ai.onnx.ml.TreeEnsemble.aggregate_function": _one_of(0, 1, 2, 3),
    "ai.onnx.ml.TreeEnsemble.post_transform": _one_of(0, 1, 2, 3, 4),
    "ai.onnx.ml.TreeEnsembleRegressor.aggregate_function": _one_of("AVERAGE", "SUM", "MIN", "MAX"),
    "com.microsoft.RotaryEmbedding.num_heads": _at_least(0),
    "com.microsoft.RotaryEmbedding.scale": _POSITIVE,
}  # fmt: skip
"""The values by attribute, for all operators or, with its name, for one.

Where operator sets differ, these are the values of all of them; importers check the rest.
"""


def problem_of_attribute(operator: str, name: str, value: Any) -> str:
    """Return the reason why an attribute's value is not valid; "" if it is.

    The operator has its domain if that is not ONNX's own. A value that is no number, text, or list
    of them is valid here.
    """
    range_ = _RANGES.get(f"{operator}.{name}") or _RANGES.get(name)
    if range_ is None:
        return ""
    elements: Iterable[Any] = value if isinstance(value, list) else [value]
    for each in elements:
        if isinstance(each, (int, float, str)) and not _admits(range_, each):
            text = quoted(each) if isinstance(each, str) else str(each)
            return f"has the attribute {name!r} = {text}, expected {range_.expected}"
    return ""


def _admits(range_: _Range, value: Any) -> bool:
    try:
        return bool(range_.admits(value))
    except TypeError:  # a text where numbers are compared
        return False
