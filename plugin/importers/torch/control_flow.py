"""Control flow of exported programs: ``torch.cond`` and ``while_loop`` as StableHLO.

Branches, conditions and bodies are private functions, which regions call::

    %0 = torch_c.to_builtin_tensor %condition : !torch.vtensor<[],i1> -> tensor<i1>
    %1 = "stablehlo.if"(%0) ({
      %2 = func.call @main.true_graph_0(%x) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
      %3 = torch_c.to_builtin_tensor %2 : !torch.vtensor<[4],f32> -> tensor<4xf32>
      stablehlo.return %3 : tensor<4xf32>
    }, {...}) : (tensor<i1>) -> tensor<4xf32>
    %4 = torch_c.from_builtin_tensor %1 : tensor<4xf32> -> !torch.vtensor<[4],f32>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch_mlir.extras.fx_importer import FxImporter, GraphNodeImporter

from ...core._mlir import Value, ir
from ...emit.operation import create, tensor_type, value
from ...emit.torch_tensors import as_builtin, as_torch, builtin_tensor_type

SUPPORTED = ("cond", "while_loop")
"""The names of control flow that is imported."""


def has_only_tensors(node: torch.fx.Node) -> bool:
    """Return True for control flow whose condition, operands and results are tensors."""
    operands = [each for each in pytree.tree_leaves(node.args) if not _is_graph(each)]
    if not all(isinstance(each, torch.fx.Node) for each in operands):
        return False
    values = pytree.tree_leaves([each.meta.get("val") for each in (*operands, node)])
    return all(isinstance(each, torch.Tensor) for each in values)


def _is_graph(argument: object) -> bool:
    return isinstance(argument, torch.fx.Node) and argument.op == "get_attr"


def name_graphs(importer: FxImporter, module: torch.fx.GraphModule, prefix: str) -> None:
    """Give the functions of a program's control flow names that no other program's have."""
    for path, child in module.named_modules():
        if path and isinstance(child, torch.fx.GraphModule):
            importer._graph_module_to_func_name[id(child)] = f"{prefix}.{path}"


class ControlFlowImporter(GraphNodeImporter):  # type: ignore[misc]
    """Importer of the nodes of a graph, with ``cond`` and ``while_loop``."""

    def _import_hop_cond(self, loc: ir.Location, node: torch.fx.Node, hop: object) -> None:
        condition, then_graph, else_graph, operands = node.args
        inputs = [self._import_argument(loc, each) for each in operands]

        def call(graph: Any) -> Callable[[Sequence[Value]], list[Value]]:
            return lambda _: self._call(node, graph, inputs)

        with loc, ir.InsertionPoint(self._b):
            predicate = _as_scalar(as_builtin(self._import_argument(loc, condition)))
            types = [builtin_tensor_type(each) for each in self._result_types(node)]
            branch = create("stablehlo.if", [predicate], types, regions=2)
            for region, graph in zip(branch.regions, (then_graph, else_graph), strict=True):
                _fill(region, [], call(graph))
            self._bind(node, branch)

    def _import_hop_while_loop(self, loc: ir.Location, node: torch.fx.Node, hop: object) -> None:
        condition, body, carried, further = node.args
        inputs = [self._import_argument(loc, each) for each in further]
        initial = [self._import_argument(loc, each) for each in carried]

        def call(graph: Any) -> Callable[[Sequence[Value]], list[Value]]:
            def write(arguments: Sequence[Value]) -> list[Value]:
                pairs = zip(arguments, initial, strict=True)
                values = [as_torch(each, other.type) for each, other in pairs]
                return self._call(node, graph, [*values, *inputs])

            return write

        with loc, ir.InsertionPoint(self._b):
            values = [as_builtin(each) for each in initial]
            types = [each.type for each in values]
            loop = create("stablehlo.while", values, types, regions=2)
            conditions, bodies = loop.regions
            _fill(conditions, types, lambda each: [_as_scalar(*call(condition)(each))])
            _fill(bodies, types, call(body))
            self._bind(node, loop)

    def _result_types(self, node: torch.fx.Node) -> list[ir.Type]:
        return [self._cc.value_info_to_type(each) for each in node.meta["val"]]

    def _call(
        self, node: torch.fx.Node, graph: torch.fx.Node, arguments: Sequence[Value]
    ) -> list[Value]:
        """Write a call of a graph's function; return its results as builtin tensors."""
        module = getattr(node.graph.owning_module, graph.target)
        name = self.fx_importer._graph_module_to_func_name[id(module)]
        (output,) = module.graph.find_nodes(op="output")
        results = output.args[0]
        results = results if isinstance(results, (tuple, list)) else [results]
        types = [self._cc.node_val_to_type(each) for each in results]
        attributes = {"callee": ir.FlatSymbolRefAttr.get(name)}
        called = create("func.call", list(arguments), types, attributes)
        return [as_builtin(each) for each in called.results]

    def _bind(self, node: torch.fx.Node, operation: ir.Operation) -> None:
        self._multi_result_nodes.add(node)
        for index, type_ in enumerate(self._result_types(node)):
            self.bind_node_value(node, as_torch(operation.results[index], type_), index)


def _as_scalar(condition: Value) -> Value:
    """Return the only element of a condition, which may have axes."""
    type_ = tensor_type([], condition.type.element_type)
    return condition if condition.type == type_ else value("stablehlo.reshape", [condition], type_)


def _fill(
    region: ir.Region, types: Sequence[ir.Type], write: Callable[[Sequence[Value]], list[Value]]
) -> None:
    """Write the block of a region, which returns the values of `write`."""
    block = region.blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        create("stablehlo.return", write(list(block.arguments)), [])
