"""The properties that select and shape events, under Debezium's names.

Source: Debezium's PostgreSQL connector documentation, "Connector configuration properties".
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Literal, Self

from pydantic import field_validator, model_validator

from waltap.base.property import (
    CommaList,
    Maybe,
    Positive,
    Properties,
    Switch,
    Whole,
    declare,
    declare_family,
    split_list,
)
from waltap.changes.capture.java_regex import (
    MaybePattern,
    PatternList,
    check_family,
    java_pattern,
)
from waltap.changes.decode.relation import name_parts

Adjustment = Literal["none", "avro", "avro_unicode"]

# One entry of `message.key.columns`: table pattern, columns.
KEY_ENTRY = re.compile(r"\s*([^:]+):([^:,]+(?:,[^:,]+)*)\s*")


def key_patterns(text: str) -> list[re.Pattern[str]]:
    """Return a pattern for each column of `message.key.columns`. Raises: ValueError."""
    found: list[re.Pattern[str]] = []
    for entry in filter(str.strip, text.split(";")):
        match = KEY_ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"not table:column,…: {entry.strip()!r}")
        # As in Debezium, a blank before the colon is the table's, and a comma separates patterns.
        for column in match[2].split(","):
            found += map(java_pattern, split_list(f"{match[1]}.{column.strip()}"))
    return found


HASH = r"([^.]+)\.with\.salt\.(.+)"
_PAIRS = (
    ("schema.include.list", "schema.exclude.list"),
    ("table.include.list", "table.exclude.list"),
    ("column.include.list", "column.exclude.list"),
    ("message.prefix.include.list", "message.prefix.exclude.list"),
)

# Sinks of rows have no use for most properties of events.
of_records = partial(declare, reach=("records",))


class CaptureProperties(Properties):
    """Select the captured tables and columns, and shape their events."""

    topic_prefix: str = of_records(
        "topic.prefix",
        pattern=r"^[a-zA-Z0-9_.\-]+$",
        summary="Name of this source: the first part of topics and schema names.",
        examples=("inventory",),
    )

    # --- what is captured -------------------------------------------------------------------------

    schema_include: PatternList = declare(
        "schema.include.list",
        summary="Patterns of schemas to capture; others are left out.",
        examples=("public,sales_.*",),
        patterns="schemas",
    )
    schema_exclude: PatternList = declare(
        "schema.exclude.list",
        summary="Patterns of schemas to leave out.",
        patterns="schemas",
    )
    table_include: PatternList = declare(
        "table.include.list",
        common=True,
        summary="Patterns of tables (schema.table) to capture; empty: all tables.",
        examples=(r"public\.orders,public\.order_.*",),
        patterns="tables",
    )
    table_exclude: PatternList = declare(
        "table.exclude.list",
        summary="Patterns of tables (schema.table) to leave out.",
        patterns="tables",
    )
    ignore_builtin: bool = declare(
        "table.ignore.builtin",
        default=True,
        summary="Leave out the tables of the database itself, whatever the lists say.",
    )
    column_include: PatternList = declare(
        "column.include.list",
        summary="Patterns of columns (schema.table.column) that event values have; keys stay.",
        patterns="columns",
    )
    column_exclude: PatternList = declare(
        "column.exclude.list",
        common=True,
        summary="Patterns of columns (schema.table.column) to leave out of events.",
        examples=(r"public\.users\.password",),
        patterns="columns",
    )
    message_prefix_include: PatternList = of_records(
        "message.prefix.include.list",
        summary="Patterns of prefixes of logical messages to capture; others are left out.",
    )
    message_prefix_exclude: PatternList = of_records(
        "message.prefix.exclude.list",
        summary="Patterns of prefixes of logical messages to leave out.",
    )
    read_only: Switch = declare(
        "read.only",
        summary="Write no watermarks of incremental snapshots to the signal table; use WAL "
        "positions instead, as without a signal table.",
        reach=(),
    )
    signal_data_collection: Maybe[str] = declare(
        "signal.data.collection",
        summary="Signal table (schema.table, parts quoted as in SQL where they have dots); captured "
        "whether the lists name it or not.",
    )
    skipped_operations: CommaList = of_records(
        "skipped.operations",
        default=("t",),
        summary="Operations without events: c, u, d, t, or none; r skips no row of a snapshot.",
        words=("c", "u", "d", "t", "r", "none"),
    )
    skip_unchanged: Switch = of_records(
        "skip.messages.without.change",
        summary="Leave out updates that change no captured column (needs REPLICA IDENTITY FULL).",
    )

    # --- what events look like --------------------------------------------------------------------

    tombstones: bool = of_records(
        "tombstones.on.delete",
        default=True,
        summary="Follow every delete by a record with the same key and no value.",
    )
    message_key_columns: Maybe[str] = of_records(
        "message.key.columns",
        summary="Columns to make keys of instead of the primary key: table:column,…;…",
        examples=(r"public\.orders:customer,number",),
        patterns="keys",
    )
    time_precision_mode: Literal[
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ] = of_records(
        "time.precision.mode",
        default="adaptive",
        summary="How dates and times without zone are written.",
    )
    decimal_handling_mode: Literal["precise", "double", "string"] = of_records(
        "decimal.handling.mode",
        default="precise",
        summary="How numeric and money are written.",
    )
    interval_handling_mode: Literal["numeric", "string"] = of_records(
        "interval.handling.mode",
        default="numeric",
        summary="How intervals are written.",
    )
    hstore_handling_mode: Literal["json", "map"] = declare(
        "hstore.handling.mode", default="json", summary="How hstore is written."
    )
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = of_records(
        "binary.handling.mode",
        default="bytes",
        summary="How bytea and messages are written.",
    )
    money_fraction_digits: int = of_records(
        "money.fraction.digits",
        default=2,
        ge=0,
        le=32767,
        summary="Digits after the point of money.",
    )
    include_unknown_datatypes: Switch = declare(
        "include.unknown.datatypes",
        summary="Write columns of types without a mapping as bytes of their text.",
    )
    unavailable_value_placeholder: str = of_records(
        "unavailable.value.placeholder",
        default="__debezium_unavailable_value",
        summary="Placeholder for an unchanged TOAST value that the server did not send; hex: allowed.",
    )
    guardrail_max: Whole = declare(
        "guardrail.collections.max",
        default=0,
        summary="Most tables that a pipeline may capture; 0: any number.",
        unit="tables",
        reach=(),
    )
    guardrail_action: Literal["warn", "fail"] = declare(
        "guardrail.collections.limit.action",
        default="warn",
        summary="What a start does that finds more tables than guardrail.collections.max: warn, or fail.",
        reach=(),
    )
    event_converting_failure: Literal["fail", "warn", "skip", "dead_letter"] = of_records(
        "event.converting.failure.handling.mode",
        default="warn",
        summary="If a value cannot be converted: fail, as "
        "event.processing.failure.handling.mode says; warn or skip: the field is null, "
        "with or without a warning; dead_letter: write the event to the dead letters.",
    )
    arrow_misfit: Literal["error", "null", "string"] = declare(
        "waltap.arrow.out.of.range",
        aliases=("waltap.arrow.misfit", "waltap.arrow.out_of_range"),
        default="null",
        summary=(
            "What the change log and Spark do with a value that its type cannot hold (numeric "
            "NaN, infinite or far dates): null, with one warning per column and a count; "
            "string: columns of such types are text; error: stop."
        ),
        reach=("rows",),
    )
    arrow_unconstrained_numeric: Literal["string", "decimal256"] = declare(
        "waltap.arrow.unconstrained.numeric",
        default="string",
        summary=(
            "Arrow type of numeric without precision, or of more than 38 digits: text, or "
            "decimal256, which Spark does not know."
        ),
        reach=("rows",),
    )
    multidimensional_arrays: Literal["debezium", "literal"] = of_records(
        "waltap.multidimensional.arrays",
        default="debezium",
        profile_default="literal",
        summary="How inner arrays are written: as by Debezium (numbers null, texts lost), or as "
        "PostgreSQL's text if the elements are texts.",
    )
    composite_types: Literal["debezium", "struct"] = declare(
        "waltap.composite.types",
        default="debezium",
        summary="Columns of composite types: as Debezium treats unknown types "
        "(include.unknown.datatypes), or structs of their attributes, also nested and "
        "in arrays.",
    )
    streamed_names: Literal["null", "value"] = of_records(
        "waltap.streamed.names",
        default="null",
        profile_default="value",
        summary="Values of PostgreSQL's type `name` while streaming: null, as Debezium writes them (it "
        "has them in snapshots), or the value.",
    )
    infinite_date: Literal["debezium", "extreme"] = of_records(
        "waltap.infinite.date",
        default="debezium",
        profile_default="extreme",
        summary="How an infinite date is written: as Debezium's overflown number, or as the least or "
        "greatest day there is.",
    )
    include_comments: Switch = of_records(
        "include.schema.comments",
        summary="Write column comments into schemas.",
    )
    column_source_type: PatternList = of_records(
        "column.propagate.source.type",
        summary="Patterns of columns whose schema names their type in the database.",
        patterns="columns",
    )
    datatype_source_type: PatternList = of_records(
        "datatype.propagate.source.type",
        summary="Patterns of types (schema.table.type) whose columns' schema names it.",
        patterns="types",
    )
    column_truncate: dict[str, str] = declare_family(
        "column.truncate.to.N.chars",
        pattern=r"column\.truncate\.to\.(\d+)\.chars",
        summary="Patterns of columns whose values are cut to N characters.",
        patterns="columns",
    )
    column_mask: dict[str, str] = declare_family(
        "column.mask.with.N.chars",
        pattern=r"column\.mask\.with\.(\d+)\.chars",
        summary="Patterns of text columns whose values are replaced by N asterisks.",
        patterns="columns",
    )
    column_hash_v2: dict[str, str] = declare_family(
        "column.mask.hash.v2.ALGORITHM.with.salt.SALT",
        pattern=r"column\.mask\.hash\.v2\." + HASH,
        summary="Patterns of text columns whose values are replaced by a salted hash.",
        patterns="columns",
    )
    column_hash: dict[str, str] = declare_family(
        "column.mask.hash.ALGORITHM.with.salt.SALT",
        pattern=r"column\.mask\.hash\.(?!v2\.)" + HASH,
        summary="Patterns of text columns whose values are replaced by the older salted hash, of the "
        "Java-serialised text.",
        patterns="columns",
    )
    unmatched_masks: Literal["fail", "warn"] = declare(
        "waltap.unmatched.masks",
        default="fail",
        summary="If a column.mask.* pattern matches no column, a masked or truncated column is "
        "not text, or a masked column is renamed: fail, since secret values could be "
        "delivered, or warn.",
        reach=(),
    )
    schema_name_adjustment: Adjustment = of_records(
        "schema.name.adjustment.mode",
        default="none",
        summary="How schema names are made fit for consumers.",
    )
    field_name_adjustment: Adjustment = declare(
        "field.name.adjustment.mode",
        default="none",
        summary="How field names are made fit for consumers.",
    )
    schema_refresh_mode: Literal["columns_diff", "columns_diff_exclude_unchanged_toast"] = declare(
        "schema.refresh.mode",
        default="columns_diff",
        summary="Accepted for Debezium's sake: a row is read with the relation it was sent under.",
        reach=(),
    )
    provide_transaction_metadata: Switch = of_records(
        "provide.transaction.metadata",
        summary="Write BEGIN and END records and a transaction block in every event.",
    )
    extended_headers: bool = of_records(
        "extended.headers.enabled",
        default=True,
        summary="Give records headers that name pipeline, task, connector and run.",
    )

    # --- topics -----------------------------------------------------------------------------------

    topic_delimiter: str = of_records(
        "topic.delimiter",
        default=".",
        pattern=r"^[a-zA-Z0-9_.\-]+$",
        summary="What joins the parts of topic names.",
    )
    topic_cache_size: Positive = declare(
        "topic.cache.size",
        default=10000,
        summary="Accepted for Debezium's sake: each relation's topic is worked out once.",
        reach=(),
    )
    topic_heartbeat_prefix: str = of_records(
        "topic.heartbeat.prefix",
        default="__debezium-heartbeat",
        summary="First part of the heartbeat topic's name.",
    )
    topic_heartbeat_name: Maybe[str] = of_records(
        "topic.heartbeat.name",
        summary="The heartbeat topic's whole name.",
    )
    notification_topic: Maybe[str] = of_records(
        "notification.sink.topic.name",
        summary="Topic of the records of notifications, where notification.enabled.channels names sink.",
    )
    topic_transaction: str = of_records(
        "topic.transaction",
        default="transaction",
        summary="Last part of the transaction topic's name.",
    )
    topic_regex: MaybePattern = of_records(
        "topic.regex",
        summary="Topics to rename (regex naming strategies).",
        patterns="unrenamed",
    )
    topic_replacement: Maybe[str] = of_records(
        "topic.replacement",
        summary="What topic.regex's topics are renamed to; $1 is a group.",
    )
    topic_key_enforce_uniqueness: bool = of_records(
        "topic.key.enforce.uniqueness",
        default=True,
        summary="Add a key field that distinguishes tables of one topic.",
    )
    topic_key_field_name: str = of_records(
        "topic.key.field.name",
        default="__dbz__physicalTableIdentifier",
        summary="Name of that key field.",
    )
    topic_key_field_regex: MaybePattern = of_records(
        "topic.key.field.regex",
        summary="What that key field's value is made from: a pattern of original topic names.",
        patterns="unrenamed",
    )
    topic_key_field_replacement: Maybe[str] = of_records(
        "topic.key.field.replacement",
        summary="What topic.key.field.regex's names become in it.",
    )

    @field_validator("column_truncate", "column_mask", "column_hash", "column_hash_v2")
    @classmethod
    def _family(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, patterns in value.items():
            check_family(name, patterns)
        return value

    @field_validator("skipped_operations")
    @classmethod
    def _operations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "none" in value and len(value) > 1:
            raise ValueError("none must be the only value")
        return value

    @field_validator("message_key_columns")
    @classmethod
    def _keys(cls, value: str | None) -> str | None:
        key_patterns(value or "")
        return value

    @field_validator("unavailable_value_placeholder")
    @classmethod
    def _placeholder(cls, value: str) -> str:
        if value.startswith("hex:"):
            try:
                bytes.fromhex(value[4:])
            except ValueError as cause:
                raise ValueError("hex: must be followed by pairs of hexadecimal digits") from cause
        return value

    @field_validator("signal_data_collection")
    @classmethod
    def _signal_table(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = name_parts(value)
        if "," in value and any("," in part and f'"{part}"' not in value for part in parts):
            raise ValueError("must be one table")
        if len(parts) not in {2, 3}:
            raise ValueError("must be schema.table")
        return value

    @property
    def selects_by_name(self) -> bool:
        """Whether a list of schemas or tables selects the captured tables."""
        lists = (self.schema_include, self.schema_exclude, self.table_include, self.table_exclude)
        return any(lists)

    @property
    def signal_table(self) -> tuple[str, str] | None:
        """Return (schema, table) of the signal table, or None."""
        if self.signal_data_collection is None:
            return None
        # Debezium's form for some databases has the database first.
        schema, table = name_parts(self.signal_data_collection)[-2:]
        return schema, table

    @model_validator(mode="after")
    def _one_of_each_pair(self) -> Self:
        given = {
            info.alias
            for name, info in type(self).model_fields.items()
            if name in self.model_fields_set and getattr(self, name)
        }
        for include, exclude in _PAIRS:
            if include in given and exclude in given:
                raise ValueError(f"{include} and {exclude} exclude each other: give one of them")
        return self
