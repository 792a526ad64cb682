"""Fixtures with real servers. They start on first use, once for each worker: what another worker's test
does to a server (long transactions, slots, WAL) is nothing that a test has to live with.

- ``server``: a PostgreSQL with ``wal_level=logical``, from ``WALTAP_TEST_POSTGRES``, which workers
  share, else a container, else the installed programs;
- ``database``: a fresh database on it, dropped with its slots; a slot still in use fails the test;
- ``yb_database``: the same with the output plugin ``yboutput``, a double of YugabyteDB's;
- ``private_server``: a PostgreSQL of the test's own that may be stopped, killed, started again;
- ``newest_database``: a database on PostgreSQL 18, of the package that the demo uses;
- ``kafka``: an Apache Kafka broker, one per worker; ``private_kafka``: one of the test's own that may be
  killed and started again; ``registry``: a schema registry with Confluent's interface, one per worker;
- ``mariadb``, ``redis_server``, ``nats_server``, ``moto``: one per worker;
- ``s3``: an S3 server, one per worker; ``bucket``: the name of an empty bucket on it;
- ``java``: the Java home; ``peer``: Debezium's classes on it; ``spark``: a local Spark session.

What is missing is a skip with its reason, or a failure with ``CI=true``.
"""

import contextlib
import importlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.harness.servers import iceberg as iceberg_lake
from tests.harness.servers import (
    output_plugin,
    postgres,
    spark_jars,
)
from tests.harness.servers.child import ChildFailed
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.java import OLDEST, java_home, java_version
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database, Server, Unavailable
from tests.harness.servers.requirement import missing

if TYPE_CHECKING:
    from tests.harness.servers.s3 import S3Server

STATE = "WALTAP_TEST_STATE"
"""Environment variable, set by the first process for its workers: where they meet."""

POSTGRES_FIXTURES = frozenset(
    {"server", "database", "private_server", "yb_server", "yb_database", "newest_database"}
)
JAVA_FIXTURES = frozenset(
    {
        "java",
        "spark",
        "delta",
        "iceberg",
        "spark_of_topics",
        "peer",
        "kafka",
        "private_kafka",
        "registry",
    }
)

_numbers = itertools.count(1)

QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Hundreds of small plans, none of which runs long: code that is compiled at once serves better than code that is
compiled well."""

QUICK_PLANS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
}
"""The shared session compiles no plans, describes them briefly, and has one task for what is few: small ones run shorter
than that takes. Sessions of the command and of a test's own keep Spark's defaults."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder in which this process and its workers meet; make each worker a session.

    Linux shares processor time among sessions. Every connection to PostgreSQL has one: all workers together would get as
    much as one of them, and Spark, which computes, would wait for tests that do not.
    """
    if hasattr(config, "workerinput"):
        os.setsid()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[STATE] = tempfile.mkdtemp(prefix="waltap-tests-")
        postgres.sweep()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what workers shared, in the process that outlives them."""
    if "PYTEST_XDIST_WORKER" not in os.environ and STATE in os.environ:
        state = Path(os.environ.pop(STATE))
        output_plugin.remove(state)
        shutil.rmtree(state, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which servers tests will meet."""
    java = java_version()
    return [f"postgres: {postgres.describe()}", f"java: {java or 'none'}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the services that their fixtures need."""
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & POSTGRES_FIXTURES:
            item.add_marker("needs_postgres")
        if names & JAVA_FIXTURES:
            item.add_marker("needs_java")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Return the PostgreSQL server of this worker; its tests share it: change no setting of it."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(postgres.running())
        except Unavailable as reason:
            missing(str(reason))
        yield made


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    """Return an empty database, dropped at the end with its slots; a slot in use fails the test."""
    yield from _fresh_database(server)


@pytest.fixture(scope="session")
def yb_server(server: Server) -> Iterator[Server]:
    """Return a server that can load the output plugin ``yboutput``: the worker's where it can."""
    try:
        if output_plugin.loadable(server, output_plugin.built(Path(os.environ[STATE]))):
            yield server
            return
        made = Cluster.create()  # the worker's is elsewhere, or of another version
    except Unavailable as reason:
        missing(str(reason))
    yield made
    made.remove()


@pytest.fixture
def yb_database(yb_server: Server) -> Iterator[Database]:
    """Return a database whose slots may use ``yboutput``: a double built from published sources, no
    YugabyteDB. ``SELECT yb_replica_identity(table, 'CHANGE')`` sets what it emulates.
    """
    for made in _fresh_database(yb_server):
        output_plugin.prepare(made, output_plugin.built(Path(os.environ[STATE])))
        yield made


@pytest.fixture(scope="session")
def newest_server() -> Iterator[Cluster]:
    """Return a server of the newest PostgreSQL that the packages bring: 18."""
    with own_server(Cluster.create_newest) as made:
        yield made


@pytest.fixture
def newest_database(newest_server: Cluster) -> Iterator[Database]:
    yield from _fresh_database(newest_server)


def _fresh_database(server: Server) -> Iterator[Database]:
    made = server.create_database(f"waltap_test_{os.getpid()}_{next(_numbers)}")
    yield made
    leaked = made.drop()
    if leaked:
        pytest.fail(f"the test left replication slots in use: {', '.join(leaked)}", pytrace=False)


@pytest.fixture
def private_server() -> Iterator[Cluster]:
    """Return a server of this test's own: ``stop``, ``start``, ``restart``, ``kill``, ``log``."""
    with own_server() as made:
        yield made


@pytest.fixture(scope="session")
def java() -> Path:
    version = java_version()
    if version is None or version < OLDEST:
        missing(f"Java {OLDEST} or later is needed, found {version or 'none'}")
    return java_home()


@pytest.fixture(scope="session")
def spark(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a local Spark session with two cores, in UTC, without a user interface; it has Delta Lake
    where the jars can be had (fixture ``delta``), and Iceberg where it runs (fixture ``iceberg``)."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the machine's name need not resolve
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # that of its workers
    folder = tmp_path_factory.mktemp("spark")
    from tests.harness.servers import pyspark_names

    pyspark_names.remember()
    builder = SparkSession.builder.master("local[2]")
    for name, value in QUICK_PLANS.items():
        builder = builder.config(name, value)
    with contextlib.suppress(MissingProgram):
        for name, value in _lakes(folder).items():
            builder = builder.config(name, value)
    session = (
        builder.appName("waltap tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")  # hundreds of tests share the JVM,
        .config(
            "spark.buffer.pageSize", "1m"
        )  # and what is broadcast keeps a page until Python lets go
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={folder} {QUICK_JVM}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    _get_three_shares()
    yield session
    session.stop()


def _get_three_shares() -> None:
    """Have this worker and its JVM, which compute most of all, get three times the processor time of another session.

    Only a privileged user may ask for it; Linux alone has shares (`pytest_configure`).
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("-5", encoding="ascii")


def _lakes(folder: Path) -> dict[str, str]:
    conf = {**spark_jars.DELTA_CONF, "spark.jars": spark_jars.delta()}
    if iceberg_lake.runs_here():
        conf["spark.jars"] += f",{spark_jars.iceberg()}"
        conf["spark.sql.extensions"] += f",{iceberg_lake.EXTENSION}"
        conf |= iceberg_lake.CONF
        conf["spark.sql.catalog.lake.uri"] = f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=60000"
        conf["spark.sql.catalog.lake.warehouse"] = f"file://{folder}/lake"
    else:
        with contextlib.suppress(MissingProgram):
            conf["spark.jars"] += f",{spark_jars.kafka()},{spark_jars.catalogue()}"
    return conf


@pytest.fixture(scope="session")
def spark_connect(spark: Any) -> Iterator[str]:
    """Return the address of a Spark Connect server beside the session ``spark``.

    Its clients are processes of their own: one is either a client or has a JVM.
    """
    pytest.importorskip("grpc")
    jvm = spark._jvm
    server = getattr(
        getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$"
    )
    server.start(spark._jsc.sc())
    yield f"sc://127.0.0.1:{server.localPort()}"
    server.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


def _with(what: str, fetch: Callable[[], str], spark: Any) -> Any:
    """Return the session when its jars can be had."""
    try:
        fetch()
    except MissingProgram as reason:
        missing(f"no {what}: {reason}")
    return spark


@pytest.fixture(scope="session")
def delta(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the Spark session, which has Delta Lake and has loaded it: that takes as long as a JVM's start."""
    session = _with("Delta Lake", spark_jars.delta, spark)
    spark_jars.load_delta(session, tmp_path_factory.mktemp("delta"))
    return session


@pytest.fixture(scope="session")
def peer(java: Path) -> None:
    """Skip without Debezium's jars; they are fetched by set-up, not by a test."""
    from tests.differential.engines import peer_installed

    if not peer_installed():
        pytest.skip("the Debezium peer is not installed: benchmarks/peer/run-peer --install")


@pytest.fixture(scope="session")
def spark_of_topics(spark: Any) -> Any:
    """Return the Spark session, which has Spark's Kafka source and its Avro functions."""
    return _with("Kafka source of Spark's", spark_jars.kafka, spark)


@pytest.fixture(scope="session")
def iceberg(spark: Any) -> Any:
    """Return the Spark session, which has Iceberg: a catalogue ``lake`` in SQLite, and what paths need.

    Only the environment of `tests.harness.servers.iceberg` has a pyspark that Iceberg runs on.
    """
    return _with("Apache Iceberg", spark_jars.iceberg, spark)


def _running(what: str, make: Callable[[], Any]) -> Iterator[Any]:
    """Give a server that is removed at the end."""
    try:
        made = make()
    except (MissingProgram, ChildFailed) as reason:
        missing(f"no {what}: {reason}")
    yield made
    made.remove()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """Return the Kafka broker of this worker; name topics, groups and transactional ids by
    `Kafka.topic_name`, and change no setting of the broker."""
    yield from _running("Kafka broker", Kafka.create)


@pytest.fixture(scope="module")
def module_kafka() -> Iterator[Kafka]:
    """Return the broker that tests of a module kill, one after the other."""
    yield from _running("Kafka broker", partial(Kafka.create, restarts=True))


@pytest.fixture
def private_kafka(module_kafka: Kafka) -> Kafka:
    """Return a broker that no other test uses meanwhile: ``stop``, ``kill``, ``start``."""
    if not module_kafka.runs:
        module_kafka.start()
    return module_kafka


def _shared(what: str, kind: str) -> Any:
    """Return the fixture of a server that the tests of a worker share; databases, topics and such need names of
    the test's own. Its module is loaded at the first use."""
    module, _, name = kind.partition(".")

    @pytest.fixture(scope="session")
    def made() -> Iterator[Any]:
        loaded = importlib.import_module(f"tests.harness.servers.{module}")
        yield from _running(what, getattr(loaded, name).create)

    return made


s3 = _shared("S3 server", "s3.S3Server")
"""It is left asking nobody."""


@pytest.fixture
def bucket(s3: "S3Server") -> str:
    name = f"bucket-{os.getpid()}-{next(_numbers)}"
    s3.files().create_dir(name)
    return name


mariadb = _shared("MariaDB", "mariadb.MariaDb")
redis_server = _shared("Redis", "redis.RedisServer")
nats_server = _shared("NATS", "nats.NatsServer")
moto = _shared("moto", "moto.Moto")
registry = _shared("schema registry", "registry.Registry")
