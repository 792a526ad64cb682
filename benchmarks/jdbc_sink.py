"""A contender that fills tables of another server: Debezium's JDBC sink connector, in Kafka Connect."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.servers.child import Child, ChildFailed
from tests.harness.servers.jars import archive, jars
from tests.harness.servers.kafka import LOG4J
from tests.harness.servers.ports import free_ports
from tests.harness.servers.postgres import Database

from benchmarks.contender import Result, Waltap
from benchmarks.dataset import TABLE

CONNECT = (
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.apache.kafka:connect-json:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",  # else it logs nothing at all
)
PLUGIN = "io.debezium:debezium-connector-jdbc:3.6.0.Final:tar.gz:plugin"
"""The newest that is published; the engine beside it is 3.6.3."""

TUNED_SINK = {
    "batch.size": "5000",
    "use.reduction.buffer": "true",
    "dialect.postgres.unnest.insert": "true",
}
"""What helps the connector most: batches as large as a poll, one change of each row in them."""

POLL_S = 0.02
WAIT_S = 900.0


def prepare() -> tuple[Path, Path]:
    """Return the folders of Connect's jars and of the connector, fetched where they are missing.

    Raises: MissingProgram.
    """
    return jars("connect", CONNECT), archive("jdbc_sink", PLUGIN)


@dataclass
class JdbcSink(Waltap):
    """One task of the connector takes a topic that is full when it starts: capture costs it nothing here.

    ``tuning`` is added to its configuration, which upserts by the record's key, as waltap does. It gets
    JSON with schemas, which waltap writes into ``kafka`` before; that is not timed.
    """

    target: Database = field(kw_only=True)
    kafka: str = field(kw_only=True)
    tuning: dict[str, str] = field(kw_only=True, default_factory=dict)

    def __post_init__(self) -> None:
        self.sink = ""
        self.settings |= {
            "waltap.sink.type": "kafka",
            "waltap.sink.bootstrap.servers": self.kafka,
            "topic.prefix": self.slot,
            "key.converter.schemas.enable": "true",
            "value.converter.schemas.enable": "true",
        }

    def drain(self, rows: int, until_lsn: str) -> Result:
        """Let the connector take the topic; timed from its first row in the target to its last."""
        self._run(self._properties(TABLE, "no_data"), "--until-lsn", until_lsn)
        self.target.execute(f"CREATE SCHEMA {self.slot}")
        worker = self._worker()
        began = time.monotonic()
        worker.start()
        try:
            self._until(worker, 1)
            first, cpu = time.monotonic(), _cpu_seconds(worker.pid)
            self._until(worker, rows)
            ended = time.monotonic()
            spent, peak = _cpu_seconds(worker.pid) - cpu, _peak_mib(worker.pid)
        finally:
            worker.kill()
        self.target.execute(f"DROP SCHEMA {self.slot} CASCADE")
        return Result(
            contender=self.name,
            round=self.round,
            rows=rows,
            seconds=ended - first,
            wall_seconds=ended - began,
            cpu_seconds=spent,
            peak_mib=peak,
        )

    def _worker(self) -> Child:
        connect, plugin = prepare()
        host, database = f"{self.target.server.host}:{self.target.server.port}", self.target.name
        worker = {
            "bootstrap.servers": self.kafka,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            # the default one leaves values that it cannot guess without a schema: refused
            "header.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": str(self.folder / "connect.offsets"),
            "plugin.path": str(plugin),
            "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
            "consumer.max.poll.records": "5000",
        }
        connector = {
            "name": self.slot,
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "tasks.max": "1",
            "topics": f"{self.slot}.{TABLE}",
            "connection.url": f"jdbc:postgresql://{host}/{database}",
            "connection.username": self.target.server.user,
            "connection.password": self.target.server.password or "none",
            "insert.mode": "upsert",
            "primary.key.mode": "record_key",
            "delete.enabled": "true",
            "schema.evolution": "basic",
            "collection.name.format": f"{self.slot}.bench",
            **self.tuning,
        }
        paths = []
        for name, settings in (("worker", worker), ("connector", connector)):
            paths.append(self.folder / f"{self.slot}.{name}.properties")
            paths[-1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        logging = self.folder / "log4j2.properties"
        logging.write_text(LOG4J)
        command = ["java", "-Xmx2g", f"-Dlog4j2.configurationFile={logging}", "-cp", f"{connect}/*"]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", *map(str, paths)]
        return Child(command, self.folder / f"{self.slot}.connect.log")

    def _until(self, worker: Child, rows: int) -> None:
        """Wait until ``rows`` rows are there."""
        deadline = time.monotonic() + WAIT_S
        with self.target.connect() as connection:
            there = f"SELECT to_regclass('{self.slot}.bench') IS NOT NULL"
            counted = f"SELECT count(*) >= {rows} FROM {self.slot}.bench"
            for query in (there, counted):
                while connection.execute(query).fetchone() != (True,):
                    if worker.ended or time.monotonic() > deadline:
                        raise ChildFailed(json.dumps(worker.said()[-3000:]))
                    time.sleep(POLL_S)


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = (each for each in text.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
