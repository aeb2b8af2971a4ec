"""What the site takes from the code: sections of the passes, the API, and MLIR's colours.

Directives:

* ``{passes}``: a section for each of `subquant.transforms.PASSES`, with the text of its file and a
  table of its options;
* ``{api} MODULE``: the module's text, and everything in its ``__all__``;
* ``{docstring} MODULE``: the module's text alone.

What is in single backticks in a docstring has the role ``name``: a link where it is the name of a
class, a constant or a module that the site has, and code elsewhere.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from dataclasses import Field, fields
from typing import Any, ClassVar, get_args, get_type_hints

from docutils import nodes
from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, String, Text
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from subquant.transforms import PASSES, load_pass


def restructured(docstring: str) -> str:
    """Turn the tables of a docstring, which are Markdown's, into reStructuredText's."""
    return re.sub(r"(?m)^\|.*\n\|[-| ]+\n(?:\|.*(?:\n|\Z))+", _list_table, docstring)


def _list_table(table: re.Match[str]) -> str:
    header, _, *rows = table.group().splitlines()
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (header, *rows):
        cells = re.split(r"\s\|\s?", row.removeprefix("|").removesuffix("|").strip() + " ")
        cells = cells[: header.count("|") - 1]
        lines += [f"   {' ' if number else '*'} - {cell}" for number, cell in enumerate(cells)]
    return "\n".join([*lines, "", ""])


def text_of(module: str, language: str = "text") -> str:
    """The docstring of a module, whose literal blocks are in `language`."""
    docstring = restructured(inspect.getdoc(importlib.import_module(module)) or "")
    return f".. highlight:: {language}\n\n{docstring}\n\n.. highlight:: text\n"


def options_of(pass_class: type) -> str:
    """The table of a pass's options: its fields, and what its docstring says of them."""
    options = [field for field in fields(pass_class) if not field.name.startswith("_")]
    if not options:
        return ""
    types, texts = get_type_hints(pass_class), option_texts(pass_class)
    rows = [option_row(option, types[option.name], texts[option.name]) for option in options]
    return restructured("\n".join(["| option | values | default | |", "|---|---|---|---|", *rows]))


def option_texts(pass_class: type) -> dict[str, str]:
    """What the docstring of a pass says of each option."""
    text = re.split(r"\n(?:Args|Options):\n", inspect.getdoc(pass_class) or "")[-1]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def option_row(option: Field[Any], type_: Any, text: str) -> str:
    """A row of the table of options, as they are written in a pipeline."""
    choices = get_args(type_) or (("true", "false") if type_ is bool else ())
    values = ", ".join(f"``{choice}``" for choice in choices) or f"a {type_.__name__}"
    default = str(option.default).lower() if type_ is bool else str(option.default)
    name = option.name.replace("_", "-")
    return f"| ``{name}`` | {values} | {f'``{default}``' if default else ''} | {text} |"


def defining_module(module: str, name: str) -> str:
    """The module where a name of a package is described: the one that it is imported from."""
    for statement in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(statement, ast.ImportFrom) and name in [n.name for n in statement.names]:
            return f"{module}.{statement.module}"
    return module


def api_of(module: str, documented: set[int]) -> str:
    """Directives of autodoc for a module's public names, in their order.

    Classes and functions of other packages, and those that are in `documented`, are left out.
    """
    directives = []
    for name in importlib.import_module(module).__all__:
        value = getattr(sys.modules[module], name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            place = defining_module(module, name)
            directives.append(f".. autodata:: {place}.{name}\n   :no-value:\n")
        elif value.__module__.startswith(module) and id(value) not in documented:
            documented.add(id(value))
            kind, members = "autofunction", ""
            if inspect.isclass(value):
                kind, members = "autoclass", "   :members:\n"
            directives.append(f".. {kind}:: {module}.{name}\n{members}")
    return "\n".join(directives)


class FromCode(SphinxDirective):
    """A directive that writes reStructuredText about a module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse what is written."""
        return self.parse_text_to_nodes(f"`````{{eval-rst}}\n{self.text()}\n`````")

    def text(self) -> str:
        """The text."""
        return text_of(self.arguments[0], "mlir")


class Api(FromCode):
    """``{api} MODULE``."""

    def text(self) -> str:
        """The module's text and directives for its names."""
        documented = self.env.temp_data.setdefault("subquant_documented", set())  # on this page
        return f"{text_of(self.arguments[0])}\n{api_of(self.arguments[0], documented)}"


class Passes(SphinxDirective):
    """``{passes}``."""

    def run(self) -> list[nodes.Node]:
        """Write a section a pass."""
        sections = []
        for name in PASSES:
            pass_class = load_pass(name)
            text = text_of(pass_class.__module__, "mlir")
            text = f"`````{{eval-rst}}\n{text}\n{options_of(pass_class)}\n`````"
            sections.append(f"({name})=\n### {name}\n\n{text}\n")
        return self.parse_text_to_nodes("\n".join(sections), allow_section_headings=True)


class NameRole(SphinxRole):
    """What is in single backticks: a parameter is code, another name a link if it can be."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Write a node for the text."""
        if not re.fullmatch(r"(subquant|\w*[A-Z]\w*)(\.\w+)*", self.text):
            return [nodes.literal(self.rawtext, self.text)], []
        link = self.env.get_domain("py").role("obj")
        assert link is not None
        return link("py:obj", self.rawtext, f".{self.text}", self.lineno, self.inliner)


class MlirLexer(RegexLexer):
    """MLIR's text, by the first character of its words."""

    name = "MLIR"
    aliases: ClassVar[list[str]] = ["mlir"]
    tokens: ClassVar[dict[str, Any]] = {
        "root": [
            (r"//.*", Comment.Single),
            (r'"(?:[^"\\]|\\.)*"', String),
            (r"%[\w$.#-]+", Name.Variable),
            (r"@[\w$.-]+", Name.Function),
            (r"\^\w+", Name.Label),
            (r"![\w.]+", Keyword.Type),
            (r"\b(?:tensor|vector|memref|index|[suf]?i\d+|u\d+|b?f\d+)\b", Keyword.Type),
            (r"\b(?:ins|outs|attributes|private|dense|array|true|false)\b", Keyword),
            (r"\b[a-z_]\w*\.[\w.]+", Name.Builtin),
            (r"\breturn\b", Name.Builtin),
            (r"-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b", Number),
            (r"\w+", Text),
            (r"\s+", Text),
            (r".", Text),
        ]
    }


def mend_docstring(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Let autodoc see reStructuredText only."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")  # napoleon takes what is before a colon in the first line for a type
    lines[:] = named_lists(restructured("\n".join(lines))).splitlines()


def named_lists(docstring: str) -> str:
    """Make a list of the names below a line like ``Planes, for a tensor of K elements:``."""
    return re.sub(
        r"(?m)^(\w+,? .*:\n)((?: {4}[\w, ]+: .*\n?(?: {8}.*\n?)*)+)",
        lambda found: f"{found[1]}\n" + found[2].replace("\n        ", " ").replace("    ", "* "),
        docstring,
    )


def escape_stars(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Let the patterns in the help of commands be no emphasis."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    app.add_directive("api", Api)
    app.add_directive("docstring", FromCode)
    app.add_directive("passes", Passes)
    app.add_role("name", NameRole())
    app.add_lexer("mlir", MlirLexer)
    app.connect("autodoc-process-docstring", mend_docstring, priority=400)  # before napoleon
    app.connect("sphinx-click-process-description", escape_stars)
    return {"parallel_read_safe": True}
