"""What is told of an error that came out of a JVM."""

from waltap_spark import driver
from waltap_spark.errors import CatalogueUnreachable, JvmEnded, SparkRefused, first_words
from waltap_spark.exit_codes import FAILED
from waltap_spark.external_snapshots import unread
from waltap_spark.failures import refused

JAVA = """An error occurred while calling o80.sql.
: org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute: INSERT
\tat org.apache.iceberg.jdbc.JdbcCatalog.execute(JdbcCatalog.java:780)
\tat org.apache.spark.util.Utils$.getTry$lzy(Utils.scala:1453)
\tSuppressed: org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace
\t\tat java.base/java.lang.Thread.run(Thread.java:840)
\t\t... 22 more
Caused by: org.sqlite.SQLiteException: A PRIMARY KEY constraint failed (UNIQUE constraint failed)
\tat org.sqlite.core.DB.newSQLException(DB.java:1179)
"""


def test_frames_are_no_words() -> None:
    assert first_words(ValueError(JAVA)) == (
        "An error occurred while calling o80.sql. "
        ": org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute: INSERT "
        "Caused by: org.sqlite.SQLiteException: A PRIMARY KEY constraint failed (UNIQUE constraint failed)"
    )


def test_what_follows_a_blank_line_is_a_plan() -> None:
    assert first_words(ValueError("no such column\n  at the place (x)\n\nPlan")) == (
        "no such column at the place (x)"
    )
    assert first_words(ValueError("")) == "ValueError"


def test_what_has_no_code_gets_one_and_a_lack_of_memory_its_own() -> None:
    error = refused(ValueError("nobody listens"))
    assert isinstance(error, SparkRefused)
    assert str(error).startswith("WT-5268 nobody listens. See the text")
    error = refused(ValueError("Job aborted: java.lang.OutOfMemoryError: Java heap space"))
    assert isinstance(error, JvmEnded)
    assert "spark.driver.memory, which is " in str(error)  # that of a session, where there is one
    again = refused(ValueError("java.lang.OutOfMemoryError"), "512m")
    assert "spark.driver.memory, which is 512m)" in str(again)
    assert refused(error) is error


def test_a_catalogue_that_is_away_does_not_take_rows_that_wait_from_a_table() -> None:
    """Another try has them; what a table does not take is for good."""
    assert unread(CatalogueUnreachable("it is away", catalog="lake"), "public.t") is None
    assert driver._status(CatalogueUnreachable("it is away", catalog="lake")) == FAILED
    assert driver._status(SparkRefused("it is away")) == FAILED
