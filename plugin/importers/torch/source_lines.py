"""Lines of the user's Python code, for the locations of operations and errors."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch_mlir.extras.fx_importer import ContextCache

from ...core._mlir import ir
from ...errors import Place

_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+),', re.MULTILINE)
_OF_SUBQUANT = str(Path(__file__).parents[2]) + os.sep
_NOT_OF_USERS = os.path.dirname(torch.__file__) + os.sep, _OF_SUBQUANT, "<"
"""Beginnings of names of files: PyTorch's own, subquant's, and of code that is in no file."""


def graph_modules(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """Return a graph module, and those of its control flow, at any depth."""
    yield module
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            yield from graph_modules(child)


def nodes_of(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Return the nodes of a program, and those of its control flow."""
    for module in graph_modules(program.graph_module):
        yield from module.graph.nodes


def drop_frames_of_pytorch(program: ExportedProgram) -> None:
    """End each node's stack trace at the user's line: the layer that it calls is PyTorch's code."""
    for node in nodes_of(program):
        trace = node.meta.get("stack_trace")
        if trace:
            node.meta["stack_trace"] = _user_trace(trace)


def restore_control_flow_traces(program: ExportedProgram, source: ExportedProgram) -> None:
    """Give control flow the stack traces that it had ahead of its decomposition."""
    traces: dict[object, list[str | None]] = {}
    for node in source.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            traces.setdefault(node.target, []).append(node.meta.get("stack_trace"))
    for node in program.graph.nodes:
        if traces.get(node.target) and not node.meta.get("stack_trace"):
            node.meta["stack_trace"] = traces[node.target].pop(0)


class NamedLocations(ContextCache):  # type: ignore[misc]
    """Context of an importer whose operations have the name of their submodule and their line.

    The name is that of ``named_modules``: ``encoder.0.linear``.
    """

    __slots__ = ()

    def get_node_location(self, node: torch.fx.Node) -> ir.Location | None:
        """Return the location of the operations of a node."""
        location = super().get_node_location(node)
        modules = list((node.meta.get("nn_module_stack") or {}).values())
        name = str(modules[-1][0]) if modules else ""
        return ir.Location.name(name, location) if name and location is not None else location


def place_of_node(node: torch.fx.Node) -> Place | None:
    """Return the innermost line of a node's stack trace."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return Place(frames[-1][0], int(frames[-1][1])) if frames else None


def place_of_error(error: BaseException) -> Place | None:
    """Return the innermost line of the user's code that an error of PyTorch has.

    It is a frame of a traceback, of the error or of its causes, or of the stack trace of a node in
    the error's text.
    """
    location, chained = None, error
    seen: list[BaseException | None] = [None]
    while chained not in seen:
        assert chained is not None
        seen.append(chained)
        frames = [
            (frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(chained.__traceback__)
        ]
        text = str(chained.args[0]) if chained.args else ""
        frames += [(file, int(line)) for file, line in _FRAME.findall(text)]
        of_users = [each for each in frames if not each[0].startswith(_NOT_OF_USERS)]
        location = Place(*of_users[-1]) if of_users else location
        chained = chained.__cause__ or chained.__context__  # type: ignore[assignment]
    return location


def _user_trace(trace: str) -> str:
    """Cut a stack trace behind its last frame outside of PyTorch; all of PyTorch's stay whole."""
    frames = list(_FRAME.finditer(trace))
    users = [n for n, frame in enumerate(frames) if not frame.group(1).startswith(_NOT_OF_USERS)]
    if not users or users[-1] + 1 == len(frames):
        return trace
    return trace[: frames[users[-1] + 1].start()].rstrip("\n")
