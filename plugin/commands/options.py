"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from typing import Any, get_args

import click

from ..compiler.compile_options import CompileOptions
from ..core.option_fields import Options, annotations_of, choices_of
from ..errors import UsageError
from ..isolation.client import Limits

__all__ = [
    "compile_options",
    "limit_options",
    "make_compile_options",
    "options_of",
    "parse_parameters",
    "pop_limits",
    "run_options",
    "stacked",
    "threads_option",
]

Command = Callable[..., Any]


def stacked(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """One decorator for several, in the order in which ``--help`` shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def options_of(options: type[Options], **overrides: dict[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command an option for each field of a dataclass.

    A field with choices takes these, a bool is a flag, a tuple is an option that may be repeated,
    by its name in the singular.

    Args:
        options: the dataclass, whose fields are made by `subquant.core.option_fields.option`.
        **overrides: arguments of ``click.option``, by field.
    """
    return stacked(
        [
            _option(options, declared, overrides.get(declared.name, {}))
            for declared in fields(options)
        ]
    )


def _option(
    options: type[Options], declared: Field[Any], overrides: dict[str, Any]
) -> Callable[[Command], Command]:
    name, default = declared.name, declared.default
    flag = f"--{name.replace('_', '-')}"
    arguments: dict[str, Any] = dict(declared.metadata)
    if isinstance(default, tuple):
        flag = flag.removesuffix("s")
        arguments["multiple"] = True
    elif default is False:
        arguments["is_flag"] = True
    else:
        arguments["type"] = _type_of(options, name)
        arguments["default"] = default
        arguments["show_default"] = default not in (None, "")
    return click.option(flag, name, **(arguments | overrides))


def _type_of(options: type[Options], name: str) -> Any:
    """What click reads a field as: one of its choices, or its type, None left out."""
    choices = choices_of(options, name)
    if choices is not None:
        return click.Choice(choices)
    annotation = annotations_of(options)[name]
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if kinds else annotation


limit_options = options_of(Limits)
"""What MLIR may take, for `pop_limits`."""


def pop_limits(options: dict[str, Any]) -> Limits:
    """Take the values of `limit_options` out of a command's options."""
    return Limits(**{declared.name: options.pop(declared.name) for declared in fields(Limits)})


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


def make_compile_options(**options: Any) -> CompileOptions:
    """Make the options of a compilation; ``auto`` takes the Vulkan device that is here."""
    if options["vulkan_target"] == "auto":
        options["vulkan_target"] = None
        if options["target"] == "vulkan":
            from ..runtime.device import Device

            options["vulkan_target"] = Device("vulkan").vulkan_target
    if options["vulkan_target"] is None:
        del options["vulkan_target"]
    return CompileOptions(**options)


threads_option = click.option(
    "--threads",
    type=int,
    metavar="N",
    help="Threads of the CPU that run it at most: one runs what is too small to gain by others.  "
    "[default: one for each core]",
)
"""How many threads there are, as of a `Device`."""

run_options = stacked(
    [
        click.option(
            "--function",
            metavar="NAME",
            help="The function to call.  [default: main, or the only one]",
        ),
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="VALUE",
            help="An argument: @x.npy, or 2x2xf32=1,2,3,4; once for each argument, in order, "
            "or after its name: x=@x.npy.",
        ),
        click.option(
            "--output",
            "outputs",
            multiple=True,
            metavar="@FILE",
            help="Write a result to @y.npy; once for each result, - prints it.",
        ),
        click.option(
            "--expect",
            "expected",
            multiple=True,
            metavar="VALUE",
            help="Compare a result with @y.npy or a literal; fail if it differs.",
        ),
        click.option(
            "--atol",
            type=float,
            default=0.0,
            show_default=True,
            help="Absolute tolerance of --expect for floats (0: the bits must be equal).",
        ),
        click.option(
            "--rtol",
            type=float,
            default=0.0,
            show_default=True,
            help="Relative tolerance of --expect for floats.",
        ),
        click.option(
            "--quantized-io",
            is_flag=True,
            help="Give and take reals for quantized arguments and results.",
        ),
        click.option(
            "--stream",
            "as_stream",
            is_flag=True,
            help="Call the function for each slice of the inputs along axis 0, in order, and stack "
            "the results; variables of the program keep their values between the calls. Inputs "
            "without a further axis are given to each call.",
        ),
        click.option(
            "--parameters",
            multiple=True,
            metavar="SCOPE=FILE",
            help="Parameters of the module, as an .irpa file.",
        ),
        threads_option,
        click.option("--json", "as_json", is_flag=True, help="Print the results as JSON."),
    ]
)
"""The options of a call, for `subquant.commands.calls`."""


def parse_parameters(items: Sequence[str], option: str = "--parameters") -> dict[str, str]:
    """Read ``scope=file.irpa`` items as files by scope; UsageError for any other."""
    parameters = {}
    for item in items:
        scope, separator, path = item.partition("=")
        if not separator:
            raise UsageError(f"expected scope=file.irpa for {option}, got '{item}'")
        parameters[scope] = path
    return parameters
