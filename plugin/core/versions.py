"""Versions of packages: those that subquant is made for, and the installed ones; needs no MLIR."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

from ..errors import EnvironmentProblem

PINNED_VERSIONS = {
    "torch-mlir": "20261001",
    "iree-base-compiler": "3.13.0",
    "iree-base-runtime": "3.13.0",
}
"""Distribution name to the version that subquant is tested with (also in pyproject.toml)."""


def installed_versions() -> dict[str, str | None]:
    """Return the installed version of each pinned distribution, None where it is missing."""
    return versions_of(PINNED_VERSIONS)


def versions_of(names: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each distribution, None where it is missing."""
    folders: list[list[str]] = []
    for folder in sys.path:
        with contextlib.suppress(OSError, ValueError):  # an archive, or no path
            entries = [entry for entry in os.listdir(folder) if entry.endswith(_END)]
            folders.append(entries)
    return {name: _version_of(name, folders) for name in names}


_END = ".dist-info"


def _version_of(name: str, folders: Iterable[list[str]]) -> str | None:
    """Return the version in the name of the ``.dist-info`` folder, or from `importlib.metadata`.

    Every process needs versions, and the import of `importlib.metadata` takes longer than the rest.
    """
    start = f"{name.replace('-', '_')}-"
    for entries in folders:
        matching = [entry for entry in entries if entry.startswith(start)]
        if len(matching) == 1:
            return matching[0][len(start) : -len(_END)]
        if matching:
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
    for name, matching in installed_versions().items():
        expected = PINNED_VERSIONS[name]
        if matching is None:
            raise EnvironmentProblem(
                f"the package '{name}' is not installed; run: pip install {name}=={expected}"
            )
        if matching.split("+")[0] != expected:
            raise EnvironmentProblem(
                f"expected {name} {expected}, got {matching}; run: pip install {name}=={expected}, "
                "or set SUBQUANT_ANY_VERSION=1 to try the one you have"
            )
