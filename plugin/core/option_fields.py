"""Option fields: fields of frozen dataclasses, each declared once with choices, default and help.

Passes, compilations and commands declare their options in such classes. A field annotated with a
`Literal` takes only the listed values: `check_choices` refuses others, `parse_option` reads a value
from text, and the command line shows `choices_of` the field.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

from ..errors import UsageError, expected_name, quoted

ModelActivations = Literal["checkpoint", "float", "int8"]
"""Activations of a language model: as its checkpoint asks for, or of all layers alike."""

Activations = Literal["float", "int8"]
"""Activations of contractions with block-quantized weights.

``float`` uses them unchanged; ``int8`` rounds them to 8 bits with a scale for each block of the
reduction.
"""

KvCache = Literal["f32", "f16", "int8", "int4"]
"""Storage of the keys and values of a language model's key-value cache."""

KernelChoice = Literal[
    "auto",
    "none",
    "amx",
    "avx512vnni-amd",
    "avx512vnni",
    "avxvnni",
    "avx2",
    "neon-dotprod",
    "portable",
    "spirv",
    "spirv-cpu",
]
"""Instruction set of the kernels: the fastest of the CPU, no kernels, or a set by name.

``spirv`` and ``spirv-cpu`` are kernels for Vulkan: for GPUs, and for devices that are CPUs.
"""

Semantics = Literal["litert", "exact"]
"""Arithmetic of the operators of a TensorFlow Lite model.

``litert`` is bit-exact with LiteRT's reference kernels; ``exact`` is quantized StableHLO:
dequantized operands, the real operation, and the nearest storage values.
"""

Containers = Literal[8, 32]
"""The narrowest integers that the target loads and stores, in bits."""

RequantizationForm = Literal["exact", "fixed-point"]
"""Requantization of accumulators: by the real multiplier, or by 31 bits of it and a shift."""

Rounding = Literal["nearest-even", "toward-zero"]
"""Rounding of casts: as the specification says, or as upstream's ``lower-quant-ops``."""

FixedPointRounding = Literal[
    "half-up",
    "half-away-from-zero",
    "gemmlowp",
    "tosa-single-round",
    "tosa-inexact-round",
    "tosa-double-round",
]
"""Rounding of a fixed-point product; `subquant.numerics.fixed_point` has the formulas."""

ZeroPoints = Literal["after", "inside", "mixed"]
"""Correction of a contraction for zero points.

``after`` by row and column sums, ``inside`` by a contraction of storage values minus zero points,
``mixed`` inside if the right operand has no zero point.
"""


class Options(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def option(
    default: Any, help: str, metavar: str | None = None, old_name: str = "", negation: str = ""
) -> Any:
    """Declare a field that the command line shows.

    `metavar` is the name of the value there; None for a field whose type names it. `negation` is
    the flag for False, of a field that is a boolean or None.
    """
    metadata = {"help": help, "metavar": metavar, "old_name": old_name, "negation": negation}
    return field(default=default, metadata=metadata)


def pass_option(default: Any, spelling: str) -> Any:
    """Declare a field of a pass whose name in the text of a pipeline is `spelling`, with ``_``."""
    return field(default=default, metadata={"spelling": spelling})


def spelling_of(declared: Field[Any]) -> str:
    """Return the name of a field of a pass in the text of a pipeline, with ``_``."""
    return str(declared.metadata.get("spelling", declared.name))


def accept_old_names(options: type[Any]) -> type[Any]:
    """Decorate a dataclass: it accepts fields by their ``old_name``, and has them as properties."""
    names = {
        each.metadata["old_name"]: each.name
        for each in fields(options)
        if each.metadata.get("old_name")
    }
    construct: Callable[..., None] = options.__init__

    @functools.wraps(construct)
    def construct_by_any_name(self: Any, *args: Any, **kwargs: Any) -> None:
        renamed = {names[name]: kwargs.pop(name) for name in names.keys() & kwargs}
        known = [each.name for each in fields(options)]
        for name in kwargs.keys() - set(known):
            raise UsageError(f"no option is named {quoted(name)}; {expected_name(name, known)}")
        construct(self, *args, **{**kwargs, **renamed})

    setattr(options, "__init__", construct_by_any_name)  # noqa: B010 - mypy refuses an assignment
    for old, new in names.items():
        setattr(options, old, property(operator.attrgetter(new)))
    return options


@functools.cache
def annotations_of(options: type[Options]) -> dict[str, Any]:
    """Return the types of the fields, by name."""
    types = get_type_hints(options)
    return {declared.name: types[declared.name] for declared in fields(options)}


def choices_of(options: type[Options], name: str) -> tuple[object, ...] | None:
    """Return the values that a field takes, beside None; None if its type is no `Literal`."""
    annotation = annotations_of(options)[name]
    literals = [each for each in (annotation, *get_args(annotation)) if get_origin(each) is Literal]
    return get_args(literals[0]) if literals else None


def check_choices(options: Options, owner: str = "") -> None:
    """Raise UsageError if a field with choices has another value; `owner` is for the message."""
    for name in annotations_of(type(options)):
        choices, value = choices_of(type(options), name), getattr(options, name)
        may_be_none = type(None) in get_args(annotations_of(type(options))[name])
        if choices is not None and value not in choices and not (value is None and may_be_none):
            raise _wrong_choice(name, choices, value, owner)


def parse_option(
    options: type[Options], name: str, text: str, owner: str = "", spelling: str = ""
) -> object:
    """Return the value of a field from text, by the type of the field; else UsageError.

    Args:
        owner: the pass, for the message.
        spelling: the name of the option in the message, if it is not that of the field.
    """
    choices = choices_of(options, name)
    if choices is not None:
        matching = [choice for choice in choices if str(choice) == text]
        if not matching:
            raise _wrong_choice(name, choices, text, owner)
        return matching[0]
    annotation = annotations_of(options)[name]
    named = _named(spelling or name, owner)
    if annotation is int:
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise UsageError(f"{named} must be an integer of 64 bits, got {quoted(text)}")
        return int(text)
    if annotation is bool:
        if text not in ("true", "false"):
            raise UsageError(f"{named} must be true or false, got {quoted(text)}")
        return text == "true"
    return text


def _wrong_choice(name: str, choices: tuple[object, ...], value: object, owner: str) -> UsageError:
    listed = ", ".join(str(choice) for choice in choices)
    return UsageError(f"{_named(name, owner)} must be one of {listed}, got {quoted(str(value))}")


def _named(name: str, owner: str) -> str:
    return f"option '{name.replace('_', '-')}'" + (f" of {owner}" if owner else "")
