"""Tokenizers: tokens of text, text of tokens, and vocabularies that are wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from processes import run_python
from subquant.errors import EnvironmentProblem, InputError, SubquantError, UnsupportedError
from subquant.formats.gguf import read_gguf
from subquant.models.tokenizer import Tokenizer
from vocabularies import PAIRS, SPACE, naive_paired, naive_scored, paired, scored

SCORED = scored()
PAIRED = paired()
TEXTS = st.text(alphabet="abcdehlnortuwy.,! \n\tö世🙂", max_size=40)
WORDS = st.text(alphabet="abcdehlnortw 's123.!\n\tö世🙂_", max_size=40)


@given(TEXTS)
@example("hello the world, another there  abcd bcd   aaaa aaaaa")
@example(" hello ")
@example("")
def test_scores_merge_as_they_are_defined(text: str) -> None:
    tokenizer = Tokenizer.from_properties(SCORED)
    tokens = tokenizer.encode(text, start=False)
    assert tokens == naive_scored(SCORED, text)
    assert tokenizer.decode(tokens) == text


@given(TEXTS)
def test_characters_without_pieces_are_unknown_where_there_are_no_bytes(text: str) -> None:
    properties = scored(has_bytes=False)
    got = Tokenizer.from_properties(properties).encode(text, start=False)
    naive = naive_scored(properties, text)
    # SentencePiece makes one unknown token of several in a row.
    once = [token for n, token in enumerate(naive) if token or not n or naive[n - 1]]
    assert got == once


@pytest.mark.parametrize("kind", [None, 1, 3, 4, 5])
def test_bytes_are_known_by_their_names(kind: int | None) -> None:
    """llama.cpp writes these tokens for a file without types, or with another type for a byte."""
    types = list(SCORED["tokenizer.ggml.token_type"])
    token = SCORED["tokenizer.ggml.tokens"].index("<0x0C>")
    if kind is not None:
        types[token] = kind
    changed = Tokenizer.from_properties(scored(token_type=types if kind else None))
    text = "a\x0c\u4e95\t"
    tokens = changed.encode(text, start=False)
    assert tokens == naive_scored(SCORED, text)
    assert changed.bytes_of(tokens[-1]) == b"\t"
    if kind in (None, 1):
        assert changed.decode(tokens) == text


@given(WORDS)
@example("hello the world's 123 not  on.\n\n ö 🙂'll")
@example("  leading, trailing  ")
@example("")
def test_pairs_merge_as_they_are_defined(text: str) -> None:
    tokenizer = Tokenizer.from_properties(PAIRED)
    tokens = tokenizer.encode(text, start=False)
    assert tokens == naive_paired(PAIRED, text)
    assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize(
    ("split", "text", "expected"),
    [
        ("llama-bpe", "1234 a", ["123", "4", "Ġ", "a"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("gpt-2", "1234", ["123", "4"]),
        ("starcoder", "1234", ["1", "2", "3", "4"]),
        ("default", "1234", ["123", "4"]),
        ("llama-bpe", "(on", ["(", "on"]),
        ("gpt-2", ".\n\n", [".", "ĊĊ"]),
        ("qwen2", ".\n\n", [".Ċ", "Ċ"]),
    ],
)
def test_text_is_split_as_the_file_says(split: str, text: str, expected: list[str]) -> None:
    properties = paired(pre=split)
    tokens = Tokenizer.from_properties(properties).encode(text, start=False)
    assert [properties["tokenizer.ggml.tokens"][token] for token in tokens] == expected


def test_a_word_that_is_a_piece_is_not_merged_where_the_file_says_so() -> None:
    """Llama 3 has pieces that no pairs lead to."""
    pieces = paired()["tokenizer.ggml.tokens"]
    more = {"tokens": [*pieces, "woe"], "token_type": [*paired()["tokenizer.ggml.token_type"], 1]}
    whole = Tokenizer.from_properties(paired(pre="llama-bpe", **more))
    assert whole.encode("woe", start=False) == [len(pieces)]
    assert len(Tokenizer.from_properties(paired(**more)).encode("woe", start=False)) == 3


def test_control_tokens_are_found_where_they_are_asked_for() -> None:
    tokenizer = Tokenizer.from_properties(SCORED)
    text = "<start_of_turn>he<end_of_turn>"
    assert tokenizer.encode(text) == [1, 3, *tokenizer.encode("he", start=False), 4]
    plain = tokenizer.encode(text, special=False)
    assert not {3, 4} & set(plain)
    assert tokenizer.decode(plain) == text


def test_pieces_of_users_are_found_always_and_the_longest_first() -> None:
    tokenizer = Tokenizer.from_properties(SCORED)
    pieces = SCORED["tokenizer.ggml.tokens"]
    for special in (True, False):
        tokens = tokenizer.encode("a[img]x[img]<h1>", start=False, special=special)
        assert [pieces[token] for token in tokens] == ["a", "[img]x", "[img]", "<h1>"]


@pytest.mark.parametrize(("name", "strips"), [("Phi3", True), ("a Phi-3-mini", True), ("", False)])
def test_special_tokens_of_phi_3_remove_white_space_after_them(name: str, strips: bool) -> None:
    """llama.cpp knows the model by its name; the start token and the unknown one keep it."""
    tokenizer = Tokenizer.from_properties({**SCORED, "general.name": name})

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, start=False)

    text = "he \n<start_of_turn>\n\n the<h1> <end_of_turn> \n<s>\nb"
    between = ["the", "", ""] if strips else ["\n\n the", " ", " \n"]
    h1 = SCORED["tokenizer.ggml.tokens"].index("<h1>")
    the, space, line = map(tokens, between)
    assert tokens(text) == [*tokens("he \n"), 3, *the, h1, *space, 4, *line, 1, *tokens("\nb")]


def test_control_tokens_are_no_text() -> None:
    tokenizer = Tokenizer.from_properties(SCORED)
    tokens = [1, 3, *tokenizer.encode("he[img]", start=False), 4, 2]
    assert tokenizer.decode(tokens) == "he[img]"
    assert tokenizer.decode(tokens, special=True) == "<s><start_of_turn>he[img]<end_of_turn></s>"


def test_the_start_token_and_the_space_are_as_the_file_says() -> None:
    space = SCORED["tokenizer.ggml.tokens"].index(SPACE)
    with_space = Tokenizer.from_properties(scored(add_space_prefix=True))
    assert with_space.encode("b") == [1, space, *with_space.encode("b")[2:]]
    assert with_space.encode("b<end_of_turn>b", start=False).count(space) == 2
    assert with_space.decode(with_space.encode(" b")) == " b"
    assert Tokenizer.from_properties(scored(add_space_prefix=None)).encode("b")[1] == space
    assert Tokenizer.from_properties(scored(add_bos_token=None)).encode("") == [1]
    assert Tokenizer.from_properties(scored(add_bos_token=False)).encode("") == []
    assert Tokenizer.from_properties(scored()).encode("", start=False) == []
    assert Tokenizer.from_properties(paired()).encode("") == []
    llama = Tokenizer.from_properties(paired(pre="llama-bpe"))
    assert llama.encode("") == [paired()["tokenizer.ggml.bos_token_id"]]


def test_the_end_is_what_the_file_names_and_what_models_write() -> None:
    assert Tokenizer.from_properties(SCORED).end_tokens == {2, 4}
    assert Tokenizer.from_properties(scored(eot_token_id=3)).end_tokens == {2, 3, 4}
    pieces = PAIRED["tokenizer.ggml.tokens"]
    ends = Tokenizer.from_properties(PAIRED).end_tokens
    assert {pieces[token] for token in ends} == {"<|endoftext|>", "<|im_end|>"}


def test_a_piece_without_text_is_named() -> None:
    """Names of llama.cpp's pre-tokenizers; several share an expression."""
    tokens = [*SCORED["tokenizer.ggml.tokens"][:-2], "", ""]
    tokenizer = Tokenizer.from_properties(scored(tokens=tokens))
    assert tokenizer.decode([len(tokens) - 1]) == f"[EMPTY_{len(tokens) - 1}]"


@pytest.mark.parametrize("properties", [SCORED, PAIRED], ids=["scored", "paired"])
@given(text=st.text(max_size=20))
def test_a_stream_gives_whole_characters(properties: dict[str, Any], text: str) -> None:
    tokenizer = Tokenizer.from_properties(properties)
    stream = tokenizer.stream()
    pieces = [stream.put(token) for token in tokenizer.encode(text, start=False, special=False)]
    assert "\ufffd" not in "".join(pieces).replace("\ufffd", "", text.count("\ufffd"))
    assert "".join(pieces) + stream.end() == text.replace(
        SPACE, " " if properties is SCORED else SPACE
    )


def test_a_character_that_is_never_whole_is_replaced() -> None:
    tokenizer = Tokenizer.from_properties(SCORED)
    first, *rest = tokenizer.encode("🙂", start=False)
    assert len(rest) == 3
    stream = tokenizer.stream()
    assert [stream.put(first), stream.put(rest[0]), stream.end()] == ["", "", "\ufffd"]
    assert stream.put(first) + stream.put(tokenizer.encode("a", start=False)[0]) == "\ufffda"


@pytest.mark.parametrize("properties", [SCORED, PAIRED], ids=["scored", "paired"])
def test_a_tokenizer_that_rests_decodes_and_encodes_again(properties: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_properties(properties)
    tokens = tokenizer.encode("hello ö 🙂")
    tokenizer.rest()
    assert tokenizer.decode(tokens) == "hello ö 🙂"
    assert tokenizer.encode("hello ö 🙂") == tokens


AFTER_REST = """
import numpy as np
import subquant
from subquant.models.tokenizer import Tokenizer
from vocabularies import scored

def anonymous():
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(words[1]) for words in lines if words[0] == "RssAnon:")

known = scored()
count = len(known["tokenizer.ggml.tokens"])
tokens = [f"piece {number}" for number in range(count, 200_000)]
properties = scored(
    tokens=known["tokenizer.ggml.tokens"] + tokens,
    scores=known["tokenizer.ggml.scores"] + [-1000.0 - number for number in range(len(tokens))],
    token_type=known["tokenizer.ggml.token_type"] + [1] * len(tokens),
)
device = subquant.Device("llvm-cpu", threads=1)
device.put(np.zeros(1 << 20, np.int8))
tokenizer = Tokenizer.from_properties(properties)
tokenizer.encode("hello")
tokenizer.rest()
before = anonymous()
kept = [device.put(np.broadcast_to(np.float16(0), (1 << 19,))) for _ in range(24)]
print(anonymous() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_memory_of_a_tokenizer_that_rests_is_not_written_by_others() -> None:
    """24 MiB of zeros take 7 to 10 MB of pages, not SentencePiece's former memory."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    assert int(run_python(AFTER_REST, env=environment)) < 14_000


def replaced(properties: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The properties of a vocabulary with another piece in the place of one."""
    pieces = [piece if piece != old else new for piece in properties["tokenizer.ggml.tokens"]]
    return properties | {"tokenizer.ggml.tokens": pieces}


UNSUPPORTED_VOCABULARIES = [
    (scored(model="bert"), "the kind 'bert' .* expected one of: llama, gpt2"),
    (
        paired(pre="gpt-3"),
        r"text is split, 'gpt-3' \(tokenizer.ggml.pre\), is not known; did you mean 'gpt-2'",
    ),
    (paired(pre="own"), "expected one of: llama-bpe, .*qwen2.*, default"),
]
INVALID_VOCABULARIES = [
    ({}, "no property 'tokenizer.ggml.model'; it comes without a vocabulary"),
    (scored(model=3), "'tokenizer.ggml.model' is of the type int, expected str"),
    (scored(tokens=None), "no property 'tokenizer.ggml.tokens'"),
    (scored(tokens=[]), "'tokenizer.ggml.tokens' is empty"),
    (scored(tokens=[1, 2]), "'tokenizer.ggml.tokens' .* of a wrong type"),
    (scored(scores=None), "no property 'tokenizer.ggml.scores'"),
    (scored(scores=[1.0]), "'tokenizer.ggml.scores' has 1 elements for 323 tokens"),
    (scored(token_type=[1]), "token_type' has 1 elements for 323 tokens"),
    (scored(scores=[float("nan")] * 323), "infinities or NaN"),
    (scored(bos_token_id=323), "bos_token_id' is 323, expected one of 323 tokens"),
    (scored(eos_token_id=-1), "eos_token_id' is -1"),
    (scored(unknown_token_id=True), "unknown_token_id' is of the type bool"),
    (replaced(SCORED, "he", "th"), "SentencePiece refuses the model's vocabulary: .*th"),
    (
        replaced(SCORED, "\n", "\n\n"),
        r"SentencePiece refuses the model's vocabulary: .*\\n\\n is already defined",
    ),
    (replaced(SCORED, "<0x0A>", "<0xZZ>"), "piece '<0xZZ>' is a byte, expected '<0xXX>'"),
    (paired(merges=None), "no property 'tokenizer.ggml.merges'"),
    (paired(merges=["ab"]), "pair 0 of 'tokenizer.ggml.merges' is 'ab'"),
    (paired(merges=[*PAIRS, "q zz"]), "pair of 'q' and 'zz' makes no piece"),
    # Longer than all pieces, which is a panic in the package.
    (
        paired(
            tokens=["a", "b"], merges=["a b"], token_type=None, bos_token_id=None, eos_token_id=None
        ),
        "pair of 'a' and 'b' makes no piece",
    ),
    (paired(merges=[*PAIRS, "<|im _end|>"]), "refuses the model's pairs: .*<|im"),
    (replaced(PAIRED, "he", "th"), "two tokens of the model's vocabulary have the same piece"),
]


@pytest.mark.parametrize(
    ("properties", "message", "error"),
    [
        *((*row, UnsupportedError) for row in UNSUPPORTED_VOCABULARIES),
        *((*row, InputError) for row in INVALID_VOCABULARIES),
    ],
)
def test_a_wrong_vocabulary(
    properties: dict[str, Any], error: type[SubquantError], message: str
) -> None:
    with pytest.raises(error, match=message):
        Tokenizer.from_properties(properties)


def test_text_that_is_none() -> None:
    message = r"character 2 is half of one \(U\+DC80\), or the byte 0x80, which is no text here$"
    with pytest.raises(InputError, match=message):
        Tokenizer.from_properties(SCORED).encode("ab\udc80")


@pytest.mark.parametrize("token", [-1, 323])
def test_a_token_that_there_is_not(token: int) -> None:
    with pytest.raises(InputError, match=f"there is no token {token}, expected one of 323"):
        Tokenizer.from_properties(SCORED).decode([token])


@pytest.mark.parametrize(
    ("properties", "package"), [(SCORED, "sentencepiece"), (PAIRED, "tokenizers")]
)
def test_a_missing_package_is_named(
    properties: dict[str, Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        EnvironmentProblem, match=rf'{package}.*; run: pip install "subquant\[models\]'
    ):
        Tokenizer.from_properties(properties)


MEASURE = r"""
import re, sys
from subquant.formats.gguf import read_gguf
from subquant.models.tokenizer import Tokenizer
properties, _ = read_gguf(sys.argv[1])
tokenizer = Tokenizer.from_properties(properties)
tokenizer.encode("a")
properties.clear()
tokenizer.rest()
status = open("/proc/self/status").read()
print(*(re.search(rf"{name}:\s+(\d+) kB", status)[1] for name in ("VmHWM", "VmRSS")))
"""


def test_gemmas_tokens_are_those_of_llama_cpp(gemma: Path) -> None:
    """The file has what llama.cpp made of each text, without and with control tokens."""
    tokenizer = Tokenizer.from_properties(read_gguf(gemma)[0])
    page = json.loads((Path(__file__).parent / "gemma_tokens.json").read_text())
    assert len(page) > 40
    for text, plain, special in page:
        assert tokenizer.encode(text, start=False, special=False) == plain
        assert tokenizer.encode(text, start=False) == special
        assert tokenizer.decode(special, special=True) == text.replace(SPACE, " ")
    assert tokenizer.encode("") == [2]
    assert tokenizer.end_tokens == {1, 106, 212}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_gemmas_vocabulary_takes_little_memory(gemma: Path) -> None:
    """262,144 pieces: 130 MB with Python, NumPy, and the properties; 55 MB when it rests."""
    most, resting = map(int, run_python(MEASURE, gemma).split())
    assert most < 160_000
    assert resting < 70_000
