"""Tables that a pipeline captures, and of which its destination has nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from waltap.changes.transactions.position import parse_lsn
from waltap.ports.sink.verification import KeptTable
from waltap.ports.source.published import EVERYTHING, NARROWS, narrowings
from waltap_sinks.comparison.differences import TableDifferences
from waltap_sinks.comparison.sides import PostgresSide, quoted, settle_session

if TYPE_CHECKING:
    from psycopg import Connection

    from waltap.ports.sink.verification import KeptTable

__all__ = [
    "UNREADABLE",
    "CaptureScope",
    "ComparisonSource",
    "SourceColumn",
    "SourcePlace",
    "SourceTable",
    "lacking",
]


# The source's tables, as a comparison reads them.

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
PLACES: Final = """
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
    """``type`` is ``pg_type.typname``, ``written`` the type in SQL; of a domain, its base."""

    number: int
    name: str
    type: str
    written: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """``place`` is what stands after FROM: rows of heirs are events of the heirs, and those that are not
    published are none."""

    name: str
    place: str
    columns: tuple[SourceColumn, ...]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A table that there is. ``written`` is its name in SQL, ``parent`` the number of the table that it is
    a partition of, else 0."""

    oid: int
    schema: str
    table: str
    partitioned: bool
    written: str
    parent: int

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"


class ComparisonSource:
    """A connection to the source, in autocommit. Of tables it has what ``publications`` publish of them,
    all where none does."""

    def __init__(self, connection: "Connection[Any]", publications: Sequence[str] = ()) -> None:
        self._connection = connection
        self._marks = True
        settle_session(connection)
        self._published = (
            narrowings(lambda sql, names: connection.execute(sql.encode(), names), publications)
            if publications and connection.info.server_version >= NARROWS
            else {}
        )

    def table(self, kept: "KeptTable") -> SourceTable | None:
        """Return the table that ``kept`` is of, None when it is gone."""
        found = self._connection.execute(TABLE, [kept.name, kept.oid, kept.name]).fetchone()
        if found is None:
            return None
        oid, schema, name, written, partitioned = found
        narrowing = self._published.get((schema, name), EVERYTHING)
        columns = (SourceColumn(*r) for r in self._connection.execute(COLUMNS, [oid]).fetchall())
        shown = tuple(column for column in columns if column.name not in narrowing.hidden)
        place = written if partitioned else f"ONLY {written}"
        if narrowing.rows:
            place = f"(SELECT * FROM {place}{narrowing.where()}) AS published"
        return SourceTable(f"{schema}.{name}", place, shown)

    def places(self) -> dict[int, SourcePlace]:
        """Return every table by its number, in the order of their names."""
        places = (SourcePlace(*row) for row in self._connection.execute(PLACES).fetchall())
        return {place.oid: place for place in places}

    def count(self, place: SourcePlace, *, most: int | None = None) -> int | None:
        """Return how many rows a table has, ``most`` where it has more; None where this role may not
        look."""
        import psycopg

        where = self._published.get((place.schema, place.table), EVERYTHING).where()
        rows = f"SELECT FROM {'' if place.partitioned else 'ONLY '}{place.written}{where}"
        limit = "" if most is None else f" LIMIT {most}"
        try:
            ((count,),) = self._connection.execute(
                f"SELECT count(*) FROM ({rows}{limit}) r".encode()
            ).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            return None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return 0  # it went meanwhile
        return int(count)

    def position(self) -> int | None:
        """Return an LSN that is behind all that was committed; None where the server has none.

        Something is put into the log after it, so that a stream passes it soon.
        """
        import psycopg

        try:
            ((lsn,),) = self._connection.execute(AT).fetchall()
        except psycopg.Error:
            return None
        if self._marks:
            try:
                self._connection.execute(EMIT)
            except psycopg.Error:  # on a standby, or without the right
                self._marks = False
        return None if lsn is None else parse_lsn(lsn)

    def side(
        self,
        table: SourceTable,
        columns: Sequence[tuple[SourceColumn, str]],
        key: Sequence[SourceColumn],
    ) -> PostgresSide:
        """Return ``columns`` with the SQL of their texts, by ``key``, which is among them."""
        texts = {column.number: text for column, text in columns}
        return PostgresSide(
            self._connection,
            table.place,
            [text for _, text in columns],
            [(quoted(each.name), each.written, texts[each.number]) for each in key],
        )


UNREADABLE: Final = "there is no such table, and this role may not read the source's"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureScope:
    """What a pipeline captures. ``captures`` tells for (schema, table); ``via_root``: rows of partitions
    come as those of the table that is partitioned. ``unsure``: why a table with rows may be lacking all
    the same, "" where it may not."""

    captures: Callable[[str, str], bool]
    via_root: bool = False
    unsure: str = ""


def lacking(
    source: ComparisonSource,
    kept: Iterable[KeptTable],
    captured: CaptureScope,
    wanted: Sequence[str] = (),
) -> list[TableDifferences]:
    """Return the captured tables of the source (where given, of ``wanted``) that are not ``kept``: those
    that have rows, or that may not be read, and those that are wanted by name."""
    places = source.places()
    names = {each.name: each.oid for each in places.values()}
    there = {oid for each in kept for oid in (each.oid, names.get(each.name, 0)) if oid}
    found = []
    for place in _streamed(places, there, captured):
        if wanted and place.name not in wanted:
            continue
        rows = source.count(place, most=1 if captured.unsure else None)
        if rows is None:
            found.append(_lacking(place.name, 0, apart=UNREADABLE))
        elif rows:
            found.append(_lacking(place.name, rows, apart=captured.unsure))
        elif wanted:  # it is asked for, and nothing is missing
            found.append(_lacking(place.name, 0))
    return found


def _streamed(
    places: Mapping[int, SourcePlace], there: set[int], captured: CaptureScope
) -> Iterator[SourcePlace]:
    """Yield what captured rows come as, but for what is ``there``. A part of a tree is there with a table
    above it; where parts of a tree are there, it is not to come whole."""
    above = {oid: _above(places, oid) for oid in places}
    divided = {up for oid in there if oid in above for up in above[oid]}
    for oid, place in places.items():
        root = places[above[oid][-1]] if above[oid] else place
        whole = captured.via_root and root.oid not in divided
        named = root if captured.via_root else place
        if not captured.captures(named.schema, named.table) or there & {oid, *above[oid]}:
            continue
        if (not above[oid]) if whole else not place.partitioned:
            yield place


def _above(places: Mapping[int, SourcePlace], oid: int) -> list[int]:
    """Return the tables that ``oid`` is a partition of, the root last."""
    found: list[int] = []
    while (parent := places[oid].parent) in places:
        found.append(parent)
        oid = parent
    return found


def _lacking(name: str, rows: int, apart: str = "") -> TableDifferences:
    return TableDifferences(
        table=name,
        source_rows=0 if apart else rows,
        target_rows=0,
        source_hash="",
        target_hash="",
        lacking=True,
        apart=apart,
    )
