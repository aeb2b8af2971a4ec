"""Tokenizers, chat templates, and the tokens that tests compare with.

`write_byte_level` writes a BPE of bytes, as Llama 3 and Qwen have it; `write_byte_fallback` a BPE
of characters with a token for each byte, as SentencePiece's in Gemma.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .models import write_json

VOCABULARY = 320
"""The number of tokens of both vocabularies."""
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PARAGRAPH = """
The harbor wakes before the town does. Boats come in with the tide, and the women who mend the nets
sit on the wall and talk about the weather, the price of fish, and the winter that is coming. When
the bell of the church rings seven times, the children run down the hill to the school, and the
baker opens the door. There is the smell of bread and of tar. The old lighthouse stands on the rock
as it has for 200 years; in 1874 a storm took the roof, and the town built it again in 3 weeks.
"That was another time," the keeper says, and he is right. It isn't the sea that changed, it's the
people. They don't ask where the wind comes from, they read it from a screen: def wind(hour): return
table[hour]. A café on the square sells tea, coffee and small cakes to the tourists of the summer.
"""
"""The text that both tokenizers are trained on."""

_TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "The harbor wakes before the town does.",
    " leading space",
    "trailing space ",
    "  two leading and trailing  ",
    "many      spaces       inside",
    "\n",
    "\n\n\n",
    "line one\nline two\n\nline four\n",
    "windows\r\nnewlines\r\n",
    "\ttabs\tand\t\tmore",
    " \n \n ",
    "café résumé naïve Ångström",
    "Größe, Straße, Übermut",
    "cafe\u0301 with a combining accent",
    "中文字符和日本語のテキスト",
    "한국어 텍스트",
    "Привет, мир! Ελληνικά",
    "עברית العربية",
    "😀🎉👍🏽",
    "family: 👨‍👩‍👧‍👦 flag: 🇩🇪",
    "𝒳 ∈ ℝⁿ, ½ ≤ √2",
    "1234567890 3.14159 1,000,000",
    "I'm you're he'll WE'VE don't isn't it's",
    "def f(x):\n    return x ** 2  # square\n",
    '{"key": [1, 2, {"nested": null}]}',
    "https://example.org/path?query=1&b=%20#fragment",
    "<|begin_of_text|>",
    "text with <|end|> and <|user|> inside",
    "<|assistant|><|end_of_turn|>\nadjacent",
    "<start_of_turn>user\nHi<end_of_turn>\n",
    "<bos> <eos> <pad> <unk>",
    "< |end|> <|END|> <|end",
    "▁metaspace▁ inside ▁",
    "\u00a0no-break\u2003em space\u200bzero width",
    "\x00\x01\x7f control",
    "The tide, the bell, the church: the weather of the winter that is coming to the harbor again.",
]
_CONVERSATIONS = [
    [{"role": "user", "content": "Where is the harbor?"}],
    [
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": "Who mends the nets?"},
    ],
    [
        {"role": "user", "content": "  spaces around \n"},
        {"role": "assistant", "content": " An answer.\n\nOf two paragraphs. "},
        {"role": "user", "content": "And now?"},
    ],
    [
        {"role": "system", "content": "Système: naïve 中文 😀"},
        {"role": "user", "content": "Größe?"},
        {"role": "assistant", "content": "½ m"},
        {"role": "user", "content": "<|end|> or <end_of_turn> as text"},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "line one\nline two"},
    ],
    [
        {"role": "user", "content": "Finish it: the tide"},
        {"role": "assistant", "content": "comes in"},
    ],
]

_LLAMA_SPECIAL = [
    "<|begin_of_text|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|end_of_turn|>",
    "<|assistant|>",
]
_LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_TEMPLATE = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "You are a helpful assistant." %}
{%- endif %}
{{- '<|system|>\\n' + system_message + '<|end_of_turn|>\\n' }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles of user and assistant must alternate.') }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end_of_turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""
_GEMMA_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
_CHARACTERS = 30
"""The number of characters with a token of their own; others are bytes."""
_GEMMA_TEMPLATE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""


def write_byte_level(folder: Path) -> None:
    """Write a byte-level BPE with a chat template, and the tokens of texts."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(_LLAMA_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=_LLAMA_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_PARAGRAPH], trainer)
    tokenizer.decoder = decoders.ByteLevel()
    bos = _LLAMA_SPECIAL[0]
    template = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token="<|end|>",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    fast.chat_template = _LLAMA_TEMPLATE
    fast.save_pretrained(folder)
    write_tokens(folder)


def write_byte_fallback(folder: Path) -> None:
    """Write a BPE of characters with byte fallback and a chat template, and the tokens of texts."""
    learned = Tokenizer(models.BPE())
    learned.normalizer = normalizers.Replace(" ", "▁")
    learned.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    count = VOCABULARY - len(_GEMMA_SPECIAL) - len(_BYTES)
    text = _PARAGRAPH.replace("\n", " ").strip()
    frequencies = Counter(text.replace(" ", "▁"))
    alphabet = sorted(frequencies, key=lambda character: (-frequencies[character], character))
    trainer = trainers.BpeTrainer(
        vocab_size=count,
        initial_alphabet=alphabet[:_CHARACTERS],
        limit_alphabet=_CHARACTERS,
        show_progress=False,
    )
    learned.train_from_iterator([text], trainer)
    model = json.loads(learned.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    vocabulary = {piece: i for i, piece in enumerate([*_GEMMA_SPECIAL, *_BYTES, *pieces])}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in _GEMMA_SPECIAL]
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    fast.chat_template = _GEMMA_TEMPLATE
    fast.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = {"add_bos_token": True, "add_eos_token": False, "tokenizer_class": "GemmaTokenizer"}
    write_json(path, json.loads(path.read_text()) | settings)
    write_tokens(folder)


def write_tokens(folder: Path) -> None:
    """Write ``tokens.json``: the tokens of texts and conversations by transformers.

    Raises:
        RuntimeError: the library ``tokenizers`` alone gives other tokens of ``tokenizer.json``.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    alone = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = []
    for text in _TEXTS:
        tokens = tokenizer(text)["input_ids"]
        without_special = tokenizer(text, add_special_tokens=False)["input_ids"]
        for is_special, expected in ((True, tokens), (False, without_special)):
            if alone.encode(text, add_special_tokens=is_special).ids != expected:
                raise RuntimeError(f"tokenizers gives other tokens of {text!r}")
        texts.append(
            {
                "text": text,
                "tokens": tokens,
                "tokens_without_special": without_special,
                "decoded": tokenizer.decode(tokens),
                "decoded_without_special": tokenizer.decode(tokens, skip_special_tokens=True),
            }
        )
    conversations = []
    for messages in _CONVERSATIONS:
        prompts = []
        for has_prompt in (False, True):
            text, encoded = (
                tokenizer.apply_chat_template(
                    messages, tokenize=tokenize, add_generation_prompt=has_prompt
                )
                for tokenize in (False, True)
            )
            prompts.append(
                {
                    "add_generation_prompt": has_prompt,
                    "text": text,
                    "tokens": list(encoded["input_ids"]),
                }
            )
        conversations.append({"messages": messages, "prompts": prompts})
    content = {"texts": texts, "conversations": conversations}
    (folder / "tokens.json").write_text(
        json.dumps(content, ensure_ascii=False).replace('{"text"', '\n{"text"') + "\n",
        encoding="utf-8",
    )
