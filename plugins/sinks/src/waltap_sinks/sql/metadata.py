"""Store a pipeline's position and its tables in the target."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position, lsn_text, parse_lsn
from waltap_sinks.sql.errors import SqlFenced, SqlPositionChanged
from waltap_sinks.sql.shape import TargetName
from waltap_sinks.sql.targets.target import SqlTarget, escaped


@dataclass(slots=True)
class KnownTable:
    """Describe a table as it was bound last."""

    name: TargetName
    # The source's column numbers with the target's names.
    columns: dict[int, str] = field(default_factory=dict)
    # Type and modifier of each column in the source.
    types: dict[int, tuple[str, int]] = field(default_factory=dict)
    # Reasons why rows may differ from the source's until a snapshot replaces them.
    stale: tuple[str, ...] = ()
    # The source's name of the table; earlier releases stored none.
    source: str = ""


class SinkMetadata:
    """Read and write the metadata of one pipeline.

    The table of positions has one row for each pipeline. A second table has the bound tables and, after
    the first redelivery, a third one the dead letters that were delivered last.
    """

    def __init__(self, target: SqlTarget, table: TargetName, pipeline: str) -> None:
        self._target, self._pipeline, self.generation = target, pipeline, 0
        self.table = table
        # The position that was committed last. A backup restored under the connection has another
        # one.
        self.at: Position | None = None
        self._tables = TargetName(table.schema, f"{table.name}_tables")
        self._dead_letters = TargetName(table.schema, f"{table.name}_letters")
        self._known: dict[int, KnownTable] | None = None
        # Bound tables that the open transaction changed, as they were before it.
        self._before: dict[int, KnownTable | None] = {}

    @property
    def known(self) -> dict[int, KnownTable]:
        """Return the bound tables by the source's OID; histories by -OID."""
        if self._known is None:
            self._known = self._read_tables()
        return self._known

    @property
    def current_tables(self) -> dict[int, KnownTable]:
        """Return the bound tables without histories."""
        return {oid: table for oid, table in self.known.items() if oid >= 0}

    def forget(self) -> None:
        """Read the bound tables again after the transaction was undone."""
        self._known = None
        self._before = {}

    def committed_table(self, oid: int) -> KnownTable | None:
        """Return a bound table as it is without the open transaction."""
        return self._before[oid] if oid in self._before else self.known.get(oid)

    @property
    def made(self) -> bool:
        """Return whether any pipeline has written to the target."""
        return self._target.describe(self._tables) is not None

    @property
    def name(self) -> str:
        """Return the name of the table of positions."""
        return str(self.table)

    def is_metadata(self, relation: Relation) -> bool:
        """Return whether ``relation`` has the name and a key column of such a table."""
        names = {table.name for table in (self.table, self._tables, self._dead_letters)}
        return relation.table in names and any(c.name == "pipeline" for c in relation.columns)

    def read(self) -> Position | None:
        """Return the stored position, None if there is none."""
        if self._target.describe(self.table) is None:
            return None
        rows = self._select()
        return _position(rows[0]) if rows else None

    def _select(self, ending: str = "") -> list[tuple[str | None, str | None, int, int]]:
        q = self._target.quoted
        names = ", ".join(map(q, ("end_lsn", "commit_lsn", "change_index", "generation")))
        return self._target.run(
            f"SELECT {names} FROM {escaped(self._target.quoted_table(self.table))}"
            f" WHERE {q('pipeline')} = %s{ending}",
            [self._pipeline],
        )

    def open(self, *, has_offset: bool) -> Position | None:
        """Fence other instances and return the stored position.

        It waits for a pending commit of an earlier instance. Without ``has_offset`` the stored
        position belongs to another history and is deleted.
        """
        target = self._target
        q, table = target.quoted, escaped(target.quoted_table(self.table))
        self._make()
        target.begin()
        # The lock waits for the commit of an instance that was killed or replaced in its middle.
        found = self._select(target.for_update)
        if not found:
            target.run(
                f"INSERT INTO {table} ({q('pipeline')}, {q('change_index')}, {q('generation')})"
                " VALUES (%s, 0, 0)",
                [self._pipeline],
            )
            found = self._select(target.for_update)
        # Commits of earlier instances find no row from now on: their generation is older.
        self.generation = int(found[0][3]) + 1
        self.at = _position(found[0])
        position = self.at if has_offset else None
        target.run(
            f"UPDATE {table} SET {q('generation')} = %s WHERE {q('pipeline')} = %s",
            [self.generation, self._pipeline],
        )
        if not has_offset:
            self.store(None)
            self._forget_rows(self._tables)
            if target.describe(self._dead_letters) is not None:
                self._forget_rows(self._dead_letters)
            self.committed(None)
        self.forget()
        target.commit()
        return position

    def _make(self) -> None:
        target = self._target
        number, word, time = target.number_type, target.word_type, target.time_type
        if target.describe(self.table) is None:
            target.create(
                self.table,
                [
                    ("pipeline", word),
                    ("end_lsn", word),
                    ("commit_lsn", word),
                    ("change_index", number),
                    ("generation", number),
                    ("written_at", time),
                ],
                ["pipeline"],
            )
            target.commit()
        if target.describe(self._tables) is None:
            target.create(
                self._tables,
                [
                    ("pipeline", word),
                    ("source_oid", number),
                    ("target_schema", word),
                    ("target_table", word),
                    ("columns", target.text_type),
                ],
                ["pipeline", "source_oid"],
            )
            target.commit()

    def store(self, position: Position | None) -> None:
        """Write ``position`` in the open transaction.

        Raises: SqlFenced, SqlPositionChanged.
        """
        target, q = self._target, self._target.quoted
        sets = ", ".join(f"{q(name)} = %s" for name in ("end_lsn", "commit_lsn", "change_index"))
        before = _columns(self.at)
        tests = [
            f"{q(name)} IS NULL" if value is None else f"{q(name)} = %s"
            for name, value in zip(("end_lsn", "commit_lsn", "change_index"), before, strict=True)
        ]
        # The old position is tested too: a restored backup has this generation, but another
        # position.
        count = target.change(
            f"UPDATE {escaped(target.quoted_table(self.table))} SET {sets},"
            f" {q('written_at')} = CURRENT_TIMESTAMP"
            f" WHERE {q('pipeline')} = %s AND {q('generation')} = %s AND {' AND '.join(tests)}",
            [
                *_columns(position),
                self._pipeline,
                self.generation,
                *(value for value in before if value is not None),
            ],
        )
        if count != 1:
            found = self._select()
            # No later instance wrote, so the row itself changed: a backup was restored.
            if not found or int(found[0][3]) <= self.generation:
                there = _position(found[0]) if found else None
                raise SqlPositionChanged(
                    f"{self.name} has {there or 'no position'} where {self._pipeline} committed "
                    f"{self.at}",
                    positions=self.name,
                )
            raise SqlFenced(
                f"another instance of {self._pipeline} writes there",
                pipeline=self._pipeline,
                positions=self.name,
            )

    def committed(self, position: Position | None) -> None:
        """Record the position of the committed transaction."""
        self.at = position
        self._before = {}

    # --- dead letters ---

    def redelivered(self) -> Collection[str]:
        """Return the dead letters of the last `redelivering`."""
        target, q = self._target, self._target.quoted
        if target.describe(self._dead_letters) is None:
            return ()
        rows: list[tuple[str]] = target.run(
            f"SELECT {q('letters')} FROM {escaped(target.quoted_table(self._dead_letters))}"
            f" WHERE {q('pipeline')} = %s",
            [self._pipeline],
        )
        return json.loads(rows[0][0]) if rows else ()

    def make_dead_letters(self) -> None:
        """Create the table of dead letters if it is missing.

        It commits, so it runs before the batch.
        """
        target = self._target
        if target.describe(self._dead_letters) is None:
            columns = [("pipeline", target.word_type), ("letters", target.text_type)]
            target.create(self._dead_letters, columns, ["pipeline"])
            target.commit()

    def redelivering(self, redelivery_ids: Sequence[str]) -> None:
        """Store ``redelivery_ids`` in the open transaction.

        They replace the ones of the last redelivery.
        """
        target, q = self._target, self._target.quoted
        self._forget_rows(self._dead_letters)
        quoted = escaped(target.quoted_table(self._dead_letters))
        target.run(
            f"INSERT INTO {quoted} ({q('pipeline')}, {q('letters')}) VALUES (%s, %s)",
            [self._pipeline, json.dumps(redelivery_ids)],
        )

    def _forget_rows(self, table: TargetName) -> None:
        target = self._target
        target.run(
            f"DELETE FROM {escaped(target.quoted_table(table))} WHERE {target.quoted('pipeline')} = %s",
            [self._pipeline],
        )

    # --- tables ---

    def _read_tables(self) -> dict[int, KnownTable]:
        target, q = self._target, self._target.quoted
        names = ", ".join(map(q, ("source_oid", "target_schema", "target_table", "columns")))
        rows = target.run(
            f"SELECT {names} FROM {escaped(target.quoted_table(self._tables))} WHERE {q('pipeline')} = %s",
            [self._pipeline],
        )
        return {
            int(oid): _known(TargetName(schema or None, name), json.loads(columns))
            for oid, schema, name, columns in rows
        }

    def is_shared(self, name: TargetName) -> bool:
        """Return whether another pipeline writes to the table, too."""
        target, q = self._target, self._target.quoted
        tests = [f"{q('pipeline')} <> %s"]
        tests += [f"{q(column)} = %s" for column in ("target_schema", "target_table")]
        found = target.run(
            f"SELECT 1 FROM {escaped(target.quoted_table(self._tables))} WHERE {' AND '.join(tests)}",
            [self._pipeline, name.schema or "", name.name],
        )
        return bool(found)

    def note(self, oid: int, table: KnownTable) -> None:
        """Store the binding of the relation ``oid`` in the open transaction."""
        # Each new relation version asks; most change nothing in the target.
        if self.known.get(oid) == table:
            return
        target, q = self._target, self._target.quoted
        quoted = escaped(target.quoted_table(self._tables))
        target.run(
            f"DELETE FROM {quoted} WHERE {q('pipeline')} = %s AND {q('source_oid')} = %s",
            [self._pipeline, oid],
        )
        names = ("pipeline", "source_oid", "target_schema", "target_table", "columns")
        target.run(
            f"INSERT INTO {quoted} ({', '.join(map(q, names))}) VALUES (%s, %s, %s, %s, %s)",
            [
                self._pipeline,
                oid,
                table.name.schema or "",
                table.name.name,
                json.dumps(_written(table)),
            ],
        )
        self._before.setdefault(oid, self.known.get(oid))
        self.known[oid] = table


def _written(table: KnownTable) -> dict[str, object]:
    """Return the stored form of a table's columns."""
    fields: dict[str, object] = {
        str(number): [name, *table.types.get(number, ())] for number, name in table.columns.items()
    }
    if table.stale:
        fields["stale"] = table.stale
    return {**fields, "source": table.source} if table.source else fields


def _known(name: TargetName, fields: dict[str, Any]) -> KnownTable:
    """Return a table from the stored form of its columns.

    Earlier releases stored names alone.
    """
    known = KnownTable(name, stale=tuple(fields.pop("stale", ())), source=fields.pop("source", ""))
    for number, column in fields.items():
        called, *of_type = [column] if isinstance(column, str) else column
        known.columns[int(number)] = called
        if of_type:
            known.types[int(number)] = (str(of_type[0]), int(of_type[1]))
    return known


def _columns(position: Position | None) -> tuple[str | None, str | None, int]:
    """Return a position as values of its columns."""
    if position is None:
        return None, None, 0
    inside = lsn_text(position.commit_lsn) if position.commit_lsn else None
    return lsn_text(position.end_lsn), inside, position.index


def _position(row: tuple[str | None, str | None, int, int]) -> Position | None:
    end_lsn, commit_lsn, index, _generation = row
    if end_lsn is None:
        return None
    return Position(parse_lsn(end_lsn), parse_lsn(commit_lsn) if commit_lsn else 0, int(index))
