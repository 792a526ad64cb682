"""Contenders that fill tables of another PostgreSQL server: a subscription, and waltap's SQL sink."""

import time
from dataclasses import dataclass, field

from tests.harness.servers.postgres import Database

from benchmarks.contender import Contender, NotSupported, Result, Waltap
from benchmarks.dataset import COLUMNS, EMPTY, TABLE

POLL_S = 0.005
WAIT_S = 1800.0


@dataclass
class Subscription(Contender):
    """PostgreSQL's logical replication into ``target``: an apply worker, without the first copy."""

    target: Database = field(kw_only=True)

    def ready(self) -> None:
        """Make slot, table and subscription, which waits."""
        self.database.execute(
            f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput')"
        )
        for table in (TABLE, EMPTY):
            self.target.execute(f"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS})")
        self.target.execute(
            f"CREATE SUBSCRIPTION {self.slot} CONNECTION '{self.database.dsn}' PUBLICATION bench"
            f" WITH (slot_name = '{self.slot}', create_slot = false, enabled = false, copy_data = false)"
        )

    def drain(self, rows: int, until_lsn: str) -> Result:
        """Let it run until it has confirmed ``until_lsn``; from when its worker streams."""
        began = time.monotonic()
        self.target.execute(f"ALTER SUBSCRIPTION {self.slot} ENABLE")
        self._until(
            f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self.slot}'", began
        )
        streams = time.monotonic()
        self._until(
            f"SELECT confirmed_flush_lsn >= '{until_lsn}' FROM pg_replication_slots"
            f" WHERE slot_name = '{self.slot}'",
            began,
        )
        ended = time.monotonic()
        ((count,),) = self.target.execute(f"SELECT count(*) FROM {TABLE}")
        assert count >= rows, f"{count} of {rows} rows"
        self.target.execute(f"ALTER SUBSCRIPTION {self.slot} DISABLE")
        self.target.execute(f"ALTER SUBSCRIPTION {self.slot} SET (slot_name = NONE)")
        self.target.execute(f"DROP SUBSCRIPTION {self.slot}")
        self.target.execute(f"TRUNCATE {TABLE}")
        return Result(
            contender=self.name,
            round=self.round,
            rows=rows,
            seconds=ended - streams,
            wall_seconds=ended - began,
            cpu_seconds=0.0,
            peak_mib=0.0,
        )

    def _until(self, query: str, began: float) -> None:
        with self.database.connect() as connection:
            while connection.execute(query).fetchone() != (True,):
                if time.monotonic() - began > WAIT_S:
                    raise TimeoutError(f"{self.name}: {query}")
                time.sleep(POLL_S)

    def snapshot(self, rows: int) -> Result:
        """The copy of a subscription is COPY on both sides; `Copy` has the limit."""
        raise NotSupported(self.name)


@dataclass
class Replica(Waltap):
    """``waltap run`` into the SQL sink, a schema of ``target`` for each slot."""

    target: Database = field(kw_only=True)

    def __post_init__(self) -> None:
        self.sink = ""
        self.settings |= {
            "waltap.sink.type": "sql",
            "waltap.sink.url": self.target.dsn,
            "waltap.sink.table.name.format": f"{self.slot}.{{table}}",
        }

    def _check(self, rows: int) -> None:
        ((count,),) = self.target.execute(f"SELECT count(*) FROM {self._schema}.bench")
        if count < rows:
            raise ValueError(f"{self.name} delivered {count} of {rows} rows")

    def _clear(self) -> None:
        self.target.execute(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")

    @property
    def _schema(self) -> str:
        return self.slot
