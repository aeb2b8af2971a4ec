"""Damage to the tokenizers and chat templates of Hugging Face checkpoints."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from .checkpoint_json import (
    GENERATION,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIGURATION,
    VALUES,
    Damage,
    Expectation,
    Files,
    damage_json,
    encoded,
)
from .mutations import mutate_bytes, mutate_text

_TEMPLATES = (
    "{% for a in range(99999999) %}{% for b in range(99999999) %}{% endfor %}{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 999999999 }}", "{{ 'x' * 99999999999999 }}", "{{ 9 ** 9 ** 9 }}",
    "{{ [0] * 999999999 }}", "{{ messages[0].__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__ }}", "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context.environment }}", "{{ messages.append(1) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}", "{% extends 'x' %}", "{{ messages[99] }}", "{{ undefined.x }}",
    "{{ 1 / 0 }}", "{% if %}", "{{", "{% generation %}", "{% endgeneration %}",
    "{{ raise_exception('\\x1b[2J') }}", "{{ raise_exception(messages) }}", "{{ '\\ud800' }}",
    "{{ strftime_now('%Y' * 100000) }}", "{{ strftime_now(3) }}",
    "{{ messages | tojson(indent=999) }}",
    "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    "{{ 'a' * ns.x }}", "{{ ''.join(['a'] * 5000000) }}", "{% for m in messages %}{{ loop }}",
    "{% filter upper %}{{ bos_token }}{% endfilter %}", "{{ '%999999999d' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}", "{{ 'a'.ljust(999999999) }}", "{{ lipsum(n=100000) }}",
    "{{ messages | map(attribute='__class__') | list }}", "{{ joiner.__init__ }}", "(" * 5000,
    "{{ " + "(" * 5000 + " }}", "{{ " + "not " * 50000 + "1 }}", "{% if 1 %}" * 3000, "",
    "{{ 'a' | attr('__class__') }}", "{{ '{0.__class__}'.format(1) }}", "{#" * 99, "\0", "\ufeff",
)  # fmt: skip


def templates(rng: random.Random, files: Files) -> Damage:
    """Templates that loop, take memory, write much, or look at Python."""
    text = rng.choice(_TEMPLATES)
    if rng.random() < 0.4:
        text = mutate_text(rng, files[TEMPLATE].decode(), list(_TEMPLATES[:40]))
    changed = dict(files)
    if rng.random() < 0.3:
        settings = json.loads(files[TOKENIZER_CONFIGURATION])
        settings["chat_template"] = rng.choice((
            text, [{"name": "default", "template": text}], [{"name": "tool_use", "template": text}],
            [{"name": ["x"]}], {"default": text}, [text], 3, [],
            [{"name": "default", "template": 3}],
        ))  # fmt: skip
        del changed[TEMPLATE]
        changed[TOKENIZER_CONFIGURATION] = encoded(settings)
    else:
        changed[TEMPLATE] = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.1:
            changed[TEMPLATE] = rng.choice((b"\xff\xfe", b"a" * (5 << 20), mutate_bytes(
                rng, files[TEMPLATE])))  # fmt: skip
    return Damage(f"template {text[:60]!r}", changed, renders=True)


_PARTS: dict[str, tuple[dict[str, Any], ...]] = {
    "model": (
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"},
        {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "x", "max_input_chars_per_word": 3,
         "continuing_subword_prefix": "##"},
        {"type": "Unigram", "vocab": [], "unk_id": 5},
        {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None},
        {"type": "Unigram", "vocab": [["a", 1e308], ["", 0.0]], "unk_id": 0, "byte_fallback": True},
        {"type": "BPE", "vocab": {}, "merges": []},
        {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
         "continuing_subword_prefix": "####"},
        {"type": "BPE", "vocab": {"a": 0, "b": (1 << 32) - 1, "ab": 2}, "merges": ["a b"],
         "dropout": 0.5, "unk_token": "zz", "fuse_unk": True},
    ),
    "normalizer": (
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Precompiled", "precompiled_charsmap": "/////wAA"},
        {"type": "Replace", "pattern": {"Regex": "(a*)*"}, "content": ""},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
        {"type": "Prepend", "prepend": ""},
    ),
    "pre_tokenizer": (
        {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "(?:(l+)+)+$"}, "behavior": "Isolated",
         "invert": True},
        {"type": "FixedLength", "length": 0}, {"type": "Digits", "individual_digits": True},
        {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}, {"type": "ByteLevel"},
    ),
    "decoder": (
        {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "BPEDecoder", "suffix": ""}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Replace", "pattern": {"String": ""}, "content": "xx"},
    ),
    "post_processor": (
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "q", "type_id": 0}}],
         "pair": [], "special_tokens": {"q": {"id": "q", "ids": [(1 << 32) - 1],
                                              "tokens": ["q"]}}},
        {"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2]},
        {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]},
    ),
}  # fmt: skip
"""Parts of ``tokenizer.json`` that contradict others, and that the library fails on."""


def tokenizers(rng: random.Random, files: Files) -> Damage:
    """The files of the tokenizer."""
    name = rng.choice((TOKENIZER, TOKENIZER, TOKENIZER_CONFIGURATION, GENERATION))
    changed = dict(files)
    change = rng.random()
    if name not in files or change < 0.03:
        changed.pop(name, None)
        return Damage(f"no {name}", changed, renders=rng.random() < 0.1)
    if change < 0.25:
        text = mutate_text(rng, files[name].decode(), ['{"type": "BPE", "merges": [["a", "b"]]}'])
        changed[name] = text.encode("utf-8", "surrogatepass")
        return Damage(f"text of {name}", changed)
    settings = json.loads(files[name])
    if name == TOKENIZER and rng.random() < 0.4:
        part, values = rng.choice(list(_PARTS.items()))
        settings[part] = rng.choice(values)
        changed[name] = encoded(settings)
        return Damage(f"{part} = {settings[part]}", changed)
    expected: Expectation = "anything"
    if name != TOKENIZER and rng.random() < 0.5:
        key = "eos_token_id" if name == GENERATION else rng.choice(
            ("bos_token", "eos_token", "add_bos_token"))  # fmt: skip
        settings[key] = copy.deepcopy(rng.choice((
            *VALUES, 2, [1], [0, 319], 320, -1, {"content": "<|user|>"}, {"content": 3}, "<|user|>",
        )))  # fmt: skip
        path = f"{key}={settings[key]!r}"[:80]
        if name == GENERATION and settings[key] not in (None, 1, [1], [1, 1]):
            expected = "changed"
    else:
        path = str(damage_json(rng, settings))
    changed[name] = encoded(settings)
    return Damage(f"{name}: {path}", changed, expected, renders=rng.random() < 0.05)
