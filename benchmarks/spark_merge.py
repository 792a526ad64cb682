"""Updates of a large table in Spark: ``python -m benchmarks.spark_merge [--rows N] [--updates N]``.

A change log with a snapshot of ``--rows`` and ``--updates`` updates of rows chosen by chance is applied to
Parquet, Delta Lake and Iceberg, with their history and without, a micro-batch of ``--batch`` changes a
commit. Beside it, in the same
session, the pipeline that people write by hand: Structured Streaming over JSON envelopes, in the same
portions, with a MERGE into Delta Lake for each (`HandWritten`). Rows a second, processor time of Python
and the JVM, and bytes written for each byte of the rows that changed; of Parquet then what reading costs
with all these changes pending, and once they are folded. Without a server. Iceberg takes part where the
pyspark is one that it runs on (4.1: ``.venv-spark41/bin/python -m benchmarks.spark_merge``).
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.harness.changelog import context
from tests.harness.servers import iceberg, spark_jars
from tests.harness.servers.postgres import server_programs

from benchmarks.machine import stamp
from benchmarks.render_json import json_format, relation, row
from benchmarks.report import RESULTS
from waltap.changes.decode.message import Update
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.encoders.json.lines import JsonLines
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.options import ApplyOptions
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.session.session import prepare, start_session
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput

PER_TRANSACTION = 1000
PIECE = 50_000
WARM = 4
"""Batches that each contender applies before anybody is measured, and one: the JVM compiles meanwhile."""

START = 1 << 24
PEER = "by hand, Delta"
TICK = os.sysconf("SC_CLK_TCK")

ENVELOPE = """
    topic string, key struct<id: bigint>, value struct<
      op: string, source: struct<lsn: bigint, txId: bigint>,
      before: struct<id: bigint>,
      after: struct<id: bigint, quantity: int, name: string, note: string, price: string,
        active: boolean, created: bigint, updated: string, day: int, ratio: double, ref: string,
        doc: string>>
"""
"""What the hand-written pipeline knows of the envelopes: what it needs, and no more."""

AFTER = """
    after.id, after.quantity, after.name, after.note, cast(after.price as decimal(10,2)) price,
    after.active, cast(timestamp_micros(after.created) as timestamp_ntz) created,
    cast(after.updated as timestamp) updated, date_from_unix_date(after.day) day, after.ratio,
    after.ref, after.doc
"""


@dataclass
class Figures:
    """What one contender took for the updates, without its first batch, which warms up."""

    contender: str
    rows: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    written: int = 0
    amplification: float = 0.0
    batches: list[float] = field(default_factory=list)
    first_load_s: float = 0.0


class Work:
    """The snapshot and the updates, as a change log and as JSON envelopes in files of one batch each."""

    def __init__(self, folder: Path, rows: int, updates: int, batch: int) -> None:
        self.folder, self.rows, self.batch = folder, rows, batch
        self.table = relation("d")
        self.lsn = START
        self.batches = updates // batch + 1  # the first one warms up

    @cached_property
    def log(self) -> ChangeLog:
        """The change log, once it is written."""
        return ChangeLog(str(self.folder / "log"))

    def write(self) -> None:
        """Write both."""
        (self.folder / "json").mkdir(parents=True)
        settings = ChangeLogProperties(path=str(self.folder / "log"))
        self._sink = ChangeLogSink(settings, context(self.folder, has_offset=True))
        self._sink.open()
        for batch in self._snapshot():
            self._sink.write(batch)
        self._sink.flush()
        render = json_format(properties={"decimal.handling.mode": "string"}).render
        lines, chance = JsonLines(), random.Random(11)
        for number in range(self.batches):
            parts = list(self._updates(chance, number))
            events = sum(len(part.changes) for part in parts)
            last = Position(parts[-1].end_lsn)
            self._sink.write(Batch(parts=list(parts), position=last, events=events))
            self._sink.flush()
            with (self.folder / "json" / f"{number:05}.json").open("wb") as file:
                file.write(lines.lines(render(list(parts), time.time_ns())))
        self._sink.close()

    def _snapshot(self) -> Iterator[Batch]:
        rows = self.rows
        for first in range(0, rows, PIECE):
            last = first + PIECE >= rows
            part = SnapshotRows(
                relation=self.table,
                rows=[row(n) for n in range(first, min(first + PIECE, rows))],
                ts=1_700_000_000_000_000,
                lsn=self.lsn,
                xid=700,
                first_marker="true" if first else "first",
                last_marker="last" if last else "true",
                complete=last,
                chunk=first // PIECE,
                ends_chunk=True,
            )
            part.opens = first == 0
            here = Position(self.lsn)
            yield Batch(parts=[part], position=here, events=len(part.rows), snapshot=True)
        yield Batch(parts=[], position=Position(self.lsn), events=0, snapshot=True)

    def _updates(self, chance: random.Random, number: int) -> Iterator[TransactionPart]:
        for first in range(0, self.batch, PER_TRANSACTION):
            changes, begin = [], self.lsn
            for _each in range(min(PER_TRANSACTION, self.batch - first)):
                self.lsn += 200
                at = chance.randrange(self.rows)
                new = (str(at), str(number), *row(at + self.lsn)[2:])
                changes.append(Update(self.table, self.lsn, new))
            yield TransactionPart(
                xid=700 + self.lsn % 1_000_000,
                begin_lsn=begin,
                commit_lsn=self.lsn + 8,
                commit_ts=1_700_000_000_000_000 + self.lsn,
                end_lsn=self.lsn + 56,
                changes=list(changes),
            )
            self.lsn += 64


class Ours:
    """The change log, applied as `waltap run` does it. ``history``: the changes are kept, too, which the
    pipeline that is written by hand does not do."""

    def __init__(self, work: Work, spark: Any, choice: FormatChoice, *, history: bool) -> None:
        self.name = {"parquet": "Parquet", "delta": "Delta", "iceberg": "Iceberg"}[choice.name]
        self._work, self._spark, self._choice = work, spark, choice
        self.folder = work.folder / f"ours-{choice.name}"
        if history:
            self.name += " and history"
            self.folder = work.folder / f"ours-{choice.name}-history"
        self.output = SparkOutput(str(self.folder))
        modes = ModeRules(history=("keep" if history else "none",))
        options = ApplyOptions(modes=modes)
        self.applier = OutputApplier(prepare(spark), work.log, self.output, options, choice)
        self.applier.open()
        self._reader = prepare(spark)
        self._left = list(work.log.manifests(self.applier.state.log_position))

    def load(self) -> None:
        """Apply the snapshot."""
        count = len(self._left) - self._work.batches
        self.applier.apply(self._left[:count])
        self._left = self._left[count:]
        if self._choice.name == "parquet":
            self.applier.maintain()

    def batch(self) -> None:
        """Apply one batch of updates."""
        self.applier.apply([self._left.pop(0)])

    def reopen(self, options: ApplyOptions) -> None:
        """Apply as another driver would, with ``options``."""
        self.applier.close()
        self.output = SparkOutput(str(self.folder))
        self.applier = OutputApplier(
            prepare(self._spark), self._work.log, self.output, options, self._choice
        )
        self.applier.open()

    def rows(self) -> Any:
        """Return the table."""
        state = self.applier.state
        table = state.tables["public.items"]
        assert not table.failed, table.failed
        return self.applier.format.read(self._reader, table, "current")

    def close(self) -> None:
        self.applier.close()


class HandWritten:
    """Structured Streaming over the envelopes, and a MERGE into Delta Lake for each micro-batch.

    As tuned as we know how: the reader knows the schema, and of the envelope only what is needed; the last
    change of each key by `max_by`, without sorting; deletion vectors; the rows held while MERGE reads them
    more than once. What it leaves out: values that were not sent, keys that move, truncates, a history,
    a schema that changes, a batch that comes again.
    """

    name = PEER

    def __init__(self, work: Work, spark: Any) -> None:
        self._work, self._spark = work, spark.newSession()
        self.folder = work.folder / "peer"
        self._at = f"delta.`{self.folder}/table`"
        self._done = 0

    def load(self) -> None:
        """Make the table from the rows of the snapshot, with files as large as ours."""
        log = self._work.log
        snapshot = [each for each in log.manifests() if each.last_commit_ts is None]
        paths = [
            log.store.uri(part.path)
            for each in snapshot
            for entry in each.tables
            for part in entry.segments
        ]
        self._spark.read.parquet(*paths).createOrReplaceTempView("snapshot_rows")
        names = [name for name in self._spark.table("snapshot_rows").columns if name[0] != "_"]
        files = self._work.rows // 1_000_000 + 1
        self._spark.sql(
            f"CREATE TABLE {self._at} USING delta"
            " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
            f" AS SELECT /*+ COALESCE({files}) */ {', '.join(names)} FROM snapshot_rows"
        )

    def batch(self) -> None:
        """Let the query take one file."""
        place = self.folder / "stream"
        place.mkdir(exist_ok=True)
        name = f"{self._done:05}.json"
        os.link(self._work.folder / "json" / name, place / name)
        self._done += 1
        self._query().awaitTermination()

    def rest(self) -> None:
        """Let the query take all that is left, a file in each micro-batch."""
        for number in range(self._done, self._work.batches):
            name = f"{number:05}.json"
            os.link(self._work.folder / "json" / name, self.folder / "stream" / name)
        self._query().awaitTermination()

    def _query(self) -> Any:
        stream = (
            self._spark.readStream.format("json")
            .schema(ENVELOPE)
            .option("maxFilesPerTrigger", 1)
            .load(str(self.folder / "stream"))
        )
        return (
            stream.writeStream.foreachBatch(self._merge)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def _merge(self, batch: Any, number: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        value = F.col("value")
        last = (
            batch.select(
                F.coalesce(value["after"]["id"], value["before"]["id"]).alias("key"),
                value["source"]["lsn"].alias("lsn"),
                F.struct(value["op"].alias("op"), value["after"].alias("after")).alias("row"),
            )
            .groupBy("key")
            .agg(F.max_by("row", "lsn").alias("row"))
            .selectExpr("key", "row.op", "row.after.*")
        )
        last = last.selectExpr("key", "op", "struct(* except(key, op)) after")
        last = last.selectExpr("key __key", "op __op", *AFTER.replace("\n", " ").split(", "))
        last.createOrReplaceTempView("latest")
        names = [name for name in last.columns if not name.startswith("__")]
        listed = ", ".join(names)
        values = ", ".join(f"s.{name}" for name in names)
        update = ", ".join(f"t.{name} = s.{name}" for name in names)
        batch.sparkSession.sql(
            f"MERGE INTO {self._at} t USING latest s ON t.id = s.__key"
            " WHEN MATCHED AND s.__op = 'd' THEN DELETE"
            f" WHEN MATCHED THEN UPDATE SET {update}"
            f" WHEN NOT MATCHED AND s.__op <> 'd' THEN INSERT ({listed}) VALUES ({values})"
        )

    def rows(self) -> Any:
        """Return the table."""
        return self._spark.sql(f"SELECT * FROM {self._at}")

    def close(self) -> None:
        pass


def measured(contender: Any, work: Work) -> Figures:
    """Load the table, apply one batch to warm up, then the others."""
    found = Figures(contender.name)
    began = time.monotonic()
    contender.load()
    found.first_load_s = round(time.monotonic() - began, 2)
    contender.batch()
    size, used, began = _size(contender.folder), _cpu(), time.monotonic()
    if isinstance(contender, HandWritten):
        contender.rest()
    else:
        for _each in range(work.batches - 1):
            at = time.monotonic()
            contender.batch()
            found.batches.append(round(time.monotonic() - at, 2))
    found.seconds = round(time.monotonic() - began, 2)
    found.cpu_seconds = round(_cpu() - used, 2)
    found.written = _size(contender.folder) - size
    found.rows = (work.batches - 1) * work.batch
    return found


def _size(folder: Path) -> int:
    return sum(
        each.stat().st_size
        for each in folder.rglob("*")
        if each.is_file() and "stream" not in each.parts
    )


def _cpu() -> float:
    """Return the processor time that this process and its children have used, in seconds."""
    own = os.getpid()
    ticks, parents = {}, {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(each.parent.name)
        parents[number], ticks[number] = int(words[1]), sum(map(int, words[11:15]))
    family = {own}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks[each] for each in family) / TICK


def _changed_bytes(spark: Any, work: Work) -> int:
    """Return the bytes of the rows that the measured updates carry, written once as Parquet."""
    paths = [
        work.log.store.uri(part.path)
        for each in list(work.log.manifests())[-(work.batches - 1) :]
        for entry in each.tables
        for part in entry.segments
    ]
    rows = spark.read.parquet(*paths)
    target = work.folder / "changed"
    rows.select(*(name for name in rows.columns if name[0] != "_")).coalesce(1).write.parquet(
        str(target)
    )
    return _size(target)


def _checksum(frame: Any) -> tuple[int, int]:
    from pyspark.sql import functions as F  # noqa: N812

    listed = [F.col(name).cast("string") for name in sorted(frame.columns)]
    found = frame.agg(F.count("*"), F.sum(F.xxhash64(*listed).cast("decimal(38,0)"))).collect()[0]
    return int(found[0]), int(found[1])


def run(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Measure all contenders."""
    began = time.monotonic()
    work = Work(folder / "work", options.rows, options.updates, options.batch)
    making = multiprocessing.get_context("spawn").Process(target=work.write)
    making.start()  # a core makes the work, while the other warms up
    warm = Work(folder / "warm", options.batch, WARM * options.batch, options.batch)
    warm.write()
    spark = _session(options, folder)
    formats = [
        partial(Ours, choice=FormatChoice(name), history=history)
        for name in options.formats
        for history in (True, False)
    ]
    makers: list[Callable[[Work, Any], Any]] = [*formats]
    if options.peer:
        makers.append(HandWritten)
    for make in makers:  # what the JVM compiles, it compiles before anybody is measured
        contender = make(warm, spark)
        measured(contender, warm)
        contender.close()
    making.join()
    if making.exitcode:
        raise SystemExit("the rows and the updates were not made")
    seconds = time.monotonic() - began
    print(
        f"made {options.rows:,} rows and the updates, and warmed up, in {seconds:.0f} s", flush=True
    )
    changed = _changed_bytes(spark, work)
    found, sums = [], {}
    for make in makers:
        contender = make(work, spark)
        figures = measured(contender, work)
        figures.amplification = round(figures.written / changed, 2)
        found.append(figures)
        print(_line(figures), flush=True)
        if options.reads and contender.name == "Parquet and history":
            _print_reads(contender, options)
        if options.check:
            sums[contender.name] = _checksum(contender.rows())
        contender.close()
        spark.catalog.clearCache()
    if len(set(sums.values())) > 1:
        print(f"the tables differ: {sums}")
    spark.stop()
    return found


def _session(options: argparse.Namespace, folder: Path) -> Any:
    jars, settings = [spark_jars.delta()], {"spark.driver.memory": options.memory}
    if "iceberg" in options.formats:
        jars.append(spark_jars.iceberg())
    settings["spark.jars"] = ",".join(jars)
    for pair in options.set or ():
        name, _, value = pair.partition("=")
        settings[name] = value
    notes = folder / "notes"
    for name in ("iceberg", "delta"):
        if name in options.formats or name == "delta":
            import pyspark

            settings = FormatChoice(name).settings(pyspark.__version__, settings)
    return start_session("benchmarks", master="local[2]", settings=settings, notes=notes)


def _print_reads(ours: Ours, options: argparse.Namespace) -> None:
    """Read the table with changes pending, as it is; then folded by force."""
    for name in ("pending", "folded"):
        if name == "folded":
            forced = ApplyOptions(compact_rows=0, compact_share=0.0)
            ours.reopen(forced)
            ours.applier.maintain()
        table = ours.applier.state.tables["public.items"]
        rows = sum(each.rows for each in table.pending)
        for query, work in READS.items():
            seconds, cpu = [], []
            for _each in range(2):
                began, used = time.monotonic(), _cpu()
                work(ours.rows(), options.rows)
                seconds.append(time.monotonic() - began)
                cpu.append(_cpu() - used)
            text = f"{min(seconds):6.2f} s, {min(cpu):6.2f} s cpu"
            print(f"Parquet, {rows:9,} rows pending: {query:12} {text}", flush=True)


READS: dict[str, Callable[[Any, int], object]] = {
    "count": lambda frame, _rows: frame.count(),
    "one key": lambda frame, rows: frame.where(f"id = {rows // 3}").collect(),
    "all columns": lambda frame, _rows: _checksum(frame),
}
"""What is read, of two times the best."""


def _line(each: Figures) -> str:
    rate = each.rows / each.seconds
    cpu = each.cpu_seconds / each.rows * 1e6
    middle = f", batches {statistics.median(each.batches):.2f} s" if each.batches else ""
    return (
        f"{each.contender:19} {rate:9,.0f} rows/s  {cpu:7.1f} µs cpu/row"
        f"  {each.written / 1e6:8.1f} MB written, x {each.amplification:.2f}"
        f"  ({each.seconds:.1f} s, load {each.first_load_s:.0f} s{middle})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=20_000, help="changes of a micro-batch")
    parser.add_argument("--formats", nargs="*", help="parquet, delta, iceberg; all that there are")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--reads", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--memory", default="4g", help="of the JVM")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="Spark's settings")
    parser.add_argument("--save", action="store_true", help="write a file into benchmarks/results")
    options = parser.parse_args()
    if options.formats is None:
        options.formats = ["parquet", "delta"] + ["iceberg"] * iceberg.runs_here()
    folder = Path(tempfile.mkdtemp(prefix="waltap-spark-merge-"))
    try:
        found = run(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peer = next((each for each in found if each.contender == PEER), None)
    for each in found:
        if peer is None:
            break
        times = (each.rows / each.seconds) / (peer.rows / peer.seconds)
        cpu = (peer.cpu_seconds / peer.rows) / (each.cpu_seconds / each.rows)
        print(f"{each.contender:19} {times:5.2f} x its rate, {cpu:5.2f} x its rows per cpu second")
    if options.save:
        _save(options, found)


def _save(options: argparse.Namespace, found: list[Figures]) -> None:
    at = datetime.now(UTC)
    document = {
        "benchmark": "spark-merge",
        "at": at.isoformat(timespec="seconds"),
        "machine": {**stamp(server_programs()), "pyspark": metadata.version("pyspark")},
        "load": [round(each, 1) for each in os.getloadavg()],
        "rows": options.rows,
        "updates": options.updates,
        "batch": options.batch,
        "runs": [asdict(each) for each in found],
    }
    path = RESULTS / f"spark-merge-{at:%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
