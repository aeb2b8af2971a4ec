"""Packages of optional extras, imported with an error that names the extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import EnvironmentProblem


def require(package: str, purpose: str, extra: str) -> ModuleType:
    """Import a package of an extra, for a purpose; EnvironmentProblem if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise EnvironmentProblem(
            f"{purpose} needs the package '{package}', which cannot be imported ({error}); run: "
            f'pip install "subquant[{extra}]"'
        ) from None
