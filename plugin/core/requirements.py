"""Packages of optional extras, imported with an error that names the extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import EnvironmentProblem

__all__ = ["require"]


def require(package: str, purpose: str, extra: str) -> ModuleType:
    """Import a package of an extra.

    Args:
        package: the name of the module and the package.
        purpose: the feature that needs it, for the message.
        extra: the name of the extra.

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
