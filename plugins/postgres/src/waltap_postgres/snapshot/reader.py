"""Reads tables in one snapshot, by COPY, in the order and with the markers that Debezium gives."""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.errors import SourceError
from waltap.events.transaction import SnapshotRows
from waltap_postgres.catalog.catalogue import Table
from waltap_postgres.connection import Session
from waltap_postgres.errors import SnapshotReadFailed
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier
from waltap_postgres.replication.transport import copy_out
from waltap_postgres.snapshot.copy_text import copy_rows

log = logging.getLogger(__name__)

__all__ = ["SnapshotPoint", "in_order", "mark", "read_table", "snapshot_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPoint:
    """Where in the server's history a snapshot stands. ``ts`` is µs since 1970 UTC."""

    lsn: int
    xid: int | None
    ts: int


def snapshot_tables(
    captured: list[Table], properties: PostgresProperties, patterns: tuple[str, ...]
) -> list[Table]:
    """Return the tables a snapshot reads, in order. ``patterns`` is ``table.include.list``."""
    if properties.snapshot_max_threads > 1:
        log.warning(
            "snapshot.max.threads has no effect: one connection reads the snapshot",
            extra={"property": "snapshot.max.threads"},
        )
    wanted = [re.compile(p, re.IGNORECASE) for p in properties.snapshot_include_collection_list]
    chosen = [
        t for t in captured if not wanted or any(w.fullmatch(t.relation.name) for w in wanted)
    ]
    return in_order(chosen, patterns)


def in_order(tables: list[Table], patterns: tuple[str, ...]) -> list[Table]:
    """Sort by the first pattern of the include list that fits, then by name."""
    compiled = [re.compile(p, re.IGNORECASE) for p in patterns]

    def rank(table: Table) -> tuple[int, str]:
        name = table.relation.name
        places = (n for n, pattern in enumerate(compiled) if pattern.fullmatch(name))
        return next(places, len(compiled)), name

    return sorted(tables, key=rank)


def read_table(
    session: Session,
    table: Table,
    point: SnapshotPoint,
    properties: PostgresProperties,
    *,
    with_children: bool = False,
) -> Iterator[SnapshotRows]:
    """Yield the rows of one table in pieces of about ``snapshot.fetch.size``, unmarked.

    ``with_children``: the rows of tables that inherit from it too, as Debezium reads them; the stream
    gives those as rows of the child alone. Raises: SnapshotReadFailed, ConnectionLost.
    """
    relation, size = table.relation, properties.snapshot_fetch_size
    try:
        alone = not (with_children or table.partitioned)
        width, sql, pick = _select(session, relation, properties, alone=alone)
        pending: list[Tuple] = []
        for rows in copy_rows(copy_out(session, f"COPY ({sql}) TO STDOUT"), width):
            pending += map(pick, rows) if pick else rows
            while len(pending) > size:
                yield _piece(relation, pending[:size], point)
                pending = pending[size:]
        yield _piece(relation, pending, point, complete=True)
    except SourceError as error:
        if error.retry is not error.retry.NEVER:
            raise
        raise SnapshotReadFailed(
            f"{relation.name} could not be read: {error.problem}", table=relation.name
        ) from error


def _piece(
    relation: Relation, rows: list[Tuple], point: SnapshotPoint, *, complete: bool = False
) -> SnapshotRows:
    return SnapshotRows(
        relation=relation, rows=rows, ts=point.ts, lsn=point.lsn, xid=point.xid, complete=complete
    )


def _select(
    session: Session, relation: Relation, properties: PostgresProperties, *, alone: bool
) -> tuple[int, str, Callable[[Tuple], Tuple] | None]:
    """Return how many columns the query gives, the query, and how to bring rows in relation order."""
    override = _override(relation, properties)
    if override is None:
        columns = ", ".join(identifier(c.name) for c in relation.columns)
        source = identifier(relation.schema, relation.table)
        only = "ONLY " if alone else ""
        return len(relation.columns), f"SELECT {columns} FROM {only}{source}", None
    names = _result_columns(session, override)
    places = [names.index(c.name) if c.name in names else None for c in relation.columns]

    def pick(row: Tuple) -> Tuple:
        return tuple(None if place is None else row[place] for place in places)

    return len(names), override, pick


def _override(relation: Relation, properties: PostgresProperties) -> str | None:
    """Return the SELECT the profile gives for this table, None when it gives none."""
    if relation.name not in properties.snapshot_select_overrides:
        return None
    name = f"snapshot.select.statement.overrides.{relation.name}"
    statement = properties.snapshot_select_statements.get(name)
    return statement.strip().rstrip(";") if statement else None


def _result_columns(session: Session, statement: str) -> list[str]:
    session.execute(f"DECLARE waltap_columns NO SCROLL CURSOR FOR {statement}")
    result = session.pgconn.exec_(b"FETCH 0 FROM waltap_columns")
    names = [(result.fname(n) or b"").decode() for n in range(result.nfields)]
    session.execute("CLOSE waltap_columns")
    return names


def mark(pieces: Iterator[SnapshotRows], first_table: str | None) -> Iterator[SnapshotRows]:
    """Set Debezium's markers: one piece is held back until it is known whether another follows.

    The very last row of the snapshot is "last"; else the first row of the first table is "first",
    a table's last row "last_in_data_collection", its first "first_in_data_collection". A row that is
    both has the earlier of these. Pieces without rows keep their place and have no marker.
    """
    held: SnapshotRows | None = None
    empty: list[SnapshotRows] = []
    for piece in pieces:
        if not piece.rows:
            empty.append(piece)
            continue
        opens = held is None or held.relation is not piece.relation
        if held is not None:
            yield _finish(held, "last_in_data_collection" if opens else "true")
        yield from empty
        empty.clear()
        if opens:
            first = piece.relation.name == first_table
            piece.first_marker = "first" if first else "first_in_data_collection"
        held = piece
    if held is not None:
        yield _finish(held, "last")
    yield from empty


def _finish(piece: SnapshotRows, last: str) -> SnapshotRows:
    """Set the marker of the last row; a single row keeps the stronger of its two markers."""
    single = len(piece.rows) == 1
    if single and last != "last" and (piece.first_marker == "first" or last == "true"):
        last = piece.first_marker
    piece.last_marker = last
    if single:
        piece.first_marker = last
    return piece
