"""Tables of a TensorFlow Lite model, for `subquant.importers.flatbuffer`.

Fields are in the order of the schema, with its names, numbers and defaults. A test compares them
with the schema that LiteRT generates.

Source: ``schema.fbs`` of LiteRT, version 3d.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

from ....numerics.element_types import Array
from ...flatbuffer import Table, scalar, string, table, tables, union, unread, vector
from .operator_options import OPTIONS, OPTIONS_2

MAGIC = b"TFL3"
"""Bytes 4 to 7 of a model."""

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
"""The names of operators, by their numbers in the schema."""


# -- quantization ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockwiseQuantization(Table):
    """Scales and zero points in other tensors, by their numbers; -1 for none."""

    scales: int = scalar("i")
    zero_points: int = scalar("i")
    block_size: int = scalar("i")
    block_shape: Array = vector("i4")


@dataclass(frozen=True)
class QuantizationTable(Table):
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


Int32Vector, Uint16Vector, Uint8Vector = (
    make_dataclass(name, [("values", Array, vector(kind))], bases=(Table,), frozen=True)
    for name, kind in (("Int32Vector", "i4"), ("Uint16Vector", "u2"), ("Uint8Vector", "u1"))
)
_VECTORS = {1: Int32Vector, 2: Uint16Vector, 3: Uint8Vector}
"""The tables of the union ``SparseIndexVector``."""


@dataclass(frozen=True)
class DimensionTable(Table):
    """A level of a sparse tensor: dense (0), or compressed sparse rows (1)."""

    format: int = scalar("b")
    dense_size: int = scalar("i")
    array_segments_type: int = scalar("B")
    array_segments: Any = union("array_segments_type", lambda: _VECTORS)
    array_indices_type: int = scalar("B")
    array_indices: Any = union("array_indices_type", lambda: _VECTORS)


@dataclass(frozen=True)
class SparsityTable(Table):
    """The order and the positions of the stored elements of a sparse tensor."""

    traversal_order: Array = vector("i4")
    block_map: Array = vector("i4")
    dim_metadata: tuple[DimensionTable, ...] = tables(lambda: DimensionTable)


@dataclass(frozen=True)
class TensorTable(Table):
    """A tensor: a constant in a buffer, or computed."""

    shape: Array = vector("i4")
    type: int = scalar("b")
    buffer: int = scalar("I")
    name: str = string()
    quantization: QuantizationTable | None = table(lambda: QuantizationTable)
    is_variable: bool = scalar("?")
    sparsity: SparsityTable | None = table(lambda: SparsityTable)
    shape_signature: Array = vector("i4")
    has_rank: bool = scalar("?")
    variant_tensors: object = unread()
    external_buffer: int = scalar("I")


# -- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorCodeTable(Table):
    """The kind of an operator: the greater of two numbers, of which the first has 8 bits."""

    deprecated_builtin_code: int = scalar("b")
    custom_code: str = string()
    version: int = scalar("i", 1)
    builtin_code: int = scalar("i")


@dataclass(frozen=True)
class OperatorTable(Table):
    """An operator: tensors by their numbers, -1 for an optional one that is absent."""

    opcode_index: int = scalar("I")
    inputs: Array = vector("i4")
    outputs: Array = vector("i4")
    builtin_options_type: int = scalar("B")
    builtin_options: Table | None = union("builtin_options_type", lambda: OPTIONS)
    custom_options: Array = vector("u1")
    custom_options_format: int = scalar("b")
    mutating_variable_inputs: Array = vector("u1")
    intermediates: Array = vector("i4")
    large_custom_options_offset: int = scalar("Q")
    large_custom_options_size: int = scalar("Q")
    builtin_options_2_type: int = scalar("B")
    builtin_options_2: Table | None = union("builtin_options_2_type", lambda: OPTIONS_2)
    debug_metadata_index: int = scalar("i", -1)


@dataclass(frozen=True)
class SubgraphTable(Table):
    """A subgraph: operators in the order of execution."""

    tensors: tuple[TensorTable, ...] = tables(lambda: TensorTable)
    inputs: Array = vector("i4")
    outputs: Array = vector("i4")
    operators: tuple[OperatorTable, ...] = tables(lambda: OperatorTable)
    name: str = string()
    debug_metadata_index: int = scalar("i", -1)


@dataclass(frozen=True)
class BufferTable(Table):
    """The bytes of constant tensors; after the flatbuffer if `offset` is above 1."""

    data: Array = vector("u1")
    offset: int = scalar("Q")
    size: int = scalar("Q")


@dataclass(frozen=True)
class TensorMapTable(Table):
    """The name of an argument or result in a signature."""

    name: str = string()
    tensor_index: int = scalar("I")


@dataclass(frozen=True)
class MetadataTable(Table):
    """A named buffer."""

    name: str = string()
    buffer: int = scalar("I")


@dataclass(frozen=True)
class SignatureTable(Table):
    """A function of the model, with the names of its arguments and results."""

    inputs: tuple[TensorMapTable, ...] = tables(lambda: TensorMapTable)
    outputs: tuple[TensorMapTable, ...] = tables(lambda: TensorMapTable)
    signature_key: str = string()
    deprecated_tag: str = string()
    subgraph_index: int = scalar("I")


@dataclass(frozen=True)
class ModelTable(Table):
    """The root of the file."""

    version: int = scalar("I")
    operator_codes: tuple[OperatorCodeTable, ...] = tables(lambda: OperatorCodeTable)
    subgraphs: tuple[SubgraphTable, ...] = tables(lambda: SubgraphTable)
    description: str = string()
    buffers: tuple[BufferTable, ...] = tables(lambda: BufferTable)
    metadata_buffer: Array = vector("i4")
    metadata: tuple[MetadataTable, ...] = tables(lambda: MetadataTable)
    signature_defs: tuple[SignatureTable, ...] = tables(lambda: SignatureTable)
    external_buffer_groups: object = unread()
    external_buffers: object = unread()
