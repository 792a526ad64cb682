"""Turn events of one schema into typed log rows."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from waltap_sinks.changelog.errors import ColumnNameTaken
from waltap_sinks.changelog.table_version import LOG_COLUMNS
from waltap_spark.errors import ColumnsUnknown, EventUnreadable
from waltap_spark.kafka.columns import (
    CORRUPT,
    declared_column,
    declared_field,
    is_there,
    out_of_range,
    raw_struct,
    typed_column,
    unreadable_elements,
    was_not_sent,
)
from waltap_spark.kafka.connect_schema import TopicField, fields_of_avro, fields_of_json
from waltap_spark.kafka.topics import KafkaTopics
from waltap_spark.schema.expression import literal_of, quoted
from waltap_spark.schema.schema import types_of

PROBLEM: Final = "__waltap_problem"
# The reason why a row is bad; the number of its values that no type of Spark holds.
LOST: Final = "__waltap_lost"
_WHERE: Final = ("__waltap_topic", "__waltap_partition", "__waltap_offset")
# Columns of `TableRows.frame` that the change log does not have.
PROBLEM_COLUMNS: Final = (PROBLEM, LOST, *_WHERE)

_VALUE, _UNCHANGED = "__waltap_value", "__waltap_unchanged"


@dataclass(frozen=True, slots=True)
class TableRows:
    """Change log rows from events of one table and schema."""

    table: tuple[str, str]
    key: tuple[str, ...]
    # The rows, with `PROBLEM_COLUMNS`.
    frame: DataFrame
    # As `types_of` gives them.
    types: dict[str, str]
    # Column → its type in a manifest.
    described: dict[str, str]
    # Columns that may have unsent values.
    unsent: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Return an id that differs for each schema of the table."""
        text = json.dumps([self.types, self.described, self.key])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def table_rows(
    topics: KafkaTopics,
    table: tuple[str, str],
    key: tuple[str, ...],
    events: DataFrame,
    schema: str | None,
    alone: Iterable[tuple[str, int, int]],
) -> TableRows:
    """Return the rows of ``events``, all of one ``table`` and ``schema``.

    Avro events have their rows decoded as ``b`` and ``a``. ``alone`` has events (topic, partition,
    offset) of changed keys without their other event.

    Raises: EventUnreadable, ColumnsUnknown, ColumnNameTaken.
    """
    name, avro = ".".join(table), topics.form == "avro"
    kinds: dict[str, str] = {}
    if schema is None:
        if name not in topics.columns:
            raise ColumnsUnknown(f"the events of {name} have no schema")
        declared = StructType.fromDDL(topics.columns[name])
        kinds = {field.name: field.dataType.simpleString() for field in declared.fields}
        fields = tuple(declared_field(each, kind) for each, kind in kinds.items())
    else:
        fields = fields_of_avro(schema) if avro else fields_of_json(schema)
    _require_free(table, fields)
    # A transform may have added others to the key, such as the name of a shard.
    known = tuple(each for each in key if any(each == field.name for field in fields))
    if key and not known:
        raise EventUnreadable(f"rows of {name} have no column of their keys, {', '.join(key)}")
    parsed = events if avro else _parsed(events, raw_struct(fields))
    rows = parsed.selectExpr("*", f"explode({_changes(keyed=bool(known))}) AS p")
    made = _ColumnSql(topics, kinds, avro=avro)
    for each in fields:
        made.add(each)
    frame = rows.selectExpr("*", *made.stage).selectExpr(
        *made.columns,
        "p.op AS _op", "_commit_lsn", "_seq", "cast(p.sub as tinyint) AS _sub", "_lsn",
        "timestamp_micros(coalesce(source.ts_us, source.ts_ms * 1000)) AS _commit_ts",
        "source.txId AS _xid", f"{made.unchanged()} AS _unchanged",
        f"{made.problem(alone)} AS {PROBLEM}", f"{' + '.join(made.lost)} AS {LOST}",
        *(f"{column} AS {place_name}" for column, place_name
          in zip(("topic", "partition", "offset"), _WHERE, strict=True)),
    )  # fmt: skip
    described = {each.name: kinds.get(each.name) or each.described() for each in fields}
    types = types_of(frame.drop(*PROBLEM_COLUMNS).schema)
    return TableRows(table, known, frame, types, described, tuple(made.placeholders))


class _ColumnSql:
    """SQL of the change log's columns, from a row ``p.row``.

    ``stage`` computes each value once, since several columns test it. ``placeholders`` has columns
    that may have unsent values.
    """

    def __init__(self, topics: KafkaTopics, kinds: Mapping[str, str], *, avro: bool) -> None:
        self._placeholder, self._kinds, self._avro = topics.placeholder, kinds, avro
        self.stage: list[str] = []
        self.columns: list[str] = []
        self.placeholders: list[str] = []
        self.lost = ["0"]
        self._unsent: list[str] = []
        self._bad = [
            "when p.op <> 't' and p.row is null then 'it brings no row, or none from before'"
        ]
        if not avro:
            self._bad.append(f"when p.row.{CORRUPT} is not null then 'its row cannot be read'")

    def add(self, field: TopicField) -> None:
        at = len(self.columns)
        raw, value = f"p.row.{quoted(field.name)}", f"{_VALUE}{at}"
        kind = self._kinds.get(field.name)
        made = declared_column(kind, raw) if kind else typed_column(field, raw, avro=self._avro)
        self.stage.append(f"{made} AS {value}")
        there = is_there(field, raw, avro=self._avro)
        missed = "false" if made == raw else f"{there} and {value} is null"
        far = out_of_range(field, kind, raw)
        bad, lost = (missed if far == "false" else f"{missed} and not {far}"), f"{missed} and {far}"
        if parts := unreadable_elements(field, raw, avro=self._avro):
            bad, lost = f"({bad} or {parts[0]})", parts[1]
        unchanged = was_not_sent(field, kind, raw, self._placeholder, avro=self._avro)
        if unchanged is not None:
            here = f"{_UNCHANGED}{at}"
            self.placeholders.append(field.name)
            self.stage.append(f"{unchanged} AS {here}")
            self._unsent.append(f"if({here}, {literal_of(field.name)}, null)")
            value = f"if({here}, null, {value})"
            bad, lost = f"not {here} and {bad}", f"not {here} and {lost}"
        # A value that needs no conversion cannot fail, which saves two tests per row.
        if made != raw:
            self.lost.append(f"if({lost}, 1, 0)")
            reason = literal_of(f"its value of column {field.name} cannot be read")
            self._bad.append(f"when {bad} then {reason}")
        self.columns.append(f"{value} AS {quoted(field.name)}")

    def unchanged(self) -> str:
        """Return SQL of the names of unsent columns, null without any."""
        if not self._unsent:
            return "cast(null as array<string>)"
        names = f"cast(array_compact(array({', '.join(self._unsent)})) as array<string>)"
        return f"if(p.op in ('u', 'c') and size({names}) > 0, {names}, null)"

    def problem(self, alone: Iterable[tuple[str, int, int]]) -> str:
        """Return SQL of a bad row's reason, else null."""
        bad = list(self._bad)
        found = [f"{topic} {partition} {offset}" for topic, partition, offset in alone]
        if found:
            here = f"concat(topic, ' ', partition, ' ', offset) in ({', '.join(map(literal_of, found))})"
            text = "its key changed, and the event of the old key, with values that it lacks, is not there"
            lacks = f"{self.unchanged()} is not null"
            bad.append(f"when p.op = 'c' and {here} and {lacks} then {literal_of(text)}")
        return f"case {' '.join(bad)} end"


def _changes(*, keyed: bool) -> str:
    """Return SQL of an event's changes.

    Without a key an update is a delete and an insert, as in `waltap_sinks.changelog`.
    """
    changed = "array(named_struct('op', 'u', 'sub', 0, 'row', a))"
    if not keyed:
        gone, new = "'op', 'd', 'sub', 0, 'row', b", "'op', 'c', 'sub', 1, 'row', a"
        changed = f"array(named_struct({gone}), named_struct({new}))"
    return f"""case op
      when 'd' then array(named_struct('op', 'd', 'sub', 0, 'row', b))
      when 't' then array(named_struct('op', 't', 'sub', 0, 'row', b))
      when 'u' then {changed}
      else array(named_struct('op', op, 'sub', if(moved, 1, 0), 'row', a)) end"""


def _require_free(table: tuple[str, str], fields: tuple[TopicField, ...]) -> None:
    """Require that no column is called as the log's own.

    Raises: ColumnNameTaken.
    """
    for each in fields:
        if each.name in LOG_COLUMNS:
            text = f"{'.'.join(table)} has a column {each.name}, which the change log uses itself"
            raise ColumnNameTaken(text, column=rf"{table[0]}\.{table[1]}\.{each.name}")


def _parsed(events: DataFrame, ddl: str) -> DataFrame:
    """Return events with their rows as structs."""
    kind = f"{literal_of(ddl)}, map('columnNameOfCorruptRecord', '{CORRUPT}')"
    key = "cast(key as string)"
    key = f"coalesce(get_json_object({key}, '$.payload'), {key})"
    return events.selectExpr(
        "*",
        f"if(op = 'd' and before is null, from_json({key}, {kind}), from_json(before, {kind})) AS b",
        f"from_json(after, {kind}) AS a",
    )
