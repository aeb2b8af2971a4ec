"""Cases, their outcomes, and the comparison of results."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from .oracle import Golden, goldens
from .program import Array, Program

Kind = Literal["run", "lower", "verdict"]
Status = Literal["pass", "legalized", "refused", "wrong", "unsupported", "error", "crash"]

PASSING: frozenset[str] = frozenset(("pass", "legalized", "refused"))
"""``pass``: as it must be; ``legalized``: lowered, and not executable on one device; ``refused``:
a valid input that subquant refuses with a located error, where that is allowed."""

Key: TypeAlias = tuple[str, str]
"""The name of a case, and a device."""

SYMBOL = "SUBQUANT_CASE"
"""The name of the function in a case's text, replaced when cases are put into one module."""


@dataclass(frozen=True)
class Prepared:
    """The function of a case, of the name `SYMBOL`, or a verdict's module; inputs and goldens."""

    text: str
    inputs: list[Array] = field(default_factory=list)
    goldens: list[Golden] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A program or a text to check.

    Args:
        name: ``suite/add/i8-i8-to-i8``, ``stablehlo/add_qi8:main``, ``llvm/invalid.mlir:3``.
        op: the row of the table.
        kind: ``run``: compile, run twice, compare; ``lower``: only lower it, no quantized type may
            be left; ``verdict``: accept or refuse as `expected_errors` says.
        program: the program of the suite, from which the rest is made on demand.
        prepared: text, inputs and goldens of the other groups.
        expected_errors: for a verdict, the lines on which an error is expected; None if the text
            must be accepted.
    """

    name: str
    op: str
    kind: Kind = "run"
    program: Program | None = None
    prepared: Prepared | None = None
    expected_errors: tuple[int, ...] | None = None

    def outcome(self, device: str, status: Status, message: str) -> Outcome:
        """Return an outcome of the case without results."""
        return Outcome(self.name, self.op, device, status, message=message)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case on a device.

    Args:
        name, op, device: the case and the device.
        status: see `PASSING`; ``wrong``: other numbers; ``unsupported``: a located refusal;
            ``error``: another error of subquant or IREE; ``crash``: the process ended.
        elements: how many elements were compared.
        near_ties: how many of them are the other side of a near tie.
        other_reading: elements that equal the alternative reading of the specification (see the
            oracle).
        message: the failure.
        seconds: the time of the case, or its share of a batch.
        digest: of the results, see `digest_of`; empty where there are none.
        replay: the command that runs it again.
    """

    name: str
    op: str
    device: str
    status: Status
    elements: int = 0
    near_ties: int = 0
    other_reading: int = 0
    message: str = ""
    seconds: float = 0.0
    digest: str = ""
    replay: str = ""

    @property
    def key(self) -> Key:
        """The name and the device, which a report has once."""
        return self.name, self.device

    @property
    def passes(self) -> bool:
        """True unless something is to be mended."""
        return self.status in PASSING


def programs_cases(programs: list[Program]) -> list[Case]:
    """Return the cases of the suite's programs."""
    return [
        Case(f"suite/{p.name}", p.op, "run" if p.runs else "lower", program=p) for p in programs
    ]


def prepare(case: Case) -> Prepared:
    """Return a case's text, inputs and goldens; those of the suite are computed here."""
    if case.prepared is not None:
        return case.prepared
    assert case.program is not None
    inputs = case.program.make_inputs()
    expected = goldens(case.program, inputs) if case.program.runs else []
    return Prepared(case.program.text(SYMBOL), inputs, expected)


# -- between processes ----------------------------------------------------------------------------


def cases_to_fields(cases: Sequence[Case]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return prepared cases as JSON values and blobs, for `cases_from_fields`."""
    blobs: list[bytes] = []

    def of_array(array: Array | None) -> dict[str, Any] | None:
        if array is None:
            return None
        blobs.append(array.tobytes())
        return {"dtype": array.dtype.name, "shape": array.shape, "blob": len(blobs) - 1}

    fields = [
        {
            "name": case.name,
            "op": case.op,
            "text": prepared.text,
            "inputs": [of_array(array) for array in prepared.inputs],
            "goldens": [
                {name: of_array(array) for name, array in vars(golden).items()}
                for golden in prepared.goldens
            ],
        }
        for case, prepared in ((case, prepare(case)) for case in cases)
    ]
    return fields, blobs


def cases_from_fields(fields: Sequence[Mapping[str, Any]], blobs: Sequence[bytes]) -> list[Case]:
    """Return the cases that `cases_to_fields` wrote."""

    def array_of(array: Mapping[str, Any] | None) -> Any:
        if array is None:
            return None
        flat = np.frombuffer(blobs[array["blob"]], np.dtype(array["dtype"]))
        return flat.reshape(array["shape"])

    cases = []
    for case in fields:
        goldens = [
            Golden(**{name: array_of(array) for name, array in golden.items()})
            for golden in case["goldens"]
        ]
        prepared = Prepared(case["text"], [array_of(each) for each in case["inputs"]], goldens)
        cases.append(Case(case["name"], case["op"], prepared=prepared))
    return cases


# -- results --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Comparison of a result with its golden; the message is empty if the result is right."""

    near_ties: int = 0
    other_reading: int = 0
    message: str = ""


def digest_of(results: Sequence[Array]) -> str:
    """Return a digest of results: bits, types and shapes.

    The first 64 bits of SHA-256. All NaN are equal, as in `compare`.
    """
    digest = hashlib.sha256()
    for result in results:
        digest.update(f"{result.dtype.name}{list(result.shape)}".encode())
        values = result
        if result.dtype.kind not in "iub":
            values = np.where(np.isnan(result), np.asarray(np.nan, result.dtype), result)
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def compare(got: Array, golden: Golden) -> Comparison:
    """Compare a result with its golden."""
    value = golden.value
    if got.shape != value.shape or got.dtype != value.dtype:
        return Comparison(
            message=f"expected shape {value.shape} of {value.dtype}, got {got.shape} of {got.dtype}"
        )
    ties = alternatives = 0
    if golden.neighbour is not None:
        differs = got != value
        is_tie = differs & (got == golden.neighbour)
        is_other = np.zeros(got.shape, np.bool_)
        for other in (golden.other, golden.once):
            if other is not None:
                is_other |= differs & ~is_tie & (got == other)
        ties, alternatives = int(np.count_nonzero(is_tie)), int(np.count_nonzero(is_other))
        wrong = differs & ~is_tie & ~is_other
    elif golden.bound is not None:
        wide, expected = got.astype(np.float64), value.astype(np.float64)
        with np.errstate(invalid="ignore"):
            is_close = np.abs(wide - expected) <= golden.bound
        wrong = ~(is_close | (wide == expected) | (np.isnan(wide) & np.isnan(expected)))
    elif value.dtype.kind in "iub":
        wrong = got != value
    else:
        bits = np.dtype(f"u{value.dtype.itemsize}")
        both_nan = np.isnan(got.astype(np.float64)) & np.isnan(value.astype(np.float64))
        left, right = (np.ascontiguousarray(a).view(bits).reshape(a.shape) for a in (got, value))
        wrong = (left != right) & ~both_nan
    count = int(np.count_nonzero(wrong))
    if not count:
        return Comparison(ties, alternatives)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = (
        f"{count} of {value.size} elements differ, the first at {list(index)}: expected "
        f"{value[index]}, got {got[index]}"
    )
    if golden.real is not None:
        text += f" (before rounding {golden.real[index]:.9g})"
    elif golden.bound is not None:
        text += f" (accepted difference {golden.bound[index]:.3g})"
    return Comparison(ties, alternatives, text)
