"""Sphinx extension that documents the code: passes, API, and syntax highlighting of MLIR.

Directives:

* ``{passes}``: a section for each of `subquant.transforms.PASSES`, with the docstring of its
  module and a table of its options;
* ``{api} MODULE``: the module's docstring, and each name in its ``__all__``;
* ``{docstring} MODULE``: the module's docstring alone.

Text in single backticks has the role ``name``: a link to a class, constant or module of the site,
and code for any other name.
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
    """Convert Markdown tables of a docstring to reStructuredText."""
    return re.sub(r"(?m)^\|.*\n\|[-| ]+\n(?:\|.*(?:\n|\Z))+", _list_table, docstring)


def _list_table(table: re.Match[str]) -> str:
    header, _, *rows = table.group().splitlines()
    output = [".. list-table::", "   :header-rows: 1", ""]
    for row in (header, *rows):
        cells = re.split(r"\s\|\s?", row.removeprefix("|").removesuffix("|").strip() + " ")
        cells = cells[: header.count("|") - 1]
        output += [f"   {' ' if number else '*'} - {cell}" for number, cell in enumerate(cells)]
    return "\n".join([*output, "", ""])


def text_of(module: str, language: str = "text") -> str:
    """Return the docstring of a module, with literal blocks in `language`."""
    docstring = restructured(inspect.getdoc(importlib.import_module(module)) or "")
    return f".. highlight:: {language}\n\n{docstring}\n\n.. highlight:: text\n"


def options_of(pass_class: type) -> str:
    """Return the table of a pass's options, from its fields and their docstrings."""
    options = [field for field in fields(pass_class) if not field.name.startswith("_")]
    if not options:
        return ""
    types, texts = get_type_hints(pass_class), option_texts(pass_class)
    rows = [option_row(option, types[option.name], texts[option.name]) for option in options]
    return restructured("\n".join(["| option | values | default | |", "|---|---|---|---|", *rows]))


def option_texts(pass_class: type) -> dict[str, str]:
    """Return the description of each option in the docstring of a pass."""
    text = re.split(r"\n(?:Args|Options):\n", inspect.getdoc(pass_class) or "")[-1]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def option_row(option: Field[Any], type_: Any, text: str) -> str:
    """Return a row of the table of options, in the syntax of pipelines."""
    choices = get_args(type_) or (("true", "false") if type_ is bool else ())
    values = ", ".join(f"``{choice}``" for choice in choices) or f"a {type_.__name__}"
    default = str(option.default).lower() if type_ is bool else str(option.default)
    name = option.name.replace("_", "-")
    return f"| ``{name}`` | {values} | {f'``{default}``' if default else ''} | {text} |"


def defining_module(module: str, name: str) -> str:
    """Return the module that a package imports a name from, which documents it."""
    for statement in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(statement, ast.ImportFrom) and name in [n.name for n in statement.names]:
            return f"{module}.{statement.module}"
    return module


def api_of(module: str, documented: set[int]) -> str:
    """Return directives of autodoc for a module's public names, in order.

    Classes and functions of other packages, and those in `documented`, are omitted.
    """
    directives = []
    for name in importlib.import_module(module).__all__:
        value = getattr(sys.modules[module], name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            owner = defining_module(module, name)
            directives.append(f".. autodata:: {owner}.{name}\n   :no-value:\n")
        elif value.__module__.startswith(module) and id(value) not in documented:
            documented.add(id(value))
            kind, members = "autofunction", ""
            if inspect.isclass(value):
                kind, members = "autoclass", "   :members:\n"
            directives.append(f".. {kind}:: {module}.{name}\n{members}")
    return "\n".join(directives)


class FromCode(SphinxDirective):
    """Directive that generates reStructuredText about a module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the generated text."""
        return self.parse_text_to_nodes(f"`````{{eval-rst}}\n{self.text()}\n`````")

    def text(self) -> str:
        """Return the reStructuredText."""
        return text_of(self.arguments[0], "mlir")


class Api(FromCode):
    """Directive ``{api} MODULE``."""

    def text(self) -> str:
        """Return the module's docstring, and directives for its names."""
        documented = self.env.temp_data.setdefault("subquant_documented", set())  # on this page
        return f"{text_of(self.arguments[0])}\n{api_of(self.arguments[0], documented)}"


class Passes(SphinxDirective):
    """Directive ``{passes}``."""

    def run(self) -> list[nodes.Node]:
        """Generate a section for each pass."""
        sections = []
        for name in PASSES:
            pass_class = load_pass(name)
            text = text_of(pass_class.__module__, "mlir")
            text = f"`````{{eval-rst}}\n{text}\n{options_of(pass_class)}\n`````"
            sections.append(f"({name})=\n### {name}\n\n{text}\n")
        return self.parse_text_to_nodes("\n".join(sections), allow_section_headings=True)


class NameRole(SphinxRole):
    """Role of single backticks: a link if the name is documented, and code for parameters."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a node for the text."""
        if not re.fullmatch(r"(subquant|\w*[A-Z]\w*)(\.\w+)*", self.text):
            return [nodes.literal(self.rawtext, self.text)], []
        link = self.env.get_domain("py").role("obj")
        assert link is not None
        return link("py:obj", self.rawtext, f".{self.text}", self.lineno, self.inliner)


class MlirLexer(RegexLexer):
    """Lexer of MLIR, by the first character of each word."""

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
    app: Sphinx, what: str, name: str, value: Any, options: Any, docstring: list[str]
) -> None:
    """Convert a docstring to pure reStructuredText for autodoc."""
    if what in ("attribute", "data", "property"):
        docstring.insert(0, "")  # napoleon reads text before a colon in the first line as a type
    docstring[:] = named_lists(restructured("\n".join(docstring))).splitlines()


def named_lists(docstring: str) -> str:
    """Convert names below a line like ``Planes, for a tensor of K elements:`` to a list."""
    return re.sub(
        r"(?m)^(\w+,? .*:\n)((?: {4}[\w, ]+: .*\n?(?: {8}.*\n?)*)+)",
        lambda match: f"{match[1]}\n" + match[2].replace("\n        ", " ").replace("    ", "* "),
        docstring,
    )


def escape_stars(app: Sphinx, context: Any, description: list[str]) -> None:
    """Escape stars in patterns of the commands' help, which are not emphasis."""
    description[:] = [line.replace("*", r"\*") for line in description]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register directives, roles, the lexer and the hooks."""
    app.add_directive("api", Api)
    app.add_directive("docstring", FromCode)
    app.add_directive("passes", Passes)
    app.add_role("name", NameRole())
    app.add_lexer("mlir", MlirLexer)
    app.connect("autodoc-process-docstring", mend_docstring, priority=400)  # before napoleon
    app.connect("sphinx-click-process-description", escape_stars)
    return {"parallel_read_safe": True}
