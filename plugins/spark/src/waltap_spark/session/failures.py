"""Turn failures of Spark into errors with codes.

An error is of one table, and suspends that table alone, or it is of the whole output, and ends
the applier.
"""

import contextlib
import logging
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from waltap.errors import WaltapError
from waltap_sinks.changelog.errors import ChangeLogDamaged, ChangeLogExpired, ColumnNameTaken
from waltap_spark.errors import (
    ClockBehind,
    FormatError,
    FormatLimit,
    JvmEnded,
    NamesClash,
    SegmentDamaged,
    SourcesDiffer,
    SparkRefused,
    TypeChanged,
    first_words,
)

# Errors that concern one table and no other.
OF_ONE: Final = (
    TypeChanged,
    NamesClash,
    ColumnNameTaken,
    SourcesDiffer,
    SegmentDamaged,
    FormatError,
    # of the manifests that only a suspended table needs
    ChangeLogDamaged,
    ChangeLogExpired,
)

NO_MEMORY: Final = "java.lang.OutOfMemoryError"

# Iceberg takes no commit that is a minute older than the last one.
_TOO_EARLY: Final = re.compile(r"Invalid \w+ timestamp (\d+): before .* (\d+)")

# Names the place of a JVM's last words when a command started the JVM.
UNSAVED_OUTPUT: Final = "its output, which was not kept"

# Seconds that a JVM may need to exit after it broke its connection.
GOING_S: Final = 2.0


def refused(error: Exception, memory: str | None = None) -> WaltapError:
    """Return an error with a code for ``error``.

    An error without a code becomes `SparkRefused` or `JvmEnded` with Spark's first words.
    ``memory`` is the memory of the JVM; None asks the running session.
    """
    if isinstance(error, WaltapError):
        return error
    words = first_words(error).rstrip(".")
    found: WaltapError = SparkRefused(words)
    if times := _TOO_EARLY.search(words):
        behind_s = (int(times[2]) - int(times[1])) // 1000
        found = ClockBehind(f"the clock is {behind_s} s behind the table's last commit: {words}")
    elif "multiple fields for name" in words or "Cannot add column, name already" in words:
        # to Iceberg the column `a.b` and the field `b` of the column `a` have one name
        found = FormatLimit(words)
    elif NO_MEMORY in words:
        text = f"Spark had no memory left: {words}"
        found = JvmEnded(text, log="its output", memory=memory or _memory())
    found.__cause__ = error
    return found


def _memory() -> str:
    """Return the memory setting of this process's JVM."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - none is made by asking
    return (context and context.getConf().get("spark.driver.memory")) or "1g"


def require_one(errors: Sequence[WaltapError | None]) -> None:
    """Raise a failure that concerns more than one table.

    Nothing is raised while one table succeeded, or while each failure is of its table alone.
    """
    from pyspark.errors import PySparkException

    for error in errors if all(errors) else ():
        cause = error.__cause__ if isinstance(error, (SparkRefused, JvmEnded)) else error
        if error is not None and not isinstance(cause, (*OF_ONE, PySparkException)):
            raise error


@contextlib.contextmanager
def explained_failures(memory: str | None, log: str = "the lines above") -> Iterator[None]:
    """Translate failures of Spark within the block.

    ``memory`` is the memory of the JVM, ``log`` names the place of its last words. Errors that
    have a code already pass unchanged. Raises: JvmEnded, SparkRefused.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    sparks = (SparkRefused, PySparkException, Py4JError)
    root = logging.getLogger()
    # Each block has its own: the end of an inner one must not end the outer one's.
    own = partial(_is_not_py4j)
    root.addFilter(own)
    try:
        yield
    except Exception as error:
        if isinstance(error, WaltapError) and not isinstance(error, SparkRefused):
            raise
        # py4j reports a dead JVM as any of these errors, often before the process has exited.
        broken = isinstance(error, (*sparks, OSError, EOFError))
        if _jvm_ended(GOING_S if broken else 0.0):
            text = "Spark's JVM ended while it worked"
            raise JvmEnded(text, log=log, memory=memory or "1g") from error
        if isinstance(error, sparks):
            raise refused(error, memory) from None  # the trace is Java's; the error has its words
        raise
    finally:
        root.removeFilter(own)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    # It writes traces of a JVM that ended, and as the root logger.
    return "py4j" not in record.pathname


def _jvm_ended(wait_s: float) -> bool:
    """Return whether this process's JVM ends within ``wait_s``."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing else knows
    if process is None:
        return False
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True
