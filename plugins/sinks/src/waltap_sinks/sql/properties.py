"""Properties of the sink sql."""

from typing import Literal

from pydantic import field_validator

from waltap.base.property import Positive, Properties, declare
from waltap.base.text import braced_names
from waltap.changes.capture.java_regex import PatternList


class SqlProperties(Properties):
    """The target, its tables' names, and the effect of changes."""

    url: str = declare(
        "url",
        summary="The target, as SQLAlchemy writes it: KIND://USER:PASSWORD@HOST:PORT/DATABASE.",
        examples=("postgresql://app:secret@db/shop", "sqlite:////var/lib/shop.db"),
    )
    table_format: str = declare(
        "table.name.format",
        default="",
        summary="Name of a table in the target, of {schema}, {table} and {topic}, with a dot "
        "between schema and name. Empty: {schema}.{table} if the target has schemas, "
        "else {table}, with schema and _ in front unless it is public.",
        examples=("replica.{table}", "{schema}_{table}"),
    )
    mode: Literal["upsert", "insert"] = declare(
        "insert.mode",
        common=True,
        default="upsert",
        summary="upsert: rows as in the source. insert: add new rows whose key does not exist; "
        "ignore updates, deletes and truncates.",
    )
    delete_mode: Literal["delete", "soft", "ignore"] = declare(
        "delete.mode",
        common=True,
        default="delete",
        summary="What a delete becomes: the row goes; it stays, with the time of the delete in "
        "soft.delete.column; or nothing.",
    )
    soft_column: str = declare(
        "soft.delete.column",
        default="deleted_at",
        min_length=1,
        summary="Column for delete.mode = soft: the time of the delete at the source, null for "
        "rows that exist. A row that returns exists again.",
    )
    truncate: Literal["as_sent", "table", "skip"] = declare(
        "truncate.mode",
        default="as_sent",
        summary="What a TRUNCATE becomes: the same, with the source's CASCADE and RESTART "
        "IDENTITY; one of the named tables alone; or nothing.",
    )
    evolution: Literal["basic", "none"] = declare(
        "schema.evolution",
        default="basic",
        summary="basic: create tables, add, retype and rename columns as the source does; drop "
        "nothing. none: leave the target's tables as they are.",
    )
    history: Literal["none", "beside", "instead"] = declare(
        "history.mode",
        default="none",
        summary="beside: a second table for each table, with every version of its rows, its "
        "validity and its change. instead: this table alone. none: current rows alone.",
    )
    history_tables: PatternList = declare(
        "history.table.include.list",
        summary="Patterns of tables (schema.table of the source) that have a history; without any, all.",
        examples=(r"public\.orders,public\.price.*",),
        patterns="tables",
    )
    history_suffix: str = declare(
        "history.table.suffix",
        default="_history",
        min_length=1,
        summary="Suffix of a history's table, behind the name of its table in the target.",
    )
    history_prefix: str = declare(
        "history.column.prefix",
        default="_",
        summary="Prefix of the names of a history's own columns.",
    )
    position_table: str = declare(
        "position.table",
        default="waltap_position",
        min_length=1,
        summary="Table of the target with each pipeline's position, written in the data's "
        "transaction: SCHEMA.TABLE, or TABLE in the user's own schema.",
    )
    transaction_rows: Positive = declare(
        "transaction.max.rows",
        default=1_000_000,
        summary="Changes of one source transaction that go into one transaction of the target; only a "
        "larger one is split.",
    )
    foreign_keys: Literal["auto", "check"] = declare(
        "foreign.keys",
        default="auto",
        summary="auto: apply without foreign key checks where the user may, as PostgreSQL's own "
        "replication does (session_replication_role = replica); else as check. check: "
        "check at the end of the transaction where deferrable, and write parents first.",
    )
    lock_timeout_ms: Positive = declare(
        "lock.timeout.ms",
        default=30_000,
        le=2**31 - 1,
        summary="How long a statement waits for a lock of another session of the target before "
        "the batch is rolled back and retried, in PostgreSQL, MySQL, MariaDB and SQLite.",
    )

    @field_validator("table_format")
    @classmethod
    def _format_names_a_table(cls, value: str) -> str:
        if value and not {"table", "topic"} & braced_names(value, ("schema", "table", "topic")):
            raise ValueError("{table} or {topic} must be in it")
        return value
