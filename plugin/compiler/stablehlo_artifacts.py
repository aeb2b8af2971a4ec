"""Portable artifacts of StableHLO, in any readable version.

An artifact is MLIR bytecode in the dialect VHLO, which has every operation of StableHLO in each of
its versions. Upstream's reader upgrades it to the current StableHLO: from version 0.9.0 on, and
from later versions than its own if they use only older features.

JAX names the arguments of a function by their locations, and its results by an attribute,
``jax.result_info``. The names are kept in attributes of the function, and so in its signature.
"""

from __future__ import annotations

import re

from ..core._mlir import Operation, ir, place_of, stablehlo
from ..errors import ParseError, Place
from ..transforms.base import NAMES_ATTRIBUTES, is_public, walk

_ILLEGAL_OPERATION = re.compile(
    r"failed to legalize operation '([^']*)' that was explicitly .*", re.DOTALL
)
"""Upstream's message about an operation with attributes or types that StableHLO lacks."""
_PRODUCER = re.compile(rb"ML\xefR.StableHLO_v([\d.]{1,20})\0", re.DOTALL)
_SHARDY = "dialect 'sdy'"
_SHARDING_HINT = (
    "; it has shardings: export the function for one device, without a mesh, or write its text, "
    "str(exported.mlir_module()), in which a mesh of one device is read"
)
_UNINFORMATIVE = "failed to deserialize portable artifact"


def is_artifact(data: bytes) -> bool:
    """True for bytecode of StableHLO's artifact writer."""
    return _PRODUCER.match(data) is not None


def parse_artifact(data: bytes, context: ir.Context, file: str) -> ir.Module:
    """Read a portable artifact.

    Raises:
        ParseError: it is broken, has a version that is too old, or uses features that this version
            of StableHLO lacks.
    """
    match = _PRODUCER.match(data)
    version = match.group(1).decode() if match else ""
    oldest = stablehlo.get_minimum_version()
    if _numbers(version) < _numbers(oldest):
        raise ParseError(f"cannot read the portable artifact{_hint(version)}", Place(file))
    messages: list[tuple[str, Place | None]] = []

    def note(diagnostic: ir.Diagnostic) -> bool:
        try:
            messages.append((diagnostic.message, place_of(diagnostic.location)))
        except (RuntimeError, UnicodeDecodeError):  # of the bindings, for bytes that are no UTF-8
            messages.append(("it has a name that is not UTF-8 text", None))
        return True

    handler = context.attach_diagnostic_handler(note)
    try:
        module = stablehlo.deserialize_portable_artifact(context, data)
    except ValueError:
        message, source_location = next(
            (each for each in messages if _UNINFORMATIVE not in each[0]), ("", None)
        )
        message = _ILLEGAL_OPERATION.sub(r"its '\1' is none that StableHLO has", message)
        raise ParseError(
            f"cannot read the portable artifact{f': {message}' if message else ''}"
            f"{_SHARDING_HINT if _SHARDY in message else _hint(version)}",
            _known(source_location, file),
        ) from None
    finally:
        handler.detach()
    _check_sizes(module, file)
    return module


def _check_sizes(module: ir.Module, file: str) -> None:
    """Refuse negative dimension sizes, which upstream's reader accepts in a damaged artifact."""
    checked: set[ir.Type] = set()
    for op in walk(module):
        blocks = [block for region in op.regions for block in region]
        types = [*op.results.types, *(type_ for block in blocks for type_ in block.arguments.types)]
        if op.name == "func.func":
            function = op.attributes["function_type"].value
            types += [*function.inputs, *function.results]
        for type_ in types:
            if type_ not in checked:
                checked.add(type_)
                _check_type(type_, op, file)


def _check_type(type_: ir.Type, op: Operation, file: str) -> None:
    """Refuse tensors of a negative size that is not the one for dynamic dimensions."""
    if isinstance(type_, ir.TupleType):
        for number in range(type_.num_types):
            _check_type(type_.get_type(number), op, file)
    if isinstance(type_, ir.RankedTensorType):
        for size in type_.shape:
            if size < 0 and size != ir.ShapedType.get_dynamic_size():
                raise ParseError(
                    "cannot read the portable artifact: it has a tensor with the dimension size "
                    f"{size}",
                    _known(place_of(op.location), file),
                )


def _known(location: Place | None, file: str) -> Place:
    """Return a location that has a line, else the file."""
    return location if location is not None and location.line else Place(file)


def _hint(version: str) -> str:
    """Return a hint that the version of the artifact is not supported; "" for other versions."""
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
    """Record the names of arguments and results of public functions in attributes."""
    for op in module.body.operations:
        function = op.operation
        if function.name != "func.func" or not is_public(function):
            continue
        if not len(function.regions[0].blocks):
            continue
        block = function.regions[0].blocks[0]
        names = [
            [
                argument.location.name_str if isinstance(argument.location, ir.NameLoc) else ""
                for argument in block.arguments
            ],
            [_result_name(each) for each in function.attributes["res_attrs"]]
            if "res_attrs" in function.attributes
            else [],
        ]
        with function.context:
            for attribute, names_of_values in zip(NAMES_ATTRIBUTES, names, strict=True):
                if any(names_of_values) and attribute not in function.attributes:
                    texts = [ir.StringAttr.get(name) for name in names_of_values]
                    function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _result_name(attributes: ir.DictAttr) -> str:
    if "jax.result_info" not in attributes:
        return ""
    name = attributes["jax.result_info"]
    return name.value if isinstance(name, ir.StringAttr) else ""
