"""``subquant exec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import SubquantError
from .compile import compile_model, prepare_compiler
from .console import reproducer_of, shown_name, source_of
from .options import (
    compile_options,
    device_option,
    limit_options,
    make_compile_options,
    parse_parameters,
    pop_compile_options,
    pop_limits,
    run_options,
)

if TYPE_CHECKING:
    from ..signature import Signature

__all__ = ["command"]


@click.command("exec")
@click.argument("model")
@device_option()
@click.option(
    "--interpret",
    is_flag=True,
    help="Also evaluate with StableHLO's reference interpreter, and compare.",
)
@click.option(
    "--interpret-only",
    is_flag=True,
    help="Evaluate with StableHLO's reference interpreter instead of IREE.",
)
@compile_options
@run_options
@limit_options
def command(
    model: str,
    device: str | None,
    parameters: tuple[str, ...],
    threads: int | None,
    interpret: bool,
    interpret_only: bool,
    **options: Any,
) -> None:
    """Compile MODEL and run it.

    \b
    subquant exec examples/two_layer.mlir --input @examples/two_layer_input.npy
    subquant exec model.mlir --target vulkan --input 4xf32=1,2,3,4
    subquant exec model.mlir --interpret --input @x.npy    compare with StableHLO
    """
    prepare_compiler()
    from ..runtime import Device, Executable
    from .function_call import Call

    limits = pop_limits(options)
    source = source_of(model)
    choices = pop_compile_options(options)
    call = Call(**options)
    interpreted = None
    if interpret or interpret_only:
        from ..interpreter.interpreted_module import InterpretedModule

        try:
            interpreted = InterpretedModule(source, reproducer=reproducer_of(model), limits=limits)
        except SubquantError as error:
            raise error.in_file(shown_name(model)) from None
        if interpret_only:
            call.run(interpreted)
            return
    where = Device(device or choices["target"], threads=threads)
    if choices["target"] == "vulkan" and choices["vulkan_target"] in (None, "auto"):
        choices["vulkan_target"] = where.vulkan_target

    def check(signatures: Mapping[str, Signature]) -> None:
        if signatures:  # none are known if IREE's own operations define the functions
            call.check(signatures)

    data = compile_model(
        model, make_compile_options(**choices), source=source, limits=limits, check=check
    )
    call.run(Executable(data, where, parse_parameters(parameters)), reference=interpreted)
