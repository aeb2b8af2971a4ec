"""The options of a conformance run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.option_fields import option
from ..errors import UsageError, quoted

MAX_RANDOM_PROGRAMS = 10_000
"""Random programs, at most; their names have four digits."""

MAX_JOBS = 1024
"""Processes (`--jobs`), at most."""

MAX_SHARDS = 10_000
"""Shards (`--shard`), at most."""


@dataclass(frozen=True)
class Shard:
    """One part of a run that is divided: number 1 to `of`."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/4``; UsageError if the text is no such part."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        shard = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.of <= MAX_SHARDS:
            raise UsageError(
                f"expected a part such as 1/4 for --shard, of at most {MAX_SHARDS}, got "
                f"{quoted(text)}"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, each with its help.

    Raises:
        UsageError: no device, a number out of its range, or options that exclude each other.
    """

    stablehlo: str | None = option(
        None, "Also run the quantized test data of this StableHLO checkout.", "PATH"
    )
    llvm: str | None = option(
        None, "Also run the tests of the quant dialect of this LLVM checkout.", "PATH"
    )
    random: int = option(0, "Also run N random programs (operations, types, shapes).", "N")
    device: str = option(
        "llvm-cpu",
        "Comma-separated devices: llvm-cpu, vulkan, IREE device URIs, or interpreter (StableHLO's, "
        "on the float form of a program, to check the expected results).",
        "DEVICES",
    )
    filter: str = option("", "Only cases whose name matches.", "REGEX")
    shard: str | None = option(
        None, "Run shard I of N; `subquant report merge` merges the reports.", "I/N"
    )
    jobs: int | None = option(None, "Number of processes.  [default: one a core]", "N")
    cluster: str | None = option(
        None, "Run on the workers of a Dask scheduler instead of this machine.", "ADDRESS"
    )
    json: str | None = option(None, "Write a JSON report.", "FILE")
    junit: str | None = option(None, "Write a JUnit XML report.", "FILE")
    expected: str | None = option(
        None, "File of expected results.  [default: those of the package]", "FILE"
    )
    update_expected: bool = option(
        False, "Replace the expected results of the cases that ran by their results."
    )
    against: str | None = option(
        None, "Compare with this earlier report (--json); fail if a case no longer passes.", "FILE"
    )
    same_bits: bool = option(
        False, "With --against: also fail if the bits of a passing result differ."
    )
    strict: bool = option(False, "Also fail if a case passes that is expected to fail.")
    save: str | None = option(
        None, "Write program and inputs of each failing case to this folder.", "DIR"
    )
    list: bool = option(False, "List the names of the cases.")

    def __post_init__(self) -> None:
        if not self.devices:
            raise UsageError("expected at least one device for --device")
        if not 0 <= self.random <= MAX_RANDOM_PROGRAMS:
            raise UsageError(
                f"expected 0 to {MAX_RANDOM_PROGRAMS} random programs, got {self.random}"
            )
        if self.cluster is not None and self.jobs is not None:
            raise UsageError("--jobs is of this machine, and --cluster has others do the work")
        if self.jobs is not None and not 1 <= self.jobs <= MAX_JOBS:
            raise UsageError(f"expected 1 to {MAX_JOBS} jobs, got {self.jobs}")
        if self.shard is not None:
            Shard.parse(self.shard)
            if self.against is not None:
                raise UsageError(
                    "--against compares a whole run, and --shard runs a part of one; compare what "
                    "the parts give together: subquant report merge ... --against FILE"
                )
        if self.same_bits and self.against is None:
            raise UsageError("--same-bits needs --against, the report to compare with")

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, each once."""
        names = [name.strip() for name in self.device.split(",")]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def part(self) -> Shard | None:
        """The part that is run, None for all."""
        return None if self.shard is None else Shard.parse(self.shard)
