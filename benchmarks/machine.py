"""What a result is stamped with: the machine and the versions."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

MEASURED_PACKAGES = ("waltap", "psycopg", "pyarrow", "orjson", "msgspec")


def stamp(server_programs: Path) -> dict[str, object]:
    """Return cores, processor, memory and versions; the server's from the folder of its programs."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgres": _said([server_programs / "postgres", "--version"]),
        "java": _said(["java", "-version"]),
        "packages": {name: metadata.version(name) for name in MEASURED_PACKAGES},
        "commit": _said(["git", "rev-parse", "--short", "HEAD"]),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor()


def _said(command: list[str | Path]) -> str | None:
    """Return the first line that ``command`` prints, None when it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return (done.stdout or done.stderr).split("\n", 1)[0]
