"""Accounts for all that a file says of an operator: options, inputs, and fields of its table.

An importer reads options, inputs and intermediates through its `Call`, which records them. What is
left after the operator has been computed is an error that names it, unless it is listed here as
something that cannot change a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import Place
from ...formats.flatbuffer import UNKNOWN
from ...formats.tflite import Operator
from ...formats.tflite_options import expected_options
from ...read_record import Irrelevant, ReadRecord

__all__ = ["OperatorRecord"]

_COMMON = (
    Irrelevant(
        "asymmetric_quantize_inputs",
        "says how float activations are rounded to 8 bits, which only --activations int8 does",
    ),
    Irrelevant("quantized_bias_type", "is the type of sums of 16-bit activations alone"),
    Irrelevant("proj_clip", "bounds a projection, which reads it"),
    Irrelevant("pot_scale_int16", "is a property of 16-bit operands alone"),
)
"""Options of several operators. Where they matter, the importer reads them."""

_OPTIONS = {
    "CAST": (Irrelevant("*_data_type", "repeats the types of the tensors"),),
    "DEPTHWISE_CONV_2D": (
        Irrelevant("depth_multiplier", "repeats the shapes of filters and images"),
    ),
    "RESIZE_BILINEAR": (Irrelevant("new_*", "was replaced by input 1"),),
    "SPARSE_TO_DENSE": (
        Irrelevant("validate_indices", "asks for a check that positions are ordered"),
    ),
    "STABLEHLO_COMPOSITE": tuple(
        Irrelevant(name, "describes the function that the decomposition computes")
        for name in ("name", "composite_attributes*", "version")
    ),
}

_INTERMEDIATES = {
    name: (Irrelevant("*", "has the scale of a gate before a normalization that is absent"),)
    for name in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM")
}


class OperatorRecord:
    """What has been read of an operator.

    Args:
        operator: as the file describes it.
        inputs: with their values.
        place: of the file.
    """

    def __init__(self, operator: Operator, inputs: Sequence[Any], place: Place) -> None:
        self._record = ReadRecord(place, str(operator))
        options = operator.options.stated()
        expected = expected_options(operator.name)
        name = type(operator.options).__name__
        if options and name != expected:
            # LiteRT ignores the options of another operator, and takes defaults.
            options = {name: UNKNOWN}
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
        """Return the options of a custom operator, whose lookups are recorded."""
        return self._record.track("option", options, irrelevant)

    def finish(self) -> None:
        """Raise UnsupportedError for what was not read."""
        self._record.finish()
