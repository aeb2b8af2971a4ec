#!/usr/bin/env python3
"""Measure what `subquant quantize --calibrate` costs a model, for several methods and texts.

    python scripts/quantization_costs.py gemma.gguf --calibrate holmes.txt \\
        --held-out pride.txt --held-out worlds.txt "--bits 4" "--bits 4 --asymmetric"

Each argument after the model has the options of one quantization, a row of a Markdown table: bits
of the elements of quantized layers, seconds of the quantization, and for each held-out text the
perplexity, the Kullback-Leibler divergence of the next tokens in nats, and the share of equal
likeliest tokens. The numbers are those of the command with `--held-out-text`, but the float model
reads the texts once for all rows.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from subquant.calibration.block_runner import BlockRunner
from subquant.calibration.layer import Calibration
from subquant.calibration.report import ModelCost, next_token_cost
from subquant.calibration.texts import cut_texts
from subquant.calibration.worker_threads import WorkerThreads
from subquant.models.source import ModelSource, open_model


class HeldOutText:
    """Chunks of a text, and the hidden states of the float model for them.

    Args:
        model: the path of the float model.
        path: a UTF-8 text.
        tokens: tokens at its end that measure.
    """

    def __init__(self, model: str, path: str, tokens: int, threads: WorkerThreads) -> None:
        self.name = Path(path).stem
        self._model, self._threads = open_model(model), threads
        calibration = Calibration(held_out_tokens=tokens)
        texts = cut_texts(self._model, None, calibration, Path(path).read_text())
        self._chunks = texts.held_out
        self._runner, self._states = self._read(self._model)

    def _read(self, model: ModelSource) -> tuple[BlockRunner, list[np.ndarray]]:
        """Return the hidden states after the last block."""
        runner = BlockRunner(model, self._chunks, self._threads)
        states = runner.embeddings()
        for number in range(model.configuration.blocks):
            states = runner.run(number, runner.weights(number), states)
            model.release_pages()
        return runner, states

    def cost(self, quantized: ModelSource) -> ModelCost:
        """Compare the next tokens of the float model and of a quantized one."""
        runner, states = self._read(quantized)
        return next_token_cost(
            (self._model, quantized), (self._runner, runner), self._chunks,
            (self._states, states), self._threads,
        )  # fmt: skip


def described(cost: ModelCost) -> str:
    """Return the cells of a held-out text."""
    loss = 100 * (cost.perplexity_after / cost.perplexity_before - 1)
    cells = (
        f"{cost.perplexity_after:.2f} ({loss:+.1f} %)",
        f"{cost.kl_divergence:.4f}",
        f"{100 * cost.same_top_token:.1f} %",
    )
    return " | ".join(cells)


def main() -> None:
    """Measure, and print the table row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("options", nargs="+", help="options of one quantization, in quotes")
    parser.add_argument("--calibrate", required=True, metavar="TEXT")
    parser.add_argument("--held-out", required=True, action="append", metavar="TEXT")
    parser.add_argument("--held-out-tokens", type=int, default=7680)
    arguments = parser.parse_args()
    with WorkerThreads() as threads, tempfile.TemporaryDirectory() as folder:
        tokens = arguments.held_out_tokens
        texts = [HeldOutText(arguments.model, path, tokens, threads) for path in arguments.held_out]
        names = [f"{text.name} | KL | equal" for text in texts]
        print("| options | bits | seconds |", " | ".join(names), "|")
        print("|---|---:|---:|" + "---:|---:|---:|" * len(texts), flush=True)
        for options in arguments.options:
            output = Path(folder) / ("q.gguf" if "--gguf-type" in options else "q.irpa")
            command = [
                sys.executable,
                "-m",
                "subquant",
                "quantize",
                arguments.model,
                "--requantize",
            ]
            command += ["--calibrate", arguments.calibrate, "--held-out-tokens", "0", "--json"]
            start = time.perf_counter()
            printed = subprocess.run(
                [*command, *shlex.split(options), "-o", str(output)],
                check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ).stdout  # fmt: skip
            seconds = time.perf_counter() - start
            quantized = open_model(output)
            costs = " | ".join(described(text.cost(quantized)) for text in texts)
            bits = json.loads(printed)["bits_per_element"]
            print(f"| `{options}` | {bits:.2f} | {seconds:.0f} | {costs} |", flush=True)
            output.unlink()


if __name__ == "__main__":
    main()
