"""Schemas of the lowered operators of ONNX Runtime: inputs, types and attributes.

ONNX Runtime has its own operators: those of the domain ``com.microsoft``, and one in ONNX's
domain that ONNX lacks. Some have the name of an ONNX operator, and other inputs and attributes:
``com.microsoft.QuantizeLinear`` has no ``block_size``. The package `onnx` knows none of them, so
`onnx.checker` lets every node of the domain pass; `problem_of` checks it.

Source: ONNX Runtime 1.32, ``docs/ContribOperators.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_DOMAIN = "com.microsoft."
_IN_ONNX_DOMAIN = frozenset(("SimplifiedLayerNormalization",))
"""The operators that ONNX Runtime has in ONNX's own domain, and ONNX lacks."""

_KINDS = {"i": "INT", "f": "FLOAT", "s": "STRING", "[i]": "INTS", "[f]": "FLOATS",
          "[s]": "STRINGS"}  # fmt: skip
_TYPES = {
    "A": "INT4 INT8 INT16 UINT4 UINT8 UINT16",
    "B": "BFLOAT16 FLOAT FLOAT16",
    "C": "BFLOAT16 FLOAT FLOAT16 FLOAT8E4M3FN INT8 UINT8",
    "D": "DOUBLE FLOAT FLOAT16",
    "F": "FLOAT",
    "H": "FLOAT FLOAT16",
    "I": "INT32",
    "J": "INT32 INT64",
    "L": "INT64",
    "M": "DOUBLE FLOAT FLOAT16 INT32 INT64 UINT32 UINT64",
    "N": "INT4 INT8 INT16 INT32 UINT4 UINT8 UINT16",
    "O": "BOOL",
    "P": "FLOAT4E2M1 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ INT4 UINT4 UINT8",
    "Q": "INT8 UINT8",
    "R": "BFLOAT16 DOUBLE FLOAT FLOAT16",
    "U": "UINT8",
    "V": "FLOAT INT8 UINT8",
    "Z": "BFLOAT16 FLOAT FLOAT16 UINT8",
}

_TABLE = """
Attention input:B weights:B bias?:B mask_index?:I past?:B attention_bias?:B
    past_sequence_length?:I -> 2 do_rotary:i mask_filter_value:f num_heads!:i
    past_present_share_buffer:i qkv_hidden_sizes:[i] rotary_embedding_dim:i scale:f
    unidirectional:i
BiasAdd X:H bias:H skip:H -> 1
BiasGelu A:R B:R -> 1
BiasSplitGelu X:H bias:H -> 1
CausalConvWithState input:B weight:B bias?:B past_state?:B -> 3 activation:s channels_last:i
    dilation:i input_channel_offset:i input_channels:i ndim:i state_channels_last:i state_length:i
    state_update_capacity:i state_window:i
DequantizeLinear x:N x_scale:H x_zero_point?:N -> 1 axis:i
DynamicQuantizeLSTM X:F W:Q R:Q B?:F sequence_lens?:I initial_h?:F initial_c?:F P?:F W_scale:F
    W_zero_point:Q R_scale:F R_zero_point:Q -> 3 activation_alpha:[f] activation_beta:[f]
    activations:[s] clip:f direction:s hidden_size:i input_forget:i
DynamicQuantizeMatMul A:F B:Q b_scale:F b_zero_point?:Q bias?:F -> 1
EmbedLayerNormalization input_ids:I segment_ids?:I word_embedding:H position_embedding:H
    segment_embedding?:H gamma:H beta:H mask?:I position_ids?:I -> 3 epsilon:f mask_index_type:i
FastGelu X:R bias?:R -> 1
FusedConv X:D W:D B?:D Z?:D -> 1 activation:s activation_params:[f] auto_pad:s dilations:[i]
    group:i kernel_shape:[i] pads:[i] strides:[i]
FusedGemm A:M B:M C?:M -> 1 activation:s activation_alpha:f activation_beta:f
    activation_gamma:f alpha:f beta:f transA:i transB:i
FusedMatMul A:R B:R -> 1 alpha:f transA:i transB:i transBatchA:i transBatchB:i
GatherBlockQuantized data:P indices:J scales:B zero_points?:P -> 1 bits:i block_size:i
    gather_axis:i quantize_axis:i
Gelu X:R -> 1
GroupQueryAttention query:B key?:B value?:B past_key?:C past_value?:C seqlens_k:I
    total_sequence_length:I cos_cache?:B sin_cache?:B position_ids?:L attention_bias?:B
    head_sink?:B k_scale?:F v_scale?:F q_norm_weight?:B k_norm_weight?:B query_seqlens?:I -> 4
    causal:i do_rotary:i k_norm_epsilon:f k_quant_type:s kv_cache_bit_width:i kv_num_heads!:i
    local_window_size:i num_heads!:i q_norm_epsilon:f qk_norm_epsilon:f qk_output:i
    rotary_interleaved:i scale:f sliding_window_cache:i smooth_softmax:i softcap:f v_quant_type:s
LinearAttention query:B1 key:B1 value:B1 past_state?:B2 decay?:B1 beta?:B1 -> 2 chunk_size:i
    kv_num_heads!:i q_num_heads!:i scale:f state_window:i update_rule:s
MatMulIntegerToFloat A:Q1 B:Q2 a_scale:H b_scale:H a_zero_point?:Q1 b_zero_point?:Q2 bias?:H
    -> 1
MatMulNBits A:B B:U scales:B zero_points?:Z g_idx?:I bias?:B -> 1 K!:i N!:i accuracy_level:i
    bits:i block_size!:i weight_prepacked:i
MultiHeadAttention query:B key?:B value?:B bias?:B key_padding_mask?:I attention_bias?:B
    past_key?:B past_value?:B past_sequence_length?:I cache_indirection?:I -> 4
    mask_filter_value:f num_heads!:i scale:f unidirectional:i
NhwcMaxPool x:Q -> 1 auto_pad:s ceil_mode:i dilations:[i] kernel_shape!:[i] pads:[i]
    strides:[i]
QAttention input:Q1 weight:Q2 bias:H input_scale:H weight_scale:H mask_index?:I
    input_zero_point?:Q1 weight_zero_point?:Q2 past?:H -> 2 do_rotary:i mask_filter_value:f
    num_heads!:i past_present_share_buffer:i scale:f unidirectional:i
QEmbedLayerNormalization input_ids:I segment_ids?:I word_embedding_quant:Q1
    position_embedding_quant:Q1 segment_embedding?:Q1 gamma_quant:Q1 beta_quant:Q1 mask?:I
    word_embedding_scale:F position_embedding_scale:F segment_embedding_scale?:F gamma_scale:F
    beta_scale:F word_embedding_zero_point:Q1 position_embedding_zero_point:Q1
    segment_embedding_zero_point?:Q1 gamma_zero_point:Q1 beta_zero_point:Q1 -> 2 epsilon:f
QGemm A:Q1 a_scale:F a_zero_point:Q1 B:Q2 b_scale:F b_zero_point:Q2 C?:I y_scale?:F
    y_zero_point?:Q3 -> 1 alpha:f transA:i transB:i
QLinearAdd A:Q A_scale:F A_zero_point?:Q B:Q B_scale:F B_zero_point?:Q C_scale:F
    C_zero_point?:Q -> 1
QLinearAveragePool X:Q x_scale:F x_zero_point?:Q y_scale:F y_zero_point?:Q -> 1 auto_pad:s
    ceil_mode:i channels_last:i count_include_pad:i kernel_shape!:[i] pads:[i] strides:[i]
QLinearConcat Y_scale:F Y_zero_point:Q inputs*:V -> 1 axis!:i
QLinearConv x:Q1 x_scale:F x_zero_point:Q1 w:Q2 w_scale:F w_zero_point:Q2 y_scale:F
    y_zero_point:Q3 B?:I -> 1 auto_pad:s channels_last:i dilations:[i] group:i kernel_shape:[i]
    pads:[i] strides:[i]
QLinearGlobalAveragePool X:Q x_scale:F x_zero_point:Q y_scale:F y_zero_point:Q -> 1
    channels_last:i
QLinearLeakyRelu X:Q X_scale:F X_zero_point?:Q Y_scale:F Y_zero_point?:Q -> 1 alpha:f
QLinearMul A:Q A_scale:F A_zero_point?:Q B:Q B_scale:F B_zero_point?:Q C_scale:F
    C_zero_point?:Q -> 1
QLinearReduceMean data:Q data_scale:F data_zero_point?:Q reduced_scale:F reduced_zero_point?:Q
    -> 1 axes!:[i] keepdims!:i
QLinearSigmoid X:Q X_scale:F X_zero_point?:Q Y_scale:F Y_zero_point?:Q -> 1
QLinearSoftmax X:Q X_scale:F x_zero_point?:Q y_scale:F y_zero_point:Q -> 1 axis:i opset!:i
QLinearWhere condition:O X:Q x_scale:F x_zero_point:Q Y:Q y_scale:F y_zero_point:Q z_scale:F
    z_zero_point:Q -> 1
QuantizeLinear x:H y_scale:H y_zero_point?:A -> 1 axis:i
QuickGelu X:R -> 1 alpha:f
RotaryEmbedding input:B position_ids:L cos_cache:B sin_cache:B -> 1 interleaved:i
    is_packed_batching:i num_heads:i rotary_embedding_dim:i scale:f
SimplifiedLayerNormalization X:R1 scale:R2 -> 2 axis:i epsilon:f stash_type:i
SkipLayerNormalization input:B skip:B gamma:B beta?:B bias?:B -> 4 epsilon:f
SkipSimplifiedLayerNormalization input:B skip:B gamma:B bias?:B -> 4 epsilon:f
"""
"""An operator on each line: inputs, ``->`` the number of outputs, and attributes.

An input is ``name:types`` with a letter of `_TYPES`; inputs with the same letter and digit have one
type. ``?`` marks an optional input, ``*`` the last one that is repeated, ``!`` an attribute that a
node must have. The kinds of attributes are those of `_KINDS`.
"""


@dataclass(frozen=True)
class SchemaInput:
    """An input of a schema, with its element types; a variadic one is the last, and repeated.

    If it `is_homogeneous`, inputs of its type parameter, and repeated ones, have one type.
    """

    name: str
    types: frozenset[str]
    type_parameter: str
    is_optional: bool
    is_variadic: bool
    is_homogeneous: bool


@dataclass(frozen=True)
class ContributedSchema:
    """The schema of an operator of ONNX Runtime, with the kind of each attribute."""

    inputs: tuple[SchemaInput, ...]
    max_outputs: int
    attributes: Mapping[str, str]
    required: frozenset[str]


def _schemas() -> dict[str, ContributedSchema]:
    schemas = {}
    for entry in re.split(r"\n(?! )", _TABLE.strip()):
        operator, *words = entry.split()
        arrow = words.index("->")
        inputs = []
        for text in words[:arrow]:
            name, _, types = text.partition(":")
            is_variadic, admitted = "*" in name, frozenset(_TYPES[types[0]].split())
            own_name, is_optional = name.rstrip("?*"), "?" in name
            inputs.append(
                SchemaInput(own_name, admitted, types, is_optional, is_variadic, not is_variadic)
            )
        pairs = [text.split(":") for text in words[arrow + 2 :]]
        kinds = {name.rstrip("!"): _KINDS[kind] for name, kind in pairs}
        required = frozenset(name[:-1] for name, _ in pairs if name.endswith("!"))
        schema = ContributedSchema(tuple(inputs), int(words[arrow + 1]), kinds, required)
        schemas[operator if operator in _IN_ONNX_DOMAIN else f"{_DOMAIN}{operator}"] = schema
    return schemas


CONTRIBUTED: Mapping[str, ContributedSchema] = _schemas()
"""The schemas by operator, with its domain if that is not ONNX's own."""


def problem_of(
    operator: str, inputs: Sequence[str], output_count: int, attributes: Mapping[str, str]
) -> str:
    """Return the reason why a node does not follow its schema; "" if it does, or none is known.

    An absent input has the name "". Attributes are kinds by name.
    """
    schema = CONTRIBUTED.get(operator)
    if schema is None:
        return ""
    for name, kind in attributes.items():
        expected = schema.attributes.get(name)
        if expected is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            return f"has the attribute {name!r}, and the attributes of {operator} are {known}"
        if kind != expected:
            return f"has the attribute {name!r} of the kind {kind}, expected {expected}"
    for name in sorted(schema.required - set(attributes)):
        return f"has no attribute {name!r}"
    formals = schema.inputs
    if len(inputs) > len(formals) and not formals[-1].is_variadic:
        return f"has {len(inputs)} inputs, expected {len(formals)} at most"
    for index, formal in enumerate(formals):
        is_absent = index >= len(inputs) or not inputs[index]
        if is_absent and not (formal.is_optional or formal.is_variadic):
            return f"has no input {index} ({formal.name!r})"
    if output_count > schema.max_outputs:
        return f"has {output_count} outputs, expected {schema.max_outputs} at most"
    return ""
