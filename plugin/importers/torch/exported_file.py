"""Reader of ``.pt2`` files, which ``torch.export.save`` writes.

PyTorch reads them, and unpickles objects on the way: a file can run any code, like a program.
"""

from __future__ import annotations

import io
import warnings

from ...core._mlir import ir
from ...core.requirements import require
from ...errors import InputError, Place
from ...isolation.limits import set_time_limit


def write_module(data: bytes, context: ir.Context, file: str = "-") -> ir.Module:
    """Write the program of a ``.pt2`` file as a module with a function ``main``.

    Raises:
        EnvironmentProblem: PyTorch is not installed.
        InputError: PyTorch cannot read the file: it is damaged, or of another version.
        UnsupportedError: as `subquant.importers.torch.exported_program.import_programs`.
    """
    require("torch", "a program of torch.export", "torch")
    # PyTorch imports 5,000 files of Python, for 6 s of CPU time, or 25 if they are not compiled to
    # bytecode yet: the limit is one of MLIR's parser, which does not read the file.
    set_time_limit(None)
    import torch

    from .exported_program import import_programs

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(io.BytesIO(data))
    except Exception as error:  # of any class: the file decides what PyTorch runs
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"PyTorch {torch.__version__} cannot read the exported program: {reason}; a file of "
            "torch.export.save is read by the version of PyTorch that wrote it, and by most later "
            "ones",
            Place(file),
        ) from None
    with context, ir.Location.unknown():
        module = ir.Module.create()
        import_programs({"main": program}, module)
        return module
