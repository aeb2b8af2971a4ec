"""Signatures of TensorFlow Lite files that disagree with their graphs."""

from __future__ import annotations

import pytest

from subquant.errors import SubquantError
from subquant.importers.tflite.reading.model import read_tflite
from test_tflite_unread_fields import activation
from tflite_builder import file_of, read_object, schema


def test_a_signature_that_names_another_tensor_is_an_error() -> None:
    s = schema()
    model = read_object(activation())
    signature = s.SignatureDefT()
    signature.signatureKey, signature.inputs, signature.outputs = b"main", [], []
    for side, index, name in ((signature.inputs, 0, b"x"), (signature.inputs, 1, b"z"),
                              (signature.outputs, 1, b"y")):  # fmt: skip
        entry = s.TensorMapT()
        entry.name, entry.tensorIndex = name, index
        side.append(entry)
    model.signatureDefs = [signature]
    with pytest.raises(SubquantError, match="signature 'main' names tensor 1 'z', which is no"):
        read_tflite(file_of(model))
