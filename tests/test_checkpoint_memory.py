"""Memory of processes that open, compile and run a checkpoint of Hugging Face."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tokenizers

from processes import run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")

PIECES = 100_000

_TOKENIZER = """
import sys
from pathlib import Path
import tokenizers
from subquant.formats.tokenizer_files import TokenizerFiles
from subquant.models.huggingface.tokenizer import CheckpointTokenizer

def anonymous():
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(words[1]) * 1024 for words in lines if words[0] == "RssAnon:")

before = anonymous()
tokenizer = CheckpointTokenizer(TokenizerFiles(Path(sys.argv[1])), {})
tokens = tokenizer.encode("a text")
used = anonymous() - before
tokenizer.rest()
assert tokenizer.decode(tokens) == "a text"
print(used, anonymous() - before)
"""


def test_memory_of_a_tokenizer_that_rests(tmp_path: Path) -> None:
    """The library's tables of 100,000 pieces take 30 MB, and the pieces as one text 2 MB."""
    characters = [chr(0x4E00 + number) for number in range(400)]
    pairs = [(left, right) for left in characters for right in characters][:PIECES]
    vocabulary = {piece: number for number, piece in enumerate([*" etxa", *characters])}
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    model = tokenizers.models.BPE(vocabulary, pairs)
    engine = tokenizers.Tokenizer(model)
    engine.decoder = tokenizers.decoders.Fuse()
    engine.save(str(tmp_path / "tokenizer.json"))
    used, left_over = map(int, run_python(_TOKENIZER, tmp_path).split())
    assert used > 20_000_000
    assert left_over < 8_000_000
