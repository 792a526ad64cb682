"""Is there a Java that Spark runs on? Asked before Spark is, whose own answer is a stack trace."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from waltap.config.environment import variable
from waltap_spark.errors import JavaMissing

__all__ = ["require_java"]

OLDEST: Final = 17
NEEDED_MODULE: Final = "jdk.incubator.vector"
"""Spark 4 starts the JVM with it; a stripped-down runtime does not have it."""


def require_java() -> Path:
    """Return the ``java`` program that Spark will start. Raises: JavaMissing."""
    home = variable("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise JavaMissing(f"Spark needs Java {OLDEST} or later, and {where}")
    said = _run(found, "-version")
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < OLDEST:
        is_version = version[1] if version else "unknown"
        raise JavaMissing(f"Spark needs Java {OLDEST} or later; {found} is version {is_version}")
    if NEEDED_MODULE not in _run(found, "--list-modules"):
        raise JavaMissing(f"{found} is a reduced Java without the module {NEEDED_MODULE}")
    return Path(found)


def _run(java: str, option: str) -> str:
    try:
        done = subprocess.run(
            [java, option], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise JavaMissing(f"{java} cannot be run: {cause}") from cause
    return done.stdout + done.stderr
