"""``scripts/scale``: the simulation beside closed forms, the formulas beside the simulation."""

from __future__ import annotations

import importlib
import json
import math
import random
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("simpy")

ROOT = Path(__file__).resolve().parent.parent
_MODULES = ("model", "simulation", "programs", "report", "__main__")


@pytest.fixture(scope="module")
def scale() -> Any:
    """The modules of ``scripts/scaling``."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        modules = {name: importlib.import_module(f"scaling.{name}") for name in _MODULES}
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return SimpleNamespace(**modules, main=modules["__main__"])


def visit(scale: Any, **seconds: float) -> Any:
    return scale.model.Visit(
        **{name: seconds.get(name, 0.0) for name in (*scale.model.STATIONS, "worker")}
    )


@pytest.fixture(scope="module")
def mix(scale: Any) -> Any:
    """Programs of three sizes."""
    rows = [
        (0.7, ("small", 3_000, 12_000, 0.2, 0.5, 0.02)),
        (0.25, ("network", 60_000, 90_000, 0.7, 2.0, 0.03)),
        (0.05, ("large", 4_000_000, 4_500_000, 2.0, 9.0, 0.2)),
    ]
    return [(share, scale.model.Compilation(row[0], *row)) for share, row in rows]


def a_site(scale: Any, **fields: Any) -> Any:
    given = {
        "submit": 3e-4,
        "schedule": 8e-4,
        "submit_byte": 1e-9,
        "schedule_byte": 1e-9,
        "heartbeat": 2e-4,
        "link_rate": 1.25e9,
        "hit_operations": 5,
        "miss_operations": 20,
        "file_operation": 1e-4,
        "file_latency": 5e-4,
        "file_rate": 1e9,
        "ahead": 1,
    }
    return scale.model.Site(**{**given, **fields})


# -- the simulation -------------------------------------------------------------------------------


def test_equal_tasks_come_in_rounds(scale: Any) -> None:
    for count, workers, rounds in ((12, 4, 3), (13, 4, 4), (3, 8, 1), (1, 1, 1)):
        run = scale.simulation.simulate(
            [visit(scale, worker=2.0)] * count, scale.model.Site(workers=workers)
        )
        assert (run.seconds, run.done) == (2.0 * rounds, count)
        assert run.busy["workers"] == 2.0 * count


def test_one_station_serves_one_after_the_other(scale: Any) -> None:
    for station in scale.model.STATIONS:
        visits = [visit(scale, worker=0.001, **{station: 0.5})] * 20
        run = scale.simulation.simulate(visits, scale.model.Site(workers=50))
        assert run.busy[station] == pytest.approx(10)
        assert 10 <= run.seconds <= 10.51


def _wait(scale: Any, servers: int, arrivals: float, draw: Any, count: int) -> float:
    """The mean wait for one of so many servers, of visits that come independently."""
    source = random.Random(7)
    run = scale.simulation.simulate(
        [visit(scale, worker=draw(source)) for _ in range(count)],
        scale.model.Site(workers=servers),
        gap=lambda: source.expovariate(arrivals),
        keep_waits=True,
    )
    assert len(run.waits) == run.done == count
    return float(sum(run.waits) / count)


def _mdc(servers: int, load: float) -> float:
    """Crommelin's mean wait of M/D/c, in units of the service time; ``load`` servers are busy."""
    total = 0.0
    for k in range(1, 200):
        mean, first = k * load, k * servers

        def probability(count: int, mean: float = mean) -> float:
            return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

        tail = 1 - sum(probability(count) for count in range(first))
        total += tail - servers / load * (tail - probability(first))
    return total


def test_waits_are_those_of_queueing_theory(scale: Any) -> None:
    assert _mdc(1, 0.7) == pytest.approx(0.7 / (2 * 0.3))  # Pollaczek and Khinchine
    for servers, load in ((1, 0.6), (3, 2.1)):
        found = _wait(scale, servers, load, lambda source: 1.0, 4000)
        assert found == pytest.approx(_mdc(servers, load), rel=0.1)
    # Erlang's C, of two servers: load^2 / (4 - load^2) of the service time.
    found = _wait(scale, 2, 0.8, lambda source: source.expovariate(1.0), 8000)
    assert found == pytest.approx(0.64 / (4 - 0.64), rel=0.1)


def test_cores_that_are_shared(scale: Any) -> None:
    def seconds(tasks: int, workers: int, threads: float = 1.0) -> float:
        visits = [visit(scale, worker=6.0)] * tasks
        site = scale.model.Site(workers=workers)
        run = scale.simulation.simulate(visits, site, speeds=(1.0, 1.5), threads=threads)
        assert run.done == tasks
        return float(run.seconds)

    assert seconds(4, 1) == pytest.approx(24)
    assert seconds(4, 2) == pytest.approx(16)  # three halves of the work in a second
    assert seconds(4, 4) == pytest.approx(16)  # four on two cores
    assert seconds(4, 2, 0.5) == pytest.approx(12)  # each computes half of the time
    assert seconds(4, 2, 2.0) == pytest.approx(24)  # one has both cores already


def test_nothing_is_lost_when_workers_die(scale: Any, mix: Any) -> None:
    site = a_site(scale, workers=20, deaths=0.05, restart=3.0)
    batch = scale.model.Batch(400, mix, 0.5)
    runs = [
        scale.simulation.simulate(batch.visits(site), replace(site, deaths=rate), seed=3)
        for rate in (0.0, 0.05)
    ]
    assert [run.done for run in runs] == [400, 400]
    assert runs[0].lost == 0 < runs[1].lost
    assert runs[0].busy["workers"] < runs[1].busy["workers"]
    assert runs[0].seconds < runs[1].seconds


def test_more_workers_are_no_slower(scale: Any, mix: Any) -> None:
    batch = scale.model.Batch(400, mix)
    times = []
    for workers in (1, 2, 5, 20, 100):
        site = a_site(scale, workers=workers)
        run = scale.simulation.simulate(batch.visits(site), site)
        assert run.done == batch.count
        assert run.seconds * workers >= run.busy["workers"]
        times.append(run.seconds)
    assert times == sorted(times, reverse=True)


def test_tasks_of_several_compilations(scale: Any, mix: Any) -> None:
    batch = scale.model.Batch(1003, mix, 0.9)
    one, ten = (a_site(scale, per_task=count) for count in (1, 10))
    assert len(list(batch.visits(one))) == 1003
    assert len(list(batch.visits(ten))) == 101
    for name in ("files", "worker", "link"):
        totals = [sum(getattr(each, name) for each in batch.visits(site)) for site in (one, ten)]
        assert totals[0] == pytest.approx(totals[1])
    scheduler = [sum(each.scheduler for each in batch.visits(site)) for site in (one, ten)]
    assert scheduler[0] - scheduler[1] == pytest.approx(902 * 8e-4, rel=0.01)


# -- the formulas ---------------------------------------------------------------------------------


def test_mean_value_analysis_is_exact_for_exponential_times(scale: Any) -> None:
    source = random.Random(5)
    mean = visit(scale, files=0.2, worker=1.0)
    visits = [
        visit(scale, files=source.expovariate(5.0), worker=source.expovariate(1.0))
        for _ in range(4000)
    ]
    for workers in (2, 8):
        site = scale.model.Site(workers=workers)
        run = scale.simulation.simulate(visits, site)
        rate = scale.model.throughput(mean, site)
        assert len(visits) / run.seconds == pytest.approx(rate, rel=0.04)


def test_bounds(scale: Any, mix: Any) -> None:
    batch = scale.model.Batch(10_000, mix)
    for workers in (1, 10, 100, 1000, 10_000):
        site = a_site(scale, workers=workers, ahead=0)
        mean = scale.model.demands(batch, site)
        rate = scale.model.throughput(mean, site)
        most = max(getattr(mean, name) for name in scale.model.STATIONS)
        assert rate <= min(workers / mean.worker, 1 / most) * (1 + 1e-9)
    useful = scale.model.useful_workers(batch, site)
    assert min(useful.values()) < 10_000  # the last is limited by a station


def test_the_formulas_foretell_the_simulation(scale: Any, mix: Any) -> None:
    for count, workers, hits, per_task in (
        (1500, 20, 0.0, 1),
        (1500, 100, 0.0, 1),
        (1500, 50, 0.9, 1),
        (3000, 40, 0.9, 10),
        (60, 300, 0.0, 1),
    ):
        site = a_site(scale, workers=workers, per_task=per_task)
        batch = scale.model.Batch(count, mix, hits)
        run = scale.simulation.simulate(batch.visits(site), site)
        assert run.seconds == pytest.approx(scale.model.estimate(batch, site).seconds, rel=0.12)


def test_deaths_cost_what_the_formula_says(scale: Any, mix: Any) -> None:
    batch = scale.model.Batch(3000, mix)
    site = scale.model.Site(workers=4, deaths=0.05, restart=2.0)
    run = scale.simulation.simulate(batch.visits(site), site)
    expected = scale.model.estimate(batch, site).seconds
    assert run.seconds == pytest.approx(expected, rel=0.05)
    assert expected > 1.1 * scale.model.estimate(batch, replace(site, deaths=0.0)).seconds


def test_the_greatest_of_several(scale: Any) -> None:
    import numpy as np

    uniform = (np.arange(2000) + 0.5) / 2000
    assert scale.model.greatest(uniform, 4, False) == pytest.approx(4 / 5, rel=1e-3)
    # What is left of a constant time is uniform; of n of them n / (n + 1) at most.
    assert scale.model.greatest(np.full(10, 3.0), 5, True) == pytest.approx(2.5, rel=1e-3)


def test_the_last_of_tasks_that_begin_one_by_one(scale: Any) -> None:
    import numpy as np

    constant = np.full(10, 3.0)
    assert scale.model.last_of(constant, 100, 0.5) == pytest.approx(53, rel=0.01)
    uniform = (np.arange(2000) + 0.5) / 2000
    assert scale.model.last_of(uniform, 9, 0.0) == pytest.approx(0.9, rel=1e-3)
    assert scale.model.last_of(uniform, 9, 1e-5) == pytest.approx(0.9, rel=1e-3)
    source = np.random.default_rng(0)
    drawn = (np.arange(50) * 0.05 + source.random((4000, 50))).max(axis=1).mean()
    assert scale.model.last_of(uniform, 50, 0.05) == pytest.approx(drawn, rel=0.02)


def test_signs_of_life(scale: Any) -> None:
    distributed = pytest.importorskip("distributed.scheduler")
    for workers in (1, 10, 11, 49, 50, 199, 200, 10_000):
        share = scale.model.Site(workers=workers, heartbeat=1e-5).heartbeat_share
        expected = workers / distributed.heartbeat_interval(workers) * 1e-5
        assert share == pytest.approx(expected)


# -- programs and the page ------------------------------------------------------------------------


def test_programs_differ(scale: Any) -> None:
    programs = scale.programs.make_programs(60)
    assert len(set(programs.values())) == 60
    assert {name.partition("-")[0] for name in programs} == set(scale.programs.KINDS)
    assert programs == scale.programs.make_programs(60)
    assert programs != scale.programs.make_programs(60, seed=1)


@pytest.fixture(scope="module")
def measured() -> Any:
    return json.loads((ROOT / "docs" / "scale.json").read_text())


def test_the_page_says_what_was_measured(scale: Any, measured: Any) -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    names = set(scale.report.SECTIONS)
    assert set(re.findall("<!-- begin (.*) -->", page)) == names
    # Times of all sizes take too long here; they come from what `limits` comes from.
    quick = sorted(names - {"times", "costs", "validation", "deaths"})
    assert scale.report.write_sections(page, measured, quick) == page
    with pytest.raises(ValueError, match="section 'limits' once in the page, found 0"):
        scale.report.write_sections(page.replace("begin limits", "limits"), measured, ["limits"])
    assert scale.main.to_text(measured) == (ROOT / "docs" / "scale.json").read_text()
    for name in scale.report.PICTURES:
        assert f"({name})" in page
        assert (ROOT / "docs" / name).is_file()


def test_measured_batches_are_foretold(scale: Any, measured: Any) -> None:
    rows = scale.report.validate(measured)
    assert {(row["engine"], row["workers"], row["cache"]) for row in rows} >= {
        ("Dask", workers, cache) for workers in (1, 2, 4) for cache in ("empty", "full")
    }
    for row in measured["waiting"]:
        simulated = scale.report.simulate_waiting(measured, row)
        assert simulated == pytest.approx(row["seconds"], rel=0.15)
    if max(measured["busy"].values()) > 0.2:
        pytest.skip("the machine was busy with other things when it was measured")
    compiled = [row for row in rows if row["cache"] == "empty"]
    assert statistics.median(abs(row["simulated"] / row["seconds"] - 1) for row in compiled) < 0.15


def test_one_batch_from_the_command_line(scale: Any, capsys: Any) -> None:
    given = ["simulate", "--count", "50", "--workers", "5", "--set", "file_latency=0.1"]
    assert scale.main.main(given) == 0
    words = capsys.readouterr().out
    assert re.search(r"event by event: [\d.]+ s, [\d.]+ \$; busy: client \d+%", words)
    assert scale.main.main([*given, "--set", "latency=1"]) == 2
    assert "no field is named 'latency'" in capsys.readouterr().err
    assert scale.main.main(["--data", "no such file", "plan"]) == 2
    assert "nothing was measured yet" in capsys.readouterr().err
