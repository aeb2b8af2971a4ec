"""A call of the command line, and the commands that read a module or weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .corpus import Corpus

PARSE_LIMIT = ("--parse-seconds", "1")
"""Options by which types of 2**40 parts are refused before ``--seconds``."""


@dataclass
class Case:
    """A call of the command line.

    Attributes:
        arguments: of the command; files are named within the case's folder.
        files: their contents.
        output: a file that is there after status 0, and else is not.
        killed: a signal, and after how many seconds a process of its own gets it.
        call: called in place of the command; returns the status and the failure, "" for none.
    """

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    output: str | None = None
    killed: tuple[int, float] | None = None
    call: Callable[[], tuple[int, str]] | None = None


MakeCase = Callable[[random.Random, Corpus], Case]
"""Makes a case of a kind of input."""


def module_case(rng: random.Random, data: bytes, name: str) -> Case:
    """Return a command that reads a module."""
    commands = (
        (["opt", name, "-o", "out.mlir"], "out.mlir"),
        (["inspect", name], None),
        (["inspect", name, "--json"], None),
        (["opt", name, "--passes", "interpreter", "-o", "out.mlir"], "out.mlir"),
        (["compile", name, "--emit", "mlir", "-o", "out.mlir"], "out.mlir"),
        (["compile", name, "--emit", "mlirbc", "-o", "o.mlirbc", "--target", "vulkan",
          "--vulkan-target", rng.choice(("generic", "generic-32bit"))], "o.mlirbc"),
        (["opt", name, "--split-input-file", "--verify-diagnostics"], None),
    )  # fmt: skip
    arguments, output = rng.choice(commands)
    return Case([*arguments, *PARSE_LIMIT], {name: data}, output)


def weights_case(rng: random.Random, name: str, files: dict[str, bytes]) -> Case:
    """Return a command that reads a file of weights."""
    arguments, output = rng.choice((
        (["inspect", name], None),
        (["inspect", name, "--json"], None),
        (["import", name, "-o", "out.irpa"], "out.irpa"),
        (["quantize", name, "-o", "out.irpa"], "out.irpa"),
        (["quantize", name, "-o", "out.irpa", "--bits", rng.choice(("2", "3", "4", "8", "9")),
          "--granularity", rng.choice(("block", "axis", "tensor", "x")), "--asymmetric"],
         "out.irpa"),
    ))  # fmt: skip
    return Case(list(arguments), files, output)
