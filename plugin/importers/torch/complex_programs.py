"""Programs with complex tensors, traced again with pairs of real ones.

Before::

    %s = aten.stft(%x, 400, 160, ..., return_complex=True)   complex64 [201, 51]
    %y = aten.abs(%s)

After::

    %re, %im = subquant.rfft(%frames)
    %y = aten.hypot(%re, %im)

Complex parameters and constants become real ones, with the parts along a last axis of 2. Arguments
and results stay real.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ...errors import UnsupportedError
from .complex_tensors import CREATED, FUNCTIONS, LINEAR, ComplexPair, NoTranslation, parts_of
from .fourier_operators import TRANSFORMS
from .source_lines import nodes_of, place_of_node

_REAL_TYPES = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def with_real_tensors(program: ExportedProgram) -> ExportedProgram:
    """Return a program without complex tensors; the same one if it has none.

    Raises:
        UnsupportedError: an argument or a result is complex, or an operator has no translation.
    """
    if not any(
        _is_complex(node) or _name_of(node.target) in TRANSFORMS for node in nodes_of(program)
    ):
        return program
    program = program.run_decompositions({})
    module = program.graph_module
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    for node in placeholders:
        if _is_complex(node) and kinds[node.name] == InputKind.USER_INPUT:
            raise UnsupportedError(
                f"the argument '{node.name}' is complex; pass its real and imaginary parts, and "
                "join them by torch.complex",
                place_of_node(node),
            )
    for node in module.graph.output_node().all_input_nodes:
        if _is_complex(node):
            raise UnsupportedError(
                f"the result '{node.name}' is complex; return it by torch.view_as_real",
                place_of_node(node),
            )
    fake_mode = detect_fake_mode([node.meta.get("val") for node in placeholders])
    with fake_mode or torch.no_grad(), torch.fx.traceback.preserve_node_meta():
        inputs = [_real_view(node.meta.get("val")) for node in placeholders]
        traced = make_fx(
            lambda *values: _Interpreter(module).run(*values), _allow_non_fake_inputs=True
        )(*inputs)
    return _replaced(program, traced, placeholders)


def _name_of(target: Any) -> str:
    """The name of an operator of ATen; empty for others, and for other targets of nodes."""
    packet = getattr(target, "overloadpacket", None)
    return "" if packet is None else packet._qualified_op_name.removeprefix("aten::")


def _is_complex(node: torch.fx.Node) -> bool:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(each, torch.Tensor) and each.is_complex() for each in leaves)


def _real_view(value: Any) -> Any:
    """A complex tensor with its parts along a last axis; other values unchanged."""
    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return value
    pairs = torch.view_as_real(value.detach().resolve_conj()).contiguous()
    if not isinstance(value, torch.nn.Parameter):
        return pairs
    return torch.nn.Parameter(pairs, requires_grad=value.requires_grad)


def _replaced(
    program: ExportedProgram, traced: torch.fx.GraphModule, placeholders: list[torch.fx.Node]
) -> ExportedProgram:
    """Return the program with another graph, whose inputs have the same names."""
    new_inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node in traced.graph.nodes:
        node._rename(f"traced_{node.name}")  # a name is free again
    for node, old in zip(new_inputs, placeholders, strict=True):
        node._rename(old.name)
        node.target = old.name
        node.meta.setdefault("stack_trace", old.meta.get("stack_trace"))
    signature = copy.deepcopy(program.graph_signature)
    outputs = traced.graph.output_node().args[0]
    for spec, node in zip(signature.output_specs, outputs, strict=True):
        if isinstance(node, torch.fx.Node):
            spec.arg = dataclasses.replace(spec.arg, name=node.name)
    traced.recompile()
    return ExportedProgram(
        root=traced,
        graph=traced.graph,
        graph_signature=signature,
        state_dict={name: _real_view(each) for name, each in program.state_dict.items()},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: _real_view(each) for name, each in program.constants.items()},
    )


class _Interpreter(torch.fx.Interpreter):  # type: ignore[misc]
    """Run a graph with pairs in place of complex tensors."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Compute a node; an error names its operator and line."""
        try:
            result = super().run_node(n)
        except (NoTranslation, TypeError) as error:
            if not _is_complex(n) and not any(map(_is_complex, n.all_input_nodes)):
                raise
            name = str(n.target).removesuffix(".default")
            raise UnsupportedError(
                f"{name} of complex numbers is not compiled; write it with real and imaginary "
                "parts",
                place_of_node(n),
            ) from error
        if n.op == "placeholder" and _is_complex(n):
            return ComplexPair(result[..., 0], result[..., 1])
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator, of pairs by its parts."""
        leaves = pytree.tree_leaves((args, kwargs))
        has_pair = any(isinstance(each, (ComplexPair, complex)) for each in leaves)
        dtype = kwargs.get("dtype")
        name = _name_of(target)
        if name == "_assert_tensor_metadata" and has_pair:
            return None  # the types were checked when the program was exported
        if name == "_neg_view":
            return _by_part(torch.neg, args, {}, (0,)) if has_pair else torch.neg(*args)
        if name in TRANSFORMS:
            return TRANSFORMS[name](*args, **kwargs)
        if name in ("complex", "polar", "view_as_complex") or (has_pair and name in FUNCTIONS):
            return FUNCTIONS[name](*args, **kwargs)
        if name in CREATED and (has_pair or dtype in _REAL_TYPES):
            return _created(target, args, kwargs)
        if name in ("_to_copy", "to") and (has_pair or dtype in _REAL_TYPES):
            return _converted(args[0], dtype)
        if has_pair and name in LINEAR:
            return _by_part(target, args, kwargs, LINEAR[name])
        if has_pair and isinstance(target, torch._ops.OperatorBase):
            raise NoTranslation
        return super().call_function(target, args, kwargs)


def _created(target: Any, args: Any, kwargs: Any) -> ComplexPair:
    dtype = _REAL_TYPES.get(kwargs.get("dtype"))
    options = dict(kwargs, dtype=dtype) if dtype is not None else dict(kwargs)
    is_like = isinstance(args[0], ComplexPair)
    real_args = [args[0].real, *args[1:]] if is_like else list(args)
    value = real_args[1] if "full" in str(target) else None
    if value is not None:
        real_args[1] = parts_of(value)[0]
    real = target(*real_args, **options)
    imag = torch.full_like(real, 0 if value is None else parts_of(value)[1])
    return ComplexPair(real, imag)


def _converted(value: Any, dtype: torch.dtype | None) -> Any:
    """Convert to a complex type, or from one to a real type, which drops the imaginary part."""
    if dtype is not None and dtype not in _REAL_TYPES:
        return parts_of(value)[0].to(dtype)
    target = _REAL_TYPES.get(dtype)
    return ComplexPair(*(each if target is None else each.to(target) for each in parts_of(value)))


def _by_part(target: Any, args: Any, kwargs: Any, positions: tuple[int, ...]) -> Any:
    """Apply an operator to the real and to the imaginary parts."""
    results = []
    for part in (0, 1):
        chosen = [
            _part(each, part) if position in positions else each
            for position, each in enumerate(args)
        ]
        results.append(target(*chosen, **kwargs))
    if isinstance(results[0], (list, tuple)):
        return [ComplexPair(*pair) for pair in zip(*results, strict=True)]
    return ComplexPair(*results)


def _part(value: Any, part: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_part(each, part) for each in value]
    return parts_of(value)[part]
