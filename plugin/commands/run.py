"""``subquant run``."""

from __future__ import annotations

from typing import Any

import click

from .shared_options import device_option, parse_parameters, run_options


@click.command("run")
@click.argument("executable")
@device_option("llvm-cpu")
@run_options
def command(
    executable: str, device: str, parameters: tuple[str, ...], threads: int | None, **options: Any
) -> None:
    """Run a function of EXECUTABLE (.vmfb; - for standard input) on arrays.

    An executable contains native code: run only files that you trust.

    \b
    subquant run model.vmfb --input @x.npy --output @y.npy
    subquant run model.vmfb --function main --input 4xf32=1,2,3,4 --quantized-io
    subquant run wake_word.vmfb --stream --input @frames.npy --output @scores.npy
    """
    from ..runtime import Executable
    from .console import read_model
    from .function_call import Call

    archives = parse_parameters(parameters)
    call = Call(**options)
    call.check_tolerances()
    source = read_model(executable) if executable == "-" else executable
    call.run(Executable(source, device, archives, threads=threads))
