"""Reports of measurements: JSON, a table, a plot, and a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ceilings import CEILINGS
from .measurement import OURS, Measured


@dataclass(frozen=True)
class Outcome:
    """Measurements of one case with one number of threads.

    Args:
        case: the name of the case.
        threads: threads of each peer.
        mark: the ratio to reach.
        work: bytes of the weights if they are read from memory, else multiply-accumulates.
        measurements: one for each peer and ceiling.
    """

    case: str
    threads: int
    mark: float
    work: int
    measurements: Sequence[Measured]

    @property
    def ours(self) -> Measured | None:
        """Subquant's measurement."""
        return next((each for each in self.measurements if each.name == OURS), None)

    @property
    def peers(self) -> list[Measured]:
        """Measurements of the other peers."""
        return [each for each in self.measurements if each.name not in (OURS, *CEILINGS)]

    @property
    def _timed(self) -> list[Measured]:
        return [each for each in self.peers if each.times is not None]

    @property
    def best(self) -> Measured | None:
        """The peer with the lowest median of the right results, or of all if none is right."""
        right = [each for each in self._timed if each.check is None or each.check.is_right]
        return min(right or self._timed, key=_median, default=None)

    @property
    def faster_and_wrong(self) -> list[Measured]:
        """Peers with a lower median than the best one, whose results are wrong."""
        best = self.best
        return [] if best is None else [n for n in self._timed if _median(n) < _median(best)]

    @property
    def ratio(self) -> float | None:
        """The best peer's median over ours; a wrong result of ours has none."""
        ours, best = self.ours, self.best
        if ours is None or ours.times is None or best is None or best.times is None:
            return None
        if ours.check is not None and not ours.check.is_right:
            return None
        return best.times.median / ours.times.median

    def ceiling_shares(self) -> dict[str, float]:
        """Return subquant's share of each ceiling, from medians of the same run."""
        ours = self.ours
        if ours is None or ours.times is None:
            return {}
        return {
            each.name: (self.work / ours.times.median) / (each.notes["work"] / each.times.median)
            for each in self.measurements
            if each.name in CEILINGS and each.times is not None
        }

    def ceilings(self) -> dict[str, float]:
        """Return the ceilings in billions of operations or bytes a second."""
        return {
            each.name: each.notes["work"] / each.times.median / 1e6
            for each in self.measurements
            if each.name in CEILINGS and each.times is not None
        }

    def as_json(self) -> dict[str, Any]:
        """Return the outcome in JSON's types."""
        return {
            "case": self.case,
            "threads": self.threads,
            "mark": self.mark,
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "shares": {name: round(share, 4) for name, share in self.ceiling_shares().items()},
            "ceilings": {name: round(value, 2) for name, value in self.ceilings().items()},
            "measurements": [each.as_json() for each in self.measurements],
        }


def _median(each: Measured) -> float:
    assert each.times is not None
    return each.times.median


def to_json(
    machine: Mapping[str, Any], peers: Mapping[str, str], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """Return machine, peers and outcomes in JSON's types."""
    cases = [outcome.as_json() for outcome in outcomes]
    return {"machine": dict(machine), "peers": dict(peers), "cases": cases}


def _time(each: Measured | None) -> str:
    if each is None:
        return ""
    if each.times is None:
        return "-"
    wrong = "" if each.check is None or each.check.is_right else " (wrong)"
    busy = "~" if each.times.is_disturbed else ""
    return f"{_number(each.times.minimum)} / {busy}{_number(each.times.median)}{wrong}"


def _number(value: float) -> str:
    """Format a number with three digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _rows(outcomes: Sequence[Outcome], peers: Mapping[str, str]) -> list[list[str]]:
    rows = [["case", "threads", *peers, "ratio", "mark", "of ceiling"]]
    for outcome in outcomes:
        measurements = {each.name: each for each in outcome.measurements}
        ratio = outcome.ratio
        rows.append(
            [
                outcome.case,
                str(outcome.threads),
                *(_time(measurements.get(name)) for name in peers),
                "" if ratio is None else f"{ratio:.2f}",
                f"{outcome.mark:.2f}",
                _share_text(outcome.ceiling_shares()),
            ]
        )
    return rows


def _share_text(share_of: Mapping[str, float]) -> str:
    """Format the shares of the ceilings of kernels: reading, or multiplying and loading."""
    shown = [(n, share) for n, share in share_of.items() if n == "read" or n.endswith("load")]
    return ", ".join(
        f"{share:.0%}" + (" of AMX" if name.startswith("AMX") else "") for name, share in shown
    )


def table(outcomes: Sequence[Outcome], peers: Mapping[str, str]) -> str:
    """Return a table for a terminal: minimum / median in milliseconds."""
    rows = _rows(outcomes, peers)
    rows[0][2 : 2 + len(peers)] = [name.rpartition(" ")[0] or name for name in peers.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    ruled = [head, ["---", *["--:"] * (len(head) - 1)], *rest]
    return "\n".join("| " + " | ".join(row) + " |" for row in ruled)


def page(
    machine: Mapping[str, Any],
    peers: Mapping[str, str],
    outcomes: Sequence[Outcome],
    remarks: Mapping[str, str],
    plot: str | None,
    other_pages: Mapping[str, str],
) -> str:
    """Return the page of the documentation.

    Args:
        machine: its description.
        peers: the name of each peer, subquant included.
        outcomes: the cases.
        remarks: explanations of missed marks, by patterns of case and threads (``Q4_K 1x4096x4096,
            2 threads``).
        plot: the file name of the plot in the page's folder.
        other_pages: titles of the pages of other machines, by file name in the same folder.
    """
    rows = _rows(outcomes, peers)
    rows[0][2 : 2 + len(peers)] = peers.values()
    drawn = f"\n![The best peer's median over ours, and the marks]({plot})\n" if plot else ""
    links = ", ".join(f"[{title}]({name})" for name, title in other_pages.items())
    title = f"Benchmarks on {machine['CPU']}" if "CPU" in machine else "Benchmarks"
    features = str(machine.get("features", "")).split(", ")
    with_ = next((text for name, text in _MULTIPLYING.items() if name in features), "")
    title += f" with {with_}" if with_ else ""
    cpu = machine.get("compiled for")
    return _PAGE.format(
        title=f"{title}, compiled for {cpu}" if cpu else title,
        compiled=_compiled_for(cpu, machine.get("peers find")) if cpu else "",
        other_pages=f"\nOther machines: {links}.\n" if links else "",
        machine=_markdown([["", "this machine"], *([k, str(v)] for k, v in machine.items())]),
        times=_markdown(rows),
        plot=drawn,
        ceilings=_markdown(_ceiling_rows(outcomes)),
        sizes=_markdown(_size_rows(outcomes)),
        missed=_missed(outcomes, remarks),
        wrong=_wrong(outcomes),
        checks=_markdown(_check_rows(outcomes, peers)),
    )


_MULTIPLYING = {
    "amx-int8": "AMX",
    "avx512vnni": "AVX512-VNNI",
    "avxvnni": "AVX-VNNI",
    "avx2": "AVX2",
}
"""Instruction set of int8 multiplications by CPU feature, the fastest first."""

_COMPILED_FOR = """\
* subquant's programs, llama.cpp and the ceilings are compiled for `{cpu}`, which has fewer features
  than this machine. ONNX Runtime and LiteRT {peers}.
"""


def _compiled_for(cpu: str, visible_features: str | None) -> str:
    peers = "always use all features of the machine, and are left out"
    if visible_features is not None:
        peers = f"see {visible_features}: the other features are hidden from them"
    return _COMPILED_FOR.format(cpu=cpu, peers=peers)


_PAGE = """# {title}

Written by `scripts/bench --write`; do not edit it. Each case is computed by subquant, ONNX Runtime,
LiteRT with XNNPACK, llama.cpp's ggml and IREE alone, from the same weights, with the same number of
threads, in one run: in alternating slices of ten calls (3 ms to 0.1 s), shuffled in each round. The
first call of a slice is a warm-up. Each result is compared with NumPy's float64 result before the
case is timed.
{other_pages}
* Times are minimum / median of a call in milliseconds. `~` marks a median whose middle half
  of times spans more than a quarter: the machine was busy with other work.
* The ratio is the median of the best peer with a right result over subquant's median (of the best
  peer, if no result is right). The mark is the ratio to reach.
* With one row (1x..., GEMV) each call reads another copy of the weights, from memory. A token of a
  language model reads the weights of the model.
* A checkpoint is a folder of Hugging Face that compressed-tensors could have written: integers in
  groups of 32 with bf16 scales. llama.cpp reads the same weights, to the last bit, from a GGUF file
  (Q4_0, Q8_0, BF16); transformers, if it is installed, has them dequantized to bf16. The table of
  embeddings is the output layer, too.
* A module of PyTorch is an encoder with random weights and one input, quantized to int8. PT2E is
  static: ONNX Runtime computes the same quantized model, with the same scales. With `dynamic`
  torchao quantizes rows of activations at run time, and ONNX Runtime the model of floats by its
  `quantize_dynamic`. Results are compared with eager PyTorch's.
* The ceiling is the memory bandwidth where weights come from memory; else the throughput of the
  multiply instruction with its loads and accumulation (AMX's where the machine has AMX).
* Vulkan cases run on the first device of IREE's driver (without a GPU: Mesa's llvmpipe, with the
  same number of threads). IREE's time there is an f32 matmul with the dequantized weights on the
  same device. Activations are f32 unless the case names another type.
* On CPUs activations are int8 with a scale for each block (`--activations int8`; accuracy level 4
  of ONNX Runtime).
{compiled}
## The machine

{machine}

## Times

{times}
{plot}
## Marks that are missed

{missed}
{wrong}
## Ceilings

Billions a second in the same run: bytes read, and multiply-accumulates.

{ceilings}

## Compile time and size

Subquant and IREE alone. Subquant's executable contains the weights; IREE's takes them as arguments.

{sizes}

## Checks

Distance of each result from the exact one. ``benchmarks/checks.py`` documents the bounds.

{checks}
"""


def _ceiling_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    rows = [["case", "threads", *CEILINGS]]
    for outcome in outcomes:
        values = outcome.ceilings()
        if values:
            cells = (f"{values[name]:.1f}" if name in values else "" for name in CEILINGS)
            rows.append([outcome.case, str(outcome.threads), *cells])
    return rows


def _size_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    rows = [["case", "subquant, s", "IREE, s", "subquant, kB", "IREE, kB"]]
    for outcome in outcomes:
        if outcome.threads != min(each.threads for each in outcomes):
            continue
        notes = {each.name: each.notes for each in outcome.measurements}
        pair = [notes.get(name, {}) for name in (OURS, "iree")]
        seconds = (f"{each['seconds']:.1f}" if "seconds" in each else "" for each in pair)
        sizes = (f"{each['bytes'] / 1e3:,.0f}" if "bytes" in each else "" for each in pair)
        rows.append([outcome.case, *seconds, *sizes])
    return rows


def _check_rows(outcomes: Sequence[Outcome], peers: Mapping[str, str]) -> list[list[str]]:
    rows = [["case", *peers.values()]]
    for outcome in outcomes:
        if outcome.threads != min(each.threads for each in outcomes):
            continue
        measurements = {each.name: each for each in outcome.measurements}
        rows.append([outcome.case, *(_check(measurements.get(name)) for name in peers)])
    return rows


def _check(each: Measured | None) -> str:
    if each is None:
        return ""
    if each.check is None:
        return each.failure
    return each.check.text if each.check.is_right else f"**wrong**: {each.check.text}"


def _missed(outcomes: Sequence[Outcome], remarks: Mapping[str, str]) -> str:
    items = []
    for outcome in outcomes:
        if outcome.ratio is not None and outcome.ratio >= outcome.mark:
            continue
        name = _name(outcome)
        remark = next((text for key, text in remarks.items() if re.search(key, name)), "")
        ratio = "not computed" if outcome.ratio is None else f"{outcome.ratio:.2f}"
        texts = [f"{ratio} of {outcome.mark:.2f}"]
        texts += [f"{share:.0%} of `{key}`" for key, share in outcome.ceiling_shares().items()]
        items.append(f"* {name}: {'; '.join(filter(None, [*texts, remark]))}")
    return "\n".join(items) or "None."


def _name(outcome: Outcome) -> str:
    return f"{outcome.case}, {outcome.threads} thread{'' if outcome.threads == 1 else 's'}"


def _wrong(outcomes: Sequence[Outcome]) -> str:
    """Return the section on peers that are faster than the best one, and wrong; "" without any."""
    items = []
    for outcome in outcomes:
        for each in outcome.faster_and_wrong:
            ours, check = outcome.ours, each.check
            if ours is None or ours.times is None or check is None:
                continue
            share = _median(each) / _median(ours)
            items.append(f"* {_name(outcome)}: {each.name}, {share:.2f} of our time: {check.text}")
    return "\n## Faster, and wrong\n\n" + "\n".join(items) + "\n" if items else ""


def draw(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Draw ratios and marks as bars, one for each case and number of threads."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = [outcome for outcome in outcomes if outcome.ratio is not None]
    names = list(dict.fromkeys(outcome.case for outcome in drawn))
    threads = sorted({outcome.threads for outcome in drawn})
    colours = ("#3b6ea5", "#d08b3c", "#5a9367", "#9467bd")
    with mpl.rc_context({"svg.hashsalt": "subquant", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 1.2 + 0.34 * len(names)), layout="constrained")
        axes = figure.subplots()
        height = 0.8 / max(len(threads), 1)
        for outcome in drawn:
            bottom = names.index(outcome.case) + height * threads.index(outcome.threads) - 0.4
            axes.barh(
                bottom + height / 2, outcome.ratio, height * 0.92,
                color=colours[threads.index(outcome.threads) % len(colours)],
            )  # fmt: skip
            axes.plot([outcome.mark] * 2, [bottom, bottom + height], color="#222222", linewidth=1.5)
        for number, count in enumerate(threads):
            label = f"{count} thread{'' if count == 1 else 's'}"
            axes.barh(0, 0, color=colours[number % len(colours)], label=label)
        axes.plot([], [], color="#222222", linewidth=1.5, label="to reach")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.axvline(1, color="#999999", linewidth=0.8, linestyle="--", zorder=0)
        axes.set_xlabel("median of the best peer / ours (to the right: subquant is faster)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="best", frameon=False)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
