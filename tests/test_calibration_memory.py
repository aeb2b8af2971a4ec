"""Memory of a calibration: its bound beside the measured peak, and the refusal beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gguf_models
from command_line import fail
from gguf_models import TinyModel
from programs import LONG

MEASURE = """
import json, sys
from subquant.calibration.language_model import calibrated
from subquant.calibration.layer import Calibration
from subquant.calibration.memory_bound import memory_bound
from subquant.calibration.outputs import save
from subquant.calibration.report import model_cost
from subquant.calibration.texts import cut_texts
from subquant.models.memory import peak_memory
from subquant.models.source import open_model
from subquant.weights.quantizing import WeightQuantization

model, text, output, kind, method, threads, table = sys.argv[1:]
how = WeightQuantization(4)
average = 4.5 if method == "auto" else None
calibration = Calibration(
    method, calibration_tokens=1024, bits_average=average, requantize=True,
    token_embedding_type=table or None,
)
source = open_model(model)
texts = cut_texts(source, open(text).read(), calibration)
before = peak_memory()
bound = memory_bound(source, texts, how, calibration, kind, int(threads))
dataset, _ = calibrated(source, texts, how, calibration, output=kind, threads=int(threads))
if method != "auto":
    save(model, output, dataset, how, kind)
    model_cost(source, open_model(output), texts.held_out, threads=int(threads))
print(json.dumps([before, peak_memory(), bound]))
"""


def measure(
    model: Path, text: Path, output: Path, kind: str, method: str, threads: int, table: str = ""
) -> tuple[int, int, int]:
    """Quantize in a process: its peaks before and after, and the bound, in bytes."""
    command = [sys.executable, "-c", MEASURE, model, text, output, kind, method, str(threads)]
    command.append(table)
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    before, peak, bound = json.loads(printed)
    return before, peak, bound


@pytest.mark.skipif(not LONG, reason="3 s; a claim on memory, not on numbers")
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("kind", "method", "threads"),
    [
        ("archive", "gptq", 1),
        ("archive", "auto", 2),
        ("gguf", "gptq", 2),
    ],
)
@pytest.mark.share(6)
def test_the_bound_holds(kind: str, method: str, threads: int, tmp_path: Path) -> None:
    """A layer of 1,536 inputs, whose moments take more memory than its weight."""
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    TinyModel("gemma3", ("F16",), hidden=1536, context=256, tied=True).write(model)
    text.write_text("the sea is blue and the sky is blue " * 200)
    output = tmp_path / ("q.gguf" if kind == "gguf" else "q.irpa")
    before, peak, bound = measure(model, text, output, kind, method, threads)
    assert peak <= bound
    assert bound - before < 3 * (peak - before)


@pytest.mark.skipif(not LONG, reason="6 s; a claim on memory, not on numbers")
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_table_of_embeddings_is_never_in_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are gathered and rounded by slices, as logits are computed; pages are released."""
    tokens = [*gguf_models._llama_tokens(), *((f"▁{n}", -1e4 - n) for n in range(1 << 17))]
    monkeypatch.setattr(gguf_models, "_llama_tokens", lambda: tokens)
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    TinyModel("gemma3", ("Q8_0",), blocks=1, context=256, tied=True).write(model)
    text.write_text("the sea is blue and the sky is blue " * 200)
    before, peak, bound = measure(model, text, tmp_path / "q.gguf", "gguf", "gptq", 2, "Q4_0")
    assert peak <= bound
    assert peak - before < len(tokens) * 256 * 4


def test_a_machine_with_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    TinyModel(types=("F16",)).write(model)
    text.write_text("the sea is blue and the sky is blue " * 80)
    monkeypatch.setattr("subquant.calibration.memory_bound.machine_memory", lambda: 1 << 20)
    arguments = ["--calibrate", text, "--calibration-tokens", "128", "-o", tmp_path / "q.irpa"]
    message = fail(1, "quantize", model, "--bits", "4", *arguments)
    assert "of memory, and this machine has 0.0 GiB; give fewer --threads" in message
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.gguf", "text.txt"]
