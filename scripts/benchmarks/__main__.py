"""Time subquant beside other runtimes, and IREE alone.

Commands::

    scripts/bench                                    all cases: a table
    scripts/bench --list                             their names
    scripts/bench --case 'int4 block 32 1x' --seconds 10 --threads 1
    scripts/bench --json times.json --plot times.svg
    scripts/bench --write                            docs/benchmarks.md and its plot
    scripts/bench --write docs/benchmarks-epyc.md    the page of another machine
    scripts/bench --target-cpu haswell               code for a CPU with fewer features
    scripts/bench --agreement                        a language model's words beside llama.cpp's
    scripts/bench --perplexity page.txt a.gguf b.gguf    perplexities beside llama.cpp's

The other runtimes are ONNX Runtime, LiteRT, llama.cpp and transformers. transformers is timed if it
and torch are installed in .venv-bench, and modules of PyTorch if torch and torchao are, which
scripts/bench does not do.
The models of MLPerf Tiny are timed if the environment variable SUBQUANT_MODELS names their folder.
The machine must be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from subquant.errors import SubquantError
from subquant.runtime.host_features import missing_features
from subquant.runtime.machine import describe_machine

from .cases import Case, make_cases
from .hidden import build
from .measurement import OURS, PEERS, Measured, PeerFailed, Workers, measure
from .modules import missing_libraries
from .peers import HOST, features_of
from .report import Outcome, draw, page, table, to_json

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "benchmarks.md"
_REMARKS = Path(__file__).with_name("remarks.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--case", default="", metavar="REGEX", help="the cases whose names match")
    parser.add_argument("--list", action="store_true", help="only print the names of the cases")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="measured time of each peer in each case (default: 2)",
    )
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=PEERS, help="the peers to time (default: all)"
    )
    parser.add_argument(
        "--target-cpu",
        default=HOST,
        metavar="CPU",
        help="compile for this CPU (LLVM's name), which has fewer features than this machine; "
        "llama.cpp is built for AVX2, and AVX512 is hidden from ONNX Runtime and LiteRT if the "
        "processor can trap cpuid and there is a C compiler",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements")
    parser.add_argument(
        "--plot", "--picture", type=Path, metavar="FILE", help="plot the ratios (.svg, .png)"
    )
    parser.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=_PAGE,
        metavar="PAGE",
        help=f"write a page of the documentation (default: docs/{_PAGE.name})",
    )
    parser.add_argument(
        "--agreement",
        action="store_true",
        help="compare the tokens of Gemma 3 270M with llama.cpp's, instead of timing",
    )
    parser.add_argument(
        "--perplexity",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="measure the perplexity of a text (the first file) under GGUF files by llama.cpp and "
        "subquant, instead of timing",
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="the file of the peers' messages")
    return parser


def _describe(names: Sequence[str], workers: Workers) -> tuple[dict[str, str], dict[str, str]]:
    """Return the name and version of each available peer, and why each other one is missing."""
    available, missing = {}, {}
    for name in names:
        try:
            description = workers.get(name, 1).ask("describe")
            available[name] = f"{description['name']} {description['version']}"
        except PeerFailed as error:
            workers.drop(name, 1)
            missing[name] = str(error)
    return available, missing


def _commit() -> dict[str, str]:
    """Return the checkout's commit as a row of the machine's description; none without git."""
    git = ["git", "-C", str(_ROOT)]
    try:
        head, changes = (
            subprocess.run([*git, *arguments], capture_output=True, text=True, check=True).stdout
            for arguments in (
                ["rev-parse", "--short", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": head.strip() + (", with changes" if changes else "")}


def _refusal(target_cpu: str) -> str | None:
    """Return the reason why this machine cannot run code for a CPU; None if it can."""
    try:
        missing = missing_features(",".join(sorted(features_of({"target_cpu": target_cpu}))))
    except SubquantError as error:
        return str(error)
    return f"error: this machine has no {', '.join(missing)}" if missing else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(
    cases: Sequence[Case],
    threads: Sequence[int],
    names: Sequence[str],
    seconds: float,
    workers: Workers,
    target_cpu: str = HOST,
) -> list[Outcome]:
    """Measure cases with each number of threads, and print each outcome on standard error."""
    outcomes = []
    for number, case in enumerate(cases):
        data = case.data()
        data = replace(data, values=data.values | {"target_cpu": target_cpu})
        work = data.bytes if data.rotated else data.products
        mark = case.mark_for(features_of(data.values))
        for count in threads:
            measurements = measure(data, count, names, workers, seconds)
            outcome = Outcome(case.name, count, mark, work, measurements)
            outcomes.append(outcome)
            _say(f"[{number + 1}/{len(cases)}] {case.name}, threads: {count}{_summary(outcome)}")
    return outcomes


def _summary(outcome: Outcome) -> str:
    texts = [f"  ratio {outcome.ratio:.2f}" if outcome.ratio is not None else "  no ratio"]
    texts += [_line(each) for each in outcome.measurements]
    texts += [f"    {share:.0%} of {name}" for name, share in outcome.ceiling_shares().items()]
    return "\n".join(texts)


def _line(each: Measured) -> str:
    if each.times is None:
        return f"    {each.name:18} {each.failure}"
    right = "" if each.check is None else each.check.text
    wrong = "" if each.check is None or each.check.is_right else "WRONG: "
    minimum, median = each.times.minimum, each.times.median
    path = each.notes.get("path", "")
    return (
        f"    {each.name:18} {minimum:9.3f} / {median:9.3f} ms  {each.times.count:6} calls  "
        f"{wrong}{right}  {path}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; return 1 if a result of subquant is wrong or missing."""
    options = _parser().parse_args(arguments)
    if options.agreement:
        from .agreement import compare
        from .language import model_file

        print("\n".join(compare(model_file(), max(options.threads), _say)))
        return 0
    if options.perplexity:
        from .perplexities import perplexities

        text, *files = options.perplexity
        for line in perplexities(text.read_bytes().decode(), files, max(options.threads)):
            print(line, flush=True)
        return 0
    cases = [case for case in make_cases() if re.search(options.case, case.name)]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not cases:
        _say(f"error: no case has a name like {options.case!r}; see --list")
        return 2
    if min(options.threads) < 1 or not options.seconds > 0:
        _say("error: expected 1 thread or more, and more than 0 seconds")
        return 2
    refusal = _refusal(options.target_cpu)
    if refusal:
        _say(refusal)
        return 2
    if libraries := missing_libraries():
        _say(f"modules of PyTorch are left out: .venv-bench has no {', '.join(libraries)}")
    load = {"load before": f"{os.getloadavg()[0]:.1f}"}
    machine = describe_machine() | _commit() | load
    log = options.log or Path(tempfile.mkstemp(prefix="subquant-bench-", suffix=".log")[1])
    folder = tempfile.TemporaryDirectory()
    preloaded = None
    if options.target_cpu != HOST:
        machine["compiled for"] = options.target_cpu
        features = features_of({"target_cpu": options.target_cpu})
        preloaded = build(features, Path(folder.name))
        if preloaded is not None:
            machine["peers find"] = "AVX2 and no more"
    workers = Workers(log, preloaded)
    try:
        peers, missing = _describe([OURS, *options.peers], workers)
        left_out = [f"{name}: {reason}" for name, reason in missing.items()]
        for line in left_out:
            _say(f"left out: {line}")
        machine["peers left out"] = "; ".join(left_out) or "none"
        outcomes = run(
            cases, options.threads, list(peers), options.seconds, workers, options.target_cpu
        )
    finally:
        workers.close()
        folder.cleanup()
    print(table(outcomes, peers))
    if options.json:
        report = to_json(machine, peers, outcomes)
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        draw(options.plot, outcomes)
    if options.write:
        plot = options.write.with_suffix(".svg")
        draw(plot, outcomes)
        remarks = json.loads(_REMARKS.read_text()).get(options.write.stem, {})
        other_pages = {
            other.name: other.read_text().splitlines()[0].removeprefix("# ")
            for other in sorted(options.write.parent.glob("benchmarks*.md"))
            if other.name != options.write.name
        }
        written = page(machine, peers, outcomes, remarks, plot.name, other_pages)
        options.write.write_text(written)
    ours = [outcome.ours for outcome in outcomes]
    is_right = all(each is not None and each.check and each.check.is_right for each in ours)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
