"""``subquant opt``."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..compiler.ir_printing import IRPrinting
from ..errors import UsageError
from ..isolation.client import start_child
from ..isolation.limits import Limits
from .console import (
    read_model,
    report_error,
    reproducer_of,
    say,
    show_progress,
    shown_name,
    write_output,
)
from .shared_options import limit_options, pop_values, printing_options


@click.command("opt")
@click.argument("model", required=False)
@click.option(
    "--passes",
    metavar="PIPELINE",
    help='Passes with options: "a{x=1},b"; also C++ passes of upstream and StableHLO.',
)
@click.option(
    "-o",
    "--output",
    default="-",
    metavar="FILE",
    help="The output, - for standard output.  [default: -]",
)
@click.option(
    "--split-input-file",
    is_flag=True,
    help="Split the input at // ----- lines into separate modules.",
)
@click.option(
    "--verify-diagnostics",
    is_flag=True,
    help="Check errors against // expected-error @+1 {{text}} comments.",
)
@click.option("--list-passes", is_flag=True, help="List the passes.")
@printing_options
@limit_options
def command(
    model: str | None,
    passes: str | None,
    output: str,
    split_input_file: bool,
    verify_diagnostics: bool,
    list_passes: bool,
    **options: Any,
) -> None:
    """Run passes on MODEL (- for standard input) and print the result, like mlir-opt.

    \b
    subquant opt model.mlir --passes canonicalize --mlir-print-ir-after-all
    subquant opt model.mlir --passes verify-quantization,lower-quant-casts
    subquant opt model.mlir --passes "lower-quant-casts{rounding=toward-zero},canonicalize"
    """
    limits = Limits(**pop_values(Limits, options))
    if list_passes:
        from ..compiler.pipeline import NAMED_PIPELINES, passes_of, text_of_pass
        from ..transforms import PASSES

        width = max(map(len, (*PASSES, *NAMED_PIPELINES)))
        for name, description in PASSES.items():
            say(f"{name:{width}}  {description}")
        for name, steps in NAMED_PIPELINES.items():
            text = ",".join(map(text_of_pass, passes_of(steps)))
            say(f"{name:{width}}  the pipeline {text}")
        return
    if model is None:
        if sys.stdin.isatty():
            raise UsageError("expected a MODEL; see 'subquant opt --help'")
        model = "-"
    from ..compiler import mlir_client

    start_child()
    with show_progress(f"opt {model}") as progress:
        result = mlir_client.optimize(
            read_model(model),
            shown_name(model),
            passes,
            split=split_input_file,
            verify_diagnostics=verify_diagnostics,
            reproducer=reproducer_of(model),
            progress=progress,
            limits=limits,
            printing=IRPrinting(**options),
        )
    if result.text is not None:
        write_output(output, result.text.encode())
    for remark in result.remarks:
        say(str(remark), err=True)
    for error in result.errors:
        report_error(error)
    if result.errors:
        click.get_current_context().exit(1)
