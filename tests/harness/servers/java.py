"""Java for tests: Spark and the Debezium peer need version 17 or later, the peer a compiler too."""

import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17


def java_version() -> int | None:
    """Return the major version of ``java`` on PATH, None when there is none."""
    if (java := shutil.which("java")) is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def java_home() -> Path:
    java = shutil.which("java")
    assert java is not None
    return Path(java).resolve().parent.parent
