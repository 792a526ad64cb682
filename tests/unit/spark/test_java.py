"""No Java or pyspark, or the wrong one, is said in words before Spark says it in a stack trace."""

import logging
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import py4j.java_gateway
import pytest

from waltap_spark.apply.external_snapshots import read_error
from waltap_spark.driver import driver
from waltap_spark.driver.settings import FAILED
from waltap_spark.errors import (
    CatalogueUnreachable,
    JavaMissing,
    JvmEnded,
    PysparkUnfit,
    SparkRefused,
    first_words,
)
from waltap_spark.session import java as requirement
from waltap_spark.session.failures import explained_failures, refused
from waltap_spark.session.java import _require_fit as require_fit
from waltap_spark.session.java import require_java, require_pyspark
from waltap_spark.session.session import local_settings


def program(folder: Path, script: str) -> Path:
    """Put a ``java`` there that is a shell script."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        (None, r"WT-5201 .*JAVA_HOME=.* has no bin/java.*apt-get"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is version 11"),
        (
            "echo 'openjdk version \"17.0.2\"' >&2; echo java.base@17.0.2",
            r"without the module jdk\.incubator\.vector",
        ),
        ("echo 'openjdk version \"21\"' >&2; echo jdk.incubator.vector@21", ""),
    ],
    ids=["absent", "old", "reduced", "whole"],
)
def test_a_java_that_does_not_serve_is_refused(tmp_path, monkeypatch, script, reported):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = program(tmp_path, script) if script else None
    if not reported:
        assert require_java() == path
        return
    with pytest.raises(JavaMissing, match=reported):
        require_java()


def test_a_java_that_was_killed_is_asked_again_and_not_taken_for_another(tmp_path, monkeypatch):
    killed = f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; kill -9 $$; }}"
    path = program(tmp_path, f"{killed}; echo 'version \"21\"' >&2; echo jdk.incubator.vector@21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == path
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    require_fit.cache_clear()
    with pytest.raises(JavaMissing, match="-version was killed by signal 9"):
        require_java()


@pytest.mark.parametrize("found", ["3.5.9", "4.0.5", "4.4.0", "5.0.0", "odd", None])
def test_a_pyspark_of_another_generation_or_none_is_refused(found, monkeypatch):
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(requirement, "version", version)
    state = f"version {found}" if found else "not installed"
    reported = rf"WT-5210 pyspark is {state}.*pip install 'pyspark==4\.2\.\*'"
    with pytest.raises(PysparkUnfit, match=reported):
        require_pyspark()


@pytest.mark.parametrize("found", ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_a_pyspark_of_a_generation_that_serves_is_taken(found, monkeypatch):
    monkeypatch.setattr(requirement, "version", lambda _name: found)
    assert require_pyspark() == found


@pytest.mark.parametrize(
    ("processors", "is_one"), [(2, True), (4, True), (5, False), (None, False)]
)
def test_few_processors_have_one_compiler_by_default(processors, is_one):
    options = local_settings(processors).get("spark.driver.defaultJavaOptions", "")
    assert ("-XX:TieredStopAtLevel=1" in options) == is_one
    assert local_settings(processors)["spark.driver.memory"] == "1g"


# --- what is reported an error that came out of a JVM ---------------------------------------------------

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


def test_frames_are_no_words():
    assert first_words(ValueError(JAVA)) == (
        "An error occurred while calling o80.sql. "
        ": org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute: INSERT "
        "Caused by: org.sqlite.SQLiteException: A PRIMARY KEY constraint failed (UNIQUE constraint failed)"
    )


def test_what_follows_a_blank_line_is_a_plan():
    assert first_words(ValueError("no such column\n  at the place (x)\n\nPlan")) == (
        "no such column at the place (x)"
    )
    assert first_words(ValueError("")) == "ValueError"


def test_what_has_no_code_gets_one_and_a_lack_of_memory_its_own():
    error = refused(ValueError("nobody listens"))
    assert isinstance(error, SparkRefused)
    assert str(error).startswith("WT-5268 nobody listens. See Spark's text")
    error = refused(ValueError("Job aborted: java.lang.OutOfMemoryError: Java heap space"))
    assert isinstance(error, JvmEnded)
    assert "spark.driver.memory, now " in str(error)  # that of a session, where there is one
    again = refused(ValueError("java.lang.OutOfMemoryError"), "512m")
    assert "spark.driver.memory, now 512m)" in str(again)
    assert refused(error) is error
    error = refused(
        ValueError("Invalid update timestamp 1000: before last snapshot log entry at 601000")
    )
    assert str(error).startswith("WT-5275 the clock is 600 s behind the table's last commit: ")
    error = refused(ValueError("Invalid schema: multiple fields for name a.b.c: 3 and 4"))
    assert str(error).startswith("WT-5234 Invalid schema")


def test_traces_of_py4j_are_not_logged(caplog):
    def record(file: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, file, 1, "empty answer", None, None)

    with explained_failures(None):
        for file in (py4j.java_gateway.__file__, __file__):
            logging.getLogger().handle(record(file))
    logging.getLogger().handle(record(py4j.java_gateway.__file__))
    assert [each.pathname for each in caplog.records] == [__file__, py4j.java_gateway.__file__]


def test_a_catalogue_that_is_away_does_not_take_rows_that_wait_from_a_table():
    """Another try has them; what a table does not take is for good."""
    assert read_error(CatalogueUnreachable("it is away", catalog="lake"), "public.t") is None
    assert driver._status(CatalogueUnreachable("it is away", catalog="lake")) == FAILED
    assert driver._status(SparkRefused("it is away")) == FAILED
