"""Methods of quantization on a model that is trained here, by their cost on held-out text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from programs import LONG
from subquant.calibration.language_model import quantize_language_model
from subquant.calibration.layer import Calibration
from subquant.calibration.report import ModelCost, model_cost
from subquant.models.source import open_model
from subquant.weights.quantizing import WeightQuantization, quantize_weights
from trained_model import CHUNK, TrainedModel


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return TrainedModel()


@pytest.fixture(scope="module")
def path(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.write(tmp_path_factory.mktemp("trained") / "model.gguf")


def test_gradients_are_those_of_differences() -> None:
    """Each kind of weight, beside differences of the loss in float64."""
    model = TrainedModel(steps=0)
    model.weights = {name: each.astype(np.float64) for name, each in model.weights.items()}
    tokens = model.training[: 4 * 9].reshape((4, 9))
    gradients = model.gradients(tokens[:, :-1], tokens[:, 1:])[1]
    rng = np.random.default_rng(0)
    for name, gradient in gradients.items():
        direction = rng.normal(0, 1, gradient.shape)
        losses = []
        original = model.weights[name]
        for step in (1e-5, -1e-5):
            model.weights[name] = original + step * direction
            losses.append(model.surprises(tokens).mean())
        model.weights[name] = original
        difference = (losses[0] - losses[1]) / 2e-5
        assert float((gradient * direction).sum()) == pytest.approx(difference, rel=1e-3, abs=1e-7)


@pytest.mark.skipif(not LONG, reason="4 s; methods are compared on held-out text")
def test_the_perplexity_is_that_of_the_training_code(trained: TrainedModel, path: Path) -> None:
    source = open_model(path)
    cost = model_cost(source, open_model(path), trained.held_out)
    scored = trained.surprises(np.stack(trained.held_out))[:, CHUNK // 2 :]
    assert cost.tokens == scored.size
    assert cost.perplexity_before == pytest.approx(float(np.exp(scored.mean())), rel=1e-4)
    assert cost.perplexity_before < 12  # 36 characters; it has learned


def cost_of(trained: TrainedModel, path: Path, method: str, how: WeightQuantization) -> ModelCost:
    """The cost of the layers of the blocks; ``rounded`` has no calibration."""
    source = open_model(path)
    if method == "rounded":
        dataset, _ = quantize_weights(source.dataset, how, r"^blk\.")
    else:
        calibration = Calibration(method)  # type: ignore[arg-type]
        dataset, _ = quantize_language_model(source, trained.chunks, how, calibration)
    output = path.with_suffix(".irpa")
    dataset.save(output)
    return model_cost(open_model(path), open_model(output), trained.held_out)


METHODS = ("rounded", "imatrix", "awq", "gptq")
BLOCKS = [32, 128] if LONG else [32]
ASYMMETRIC = [True, False] if LONG else [True]


@pytest.mark.skipif(not LONG, reason="13 s; the default is compared on held-out text")
@pytest.mark.parametrize("asymmetric", ASYMMETRIC)
@pytest.mark.parametrize("block_size", BLOCKS)
def test_methods_on_held_out_text(
    trained: TrainedModel, path: Path, block_size: int, asymmetric: bool
) -> None:
    """GPTQ costs less than half of rounding; weighted rounding and AWQ about as much as rounding.

    The inputs of so small a model differ little in magnitude, but depend much on each other.
    """
    costs = {
        (bits, method): cost_of(
            trained, path, method, WeightQuantization(bits, block_size=block_size,
                                                      asymmetric=asymmetric)
        )
        for bits in (3, 4)
        for method in METHODS
    }  # fmt: skip
    divergence = {key: cost.kl_divergence for key, cost in costs.items()}
    for bits in (3, 4):
        rounded = divergence[bits, "rounded"]
        assert divergence[bits, "gptq"] < rounded / 2.5
        accurate = costs[bits, "gptq"]
        assert accurate.perplexity_after < 1.01 * accurate.perplexity_before
        assert accurate.same_top_token > costs[bits, "rounded"].same_top_token
    for method in ("imatrix", "awq"):  # by chance one of both is up to 1.6
        ratios = [divergence[bits, method] / divergence[bits, "rounded"] for bits in (3, 4)]
        assert np.prod(ratios) ** 0.5 < 1.4
    for method in METHODS:
        assert divergence[4, method] < 0.8 * divergence[3, method]


@pytest.mark.skipif(not LONG, reason="9 s; errors of the default's weights have tests of their own")
def test_the_default_is_better_than_ranges(trained: TrainedModel, path: Path) -> None:
    """Without data: zero points and searched ranges beside min-max scales, in fewer bits.

    One model's divergences differ by chance, so that six kinds of blocks are taken together.
    """
    ratios = []
    for bits in (3, 4, 5):
        for block_size in (32, 64):
            default = WeightQuantization(bits, block_size=block_size)
            plain = replace(default, scales="min-max", asymmetric=False)
            costs = [cost_of(trained, path, "rounded", how) for how in (default, plain)]
            ratios.append(costs[0].kl_divergence / costs[1].kl_divergence)
    assert np.exp(np.log(ratios).mean()) < 0.85
