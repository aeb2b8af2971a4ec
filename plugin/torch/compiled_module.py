"""Compiled PyTorch modules: calls with tensors, in the structure of the Python function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from ..errors import UnsupportedError, UsageError
from .exported_module import ExportedModule, Traceable, export_module, leaves_of
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
        if function not in self.exported.programs:
            names = ", ".join(self.exported.programs)
            raise UsageError(f"no function is named '{function}'; expected one of: {names}")
        program = self.exported.programs[function]
        inputs = _inputs(program, args, kwargs)
        results = getattr(self.executable, function)(*inputs)
        arrays = results if isinstance(results, (tuple, list)) else [results]
        return _outputs(program, [tensor_of_array(each) for each in arrays])


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


def _inputs(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the inputs of the function: leaves of the arguments as arrays, without constants."""
    spec = program.call_spec.in_spec
    if spec is not None and set(kwargs) == set(names := spec.child(1).context):
        kwargs = {name: kwargs[name] for name in names}  # keywords have no order
    leaves = leaves_of(args, kwargs)
    structure = pytree.tree_structure((args, dict(kwargs)))
    if spec is not None and structure != spec:
        raise UsageError(f"expected arguments of the structure {spec}, found {structure}")
    user = [s for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    inputs = []
    for each, leaf in zip(user, leaves, strict=True):
        if not isinstance(each.arg, ConstantArgument):
            inputs.append(_array_of_argument(leaf, each.arg.name))
        elif not _is_same_constant(leaf, each.arg.value):
            raise UsageError(
                f"argument '{each.arg.name}' was exported as the constant {each.arg.value!r}, "
                f"found {leaf!r}"
            )
    return inputs


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


def _outputs(program: ExportedProgram, tensors: list[torch.Tensor]) -> Any:
    """Return the results in the structure that the Python function returns."""
    specs = [s for s in program.graph_signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    remaining = iter(tensors)
    leaves = [
        each.arg.value if isinstance(each.arg, ConstantArgument) else _leaf(each, next(remaining))
        for each in specs
    ]
    return pytree.tree_unflatten(leaves, program.call_spec.out_spec)
