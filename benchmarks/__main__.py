"""``python -m benchmarks`` stream-json|stream-changelog|stream-mixed|one-row|stream-kafka|
stream-kafka-avro|stream-sql|snapshot|snapshot-sql|parallel-snapshot|decoders|large-transaction|start|
scale|all: one server, one run, one table.

`method.md` says what is measured and how. It starts a PostgreSQL of its own in a temporary folder.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scripts.printed_output import print_speed
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Cluster, Database, Unavailable, server_programs
from tests.harness.servers.registry import Registry

from benchmarks import report
from benchmarks.contender import (
    PEER,
    TUNED,
    Contender,
    Copy,
    Debezium,
    PgRecvlogical,
    Result,
    Waltap,
    installed,
)
from benchmarks.dataset import fill, fill_and_change, make_tables
from benchmarks.jdbc_sink import TUNED_SINK, JdbcSink
from benchmarks.machine import stamp
from benchmarks.measured import Failed, Measured, run
from benchmarks.replica import Replica, Subscription

PGOUTPUT = ("proto_version=1", "publication_names=bench")
DECODERS: list[tuple[str, str, tuple[str, ...], dict[str, str]]] = [
    ("pgoutput", "pgoutput", PGOUTPUT, {}),
    ("wal2json 2", "wal2json", ("format-version=2",), {"plugin.name": "wal2json"}),
    ("decoderbufs", "decoderbufs", (), {"plugin.name": "decoderbufs"}),
]
"""(name, output plugin, options for pg_recvlogical, properties for waltap)."""

AVRO_CONVERTER = "io.confluent.connect.avro.AvroConverter"
PEERS = ["Debezium", "Debezium, tuned"]
BARS = (
    report.Bar(contender="waltap, change log", of="Debezium", times=12.0),
    report.Bar(contender="waltap, change log", of="COPY text", times=0.75),
    report.Bar(contender="waltap, JSON lines", of="Debezium", times=7.0),
    report.Bar(contender="waltap, JSON lines", mib=200),
    report.Bar(contender="waltap, change log", mib=200),
)
"""What an initial snapshot is to reach, in one run on one machine."""

Make = Callable[[Database, Path, str, int], Contender]
Load = Callable[[psycopg.Connection[Any], int, int, int], None]


def _insert(connection: psycopg.Connection[Any], low: int, rows: int, per_transaction: int) -> None:
    fill(connection, low, low + rows - 1, per_transaction)


def main() -> int:
    """Run the benchmarks asked for; 0: all ran."""
    options = _options()
    if options.peer is None:
        options.peer = subprocess.run([PEER, "--installed"], check=False).returncode == 0
        if not options.peer:
            print("Debezium is not installed (benchmarks/peer/run-peer --install): without it")
    names = [options.benchmark] if options.benchmark != "all" else list(BENCHMARKS)
    try:
        for name in names:
            own = argparse.Namespace(**vars(options))
            own.rows = options.rows or ROWS.get(name, 500_000)
            BENCHMARKS[name](name, own)
    except (Failed, Unavailable) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    if options.benchmark == "all" and options.write:
        print_speed(sorted(report.RESULTS.glob("*.json")))
    return 0


def one_row(benchmark: str, options: argparse.Namespace) -> None:
    """Drain one backlog of transactions of one row."""
    options.per_transaction = 1
    makers = [_maker(PgRecvlogical, "pg_recvlogical"), *map(_waltap, ("jsonl", "changelog"))]
    _finish(benchmark, options, _drained(makers, options), "pg_recvlogical")


def start(benchmark: str, options: argparse.Namespace) -> None:
    """Start `waltap` in processes of their own; medians of `STARTS`, in seconds."""
    waltap = Path(sys.executable).parent / "waltap"
    with _workspace() as (database, folder):
        with database.connect() as connection:
            fill(connection, 1, 1000)
        took: dict[str, list[tuple[float, Measured]]] = {}
        for number in range(STARTS):
            slot = f"start_{number}"
            one = Waltap("start", database, folder / slot, slot, 1, "jsonl", folder / slot / "out")
            help_ = run([waltap, "--help"], folder, environment=installed())
            for name, measured in (
                ("waltap --help", help_),
                ("snapshot of 1,000 rows", one.first_rows()),
            ):
                took.setdefault(name, []).append((measured.seconds, measured))
            one.ready()
            took.setdefault("start to streaming", []).append(one.until_ready())
    figures: list[dict[str, object]] = [
        {
            "what": name,
            "s": round(median(seconds for seconds, _ in each), 3),
            "CPU s": round(median(measured.cpu_seconds for _, measured in each), 3),
        }
        for name, each in took.items()
    ]
    for each in figures:
        _say(str(each))
    if options.write:
        _say(f"written: {report.write_cases(benchmark, stamp(server_programs()), figures)}")


def scale(_benchmark: str, options: argparse.Namespace) -> None:
    """Capture 5,000 tables; `benchmarks.scale` has more cases."""
    command = [sys.executable, "-m", "benchmarks.scale", "tables"]
    if subprocess.run([*command, *(["--write"] * options.write)], check=False).returncode:
        raise Failed("benchmarks.scale")


def stream(benchmark: str, options: argparse.Namespace) -> None:
    """Drain one backlog of changes through every contender."""
    sinks = ["null", "jsonl"] if benchmark == "stream-json" else ["changelog"]
    makers = [_maker(PgRecvlogical, "pg_recvlogical"), *map(_waltap, sinks), *_peers(options)]
    results = _drained(makers, options)
    _finish(benchmark, options, results, "pg_recvlogical")


def stream_mixed(benchmark: str, options: argparse.Namespace) -> None:
    """Drain inserts, updates and deletes of a table with REPLICA IDENTITY FULL."""
    settings = {"tombstones.on.delete": "false"}
    makers = [
        _maker(PgRecvlogical, "pg_recvlogical"),
        *(_waltap(sink, "", settings) for sink in ("jsonl", "changelog")),
        *_peers(options, settings),
    ]
    results = _drained(makers, options, fill_and_change)
    _finish(benchmark, options, results, "pg_recvlogical")


def stream_kafka(benchmark: str, options: argparse.Namespace) -> None:
    """Drain one backlog into one broker through every contender, as JSON or Avro."""
    with contextlib.ExitStack() as servers:
        broker = Kafka.create(quick=False, heap_mb=1024)
        servers.callback(broker.remove)
        _warm_up(broker)
        converters: dict[str, str] = {}
        if benchmark == "stream-kafka-avro":
            registry = Registry.create()
            servers.callback(registry.remove)
            for side in ("key", "value"):
                converters[f"{side}.converter"] = AVRO_CONVERTER
                converters[f"{side}.converter.schema.registry.url"] = registry.url
        makers = _into_kafka(broker, converters, options)
        _finish(benchmark, options, _drained(makers, options), "pg_recvlogical")


def _warm_up(broker: Kafka) -> None:
    """Let the broker's JVM compile what a producer needs: the first contender would pay for all."""
    _say("warming up the broker")
    # a client ends with its last name, and its unanswered requests with it
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("warm-up", 1)])["warm-up"].result(60)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "warm-up", "linger.ms": 5}
    )
    producer.init_transactions(60)
    for _ in range(40):
        producer.begin_transaction()
        for number in range(10_000):
            producer.produce("warm-up", bytes(300), str(number))
            producer.poll(0)
        producer.commit_transaction(60)


def _into_kafka(
    broker: Kafka, converters: Mapping[str, str], options: argparse.Namespace
) -> list[Make]:
    settings = {
        **converters,
        "waltap.sink.bootstrap.servers": broker.bootstrap,
        "waltap.sink.topic.creation.default.retention.bytes": "100000000",
    }

    def ours(guarantee: str) -> Make:
        chosen = {**settings, "waltap.sink.delivery.guarantee": guarantee}

        def make(database: Database, folder: Path, slot: str, round_: int) -> Contender:
            name = f"waltap, Kafka, {guarantee.replace('_', ' ')}"
            own = {**chosen, "waltap.sink.transactional.id": slot, "waltap.sink.type": "kafka"}
            return Waltap(name, database, folder / slot, slot, round_, "", None, own)

        return make

    def theirs(name: str, tuning: dict[str, str]) -> Make:
        def make(database: Database, folder: Path, slot: str, round_: int) -> Contender:
            place = folder / slot
            own = {**converters, **tuning}
            return Debezium(name, database, place, slot, round_, own, kafka=broker.bootstrap)

        return make

    makers = [_maker(PgRecvlogical, "pg_recvlogical"), ours("at_least_once"), ours("exactly_once")]
    if options.peer:
        makers += [theirs(n, t) for n, t in zip(PEERS, ({}, TUNED), strict=True)]
    return makers


def sql(benchmark: str, options: argparse.Namespace) -> None:
    """Fill tables of a second PostgreSQL server: drain one backlog, or take a snapshot."""
    with contextlib.ExitStack() as stack:
        server = Cluster.create(shared_buffers="512MB", max_wal_size="16GB")
        stack.callback(server.remove)
        target = server.create_database("target")
        ours = _maker(Replica, "waltap, SQL", target=target)
        if benchmark == "stream-sql":
            makers = [_maker(Subscription, "subscription", target=target), ours]
            if options.peer:
                broker = Kafka.create(quick=False, heap_mb=1024)
                stack.callback(broker.remove)
                makers += [
                    _maker(JdbcSink, name, target=target, kafka=broker.bootstrap, tuning=tuning)
                    for name, tuning in zip(PEERS, ({}, TUNED_SINK), strict=True)
                ]
            _finish(benchmark, options, _drained(makers, options), "subscription")
        else:
            results = _snapshots(options, [_maker(Copy, "COPY text"), ours])
            _finish(benchmark, options, results, "COPY text")


def decoders(benchmark: str, options: argparse.Namespace) -> None:
    """Drain one backlog through every decoder, each beside pg_recvlogical with the same plugin."""
    makers = [
        maker
        for name, plugin, server, settings in DECODERS
        for maker in (
            _maker(PgRecvlogical, f"pg_recvlogical, {name}", plugin=plugin, options=server),
            _maker(Waltap, f"waltap, {name}", settings=settings),
        )
    ]
    results = _drained(makers, options)
    for name, *_ in DECODERS:
        pair = [result for result in results if result.contender.endswith(f", {name}")]
        title = f"{benchmark}-{name.replace(' ', '-')}"
        _finish(title, options, pair, f"pg_recvlogical, {name}")


def large_transaction(benchmark: str, options: argparse.Namespace) -> None:
    """Drain one transaction that the server streams while it is in progress."""
    options.per_transaction = 0
    streaming = ("proto_version=2", "publication_names=bench", "streaming=on")
    makers = [
        _maker(PgRecvlogical, "pg_recvlogical", options=streaming),
        *(
            _waltap(sink, "", {"pgoutput.streaming": "on"})
            for sink in ("null", "jsonl", "changelog")
        ),
    ]
    results = _drained(makers, options, logical_decoding_work_mem="64kB")
    _finish(benchmark, options, results, "pg_recvlogical")


def _drained(
    makers: Sequence[Make], options: argparse.Namespace, load: Load = _insert, **settings: str
) -> list[Result]:
    """Let every contender take the backlog of ``load``. ``settings`` are the server's."""
    with _workspace(**settings) as (database, folder):
        rounds = [
            [make(database, folder, f"bench_{round_}_{n}", round_) for n, make in enumerate(makers)]
            for round_ in range(1, options.rounds + 1)
        ]
        everyone = [contender for contenders in rounds for contender in contenders]
        # Debezium first: it needs a few rows of its own, which nobody else should find
        for contender in sorted(everyone, key=lambda c: not isinstance(c, Debezium)):
            _say(f"round {contender.round}, {contender.name}: slot and offset")
            contender.ready()
        _say(f"loading {options.rows:,} rows, {options.per_transaction} a transaction")
        first = database.execute("SELECT coalesce(max(id), 0) + 1 FROM bench")[0][0]
        with database.connect() as connection:
            load(connection, first, options.rows, options.per_transaction or options.rows)
        database.execute("CHECKPOINT")
        end = str(database.execute("SELECT pg_current_wal_lsn()")[0][0])
        return _rounds(rounds, lambda contender: contender.drain(options.rows, end))


def snapshot(benchmark: str, options: argparse.Namespace) -> None:
    """Read the whole table through every contender, and hold what came against the bars."""
    makers = [
        *(_maker(Copy, f"COPY {form}") for form in ("text", "binary")),
        *map(_waltap, ("null", "jsonl", "changelog")),
        *_peers(options)[:1],
    ]
    results = _snapshots(options, makers)
    _finish(benchmark, options, results, "COPY text")
    report.show_bars(report.held(results, BARS))


def parallel_snapshot(benchmark: str, options: argparse.Namespace) -> None:
    """Read the whole table by 1, 2 and 4 connections at a time."""
    makers = [
        _maker(Copy, "COPY text"),
        *(
            _waltap(sink, f", {threads} threads", {"snapshot.max.threads": str(threads)})
            for sink in ("jsonl", "changelog")
            for threads in (1, 2, 4)
        ),
        *_peers(options)[:1],
    ]
    _finish(benchmark, options, _snapshots(options, makers), "COPY text")


def _snapshots(options: argparse.Namespace, makers: Sequence[Make]) -> list[Result]:
    with _workspace() as (database, folder):
        _say(f"loading {options.rows:,} rows")
        with database.connect() as connection:
            fill(connection, 1, options.rows, 10_000)
        database.execute("VACUUM ANALYZE bench")
        rounds = [
            [make(database, folder, f"bench_{round_}_{n}", round_) for n, make in enumerate(makers)]
            for round_ in range(1, options.rounds + 1)
        ]
        return _rounds(rounds, lambda contender: contender.snapshot(options.rows))


STARTS = 9
ROWS = {
    "one-row": 300_000,
    "large-transaction": 2_000_000,
    "snapshot": 1_000_000,
    "parallel-snapshot": 1_000_000,
}
"""Rows of benchmarks that need another number than the others."""

BENCHMARKS: dict[str, Callable[[str, argparse.Namespace], None]] = {
    "stream-json": stream,
    "stream-changelog": stream,
    "stream-mixed": stream_mixed,
    "one-row": one_row,
    "stream-kafka": stream_kafka,
    "stream-kafka-avro": stream_kafka,
    "stream-sql": sql,
    "snapshot-sql": sql,
    "snapshot": snapshot,
    "parallel-snapshot": parallel_snapshot,
    "decoders": decoders,
    "large-transaction": large_transaction,
    "start": start,
    "scale": scale,
}


def _rounds(
    rounds: Sequence[Sequence[Contender]], measure: Callable[[Contender], Result]
) -> list[Result]:
    """Measure each round's contenders, every other round in reverse: drift hits all alike."""
    results = []
    for number, contenders in enumerate(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            # The disk must not be busy with the load or another contender's output.
            os.sync()
            result = measure(contender)
            _say(
                f"round {result.round}, {result.contender}: {result.rate:,.0f} rows/s,"
                f" {result.peak_mib:,.0f} MiB"
            )
            results.append(result)
    return results


def _finish(
    benchmark: str, options: argparse.Namespace, results: Sequence[Result], limit: str
) -> None:
    peers = [name for name in PEERS if any(r.contender == name for r in results)]
    order = list(dict.fromkeys(r.contender for r in results if r.round == 1))
    ordered = sorted(results, key=lambda r: (order.index(r.contender), r.round))
    rows = report.rows_of(ordered, limit, peers)
    title = f"{benchmark}: {options.rows:,} rows, median of {options.rounds} rounds, limit: {limit}"
    report.show(title, rows)
    if options.write:
        machine = {**stamp(server_programs()), "rows_per_transaction": options.per_transaction}
        _say(f"written: {report.write(benchmark, machine, rows, ordered)}")


def _maker(kind: type[Contender], name: str, **more: Any) -> Make:
    def make(database: Database, folder: Path, slot: str, round_: int) -> Contender:
        return kind(name, database, folder / slot, slot, round_, **more)

    return make


def _waltap(sink: str, kind: str = "", settings: Mapping[str, str] | None = None) -> Make:
    """The null sink renders JSON and drops it; the others write into the benchmark's folder. ``kind`` is
    added to the name of one that has ``settings`` of its own."""
    named = {"null": "waltap, JSON to nowhere", "jsonl": "waltap, JSON lines"}

    def make(database: Database, folder: Path, slot: str, round_: int) -> Contender:
        name = named.get(sink, "waltap, change log") + kind
        output = None if sink == "null" else folder / slot / "output"
        more = dict(settings or {})
        return Waltap(name, database, folder / slot, slot, round_, sink, output, more)

    return make


def _peers(options: argparse.Namespace, settings: Mapping[str, str] | None = None) -> list[Make]:
    if not options.peer:
        return []

    def maker(name: str, tuning: dict[str, str]) -> Make:
        def make(database: Database, folder: Path, slot: str, round_: int) -> Contender:
            own = {**(settings or {}), **tuning}
            return Debezium(name, database, folder / slot, slot, round_, own)

        return make

    return [maker(name, tuning) for name, tuning in zip(PEERS, ({}, TUNED), strict=True)]


@contextlib.contextmanager
def _workspace(**settings: str) -> Iterator[tuple[Database, Path]]:
    """A server of our own with the tables, and a folder for outputs; both gone afterwards."""
    _say("starting PostgreSQL")
    folder = Path(tempfile.mkdtemp(prefix="waltap-benchmarks-"))
    cluster = Cluster.create(shared_buffers="512MB", max_wal_size="16GB", **settings)
    try:
        database = cluster.create_database("bench")
        with database.connect() as connection:
            make_tables(connection)
            connection.execute("CREATE PUBLICATION bench FOR TABLE bench, bench_empty")
        yield database, folder
    finally:
        cluster.remove()
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--rows", type=int, help="rows (500000, or what a benchmark needs)")
    parser.add_argument(
        "--per-transaction", type=int, default=1000, help="rows a transaction (1000)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="how often each is measured (2)")
    parser.add_argument(
        "--peer",
        action=argparse.BooleanOptionalAction,
        help="with or without Debezium (default: if it is installed)",
    )
    parser.add_argument(
        "--write",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write a file into benchmarks/results (yes)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
