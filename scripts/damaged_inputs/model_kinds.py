"""Kinds of inputs that are TensorFlow Lite and ONNX models."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from .case import PARSE_LIMIT, Case
from .corpus import Corpus
from .mutations import BOUNDARY_INTEGERS, mutate_bytes


def tflite(rng: random.Random, corpus: Corpus) -> Case:
    """Changed TensorFlow Lite models: bytes, or fields of their tables."""
    if not corpus.tflite:
        data = b"\x1c\0\0\0TFL3" + rng.randbytes(rng.randrange(200))
    elif rng.random() < 0.5:
        data = mutate_bytes(rng, rng.choice(corpus.tflite), most=4)
    else:
        data = mutate_tables(rng, rng.choice(corpus.tflite))
    commands = (
        (["inspect", "x.tflite"], None),
        (["inspect", "x.tflite", "--json"], None),
        (["opt", "x.tflite", "-o", "out.mlir"], "out.mlir"),
        (["compile", "x.tflite", "--emit", "mlir", "-o", "out.mlir",
          "--semantics", rng.choice(("litert", "exact")),
          "--batch", rng.choice(("", "1", "3", "dynamic"))], "out.mlir"),
        (["compile", "x.tflite", "--emit", "mlirbc", "-o", "o.mlirbc", "--every-tensor",
          "--activations", "int8", "--target", "vulkan", "--vulkan-target", "generic"],
         "o.mlirbc"),
    )  # fmt: skip
    arguments, output = rng.choice(commands)
    return Case([*arguments, *PARSE_LIMIT], {"x.tflite": data}, output)


def mutate_tables(rng: random.Random, data: bytes) -> bytes:
    """A model with a few fields changed, and written again."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    fields = list(_fields(model))
    for _ in range(rng.randrange(1, 4)):
        owner, name = rng.choice(fields)
        value = getattr(owner, name)
        if isinstance(value, (bool, int, np.integer)):
            setattr(owner, name, rng.choice(BOUNDARY_INTEGERS))
        elif isinstance(value, float):
            setattr(owner, name, rng.choice((0.0, -1.0, 1e38, 1e-38, float("nan"), float("inf"))))
        elif value is None or isinstance(value, bytes) or hasattr(value, "__dict__"):
            setattr(owner, name, None)
        elif len(value) and isinstance(value[0], (int, float, np.number)):
            listed = [v.item() if isinstance(v, np.number) else v for v in value]
            listed[rng.randrange(len(listed))] = rng.choice(BOUNDARY_INTEGERS)
            setattr(owner, name, listed[: rng.choice((len(listed), len(listed), 0, 1))])
        else:
            setattr(owner, name, list(value)[: rng.randrange(len(value) + 1)])
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except Exception:  # a number that its field has no bits for, a table without a field
        return mutate_bytes(rng, data)
    return bytes(builder.Output())


def _fields(table: Any) -> Iterator[tuple[Any, str]]:
    """Return the fields of a table and of its sub-tables."""
    for name, value in vars(table).items():
        yield table, name
        for each in value if isinstance(value, list) else [value]:
            if hasattr(each, "__dict__"):
                yield from _fields(each)


def onnx(rng: random.Random, corpus: Corpus) -> Case:
    """Changed ONNX models: bytes, or parts of their graphs."""
    if not corpus.onnx:
        data = b"\x08\x07" + rng.randbytes(rng.randrange(200))
    elif rng.random() < 0.25:
        data = mutate_bytes(rng, rng.choice(corpus.onnx), most=4)
    else:
        data = mutate_graph(rng, rng.choice(corpus.onnx), rng.choice(corpus.onnx))
    commands = (
        (["inspect", "x.onnx"], None),
        (["opt", "x.onnx", "-o", "out.mlir"], "out.mlir"),
        (["compile", "x.onnx", "--emit", "mlir", "-o", "out.mlir",
          "--batch", rng.choice(("", "1", "3"))], "out.mlir"),
        (["compile", "x.onnx", "--emit", "mlirbc", "-o", "o.mlirbc", "--target", "vulkan",
          "--vulkan-target", "generic"], "o.mlirbc"),
    )  # fmt: skip
    arguments, output = rng.choice(commands)
    return Case([*arguments, *PARSE_LIMIT], {"x.onnx": data}, output)


def mutate_graph(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A model with a few parts of its graph changed."""
    from onnx import ModelProto

    model, more = ModelProto.FromString(data), ModelProto.FromString(other)
    graph = model.graph
    for _ in range(rng.randrange(1, 4)):
        node = rng.choice(graph.node)
        change = rng.randrange(9)
        if change == 0:
            node.op_type = rng.choice(more.graph.node).op_type
        elif change == 1 and node.input:
            del node.input[rng.randrange(len(node.input))]
        elif change == 2:
            node.input.append(rng.choice([*node.input, *node.output, "", "nothing"]))
        elif change == 3 and graph.initializer:
            rng.choice(graph.initializer).dims.append(rng.choice(BOUNDARY_INTEGERS))
        elif change == 4 and graph.initializer:
            rng.choice(graph.initializer).data_type = rng.randrange(30)
        elif change == 5 and graph.initializer:
            tensor = rng.choice(graph.initializer)
            tensor.dims[:] = [rng.choice((0, 1, 2, 3, 2**31)) for _ in tensor.dims]
        elif change == 6:
            node.attribute.extend(rng.choice(more.graph.node).attribute)
        elif change == 7 and node.attribute:
            rng.choice(node.attribute).i = rng.choice(BOUNDARY_INTEGERS)
        elif change == 8 and graph.input:
            shape = rng.choice(graph.input).type.tensor_type.shape
            if shape.dim:
                rng.choice(shape.dim).dim_value = rng.choice(BOUNDARY_INTEGERS)
    if rng.random() < 0.2:
        model.opset_import[0].version = rng.choice((0, 1, 9, 10, 13, 19, 21, 23, 99, 2**40))
    return bytes(model.SerializeToString())
