"""Wrong calls of ``subquant generate``, and a call that interrupts itself."""

from __future__ import annotations

INTERRUPTED = """
import os, signal, sys
from subquant.models import session
from subquant.cli import main
read, count = session.Session.next, 0
def next(self, token):
    global count
    count += 1
    if count == 4:
        os.kill(os.getpid(), signal.SIGINT)
    return read(self, token)
session.Session.next = next
main(sys.argv[1:])
"""
"""A program that sends itself SIGINT at the fourth token."""

WRONG_CALLS: list[tuple[tuple[str, ...], int, str]] = [
    ((), 2, "there is no prompt; add --prompt TEXT, or --prompt - for standard input"),
    *(
        (("--emit", "x", *inputs), 2, f"--emit does not take {inputs[0]}: {why}")
        for inputs, why in {
            ("--prompt", "a"): "it generates no text; remove --prompt",
            ("--top-k", "1"): "it generates no text",
            ("--json",): "it generates no text",
            ("--max-tokens", "256"): "it generates no text",
            ("--activations", "int8"): "it is an option of subquant compile",
            ("--device", "vulkan"): "it is an option of subquant run, and --target one of",
            ("--threads", "1"): "it is an option of subquant run",
        }.items()
    ),
    (("--prompt", "a", "--system", "b"), 2, "--system needs --chat"),
    (("--prompt", "a", "--top-p", "2"), 2, "top-p is 2.0, expected more than 0, and at most 1"),
    (("--prompt", "a", "--context", "0"), 2, "the context is 0, expected 1 to 64, which the"),
    (("--prompt", "a", "--context", "65"), 2, "the context is 65, expected 1 to 64, which the"),
    (
        ("--prompt", "the " * 99),
        2,
        "tokens of the prompt do not fit into the context of 64; give a",
    ),
    (("--prompt", "a", "--device", "tpu"), 1, "no device"),
    (("--prompt", "a\udcff"), 1, "the text is not Unicode: character 1 is half of one"),
]
"""Arguments, the exit status, and a part of the message."""
