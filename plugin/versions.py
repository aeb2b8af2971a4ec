"""The versions that subquant is made for, and those that are here; needs no MLIR."""

from __future__ import annotations

import os
import sys

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
    return {name: _version_of(name) for name in PINNED_VERSIONS}


def _version_of(name: str) -> str | None:
    """The version that the name of a ``.dist-info`` folder says, or what else Python knows.

    Every process asks, and to import `importlib.metadata` takes longer than all else here.
    """
    start, end = f"{name.replace('-', '_')}-", ".dist-info"
    for folder in sys.path:
        try:
            entries = os.listdir(folder)
        except (OSError, ValueError):  # an archive, or no path
            continue
        found = [entry for entry in entries if entry.startswith(start) and entry.endswith(end)]
        if len(found) == 1:
            return found[0][len(start) : -len(end)]
        if found:
            break
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


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
