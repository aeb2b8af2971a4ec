"""What was measured, and what follows from it, as sections of ``docs/scale.md`` and pictures."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .model import STATIONS, Batch, Compilation, Prices, Site, Visit, estimate, useful_workers
from .simulation import simulate

__all__ = [
    "PICTURES",
    "SECTIONS",
    "check",
    "draw",
    "local_site",
    "mix_of",
    "plan_site",
    "simulate_waiting",
    "validate",
    "write_sections",
]

COUNTS = (1_000, 100_000, 10_000_000)
HITS = (0.0, 0.5, 0.9, 0.99)
WORKERS = (1, 10, 100, 1_000, 10_000)
Measured = Mapping[str, Any]

# -- from what was measured to the model ----------------------------------------------------------

# Calls that a client of a network file system answers itself.
_LOCAL_CALLS = frozenset({"execve", "ioctl", "lseek", "fcntl", "mmap", "dup"})


def mix_of(measured: Measured) -> list[tuple[float, Compilation]]:
    """Return the programs of the plan: nine in ten generated, one a network from a file."""
    rows = [*measured["programs"], *measured.get("models", [])]
    networks = len(measured.get("models", []))
    shares = {True: 0.1 / networks if networks else 0.0}
    shares[False] = (0.9 if networks else 1.0) / len(measured["programs"])
    return [
        (shares[number >= len(measured["programs"])], _compilation(row))
        for number, row in enumerate(rows)
    ]


def _compilation(row: Mapping[str, Any]) -> Compilation:
    return Compilation(
        name=row["name"],
        kind=row["kind"],
        source_bytes=row["source"],
        executable_bytes=row["executable"],
        pass_seconds=row["passes"],
        iree_seconds=row["iree"],
        hit_seconds=row["hit_cpu"],
    )


def operations(calls: Mapping[str, int]) -> int:
    """Return how many calls go to the server of a network file system, with nothing remembered."""
    return sum(count for name, count in calls.items() if name not in _LOCAL_CALLS)


def _slope(overhead: Measured, engine: str, who: str) -> tuple[float, float]:
    """Seconds a task, and a byte either way."""
    nothing, much = (overhead[f"{engine}, {size}"] for size in ("nothing", "1 MB"))
    return nothing[who], max(much[who] - nothing[who], 0.0) / 2e6


def plan_site(measured: Measured, workers: int = 1, **changes: Any) -> Site:
    """Return the cluster of the plan: measured where it can be, else an example that is named.

    Args:
        measured: on this machine.
        workers: each one hardware thread, whose core another worker shares.
        changes: fields of `Site`.
    """
    submit, submit_byte = _slope(measured["overhead"], "Dask", "seconds")
    schedule, schedule_byte = _slope(measured["overhead"], "Dask", "scheduler")
    site = Site(
        workers=workers,
        speed=speeds_of(measured)[1] / 2,
        submit=submit,
        submit_byte=submit_byte,
        schedule=schedule,
        schedule_byte=schedule_byte,
        heartbeat=measured["overhead"]["heartbeat"],
        link_rate=10e9 / 8,
        hit_operations=operations(measured["files"]["hit"]),
        miss_operations=operations(measured["files"]["miss"]),
        file_operation=1 / 20_000,
        file_latency=0.5e-3,
        file_rate=1e9,
        connect=measured["overhead"]["connect"],
        start=sum(measured["start"].values()),
        ahead=1,
    )
    return replace(site, **changes)


def speeds_of(measured: Measured, way: str = "as it is") -> list[float]:
    """Return how much 1, 2, 3 and 4 compilations at a time do beside one."""
    rows = measured["cores"][way]
    one, two, four = (rows[str(count)]["seconds"] for count in (1, 2, 4))
    second, fourth = 2 * one / two, 4 * one / four
    return [1.0, second, (second + fourth) / 2, fourth]


def local_site(measured: Measured, engine: str, workers: int) -> Site:
    """Return this machine, with so many workers of an engine."""
    if engine == "local":
        submit = measured["overhead"]["local, nothing"]["seconds"]
        return Site(workers=workers, submit=submit, start=measured["start"]["first"])
    submit, _ = _slope(measured["overhead"], "Dask", "seconds")
    schedule, _ = _slope(measured["overhead"], "Dask", "scheduler")
    return Site(
        workers=workers,
        submit=submit,
        schedule=schedule,
        connect=measured["overhead"]["connect"],
        start=sum(measured["start"].values()),
        ahead=1,
    )


def validate(measured: Measured) -> list[dict[str, Any]]:
    """Simulate each batch that was measured; `seconds` beside `simulated`."""
    rows = []
    speeds = speeds_of(measured)
    for row in measured["batches"]:
        site = local_site(measured, row["engine"], row["workers"])
        is_hit = row["cache"] == "full"
        times = [each["hit" if is_hit else "seconds"] for each in measured["programs"]]
        cpu = [
            each["hit_cpu"] if is_hit else each["passes"] + each["iree"]
            for each in measured["programs"]
        ]
        visits = [Visit(site.submit, site.schedule, 0, 0, seconds) for seconds in times]
        run = simulate(
            visits[: row["programs"]],
            replace(site, start=0.0) if is_hit else site,
            speeds=speeds,
            threads=min(sum(cpu) / sum(times), len(speeds)),
        )
        rows.append({**row, "simulated": run.seconds})
    return rows


def simulate_waiting(measured: Measured, row: Mapping[str, Any]) -> float:
    """Return the seconds of a batch of tasks that only wait."""
    site = replace(local_site(measured, "Dask", row["workers"]), start=0.0)
    visit = Visit(site.submit, site.schedule, 0, 0, row["each"])
    return simulate([visit] * row["tasks"], site).seconds


CHECKS = (
    (1_000, 1, 0.0, 1),
    (1_000, 10, 0.0, 1),
    (1_000, 100, 0.5, 1),
    (1_000, 1_000, 0.0, 1),
    (10_000, 100, 0.9, 1),
    (10_000, 1_000, 0.0, 1),
    (10_000, 1_000, 0.99, 10),
    (100_000, 1_000, 0.0, 1),
    (100_000, 10_000, 0.9, 1),
)
"""What is simulated event by event: count, workers, hits, compilations a task."""


def check(measured: Measured) -> list[dict[str, Any]]:
    """Simulate batches of the plan event by event, beside what the formulas say."""
    rows = []
    for count, workers, hits, per_task in CHECKS:
        site = plan_site(measured, workers, per_task=per_task)
        batch = Batch(count, mix_of(measured), hits)
        seeds = 3 if count <= 10_000 else 1
        runs = [simulate(batch.visits(site, seed), site).seconds for seed in range(seeds)]
        rows.append(
            {
                "count": count,
                "workers": workers,
                "hits": hits,
                "per_task": per_task,
                "events": round(statistics.mean(runs), 3),
                "formulas": round(estimate(batch, site).seconds, 3),
            }
        )
    return rows


# -- text -----------------------------------------------------------------------------------------


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, align, *body))


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 20 * size else 1}f} {unit}"
    return f"{seconds:.2g} s"


def _money(dollars: float) -> str:
    return f"{dollars:,.0f} $" if dollars >= 10 else f"{dollars:.{2 if dollars >= 0.1 else 3}f} $"


def _bytes(size: float) -> str:
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= factor:
            return f"{size / factor:,.{0 if size >= 20 * factor else 1}f} {unit}"
    return f"{size:.0f} B"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def _percent(hits: float) -> str:
    return f"{hits:.0%}"


def _machine(measured: Measured) -> str:
    rows = [["", "this machine"], *([k, str(v)] for k, v in measured["machine"].items())]
    busy = (f"{share:.0%} {when}" for when, share in measured["busy"].items())
    return _table([*rows, ["busy with other things", ", ".join(busy)]])


def _programs(measured: Measured) -> str:
    rows = [["kind", "how many", "source", "executable", "passes, s", "IREE, s", "hit, ms"]]
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in [*measured["programs"], *measured.get("models", [])]:
        kinds.setdefault(row["kind"], []).append(row)

    def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
        found = [form(value) for value in (min(values), statistics.median(values), max(values))]
        return found[0] if found[0] == found[2] else " / ".join(found)

    for kind, each in kinds.items():
        rows.append(
            [
                kind,
                str(len(each)),
                _bytes(statistics.median(row["source"] for row in each)),
                _bytes(statistics.median(row["executable"] for row in each)),
                spread([row["passes"] for row in each], lambda value: f"{value:.2f}"),
                spread([row["iree"] for row in each], lambda value: f"{value:.2f}"),
                spread([row["hit"] * 1e3 for row in each], lambda value: f"{value:.1f}"),
            ]
        )
    return _table(rows)


def _cores(measured: Measured) -> str:
    rows = [["threads of IREE's compiler", *(f"{n} at a time, s (CPU s each)" for n in (1, 2, 4))]]
    rows[0].append("two do")
    for way, each in measured["cores"].items():
        cells = [f"{each[str(n)]['seconds']:.2f} ({each[str(n)]['cpu']:.2f})" for n in (1, 2, 4)]
        rows.append([f"`{way}`" if "=" in way or "--" in way else way, *cells])
        rows[-1].append(f"{speeds_of(measured, way)[1]:.2f}")
    return _table(rows)


def _overhead(measured: Measured) -> str:
    rows = [["engine, data both ways", "ms a task", "client, CPU ms", "scheduler, CPU ms"]]
    for name, each in measured["overhead"].items():
        if not isinstance(each, Mapping):
            continue
        label = "Dask alone, all tasks at once" if name == "bare Dask" else name
        scheduler = _ms(each["scheduler"]) if "scheduler" in each else ""
        rows.append([label, _ms(each["seconds"]), _ms(each["client"]), scheduler])
    bare = measured["overhead"]["bare Dask"]
    return (
        f"{_table(rows)}\n\n"
        f"* Dask's client submits {1 / bare['submitted']:,.0f} tasks a second.\n"
        f"* A task takes {_bytes(bare['bytes'])} of the scheduler's memory until it is forgotten.\n"
        f"* A worker's sign of life takes {_ms(measured['overhead']['heartbeat'])} ms of CPU time "
        "of both sides together.\n"
        f"* A run on a cluster begins {measured['overhead']['connect']:.1f} s after it is asked "
        "for: the client connects, and looks at the workers' versions.\n"
        f"* A worker imports subquant in {measured['start']['imports']:.1f} s, and its first "
        f"compilation waits {measured['start']['first']:.1f} s for the process that parses and "
        "lowers."
    )


def _files(measured: Measured) -> str:
    calls = measured["files"]
    names = sorted({name for each in calls.values() for name in each} - _LOCAL_CALLS)
    rows = [["call", "hit", "miss"]]
    rows += [[f"`{name}`", *(str(calls[kind].get(name, 0)) for kind in ("hit", "miss"))]
             for name in names]  # fmt: skip
    rows.append(["together", *(str(operations(calls[kind])) for kind in ("hit", "miss"))])
    return _table(rows)


def _validation(measured: Measured) -> str:
    rows = [["engine", "workers", "cache", "programs", "measured, s", "simulated, s", "difference"]]
    found = validate(measured)
    for row in found:
        difference = row["simulated"] / row["seconds"] - 1
        rows.append(
            [
                row["engine"],
                str(row["workers"]),
                row["cache"],
                str(row["programs"]),
                f"{row['seconds']:.3g}",
                f"{row['simulated']:.3g}",
                f"{difference:+.0%}",
            ]
        )
    lines = [_table(rows), ""]
    for engine in ("local", "Dask"):
        times = {
            row["workers"]: row["seconds"]
            for row in found
            if row["engine"] == engine and row["cache"] == "empty"
        }
        if 1 in times:
            gains = ", ".join(
                f"{count} give {times[1] / times[count]:.2f}" for count in times if count > 1
            )
            name = "the local pool" if engine == "local" else "Dask"
            lines.append(f"* Times one worker's rate, {name}: {gains}.")
    return "\n".join(lines)


def _waiting(measured: Measured) -> str:
    rows = [["workers", "tasks", "measured, s", "simulated, s", "difference"]]
    for row in measured["waiting"]:
        simulated = simulate_waiting(measured, row)
        rows.append(
            [
                str(row["workers"]),
                str(row["tasks"]),
                f"{row['seconds']:.2f}",
                f"{simulated:.2f}",
                f"{simulated / row['seconds'] - 1:+.0%}",
            ]
        )
    return _table(rows)


def _checks(measured: Measured) -> str:
    rows = [["compilations", "workers", "hits", "a task", "events", "formulas", "difference"]]
    for row in measured["checks"]:
        rows.append(
            [
                f"{row['count']:,}",
                f"{row['workers']:,}",
                _percent(row["hits"]),
                str(row["per_task"]),
                _duration(row["events"]),
                _duration(row["formulas"]),
                f"{row['formulas'] / row['events'] - 1:+.1%}",
            ]
        )
    return _table(rows)


def _times(measured: Measured) -> str:
    rows = [["compilations", "hits", "CPU hours", *(f"{count:,} w." for count in WORKERS)]]
    mix = mix_of(measured)
    for count in COUNTS:
        for hits in HITS:
            found = [estimate(Batch(count, mix, hits), plan_site(measured, w)) for w in WORKERS]
            rows.append(
                [
                    f"{count:,}",
                    _percent(hits),
                    f"{found[0].cpu_seconds / 3600:,.3g}",
                    *(f"{_duration(each.seconds)} ({_LIMITS[each.limit]})" for each in found),
                ]
            )
    return _table(rows)


_LIMITS = {"client": "c", "scheduler": "s", "link": "n", "files": "f", "workers": "w"}


def _costs(measured: Measured) -> str:
    rows = [["compilations", "hits", *(f"{count:,} w." for count in WORKERS)]]
    mix, prices = mix_of(measured), Prices()
    for count in COUNTS:
        for hits in HITS:
            cells = []
            for workers in WORKERS:
                found = estimate(Batch(count, mix, hits), plan_site(measured, workers))
                cells.append(_money(prices.of(found.seconds, workers)))
            rows.append([f"{count:,}", _percent(hits), *cells])
    return (
        f"At {prices.core} $ an hour for a worker's hardware thread, {prices.scheduler:.2f} $ for "
        f"the machine of client and scheduler, and {prices.files:.2f} $ for the file server:\n\n"
        f"{_table(rows)}"
    )


_VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("data through the scheduler", {}),
    ("data by files", {"is_carried": False}),
    ("10 compilations a task, by files", {"is_carried": False, "per_task": 10}),
    ("100 compilations a task, by files", {"is_carried": False, "per_task": 100}),
)


def _limits(measured: Measured) -> str:
    rows = [["", "hits", *STATIONS]]
    mix = mix_of(measured)
    for name, changes in _VARIANTS:
        for hits in HITS:
            site = plan_site(measured, 100, **changes)
            found = useful_workers(Batch(1_000_000, mix, hits), site)
            most = min(found.values())
            cells = [
                "-" if math.isinf(value) or value > 1e6
                else f"**{value:,.0f}**" if value == most else f"{value:,.0f}"
                for value in (found[station] for station in STATIONS)
            ]  # fmt: skip
            rows.append([name, _percent(hits), *cells])
    return _table(rows)


_BLOCK = 4096  # of a file system; the cache counts in these too
_RECORDS = 2  # of an entry: of the source, and of the lowered module


def _data(measured: Measured) -> str:
    rows = [
        ["compilations", "hits", "scheduler's network", "operations on files", "cache grows by"]
    ]
    mix = mix_of(measured)
    total = sum(weight for weight, _ in mix)
    carried, kept = 0.0, 0.0
    for weight, each in mix:
        carried += weight / total * 2 * (each.source_bytes + each.executable_bytes)
        blocks = math.ceil(each.executable_bytes / _BLOCK) + _RECORDS
        kept += weight / total * blocks * _BLOCK
    hit, miss = (operations(measured["files"][kind]) for kind in ("hit", "miss"))
    for count in COUNTS:
        for hits in HITS:
            rows.append(
                [
                    f"{count:,}",
                    _percent(hits),
                    _bytes(count * carried),
                    f"{count * (hits * hit + (1 - hits) * miss):,.0f}",
                    _bytes(count * (1 - hits) * kept),
                ]
            )
    return _table(rows)


def _deaths(measured: Measured) -> str:
    rows = [["a worker dies each", "hits 0%", "hits 90%"]]
    mix = mix_of(measured)
    for hours in (24.0, 1.0, 0.1):
        cells = []
        for hits in (0.0, 0.9):
            batch = Batch(100_000, mix, hits)
            site = plan_site(measured, 100)
            dying = replace(site, deaths=1 / (3600 * hours), restart=60.0)
            more = estimate(batch, dying).seconds / estimate(batch, site).seconds - 1
            cells.append(f"{more:+.1%}")
        rows.append([f"{_duration(hours * 3600)}", *cells])
    return _table(rows)


SECTIONS: dict[str, Callable[[Measured], str]] = {
    "machine": _machine,
    "programs": _programs,
    "cores": _cores,
    "overhead": _overhead,
    "files": _files,
    "validation": _validation,
    "waiting": _waiting,
    "checks": _checks,
    "times": _times,
    "costs": _costs,
    "data": _data,
    "limits": _limits,
    "deaths": _deaths,
}
"""What is written between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` of the page."""


def write_sections(page: str, measured: Measured, names: Sequence[str] = tuple(SECTIONS)) -> str:
    """Return the page with its sections written anew.

    Raises:
        ValueError: the page has not each of them once.
    """
    for name in names:
        marks = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text = SECTIONS[name](measured).replace("\\", r"\\")
        page, count = re.subn(marks, rf"\g<1>\n{text}\n\n\g<2>", page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"expected the section '{name}' once in the page, found {count}")
    return page


# -- pictures -------------------------------------------------------------------------------------

PICTURES = ("scale-times.svg", "scale-limits.svg", "scale-validation.svg")
_COLOURS = ("#3b6ea5", "#d08b3c", "#5a9367", "#9467bd", "#8c564b")
_MANY = [round(10 ** (step / 6)) for step in range(25)]


def draw(folder: Path, measured: Measured) -> None:
    """Draw the pictures of the page into a folder."""
    import matplotlib as mpl

    settings = {"svg.hashsalt": "subquant", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(settings):
        for name, what in zip(PICTURES, (_draw_times, _draw_limits, _draw_validation), strict=True):
            what(measured).savefig(folder / name, metadata={"Date": None, "Creator": None})


def _figure(width: float, height: float, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(True, which="major", color="#dddddd", linewidth=0.6)
    return figure, axes


def _draw_times(measured: Measured) -> Any:
    figure, axes = _figure(9, 3.4, len(COUNTS))
    mix = mix_of(measured)
    for each, count in zip(axes, COUNTS, strict=True):
        for colour, hits in zip(_COLOURS, HITS, strict=False):
            batch = Batch(count, mix, hits)
            hours = [estimate(batch, plan_site(measured, w)).seconds / 3600 for w in _MANY]
            each.loglog(_MANY, hours, color=colour, label=f"{hits:.0%} hits")
            for row in measured["checks"]:
                if (row["count"], row["hits"], row["per_task"]) == (count, hits, 1):
                    each.plot(row["workers"], row["events"] / 3600, "o", color=colour, markersize=4)
        each.set_title(f"{count:,} compilations")
        each.set_xlabel("workers")
    axes[0].set_ylabel("hours (dots: event by event)")
    axes[0].legend(frameon=False)
    return figure


def _draw_limits(measured: Measured) -> Any:
    figure, axes = _figure(9, 3.2, 3)
    shown = (
        ("0 % hits", 0.0, {}),
        ("99 % hits", 0.99, {}),
        ("99 %, by files", 0.99, _VARIANTS[2][1]),
    )
    for each, (title, hits, changes) in zip(axes, shown, strict=True):
        batch = Batch(10_000_000, mix_of(measured), hits)
        found = [estimate(batch, plan_site(measured, w, **changes)).shares for w in _MANY]
        for colour, name in zip(_COLOURS, ("workers", *STATIONS), strict=True):
            each.semilogx(_MANY, [shares[name] for shares in found], color=colour, label=name)
        ten = ", 10 a task" if changes else ""
        each.set_title(title + ten)
        each.set_xlabel("workers")
        each.set_ylim(0, 1.05)
    axes[0].set_ylabel("share of the time that each is busy")
    axes[0].legend(frameon=False)
    return figure


def _draw_validation(measured: Measured) -> Any:
    figure, axes = _figure(7, 3, 2)
    found = validate(measured)
    for each, state in zip(axes, ("empty", "full"), strict=True):
        for colour, engine in zip(_COLOURS, ("local", "Dask"), strict=False):
            rows = [row for row in found if (row["engine"], row["cache"]) == (engine, state)]
            workers = [row["workers"] for row in rows]
            each.plot(workers, [row["seconds"] for row in rows], "o", color=colour)
            simulated = [row["simulated"] for row in rows]
            each.plot(workers, simulated, color=colour, label=f"{engine}, simulated")
        each.set_title(f"{state} cache")
        each.set_xlabel("workers")
        each.set_xticks([1, 2, 4])
        each.set_ylim(bottom=0)
    axes[0].set_ylabel("seconds (dots: measured)")
    axes[0].legend(frameon=False)
    return figure
