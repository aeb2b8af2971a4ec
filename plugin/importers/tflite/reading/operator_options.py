"""Options of TensorFlow Lite's operators: a table on each line, its fields in their order.

Tables without fields share a line, separated by semicolons. A field is ``name:kind`` or
``name:kind=default``. Kinds are those of Python's ``struct`` (``?`` is a boolean), ``str``, a
vector ``[i4]`` of a NumPy type, or ``*`` for a table or a vector of tables that no importer reads.

Source: ``schema.fbs`` of LiteRT, version 3d.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ...flatbuffer import Table, scalar, string, unread, vector

_FIRST = """
NONE
Conv2DOptions padding:b stride_w:i stride_h:i fused_activation_function:b dilation_w_factor:i=1
    dilation_h_factor:i=1 quantized_bias_type:b
DepthwiseConv2DOptions padding:b stride_w:i stride_h:i depth_multiplier:i
    fused_activation_function:b dilation_w_factor:i=1 dilation_h_factor:i=1
ConcatEmbeddingsOptions num_channels:i num_columns_per_channel:[i4] embedding_dim_per_channel:[i4]
LSHProjectionOptions type:b
Pool2DOptions padding:b stride_w:i stride_h:i filter_width:i filter_height:i
    fused_activation_function:b
SVDFOptions rank:i fused_activation_function:b asymmetric_quantize_inputs:?
RNNOptions fused_activation_function:b asymmetric_quantize_inputs:?
FullyConnectedOptions fused_activation_function:b weights_format:b keep_num_dims:?
    asymmetric_quantize_inputs:? quantized_bias_type:b quant_spec:*
SoftmaxOptions beta:f
ConcatenationOptions axis:i fused_activation_function:b
AddOptions fused_activation_function:b pot_scale_int16:?=1
L2NormOptions fused_activation_function:b
LocalResponseNormalizationOptions radius:i bias:f alpha:f beta:f
LSTMOptions fused_activation_function:b cell_clip:f proj_clip:f kernel_type:b
    asymmetric_quantize_inputs:?
ResizeBilinearOptions new_height:i new_width:i align_corners:? half_pixel_centers:?
CallOptions subgraph:I
ReshapeOptions new_shape:[i4]
SkipGramOptions ngram_size:i max_skip_size:i include_all_ngrams:?
SpaceToDepthOptions block_size:i
EmbeddingLookupSparseOptions combiner:b
MulOptions fused_activation_function:b
PadOptions
GatherOptions axis:i batch_dims:i
BatchToSpaceNDOptions; SpaceToBatchNDOptions; TransposeOptions
ReducerOptions keep_dims:?
SubOptions fused_activation_function:b pot_scale_int16:?=1
DivOptions fused_activation_function:b
SqueezeOptions squeeze_dims:[i4]
SequenceRNNOptions time_major:? fused_activation_function:b asymmetric_quantize_inputs:?
StridedSliceOptions begin_mask:i end_mask:i ellipsis_mask:i new_axis_mask:i shrink_axis_mask:i
    offset:?
ExpOptions; TopKV2Options
SplitOptions num_splits:i
LogSoftmaxOptions
CastOptions in_data_type:b out_data_type:b
DequantizeOptions; MaximumMinimumOptions
ArgMaxOptions output_type:b
LessOptions; NegOptions; PadV2Options; GreaterOptions; GreaterEqualOptions; LessEqualOptions;
SelectOptions; SliceOptions
TransposeConvOptions padding:b stride_w:i stride_h:i fused_activation_function:b
    quantized_bias_type:b
SparseToDenseOptions validate_indices:?
TileOptions; ExpandDimsOptions; EqualOptions; NotEqualOptions
ShapeOptions out_type:b
PowOptions
ArgMinOptions output_type:b
FakeQuantOptions min:f max:f num_bits:i narrow_range:?
PackOptions values_count:i axis:i
LogicalOrOptions
OneHotOptions axis:i
LogicalAndOptions; LogicalNotOptions
UnpackOptions num:i axis:i
FloorDivOptions; SquareOptions; ZerosLikeOptions; FillOptions
BidirectionalSequenceLSTMOptions fused_activation_function:b cell_clip:f proj_clip:f
    merge_outputs:? time_major:?=1 asymmetric_quantize_inputs:?
BidirectionalSequenceRNNOptions time_major:? fused_activation_function:b merge_outputs:?
    asymmetric_quantize_inputs:?
UnidirectionalSequenceLSTMOptions fused_activation_function:b cell_clip:f proj_clip:f time_major:?
    asymmetric_quantize_inputs:? diagonal_recurrent_tensors:?
FloorModOptions; RangeOptions
ResizeNearestNeighborOptions align_corners:? half_pixel_centers:?
LeakyReluOptions alpha:f
SquaredDifferenceOptions
MirrorPadOptions mode:b
AbsOptions
SplitVOptions num_splits:i
UniqueOptions idx_out_type:b=2
ReverseV2Options; AddNOptions; GatherNdOptions; CosOptions; WhereOptions; RankOptions
ReverseSequenceOptions seq_dim:i batch_dim:i
MatrixDiagOptions; QuantizeOptions; MatrixSetDiagOptions; HardSwishOptions
IfOptions then_subgraph_index:i else_subgraph_index:i
WhileOptions cond_subgraph_index:i body_subgraph_index:i
DepthToSpaceOptions block_size:i
NonMaxSuppressionV4Options; NonMaxSuppressionV5Options; ScatterNdOptions; SelectV2Options;
DensifyOptions; SegmentSumOptions
BatchMatMulOptions adj_x:? adj_y:? asymmetric_quantize_inputs:?
CumsumOptions exclusive:? reverse:?
CallOnceOptions init_subgraph_index:i
BroadcastToOptions; Rfft2dOptions
Conv3DOptions padding:b stride_d:i stride_w:i stride_h:i fused_activation_function:b
    dilation_d_factor:i=1 dilation_w_factor:i=1 dilation_h_factor:i=1
HashtableOptions table_id:i key_dtype:b value_dtype:b
HashtableFindOptions; HashtableImportOptions; HashtableSizeOptions
VarHandleOptions container:str shared_name:str
ReadVariableOptions; AssignVariableOptions
RandomOptions seed:q seed2:q
BucketizeOptions boundaries:[f4]
GeluOptions approximate:?
DynamicUpdateSliceOptions; UnsortedSegmentProdOptions; UnsortedSegmentMaxOptions;
UnsortedSegmentMinOptions; UnsortedSegmentSumOptions; ATan2Options; SignOptions; BitcastOptions;
BitwiseXorOptions; RightShiftOptions
"""
"""The union ``BuiltinOptions``: the number of a table is its position."""

_SECOND = """
NONE
StablehloConcatenateOptions dimension:q
StablehloBroadcastInDimOptions broadcast_dimensions:[i8]
StablehloSliceOptions start_indices:[i8] limit_indices:[i8] strides:[i8]
StablehloConvolutionOptions window_strides:[i8] padding:[i8] lhs_dilation:[i8] rhs_dilation:[i8]
    window_reversal:[u1] input_batch_dimension:q input_feature_dimension:q
    input_spatial_dimensions:[i8] kernel_input_feature_dimension:q
    kernel_output_feature_dimension:q kernel_spatial_dimensions:[i8] output_batch_dimension:q
    output_feature_dimension:q output_spatial_dimensions:[i8] feature_group_count:q
    batch_group_count:q precision_config:[u4]
StablehloCustomCallOptions call_target_name:str has_side_effect:? backend_config:[u1] api_version:i
    called_computations:[i4] custom_attributes:[u1]
StablehloReduceOptions dimensions:[i8] body_subgraph_index:i
StablehloScatterOptions indices_are_sorted:? update_window_dims:[i8] inserted_window_dims:[i8]
    scatter_dims_to_operand_dims:[i8] index_vector_dim:q unique_indices:?
    update_computation_subgraph_index:i
StablehloCompareOptions comparison_direction:I compare_type:I
StablehloDynamicSliceOptions slice_sizes:[i8]
StablehloPadOptions edge_padding_low:[i8] edge_padding_high:[i8] interior_padding:[i8]
StablehloIotaOptions iota_dimension:q
StablehloDotGeneralOptions lhs_batching_dimensions:[i8] rhs_batching_dimensions:[i8]
    lhs_contracting_dimensions:[i8] rhs_contracting_dimensions:[i8] precision_config:[u4]
StablehloReduceWindowOptions window_dimensions:[i8] window_strides:[i8] base_dilations:[i8]
    window_dilations:[i8] padding:[i8] body_subgraph_index:i
StablehloSortOptions dimension:q is_stable:? comparator_subgraph_index:i
StablehloWhileOptions cond_subgraph_index:i body_subgraph_index:i
StablehloGatherOptions offset_dims:[i8] collapsed_slice_dims:[i8] start_index_map:[i8]
    index_vector_dim:q slice_sizes:[i8] indices_are_sorted:?
StablehloTransposeOptions permutation:[i8]
DilateOptions
StablehloRngBitGeneratorOptions algorithm:b
ReduceWindowOptions reduce_function:i
StableHLOCompositeOptions name:str decomposition_subgraph_index:i composite_attributes:[u1]
    composite_attributes_format:b version:i
StablehloShiftLeftOptions
StablehloCaseOptions branch_subgraph_indices:[i4]
"""
"""The union ``BuiltinOptions2``."""


def _field(text: str) -> tuple[str, type, Any]:
    name, _, kind = text.partition(":")
    kind, _, default = kind.partition("=")
    if kind == "*":
        return name, object, unread()
    if kind == "str":
        return name, str, string()
    if kind.startswith("["):
        return name, object, vector(kind[1:-1])
    return name, object, scalar(kind, int(default or 0))


def _tables(text: str) -> dict[int, type[Table]]:
    classes = {}
    for number, entry in enumerate(re.split(r"(?:;\s|\n)(?! )", text.strip())):
        name, *fields = entry.split()
        classes[number] = dataclasses.make_dataclass(
            name, map(_field, fields), bases=(Table,), frozen=True
        )
    del classes[0]
    return classes


OPTIONS = _tables(_FIRST)
"""The classes of the union ``BuiltinOptions``, by their numbers there."""

OPTIONS_2 = _tables(_SECOND)
"""The classes of the union ``BuiltinOptions2``."""

_BY_NAME = {
    each.__name__.upper(): each.__name__ for each in (*OPTIONS.values(), *OPTIONS_2.values())
}
_OTHER_NAMES = {
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), "MaximumMinimumOptions"),
    **dict.fromkeys(("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"), "RandomOptions"),
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL"),
        "ReducerOptions",
    ),
}


def expected_options(operator: str) -> str | None:
    """Return the name of the table of an operator's options; None if it has no table."""
    plain = operator.replace("_", "") + "OPTIONS"
    return _OTHER_NAMES.get(operator) or _BY_NAME.get(plain)
