"""``subquant exec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..compiler.compile_options import CompileOptions
from ..isolation.limits import Limits
from . import shared_options as shared
from .compile import compile_model, prepare_compiler
from .console import progress_on, reproducer_of, source_of

if TYPE_CHECKING:
    from ..signature import Signature


@click.command("exec")
@click.argument("model")
@shared.run_options
@shared.device_option()
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
@shared.compile_options
@shared.limit_options
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

    limits = Limits(**shared.pop_values(Limits, options))
    choices = shared.pop_values(CompileOptions, options)
    shared.check_compile_options(choices)  # before a device is missing
    source = source_of(model)
    call = Call(**options)
    if not interpret:
        call.check_tolerances("--interpret")
    interpreted = None
    if interpret or interpret_only:
        from ..interpreter.interpreted_module import InterpretedModule

        with progress_on("interpret", model):
            interpreted = InterpretedModule(source, reproducer=reproducer_of(model), limits=limits)
        if interpret_only:
            call.run(interpreted)
            return
    opened = Device(device or choices["target"], threads=threads)
    if shared.chooses_device(choices):
        choices["vulkan_target"] = opened.vulkan_target

    def check(signatures: Mapping[str, Signature]) -> None:
        if signatures:  # none are known if IREE's own operations define the functions
            call.check(signatures)

    data = compile_model(
        model, shared.make_compile_options(**choices), source=source, limits=limits, check=check
    )
    call.run(Executable(data, opened, shared.parse_parameters(parameters)), reference=interpreted)
