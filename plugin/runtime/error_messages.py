"""Messages for errors of IREE's runtime: the reason, and advice."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping, Sequence

from ..errors import ExecutionError, printable, quoted
from ..signature import ValueType

_DEVICE_LOST = "VK_ERROR_DEVICE_LOST"
_NO_PARAMETER = re.compile(r"no parameter found in index with key '(.*)'; while")
_NO_SCOPE = re.compile(r"no provider registered that handles scopes like '(.*)'; while")
_SHORT_PARAMETER = re.compile(
    r"parameter `(.*)` range out of bounds \(offset=0, length=(\d+), size=(\d+)\)"
)
_DIMENSION_MISMATCH = re.compile(
    r"input(\d+) shape dimension (\d+) mismatch; expected (\d+) but have (\d+)"
)


def load_message(
    name: str,
    device: str,
    target: str,
    parameters: Mapping[str, str | os.PathLike[str]],
    error: Exception,
) -> str:
    """Return the message for an executable that cannot be loaded on a device of a target."""
    reason = str(error).splitlines()[0]
    if "io_parameters" in reason or "io/parameter" in reason:
        return _parameter_message(name, parameters, reason)
    if _DEVICE_LOST in reason:
        return f"{name} cannot be loaded: {_lost(device)}"
    return (
        f"{name} cannot be loaded on the device '{device}': {reason}; compile it for this device "
        f"(--target {target})"
    )


def _parameter_message(
    name: str, parameters: Mapping[str, str | os.PathLike[str]], reason: str
) -> str:
    files = " and ".join(f"'{os.fspath(path)}'" for path in parameters.values())
    patterns = (_NO_PARAMETER, _NO_SCOPE, _SHORT_PARAMETER)
    missing, scope, short = (pattern.search(reason) for pattern in patterns)
    if missing:
        is_packed = "@" in missing.group(1)
        file = "archive that was written when it was compiled" if is_packed else "file that has it"
        return (
            f"{name} reads the parameter {quoted(missing.group(1))}, which is not in {files}; "
            f"give the {file}"
        )
    if short:
        return (
            f"{name} reads {short.group(2)} bytes of the parameter {quoted(short.group(1))}, "
            f"which has {short.group(3)} in {files}"
        )
    example = f"as {printable(scope.group(1))}" if scope else "by their scope, such as model"
    return f"{name} needs parameters; give them {example}=file.irpa (--parameters)"


def _lost(device: str) -> str:
    return (
        f"the device '{device}' was lost, as its driver says ({_DEVICE_LOST}); nothing runs on it "
        "any more: open it again in another process"
    )


def call_error(name: str, inputs: Sequence[ValueType], error: Exception) -> ExecutionError:
    """Return the error of a call, and release the buffers and fences in IREE's traceback."""
    traceback.clear_frames(error.__traceback__)
    return ExecutionError(call_message(name, error, inputs))


def call_message(name: str, error: Exception, inputs: Sequence[ValueType]) -> str:
    """Return the reason in IREE's message, without the status and the trace."""
    nonempty_lines = [line for line in str(error).splitlines() if line.strip()]
    text = nonempty_lines[0] if nonempty_lines else repr(error)
    mismatch = _DIMENSION_MISMATCH.search(text)
    if mismatch:  # IREE moves the check of a dimension to the argument
        position, axis, expected, got = (int(group) for group in mismatch.groups())
        owners = [number for number, value in enumerate(inputs) for _ in value.abi]
        return (
            f"function '{name}' stopped: dimension {axis} of argument {owners[position]} must be "
            f"{expected} at run time, for the scales it meets, got {got}"
        )
    if "empty buffer range" in text:
        return (
            f"function '{name}' failed: a dynamic tensor has no elements, which IREE's Vulkan "
            "driver does not run; leave out the call, or run it on llvm-cpu"
        )
    if _DEVICE_LOST in text:
        return f"function '{name}' failed: {_lost('vulkan')}"
    clauses = [clause.strip() for clause in text.split(";") if clause.strip()]
    for index, clause in enumerate(clauses[:-1]):
        if "FAILED_PRECONDITION" in clause:
            return f"function '{name}' stopped: {clauses[index + 1]}"
    return f"function '{name}' failed: {text}"
