"""Kinds of inputs that are portable artifacts of StableHLO, alone or in functions of JAX."""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

from .case import PARSE_LIMIT, Case, module_case
from .corpus import ARTIFACT_VERSIONS, Corpus
from .mutations import NUMBER, NUMBERS, mutate_bytes, replace_match


def artifacts(rng: random.Random, corpus: Corpus) -> Case:
    """Changed portable artifacts of StableHLO."""
    return _artifact_case(rng, mutate_artifact(rng, corpus), "x.mlirbc")


def jax(rng: random.Random, corpus: Corpus) -> Case:
    """Changed functions of JAX, and others' artifacts in their place."""
    data = rng.choice(corpus.jax or corpus.artifacts)
    if rng.random() < 0.5:
        return _artifact_case(rng, mutate_bytes(rng, data, most=4), "x.jax")
    start = data.index(b"ML\xefR")
    size = int.from_bytes(data[start - 4 : start], "little")
    if rng.random() < 0.5 or not corpus.jax:
        artifact = mutate_artifact(rng, corpus)
    else:
        artifact = mutate_bytes(rng, data[start : start + size], most=4)
    # As the last vector, to which the field points that has the distance to the one before.
    positions = [
        n for n in range(start) if int.from_bytes(data[n : n + 4], "little") == start - 4 - n
    ]
    changed = bytearray(data + b"\0" * (-len(data) % 4))
    for position in positions:
        changed[position : position + 4] = (len(changed) - position).to_bytes(4, "little")
    changed += len(artifact).to_bytes(4, "little") + artifact
    return _artifact_case(rng, bytes(changed), "x.jax")


def _artifact_case(rng: random.Random, data: bytes, name: str) -> Case:
    raising = "pack-narrow-storage,raise-dequantization{explain=true},fuse-block-contractions"
    if rng.random() < 0.2:
        arguments = ["opt", name, "--passes", raising, "-o", "out.mlir", *PARSE_LIMIT]
        return Case(arguments, {name: data}, "out.mlir")
    return module_case(rng, data, name)


def mutate_artifact(rng: random.Random, corpus: Corpus) -> bytes:
    """An artifact with a few bytes changed, or a few attributes, operands or types."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, rng.choice(corpus.artifacts), most=4)
    from subquant.compiler.lowering import bytecode_of
    from subquant.transforms.base import walk

    module, rest = (rng.choice(corpus.modules) for _ in range(2))
    with module.context:
        changed = module.operation.clone()
        operations = walk(changed)
        # Of another module in text: attributes of one context do not belong to another.
        more = [each for each in walk(rest.operation) if len(each.attributes)] or operations
        for _ in range(rng.choice((1, 1, 2, 4))):
            with contextlib.suppress(Exception):  # a text that is no attribute, a name that is none
                _change_operation(rng, rng.choice(operations), operations, rng.choice(more))
        data = bytecode_of(changed)
    version = rng.choice(
        (*ARTIFACT_VERSIONS, "1.19.0", "0.8.0", "2.0.0", "1.99.99", "", "1", ".", "9" * 19)
    )
    return data[:5] + b"StableHLO_v" + version.encode() + data[data.index(b"\0", 5) :]


def _change_operation(rng: random.Random, op: Any, operations: list[Any], other: Any) -> None:
    """Change an attribute, an operand or the type of a result."""
    from subquant.core._mlir import ir

    names = list(op.attributes)
    change = rng.randrange(5)
    if change == 0 and names and len(other.attributes):
        used = str(other.attributes[rng.choice(list(other.attributes))])
        op.attributes[rng.choice(names)] = ir.Attribute.parse(used)
    elif change in (1, 2) and names:
        name = rng.choice(names)
        written = str(op.attributes[name])
        op.attributes[name] = ir.Attribute.parse(
            replace_match(rng, written, NUMBER, rng.choice(NUMBERS))
        )
    elif change == 3 and len(op.operands):
        op.operands[rng.randrange(len(op.operands))] = rng.choice(
            [result for each in operations[: operations.index(op)] for result in each.results]
        )
    elif len(op.results):
        type_ = rng.choice([result.type for each in operations for result in each.results])
        if rng.random() < 0.5:
            type_ = ir.Type.parse(
                replace_match(rng, str(type_), _EXTENT_OR_TYPE, rng.choice(("0", "3", "64x")))
            )
        rng.choice(list(op.results)).set_type(type_)


_EXTENT_OR_TYPE = re.compile(r"\b\d+(?=x)|f32|i32|i8")
