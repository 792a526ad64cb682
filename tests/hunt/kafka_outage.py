"""The broker is away for minutes under load: nothing is confirmed, memory stays bounded, all of it comes.

python -m tests.hunt.kafka_outage --seconds 180 --rows-per-second 2500 [--guarantee exactly_once]
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import NewTopic
from tests.harness.engine_process import EngineProcess
from tests.harness.kafka import create, read_all
from tests.harness.meanwhile import meanwhile
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Cluster, Database

TOPIC = "away.public.items"
BEFORE_S, SAMPLE_S, WAIT_S = 10.0, 1.0, 900.0


class Writer:
    """Commits ``rate`` rows a second, ten transactions of them, until it is to stop."""

    def __init__(self, database: Database, rate: int) -> None:
        self._database, self._rows = database, max(1, rate // 10)
        self.written = 0

    def work(self, stop: threading.Event) -> None:
        due = time.monotonic()
        with self._database.connect() as connection:
            while not stop.wait(max(0.0, due - time.monotonic())):
                first = self.written + 1
                connection.execute(
                    "INSERT INTO items SELECT n, repeat('x', 200) FROM generate_series(%s::int, %s::int) n",
                    [first, self.written + self._rows],
                )
                self.written += self._rows
                due += 0.1


@dataclass
class Found:
    """Figures of one run: sizes in bytes, times in seconds."""

    before: int = 0
    sizes: list[int] = field(default_factory=list)
    confirmed_while_away: int = 0
    rows: int = 0
    rows_while_away: int = 0
    recovery_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    repeated: int = 0


class Outage:
    """One run: a pipeline as a process of its own, a writer beside it, and a broker that goes and comes."""

    def __init__(
        self, database: Database, kafka: Kafka, folder: Path, guarantee: str, rate: int
    ) -> None:
        self._database, self._kafka, self._rate = database, kafka, rate
        source = {
            **database.properties(),
            "slot.name": database.name,
            "publication.name": database.name,
            "topic.prefix": "away",
            "snapshot.mode": "no_data",
            "slot.retry.delay.ms": 500,
        }
        sink = {
            "type": "kafka",
            "bootstrap.servers": kafka.bootstrap,
            "delivery.guarantee": guarantee,
            "transactional.id": f"away-{database.name}",
        }
        self._engine = EngineProcess(folder, source, sink)

    def play(self, seconds: float) -> Found:
        """Return what was seen; ``seconds``: how long the broker is away."""
        found = Found()
        create(self._kafka.bootstrap, NewTopic(TOPIC, 1))
        self._database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        writer, engine = Writer(self._database, self._rate), self._engine
        try:
            engine.start()
            engine.until(engine.ready, "readiness", WAIT_S)
            with meanwhile(writer.work, within=WAIT_S):
                self._sample(BEFORE_S, [])
                found.before = _resident(engine.pid)
                self._kafka.kill()
                # what had arrived may still be confirmed for a moment: two status updates
                self._sample(min(15.0, seconds / 4), found.sizes)
                confirmed, wrote = self._confirmed(), writer.written
                self._sample(seconds - min(15.0, seconds / 4), found.sizes)
                found.confirmed_while_away = self._confirmed() - confirmed
                found.rows_while_away = writer.written - wrote
                self._kafka.start()
            back = time.monotonic()
            end = int(self._database.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
            done = False
            while not done:
                done = self._confirmed() >= end
                self._sample(SAMPLE_S, found.sizes)
                assert time.monotonic() - back < WAIT_S, "not everything came"
            found.recovery_s = time.monotonic() - back
        finally:
            engine.kill()
        found.rows = writer.written
        self._judge(found)
        return found

    def _judge(self, found: Found) -> None:
        records = read_all(self._kafka.bootstrap, TOPIC)
        ids = [json.loads(record.value() or b"{}")["after"]["id"] for record in records]
        first_seen = list(dict.fromkeys(ids))
        found.repeated = len(ids) - len(first_seen)
        if len(first_seen) != found.rows:
            found.wrong.append(f"{len(first_seen)} rows of {found.rows} came")
        if first_seen != sorted(first_seen):
            found.wrong.append("rows are not in the order of their commits")

    def _confirmed(self) -> int:
        query = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        ((lsn,),) = self._database.execute(query, self._database.name)
        return int(lsn)

    def _sample(self, seconds: float, sizes: list[int]) -> None:
        """Note the engine's size each second, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._engine.lives()
            sizes.append(_resident(self._engine.pid))
            time.sleep(SAMPLE_S)


def _resident(pid: int) -> int:
    """Return VmRSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rows-per-second", type=int, default=2_500)
    parser.add_argument(
        "--guarantee", choices=("at_least_once", "exactly_once"), default="at_least_once"
    )
    given = parser.parse_args()
    server, kafka = Cluster.create(), Kafka.create(heap_mb=512, restarts=True)
    with tempfile.TemporaryDirectory(prefix="waltap-outage-") as folder:
        try:
            outage = Outage(
                server.create_database("away"),
                kafka,
                Path(folder),
                given.guarantee,
                given.rows_per_second,
            )
            found = outage.play(given.seconds)
        finally:
            kafka.remove()
            server.remove()
    if found.confirmed_while_away:
        found.wrong.append(f"{found.confirmed_while_away} bytes of WAL confirmed with no broker")
    if given.guarantee == "exactly_once" and found.repeated:
        found.wrong.append(f"{found.repeated} records came again")
    print(
        f"{given.guarantee}: away {given.seconds:.0f} s, {found.rows:,} rows, {found.rows_while_away:,} of "
        f"them meanwhile; resident {found.before >> 20} MB before, {max(found.sizes) >> 20} MB at most; "
        f"{found.repeated:,} repeated; all there {found.recovery_s:.0f} s after the last row: "
        + ("; ".join(found.wrong) or "every row, in order")
    )
    sys.exit(bool(found.wrong))


if __name__ == "__main__":
    main()
