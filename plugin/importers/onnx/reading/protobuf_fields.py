"""Accounts for the fields of an ONNX protobuf: each is read, irrelevant, or an error.

A protobuf keeps fields that its reader does not know, and a reader easily forgets one that is new.
So every message of a model is walked: a field that `model` does not read, and a field number that
the package `onnx` does not know, are refused by name.

Source: ``onnx.proto``, version 1.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.read_record import Irrelevant, ReadRecord
from ....errors import Place

_DESCRIPTION = (
    Irrelevant("doc_string", "is documentation"),
    Irrelevant("metadata_props", "describes; no operator reads it"),
)

_READ: Mapping[str, frozenset[str]] = {
    "ModelProto": frozenset(("ir_version", "opset_import", "graph", "functions")),
    "OperatorSetIdProto": frozenset(("domain", "version")),
    "GraphProto": frozenset(("name", "node", "initializer", "sparse_initializer", "input",
                             "output")),
    "NodeProto": frozenset(("input", "output", "name", "op_type", "domain", "attribute")),
    "AttributeProto": frozenset(("name", "type", "f", "i", "s", "t", "g", "sparse_tensor", "tp",
                                 "floats", "ints", "strings", "tensors", "graphs")),
    "ValueInfoProto": frozenset(("name", "type")),
    "TypeProto": frozenset(("tensor_type", "sequence_type", "map_type", "optional_type",
                            "sparse_tensor_type", "opaque_type")),
    "Tensor": frozenset(("elem_type", "shape")),
    "TensorShapeProto": frozenset(("dim",)),
    "Dimension": frozenset(("dim_value", "dim_param")),
    "SparseTensorProto": frozenset(("values", "indices", "dims")),
}  # fmt: skip
"""The fields that the reader of models reads, by message. Other messages are walked elsewhere."""

_IRRELEVANT: Mapping[str, tuple[Irrelevant, ...]] = {
    "ModelProto": (
        *_DESCRIPTION,
        Irrelevant("producer_name", "names the exporter"),
        Irrelevant("producer_version", "names the exporter"),
        Irrelevant("domain", "names the model"),
        Irrelevant("model_version", "names the model"),
        Irrelevant("training_info", "holds in training only"),
        Irrelevant("configuration", "places nodes on devices"),
    ),
    "GraphProto": (
        *_DESCRIPTION,
        Irrelevant("value_info", "repeats shapes, and types that are compared"),
        Irrelevant("quantization_annotation", "repeats scales that nodes have as operands"),
    ),
    "NodeProto": (*_DESCRIPTION, Irrelevant("device_configurations", "places a node on devices")),
    "AttributeProto": _DESCRIPTION,
    "ValueInfoProto": _DESCRIPTION,
    "TypeProto": (Irrelevant("denotation", "names the meaning of a dimension"),),
    "Dimension": (Irrelevant("denotation", "names the meaning of a dimension"),),
}


def check_fields(message: Any, location: Place, subject: str = "") -> None:
    """Check that the fields of a message, and of all messages in it, are read or irrelevant.

    Args:
        message: a ``ModelProto`` after its functions are inlined.
        subject: the name of the message in the error; the model if it is empty.

    Raises:
        UnsupportedError: there is another field; the message names it.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    kind = message.DESCRIPTOR.name
    unknown = {f"number {field.field_number}": kind for field in UnknownFieldSet(message)}
    if unknown:
        record = ReadRecord(location, subject)
        record.track(f"unknown field of {kind}", unknown)
        record.finish()
    if kind not in _READ:  # TensorProto: its data is large, and is read whole
        return
    fields = {field.name: value for field, value in message.ListFields()}
    record = ReadRecord(location, subject)
    tracked = record.track(f"field of {kind}", fields, _IRRELEVANT.get(kind, ()))
    for name in _READ[kind] & fields.keys():
        value = tracked[name]
        if message.DESCRIPTOR.fields_by_name[name].message_type is None:
            continue
        repeated = value if hasattr(value, "__len__") else (value,)
        for index, each in enumerate(repeated):
            check_fields(each, location, _subject(subject, name, index, each))
    record.finish()


def _subject(owner: str, name: str, index: int, message: Any) -> str:
    """Return how an error names a message: a node as `Node` does, another message as its owner."""
    if message.DESCRIPTOR.name != "NodeProto":
        return owner
    operator = f"{message.domain}.{message.op_type}" if message.domain else message.op_type
    named = f" {message.name!r}" if message.name else ""
    return f"{owner + ', ' if owner else ''}node {index} ({operator}){named}"
