"""The command line: ``subquant compile | run | exec | opt | inspect | import | conformance``.

Exit status: 0; 1 for an error in the input (located, no traceback); 2 for a wrong call. Anything
else that is raised is a bug and keeps its traceback. Results go to standard output, all else to
standard error; colour and progress appear on a terminal only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import InputError, SubquantError, UsageError

if TYPE_CHECKING:
    from .compiler.options import CompileOptions
    from .runtime import Device, Executable
    from .runtime.interpreter import InterpretedModule

__all__ = ["main"]

_EPILOG_STYLE = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


_OUTPUT_FAILED = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EPIPE)


class _Group(click.Group):
    """A group that turns `SubquantError` into a message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SubquantError as error:
            _report(error)
            ctx.exit(error.exit_status)
        except OSError as error:
            if error.errno not in _OUTPUT_FAILED:
                raise
            # Nothing more can be written there, the end of the process included.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                _report(InputError(f"cannot write the output: {error.strerror}"))
            ctx.exit(1)


def _report(error: SubquantError) -> None:
    """Print an error as MLIR's tools do, in colour on a terminal."""
    head, _, rest = str(error).partition("error: ")
    click.echo(
        click.style(head, bold=True)
        + click.style("error: ", fg="red", bold=True)
        + rest.replace("\nnote: ", "\n" + click.style("note: ", fg="cyan")),
        err=True,
    )


def _versions(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    from . import __version__
    from ._mlir import installed_versions

    click.echo(f"subquant {__version__}")
    for name, version in installed_versions().items():
        click.echo(f"{name} {version or 'not installed'}")
    ctx.exit()


@click.group(cls=_Group, context_settings=_EPILOG_STYLE)
@click.option(
    "--version", is_flag=True, callback=_versions, expose_value=False, is_eager=True,
    help="Show the versions of subquant, the bindings and IREE.",
)  # fmt: skip
def main() -> None:
    """Compile quantized MLIR programs (sub-channel types too) with IREE, and run them.

    \b
    subquant exec model.mlir --input @x.npy        compile and run at once
    subquant compile model.mlir -o model.vmfb      compile
    subquant run model.vmfb --input 4xf32=1,2,3,4  run
    subquant inspect model.mlir                    what is quantized, and how
    subquant import model.gguf                     weights as IREE parameters
    """


# -- options that commands share ------------------------------------------------------------------


def _compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    from .numerics.fixed_point import ROUNDINGS

    options = [
        click.option(
            "--target", type=click.Choice(["llvm-cpu", "vulkan"]), default="llvm-cpu",
            show_default=True, help="What to compile for.",
        ),
        click.option(
            "--target-cpu", default="host", show_default=True, metavar="CPU",
            help="The CPU for llvm-cpu: host, generic, or a name that LLVM knows.",
        ),
        click.option(
            "--vulkan-target", default=None, metavar="NAME",
            help="The device for vulkan: generic (8-bit storage), generic-32bit, auto (what is "
            "here), or a name that IREE knows, such as ampere.  [default: generic; exec: auto]",
        ),
        click.option(
            "--rounding", type=click.Choice(["nearest-even", "toward-zero"]),
            default="nearest-even", show_default=True,
            help="How casts round; toward-zero repeats upstream's lower-quant-ops.",
        ),
        click.option(
            "--requantization", type=click.Choice(["exact", "fixed-point"]), default="exact",
            show_default=True,
            help="How accumulators become storage: exact, or one 31-bit multiplier and shift.",
        ),
        click.option(
            "--fixed-point-rounding", type=click.Choice(ROUNDINGS), default="half-up",
            show_default=True, help="Of --requantization fixed-point.",
        ),
        click.option(
            "--zero-points", type=click.Choice(["auto", "after", "inside", "mixed"]),
            default="auto", show_default=True,
            help="Correct a contraction after its sums, subtract zero points inside, or inside "
            "where only the left operand has one (auto: mixed for llvm-cpu, after for vulkan).",
        ),
        click.option(
            "--integer-only", is_flag=True,
            help="Fail if quantized values are computed with floats on the way.",
        ),
        click.option(
            "--iree-flag", "iree_flags", multiple=True, metavar="FLAG",
            help="A further flag for iree-compile; may be repeated.",
        ),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--function", default=None, metavar="NAME",
                     help="The function to call.  [default: main, or the only one]"),
        click.option("--input", "inputs", multiple=True, metavar="VALUE",
                     help="An argument: @x.npy, or 2x2xf32=1,2,3,4; once for each argument."),
        click.option("--output", "outputs", multiple=True, metavar="@FILE",
                     help="Write a result to @y.npy; once for each result, - prints it."),
        click.option("--expect", "expected", multiple=True, metavar="VALUE",
                     help="Compare a result with @y.npy or a literal; fail if it differs."),
        click.option("--atol", type=float, default=0.0, show_default=True,
                     help="Absolute tolerance of --expect for floats (0: the bits must be equal)."),
        click.option("--rtol", type=float, default=0.0, show_default=True,
                     help="Relative tolerance of --expect for floats."),
        click.option("--quantized-io", is_flag=True,
                     help="Give and take reals for quantized arguments and results."),
        click.option("--stream", "as_stream", is_flag=True,
                     help="Call the function for each slice of the inputs along axis 0, in order, "
                     "and stack the results; variables of the program keep their values between "
                     "the calls. Inputs without a further axis are given to each call."),
        click.option("--parameters", multiple=True, metavar="SCOPE=FILE",
                     help="Parameters of the module, as an .irpa file."),
        click.option("--json", "as_json", is_flag=True, help="Print the results as JSON."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


_COMPILE_OPTIONS = (
    "target",
    "target_cpu",
    "vulkan_target",
    "rounding",
    "requantization",
    "fixed_point_rounding",
    "zero_points",
    "integer_only",
    "iree_flags",
)


def _options(**options: Any) -> CompileOptions:
    from .compiler.options import CompileOptions

    if options["vulkan_target"] == "auto":
        options["vulkan_target"] = "generic"
        if options["target"] == "vulkan":
            from .runtime import Device

            options["vulkan_target"] = Device("vulkan").vulkan_target
    options["vulkan_target"] = options["vulkan_target"] or "generic"
    return CompileOptions(**options)


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner, the current step and the time on standard error, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title)
        yield lambda step: progress.update(task, description=f"{title}: {step}")


def _write(path: str, data: bytes) -> None:
    """Write a file whole, or standard output for "-"."""
    from .files import write_whole

    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        write_whole(path, data)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None


# -- commands -------------------------------------------------------------------------------------


@main.command()
@click.argument("model")
@click.option(
    "-o",
    "output",
    default=None,
    metavar="FILE",
    help="The output; - is standard output.  [default: MODEL.vmfb, or - for text]",
)
@click.option("--emit", type=click.Choice(["vmfb", "mlir", "mlirbc"]), default="vmfb",
              show_default=True, help="Stop before IREE with mlir or mlirbc.")  # fmt: skip
@_compile_options
def compile(model: str, output: str | None, emit: str, **options: Any) -> None:
    """Compile MODEL (.mlir text or bytecode, - for standard input) to an IREE executable.

    A .tflite model is taken too: PyPI's tosa-converter-for-tflite turns it into TOSA first.

    \b
    subquant compile examples/two_layer.mlir -o two_layer.vmfb
    subquant compile wake_word.tflite
    subquant compile model.mlir --target vulkan
    subquant compile model.mlir --emit mlir | less
    """
    if output is None:
        stem = "model" if model == "-" else Path(model).stem
        output = f"{stem}.vmfb" if emit == "vmfb" else "-"
    if "-" not in (model, output) and os.path.realpath(model) == os.path.realpath(output):
        raise UsageError(f"the output '{output}' is the input; give another file with -o")
    data = _compile(model, _options(**options), emit, output)
    _write(output, data)
    if output != "-":
        click.echo(f"wrote {output} ({len(data):,} bytes)", err=True)


def _source(model: str) -> Any:
    """The bytes of standard input for "-", which can be read once; else the path."""
    return sys.stdin.buffer.read() if model == "-" else Path(model)


def _compile(
    model: str, options: CompileOptions, emit: Any, output: str | None, source: Any = None
) -> bytes:
    from .compiler.compilation import compile_to_bytes

    source = _source(model) if source is None else source
    named = "stdin" if model == "-" else model
    stem = Path(named if output in (None, "-") else output).stem
    folder = Path(output).parent if output not in (None, "-") else Path()
    with _progress(f"compile {model}") as progress:
        try:
            return compile_to_bytes(
                source,
                options,
                emit=emit,
                reproducer=folder / f"{stem}.reproducer.mlir",
                progress=progress,
            )
        except SubquantError as error:
            raise error.in_file("<stdin>" if model == "-" else model) from None


@main.command()
@click.argument("executable")
@click.option("--device", default="llvm-cpu", show_default=True, metavar="DEVICE",
              help="llvm-cpu, vulkan, or an IREE device URI.")  # fmt: skip
@_run_options
def run(executable: str, device: str, parameters: tuple[str, ...], **options: Any) -> None:
    """Run a function of EXECUTABLE (.vmfb) on arrays.

    \b
    subquant run model.vmfb --input @x.npy --output @y.npy
    subquant run model.vmfb --function main --input 4xf32=1,2,3,4 --quantized-io
    subquant run wake_word.vmfb --stream --input @frames.npy --output @scores.npy
    """
    from .runtime import Executable

    loaded = Executable(executable, device, _parameters(parameters))
    _run(loaded, **options)


@main.command()
@click.argument("model")
@click.option(
    "--device",
    default=None,
    metavar="DEVICE",
    help="llvm-cpu, vulkan, or an IREE device URI.  [default: the target's]",
)
@click.option(
    "--interpret",
    is_flag=True,
    help="Evaluate with StableHLO's reference interpreter too, and compare.",
)
@click.option(
    "--interpret-only",
    is_flag=True,
    help="Evaluate with StableHLO's reference interpreter instead of IREE.",
)
@_compile_options
@_run_options
def exec(
    model: str, device: str | None, parameters: tuple[str, ...], interpret: bool,
    interpret_only: bool, **options: Any,
) -> None:  # fmt: skip
    """Compile MODEL and run it at once.

    \b
    subquant exec examples/two_layer.mlir --input @examples/two_layer_input.npy
    subquant exec model.mlir --target vulkan --input 4xf32=1,2,3,4
    subquant exec model.mlir --interpret --input @x.npy    beside StableHLO's interpreter
    """
    from .runtime import Device, Executable

    interpreted, source = None, _source(model)
    if interpret or interpret_only:
        from .runtime.interpreter import InterpretedModule

        try:
            interpreted = InterpretedModule(source)
        except SubquantError as error:
            raise error.in_file("<stdin>" if model == "-" else model) from None
    compile_options = {name: options.pop(name) for name in _COMPILE_OPTIONS}
    if interpreted is not None and interpret_only:
        _run(interpreted, **options)
        return
    target = compile_options["target"]
    where: Device = Device(device or target)
    if target == "vulkan" and compile_options["vulkan_target"] in (None, "auto"):
        compile_options["vulkan_target"] = where.vulkan_target
    data = _compile(model, _options(**compile_options), "vmfb", None, source)
    executable = Executable(data, where, _parameters(parameters))
    _run(executable, interpreted=interpreted, **options)


def _parameters(items: tuple[str, ...]) -> dict[str, str]:
    parameters = {}
    for item in items:
        scope, separator, path = item.partition("=")
        if not separator:
            raise UsageError(f"expected scope=file.irpa for --parameters, got '{item}'")
        parameters[scope] = path
    return parameters


def _run(
    executable: Executable | InterpretedModule, *, function: str | None, inputs: tuple[str, ...],
    outputs: tuple[str, ...], expected: tuple[str, ...], atol: float, rtol: float,
    quantized_io: bool, as_stream: bool, as_json: bool,
    interpreted: InterpretedModule | None = None,
) -> None:  # fmt: skip
    from .commands.arrays import difference, format_array, parse_input, to_npy

    name = function or ("main" if "main" in executable.functions else None)
    if name is None and len(executable.functions) == 1:
        name = next(iter(executable.functions))
    if name is None:
        raise UsageError(
            f"which function? give --function, one of: {', '.join(executable.functions)}"
        )
    chosen = executable[name]
    arguments = [parse_input(text) for text in inputs]
    wanted = [parse_input(text) for text in expected]
    files = [_output_file(text) for text in outputs]
    count = len(chosen.signature.outputs) if chosen.signature else len(files)
    if len(files) > count or len(wanted) > count:
        raise UsageError(
            f"function '{name}' has {count} results, got {max(len(files), len(wanted))} "
            f"{'--output' if len(files) > count else '--expect'} options"
        )

    def call(function: Any, progress: Callable[[str], None]) -> list[Any]:
        if not as_stream:
            called: list[Any] = function.invoke(arguments, quantized_io=quantized_io)
            return called
        from .runtime.streaming import stream

        def on_step(step: int, count: int) -> None:
            progress(f"step {step + 1} of {count}")

        return stream(function, arguments, quantized_io=quantized_io, on_step=on_step)

    with _progress(f"run {name}") as progress:
        results = call(chosen, progress)
    for number, (result, value) in enumerate(zip(results, wanted, strict=False)):
        reason = difference(result, value, atol=atol, rtol=rtol)
        if reason is not None:
            raise InputError(f"result {number} of '{name}' is not what --expect says: {reason}")
    for file, result in zip(files, results, strict=False):
        if file is not None:
            _write(file, to_npy(result))
    if as_json:
        values = [
            {"shape": list(r.shape), "dtype": str(r.dtype), "data": _plain(r)} for r in results
        ]
        click.echo(json.dumps({"function": name, "results": values}))
    else:
        for number, result in enumerate(results):
            if number >= len(files) or files[number] is None:
                click.echo(f"result[{number}]: {format_array(result)}")
    if wanted:
        click.echo(f"{len(wanted)} of {count} results are as expected", err=True)
    if interpreted is not None:
        with _progress(f"interpret {name}") as progress:
            others = call(interpreted[name], progress)
        _compare_with_interpreter(results, others, atol, rtol)


def _compare_with_interpreter(
    results: list[Any], others: list[Any], atol: float, rtol: float
) -> None:
    """Say of each result whether the interpreter has the same; fail if one has not."""
    from .commands.arrays import difference, format_array

    differ = []
    for number, (result, other) in enumerate(zip(results, others, strict=True)):
        reason = difference(result, other, atol=atol, rtol=rtol)
        if reason is None:
            click.echo(f"interpreter[{number}]: the same", err=True)
        else:
            differ.append(number)
            click.echo(f"interpreter[{number}]: {format_array(other)}")
            click.echo(f"interpreter[{number}]: differs: {reason}", err=True)
    if differ:
        which = ", ".join(str(number) for number in differ)
        raise InputError(
            f"result {which} is not what StableHLO's interpreter gives; for floats, whose sums "
            "may be reordered, give --rtol or --atol"
        )


def _plain(array: Any) -> Any:
    """An array as JSON lists; floats that JSON does not know become text."""
    if array.dtype.kind in "iub":
        return array.tolist()
    wide = array.astype("f8")
    if not (abs(wide) < float("inf")).all():
        return [str(value) for value in wide.reshape(-1)]
    return wide.tolist()


def _output_file(text: str) -> str | None:
    if text == "-":
        return None
    if not text.startswith("@") or len(text) < 2:
        raise UsageError(f"expected @file.npy or - for --output, got '{text}'")
    return text[1:]


@main.command()
@click.argument("model", required=False)
@click.option(
    "--passes",
    default=None,
    metavar="PIPELINE",
    help='Passes with options: "a{x=1},b"; also C++ passes of upstream and StableHLO.',
)
@click.option("-o", "output", default="-", metavar="FILE", help="The output.  [default: -]")
@click.option(
    "--split-input-file",
    is_flag=True,
    help="Treat the parts between // ----- lines as modules of their own.",
)
@click.option(
    "--verify-diagnostics",
    is_flag=True,
    help="Check errors against // expected-error @+1 {{text}} comments.",
)
@click.option("--list-passes", is_flag=True, help="List the passes.")  # fmt: skip
def opt(
    model: str | None, passes: str | None, output: str, split_input_file: bool,
    verify_diagnostics: bool, list_passes: bool,
) -> None:  # fmt: skip
    """Run passes on MODEL (- for standard input) and print the result, like mlir-opt.

    \b
    subquant opt model.mlir --passes verify-quantization,lower-quant-casts
    subquant opt model.mlir --passes "lower-quant-casts{rounding=toward-zero},canonicalize"
    """
    from .compiler.pipeline import NAMED_PIPELINES
    from .transforms import PASSES

    if list_passes:
        for name, description in PASSES.items():
            click.echo(f"{name:32} {description}")
        for name, text in NAMED_PIPELINES.items():
            click.echo(f"{name:32} the pipeline {text}")
        return
    if model is None:
        raise UsageError("expected a MODEL; see 'subquant opt --help'")
    from .compiler.opt import run_opt

    file = "<stdin>" if model == "-" else model
    data = sys.stdin.buffer.read() if model == "-" else _read(model)
    result = run_opt(
        data, file, passes, split=split_input_file, verify_diagnostics=verify_diagnostics
    )
    if result.text is not None:
        _write(output, result.text.encode())
    for remark in result.remarks:
        click.echo(str(remark), err=True)
    for error in result.errors:
        _report(error)
    if result.errors:
        sys.exit(1)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror}") from None


@main.command()
@click.argument("file")
@click.option(
    "--scales",
    "tensor",
    default=None,
    metavar="NAME",
    help="Show a picture of the scales of one tensor, by name or number.",
)
@click.option(
    "--picture",
    default=None,
    metavar="FILE",
    help="With --scales: write the picture as SVG or PNG instead.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")  # fmt: skip
def inspect(file: str, tensor: str | None, picture: str | None, as_json: bool) -> None:
    """Show what is quantized in FILE, how, and how big it is.

    FILE is a module (.mlir), an executable (.vmfb), or weights: .gguf, .irpa, .safetensors, or a
    folder of safetensors with a config.json.

    \b
    subquant inspect examples/two_layer.mlir
    subquant inspect model.mlir --scales %w
    subquant inspect model.vmfb
    subquant inspect model.gguf
    """
    if picture is not None and tensor is None:
        raise UsageError("--picture needs --scales NAME")
    from .weights.sources import weights_format

    if file != "-" and weights_format(file) is not None:
        if tensor is not None:
            raise UsageError("--scales shows tensors of .mlir files only")
        _inspect_weights(file, as_json)
        return
    if file.endswith(".vmfb"):
        _inspect_executable(file, as_json)
        return
    from rich.console import Console

    from .commands import pictures
    from .compiler import inspection
    from .compiler.pipeline import run_pipeline
    from .compiler.reading import read_module
    from .transforms.verify_quantization import VerifyQuantization

    try:
        data = sys.stdin.buffer.read() if file == "-" else _read(file)
        module = read_module(data)
        run_pipeline(module, [VerifyQuantization()])
        tensors = inspection.with_source_names(
            inspection.inspect_module(module), data.decode(errors="replace")
        )
    except SubquantError as error:
        raise error.in_file("<stdin>" if file == "-" else file) from None
    if tensor is not None:
        chosen = _choose(tensors, tensor)
        if picture is not None:
            pictures.write_picture(picture, lambda: pictures.scales_figure(chosen))
            click.echo(f"wrote {picture}", err=True)
        else:
            Console().print(pictures.render_scales(chosen))
    elif as_json:
        click.echo(json.dumps(inspection.to_json(tensors), indent=2))
    elif not tensors:
        click.echo("nothing is quantized")
    else:
        Console().print(inspection.render_table(tensors))


@main.command()
@click.option(
    "--stablehlo",
    default=None,
    metavar="PATH",
    help="Also the quantized test data of this StableHLO checkout.",
)
@click.option(
    "--llvm",
    default=None,
    metavar="PATH",
    help="Also the tests of the quant dialect of this LLVM checkout.",
)
@click.option(
    "--random",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Also the first N programs drawn at random (operations, types, shapes).",
)
@click.option(
    "--device",
    "devices",
    default="llvm-cpu",
    show_default=True,
    metavar="DEVICES",
    help="Devices, with commas: llvm-cpu, vulkan, interpreter (StableHLO's own, on the "
    "float form: it checks the goldens), or IREE device URIs.",
)
@click.option(
    "--filter", "pattern", default="", metavar="REGEX", help="Only cases whose name has a match."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Processes.  [default: one a core]",
)
@click.option("--json", "json_file", default=None, metavar="FILE", help="Write JSON.")
@click.option("--junit", default=None, metavar="FILE", help="Write JUnit XML.")
@click.option(
    "--expected",
    default=None,
    metavar="FILE",
    help="The expected results.  [default: those that come with subquant]",
)
@click.option(
    "--update-expected",
    is_flag=True,
    help="Write what came out as the expected results of the cases that ran.",
)
@click.option("--strict", is_flag=True, help="Fail also if a case passes that is not expected to.")
@click.option(
    "--save",
    default=None,
    metavar="DIR",
    help="Write the program and inputs of each case that does not pass.",
)
@click.option("--list", "list_cases", is_flag=True, help="Show the names of the cases.")
def conformance(devices: str, json_file: str | None, **options: Any) -> None:  # fmt: skip
    """Run programs with known results on devices; fail if one does worse than expected.

    \b
    subquant conformance
    subquant conformance --device llvm-cpu,vulkan --filter dot_general
    subquant conformance --stablehlo ~/stablehlo --json out.json --junit out.xml
    """
    from .conformance.command import Options, run

    names = tuple(name.strip() for name in devices.split(",") if name.strip())
    if not names:
        raise UsageError("expected at least one device for --device")
    click.get_current_context().exit(run(Options(devices=names, json=json_file, **options)))


def _choose(tensors: list[Any], name: str) -> Any:
    if name.isdigit() and int(name) < len(tensors):
        return tensors[int(name)]
    found = [tensor for tensor in tensors if tensor.name in (name, f"%{name}")]
    if not found:
        names = ", ".join(tensor.name for tensor in tensors[:20]) or "none"
        raise UsageError(f"no quantized tensor is named '{name}'; expected one of: {names}")
    return found[0]


def _inspect_weights(path: str, as_json: bool) -> None:
    """Show the properties and tensors of weights; no tensor is unpacked."""
    from rich.console import Console

    from .weights import inspection as weight_inspection
    from .weights.sources import open_weights

    with _progress(f"open {path}"):
        dataset = open_weights(path)
    if as_json:
        click.echo(json.dumps(weight_inspection.to_json(dataset), indent=2))
        return
    lines = weight_inspection.property_lines(dataset.properties)
    for line in lines:
        click.echo(line)
    if lines:
        click.echo()
    Console().print(weight_inspection.render_weights(dataset))


@main.command("import")
@click.argument("source")
@click.option(
    "-o",
    "output",
    default=None,
    metavar="FILE.irpa",
    help="The output.  [default: the name of SOURCE with .irpa]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")  # fmt: skip
def import_(source: str, output: str | None, as_json: bool) -> None:
    """Import weights from SOURCE as IREE parameters, with quantized tensors as planes.

    SOURCE is a .gguf, .safetensors or .irpa file, or a folder of safetensors with a config.json.

    \b
    subquant import model.gguf -o model.irpa
    subquant import checkpoint/ -o model.irpa
    subquant run model.vmfb --parameters model=model.irpa --input @x.npy
    """
    from .weights.sources import default_output, import_weights

    output = default_output(source) if output is None else output
    with _progress(f"import {source}") as progress:
        kinds = import_weights(
            source,
            output,
            on_tensor=lambda number, count, name: progress(f"{number + 1} of {count}: {name}"),
        )
    size = Path(output).stat().st_size
    tensors = sum(kind.tensors for kind in kinds.values())
    if as_json:
        listed = {name: vars(kind) for name, kind in kinds.items()}
        click.echo(json.dumps({"output": output, "bytes": size, "kinds": listed}))
        return
    for name, kind in kinds.items():
        bits = 8 * kind.bytes / max(kind.elements, 1)
        click.echo(
            f"{kind.tensors:6} {name:36} {kind.bytes:15,} bytes {bits:7.2f} bits an element",
            err=True,
        )
    click.echo(f"wrote {output} ({tensors} tensors, {size:,} bytes)", err=True)


@main.command("quantize")
@click.argument("source")
@click.option(
    "-o",
    "output",
    default=None,
    metavar="FILE.irpa",
    help="The output.  [default: the name of SOURCE with -qBITS.irpa]",
)
@click.option("--bits", type=click.IntRange(2, 8), default=8, show_default=True, help="Of storage.")
@click.option(
    "--granularity",
    type=click.Choice(["tensor", "axis", "block"]),
    default="block",
    show_default=True,
    help="What shares a scale.",
)
@click.option("--axis", type=int, default=0, show_default=True, help="Of --granularity axis.")
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Elements of the last axis, of --granularity block.",
)
@click.option(
    "--scales",
    type=click.Choice(["min-max", "mse"]),
    default="min-max",
    show_default=True,
    help="From the range of values, or by the least square error.",
)
@click.option("--asymmetric", is_flag=True, help="With zero points.")
@click.option("--select", default="", metavar="REGEX", help="Only tensors whose name has a match.")
@click.option(
    "--picture", default=None, metavar="FILE", help="Write the errors as a picture, SVG or PNG."
)
@click.option("--json", "as_json", is_flag=True, help="Print the errors as JSON.")
def quantize(
    source: str, output: str | None, bits: int, granularity: Any, axis: int, block_size: int,
    scales: Any, asymmetric: bool, select: str, picture: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Quantize the float weights of SOURCE and write them as IREE parameters.

    SOURCE is as of subquant import. Tensors of two axes or more are rounded to nearest; the others
    are taken over. A table shows how far each layer is from its float values.

    \b
    subquant quantize checkpoint/ --bits 4 --scales mse -o model.irpa
    subquant quantize model.irpa --granularity axis --select attn --picture errors.svg
    """
    from rich.console import Console

    from .commands import pictures
    from .weights.quantizing import WeightQuantization, default_output, quantize_weights
    from .weights.sources import open_weights

    how = WeightQuantization(bits, granularity, axis, block_size, scales, not asymmetric)
    output = default_output(source, how) if output is None else output
    if Path(output).suffix != ".irpa":
        raise UsageError(f"the output '{output}' must end in .irpa")
    if os.path.realpath(source) == os.path.realpath(output):
        raise UsageError(f"the output '{output}' is the input; give another with -o")
    if picture is not None:
        pictures.check_picture(picture)
    with _progress(f"quantize {source}") as progress:
        dataset, errors = quantize_weights(
            open_weights(source),
            how,
            select,
            on_tensor=lambda number, count, name: progress(f"{number + 1} of {count}: {name}"),
        )
        dataset.save(output)
    if picture is not None:
        pictures.write_picture(picture, lambda: pictures.errors_figure(errors))
    size = Path(output).stat().st_size
    if as_json:
        listed = [{**vars(e), "signal_to_noise": min(e.signal_to_noise, 1e9)} for e in errors]
        click.echo(json.dumps({"output": output, "bytes": size, "tensors": listed}))
        return
    console = Console()
    console.print(pictures.render_errors(errors, console.width))
    click.echo(f"wrote {output} ({len(errors)} quantized tensors, {size:,} bytes)", err=True)


def _inspect_executable(path: str, as_json: bool) -> None:
    """Show the functions of an executable; it is not loaded on a device."""
    from .runtime import read_signatures

    functions = read_signatures(path)
    if as_json:
        described = {
            name: {
                "inputs": [str(value) for value in signature.inputs],
                "outputs": [str(value) for value in signature.outputs],
            }
            for name, signature in functions.items()
        }
        click.echo(json.dumps(described, indent=2))
        return
    for name, signature in functions.items():
        click.echo(f"{name}")
        for label, values in (("argument", signature.inputs), ("result", signature.outputs)):
            for number, value in enumerate(values):
                click.echo(f"  {label} {number}: {value}")
