"""Turn records of topics into rows of a change log."""

import functools
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.avro.functions import from_avro

from waltap_spark.errors import EventUnreadable, OffsetsLost, TopicsUnreadable
from waltap_spark.kafka.connect_schema import key_fields, names_in_avro, without_decimals
from waltap_spark.kafka.rows import TableRows, table_rows
from waltap_spark.kafka.topics import BadRecord, High, KafkaTopics, Place, Reached
from waltap_spark.schema.expression import literal_of

log = logging.getLogger(__name__)


# Schemas of Avro events, from a registry with Confluent's interface.

# A registry answers from memory; longer means that it is away.
_ANSWER_S: Final = 30
# A registry's error codes for an unknown id: Confluent's is the last; Apicurio has the others, too.
_UNKNOWN_ID: Final = frozenset({40401, 40402, 40403})


def schemas_of(address: str) -> Callable[[str], str]:
    """Return the function that asks a registry once per schema."""
    return functools.cache(functools.partial(_schema_of, address))


def _schema_of(address: str, schema_id: str) -> str:
    """Return a schema by id; ``address`` may contain user and password.

    Raises: TopicsUnreadable, EventUnreadable.
    """
    from waltap.base.network.http import HttpClient

    place = urlsplit(address)
    bare = urlunsplit(place._replace(netloc=place.netloc.rpartition("@")[2])).rstrip("/")
    if place.scheme not in ("http", "https"):
        text = f"the registry of Avro schemas is not at {bare!r}: no http address"
        raise TopicsUnreadable(text)
    login = (unquote(place.username), unquote(place.password or "")) if place.username else None
    with closing(HttpClient(timeout_s=_ANSWER_S, auth=login, follow_redirects=True)) as client:
        answer = client.send("GET", f"{bare}/schemas/ids/{schema_id}")
    # An unknown id is a bad record (of another registry). A wrong address is no fault of the
    # record, and other answers may pass.
    if answer.status == HTTPStatus.NOT_FOUND and _error_code(answer.body) in _UNKNOWN_ID:
        raise EventUnreadable(f"{bare} has no schema {schema_id}")
    if answer.problem:
        raise TopicsUnreadable(f"schema {schema_id} at {bare}: {answer.problem}")
    try:
        return str(json.loads(answer.body)["schema"])
    except (ValueError, KeyError, TypeError) as cause:
        raise TopicsUnreadable(f"schema {schema_id} at {bare}: {cause}") from cause


def _error_code(body: bytes) -> object:
    """Return a registry's error code, None from another server."""
    with suppress(ValueError):
        if isinstance(found := json.loads(body), dict):
            return found.get("error_code")
    return None


_PARTS: Final = {
    "schema": "string", "table": "string", "lsn": "bigint", "sequence": "string", "txId": "bigint",
    "ts_ms": "bigint", "ts_us": "bigint", "snapshot": "string",
}  # fmt: skip
_SOURCE: Final = f"source struct<{', '.join(f'{name}: {kind}' for name, kind in _PARTS.items())}>"
_EVENT: Final = f"op string, before string, after string, {_SOURCE}"
_OWN: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "moved", "leaves")
_MOVED_HERE, _MOVES_AWAY = "__debezium.oldkey", "__debezium.newkey"


# The position of an event is (commit before its transaction, its LSN), as Debezium writes it in
# ``source.sequence``. Positions of a partition only grow; a record that goes back was delivered again.
# Rows of a first snapshot have an order of their own. With an older slot the next transaction may
# name a commit from before the snapshot; it comes after the snapshot all the same.

# Whether the event has the row of its operation.
AFTER_ROW: Final = "has_row"

# Bytes of WAL by which a first snapshot is placed before its position.
# So it is before all changes of the first transaction, which may have begun earlier. A commit
# record is longer than 32 bytes, so no other position is in between.
SNAPSHOT_GAP: Final = 32
_FIRST_GAP: Final = 8


def placed(
    events: DataFrame, reached: Mapping[Place, Reached], spread: frozenset[str]
) -> DataFrame:
    """Return ``events`` with their positions.

    - ``_stated``, ``rank``: the position that grows within a partition
    - ``_commit``: the same, but not before the first snapshot
    - ``_commit_lsn``, ``_seq``: the order of changes; ``_lsn``
    - ``first_read``: whether it is a row of a first snapshot
    - ``again``: whether it was delivered before
    - ``problem``: why it has no position, else null

    ``reached`` has earlier positions of partitions, ``spread`` the topics of several partitions.
    """
    number = "cast(try_element_at(from_json(source.sequence, 'array<string>'), %d) as bigint)"
    first = "op = 'r' and _before is null"
    known = events.selectExpr(
        "*", f"coalesce(source.lsn, {number % 2}) AS _lsn", f"{number % 1} AS _before"
    )
    known = known.withColumn("problem", _problem(spread)).selectExpr(
        "*",
        f"if(problem is null and {first}, _lsn - {_FIRST_GAP}, null) AS _read",
        "if(problem is null and op <> 'm', _before, null) AS _follows",
        f"coalesce({first}, false) AS first_read",
        # The delete of a changed key has the LSN of its insert, and comes before it.
        f"if({first}, 0L, if(leaves and op = 'd', _lsn - 1, _lsn)) AS rank",
    )  # fmt: skip
    known = _with_reached(known, reached)
    until = Window.partitionBy("topic", "partition").orderBy("offset")
    here = until.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = until.rowsBetween(Window.unboundedPreceding, -1)
    counts = F.expr("problem is null and op <> 'm'")
    floor = F.greatest(F.max("_read").over(here), F.col("_high_read._commit"))
    # The first transaction that a connector reads has no commit before it.
    followed = F.greatest(F.max("_follows").over(here), floor, F.col("_high._commit"))
    begins = F.first(F.when(counts, F.col("_lsn")), ignorenulls=True).over(here)
    stated = F.coalesce(F.col("_read"), F.col("_follows"), followed, begins)
    known = known.withColumn("_stated", F.when(counts, stated))
    behind = F.coalesce(F.col("_read"), F.greatest(F.col("_stated"), floor))
    known = known.withColumn("_commit", F.when(counts, behind))
    position = F.when(counts, F.struct(F.col("_stated").alias("_commit"), "rank"))
    streamed = F.when(~F.col("first_read"), position)
    furthest = F.greatest(F.max(streamed).over(before), F.col("_high"))
    once = F.expr("moved and op = 'c'")  # no other event has its position
    again = (position < furthest) | (once & (position == furthest))
    back = position < F.greatest(F.max(position).over(before), F.col("_high"), F.col("_high_read"))
    again = F.when(F.col("first_read"), back).otherwise(again)
    return (
        known.selectExpr(
            "*",
            # ``_seq`` is an int: 31 bits of WAL at a time, since a transaction may be longer or have begun
            # long before its commit.
            f"if({first}, _commit - {SNAPSHOT_GAP - _FIRST_GAP},"
            " _commit + floor((_lsn - _commit) / 2147483648D)) AS _commit_lsn",
            f"if({first}, 0, cast(pmod(_lsn - _commit, 2147483648L) as int)) AS _seq",
        )
        .withColumn("again", F.coalesce(again, F.lit(False)))
        .drop("_high", "_high_read", "_read", "_follows", "_before")
    )


def _problem(spread: frozenset[str]) -> Column:
    """Return why an event is bad, null for a good one."""
    operation = F.coalesce(F.col("op").isin("c", "r", "u", "d", "t"), F.lit(False))
    found = (
        F.when(F.col("op").eqNullSafe("m"), None)
        .when(F.col("reason").isNotNull(), F.col("reason"))
        .when(F.col("op").isNull(), "it is no change event")
        .when(~operation, "its operation is none of c, r, u, d, t, m")
        .when(F.col("source.table").isNull(), "its source names no table")
        .when(F.col("source.schema").isNull(), "its source names no schema of a table")
        .when(F.col("_lsn").isNull(), "its source has no LSN")
    )
    lacks = (F.col("op") != "t") & ~F.col(AFTER_ROW)
    found = found.when(lacks, "it brings no row")
    if spread:
        many = (F.col("op") == "t") & F.col("topic").isin(*sorted(spread))
        text = "it is a truncate, which has no order with rows in other partitions of its topic"
        found = found.when(many, text)
    return found.cast("string")


def _with_reached(events: DataFrame, reached: Mapping[Place, Reached]) -> DataFrame:
    values = (
        ", ".join(
            f"({literal_of(topic)}, {partition}, {commit}L, {lsn}L, {read}L)"
            for (topic, partition), ((commit, lsn), read) in reached.items()
        )
        or "('', -1, 0L, 0L, 0L)"
    )
    before = events.sparkSession.sql(
        "SELECT topic, partition, named_struct('_commit', c, 'rank', r) AS _high,"
        " named_struct('_commit', f, 'rank', 0L) AS _high_read"
        f" FROM VALUES {values} AS v(topic, partition, c, r, f)"
    )
    return events.join(F.broadcast(before), ["topic", "partition"], "left")


class _KeyChangeHalf(NamedTuple):
    """One event of a changed key without its other one."""

    place: Place
    offset: int
    position: High
    age_s: float


class TopicEvents:
    """Events of ranges of topics, cached within the context.

    ``reached`` has the progress of partitions, ``keys`` the known keys of tables, ``spread`` the topics
    with several partitions.
    """

    def __init__(
        self,
        topics: KafkaTopics,
        records: DataFrame,
        reached: Mapping[Place, Reached],
        keys: Mapping[tuple[str, str], tuple[str, ...]],
        spread: frozenset[str],
    ) -> None:
        self._topics, self._spark = topics, records.sparkSession
        # The known keys of tables; `tables` learns more.
        self.keys = dict(keys)
        self._schema = schemas_of(topics.registry)
        self._avro = topics.form == "avro"
        has = "coalesce(exists(headers, h -> h.key = '{}'), false) AS {}"
        own = records.where("value is not null").selectExpr(
            *_OWN[:6], has.format(_MOVED_HERE, "moved"), has.format(_MOVES_AWAY, "leaves")
        )
        read = self._of_avro(own) if self._avro else self._of_json(own)
        self._highs = {place: max(high, (first, 0)) for place, (high, first) in reached.items()}
        # Cached: a portion is read for its summary, for waiting events, and once for each table.
        self._every_event = placed(read, reached, spread).persist()
        self._spread = spread
        self._all, self._alone = self._every_event, frozenset[tuple[str, int, int]]()
        self._seen: list[Row] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._every_event.unpersist()

    # --- envelopes ----------------------------------------------------------------------------------

    def _of_json(self, own: DataFrame) -> DataFrame:
        """Return the envelopes, with rows as text."""
        text = f"from_json(cast(value as string), 'schema string, payload string, {_EVENT}')"
        e = ", ".join(f"'{name}', e.{name}" for name in ("op", "before", "after", "source"))
        inner = f"if(e.payload is null, named_struct({e}), from_json(e.payload, '{_EVENT}'))"
        row = "i.op = 'd' and (i.before is not null or key is not null) or i.after is not null"
        row = f"coalesce({row}, false) AS {AFTER_ROW}"
        return (
            own.selectExpr("*", f"{text} AS e")
            .selectExpr("*", "coalesce(md5(e.schema), '') AS schema_id", f"{inner} AS i")
            .selectExpr(
                *_OWN, "schema_id", "if(e.payload is null, null, e.schema) AS schema_text",
                "i.op", "i.before", "i.after", "i.source", row, "cast(null as string) AS reason",
            )
        )  # fmt: skip

    def _of_avro(self, own: DataFrame) -> DataFrame:
        """Return the envelopes; rows stay within ``value``."""
        # Confluent's frame: a zero byte, four bytes of the schema's id, then Avro.
        number = "conv(hex(substring(value, 2, 4)), 16, 10)"
        framed = "length(value) > 5 and substring(value, 1, 1) = X'00'"
        numbered = own.selectExpr("*", f"if({framed}, {number}, '') AS schema_id")
        frames = []
        for row in numbered.select("schema_id").distinct().sort("schema_id").collect():
            part = numbered.where(f"schema_id = '{row[0]}'")
            try:
                frames.append(self._envelopes(part, row[0]))
            except EventUnreadable as error:
                frames.append(_no_envelopes(part, error.problem))
        if not frames:
            return _no_envelopes(numbered, "")
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    def _envelopes(self, part: DataFrame, schema_id: str) -> DataFrame:
        """Raises: EventUnreadable, TopicsUnreadable."""
        if not schema_id:
            raise EventUnreadable("the value does not begin with the id of an Avro schema")
        names = names_in_avro(self._schema(schema_id))
        if not {"op", "source", "after", "before"} <= set(names):
            raise EventUnreadable(f"Avro schema {schema_id} is none of change events")
        source = ", ".join(
            f"'{name}', cast({f'e.source.{name}' if name in names['source'] else 'null'} as {kind})"
            for name, kind in _PARTS.items()
        )
        return part.withColumn("e", self._decoded(schema_id)).selectExpr(
            *_OWN, "schema_id", "cast(null as string) AS schema_text", "e.op",
            "cast(null as string) AS before", "cast(null as string) AS after",
            f"named_struct({source}) AS source",
            f"coalesce(if(e.op = 'd', e.before, e.after) is not null, false) AS {AFTER_ROW}",
            "cast(null as string) AS reason",
        )  # fmt: skip

    def _decoded(self, schema_id: str) -> Column:
        schema = without_decimals(self._schema(schema_id))
        return from_avro(F.expr("substring(value, 6)"), schema, {"mode": "PERMISSIVE"})

    # --- summary ------------------------------------------------------------------------------------

    def _summary(self) -> list[Row]:
        """Return counts and positions by partition, table and schema."""
        if self._seen is not None:
            return self._seen
        fine = F.col("problem").isNull()
        place, stated = F.struct("_commit", "rank"), F.struct("_stated", "rank")
        known = fine & F.col("_commit").isNotNull()
        mine = fine & ~F.col("again") & (F.col("op") != "m")
        self._seen = (
            self._all.groupBy(
                "topic", "partition", F.col("source.schema"), F.col("source.table"), "schema_id"
            )
            .agg(
                F.count_if(~fine).alias("bad"),
                F.max(F.when(known, place)).alias("high"),
                F.max(F.when(known & ~F.col("first_read"), stated)).alias("streamed"),
                F.max(F.when(known & F.col("first_read"), F.col("_stated"))).alias("read"),
                F.min(F.when(fine & F.col("again") & F.col("first_read"), F.col("offset"))).alias("begun"),
                F.count_if(fine & F.col("again")).alias("again"),
                F.count_if(fine & (F.col("moved") | F.col("leaves"))).alias("moves"),
                F.max(F.when(mine, F.col("key"))).alias("key"),
                F.max(F.when(mine, F.col("schema_text"))).alias("schema_text"),
                F.min(F.when(mine, F.struct("_commit_lsn", "_seq"))).alias("begins"),
                F.min(F.when(mine, F.struct("offset", "_commit", "rank"))).alias("first"),
                F.max(F.when(mine, F.col("offset"))).alias("last"),
            )
            .collect()
        )  # fmt: skip
        return self._seen

    def bad(self) -> list[BadRecord]:
        """Return the bad records, at most one more than the limit."""
        if not any(row["bad"] for row in self._summary()):
            return []
        found = self._all.where("problem is not null").sort("topic", "partition", "offset")
        rows = found.select("topic", "partition", "offset", "problem")
        return [BadRecord(*row) for row in rows.limit(self._topics.most_bad + 1).collect()]

    def hold_back(self, unfinished: frozenset[Place]) -> dict[Place, int]:
        """Leave out waiting events and later ones of their partitions.

        These are single events of a changed key while the other one may still come, events whose
        schema began out of turn, and events behind records that another partition of the topic still
        has: before the topic got partitions, keys had others. Return the ends of the partitions then.

        ``unfinished``: partitions with more records. The other event may be there, however old an event
        is, unless the partition has passed its position.
        """
        ends: dict[Place, int] = {}
        more = {place: self._highs.get(place, (0, 0)) for place in unfinished}
        for row in self._summary():
            place = row["topic"], row["partition"]
            if place in more and row["high"] is not None:
                more[place] = max(more[place], tuple(row["high"]))
        # A cut may separate two events of a key or two schemas again, so both are repeated.
        turns = self._beyond(more) or self._turns()
        while turns:
            ends |= {place: offset for place, (offset, *_position) in turns.items()}
            more |= {place: (commit, rank) for place, (_offset, commit, rank) in turns.items()}
            self._cut(ends)
            turns = self._turns()
        now = time.time()
        while any(row["moves"] for row in self._summary()):
            halves = self._halves(now)
            waiting = [
                half
                for half in halves
                if half.age_s < self._topics.patience_s
                or any(
                    p[0] == half.place[0] and begins <= half.position for p, begins in more.items()
                )
            ]
            if not waiting:
                self._alone = frozenset((*half.place, half.offset) for half in halves)
                break
            for half in waiting:
                if half.offset < ends.get(half.place, half.offset + 1):
                    ends[half.place], more[half.place] = half.offset, half.position
            self._cut(ends)
        return ends

    def _beyond(self, more: Mapping[Place, High]) -> dict[Place, tuple[int, int, int]]:
        """Return the first event of each partition beyond another partition.

        Partition → offset and position. ``more``: the positions after which partitions have further
        records.
        """
        topics = self._spread.intersection(topic for topic, _partition in more)
        if not topics:
            return {}
        beyond = F.lit(False)
        for topic in topics:
            commit, rank = min(high for place, high in more.items() if place[0] == topic)
            later = F.expr(f"struct(_commit, rank) > struct({commit}L, {rank}L)")
            beyond |= (F.col("topic") == topic) & later
        first = F.min(F.struct("offset", "_commit", "rank")).alias("first")
        rows = self._all.where("problem is null").where(beyond)
        found = rows.groupBy("topic", "partition").agg(first).collect()
        return {(row["topic"], row["partition"]): tuple(row["first"]) for row in found}

    def _turns(self) -> dict[Place, tuple[int, int, int]]:
        """Return the places where a table's schema begins out of turn.

        Partition → offset and position. `tables` yields all rows of a schema together, in the order in
        which schemas begin, so every partition must have that order.
        """
        # By partition and table.
        parts: dict[tuple[Place, tuple[str, str]], list[Row]] = {}
        began: dict[tuple[str, str, str], Any] = {}
        for row in self._summary():
            if row["first"] is not None:
                schema, place = _schema(row), (row["topic"], row["partition"])
                parts.setdefault((place, schema[:2]), []).append(row)
                began[schema] = min(began.get(schema, row["begins"]), row["begins"])
        found: dict[Place, tuple[int, int, int]] = {}
        for (place, _table), rows in parts.items():
            for later in rows:
                start = tuple(later["first"])
                if start < found.get(place, (math.inf,)) and any(
                    row["last"] > start[0] or began[_schema(row)] > began[_schema(later)]
                    for row in rows
                    if row["first"] < later["first"]
                ):
                    found[place] = start
        return found

    def _cut(self, ends: Mapping[Place, int]) -> None:
        cut = F.lit(False)
        for (topic, partition), end in ends.items():
            here = (F.col("topic") == topic) & (F.col("partition") == partition)
            cut |= here & (F.col("offset") >= end)
        self._all, self._seen = self._every_event.where(~cut), None

    def _halves(self, now: float) -> list[_KeyChangeHalf]:
        moves = self._all.where(
            "problem is null and not again and (moved and op = 'c' or leaves and op = 'd')"
        )
        where = F.collect_list(F.struct("topic", "partition", "offset", "timestamp", "_commit"))
        rows = (
            moves.groupBy("source.schema", "source.table", "_stated", "_lsn")
            .agg(F.count_distinct("op").alias("halves"), where.alias("where"))
            .where("halves = 1")
            .collect()
        )
        return [
            _KeyChangeHalf((each["topic"], each["partition"]), each["offset"],
                  (each["_commit"], row["_lsn"]), now - each["timestamp"].timestamp())
            for row in rows for each in row["where"]
        ]  # fmt: skip

    def reached(self) -> dict[Place, Reached]:
        """Return the progress of every partition with events.

        Raises: OffsetsLost.
        """
        found: dict[Place, Reached] = {}
        for row in self._summary():
            where = f"partition {row['partition']} of {row['topic']}"
            # Rows of an earlier snapshot cannot be ordered among changes that were taken already.
            if row["begun"] is not None:
                text = f"{where} goes back, by a snapshot, to an earlier position: another history"
                raise OffsetsLost(f"{text} of the source begins at offset {row['begun']}")
            if row["again"]:
                log.info("%s: %s events were delivered again", where, row["again"])
            if row["high"] is not None:
                place = row["topic"], row["partition"]
                high, read = found.get(place, ((0, 0), 0))
                streamed = (0, 0) if row["streamed"] is None else tuple(row["streamed"])
                found[place] = max(high, streamed), max(read, row["read"] or 0)
        return found

    def tables(self) -> Iterator[TableRows]:
        """Yield the rows of each table and schema, in order.

        Raises: EventUnreadable, ColumnsUnknown, ColumnNameTaken, TopicsUnreadable.
        """
        parts: dict[tuple[str, str, str], list[Row]] = {}
        for row in self._summary():
            if row["begins"] is not None:
                parts.setdefault(_schema(row), []).append(row)
        events = self._all.where("problem is null and not again and op <> 'm'")
        ordered = sorted(parts.items(), key=lambda part: min(row["begins"] for row in part[1]))
        for (schema, name, schema_id), rows in ordered:
            keys = [bytes(row["key"]) for row in rows if row["key"] is not None]
            if keys:
                self.keys[schema, name] = self._key_names(max(keys))
            texts = [row["schema_text"] for row in rows if row["schema_text"] is not None]
            here = (F.col("source.schema") == schema) & (F.col("source.table") == name)
            here &= F.col("schema_id") == schema_id
            yield self._rows(
                (schema, name), schema_id, max(texts, default=None), events.where(here)
            )

    def _rows(
        self, table: tuple[str, str], schema_id: str, schema: str | None, events: DataFrame
    ) -> TableRows:
        if self._avro:
            schema = self._schema(schema_id)
            events = events.withColumn("e", self._decoded(schema_id)).selectExpr(
                "*", "e.before AS b", "e.after AS a"
            )
        key = self.keys.get(table, ())
        return table_rows(self._topics, table, key, events, schema, self._alone)

    def _key_names(self, key: bytes) -> tuple[str, ...]:
        if key[:1] != b"\0":
            return key_fields(key.decode("utf-8", "replace"))
        return tuple(names_in_avro(self._schema(str(int.from_bytes(key[1:5], "big")))))

    def contents(self, bad: list[BadRecord]) -> dict[tuple[str, int, int], tuple[bytes, bytes]]:
        """Return bad records by topic, partition and offset."""
        values = ", ".join(
            f"({literal_of(each.topic)}, {each.partition}, {each.offset}L)" for each in bad
        )
        wanted = self._spark.sql(f"SELECT * FROM VALUES {values} AS v(topic, partition, offset)")
        rows = self._all.join(wanted, ["topic", "partition", "offset"], "left_semi")
        return {
            (row["topic"], row["partition"], row["offset"]): (row["key"], row["value"])
            for row in rows.select("topic", "partition", "offset", "key", "value").collect()
        }


def _schema(row: Row) -> tuple[str, str, str]:
    return row["schema"], row["table"], row["schema_id"]


def _no_envelopes(part: DataFrame, reason: str) -> DataFrame:
    nothing = f"from_json('', 'op string, before string, after string, {_SOURCE}') AS i"
    return (
        part.selectExpr(*_OWN, "schema_id", "cast(null as string) AS schema_text", nothing)
        .selectExpr("* except (i)", "i.*", f"false AS {AFTER_ROW}")
        .withColumn("reason", F.lit(reason))
    )
