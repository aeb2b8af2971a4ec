"""Description of the machine of a measurement, without its name."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from ..core.versions import installed_versions
from ..isolation.limits import available_cores
from .host_features import host_features

_INTEGER_FEATURES = (
    *("avx2", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "amx-int8"),
    *("neon", "dotprod", "i8mm", "sve", "sve2"),
)
"""Features that decide the speed of integer multiplication, by LLVM's names."""


def describe_machine() -> dict[str, str]:
    """Return the properties that matter for times, in display order, without unknown ones."""
    from .. import __version__

    features = host_features() or frozenset()
    model = re.search(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    description = {
        "CPU": (model.group(1).strip() if model else "")
        or platform.processor()
        or platform.machine(),
        "features": ", ".join(name for name in _INTEGER_FEATURES if name in features),
        "cores": str(available_cores()),
        "caches": _caches(),
        "memory": f"{int(memory.group(1)) / 2**20:.0f} GiB" if memory else "",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "subquant": __version__,
        **{name: version or "" for name, version in installed_versions().items()},
    }
    return {name: text for name, text in description.items() if text}


def _caches() -> str:
    """Return the data caches of the first core: ``L1 48 KiB, L2 2048 KiB``."""
    description = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size:
            description.append(f"L{level} {size.removesuffix('K')} KiB")
    return ", ".join(description)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
