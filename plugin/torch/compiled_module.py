"""Compiled PyTorch modules: calls with tensors, in the structure of the Python function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from ..errors import UnsupportedError, UsageError, counted
from .exported_module import ExportedModule, Traceable, export_module
from .torch_arrays import array_of_tensor, tensor_of_array

if TYPE_CHECKING:
    from ..runtime import Executable


class CompiledModule:
    """A compiled module, which is called like the PyTorch module.

    Args:
        exported: the exported module.
        executable: its executable.

    Attributes:
        exported: the exported module.
        executable: the executable, whose functions take arrays: ``compiled.executable.main(x)``.
    """

    def __init__(self, exported: ExportedModule, executable: Executable) -> None:
        self.exported = exported
        self.executable = executable
        self._structures = {
            name: _CallStructure(program) for name, program in exported.programs.items()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function ``main`` with tensors; return tensors as the module does."""
        return self.call("main", *args, **kwargs)

    def call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function by its name.

        Args:
            function: a key of the mapping that was exported, or ``main``.
            *args: arguments as those of the module: tensors, and containers of tensors.
            **kwargs: keyword arguments.

        Raises:
            UsageError: no function has this name, or the structure of the arguments differs from
                that of the example arguments.
        """
        if function not in self._structures:
            names = ", ".join(self._structures)
            raise UsageError(f"no function is named '{function}'; expected one of: {names}")
        structure = self._structures[function]
        inputs = structure.inputs(args, kwargs)
        results = getattr(self.executable, function)(*inputs)
        arrays = results if isinstance(results, (tuple, list)) else [results]
        return structure.outputs([tensor_of_array(each) for each in arrays])


def compile_module(
    module: Traceable | ExportedModule | Mapping[str, Traceable],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> CompiledModule:
    """Export a module, compile it and load it.

    Args:
        module: as for `export`, or what `export` returned.
        args: example arguments of the module.
        kwargs: example keyword arguments.
        dynamic_shapes: the dimensions that may vary.
        **options: options of `subquant.compile`: ``target``, ``activations``, ``explain``,
            ``cache`` and others.

    Raises:
        SubquantError: as `export` and `subquant.compile`.
    """
    from .. import compile

    exported = module
    if not isinstance(exported, ExportedModule):
        exported = export_module(exported, args, kwargs, dynamic_shapes=dynamic_shapes)
    return CompiledModule(exported, compile(exported.bytecode, **options))


class _CallStructure:
    """Trees of a program's arguments and results, and its inputs among their leaves.

    They are read once: PyTorch's ``call_spec`` defines a class at each access, in a quarter of a
    millisecond.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program

    @cached_property
    def _trees(self) -> tuple[pytree.TreeSpec | None, pytree.TreeSpec]:
        spec = self._program.call_spec
        return spec.in_spec, spec.out_spec

    @cached_property
    def _input_specs(self) -> list[InputSpec]:
        specs = self._program.graph_signature.input_specs
        return [each for each in specs if each.kind == InputKind.USER_INPUT]

    @cached_property
    def _output_specs(self) -> list[OutputSpec]:
        specs = self._program.graph_signature.output_specs
        return [each for each in specs if each.kind == OutputKind.USER_OUTPUT]

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the inputs of the function: leaves of the arguments as arrays, no constants."""
        spec = self._trees[0]
        if spec is not None and set(kwargs) == set(names := spec.child(1).context):
            kwargs = {name: kwargs[name] for name in names}  # keywords have no order
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        if spec is not None and structure != spec:
            raise UsageError(_structure_error(structure, spec))
        inputs = []
        for each, leaf in zip(self._input_specs, leaves, strict=True):
            if not isinstance(each.arg, ConstantArgument):
                inputs.append(_array_of_argument(leaf, each.arg.name))
            elif not _is_same_constant(leaf, each.arg.value):
                raise UsageError(
                    f"argument '{each.arg.name}' was exported as the constant "
                    f"{each.arg.value!r}, found {leaf!r}"
                )
        return inputs

    def outputs(self, tensors: list[torch.Tensor]) -> Any:
        """Return the results in the structure that the Python function returns."""
        remaining = iter(tensors)
        leaves = [
            each.arg.value
            if isinstance(each.arg, ConstantArgument)
            else _leaf(each, next(remaining))
            for each in self._output_specs
        ]
        return pytree.tree_unflatten(leaves, self._trees[1])


def _structure_error(actual: pytree.TreeSpec, expected: pytree.TreeSpec) -> str:
    """Return a message about arguments of another structure: their number, names or trees."""
    counts = [spec.child(0).num_children for spec in (expected, actual)]
    names = [", ".join(map(str, spec.child(1).context)) for spec in (expected, actual)]
    if counts[0] != counts[1]:
        return f"expected {counted(counts[0], 'positional argument')}, got {counts[1]}"
    if names[0] != names[1]:
        return (
            f"expected {_keywords(names[0])}, got {_keywords(names[1])}; a call has the arguments "
            "of the example"
        )
    trees = [_without_spaces(spec) for spec in (expected, actual)]
    return f"expected arguments of the structure {trees[0]}, found {trees[1]}"


def _keywords(names: str) -> str:
    return f"the keyword arguments {names}" if names else "no keyword arguments"


def _without_spaces(spec: pytree.TreeSpec) -> str:
    """Return a tree in one line."""
    return " ".join(str(spec).split())


def _array_of_argument(leaf: Any, name: str) -> Any:
    try:
        return array_of_tensor(leaf)
    except UnsupportedError as error:
        raise UnsupportedError(f"argument '{name}': {error.message}") from None


def _is_same_constant(leaf: Any, constant: Any) -> bool:
    """Return True for an equal value of the same type: 2.0 makes other results than 2."""
    return type(leaf) is type(constant) and repr(leaf) == repr(constant)  # NaN, 0.0, -0.0


def _leaf(spec: OutputSpec, tensor: torch.Tensor) -> Any:
    """Return a result as the Python function does: a size is a number."""
    return tensor if isinstance(spec.arg, TensorArgument) else tensor.item()
