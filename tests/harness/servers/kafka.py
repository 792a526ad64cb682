"""A real Apache Kafka broker for tests: one node that is its own controller (KRaft).

From the jars that `make setup-test` fetches.
"""

import base64
import itertools
import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.harness.servers.child import ChildFailed, LocalServer
from tests.harness.servers.jars import jars
from tests.harness.servers.place import data_folder
from tests.harness.servers.ports import free_ports

VERSION = "4.3.1"
COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",  # else the broker logs nothing at all
)
WAIT_SECONDS = 120.0
SERVES = "Kafka Server started"

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""For a server that lives as long as a test; a benchmark starts it without."""

LOG4J = """\
status = error
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = OUT
"""

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,SASL:SASL_PLAINTEXT,"
    "SASLTLS:SASL_SSL",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    # one node: internal topics without replicas, small and quick
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",  # 128 MB of heap otherwise
    "log.segment.delete.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # one that is suspended for long, on a busy machine, is not taken out of service
    "broker.session.timeout.ms": "30000",
    # clients without a name may do everything, SASL's users only what an ACL allows
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "ssl.client.auth": "none",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    **{
        f"listener.name.{listener}.{mechanism}.sasl.jaas.config": (
            f"org.apache.kafka.common.security.{module} required{users};"
        )
        for listener in ("sasl", "sasltls")
        for mechanism, module, users in (
            ("scram-sha-256", "scram.ScramLoginModule", ""),
            ("scram-sha-512", "scram.ScramLoginModule", ""),
            (
                "plain",
                "plain.PlainLoginModule",
                ' user_admin="admin-secret" user_reader="reader-secret"',
            ),
        )
    },
}
"""``admin`` may do everything, ``reader`` (PLAIN too) nothing until an ACL says so. Users of SCRAM are made by
the administrator's client."""


RESTARTING: Final = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
"""For a broker that is to start again: it waits for the end of its own old session first."""


class Kafka(LocalServer):
    """One broker in a folder of its own. ``bootstrap`` is open to everybody; ``tls`` has the
    ``certificate``; ``sasl`` knows the users of `SETTINGS`, ``sasl_tls`` has both. `kill` and `start` keep ports and data.
    """

    NAME = "kafka"
    IN_MEMORY = True

    def command(
        self,
        *,
        quick: bool = True,
        heap_mb: int = 256,
        restarts: bool = False,
        java: Sequence[str] = (),
    ) -> list[str]:
        """Return how to start it. ``quick``: in half the time, and it is slower later. ``restarts``: it is
        to be stopped, or killed, and started again. ``java``: more options of the JVM.
        Raises: MissingProgram, ChildFailed.
        """
        self._names = itertools.count(1)
        ports = (self.port, *free_ports(4))
        plain, control, tls, sasl, both = (f"127.0.0.1:{port}" for port in ports)
        self.bootstrap, self.tls, self.sasl, self.sasl_tls = plain, tls, sasl, both
        self.certificate = self.folder / "broker.crt"
        self._make_certificate()
        secured = f"TLS://{tls},SASL://{sasl},SASLTLS://{both}"
        chosen = {
            **SETTINGS,
            "controller.quorum.voters": f"1@{control}",
            "listeners": f"PLAIN://{plain},CONTROLLER://{control},{secured}",
            "log.dirs": str(self.folder / "data"),
            "ssl.keystore.location": str(self.folder / "keystore.pem"),
            "ssl.truststore.location": str(self.certificate),
            **(RESTARTING if restarts else {}),
        }
        self._settings = self.folder / "server.properties"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in chosen.items()))
        (self.folder / "log4j2.properties").write_text(LOG4J)
        found = jars("kafka", COORDINATES)
        self._format(found)
        archive = _class_archive(found)
        shared = [f"-XX:SharedArchiveFile={archive}"] if quick and archive.is_file() else []
        return [
            "java", "-Xms64m", f"-Xmx{heap_mb}m", *(QUICK_START if quick else ()), *shared, *java,
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-Djava.net.preferIPv4Stack=true", "-cp", _class_path(found), "kafka.Kafka", str(self._settings),
        ]  # fmt: skip

    def topic_name(self, stem: str = "topic") -> str:
        return f"{stem}-{os.getpid()}-{next(self._names)}"

    @property
    def runs(self) -> bool:
        return not self._child.ended

    def answers(self) -> bool:
        return SERVES in self._child.said()

    def stop(self) -> None:
        """End it in order. No error when it is down."""
        self._child.stop()

    def _format(self, found: Path) -> None:
        """Format the data folder, as KRaft demands.

        ``bootstrap.checkpoint`` has the levels of features and no identity: Kafka's own tool writes it
        once per folder of jars, then it is copied. Without it the features would be those of 3.x.
        """
        data, kept = self.folder / "data", found / "bootstrap.checkpoint"
        if kept.is_file():
            data.mkdir()
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={_kafka_id()}\nnode.id=1\ndirectory.id={_kafka_id()}\n"
            )
            shutil.copy(kept, data)
            return
        run = subprocess.run(
            ["java", *QUICK_START, "-cp", _class_path(found), "kafka.tools.StorageTool", "format",
             "--cluster-id", _kafka_id(), "--config", str(self._settings)],
            capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
        )  # fmt: skip
        if run.returncode:
            raise ChildFailed(f"the broker's folder cannot be formatted:\n{run.stdout}{run.stderr}")
        partial = found / f"bootstrap.checkpoint.{os.getpid()}"
        shutil.copy(data / "bootstrap.checkpoint", partial)
        partial.rename(kept)

    def _make_certificate(self) -> None:
        key = self.folder / "broker.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
             "-keyout", str(key), "-out", str(self.certificate)],
            check=True, capture_output=True, timeout=WAIT_SECONDS,
        )  # fmt: skip
        # Java reads the key first, then the chain
        (self.folder / "keystore.pem").write_text(key.read_text() + self.certificate.read_text())


def prepare() -> None:
    """Fetch the broker, and make what lets it start quickly. Raises: MissingProgram, ChildFailed."""
    found = jars("kafka", COORDINATES)
    archive = _class_archive(found)
    if archive.is_file():
        return
    folder = data_folder("waltap-kafka-")
    partial = folder / "classes.jsa"
    made = Kafka(folder, free_ports(1)[0], java=[f"-XX:ArchiveClassesAtExit={partial}"])
    try:
        made.start()
        made.stop()
        if partial.is_file():
            kept = found / f"{archive.name}.{os.getpid()}"
            shutil.copy(partial, kept)
            kept.rename(archive)
    finally:
        made.remove()


def _class_archive(found: Path) -> Path:
    """Where the classes of this very Java are kept, ready to map."""
    java = Path(shutil.which("java") or "java").resolve()
    stamp = f"{java}-{int(java.stat().st_mtime)}" if java.exists() else "none"
    return found / f"classes-{uuid.uuid5(uuid.NAMESPACE_URL, stamp).hex[:12]}.jsa"


def _class_path(found: Path) -> str:
    # names, no "*": a class archive is only used with the very same path
    return os.pathsep.join(str(each) for each in sorted(found.glob("*.jar")))


def _kafka_id() -> str:
    """Return a random id in Kafka's spelling, which has no dash in front."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
