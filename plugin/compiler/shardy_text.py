"""Shardy annotations (dialect ``sdy``) in MLIR text, for one device.

JAX writes the shardings of a function into its text; no bindings of this project know the dialect.
On a mesh of one device a sharding says nothing: `without_shardings` blanks meshes and attributes,
and writes ``sharding_constraint`` and ``reshard`` as the custom call ``@Sharding``, the identity::

    sdy.mesh @mesh = <["x"=1]>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>

becomes::

    %1 = stablehlo.custom_call @Sharding(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32>

Lines keep their numbers, and what precedes an operation its column. Source: the documentation of
the dialect in Shardy (``docs/sdy_dialect.md``).
"""

from __future__ import annotations

import contextlib
import math
import re

from ..errors import ParseError
from .mlir_client import location_at

_ANNOTATION = re.compile(r"#sdy(?:\.\w+)?(?=<)|(?<![\w.#@])sdy\.([a-z_]+)(?=[\s(])(?!\s*=)")
_MESH = re.compile(r"\bmesh\s*(?:@[^=<>]*=\s*)?(?=<)")
_MESH_FORM = re.compile(r"sdy\.mesh\s+@[^=<>]*=\s*(?=<)")
_GROUP_FORM = re.compile(r"sdy\.sharding_group\s+%[^:]*:\s*tensor\s*(?=<)")
_PLACEMENT_FORM = re.compile(r"sdy\.(?:sharding_constraint|reshard)\s+(%[\w.$#-]+)\s*(?=<)")
_TYPE = re.compile(r"\s*:\s*(?=tensor\s*<)")
_LOCATION = re.compile(r"\s*loc\s*(?=\()")
_DICTIONARY = re.compile(r"\s*(?=\{)")
_SIZE = re.compile(r"=\s*(\d+)")
_ADVICE = "an executable computes on one device: export the function for one"
_BRACKETS = re.compile(r"->|[<{(]|[>})]")


def without_shardings(text: str, code: str, file: str) -> str:
    """Return the text without annotations.

    Args:
        text: the text of a module.
        code: the same text with blanks in place of comments and strings.
        file: the name of the file in errors.

    Raises:
        ParseError: a mesh has several devices, or the text has another operation of the dialect.
    """
    pieces, position = [], 0
    while match := _ANNOTATION.search(code, position):
        start = match.start()
        rewritten = _rewritten(code, match)
        if rewritten is None:
            raise ParseError(
                f"'{match.group()}' is for several devices, or is not complete; {_ADVICE}",
                location_at(code, start, file),
            )
        end, replacement = rewritten
        for mesh in _MESH.finditer(code, start, end):
            _check_mesh(code, mesh, file)
        padding = "".join("\n" if each == "\n" else " " for each in text[start:end])
        pieces += [text[position:start], replacement, padding[len(replacement) :]]
        position = end
    return "".join([*pieces, text[position:]])


def _rewritten(code: str, match: re.Match[str]) -> tuple[int, str] | None:
    """Return the end of an annotation and the text in its place; None if it has another form."""
    start, name = match.start(), match.group(1)
    with contextlib.suppress(ValueError):
        if name is None:
            return _end_of_brackets(code, match.end()), "unit"
        if name in ("mesh", "sharding_group"):
            form = (_MESH_FORM if name == "mesh" else _GROUP_FORM).match(code, start)
            return None if form is None else (_end_of_operation(code, form.end()), "")
        operand = _PLACEMENT_FORM.match(code, start)
        if operand is not None:
            end = _end_of_brackets(code, operand.end())
            if (dictionary := _DICTIONARY.match(code, end)) is not None:
                end = _end_of_brackets(code, dictionary.end())
            if (type_ := _TYPE.match(code, end)) is not None:
                end = _end_of_brackets(code, type_.end())
                type_text = code[type_.end() : end]
                call = f"stablehlo.custom_call @Sharding({operand.group(1)})"
                return end, f"{call} : ({type_text}) -> {type_text}"
    return None


def _check_mesh(code: str, mesh: re.Match[str], file: str) -> None:
    """Refuse a mesh of several devices."""
    axes = code[mesh.end() : code.find("]", mesh.end())]
    count = math.prod(map(int, _SIZE.findall(axes)))
    if count != 1:
        raise ParseError(
            f"the mesh of a sharding has {count} devices; {_ADVICE}",
            location_at(code, mesh.start(), file),
        )


def _end_of_brackets(code: str, position: int) -> int:
    """Return the end of the text in the next brackets; ValueError if they are not closed."""
    depth = 0
    for match in _BRACKETS.finditer(code, position):
        if match.group() != "->":
            depth += 1 if match.group() in "<{(" else -1
        if depth <= 0:
            return match.end()
    raise ValueError("brackets are not closed")


def _end_of_operation(code: str, position: int) -> int:
    """Return the end of brackets and of the attributes and the location behind them, if any."""
    position = _end_of_brackets(code, position)
    for pattern in (_DICTIONARY, _LOCATION):
        if (match := pattern.match(code, position)) is not None:
            position = _end_of_brackets(code, match.end())
    return position
