"""Write topics of change events as a change log."""

import base64
import datetime as dt
import json
import logging
from collections.abc import Mapping
from typing import Any, Final, Self

from pyspark.sql import Column, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap.base.files.store import FileStore, safe_name
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.continuity import make_log_identity
from waltap_sinks.changelog.manifest import (
    NOTHING,
    VERSION,
    ColumnEntry,
    LogPosition,
    Manifest,
    Segment,
    TableEntry,
    manifest_name,
    next_bucket,
)
from waltap_spark.errors import EventUnreadable
from waltap_spark.kafka.columns import learn_functions
from waltap_spark.kafka.events import TopicEvents
from waltap_spark.kafka.rows import LOST, PROBLEM, PROBLEM_COLUMNS, TableRows
from waltap_spark.kafka.topics import BadRecord, KafkaTopics, Place, Reached, offered, records
from waltap_spark.schema.expression import column_of, long_bytes
from waltap_spark.schema.schema import log_struct
from waltap_spark.session.session import prepare
from waltap_spark.state.output import address

log = logging.getLogger(__name__)

BAD: Final = "bad-records"
OPERATIONS: Final = ("r", "c", "u", "d", "t")
# Manifests that a start reads for the keys of tables: a rarely changed table may lack its key until
# its next event, which brings it again.
NEWEST: Final = 100


class KafkaFeed:
    """Writes events of topics to a change log, each once.

    A manifest has the offsets that it reached, so rows and offsets appear together, and the next feed
    continues after the last manifest. One feed at a time for a log; single-threaded.

    >>> with KafkaFeed(spark, topics, "lake/changelog") as feed:
    ...     while feed.pull():
    ...         follower.catch_up()
    """

    def __init__(self, spark: SparkSession, topics: KafkaTopics, location: FileStore | str) -> None:
        self._spark, self._topics = prepare(spark), topics
        learn_functions(self._spark)
        self._store = location if isinstance(location, FileStore) else FileStore(location)
        self.log = ChangeLog(self._store)
        self._log_position, self._bucket = NOTHING, ""
        self._keys: dict[tuple[str, str], tuple[str, ...]] = {}
        self._taken: dict[Place, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._reached: dict[Place, Reached] = {}
        self._absent = frozenset[str]()

    def __enter__(self) -> Self:
        """Lock the log, and continue after its last manifest.

        Raises: FilesInUse, ChangeLogDamaged.
        """
        # Two feeds would both claim the next position.
        self._store.lock(".lock")
        try:
            make_log_identity(self._store)  # before readers find the log by the folder
            self._store.make_folder("manifests")
            for manifest in self.log.newest(NEWEST):
                self._log_position, self._bucket = manifest.log_position, manifest.bucket
                self._keys |= {(each.schema, each.table): each.key for each in manifest.tables}
                self._take(manifest)
            self._delete_unpublished()
        except BaseException:
            self._store.unlock()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._store.unlock()

    def _take(self, manifest: Manifest) -> None:
        self._topic_ids |= manifest.topic_ids
        for topic, partitions in manifest.offsets.items():
            for partition, (offset, commit, lsn) in partitions.items():
                self._taken[topic, partition] = offset
                read = manifest.reads.get(topic, {}).get(partition, 0)
                # A position without LSN is of a first snapshot, also in logs of earlier versions.
                high = (commit, lsn) if lsn else (0, 0)
                self._reached[topic, partition] = high, max(read, 0 if lsn else commit)

    def pull(self) -> Manifest | None:
        """Publish the next records of the topics; None without new ones.

        Records that wait for another event (`KafkaTopics.patience_s`) count as none.

        Raises: TopicsUnreadable, OffsetsLost, EventUnreadable, ColumnsUnknown, FilesUnavailable.
        """
        at_a_time = self._topics.records
        while True:
            what = offered(
                self._spark, self._topics, self._taken, self._topic_ids, records=at_a_time
            )
            self._log_absent(what.ends)
            if not what.ranges:
                return None
            frame = records(self._spark, self._topics, what.ranges)
            with TopicEvents(self._topics, frame, self._reached, self._keys, what.spread) as events:
                # An empty partition has a next record, too, which retention may delete.
                ends = what.ends | {place: each.stop for place, each in what.ranges.items()}
                ends |= events.hold_back(what.unfinished)
                if any(ends[place] > each.start for place, each in what.ranges.items()):
                    self._topic_ids |= what.topic_ids
                    return self._pulled(events, ends)
            if not what.unfinished:
                return None
            at_a_time *= 2  # every event waits for one that is after this portion

    def _log_absent(self, ends: Mapping[Place, int]) -> None:
        """Warn once of missing topics, which the first event creates."""
        absent = frozenset(self._topics.topics) - {topic for topic, _partition in ends}
        if new := absent - self._absent:
            names = ", ".join(sorted(new))
            log.warning("%s has no topic %s (yet): nothing is read", self._topics.bootstrap, names)
        self._absent = absent

    def _pulled(self, events: TopicEvents, ends: Mapping[Place, int]) -> Manifest:
        bucket = next_bucket(self._bucket, dt.datetime.now(dt.UTC))
        if bucket != self._bucket:
            self._delete_unpublished()
        self._bucket = bucket
        bad = events.bad()
        self._require_few(bad)
        reached = dict(self._reached)
        for place, (high, read) in events.reached().items():
            older = reached.get(place, (high, read))  # a portion may have repeated events only
            reached[place] = max(older[0], high), max(older[1], read)
        entries, times = [], list[int]()
        for number, rows in enumerate(events.tables()):
            entry, seen, found = self._written(rows, number)
            bad += found
            self._require_few(bad)
            if entry.rows:
                entries.append(entry)
            times += seen
        self._keys = events.keys
        if bad:
            self._keep(events, bad)
        manifest = self._manifest(entries, times, {**self._taken, **ends}, reached)
        name = manifest_name(self._log_position, manifest.log_position)
        path = f"manifests/{manifest.log_position.epoch:04x}/{self._bucket}/{name}"
        self._store.publish(path, manifest.encode())
        self._log_position = manifest.log_position
        self._take(manifest)
        log.info(
            "taken from topics", extra={"batch_rows": manifest.rows, "lsn": str(self._log_position)}
        )
        return manifest

    def _delete_unpublished(self) -> None:
        """Remove segments of before the first manifest.

        They were never published.
        """
        epochs = self._store.folders("manifests")
        buckets = [each for epoch in epochs for each in self._store.folders(f"manifests/{epoch}")]
        if buckets:
            for bucket in self._store.folders("segments"):
                if bucket < min(buckets):
                    self._store.delete_folder(f"segments/{bucket}")

    def _require_few(self, bad: list[BadRecord]) -> None:
        """Raises: EventUnreadable unless ``bad`` is ``keep``, and beyond the limit."""
        if not bad:
            return
        if self._topics.bad == "fail":
            raise EventUnreadable(bad[0].described())
        if len(bad) > self._topics.most_bad:
            more = f"more than {self._topics.most_bad} records of a portion cannot be taken"
            raise EventUnreadable(f"{more}, the first is {bad[0].described()}")

    def _keep(self, events: TopicEvents, bad: list[BadRecord]) -> None:
        """Write bad records to a file named by position."""
        contents = events.contents(bad)
        lines = []
        for each in bad:
            key, value = contents[each.topic, each.partition, each.offset]
            line = {
                "topic": each.topic, "partition": each.partition, "offset": each.offset,
                "code": EventUnreadable.code, "reason": each.reason,
                "key": _shown(key), "value": _shown(value),
            }  # fmt: skip
            lines.append(json.dumps(line, ensure_ascii=False))
        self._store.make_folder(BAD)
        path = f"{BAD}/after-{self._log_position}.jsonl"
        self._store.put(path, ("\n".join(lines) + "\n").encode())
        text = "%s records of topics cannot be taken, and are kept in %s: the first is %s"
        log.warning(text, len(bad), self._store.uri(path), bad[0].described())

    def bad_records(self) -> list[dict[str, Any]]:
        """Return the kept bad records as dicts.

        Members: topic, partition, offset, code, reason, key, value.
        """
        return [
            json.loads(line)
            for name in sorted(self._store.names(BAD))
            for line in self._store.read(f"{BAD}/{name}").decode().splitlines()
        ]

    def _manifest(
        self,
        entries: list[TableEntry],
        times: list[int],
        taken: Mapping[Place, int],
        reached: Mapping[Place, Reached],
    ) -> Manifest:
        before = self._log_position
        end = max([before.end_lsn, *(max(*high, read) for high, read in reached.values())])
        same = end == before.end_lsn and before != NOTHING
        offsets: dict[str, dict[int, tuple[int, int, int]]] = {}
        reads: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in taken.items():
            (commit, lsn), read = reached.get((topic, partition), ((0, 0), 0))
            position = (commit, lsn) if lsn else (read, 0)
            offsets.setdefault(topic, {})[partition] = offset, *position
            if lsn and read:
                reads.setdefault(topic, {})[partition] = read
        return Manifest(
            version=VERSION,
            log_position=LogPosition(1, end, before.ordinal + 1 if same else 0),
            previous=before,
            bucket=self._bucket,
            transactions=1 if entries else 0,
            rows=sum(entry.rows for entry in entries),
            first_commit_ts=min(times, default=None),
            last_commit_ts=max(times, default=None),
            pipeline="kafka",
            tables=tuple(entries),
            offsets=offsets,
            reads=reads,
            topic_ids=dict(self._topic_ids),
        )

    def _written(
        self, rows: TableRows, number: int
    ) -> tuple[TableEntry, list[int], list[BadRecord]]:
        """Write the rows of one table.

        Return the entry for the manifest, the first and last commit time (µs), and bad records.
        """
        schema, table = rows.table
        place = f"{safe_name(schema)}.{safe_name(table)}"
        folder = f"segments/{self._bucket}/{place}/{self._log_position}-k{number:04x}"
        uri = address(self._store, folder)
        observed = Observation()
        frame = rows.frame.observe(observed, *_counts(rows))
        good = frame.where(f"{PROBLEM} is null").drop(*PROBLEM_COLUMNS)
        # `_SUCCESS` files beside the segments would stay when the segments expire.
        unmarked = good.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        unmarked.mode("overwrite").parquet(uri)
        seen = observed.get
        if seen["lost"]:
            text = "%s.%s: %s values that no type of Spark's holds (infinite or far dates, 24:00) are null"
            log.warning(text, schema, table, seen["lost"])
        segments = []
        for name in self._store.names(folder):
            path = f"{folder}/{name}"
            if not name.endswith(".parquet"):
                continue
            # Hadoop's local file system writes checksums that nothing reads or removes later.
            if self._store.local:
                self._store.delete(f"{folder}/.{name}.crc")
            if not (good_rows := self._store.parquet_rows(path)):
                self._store.delete(path)
            else:
                self._store.sync(path)
                unpacked = (seen["unpacked"] or 0) * good_rows // max(1, seen["good"])
                size = self._store.size(path)
                segments.append(Segment(path=path, rows=good_rows, bytes=size, unpacked=unpacked))
        self._store.make_durable()  # durable before the manifest names them
        operations = {op: seen[f"op_{op}"] for op in OPERATIONS if seen[f"op_{op}"]}
        if rows.key and set(operations) == {"c"}:
            # Inserts from topics may meet a row of their key: they are repeated, and a compacted
            # topic has lost the delete between two. An entry of inserts alone would be added
            # without a look at the table, so it claims updates too.
            operations["u"] = 0
        entry = TableEntry(
            schema=schema,
            table=table,
            oid=0,
            identity="d",
            key=rows.key,
            fingerprint=rows.fingerprint,
            columns=tuple(
                ColumnEntry(name=name, type=kind, arrow=kind)
                for name, kind in rows.described.items()
            ),
            segments=tuple(segments),
            rows=sum(operations.values()),
            operations=operations,
            unchanged=tuple(name for at, name in enumerate(rows.unsent) if seen[f"unsent_{at}"]),
            key_changes=seen["moved"],
            key_reused=self._key_reused(rows, uri, operations),
        )
        times = [seen[each] for each in ("first", "last") if seen[each] is not None]
        return entry, times, self._bad_rows(rows) if seen["bad"] else []

    def _key_reused(self, rows: TableRows, uri: str, operations: Mapping[str, int]) -> bool:
        """Return whether a transaction deletes a key and puts it again."""
        if not rows.key or "d" not in operations or len(operations) == 1:
            return False
        needed = {*rows.key, "_op", "_commit_lsn"}
        struct = log_struct(rows.types)
        struct = type(struct)([each for each in struct if each.name in needed])
        both = (
            self._spark.read.schema(struct)
            .parquet(uri)
            .groupBy("_commit_lsn", *map(column_of, rows.key))
            .agg(
                F.bool_or(F.col("_op") == "d").alias("gone"),
                F.bool_or(F.col("_op") != "d").alias("put"),
            )
        )
        return not both.where("gone and put").isEmpty()

    def _bad_rows(self, rows: TableRows) -> list[BadRecord]:
        found = (
            rows.frame.where(f"{PROBLEM} is not null")
            .select(*PROBLEM_COLUMNS[2:], PROBLEM)
            .distinct()
        )
        limited = found.sort(*PROBLEM_COLUMNS[2:]).limit(self._topics.most_bad + 1)
        return [BadRecord(*row) for row in limited.collect()]


def _shown(content: bytes | None) -> str | dict[str, str] | None:
    """Return text unchanged, other bytes as base64."""
    if content is None:
        return None
    try:
        return bytes(content).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _counts(rows: TableRows) -> list[Column]:
    """Return the counts of rows that a manifest needs.

    Spark observes them while it writes, which saves a second pass.
    """
    good = F.col(PROBLEM).isNull()
    moved = (F.col("_op") == "c") & (F.col("_sub") == 1) & (F.size("_unchanged") > 0)
    time = F.when(good, F.col("_commit_ts"))
    kinds = {field.name: field.dataType.json() for field in rows.frame.schema.fields}
    size = long_bytes({name: kinds[name] for name in rows.described})
    found = [
        F.count_if(~good).alias("bad"),
        F.count_if(good).alias("good"),
        F.sum(F.lit(0) if size is None else F.when(good, size)).alias("unpacked"),
        F.sum(LOST).alias("lost"),
        F.count_if(good & moved).alias("moved"),
        F.unix_micros(F.min(time)).alias("first"),
        F.unix_micros(F.max(time)).alias("last"),
    ]
    found += [F.count_if(good & (F.col("_op") == op)).alias(f"op_{op}") for op in OPERATIONS]
    return found + [
        F.count_if(good & F.array_contains("_unchanged", name)).alias(f"unsent_{at}")
        for at, name in enumerate(rows.unsent)
    ]
