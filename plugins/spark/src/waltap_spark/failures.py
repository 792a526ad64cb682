"""What is wrong with one table, which then stands still alone, and what is wrong for all; and Spark's own
words, which become errors with a code."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

from waltap.errors import WaltapError
from waltap_sinks.changelog.errors import ColumnNameTaken
from waltap_spark.errors import (
    FormatError,
    JvmEnded,
    NamesClash,
    SegmentDamaged,
    SourcesDiffer,
    SparkRefused,
    TypeChanged,
    first_words,
)

__all__ = ["NOT_KEPT", "NO_MEMORY", "OF_ONE", "refused", "require_one", "told"]

OF_ONE: Final = (
    TypeChanged,
    NamesClash,
    ColumnNameTaken,
    SourcesDiffer,
    SegmentDamaged,
    FormatError,
)
"""What is wrong with one table, and no other."""

NO_MEMORY: Final = "java.lang.OutOfMemoryError"

NOT_KEPT: Final = "its output, which was not kept"
"""Where a JVM's last words are that a command started for itself."""

GOING_S: Final = 2.0
"""How long a JVM may take to end that has broken a connection off."""


def refused(error: Exception, memory: str | None = None) -> WaltapError:
    """Return ``error`` as it is told of: as it is where it has a code, else with Spark's words.
    ``memory`` is what the JVM was given, None: its session tells."""
    if isinstance(error, WaltapError):
        return error
    words = first_words(error).rstrip(".")
    found: WaltapError = SparkRefused(words)
    if NO_MEMORY in words:
        text = f"Spark had no memory left: {words}"
        found = JvmEnded(text, log="its output", memory=memory or _memory())
    found.__cause__ = error
    return found


def _memory() -> str:
    """Return what the JVM of this process was given."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - none is made by asking
    return (context and context.getConf().get("spark.driver.memory")) or "1g"


def require_one(errors: Sequence[WaltapError | None]) -> None:
    """Raise what all tables failed with, where it is no matter of one: what is wrong for all alike."""
    from pyspark.errors import PySparkException

    for error in errors if all(errors) else ():
        cause = error.__cause__ if isinstance(error, (SparkRefused, JvmEnded)) else error
        if error is not None and not isinstance(cause, (*OF_ONE, PySparkException)):
            raise error


@contextlib.contextmanager
def told(memory: str | None, log: str = "its output, above") -> Iterator[None]:
    """Let what Spark does not do within the block be told of as an error with a code. ``memory`` is what
    the JVM was given, ``log`` where its last words are. Raises: JvmEnded, SparkRefused, and what has a
    code already."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    sparks = (SparkRefused, PySparkException, Py4JError)
    try:
        yield
    except Exception as error:
        if isinstance(error, WaltapError) and not isinstance(error, SparkRefused):
            raise
        broken = isinstance(error, (*sparks, OSError, EOFError))
        if _jvm_ended(GOING_S if broken else 0.0):
            text = "Spark's JVM ended while it worked"
            raise JvmEnded(text, log=log, memory=memory or "1g") from error
        if isinstance(error, sparks):
            raise refused(error, memory) from None  # its trace is Java's; the words are told
        raise


def _jvm_ended(wait_s: float) -> bool:
    """Tell whether the JVM that this process started for Spark is gone, or is just going."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing else knows
    if process is None:
        return False
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return False
    return True
