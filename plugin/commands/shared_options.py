"""Options of several commands, as click decorators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, get_args

import click

from ..compiler.compile_options import CompileOptions
from ..compiler.ir_printing import IRPrinting
from ..core.option_fields import Options, annotations_of, choices_of, option
from ..errors import UsageError
from ..isolation.limits import Limits

Command = Callable[..., Any]


def stacked(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Return one decorator for several options, in the order of ``--help``."""

    def decorate(command: Command) -> Command:
        for add_option in reversed(options):
            command = add_option(command)
        return command

    return decorate


class AliasedOption(click.Option):
    """An option with one visible spelling; the others are earlier names, which are accepted."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.opts, self.hidden_opts = self.opts[:1], self.opts[1:]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register all spellings."""
        visible = self.opts
        self.opts = [*visible, *self.hidden_opts]
        super().add_to_parser(parser, ctx)
        self.opts = visible


def options_of(
    options: type[Options], only: Collection[str] = (), **overrides: dict[str, Any]
) -> Callable[[Command], Command]:
    """Return a decorator that adds an option to a command for each field of a dataclass.

    A field with choices gets a choice, a bool a flag, and a tuple an option that may be repeated,
    named in the singular.

    Args:
        options: the dataclass; its fields are declared with `subquant.core.option_fields.option`.
        only: the fields; by default all.
        **overrides: arguments of ``click.option``, by field.
    """
    return stacked(
        [
            _option(options, declared, overrides.get(declared.name, {}))
            for declared in fields(options)
            if not only or declared.name in only
        ]
    )


def _option(
    options: type[Options], declared: Field[Any], overrides: dict[str, Any]
) -> Callable[[Command], Command]:
    name, default = declared.name, declared.default
    arguments: dict[str, Any] = dict(declared.metadata)
    names, negation = [name, arguments.pop("old_name", "")], arguments.pop("negation", "")
    flags = [f"--{each.replace('_', '-')}" for each in names if each]
    if isinstance(default, tuple):
        flags = [flag.removesuffix("s") for flag in flags]
        arguments["multiple"] = True
    elif default is False:
        arguments["is_flag"] = True
    elif negation:
        flags = [f"{flags[0]}/--{negation}"]
        arguments["default"] = default
    else:
        arguments["type"] = _type_of(options, name)
        arguments["default"] = default
        arguments["show_default"] = default not in (None, "")
    return click.option(*flags, name, cls=AliasedOption, **(arguments | overrides))


def _type_of(options: type[Options], name: str) -> Any:
    """Return click's type of a field: its choices, or its annotation without None."""
    choices = choices_of(options, name)
    if choices is not None:
        return click.Choice(choices)
    annotation = annotations_of(options)[name]
    types = [each for each in get_args(annotation) if each is not type(None)]
    return types[0] if types else annotation


limit_options = options_of(Limits)
"""The limits of the process that runs MLIR, as fields of `Limits`."""


printing_options = options_of(IRPrinting)
"""The printing of the module after passes, as fields of `IRPrinting`."""


def pop_values(declaration: type[Options], options: dict[str, Any]) -> dict[str, Any]:
    """Remove the fields of a dataclass from a command's options, and return them."""
    return {declared.name: options.pop(declared.name) for declared in fields(declaration)}


_TARGET_CPU = CompileOptions.__dataclass_fields__["target_cpu"]
_FIXED_POINT_ROUNDING = CompileOptions.__dataclass_fields__["fixed_point_rounding"]
_VULKAN_TARGET = CompileOptions.__dataclass_fields__["vulkan_target"]

compile_options = options_of(
    CompileOptions,
    vulkan_target={
        "default": None,
        "help": _VULKAN_TARGET.metadata["help"]
        + f"  [default: {_VULKAN_TARGET.default}; exec: auto]",
    },
)
"""The options of a compilation, for `make_compile_options`."""


def chooses_device(values: Mapping[str, Any]) -> bool:
    """Return whether the Vulkan target is that of the device."""
    return values["target"] == "vulkan" and values["vulkan_target"] in (None, "auto")


def check_compile_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option of another target, or one that needs another option."""
    if options["target"] != "vulkan" and options["vulkan_target"] is not None:
        raise UsageError("--vulkan-target needs --target vulkan")
    if options["target"] == "vulkan" and options["target_cpu"] != _TARGET_CPU.default:
        raise UsageError("--target-cpu is for --target llvm-cpu, got --target vulkan")
    is_exact = options["requantization"] == "exact"
    if is_exact and options["fixed_point_rounding"] != _FIXED_POINT_ROUNDING.default:
        raise UsageError("--fixed-point-rounding needs --requantization fixed-point")


def make_compile_options(**options: Any) -> CompileOptions:
    """Construct `CompileOptions`; the Vulkan target ``auto`` is this machine's device.

    Raises:
        UsageError: as `check_compile_options`, or a value that no option has.
        EnvironmentProblem: there is no Vulkan device for ``auto``.
    """
    check_compile_options(options)
    if options["vulkan_target"] == "auto":
        options["vulkan_target"] = None
        if options["target"] == "vulkan":
            from ..runtime.device import Device

            options["vulkan_target"] = Device("vulkan").vulkan_target
    if options["vulkan_target"] is None:
        del options["vulkan_target"]
    return CompileOptions(**options)


@dataclass(frozen=True)
class BatchOptions:
    """Options of the compilation of several models."""

    jobs: int | None = option(
        None, "Number of models to compile in parallel.  [default: one a core]", "N"
    )
    cluster: str | None = option(
        None,
        "Compile several models on the workers of a Dask scheduler (tcp://HOST:PORT).",
        "ADDRESS",
    )
    resume: bool = option(
        False, "Skip outputs that are up to date, by contents, options and versions."
    )
    base: str | None = option(
        None,
        "Folder that output paths of several models are relative to.  [default: the current "
        "folder, or the models' common parent]",
        "FOLDER",
    )
    json: str | None = option(None, "Write a JSON report about several models.", "FILE")
    junit: str | None = option(None, "Write a JUnit XML report about several models.", "FILE")


batch_options = options_of(BatchOptions, jobs={"type": click.IntRange(1, 1024)})
"""The options of several models, as fields of `BatchOptions`."""


def device_option(default: str | None = None, further: str = "") -> Callable[[Command], Command]:
    """Return the option ``--device``; without a default it is the device of the target."""
    return click.option(
        "--device",
        default=default,
        show_default=default is not None,
        metavar="DEVICE",
        help=f"llvm-cpu, vulkan, {further}or an IREE device URI."
        + ("" if default else "  [default: the target's]"),
    )


threads_option = click.option(
    "--threads",
    type=int,
    metavar="N",
    help="Number of CPU threads; small dispatches use fewer.  [default: one for each core]",
)
"""The number of threads of a `Device`."""

drawn_input_option = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="VALUE",
    help="An argument, as in run: @file.npy or 2x3xi8=1,2,...; without any, they are random.",
)
"""The arguments of a command that otherwise draws them at random."""


seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="Seed of random arguments."
)


def json_option(content: str) -> Callable[[Command], Command]:
    """Return the flag ``--json``, as the parameter ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {content} as JSON.")


def plot_option(content: str) -> Callable[[Command], Command]:
    """Return the option ``--plot``, earlier ``--picture``."""
    return click.option(
        "--plot",
        "--picture",
        "plot",
        cls=AliasedOption,
        metavar="FILE",
        help=f"Plot the {content} to an .svg or .png file.",
    )


parameters_option = click.option(
    "--parameters",
    multiple=True,
    metavar="SCOPE=FILE",
    help="Parameters of the module by their scope: an .irpa, .gguf or .safetensors file; may be "
    "repeated.",
)


@dataclass(frozen=True)
class CallOptions:
    """Options of a function call, for `subquant.commands.function_call`.

    Raises:
        UsageError: a tolerance is negative.
    """

    function: str | None = option(
        None, "The function to call.  [default: main, or the only one]", "NAME"
    )
    inputs: tuple[str, ...] = option(
        (),
        "An argument: @x.npy, or 2x2xf32=1,2,3,4; once for each argument, in order, or after its "
        "name: x=@x.npy.",
        "VALUE",
    )
    outputs: tuple[str, ...] = option(
        (), "Write a result to @y.npy; once for each result; - prints it.", "@FILE"
    )
    expect: tuple[str, ...] = option(
        (), "Compare a result with @y.npy or a literal; fail if it differs.", "VALUE"
    )
    atol: float = option(
        0.0, "Absolute tolerance of --expect for floats (0: the bits must be equal)."
    )
    rtol: float = option(0.0, "Relative tolerance of --expect for floats.")
    quantized_io: bool = option(
        False, "Pass and return quantized values as expressed (float) values."
    )
    stream: bool = option(
        False,
        "Call the function once for each slice of the inputs along axis 0, and stack the results. "
        "Variables of the program keep their values between calls; an input without the further "
        "axis is passed to each call.",
    )

    def __post_init__(self) -> None:
        for name, value in self._tolerances.items():
            if not value >= 0:
                raise UsageError(f"{name} must be 0 or more, got {value}")

    @property
    def _tolerances(self) -> dict[str, float]:
        return {"--atol": self.atol, "--rtol": self.rtol}

    def check_tolerances(self, *alternatives: str) -> None:
        """Raise UsageError for a tolerance of results that are compared with nothing.

        Args:
            alternatives: further options of the command that compare results.
        """
        for name, value in self._tolerances.items():
            if value and not self.expect:
                raise UsageError(f"{name} needs {' or '.join(('--expect', *alternatives))}")


run_options = stacked(
    [options_of(CallOptions), parameters_option, threads_option, json_option("the results")]
)
function_option = options_of(CallOptions, only=["function"])


def parse_parameters(items: Sequence[str], option: str = "--parameters") -> dict[str, str]:
    """Parse ``scope=file.irpa`` items to files by scope; UsageError for any other item."""
    parameters = {}
    for item in items:
        scope, separator, path = item.partition("=")
        if not separator:
            raise UsageError(f"expected scope=file.irpa for {option}, got '{item}'")
        parameters[scope] = path
    return parameters
