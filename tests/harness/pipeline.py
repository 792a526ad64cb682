"""A pipeline inside the test process: the real engine on a real database, and a sink that keeps
everything it is given, so that a test can ask what was delivered, when, and hold it up.

`Destination` outlives the runs, as a database or a folder of files would. A `Run` is one life of an
engine, in a thread of its own.
"""

import contextlib
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
from tests.harness.command import waltap
from tests.harness.servers.postgres import Database

from waltap.changes.decode.message import Delete, Insert, LogicalMessage, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, parse_lsn
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.cli.profile_source import connected
from waltap.config.layers import read_tables
from waltap.config.resolve import resolve
from waltap.pipeline import Engine, Limits
from waltap.pipeline.api.repair import GapRepair
from waltap.pipeline.engine.preflight import checks
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host
from waltap.ports.offsets.gaps import RereadTable
from waltap.ports.offsets.offset import Offset
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.source.connector import PreflightCheck
from waltap.ports.specs import SinkSpec
from waltap.services.monitor.server import MonitorServer

WAIT_S = 120.0

QUICK = {
    "offset.flush.interval.ms": 0,
    "status.update.interval.ms": 100,
    "retriable.restart.connector.wait.ms": 100,
    "slot.retry.delay.ms": 100,
    "slot.max.retries": 600,
}
"""Short waits: the tests have no time. But a slot that the run before has just left is waited for."""

_numbers = itertools.count(1)


def until(condition: Callable[[], object], what: str, within: float = WAIT_S) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"waited {within} s for {what}"
        time.sleep(0.005)


class Event(msgspec.Struct, frozen=True):
    """One change or snapshot row as it was delivered. ``row`` is the new row, the old of a delete."""

    op: str
    table: str
    row: dict[str, Any]
    old: dict[str, Any]
    xid: int | None = None
    commit_lsn: int = 0


class Destination:
    """What was written so far, over all runs. ``position`` is that of the last flush. ``resumes``: snapshots
    that broke off may go on. ``takes_records``: batches have records of the profile's format."""

    def __init__(self) -> None:
        self.resumes = self.takes_records = False
        self.events: list[Event] = []
        self.batches: list[Batch] = []
        self.missed: list[str] = []
        self.position: Position | None = None
        self.before_open: Callable[[], object] = lambda: None
        self.before_write: Callable[[Batch], object] = lambda batch: None
        self.before_flush: Callable[[], object] = lambda: None
        self._written: Position | None = None

    def take(self, batch: Batch) -> None:
        self.before_write(batch)
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                for row in part.rows:
                    self.events.append(
                        Event("r", part.relation.name, _named(part.relation, row), {}, part.xid)
                    )
            elif isinstance(part, TransactionPart):
                self.events.extend(_events(part))
        self.batches.append(batch)
        self._written = batch.position

    def flush_all(self) -> Position | None:
        self.before_flush()
        self.position = self._written
        return self.position

    def hold(
        self, when: Callable[[Batch], object] = lambda _batch: True
    ) -> tuple[threading.Event, threading.Event]:
        """Hold the first write of which ``when`` is true; return what shows that it is held, and what lets go of
        it when it is set."""
        held, release = threading.Event(), threading.Event()

        def wait(batch: Batch) -> None:
            if not held.is_set() and when(batch):
                held.set()
                assert release.wait(WAIT_S)

        self.before_write = wait
        return held, release

    def pieces(self, table: str = "") -> list[SnapshotRows]:
        """Return the pieces of snapshots, in order; those of one table, by its name without its schema."""
        parts = (part for batch in self.batches for part in batch.parts)
        found = (part for part in parts if isinstance(part, SnapshotRows))
        return [piece for piece in found if table in {"", piece.relation.table}]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records or ()]

    def of(self, *tables: str) -> list[Event]:
        """Return the events of these tables (``public.`` may be left out), in order."""
        wanted = {name if "." in name else f"public.{name}" for name in tables}
        return [event for event in self.events if event.table in wanted]

    def ids(self, table: str, *ops: str, column: str = "id") -> list[int]:
        """Return the values of ``column`` in the events of a table with one of ``ops``, in order."""
        return [int(e.row[column]) for e in self.of(table) if not ops or e.op in ops]

    def table(self, table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the rows that an upserting consumer has, by ``key`` (default ``id``); it keeps what it
        has where a value was not sent."""
        names = key or ("id",)
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for event in self.of(table):
            place = tuple(event.row.get(name) for name in names)
            if event.op == "t":
                rows.clear()
                continue
            before = rows.pop(place, {})
            if event.op == "d":
                continue
            if event.old and not any(isinstance(event.old[n], MissingValue) for n in names):
                before = rows.pop(tuple(event.old[name] for name in names), before)
            rows[place] = {
                name: before.get(name, value) if isinstance(value, MissingValue) else value
                for name, value in event.row.items()
            }
        return rows


class _KeepingSink(Sink):
    """Gives everything to its destination; nothing of it is lost when an engine dies."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self.capabilities = SinkCapabilities(
            records=destination.takes_records, resumes_snapshots=destination.resumes
        )

    def open(self) -> Position | None:
        self._destination.before_open()
        return None

    def write(self, batch: Batch) -> None:
        self._destination.take(batch)

    def flush(self) -> Position | None:
        return self._destination.flush_all()

    def record_gap(self, table: str) -> None:
        self._destination.missed.append(table)

    def close(self) -> None:
        pass


class _Plugin:
    """Contributes the sink and keeps what observers are reported."""

    def __init__(self, destinations: dict[str, Destination]) -> None:
        self._destinations = destinations
        self.states: list[tuple[str, str]] = []
        self.failures: list[tuple[Exception, bool]] = []
        self.snapshots: list[tuple[str, str, int]] = []
        self.signals: list[tuple[str, str]] = []
        self.new_tables: list[tuple[str, str]] = []

    @hookimpl
    def register_sinks(self) -> Iterable[SinkSpec]:
        def kept(name: str, destination: Destination) -> SinkSpec:
            def build(_properties: object, _context: SinkContext) -> Sink:
                return _KeepingSink(destination)

            return SinkSpec(name=name, summary="Keeps everything.", factory=build)

        return [kept(*each) for each in self._destinations.items()]

    @hookimpl
    def on_state(self, state: str, detail: str) -> None:
        self.states.append((state, detail))

    @hookimpl
    def on_failure(self, error: Exception, retried: bool) -> None:
        self.failures.append((error, retried))

    @hookimpl
    def on_snapshot(self, event: str, table: str, rows: int) -> None:
        self.snapshots.append((event, table, rows))

    @hookimpl
    def on_new_table(self, table: str, event: str) -> None:
        self.new_tables.append((table, event))

    @hookimpl
    def on_signal(self, kind: str, identifier: str) -> None:
        self.signals.append((kind, identifier))


def profile_text(
    name: str, source: dict[str, Any], sink: dict[str, Any], *sinks: dict[str, Any], more: str = ""
) -> str:
    """Return a profile as TOML, with ``more`` tables behind; with ``sinks`` those are its sinks."""

    def table(head: str, values: dict[str, Any]) -> str:
        lines = (f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in values.items())
        return f"{head}\n{''.join(lines)}"

    branches = [table("[[sinks]]", each) for each in sinks] or [table("[sink]", sink)]
    return "".join((f'name = "{name}"\n', table("[source]", source), *branches, more))


SIGNALS = "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text)"
"""The signal table; ``signal.data.collection`` names it."""


class PipelineRig:
    """A profile of one database in a folder, and the destination of its runs.

    ``settings`` are properties by their full names; None takes one away. With ``branches``, [[sinks]] tables,
    the pipeline has several sinks; ``others`` are destinations by the names of their sinks, beside ``kept``.
    """

    def __init__(
        self, database: Database | None, folder: Path, settings: dict[str, Any] | None = None
    ) -> None:
        self.folder, self._database = folder, database
        self.destination = Destination()
        self.branches: list[dict[str, Any]] = []
        self.tables: dict[str, Any] = {}
        self.others: dict[str, Destination] = {}
        source: dict[str, Any] = {"type": "postgres"}
        if database is not None:
            name = database.name[:60]
            source |= {**database.properties(), "slot.name": name, "publication.name": name}
        self.settings = source | QUICK | (settings or {})

    @property
    def database(self) -> Database:
        assert self._database is not None, "this pipeline has no database"
        return self._database

    @database.setter
    def database(self, database: Database) -> None:
        self._database = database

    @property
    def slot(self) -> str:
        return str(self.settings["slot.name"])

    def signal(self, kind: str, *tables: str, name: str | None = None, **data: Any) -> None:
        """Write a signal into the signal table; in the names of ``data`` ``_`` is ``-``."""
        given = {key.replace("_", "-"): value for key, value in data.items()}
        if tables:
            given["data-collections"] = [t if "." in t else f"public.{t}" for t in tables]
        self.database.execute(
            "INSERT INTO signals VALUES (%s, %s, %s)",
            name or f"s{next(_numbers)}",
            kind,
            json.dumps(given),
        )

    def file(self, **settings: Any) -> Path:
        """Write the profile for the command line; its sink is ``null`` unless the settings or ``branches`` name
        others."""
        source, sink = self._sections(settings)
        path = self.folder / "p.toml"
        path.write_text(profile_text("p", source, {"type": "null"} | sink, *self.branches))
        return path

    def _sections(self, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        chosen = {k: v for k, v in (self.settings | settings).items() if v is not None}
        chosen.setdefault("waltap.state.dir", str(self.folder / "state"))
        sink = {k.removeprefix("sink."): chosen.pop(k) for k in list(chosen) if k[:5] == "sink."}
        return chosen, sink

    def command(self, *words: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run ``waltap`` with ``words``, of which ``FILE`` is the profile (else it comes last)."""
        path = self.file(**settings)
        named = [path if word == "FILE" else word for word in words]
        rest = [] if "FILE" in words else [path]
        return waltap(*named, *rest, cwd=self.folder, COLUMNS="300")

    def host(self, *plugins: object) -> tuple[Host, _Plugin]:
        host, own = Host(), _Plugin({"kept": self.destination} | self.others)
        host.register(own, "kept")
        for number, plugin in enumerate(plugins):
            host.register(plugin, f"of the test {number}")
        return host, own

    def profile(self, host: Host, **settings: Any) -> Any:
        source, sink = self._sections(settings)
        tables: dict[str, Any] = {"name": "p", "source": source}
        tables |= {"sinks": self.branches} if self.branches else {"sink": {"type": "kept"} | sink}
        return resolve(read_tables(tables | self.tables), host)

    def checked(self, *plugins: object, **settings: Any) -> list[PreflightCheck]:
        """Return the checks as ``waltap doctor`` makes them."""
        host, _ = self.host(*plugins)
        with connected(self.profile(host, **settings), host) as (connector, stages):
            return list(checks(stages, connector, locked=False))

    def doctor(self, **settings: Any) -> dict[str, PreflightCheck]:
        """Return the checks that fail or warn, by name."""
        found = self.checked(**settings)
        return {each.name: each for each in found if each.verdict in {"error", "warning"}}

    def repair(self) -> dict[str, RereadTable]:
        """Read again what a gap left out, as ``waltap repair`` does."""
        host, _ = self.host()
        repair = GapRepair(self.profile(host), host, patience_s=1.0)
        return repair.run(lambda: 1_700_000_000_000)

    def looked(self, **settings: Any) -> tuple[dict[str, PreflightCheck], list[str]]:
        """Return the checks of ``waltap doctor`` by name, and what ``waltap plan`` says that others must do."""
        host, _ = self.host()
        with connected(self.profile(host, **settings), host) as (connector, stages):
            found = {each.name: each for each in checks(stages, connector, locked=False)}
            return found, list(connector.plan(None).by_others)

    @property
    def offset_file(self) -> Path:
        return self.folder / "state" / "p" / "offset.json"

    def offset(self) -> Offset | None:
        try:
            return msgspec.json.decode(self.offset_file.read_bytes(), type=Offset)
        except FileNotFoundError:
            return None

    def slot_lsns(self) -> tuple[int, int]:
        """Return (confirmed_flush_lsn, restart_lsn) of the slot."""
        ((confirmed, restart),) = self.database.execute(
            "SELECT confirmed_flush_lsn::text, restart_lsn::text FROM pg_replication_slots"
            " WHERE slot_name = %s",
            self.slot,
        )
        return parse_lsn(confirmed), parse_lsn(restart)

    @contextlib.contextmanager
    def running(
        self,
        *plugins: object,
        ready: bool = True,
        limits: Limits | None = None,
        **settings: Any,
    ) -> Iterator["Run"]:
        """Run in the background while the block lasts; waits for streaming first if ``ready``."""
        run = Run(self, *plugins, limits=limits, settings=settings)
        with run:
            if ready:
                run.until(lambda: run.engine.state == "streaming", "streaming")
            yield run

    @contextlib.contextmanager
    def monitored(self) -> Iterator[tuple["Run", MonitorServer]]:
        """Stream in the background, with a status page, while the block lasts."""
        run = Run(self, limits=None, settings={})
        with MonitorServer(run.engine, "127.0.0.1:0", None, wait_s=WAIT_S) as monitor:
            run.host.register(monitor.exposition, "metrics")
            with run:
                run.until(lambda: run.engine.state == "streaming", "streaming")
                yield run, monitor

    def run(
        self,
        *plugins: object,
        limits: Limits | None = None,
        **settings: Any,
    ) -> "Run":
        """Run to the end, in a thread; raises what the engine raises."""
        run = Run(self, *plugins, limits=limits, settings=settings)
        with run:
            run.join()
        return run

    def deliver(self, *statements: str) -> None:
        for statement in statements:
            self.database.execute(statement)
        self.catch_up()

    def catch_up(self, **settings: Any) -> "Run":
        """Run until everything committed so far is delivered."""
        return self.run(limits=Limits(until_lsn=self.database.wal_end()), **settings)


class Run:
    """One life of an engine, in a thread. Leaving its block stops it and raises its error."""

    def __init__(
        self,
        pipeline: PipelineRig,
        *plugins: object,
        limits: Limits | None,
        settings: dict[str, Any],
    ) -> None:
        self.pipeline = pipeline
        self.host, self.notices = pipeline.host(*plugins)
        self.profile = pipeline.profile(self.host, **settings)
        self.engine = Engine(
            self.profile,
            self.host,
            limits=limits,
            ready_file=pipeline.folder / "ready",
        )
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)

    def _live(self) -> None:
        try:
            self.engine.run()
        except BaseException as error:
            self.error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def until(self, condition: Callable[[], object], what: str, within: float = WAIT_S) -> None:
        """Wait for ``condition``; an engine that ends meanwhile is an error."""

        def met() -> bool:
            done = self.ended
            if condition():
                return True
            if done:
                self.raise_error()
                raise AssertionError(f"the engine ended before {what}")
            return False

        until(met, what, within)

    def stop(self) -> None:
        """Stop cleanly and wait for the end; raises what the engine raised."""
        self.engine.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(WAIT_S * 2)
        assert self.ended, "the engine does not end"
        self.raise_error()

    def raise_error(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_details: object) -> None:
        self.engine.stop()
        self._thread.join(WAIT_S * 2)
        assert self.ended, "the engine does not end"
        if kind is None:
            self.raise_error()


def _named(relation: Relation, row: Tuple) -> dict[str, Any]:
    return dict(zip((c.name for c in relation.columns), row, strict=False))


def _events(part: TransactionPart) -> Iterator[Event]:
    for change in part.changes:
        about = {"xid": part.xid, "commit_lsn": part.commit_lsn}
        match change:
            case Insert():
                row = _named(change.relation, change.new)
                yield Event("c", change.relation.name, row, {}, **about)
            case Update():
                row, old = (_named(change.relation, t) for t in (change.new, change.old))
                yield Event("u", change.relation.name, row, old, **about)
            case Delete():
                old = _named(change.relation, change.old)
                yield Event("d", change.relation.name, old, old, **about)
            case Truncate():
                for relation in change.relations:
                    yield Event("t", relation.name, {}, {}, **about)
            case LogicalMessage():
                yield Event("m", "", {"content": change.content.decode()}, {}, **about)
