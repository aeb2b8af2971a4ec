"""Chat templates: outputs, and malicious templates."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from subquant.errors import EnvironmentProblem, InputError, UnsupportedError
from subquant.models import chat
from subquant.models.chat import ChatTemplate
from subquant.models.tokenizer import Tokenizer
from vocabularies import paired, scored

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": " he "},
    {"role": "assistant", "content": "the"},
    {"role": "user", "content": "her"},
]
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def template(text: Any, properties: dict[str, Any] | None = None) -> ChatTemplate:
    arguments = scored() if properties is None else properties
    return ChatTemplate(
        arguments | {"tokenizer.chat_template": text}, Tokenizer.from_properties(arguments)
    )


def gemma(**changes: Any) -> ChatTemplate:
    properties = scored(**changes)
    tokenizer = Tokenizer.from_properties(properties)
    return ChatTemplate({"general.architecture": "gemma3", **properties}, tokenizer)


def test_a_template_of_the_file() -> None:
    chatml = template(CHATML, paired())
    assert chatml.render(MESSAGES[1:3]) == (
        "<|im_start|>user\n he <|im_end|>\n<|im_start|>assistant\nthe<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert chatml.render(MESSAGES[3:], answer=False) == "<|im_start|>user\nher<|im_end|>\n"
    tokens = Tokenizer.from_properties(paired()).encode(chatml.render(MESSAGES))
    assert chatml.encode(MESSAGES) == tokens


def test_gemmas_format_where_the_file_has_none() -> None:
    """llama.cpp's text."""
    assert gemma().render(MESSAGES) == (
        "<s><start_of_turn>user\nBe brief.\n\nhe<end_of_turn>\n"
        "<start_of_turn>model\nthe<end_of_turn>\n"
        "<start_of_turn>user\nher<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    assert gemma().render(MESSAGES[3:], answer=False) == (
        "<s><start_of_turn>user\nher<end_of_turn>\n"
    )


def test_the_start_token_comes_once() -> None:
    tokenizer = Tokenizer.from_properties(scored())
    expected = tokenizer.encode("<start_of_turn>user\nher<end_of_turn>\n")
    assert gemma().encode(MESSAGES[3:], answer=False) == expected
    assert expected.count(1) == 1
    without = "{{ '<start_of_turn>user\\nher<end_of_turn>\\n' }}"
    assert template(without).encode(MESSAGES) == expected
    # A template may write it where the file says that text has none.
    assert gemma(add_bos_token=False).encode(MESSAGES[3:])[0] == 1


def test_what_templates_are_given() -> None:
    assert template("{{ bos_token }}|{{ eos_token }}").render([]) == "<s>|</s>"
    assert template("{{ strftime_now('%Y') }}").render([]).isdigit()
    assert template("{{ {'ö': [1, '<']} | tojson }}").render([]) == '{"ö": [1, "<"]}'
    assert (
        template("{{ [1, 2] | tojson(separators=(',', ':'), sort_keys=true) }}").render([])
        == "[1,2]"
    )
    marked = "{% for x in [1, 2] %}{% generation %}a{{ x }}{% endgeneration %}{% endfor %}"
    assert template(marked).render([]) == "a1a2"
    assert template("{{ tools is none and documents is none }}").render([]) == "True"
    loop = "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}"
    assert template(loop).render([]) == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "fails: roles must alternate"),
        ("{{ raise_exception('two\nlines') }}", r"fails: two\\nlines"),
        ("{% for %}", "fails: .*"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{{ messages[0].content.nothing.more }}", "fails: .*has no attribute 'nothing'"),
        ("{{ ''.__class__.__mro__ }}", "fails: .*unsafe"),
        ("{{ messages.append(1) }}", "fails: .*"),
        ("{{ [0].append.__globals__ }}", "fails: .*unsafe"),
        ("{% include '/etc/passwd' %}", "fails: .*"),
        ("{% for x in range(10 ** 9) %}x{% endfor %}", "fails: .*too big"),
        (
            "{% for x in range(9999) %}{% for y in range(9999) %}{{ 'x' * 99 }}"
            "{% endfor %}{% endfor %}",
            "it writes more than",
        ),
        (
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "reached a limit, probably the stack.*give the prompt as plain",
        ),
        ("{{ 'x' * 10 ** 12 }}", "reached a limit, probably the memory.*give the prompt as plain"),
    ],
)
def test_templates_that_fail(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"the model's template for conversations .*{message}"):
        template(text).render(MESSAGES)


def test_halves_of_characters_are_no_text() -> None:
    message = [{"role": "user", "content": "a\udcff"}]
    for render in (gemma().render, template("{{ messages[0].content }}").render):
        with pytest.raises(InputError, match=r"is half of one \(U\+DCFF\), or the byte 0xff"):
            render(message)


def test_a_template_that_takes_too_long() -> None:
    """It writes nothing, and would run for hours."""
    loop = "{% for x in range(99999) %}" * 3 + "{% endfor %}" * 3
    with pytest.raises(InputError, match=r"reached a limit, probably the time.*\(SIGPROF\)"):
        template(loop).render(MESSAGES)


def test_the_sandbox_hands_out_nothing_of_python() -> None:
    for name in ("self", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"):
        with pytest.raises(InputError, match="unsafe"):
            template("{{ " + name + ".__init__.__globals__ }}").render([])


def test_a_file_without_a_template() -> None:
    properties = scored() | {"general.architecture": "llama"}
    with pytest.raises(UnsupportedError, match=r"no template .* architecture 'llama' .*plain text"):
        ChatTemplate(properties, Tokenizer.from_properties(properties))


@pytest.mark.parametrize("text", [3, "x" * (2**20 + 1)])
def test_a_template_that_is_none(text: object) -> None:
    with pytest.raises(InputError, match="expected to be a text of at most 1,048,576 characters"):
        template(text)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(EnvironmentProblem, match='run: pip install "subquant'):
        gemma().render(MESSAGES)


def test_a_child_renders_without_the_runtime() -> None:
    """The modules of a template are imported in a tenth of a second."""
    import subprocess

    code = f"import sys, {chat.__name__}; print('iree.runtime' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"
