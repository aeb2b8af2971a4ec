"""The versions that subquant is made for, and those that are here; needs no MLIR."""

from __future__ import annotations

import importlib.metadata
import os

from .errors import EnvironmentProblem

__all__ = ["PINNED_VERSIONS", "check_versions", "installed_versions"]

PINNED_VERSIONS = {
    "torch-mlir": "20261001",
    "iree-base-compiler": "3.13.0",
    "iree-base-runtime": "3.13.0",
}
"""Distribution name to the version that subquant is tested with (also in pyproject.toml)."""


def installed_versions() -> dict[str, str | None]:
    """Return the installed version of each pinned distribution, None where it is missing."""
    found: dict[str, str | None] = {}
    for name in PINNED_VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def check_versions() -> None:
    """Raise EnvironmentProblem unless the pinned versions are installed.

    The environment variable ``SUBQUANT_ANY_VERSION=1`` accepts other versions.
    """
    if os.environ.get("SUBQUANT_ANY_VERSION") == "1":
        return
    for name, found in installed_versions().items():
        expected = PINNED_VERSIONS[name]
        if found is None:
            raise EnvironmentProblem(
                f"the package '{name}' is not installed; run: pip install {name}=={expected}"
            )
        if found.split("+")[0] != expected:
            raise EnvironmentProblem(
                f"expected {name} {expected}, got {found}; run: pip install {name}=={expected}, "
                "or set SUBQUANT_ANY_VERSION=1 to try the one you have"
            )
