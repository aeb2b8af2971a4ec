"""Portable artifacts: StableHLO as other programs write it, of any version that may be read.

An artifact is MLIR's bytecode in the dialect VHLO, which has every operation of StableHLO in every
version that it had. Upstream's reader brings it to StableHLO as it is now: from version 0.9.0 on,
and from newer versions than its own as far as what they use was there before.

JAX names the arguments of a function by their locations, and its results by an attribute,
``jax.result_info``. They are kept in the function's attributes, and so in its signature.
"""

from __future__ import annotations

import re

from .._mlir import ir, place_of, stablehlo
from ..errors import ParseError, Place
from ..transforms.base import NAMES_ATTRIBUTES, is_public

__all__ = ["is_artifact", "parse_artifact", "record_names"]

_PRODUCER = re.compile(rb"ML\xefR.StableHLO_v([\d.]{1,20})\0", re.DOTALL)
_SHARDY = "dialect 'sdy'"
_SHARDED = "; it is sharded over several devices: export the function for one"
_USELESS = "failed to deserialize portable artifact"


def is_artifact(data: bytes) -> bool:
    """True for bytecode that StableHLO's writer of artifacts made."""
    return _PRODUCER.match(data) is not None


def parse_artifact(data: bytes, context: ir.Context, file: str = "-") -> ir.Module:
    """Read a portable artifact.

    Args:
        data: bytecode for which `is_artifact` holds.
        context: a context of `create_context`.
        file: the name that errors show.

    Raises:
        ParseError: it is broken, or uses what this version of StableHLO does not know.
    """
    said: list[tuple[str, Place | None]] = []

    def note(diagnostic: ir.Diagnostic) -> bool:
        said.append((diagnostic.message, place_of(diagnostic.location)))
        return True

    handler = context.attach_diagnostic_handler(note)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except ValueError:
        message, place = next((each for each in said if _USELESS not in each[0]), ("", None))
        raise ParseError(
            f"cannot read the portable artifact{f': {message}' if message else ''}"
            f"{_SHARDED if _SHARDY in message else _hint(data)}",
            place if place is not None and place.line else Place(file),
        ) from None
    finally:
        handler.detach()


def _hint(data: bytes) -> str:
    """What a version that is not read has to do with it."""
    match = _PRODUCER.match(data)
    version = match.group(1).decode() if match else ""
    oldest, newest = stablehlo.get_minimum_version(), stablehlo.get_current_version()
    if _numbers(oldest) <= _numbers(version) <= _numbers(newest):
        return ""
    return (
        f"; it is of StableHLO {version}, and versions {oldest} to {newest} are read: write it for "
        "one of those"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def record_names(module: ir.Module) -> None:
    """Keep the names that arguments and results of public functions have, in their attributes."""
    for op in module.body.operations:
        function = op.operation
        if function.name != "func.func" or not is_public(function):
            continue
        if not len(function.regions[0].blocks):
            continue
        block = function.regions[0].blocks[0]
        names = [
            [_name_of(argument.location) for argument in block.arguments],
            [_result_name(attributes) for attributes in _result_attributes(function)],
        ]
        with function.context:
            for attribute, found in zip(NAMES_ATTRIBUTES, names, strict=True):
                if any(found) and attribute not in function.attributes:
                    texts = [ir.StringAttr.get(name) for name in found]
                    function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _name_of(location: ir.Location) -> str:
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def _result_attributes(function: ir.Operation) -> list[ir.DictAttr]:
    return list(function.attributes["res_attrs"]) if "res_attrs" in function.attributes else []


def _result_name(attributes: ir.DictAttr) -> str:
    if "jax.result_info" not in attributes:
        return ""
    name = attributes["jax.result_info"]
    return name.value if isinstance(name, ir.StringAttr) else ""
