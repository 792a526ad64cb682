"""What tables the source has at this moment, and the marker that shows it to the oracle."""

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg
from tests.hunt.oracle import MARK

SCHEMAS = ("public", "Odd S")


def name_of(*parts: str) -> str:
    """Return a quoted, qualified name."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


@dataclass(slots=True)
class Known:
    """A table as the catalogue has it. ``columns``: (name, type, not null, generated)."""

    oid: int
    schema: str
    table: str
    kind: str
    identity: str
    columns: list[tuple[str, str, bool, bool]]
    primary_key: list[str]
    identity_index: list[str]
    is_partition: bool = False
    deferrable: bool = False
    """The primary key is checked at the end of a statement or later: under identity DEFAULT it is none."""
    partitions: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def sql(self) -> str:
        return name_of(self.schema, self.table)

    @property
    def key(self) -> list[str]:
        """The columns that show its rows apart in the stream; none: the whole row, or nothing does."""
        if self.identity == "i":
            return self.identity_index
        return self.primary_key

    @property
    def can_update(self) -> bool:
        if self.identity == "d" and self.deferrable:
            return False
        return self.identity == "f" or bool(self.key and self.identity in "di")

    @property
    def writable(self) -> list[tuple[str, str, bool, bool]]:
        return [column for column in self.columns if not column[3]]


_QUERY = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text, c.relispartition,
  ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, NULL), a.attnotnull::text,
          (a.attgenerated <> '' OR a.attidentity <> '')::text] FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
  ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(n, o)
        JOIN pg_attribute a ON a.attnum = k.n WHERE i.indrelid = c.oid AND i.indisprimary
        AND a.attrelid = c.oid AND k.o <= i.indnkeyatts ORDER BY k.o),
  ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(n, o)
        JOIN pg_attribute a ON a.attnum = k.n WHERE i.indrelid = c.oid AND i.indisreplident
        AND a.attrelid = c.oid AND k.o <= i.indnkeyatts ORDER BY k.o),
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname = ANY(%s) AND c.relpersistence = 'p'
  AND c.relname <> 'signals' ORDER BY n.nspname, c.relname
"""


def tables(connection: psycopg.Connection[Any]) -> dict[str, Known]:
    """Return the tables by name, partitioned ones with them; what this transaction sees."""
    found = {}
    for (
        oid,
        schema,
        table,
        kind,
        identity,
        partition,
        columns,
        primary,
        index,
        deferrable,
    ) in connection.execute(_QUERY, [list(SCHEMAS)]):
        made = [(n, t, null == "true", gen == "true") for n, t, null, gen in columns]
        known = Known(
            oid, schema, table, kind, identity, made, primary, index, partition, deferrable
        )
        found[known.name] = known
    return found


def column_list(known: Known) -> str:
    return ", ".join(f"{name_of(column[0])}::text" for column in known.columns)


def rows_of(connection: psycopg.Connection[Any], known: Known) -> list[list[str | None]]:
    """Return the rows of one table itself, as texts."""
    if not known.columns:
        return []
    query = f"SELECT {column_list(known)} FROM ONLY {known.sql}"
    return [list(row) for row in connection.execute(query)]


def mark(connection: psycopg.Connection[Any], before: dict[str, Known]) -> None:
    """Write the marker that shows what changed since ``before``: within the DDL's own transaction."""
    after = tables(connection)
    names = {known.oid: name for name, known in after.items()}
    old = {known.oid: known for known in before.values()}
    reported = {
        "gone": [name for name, known in before.items() if known.oid not in names],
        "renamed": {
            name: names[known.oid]
            for name, known in before.items()
            if names.get(known.oid, name) != name
        },
        "tables": {
            name: image(connection, known)
            for name, known in after.items()
            if known.kind == "r" and known != old.get(known.oid)
        },
    }
    # a message counts from where its record ends, so what follows in a subtransaction would tie with it
    query = (
        "SELECT pg_logical_emit_message(true, %s, %s), pg_logical_emit_message(true, 'pad', 'pad')"
    )
    connection.execute(query, [MARK, json.dumps(reported)])


def image(connection: psycopg.Connection[Any], known: Known) -> dict[str, Any]:
    return {
        "oid": known.oid,
        "columns": [(name, kind) for name, kind, _null, _generated in known.columns],
        "key": known.key,
        "primary_key": known.primary_key,
        "identity": known.identity,
        "generated": [column[0] for column in known.columns if column[3]],
        "required": [column[0] for column in known.columns if column[2]],
        "rows": rows_of(connection, known),
    }
