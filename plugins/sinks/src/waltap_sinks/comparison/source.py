"""Read the source's tables, and find those that a destination lacks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from waltap.base.text import sql_name
from waltap.changes.transactions.position import parse_lsn
from waltap.ports.sink.verification import ComparedTable
from waltap.ports.source.published import EVERYTHING, NARROWS, narrowings
from waltap_sinks.comparison.differences import TableDifferences
from waltap_sinks.comparison.table_readers import PostgresTableReader, configure_session

if TYPE_CHECKING:
    from psycopg import Connection


TABLE: Final = """
    SELECT c.oid::bigint, n.nspname::text, c.relname::text,
      quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relkind = 'p'
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND (n.nspname || '.' || c.relname = %s OR c.oid = %s)
    ORDER BY n.nspname || '.' || c.relname = %s DESC LIMIT 1
"""
COLUMNS: Final = """
    WITH RECURSIVE named AS (
        SELECT t.oid, t.oid AS root, t.typtype, t.typbasetype, t.typname FROM pg_type t
        UNION ALL
        SELECT b.oid, d.root, b.typtype, b.typbasetype, b.typname
        FROM named d JOIN pg_type b ON b.oid = d.typbasetype WHERE d.typtype = 'd'
    )
    SELECT a.attnum::int, a.attname::text, named.typname::text, format_type(named.oid, NULL)
    FROM pg_attribute a JOIN named ON named.root = a.atttypid AND named.typtype <> 'd'
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
RELATIONS: Final = """
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind = 'p',
      quote_ident(n.nspname) || '.' || quote_ident(c.relname),
      coalesce((SELECT i.inhparent::bigint FROM pg_inherits i
                 WHERE i.inhrelid = c.oid AND c.relispartition), 0)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_temp'
    ORDER BY n.nspname, c.relname
"""
EMIT: Final = "SELECT pg_logical_emit_message(true, 'waltap.verify', '')"
AT: Final = """
    SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
      ELSE pg_current_wal_insert_lsn() END)::text
"""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """Describe a column; a domain has its base type."""

    number: int
    name: str
    # ``pg_type.typname``, and the type in SQL.
    type: str
    written: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """Describe a table for a comparison."""

    name: str
    # The text behind FROM. Rows of child tables are events of the children, and unpublished rows
    # are none.
    from_clause: str
    columns: tuple[SourceColumn, ...]


@dataclass(frozen=True, slots=True)
class SourceRelation:
    """Describe an existing table."""

    oid: int
    schema: str
    table: str
    partitioned: bool
    # The name in SQL.
    written: str
    # The OID of the partitioned table, else 0.
    parent: int

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class ComparisonSource:
    """Read the source over one connection in autocommit.

    A table has the rows and columns that ``publications`` publish; without publications it has all.
    """

    def __init__(self, connection: "Connection[Any]", publications: Sequence[str] = ()) -> None:
        self._connection = connection
        # Whether the stream passes each position soon: no standby, whose rows may be older, too.
        self.emits = True
        configure_session(connection)
        self._published = (
            narrowings(lambda sql, names: connection.execute(sql.encode(), names), publications)
            if publications and connection.info.server_version >= NARROWS
            else {}
        )

    def table(self, stored: "ComparedTable") -> SourceTable | None:
        found = self._connection.execute(TABLE, [stored.name, stored.oid, stored.name]).fetchone()
        if found is None:
            return None
        oid, schema, name, written, partitioned = found
        narrowing = self._published.get((schema, name), EVERYTHING)
        columns = (SourceColumn(*r) for r in self._connection.execute(COLUMNS, [oid]).fetchall())
        shown = tuple(column for column in columns if column.name not in narrowing.hidden)
        # Children by inheritance are tables with events of their own; partitions are not.
        from_clause = written if partitioned else f"ONLY {written}"
        if narrowing.rows:
            from_clause = f"(SELECT * FROM {from_clause}{narrowing.where()}) AS published"
        return SourceTable(f"{schema}.{name}", from_clause, shown)

    def relations(self) -> dict[int, SourceRelation]:
        """Return every table by OID, in the order of names."""
        relations = (SourceRelation(*row) for row in self._connection.execute(RELATIONS).fetchall())
        return {relation.oid: relation for relation in relations}

    def count(self, relation: SourceRelation, *, most: int | None = None) -> int | None:
        """Return the number of rows, at most ``most``.

        The result is None if the role may not read the table.
        """
        import psycopg

        where = self._published.get((relation.schema, relation.table), EVERYTHING).where()
        rows = f"SELECT FROM {'' if relation.partitioned else 'ONLY '}{relation.written}{where}"
        limit = "" if most is None else f" LIMIT {most}"
        try:
            ((count,),) = self._connection.execute(
                f"SELECT count(*) FROM ({rows}{limit}) r".encode()
            ).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            return None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return 0  # it was dropped meanwhile
        return int(count)

    def position(self) -> int | None:
        """Return an LSN behind all commits, None without any.

        A message is written to the WAL after it, so that a stream passes it soon.
        """
        import psycopg

        try:
            ((lsn,),) = self._connection.execute(AT).fetchall()
        except psycopg.Error:
            return None
        if self.emits:
            try:
                self._connection.execute(EMIT)
            except psycopg.Error:  # on a standby, or without the right
                self.emits = False
        return None if lsn is None else parse_lsn(lsn)

    def reader(
        self,
        table: SourceTable,
        columns: Sequence[tuple[SourceColumn, str]],
        key: Sequence[SourceColumn],
    ) -> PostgresTableReader:
        """Return a reader for ``columns`` with the SQL of their texts.

        ``key`` is among them.
        """
        texts = {column.number: text for column, text in columns}
        return PostgresTableReader(
            self._connection,
            table.from_clause,
            [text for _, text in columns],
            [(sql_name(each.name), each.written, texts[each.number]) for each in key],
        )


UNREADABLE: Final = "there is no such table, and this role may not read the source's"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureScope:
    """Describe the captured tables."""

    # Returns whether (schema, table) is captured.
    captures: Callable[[str, str], bool]
    # Rows of partitions are events of the partitioned table.
    via_root: bool = False
    # Why a table with rows may be missing all the same.
    unsure: str = ""


def missing_tables(
    source: ComparisonSource,
    stored: Iterable[ComparedTable],
    captured: CaptureScope,
    wanted: Sequence[str] = (),
) -> Iterator[TableDifferences]:
    """Return the captured tables that are not ``stored``.

    They have rows or cannot be read; ``wanted`` ones may also be empty.
    """
    relations = source.relations()
    names = {each.name: each.oid for each in relations.values()}
    there = {oid for each in stored for oid in (each.oid, names.get(each.name, 0)) if oid}
    for relation in _streamed(relations, there, captured):
        if wanted and relation.name not in wanted:
            continue
        rows = source.count(relation, most=1 if captured.unsure else None)
        why = UNREADABLE if rows is None else captured.unsure if rows else ""
        if why or rows or wanted:  # the user named it, and it may lack no rows
            yield TableDifferences(
                table=relation.name,
                source_rows=0 if why else rows or 0,
                absent=True,
                not_compared=why,
            )


def _streamed(
    relations: Mapping[int, SourceRelation], there: set[int], captured: CaptureScope
) -> Iterator[SourceRelation]:
    """Yield the tables under which captured rows come, except existing ones.

    A partition exists if a table above it does. If some partitions of a tree exist, it does not
    come as a whole.
    """
    above = {oid: _above(relations, oid) for oid in relations}
    divided = {up for oid in there if oid in above for up in above[oid]}
    for oid, relation in relations.items():
        root = relations[above[oid][-1]] if above[oid] else relation
        by_root = captured.via_root and root.oid not in divided
        named = root if captured.via_root else relation
        if not captured.captures(named.schema, named.table) or there & {oid, *above[oid]}:
            continue
        if (not above[oid]) if by_root else not relation.partitioned:
            yield relation


def _above(relations: Mapping[int, SourceRelation], oid: int) -> list[int]:
    """Return the tables above partition ``oid``, the root last."""
    found: list[int] = []
    while (parent := relations[oid].parent) in relations:
        found.append(parent)
        oid = parent
    return found
