"""Chat templates: conversations as text.

``tokenizer.chat_template`` is a Jinja template, a program that comes with the weights. It is run in
a child process with limits of time, memory and output length, in Jinja's sandbox, which forbids
Python's internal names; it has the variables of transformers: ``messages`` (each
with ``role`` and ``content``), ``add_generation_prompt``, ``tools`` and ``documents`` (none),
``bos_token``, ``eos_token``, ``raise_exception``, ``strftime_now``, ``tojson`` and the tags
``break``, ``continue`` and ``generation``.

Files of Gemma often come without one. Its format is fixed, and used instead, as llama.cpp does:

    <bos><start_of_turn>user
    What is a tensor?<end_of_turn>
    <start_of_turn>model

A system's message stands in front of the user's that follows, since there are no other roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.requirements import require
from ..errors import InputError, UnsupportedError, printable, quoted
from ..isolation.child import ReportStep
from ..isolation.client import ChildEnded, call
from ..isolation.limits import Limits, time_limit
from .tokenizer import AnyTokenizer, check_text

if TYPE_CHECKING:
    from jinja2.nodes import Node
    from jinja2.parser import Parser

Message = Mapping[str, str]
"""``role`` (``system``, ``user`` or ``assistant``) and ``content``."""

_SECONDS = 2.0
"""CPU seconds in which a template is rendered; a longer one is refused."""
_MEMORY_GIB = 1.0
"""GiB of memory of the child that renders a template; one that takes more is refused."""
_MAX_CHARACTERS = 1 << 22
"""Characters of a rendered text, at most; a longer one is refused."""
_MAX_TEMPLATE_CHARACTERS = 1 << 20
"""Characters of a template, at most; a longer one is refused."""

_GEMMA = """\
{{ bos_token }}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = ns.system + message.content | trim -%}
{%- else -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' + role + '\\n' }}
{%- if ns.system and role != 'model' -%}
{{ ns.system + '\\n\\n' }}
{%- set ns.system = '' -%}
{%- endif -%}
{{ message.content | trim + '<end_of_turn>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

_BY_ARCHITECTURE = dict.fromkeys(("gemma", "gemma2", "gemma3"), _GEMMA)
"""The template of an architecture whose file has none."""


class ChatTemplate:
    """Chat template of a model.

    Raises:
        UnsupportedError: the file has no template, and its architecture no format of its own.
        InputError: the template is no text, or too long.
    """

    def __init__(self, properties: Mapping[str, Any], tokenizer: AnyTokenizer) -> None:
        architecture = str(properties.get("general.architecture", ""))
        template = properties.get("tokenizer.chat_template", _BY_ARCHITECTURE.get(architecture))
        if template is None:
            raise UnsupportedError(
                "the model has no template for conversations (tokenizer.chat_template), and its "
                f"architecture {quoted(architecture)} has no format that is known without; give "
                "it plain text"
            )
        if not isinstance(template, str) or len(template) > _MAX_TEMPLATE_CHARACTERS:
            raise InputError(
                f"'tokenizer.chat_template' is expected to be a text of at most "
                f"{_MAX_TEMPLATE_CHARACTERS:,} characters"
            )
        self._template = template
        self._tokenizer = tokenizer
        self._names = {
            "bos_token": tokenizer.name_of(properties.get("tokenizer.ggml.bos_token_id")),
            "eos_token": tokenizer.name_of(properties.get("tokenizer.ggml.eos_token_id")),
        }

    def render(self, messages: Sequence[Message], *, answer: bool = True) -> str:
        """Return a conversation as text; with `answer` it ends where the model's answer begins.

        Raises:
            InputError: the template fails, refuses the messages, or reaches a limit; or there are
                halves of characters.
            EnvironmentProblem: Jinja is not installed.
        """
        require("jinja2", "the model's template for conversations", "models")
        values = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": answer,
            "tools": None,  # a template may ask whether it is none
            "documents": None,
            **self._names,
        }
        if self._template in _BY_ARCHITECTURE.values():
            return _render(self._template, values)
        try:
            _, [text] = call(
                "subquant.models.chat:serve_template",
                {"template": self._template, "values": values},
                limits=Limits(memory_gib=_MEMORY_GIB),
            )
        except ChildEnded as ended:
            reached = f"the {ended.exhausted or 'time'}"
            raise InputError(
                f"the model's template for conversations reached a limit, probably {reached}: its "
                f"process ended ({ended.cause}); give the prompt as plain text"
            ) from None
        return text.decode()

    def encode(self, messages: Sequence[Message], *, answer: bool = True) -> list[int]:
        """Return the tokens of a conversation, with the start token once.

        Args, Raises: as `render`.
        """
        tokenizer = self._tokenizer
        tokens = tokenizer.encode(self.render(messages, answer=answer), start=False)
        start = tokenizer.start_token
        if start is not None and tokenizer.adds_start and tokens[:1] != [start]:
            return [start, *tokens]
        return tokens


def serve_template(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Render a template, in a child process; the blob is the text."""
    steps("render")
    with time_limit(_SECONDS):
        return None, [_render(arguments["template"], arguments["values"]).encode()]


def _render(template: str, values: Mapping[str, Any]) -> str:
    import json
    from datetime import datetime

    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    def to_json(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    class Generation(Extension):
        """Tag ``{% generation %}``, which marks the model's text for training."""

        tags = {"generation"}  # noqa: RUF012 - so Jinja has it

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form))
    pieces, size = [], 0
    try:
        for piece in environment.from_string(template).generate(**values):
            size += len(piece)
            if size > _MAX_CHARACTERS:
                raise jinja2.TemplateError(f"it writes more than {_MAX_CHARACTERS:,} characters")
            pieces.append(piece)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a template's expression may raise anything
        reason = printable(str(error)[:300]) or type(error).__name__
        raise InputError(f"the model's template for conversations fails: {reason}") from None
    text = "".join(pieces)
    check_text(text)
    return text
