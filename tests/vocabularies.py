"""Small vocabularies as GGUF's properties, and what tokenizes with them, written for being read."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

SPACE = "\u2581"

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]

LEARNED = [
    *(SPACE, *"abcdehlnortuwy.,!", "ö", "é", "世", SPACE * 2, SPACE * 3),
    *("he", "th", "the", "er", "re", "ll", "lo", "ello", "hello", "or", "ld", "world", "wo"),
    *(f"{SPACE}the", f"{SPACE}w", f"{SPACE}wor", "her", "here", "there", "ab", "bc", "abc", "cd"),
    *("bcd", "aa", "aaa", "on", "ton", "another", "an", "other", "ot", "not", ".\n", "\n", "\n\n"),
]
"""Pieces of text."""


def scored(*, has_bytes: bool = True, **changes: Any) -> dict[str, Any]:
    """A vocabulary of pieces with scores; changes of properties by name, None to leave one out."""
    control = ["<unk>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]
    of_users = ["<h1>", "[img]", "[img]x"]
    from_bytes = BYTE_PIECES if has_bytes else []
    tokens = [*control, *of_users, *from_bytes, *LEARNED]
    types = [2, 3, 3, 3, 3, *[4] * len(of_users), *[6] * len(from_bytes), *[1] * len(LEARNED)]
    scores = [0.0] * (len(tokens) - len(LEARNED))
    # Longer ones last, as they are learned, and some with the same score.
    scores += [-float(number // 2) for number in range(len(LEARNED))]
    return _properties(
        {
            "model": "llama",
            "tokens": tokens,
            "scores": scores,
            "token_type": types,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
            "add_bos_token": True,
            "add_space_prefix": False,
        },
        changes,
    )


MERGES = """
h e|t h|th e|e r|r e|l l|l o|he ll|hell o|o r|l d|w or|wor ld|Ġ w|Ġ the|he r|a b|b c|ab c|b cd
Ġw or|Ã ¶|1 2|12 3|' s|Ġ Ġ|o n|n o|no t|an o|a n|. Ċ|Ċ Ċ|ð Ł
"""
PAIRS = [pair for pair in MERGES.replace("\n", "|").strip("|").split("|") if pair not in ("b cd",)]
"""Pairs, the first to be merged first."""


def byte_characters() -> dict[int, str]:
    """GPT-2's character for each byte."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return {
        byte: chr(byte) if byte in plain else chr(256 + len(set(range(byte)) - plain))
        for byte in range(256)
    }


def paired(**changes: Any) -> dict[str, Any]:
    """A vocabulary of pairs of bytes; changes of properties by name, None to leave one out."""
    pieces = [*byte_characters().values(), *(pair.replace(" ", "") for pair in PAIRS)]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
    return _properties(
        {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": [*pieces, *special],
            "token_type": [*[1] * len(pieces), 3, 3, 3, 4],
            "merges": PAIRS,
            "bos_token_id": len(pieces),
            "eos_token_id": len(pieces),
        },
        changes,
    )


def _properties(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = {**values, **changes}
    return {f"tokenizer.ggml.{name}": v for name, v in changed.items() if v is not None}


def naive_scored(properties: dict[str, Any], text: str) -> list[int]:
    """Merge the neighbours with the highest score, the leftmost of several, one pair at a time."""
    tokens = properties["tokenizer.ggml.tokens"]
    types = properties["tokenizer.ggml.token_type"]
    scores = properties["tokenizer.ggml.scores"]
    known = {piece: n for n, piece in enumerate(tokens) if types[n] in (1, 4)}
    pieces = list(text.replace(" ", SPACE))
    while True:
        actual = [
            (-scores[known[left + right]], position)
            for position, (left, right) in enumerate(pairwise(pieces))
            if left + right in known
        ]
        if not actual:
            break
        position = min(actual)[1]
        pieces[position : position + 2] = [pieces[position] + pieces[position + 1]]
    ids = []
    for part in pieces:
        as_bytes = [f"<0x{byte:02X}>" for byte in part.encode()]
        if part in known:
            ids.append(known[part])
        elif as_bytes[0] in tokens:
            ids += [tokens.index(piece) for piece in as_bytes]
        else:
            ids.append(types.index(2))
    return ids


def naive_paired(properties: dict[str, Any], text: str) -> list[int]:
    """GPT-2's splitting of text with the letters and digits of `re`, then pairs by rank."""
    tokens, merges = (properties[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges"))
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
    letter, digit = r"[^\W\d_]", r"\d"
    other = r"(?:[^\s\w]|_)"
    words = rf"'s|'t|'re|'ve|'m|'ll|'d| ?{letter}+| ?{digit}+| ?{other}+|\s+(?!\S)"
    ids = []
    for word in (part for part in re.split(f"({words})", text) if part):
        pieces = [byte_characters()[byte] for byte in word.encode()]
        while True:
            pairs = [pair for pair in pairwise(pieces) if pair in ranks]
            if not pairs:
                break
            best = min(pairs, key=lambda pair: ranks[pair])
            position = next(p for p in range(len(pieces)) if tuple(pieces[p : p + 2]) == best)
            pieces[position : position + 2] = ["".join(best)]
        ids += [tokens.index(part) for part in pieces]
    return ids
