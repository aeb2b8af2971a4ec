"""``subquant compare MODEL ORIGINAL``."""

from __future__ import annotations

import json

import click

from ..comparison.model_weights import WeightComparison, compare_weights
from ..errors import InputError, counted, quoted
from . import plots
from .console import say, show_progress
from .language_model import read_text
from .tables import described_cost


def compare_with_original(
    model: str,
    original: str,
    text: str | None,
    tokens: int,
    max_error: float | None,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Print the comparison of a model's weights with their original.

    Raises:
        InputError: an error is greater than `max_error`, or a matrix is missing or of another
            shape; after the comparison is printed.
        SubquantError: as `compare_weights`.
    """
    if plot is not None:
        plots.check_plot(plot)
    with show_progress(f"compare {model}") as progress:
        page = None if text is None else read_text(text)
        result = compare_weights(model, original, page, tokens, progress)
    if plot is not None:
        plots.write_plot(plot, lambda: plots.weights_figure(result.weights))
        say(f"wrote {plot}", err=True)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _print(result, model, original)
    if max_error is not None:
        _check(result, max_error)


def _print(result: WeightComparison, model: str, original: str) -> None:
    from rich.console import Console

    console = Console()
    console.print(plots.render_weight_errors(result.weights, console.width))
    equal = sum(not each.greatest_error for each in result.weights)
    say(f"{equal} of {counted(len(result.weights), 'tensor')} are equal")
    for names, where in (
        (result.only_in_model, f"only in {model}"),
        (result.only_in_original, f"only in {original}"),
        (result.other_shapes, "of another shape"),
    ):
        if names:
            say(f"{counted(len(names), 'tensor')} {where}: {', '.join(names)}")
    if result.cost is not None:
        say(described_cost(result.cost))


def _check(result: WeightComparison, max_error: float) -> None:
    """Raise InputError if a tensor is not near enough, or not there."""
    wrong = [each for each in result.weights if not each.relative_error <= max_error]
    if wrong:
        raise InputError(
            f"the errors of {counted(len(wrong), 'tensor')} are more than --max-error "
            f"{max_error:g}, first {quoted(wrong[0].name)}: {wrong[0].relative_error:.3g}"
        )
    missing = [*result.other_shapes, *result.only_in_model, *result.only_in_original]
    if missing:
        raise InputError(
            f"{counted(len(missing), 'tensor')} have no counterpart of the same shape, first "
            f"{quoted(missing[0])}"
        )
