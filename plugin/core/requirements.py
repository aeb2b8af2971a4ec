"""Packages of extras that some work needs beside those of subquant, and what to do without one."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import EnvironmentProblem

__all__ = ["require"]


def require(package: str, purpose: str, extra: str) -> ModuleType:
    """Import a package of an extra.

    Args:
        package: the name of the module, which is that of the package.
        purpose: what needs it, for the message.
        extra: where it is listed.

    Raises:
        EnvironmentProblem: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise EnvironmentProblem(
            f"{purpose} needs the package '{package}', which cannot be imported ({error}); run: "
            f'pip install "subquant[{extra}]"'
        ) from None
