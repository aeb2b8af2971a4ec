"""The options of a conformance run."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..options import option

__all__ = ["MOST_JOBS", "MOST_RANDOM", "RunOptions"]

MOST_RANDOM = 10_000
"""Of the programs that are drawn; their names have four digits."""

MOST_JOBS = 1024


@dataclass(frozen=True)
class RunOptions:
    """What to run, on what, and what to write.

    Args:
        stablehlo, llvm: checkouts whose tests are run too.
        random: how many generated programs are run too.
        device: names of devices, with commas.
        filter: a regular expression; only cases whose name has a match are run.
        jobs: how many processes; None for one a core.
        json, junit: files for the results.
        expected: the file of the expected results; None for that which comes with subquant.
        update_expected: write the results there.
        strict: fail also if a case passes that is not expected to.
        save: a folder for the programs that do not pass.
        list: only show the names of the cases.

    Raises:
        UsageError: no device, or a number out of its range.
    """

    stablehlo: str | None = option(
        None, "Also the quantized test data of this StableHLO checkout.", "PATH"
    )
    llvm: str | None = option(
        None, "Also the tests of the quant dialect of this LLVM checkout.", "PATH"
    )
    random: int = option(
        0, "Also the first N programs drawn at random (operations, types, shapes).", "N"
    )
    device: str = option(
        "llvm-cpu",
        "Devices, with commas: llvm-cpu, vulkan, interpreter (StableHLO's own, on the float form: "
        "it checks the goldens), or IREE device URIs.",
        "DEVICES",
    )
    filter: str = option("", "Only cases whose name has a match.", "REGEX")
    jobs: int | None = option(None, "Processes.  [default: one a core]", "N")
    json: str | None = option(None, "Write JSON.", "FILE")
    junit: str | None = option(None, "Write JUnit XML.", "FILE")
    expected: str | None = option(
        None, "The expected results.  [default: those that come with subquant]", "FILE"
    )
    update_expected: bool = option(
        False, "Write what came out as the expected results of the cases that ran."
    )
    strict: bool = option(False, "Fail also if a case passes that is not expected to.")
    save: str | None = option(
        None, "Write the program and inputs of each case that does not pass.", "DIR"
    )
    list: bool = option(False, "Show the names of the cases.")

    def __post_init__(self) -> None:
        if not self.devices:
            raise UsageError("expected at least one device for --device")
        if not 0 <= self.random <= MOST_RANDOM:
            raise UsageError(f"expected 0 to {MOST_RANDOM} random programs, got {self.random}")
        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise UsageError(f"expected 1 to {MOST_JOBS} jobs, got {self.jobs}")

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(name.strip() for name in self.device.split(",") if name.strip())
