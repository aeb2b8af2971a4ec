"""The tables of a TensorFlow Lite model that are read, as `subquant.formats.flatbuffer` needs them.

Fields are in the order of the schema; after the last that is read, the others are left out. The
names, numbers and defaults are the schema's.

Source: ``schema.fbs`` of LiteRT, version 3d.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..numerics.element_types import Array
from .flatbuffer import scalar, string, table, tables, union, vector

__all__ = ["ACTIVATIONS", "MAGIC", "OPERATORS", "PADDINGS", "TENSOR_TYPES", "ModelTable"]

MAGIC = b"TFL3"
"""What bytes 4 to 7 of a model are."""

TENSOR_TYPES = (
    "FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64",
    "INT8", "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16", "INT4",
    "BFLOAT16", "INT2", "UINT4", "FLOAT8_E4M3FN", "FLOAT8_E5M2",
)  # fmt: skip

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
PADDINGS = ("SAME", "VALID")

OPERATORS = tuple(
    """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX
MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV
SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT
REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU
REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM
STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM
STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT
STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA
STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER
STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE
STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
""".split()  # noqa: SIM905  (210 names)
)
"""The names of operators; the number of each is its place."""


# -- quantization ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockwiseQuantization:
    """Scales and zero points in tensors of their own, by their numbers; -1 for none."""

    scales: int = scalar("i")
    zero_points: int = scalar("i")
    block_size: int = scalar("i")


@dataclass(frozen=True)
class QuantizationTable:
    """``real = scale * (storage - zero_point)``, for the whole tensor or along one dimension."""

    min: Array = vector("f4")
    max: Array = vector("f4")
    scale: Array = vector("f4")
    zero_point: Array = vector("i8")
    details_type: int = scalar("B")
    details: BlockwiseQuantization | None = union(
        "details_type", lambda: {2: BlockwiseQuantization}
    )
    quantized_dimension: int = scalar("i")


@dataclass(frozen=True)
class SparsityTable:
    """A tensor that is stored sparse: its fields are not read."""


@dataclass(frozen=True)
class TensorTable:
    """A tensor: of a buffer, or computed."""

    shape: Array = vector("i4")
    type: int = scalar("b")
    buffer: int = scalar("I")
    name: str = string()
    quantization: QuantizationTable | None = table(lambda: QuantizationTable)
    is_variable: bool = scalar("?")
    sparsity: SparsityTable | None = table(lambda: SparsityTable)
    shape_signature: Array = vector("i4")
    has_rank: bool = scalar("?")
    variant_tensors: tuple[SparsityTable, ...] = tables(lambda: SparsityTable)
    external_buffer: int = scalar("I")


# -- options of operators -------------------------------------------------------------------------


@dataclass(frozen=True)
class Conv2DOptions:
    """Of CONV_2D."""

    padding: int = scalar("b")
    stride_w: int = scalar("i")
    stride_h: int = scalar("i")
    fused_activation_function: int = scalar("b")
    dilation_w_factor: int = scalar("i", 1)
    dilation_h_factor: int = scalar("i", 1)
    quantized_bias_type: int = scalar("b")


@dataclass(frozen=True)
class DepthwiseConv2DOptions:
    """Of DEPTHWISE_CONV_2D."""

    padding: int = scalar("b")
    stride_w: int = scalar("i")
    stride_h: int = scalar("i")
    depth_multiplier: int = scalar("i")
    fused_activation_function: int = scalar("b")
    dilation_w_factor: int = scalar("i", 1)
    dilation_h_factor: int = scalar("i", 1)


@dataclass(frozen=True)
class Pool2DOptions:
    """Of AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D."""

    padding: int = scalar("b")
    stride_w: int = scalar("i")
    stride_h: int = scalar("i")
    filter_width: int = scalar("i")
    filter_height: int = scalar("i")
    fused_activation_function: int = scalar("b")


@dataclass(frozen=True)
class SVDFOptions:
    """Of SVDF."""

    rank: int = scalar("i")
    fused_activation_function: int = scalar("b")
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class FullyConnectedOptions:
    """Of FULLY_CONNECTED."""

    fused_activation_function: int = scalar("b")
    weights_format: int = scalar("b")
    keep_num_dims: bool = scalar("?")
    asymmetric_quantize_inputs: bool = scalar("?")
    quantized_bias_type: int = scalar("b")


@dataclass(frozen=True)
class SoftmaxOptions:
    """Of SOFTMAX."""

    beta: float = scalar("f")


@dataclass(frozen=True)
class ConcatenationOptions:
    """Of CONCATENATION."""

    axis: int = scalar("i")
    fused_activation_function: int = scalar("b")


@dataclass(frozen=True)
class AddOptions:
    """Of ADD and SUB."""

    fused_activation_function: int = scalar("b")
    pot_scale_int16: bool = scalar("?", True)


@dataclass(frozen=True)
class ActivationOptions:
    """Of MUL, DIV and L2_NORMALIZATION."""

    fused_activation_function: int = scalar("b")


@dataclass(frozen=True)
class LocalResponseNormalizationOptions:
    """Of LOCAL_RESPONSE_NORMALIZATION."""

    radius: int = scalar("i")
    bias: float = scalar("f")
    alpha: float = scalar("f")
    beta: float = scalar("f")


@dataclass(frozen=True)
class ResizeBilinearOptions:
    """Of RESIZE_BILINEAR."""

    new_height: int = scalar("i")
    new_width: int = scalar("i")
    align_corners: bool = scalar("?")
    half_pixel_centers: bool = scalar("?")


@dataclass(frozen=True)
class ResizeNearestNeighborOptions:
    """Of RESIZE_NEAREST_NEIGHBOR."""

    align_corners: bool = scalar("?")
    half_pixel_centers: bool = scalar("?")


@dataclass(frozen=True)
class CallOptions:
    """Of CALL."""

    subgraph: int = scalar("I")


@dataclass(frozen=True)
class ReshapeOptions:
    """Of RESHAPE."""

    new_shape: Array = vector("i4")


@dataclass(frozen=True)
class BlockSizeOptions:
    """Of SPACE_TO_DEPTH and DEPTH_TO_SPACE."""

    block_size: int = scalar("i")


@dataclass(frozen=True)
class GatherOptions:
    """Of GATHER."""

    axis: int = scalar("i")
    batch_dims: int = scalar("i")


@dataclass(frozen=True)
class ReducerOptions:
    """Of MEAN, SUM, REDUCE_MAX and so on."""

    keep_dims: bool = scalar("?")


@dataclass(frozen=True)
class SqueezeOptions:
    """Of SQUEEZE."""

    squeeze_dims: Array = vector("i4")


@dataclass(frozen=True)
class SplitOptions:
    """Of SPLIT and SPLIT_V."""

    num_splits: int = scalar("i")


@dataclass(frozen=True)
class StridedSliceOptions:
    """Of STRIDED_SLICE."""

    begin_mask: int = scalar("i")
    end_mask: int = scalar("i")
    ellipsis_mask: int = scalar("i")
    new_axis_mask: int = scalar("i")
    shrink_axis_mask: int = scalar("i")
    offset: bool = scalar("?")


@dataclass(frozen=True)
class TransposeConvOptions:
    """Of TRANSPOSE_CONV."""

    padding: int = scalar("b")
    stride_w: int = scalar("i")
    stride_h: int = scalar("i")
    fused_activation_function: int = scalar("b")
    quantized_bias_type: int = scalar("b")


@dataclass(frozen=True)
class UnidirectionalSequenceLSTMOptions:
    """Of UNIDIRECTIONAL_SEQUENCE_LSTM."""

    fused_activation_function: int = scalar("b")
    cell_clip: float = scalar("f")
    proj_clip: float = scalar("f")
    time_major: bool = scalar("?")
    asymmetric_quantize_inputs: bool = scalar("?")
    diagonal_recurrent_tensors: bool = scalar("?")


@dataclass(frozen=True)
class LSTMOptions:
    """Of LSTM."""

    fused_activation_function: int = scalar("b")
    cell_clip: float = scalar("f")
    proj_clip: float = scalar("f")
    kernel_type: int = scalar("b")
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class BidirectionalSequenceLSTMOptions:
    """Of BIDIRECTIONAL_SEQUENCE_LSTM."""

    fused_activation_function: int = scalar("b")
    cell_clip: float = scalar("f")
    proj_clip: float = scalar("f")
    merge_outputs: bool = scalar("?")
    time_major: bool = scalar("?", True)
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class RNNOptions:
    """Of RNN."""

    fused_activation_function: int = scalar("b")
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class SequenceRNNOptions:
    """Of UNIDIRECTIONAL_SEQUENCE_RNN."""

    time_major: bool = scalar("?")
    fused_activation_function: int = scalar("b")
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class BidirectionalSequenceRNNOptions:
    """Of BIDIRECTIONAL_SEQUENCE_RNN."""

    time_major: bool = scalar("?")
    fused_activation_function: int = scalar("b")
    merge_outputs: bool = scalar("?")
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class PackOptions:
    """Of PACK."""

    values_count: int = scalar("i")
    axis: int = scalar("i")


@dataclass(frozen=True)
class UnpackOptions:
    """Of UNPACK."""

    num: int = scalar("i")
    axis: int = scalar("i")


@dataclass(frozen=True)
class LeakyReluOptions:
    """Of LEAKY_RELU."""

    alpha: float = scalar("f")


@dataclass(frozen=True)
class MirrorPadOptions:
    """Of MIRROR_PAD."""

    mode: int = scalar("b")


@dataclass(frozen=True)
class ReverseSequenceOptions:
    """Of REVERSE_SEQUENCE."""

    seq_dim: int = scalar("i")
    batch_dim: int = scalar("i")


@dataclass(frozen=True)
class FakeQuantOptions:
    """Of FAKE_QUANT."""

    min: float = scalar("f")
    max: float = scalar("f")
    num_bits: int = scalar("i")
    narrow_range: bool = scalar("?")


@dataclass(frozen=True)
class BucketizeOptions:
    """Of BUCKETIZE."""

    boundaries: Array = vector("f4")


@dataclass(frozen=True)
class Conv3DOptions:
    """Of CONV_3D and CONV_3D_TRANSPOSE."""

    padding: int = scalar("b")
    stride_d: int = scalar("i")
    stride_w: int = scalar("i")
    stride_h: int = scalar("i")
    fused_activation_function: int = scalar("b")
    dilation_d_factor: int = scalar("i", 1)
    dilation_w_factor: int = scalar("i", 1)
    dilation_h_factor: int = scalar("i", 1)


@dataclass(frozen=True)
class IfOptions:
    """Of IF."""

    then_subgraph_index: int = scalar("i")
    else_subgraph_index: int = scalar("i")


@dataclass(frozen=True)
class WhileOptions:
    """Of WHILE."""

    cond_subgraph_index: int = scalar("i")
    body_subgraph_index: int = scalar("i")


@dataclass(frozen=True)
class CallOnceOptions:
    """Of CALL_ONCE."""

    init_subgraph_index: int = scalar("i")


@dataclass(frozen=True)
class BatchMatMulOptions:
    """Of BATCH_MATMUL."""

    adj_x: bool = scalar("?")
    adj_y: bool = scalar("?")
    asymmetric_quantize_inputs: bool = scalar("?")


@dataclass(frozen=True)
class VarHandleOptions:
    """Of VAR_HANDLE."""

    container: str = string()
    shared_name: str = string()


@dataclass(frozen=True)
class OneHotOptions:
    """Of ONE_HOT."""

    axis: int = scalar("i")


@dataclass(frozen=True)
class CumsumOptions:
    """Of CUMSUM."""

    exclusive: bool = scalar("?")
    reverse: bool = scalar("?")


@dataclass(frozen=True)
class GeluOptions:
    """Of GELU."""

    approximate: bool = scalar("?")


_OPTIONS: dict[int, type] = {
    1: Conv2DOptions,
    2: DepthwiseConv2DOptions,
    5: Pool2DOptions,
    6: SVDFOptions,
    7: RNNOptions,
    8: FullyConnectedOptions,
    9: SoftmaxOptions,
    10: ConcatenationOptions,
    11: AddOptions,
    12: ActivationOptions,
    13: LocalResponseNormalizationOptions,
    14: LSTMOptions,
    15: ResizeBilinearOptions,
    16: CallOptions,
    17: ReshapeOptions,
    19: BlockSizeOptions,
    21: ActivationOptions,
    23: GatherOptions,
    27: ReducerOptions,
    28: AddOptions,
    29: ActivationOptions,
    30: SqueezeOptions,
    31: SequenceRNNOptions,
    32: StridedSliceOptions,
    35: SplitOptions,
    49: TransposeConvOptions,
    58: FakeQuantOptions,
    59: PackOptions,
    61: OneHotOptions,
    64: UnpackOptions,
    69: BidirectionalSequenceLSTMOptions,
    70: BidirectionalSequenceRNNOptions,
    71: UnidirectionalSequenceLSTMOptions,
    74: ResizeNearestNeighborOptions,
    75: LeakyReluOptions,
    77: MirrorPadOptions,
    79: SplitOptions,
    87: ReverseSequenceOptions,
    92: IfOptions,
    93: WhileOptions,
    94: BlockSizeOptions,
    101: BatchMatMulOptions,
    103: CallOnceOptions,
    102: CumsumOptions,
    106: Conv3DOptions,
    111: VarHandleOptions,
    115: BucketizeOptions,
    116: GeluOptions,
}
"""The classes of the union ``BuiltinOptions``, by their numbers there."""


@dataclass(frozen=True)
class StablehloPadOptions:
    """Of STABLEHLO_PAD."""

    edge_padding_low: Array = vector("i8")
    edge_padding_high: Array = vector("i8")
    interior_padding: Array = vector("i8")


@dataclass(frozen=True)
class StableHLOCompositeOptions:
    """Of STABLEHLO_COMPOSITE: the name of a function, and the graph that computes it."""

    name: str = string()
    decomposition_subgraph_index: int = scalar("i")


@dataclass(frozen=True)
class StablehloCaseOptions:
    """Of STABLEHLO_CASE."""

    branch_subgraph_indices: Array = vector("i4")


_MORE_OPTIONS: dict[int, type] = {
    10: StablehloPadOptions,
    21: StableHLOCompositeOptions,
    23: StablehloCaseOptions,
}
"""The classes of the union ``BuiltinOptions2``."""


# -- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorCodeTable:
    """What operator is meant: by the greater of two numbers, the first of 8 bits."""

    deprecated_builtin_code: int = scalar("b")
    custom_code: str = string()
    version: int = scalar("i", 1)
    builtin_code: int = scalar("i")


@dataclass(frozen=True)
class OperatorTable:
    """An operator: tensors by their numbers, -1 for an optional one that is absent."""

    opcode_index: int = scalar("I")
    inputs: Array = vector("i4")
    outputs: Array = vector("i4")
    builtin_options_type: int = scalar("B")
    builtin_options: object = union("builtin_options_type", lambda: _OPTIONS)
    custom_options: Array = vector("u1")
    custom_options_format: int = scalar("b")
    mutating_variable_inputs: Array = vector("u1")
    intermediates: Array = vector("i4")
    large_custom_options_offset: int = scalar("Q")
    large_custom_options_size: int = scalar("Q")
    builtin_options_2_type: int = scalar("B")
    builtin_options_2: object = union("builtin_options_2_type", lambda: _MORE_OPTIONS)


@dataclass(frozen=True)
class SubgraphTable:
    """A graph: operators in the order of execution."""

    tensors: tuple[TensorTable, ...] = tables(lambda: TensorTable)
    inputs: Array = vector("i4")
    outputs: Array = vector("i4")
    operators: tuple[OperatorTable, ...] = tables(lambda: OperatorTable)
    name: str = string()


@dataclass(frozen=True)
class BufferTable:
    """The bytes of constant tensors; in the file after the flatbuffer if `offset` is above 1."""

    data: Array = vector("u1")
    offset: int = scalar("Q")
    size: int = scalar("Q")


@dataclass(frozen=True)
class TensorMapTable:
    """The name of an argument or result in a signature."""

    name: str = string()
    tensor_index: int = scalar("I")


@dataclass(frozen=True)
class MetadataTable:
    """A named buffer."""

    name: str = string()
    buffer: int = scalar("I")


@dataclass(frozen=True)
class SignatureTable:
    """A function of the model by name."""

    inputs: tuple[TensorMapTable, ...] = tables(lambda: TensorMapTable)
    outputs: tuple[TensorMapTable, ...] = tables(lambda: TensorMapTable)
    signature_key: str = string()
    deprecated_tag: str = string()
    subgraph_index: int = scalar("I")


@dataclass(frozen=True)
class ModelTable:
    """The root."""

    version: int = scalar("I")
    operator_codes: tuple[OperatorCodeTable, ...] = tables(lambda: OperatorCodeTable)
    subgraphs: tuple[SubgraphTable, ...] = tables(lambda: SubgraphTable)
    description: str = string()
    buffers: tuple[BufferTable, ...] = tables(lambda: BufferTable)
    metadata_buffer: Array = vector("i4")
    metadata: tuple[MetadataTable, ...] = tables(lambda: MetadataTable)
    signature_defs: tuple[SignatureTable, ...] = tables(lambda: SignatureTable)
