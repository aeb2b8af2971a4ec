"""Record of the options, inputs and fields of an operator that its importer reads.

An item that is unread after the operator has been computed is an error that names it, unless it is
listed here as an item that cannot change a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.read_record import Irrelevant, ReadRecord
from ...errors import Place, UnsupportedError
from ..flatbuffer import UNKNOWN
from .reading.model import Operator
from .reading.operator_options import expected_options
from .reading.schema import TENSOR_TYPES

_ACCUMULATOR_TYPES = tuple(TENSOR_TYPES.index(name) for name in ("INT32", "INT64"))
_COMMON = (
    Irrelevant(
        "asymmetric_quantize_inputs",
        "controls the 8-bit rounding of activations, which only --activations int8 applies",
    ),
    Irrelevant(
        "quantized_bias_type", "is the accumulator type of 16-bit activations", _ACCUMULATOR_TYPES
    ),
    Irrelevant("proj_clip", "clips a projection, whose importer reads it"),
    Irrelevant("pot_scale_int16", "is a property of 16-bit operands alone"),
)
"""Options of several operators. An importer reads them where they matter."""

_OPTIONS = {
    "CAST": (Irrelevant("*_data_type", "repeats the types of the tensors"),),
    "DEPTHWISE_CONV_2D": (
        Irrelevant("depth_multiplier", "repeats the shapes of filters and images"),
    ),
    "RESIZE_BILINEAR": (Irrelevant("new_*", "was replaced by input 1"),),
    "SPARSE_TO_DENSE": (
        Irrelevant("validate_indices", "requests a check that indices are ordered"),
    ),
    "STABLEHLO_COMPOSITE": tuple(
        Irrelevant(name, "describes the function of the decomposition")
        for name in ("name", "composite_attributes*", "version")
    ),
}

_INTERMEDIATES = {
    name: (Irrelevant("*", "has the scale of a gate before a normalization that is absent"),)
    for name in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM")
}


_VERSIONS = {
    name: int(version)
    for name, _, version in (
        entry.partition(":")
        for entry in """
ABS:5 ADD:6 ARG_MAX:3 ARG_MIN:3 AVERAGE_POOL_2D:3 BATCH_MATMUL:4 BATCH_TO_SPACE_ND:4
BIDIRECTIONAL_SEQUENCE_LSTM:3 BIDIRECTIONAL_SEQUENCE_RNN:3 BROADCAST_TO:4 CAST:9 CONCATENATION:7
CONV_2D:8 COS:2 DEPTHWISE_CONV_2D:7 DEPTH_TO_SPACE:2 DEQUANTIZE:9 DIV:2 DYNAMIC_UPDATE_SLICE:6
EMBEDDING_LOOKUP:5 EQUAL:5 EXP:2 FAKE_QUANT:2 FILL:5 FLOOR_DIV:3 FLOOR_MOD:2 FULLY_CONNECTED:14
GATHER:8 GATHER_ND:6 GELU:3 GREATER:2 GREATER_EQUAL:3 L2_NORMALIZATION:2 LEAKY_RELU:2 LESS:3
LESS_EQUAL:2 LOG:2 LOGISTIC:3 LOG_SOFTMAX:2 LSTM:4 MAXIMUM:4 MAX_POOL_2D:3 MEAN:3 MINIMUM:4
MIRROR_PAD:3 MUL:8 NOT_EQUAL:4 PACK:5 PAD:6 PADV2:6 QUANTIZE:6 RANGE:2 REDUCE_MAX:3 REDUCE_MIN:3
REDUCE_PROD:2 RELU:3 RELU6:3 RESIZE_BILINEAR:4 RESIZE_NEAREST_NEIGHBOR:4 REVERSE_V2:4 RNN:3 RSQRT:3
SELECT:4 SELECT_V2:2 SIGN:2 SIN:2 SLICE:8 SOFTMAX:4 SPACE_TO_BATCH_ND:4 SPACE_TO_DEPTH:2
SPARSE_TO_DENSE:3 SPLIT:5 SPLIT_V:3 SQRT:2 SQUARED_DIFFERENCE:2 SQUEEZE:2 STRIDED_SLICE:8 SUB:5
SUM:2 SVDF:4 TANH:3 TILE:3 TOPK_V2:3 TRANSPOSE:9 TRANSPOSE_CONV:5 UNIDIRECTIONAL_SEQUENCE_LSTM:4
UNIDIRECTIONAL_SEQUENCE_RNN:3 UNPACK:6
""".split()  # noqa: SIM905  (a table)
    )
}
"""The greatest version of each operator in LiteRT 2.3.0; 1 for all others."""


class OperatorRecord:
    """Records the options, inputs and fields of an operator that are read.

    An optional input that is absent is None. Errors have the location.
    """

    def __init__(self, operator: Operator, inputs: Sequence[Any], location: Place) -> None:
        self._operator, self._location = operator, location
        self._record = ReadRecord(location, str(operator))
        options = operator.options.stated()
        expected = expected_options(operator.name)
        name = type(operator.options).__name__
        if options and name != expected:
            # LiteRT ignores the options of another operator, and takes defaults.
            options = {name: UNKNOWN}
        self._options = options
        irrelevant = (*_COMMON, *_OPTIONS.get(operator.name, ()))
        self.options = self._record.track("option", options, irrelevant)
        self.inputs = self._record.track(
            "input", {str(n): each for n, each in enumerate(inputs) if each is not None}
        )
        intermediates = {
            str(n): each for n, each in enumerate(operator.intermediates) if each is not None
        }
        self.intermediates = self._record.track(
            "intermediate", intermediates, _INTERMEDIATES.get(operator.name, ())
        )
        self._record.track("field", operator.unread)

    def custom_options(
        self, options: Mapping[str, Any], irrelevant: Sequence[Irrelevant]
    ) -> Mapping[str, Any]:
        """Return the options of a custom operator, and record which are read."""
        return self._record.track("option", options, irrelevant)

    def finish_uncomputed(self) -> None:
        """Check an operator that is never computed: of a branch that is never taken.

        Its options and inputs cannot change a result. An unknown field or a newer version belongs
        to a newer schema, and is refused as in computed operators.

        Raises:
            UnsupportedError: the operator has unknown fields, or is of a newer version.
        """
        for name, value in self._options.items():
            if value is not UNKNOWN:
                self.options.get(name)
        for tracked in (self.inputs, self.intermediates):
            tracked.names_read |= set(tracked)
        self.finish()

    def finish(self) -> None:
        """Raise UnsupportedError for an item that was not read, or a newer version."""
        operator = self._operator
        latest = _VERSIONS.get(operator.name, 1)
        if operator.version > latest:
            raise UnsupportedError(
                f"{operator} has the version {operator.version}, expected at most {latest}",
                self._location,
            )
        self._record.finish()
