"""Options: fields of frozen dataclasses, each declared once with its choices, default and help.

Passes, compilations and commands take their options from such classes. A field annotated with a
`Literal` takes the values that are listed there and no other: `check_choices` refuses the others,
`parse_option` reads a value from text, and the command line shows `choices_of` the field.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

from ..errors import UsageError, quoted

__all__ = [
    "Activations",
    "Containers",
    "FixedPointRounding",
    "KernelChoice",
    "Options",
    "RequantizationForm",
    "Rounding",
    "Semantics",
    "ZeroPoints",
    "accept_old_names",
    "annotations_of",
    "check_choices",
    "choices_of",
    "option",
    "parse_option",
]

Activations = Literal["float", "int8"]
"""What contractions with weights in blocks multiply.

The activations as they are, or rounded to 8 bits with a scale for each block that is summed over.
"""

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
"""What kernels multiply with: the fastest that the CPU has, no kernels, or instructions by name.

``spirv`` and ``spirv-cpu`` are what Vulkan's kernels are: for GPUs, and for devices that are CPUs.
"""

Semantics = Literal["litert", "exact"]
"""How the operators of a TensorFlow Lite model compute.

As LiteRT's reference kernels do, bit for bit; or as quantized StableHLO: dequantized operands, the
operation of the reals, and the nearest storage values.
"""

Containers = Literal[8, 32]
"""The narrowest integers that the target loads and stores, in bits."""

RequantizationForm = Literal["exact", "fixed-point"]
"""How accumulators become storage: by the real multiplier, or by 31 bits of it and a shift."""

Rounding = Literal["nearest-even", "toward-zero"]
"""How casts round: as the specification says, or as upstream's ``lower-quant-ops``."""

FixedPointRounding = Literal[
    "half-up",
    "half-away-from-zero",
    "gemmlowp",
    "tosa-single-round",
    "tosa-inexact-round",
    "tosa-double-round",
]
"""How a fixed-point product is rounded; `subquant.numerics.fixed_point` has the formulas."""

ZeroPoints = Literal["after", "inside", "mixed"]
"""Where a contraction corrects for zero points.

``after`` by sums of rows and columns, ``inside`` by contracting storage values minus zero points,
``mixed`` inside where the right operand has no zero point.
"""


class Options(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def option(default: Any, help: str, metavar: str | None = None, old_name: str = "") -> Any:
    """Declare a field that the command line shows.

    Args:
        default: the default value.
        help: the text of ``--help``.
        metavar: the placeholder of the value in ``--help``; None if the type is enough.
        old_name: an earlier name of the field, which `accept_old_names` and the command line
            accept, and ``--help`` does not show.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, "old_name": old_name})


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
    """Return the values that a field takes, or None if its type is no `Literal`."""
    annotation = annotations_of(options)[name]
    return get_args(annotation) if get_origin(annotation) is Literal else None


def check_choices(options: Options, owner: str = "") -> None:
    """Check that each field with choices has one of them.

    Args:
        options: an instance of a dataclass.
        owner: what the options belong to, for the message.

    Raises:
        UsageError: a field has another value.
    """
    for name in annotations_of(type(options)):
        choices, value = choices_of(type(options), name), getattr(options, name)
        if choices is not None and value not in choices:
            raise _wrong_choice(name, choices, value, owner)


def parse_option(options: type[Options], name: str, text: str, owner: str = "") -> object:
    """Read the value of a field from text, as the type of the field says.

    Raises:
        UsageError: the text is no such value.
    """
    choices = choices_of(options, name)
    if choices is not None:
        found = [choice for choice in choices if str(choice) == text]
        if not found:
            raise _wrong_choice(name, choices, text, owner)
        return found[0]
    annotation = annotations_of(options)[name]
    named = _named(name, owner)
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
