"""Check that Spark's Java and pyspark are usable.

The check runs before Spark starts, because Spark's own answer is a stack trace.
"""

import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from waltap.base.environment import variable
from waltap_spark.errors import JavaMissing, PysparkUnfit

OLDEST: Final = 17
# The first generation of pyspark that is supported, and the first that is not.
SPARK: Final = ((4, 1), (4, 4))

# A module that Spark 4 starts the JVM with; a reduced runtime does not have it.
NEEDED_MODULE: Final = "jdk.incubator.vector"


# Runs of a Java that a signal killed, before it counts as broken.
TRIES: Final = 3


def require_java() -> Path:
    """Return the ``java`` program that Spark will start.

    Raises: JavaMissing.
    """
    home = variable("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise JavaMissing(f"Spark needs Java {OLDEST} or later, and {where}")
    _require_fit(found)
    return Path(found)


@cache
def _require_fit(found: str) -> None:
    """Require a Java's version and modules.

    The answer is cached: each run of Java takes a while. Raises: JavaMissing.
    """
    output = _run(found, "-version")
    matched = re.search(r'version "(?:1\.)?(\d+)', output)
    if matched is None or int(matched[1]) < OLDEST:
        is_version = matched[1] if matched else "unknown"
        raise JavaMissing(f"Spark needs Java {OLDEST} or later; {found} is version {is_version}")
    if NEEDED_MODULE not in _run(found, "--list-modules"):
        raise JavaMissing(f"{found} is a reduced Java without the module {NEEDED_MODULE}")


def require_pyspark() -> str:
    """Return the version of pyspark, without importing it.

    Raises: PysparkUnfit.
    """
    try:
        found = version("pyspark")
    except PackageNotFoundError as cause:
        raise PysparkUnfit("pyspark is not installed") from cause
    matched = re.match(r"(\d+)\.(\d+)", found)
    first, beyond = SPARK
    if matched is None or not first <= (int(matched[1]), int(matched[2])) < beyond:
        raise PysparkUnfit(f"pyspark is version {found}")
    return found


def _run(java: str, option: str) -> str:
    """Return the output of ``java`` with ``option``.

    A Java that a signal killed has said nothing about itself, and runs again. Raises:
    JavaMissing.
    """
    for _attempt in range(TRIES):
        try:
            done = subprocess.run(
                [java, option], capture_output=True, text=True, check=False, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired) as cause:
            raise JavaMissing(f"{java} cannot be run: {cause}") from cause
        if done.returncode >= 0:
            return done.stdout + done.stderr
    raise JavaMissing(f"{java} cannot be run: {option} was killed by signal {-done.returncode}")
