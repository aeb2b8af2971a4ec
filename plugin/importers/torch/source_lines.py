"""Lines of the user's Python code, for the locations of operations and errors."""

from __future__ import annotations

import os
import re

import torch
from torch.export import ExportedProgram

from ...errors import Place

_FRAME = re.compile(r'^  File "([^"]+)", line (\d+),', re.MULTILINE)
_NOT_OF_USERS = os.path.dirname(torch.__file__) + os.sep, "<"
"""Beginnings of names of files: PyTorch's own, and of code that is in no file."""


def drop_frames_of_pytorch(program: ExportedProgram) -> None:
    """End each node's stack trace at the user's line: the layer that it calls is PyTorch's code."""
    for node in program.graph.nodes:
        trace = node.meta.get("stack_trace")
        if trace:
            node.meta["stack_trace"] = _user_trace(trace)


def place_of_node(node: torch.fx.Node) -> Place | None:
    """Return the innermost line of a node's stack trace."""
    frames = _FRAME.findall("  " + (node.meta.get("stack_trace") or ""))
    return Place(frames[-1][0], int(frames[-1][1])) if frames else None


def _user_trace(trace: str) -> str:
    """Cut a stack trace behind its last frame outside of PyTorch; all of PyTorch's stay whole."""
    text = trace if trace.startswith("  File") else "  " + trace
    frames = list(_FRAME.finditer(text))
    users = [n for n, frame in enumerate(frames) if not frame.group(1).startswith(_NOT_OF_USERS)]
    if not users or users[-1] + 1 == len(frames):
        return trace
    return text[: frames[users[-1] + 1].start()].rstrip("\n")
