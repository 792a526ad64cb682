"""Spark sessions with the settings that waltap's tables need."""

import atexit
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, cast

from waltap.base.files.durable_file import private, private_folder
from waltap.base.files.properties import StorageProperties
from waltap_spark.errors import SparkRefused
from waltap_spark.session.java import require_java, require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Access of a Spark session to the profile's object stores, through Hadoop's filesystems.
#
# A session's settings are arguments of its JVM, which every user of the machine can read. So
# credentials are set in the running JVM, where tasks get them from.

ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
ASSUMED: Final = "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider"


def reach(spark: "SparkSession", storage: StorageProperties, chosen: Mapping[str, str]) -> None:
    """Give ``spark`` access to the S3 of ``storage``.

    Other stores have settings by account, which the profile gives as Spark settings
    (``spark.hadoop.…``).
    """
    provider = ANONYMOUS if storage.storage_anonymous else ASSUMED if storage.storage_role else None
    found = {
        "endpoint": storage.storage_endpoint,
        "path.style.access": "true" if storage.storage_endpoint else None,
        "endpoint.region": storage.storage_region,
        "access.key": storage.storage_access_key,
        "secret.key": storage.storage_secret_key,
        "session.token": storage.storage_session_token,
        "assumed.role.arn": storage.storage_role,
        "aws.credentials.provider": provider,
    }
    context = cast(Any, spark.sparkContext)
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001 - Python has no word for it
    for name, value in found.items():
        if value is not None and f"spark.hadoop.fs.s3a.{name}" not in chosen:
            hadoop.set(f"fs.s3a.{name}", value)


# Bytes of a row group. Rows may be megabytes long, and a Spark task reads up to 4096 rows of a row
# group at once.
ROW_GROUP_BYTES: Final = str(32 << 20)

# Rows before the writer checks the size of a page or row group; the default is 100.
ROWS_UNSEEN: Final = "8"

DELTA_SKIPS_EMPTY: Final = "spark.databricks.delta.skipRecordingEmptyCommits"

# Session settings that the tables' types and names rely on. PostgreSQL distinguishes ``a`` from
# ``A``, has ``time``, dates of any year, and timestamps of microseconds with and without zone. A
# missing or damaged file is an error, whatever the session says: a reader that skips it loses rows.
# A name with ``${…}`` is no variable of Spark's.
REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.variable.substitute": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "parquet.block.size": ROW_GROUP_BYTES,
    "parquet.page.size.row.check.min": ROWS_UNSEEN,
    "parquet.block.size.row.check.min": ROWS_UNSEEN,
}

# INSERT OVERWRITE replaces all rows; dynamic would keep partitions that get none.
OVERWRITES: Final = {"spark.sql.sources.partitionOverwriteMode": "static"}

# Defaults of waltap's own session with a local master; a profile may override them.
DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.memory": "1g",
    "spark.scheduler.mode": "FAIR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.minBatchesToRetain": "10",
}

# Most processors of a machine whose JVM compiles with one compiler level by default. Each plan brings
# new classes, and Java's second compiler works on them for a third of the processor time of small commits.
FEW_PROCESSORS: Final = 4
# Java's own code cache for one level, 48 MB, is full after some hundred small commits.
ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


# Settings for plans over few rows. Compiling or replanning such a plan takes longer than running
# it.
QUICK: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}

FEW_ROWS: Final = 100_000


def start_session(
    name: str,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    notes: Path | None = None,
    more: Callable[[str, Mapping[str, str]], dict[str, str]] | None = None,
    storage: "StorageProperties | None" = None,
) -> "SparkSession":
    """Start a Spark session, or join the process's session.

    ``more`` adds a table format's settings (`FormatChoice.settings`), ``storage`` the access to an object
    store.
    ``notes`` receives the JVM's standard error, which is long and seldom useful. Raises:
    JavaMissing, SparkRefused, and the format's errors for missing parts.
    """
    require_java()
    if more is not None:
        settings = more(require_pyspark(), settings or {})
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    local = master.startswith("local")
    if local:  # the JVM looks up the machine's own name, which may not resolve
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # its workers need this interpreter's packages
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = {**(local_settings(os.cpu_count()) if local else {}), **(settings or {})}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**chosen, **REQUIRED}.items():
        builder = builder.config(key, value)
    with _standard_error_to(notes):
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            text = f"Spark's JVM did not start{_last_words(notes)}"
            raise SparkRefused(text) from None
    if storage is not None:
        reach(session, storage, chosen)
    session.sparkContext.setLogLevel(chosen.get("spark.log.level", "ERROR"))
    return session


def local_settings(processors: int | None) -> dict[str, str]:
    """Return a session's default settings for a machine with ``processors``."""
    few = processors is not None and processors <= FEW_PROCESSORS
    return {**DEFAULTS, **({"spark.driver.defaultJavaOptions": ONE_COMPILER} if few else {})}


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """Yield a file for a JVM's output while it starts."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "jvm.log"


def _last_words(notes: Path | None) -> str:
    """Return a JVM's last words about an error, from ``notes``."""
    if notes is None:
        return ""
    with contextlib.suppress(OSError):
        lines = notes.read_text(errors="replace").splitlines()
        errors = [line for line in lines if re.match(r"\S.*(Exception|Error)|Invalid", line)]
        return f": {' '.join(errors[-3:])}" if errors else ""
    return ""


@contextlib.contextmanager
def _standard_error_to(path: Path | None) -> Iterator[None]:
    """Redirect the standard error of started processes to ``path``."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    private_folder(path.parent)
    with open(path, "ab", opener=private) as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def prepare(spark: "SparkSession") -> "SparkSession":
    """Return another session of ``spark`` with `REQUIRED` settings.

    A session of Spark Connect is cloned: Connect has no other way.
    """
    from pyspark.errors import PySparkException

    if is_remote(spark):
        session: Any = cast(Any, spark).cloneSession()
        # an open channel would block the interpreter's exit forever
        atexit.register(session.client.close)
    else:
        session = spark.newSession()
        # It has only the settings of the first session's start.
        for key, value in spark.conf.getAll.items():
            if key.startswith("spark.sql.") and session.conf.get(key, None) != value:
                # a setting of all sessions cannot be set in one
                with contextlib.suppress(PySparkException):
                    session.conf.set(key, value)
        # A step that changes no row must be in the table's log, too. Connect's steps have
        # transaction ids, which Delta records.
        session.conf.set(DELTA_SKIPS_EMPTY, "false")
    for key, value in {**REQUIRED, **OVERWRITES}.items():
        session.conf.set(key, value)
    return cast("SparkSession", session)


def make_active(spark: "SparkSession") -> None:
    """Make ``spark`` the thread's active session.

    Spark checks some plans (groupBy, for one) by the settings of the thread's active session. A
    thread without one has Spark's defaults: no ``time``, and names that differ only by case are
    equal.
    """
    jvm = None if is_remote(spark) else spark._jvm  # noqa: SLF001 - Python has no word for it
    if jvm is not None:
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001


class SizedSession:
    """A session that plans for the number of rows. Single-threaded."""

    def __init__(self, spark: "SparkSession") -> None:
        self.session = spark
        self._many = {name: spark.conf.get(name, None) for name in QUICK}
        self._quick = False

    def suit(self, rows: int | None) -> "SparkSession":
        """Return the session, set for plans over about ``rows`` rows.

        None means an unknown number.
        """
        quick = rows is not None and rows <= FEW_ROWS
        if quick != self._quick:
            self._quick = quick
            chosen: Mapping[str, str | None] = QUICK if quick else self._many
            for name, value in chosen.items():
                if value is None:
                    self.session.conf.unset(name)
                else:
                    self.session.conf.set(name, value)
        return self.session


def each_in_one(
    sessions: "SimpleQueue[SizedSession]",
    actions: "Sequence[Callable[[SparkSession], None]]",
    most: int,
) -> None:
    """Run ``actions``, at most ``most`` at a time."""

    def run(action: "Callable[[SparkSession], None]") -> None:
        suited = sessions.get()
        try:
            make_active(suited.session)
            action(suited.session)
        finally:
            sessions.put(suited)

    if actions:
        with ThreadPoolExecutor(most) as pool:
            list(pool.map(run, actions))


def is_remote(spark: object) -> bool:
    """Return whether ``spark`` is a session of Spark Connect.

    The name is compared, since the package of Connect may not be installed.
    """
    return type(spark).__module__.startswith("pyspark.sql.connect.")
