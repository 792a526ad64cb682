"""Store a pipeline's position and its tables in the target."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waltap.base.text import escaped
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position, lsn_text, parse_lsn
from waltap_sinks.sql.errors import SqlFenced, SqlPositionChanged
from waltap_sinks.sql.shape import TargetName
from waltap_sinks.sql.targets.target import SqlTarget


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
    # The source's name of the table.
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
        return str(self.table)

    def is_metadata(self, relation: Relation) -> bool:
        """Return whether ``relation`` looks like such a table."""
        names = {table.name for table in (self.table, self._tables, self._dead_letters)}
        return relation.table in names and any(c.name == "pipeline" for c in relation.columns)

    def read(self) -> Position | None:
        if self._target.describe(self.table) is None:
            return None
        rows = self._select()
        return _position(rows[0]) if rows else None

    def _select(self, ending: str = "") -> list[Any]:
        names = ("end_lsn", "commit_lsn", "change_index", "generation")
        return self._rows(self.table, names, ending=ending)

    # --- statements; each is about rows of this pipeline

    def _rows(self, table: TargetName, names: Sequence[str], *, ending: str = "") -> list[Any]:
        columns = ", ".join(map(self._target.quoted, names))
        where, values = self._where({})
        return self._target.run(f"SELECT {columns} FROM {self._sql(table)}{where}{ending}", values)

    def _insert(self, table: TargetName, row: Mapping[str, object]) -> None:
        row = {"pipeline": self._pipeline, **row}
        names = ", ".join(map(self._target.quoted, row))
        marks = ", ".join(["%s"] * len(row))
        self._target.run(
            f"INSERT INTO {self._sql(table)} ({names}) VALUES ({marks})", list(row.values())
        )

    def _update(
        self, table: TargetName, row: Mapping[str, object], more: str = "", **tests: object
    ) -> int:
        sets = ", ".join(f"{self._target.quoted(name)} = %s" for name in row)
        where, values = self._where(tests)
        return self._target.change(
            f"UPDATE {self._sql(table)} SET {sets}{more}{where}", [*row.values(), *values]
        )

    def _delete(self, table: TargetName, **tests: object) -> None:
        where, values = self._where(tests)
        self._target.run(f"DELETE FROM {self._sql(table)}{where}", values)

    def _where(self, tests: Mapping[str, object], equal: str = "=") -> tuple[str, list[object]]:
        """Return the condition on this pipeline's rows, with <> on others.

        The second value has its parameters.
        """
        q = self._target.quoted
        parts = [f"{q('pipeline')} {equal} %s"]
        parts += [f"{q(n)} IS NULL" if v is None else f"{q(n)} = %s" for n, v in tests.items()]
        values = [self._pipeline, *(value for value in tests.values() if value is not None)]
        return f" WHERE {' AND '.join(parts)}", values

    def _sql(self, table: TargetName) -> str:
        return escaped(self._target.quoted_table(table))

    def open(self, *, has_offset: bool) -> Position | None:
        """Fence other instances and return the stored position.

        It waits for a pending commit of an earlier instance. Without ``has_offset`` the stored
        position belongs to another history and is deleted.
        """
        target = self._target
        self._make()
        target.begin()
        # The lock waits for the commit of an instance that was killed or replaced in its middle.
        found = self._select(target.for_update)
        if not found:
            self._insert(self.table, {"change_index": 0, "generation": 0})
            found = self._select(target.for_update)
        # Commits of earlier instances find no row from now on: their generation is older.
        self.generation = int(found[0][3]) + 1
        self.at = _position(found[0])
        position = self.at if has_offset else None
        self._update(self.table, {"generation": self.generation})
        if not has_offset:
            self.store(None)
            self._delete(self._tables)
            if target.describe(self._dead_letters) is not None:
                self._delete(self._dead_letters)
            self.committed(None)
        self.forget()
        target.commit()
        return position

    def _make(self) -> None:
        target = self._target
        number, word, text = target.number_type, target.word_type, target.text_type
        positions = {"end_lsn": word, "commit_lsn": word, "change_index": number}
        positions |= {"generation": number, "written_at": target.time_type}
        self._create(self.table, positions)
        tables = {"source_oid": number, "target_schema": word, "target_table": word}
        self._create(self._tables, {**tables, "columns": text}, "source_oid")

    def _create(self, table: TargetName, columns: Mapping[str, str], *key: str) -> None:
        """Create and commit a missing table by pipeline and ``key``."""
        if self._target.describe(table) is None:
            named = {"pipeline": self._target.word_type, **columns}
            self._target.create(table, list(named.items()), ["pipeline", *key])
            self._target.commit()

    def store(self, position: Position | None) -> None:
        """Write ``position`` in the open transaction.

        Raises: SqlFenced, SqlPositionChanged.
        """
        now = f", {self._target.quoted('written_at')} = CURRENT_TIMESTAMP"
        # The old position is tested too: a restored backup has this generation, but another
        # position.
        tests = {"generation": self.generation, **_columns(self.at)}
        if self._update(self.table, _columns(position), now, **tests) != 1:
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
        self.at = position
        self._before = {}

    # --- dead letters ---

    def redelivered(self) -> Collection[str]:
        """Return the dead letters of the last `redelivering`."""
        if self._target.describe(self._dead_letters) is None:
            return ()
        rows = self._rows(self._dead_letters, ["letters"])
        return json.loads(rows[0][0]) if rows else ()

    def make_dead_letters(self) -> None:
        """Create the table of dead letters if it is missing.

        It commits, so it runs before the batch.
        """
        self._create(self._dead_letters, {"letters": self._target.text_type})

    def redelivering(self, redelivery_ids: Sequence[str]) -> None:
        """Store ``redelivery_ids`` in the open transaction.

        They replace the ones of the last redelivery.
        """
        self._delete(self._dead_letters)
        self._insert(self._dead_letters, {"letters": json.dumps(redelivery_ids)})

    # --- tables ---

    def _read_tables(self) -> dict[int, KnownTable]:
        names = ("source_oid", "target_schema", "target_table", "columns")
        rows = self._rows(self._tables, names)
        return {
            int(oid): _known(TargetName(schema or None, name), json.loads(columns))
            for oid, schema, name, columns in rows
        }

    def is_shared(self, name: TargetName) -> bool:
        """Return whether another pipeline writes to the table, too."""
        tests = {"target_schema": name.schema or "", "target_table": name.name}
        where, values = self._where(tests, "<>")
        return bool(self._target.run(f"SELECT 1 FROM {self._sql(self._tables)}{where}", values))

    def note(self, oid: int, table: KnownTable) -> None:
        """Store the binding of the relation ``oid`` in the open transaction."""
        # Each new relation version asks; most change nothing in the target.
        if self.known.get(oid) == table:
            return
        self._delete(self._tables, source_oid=oid)
        row = {"target_schema": table.name.schema or "", "target_table": table.name.name}
        columns = json.dumps(_written(table))
        self._insert(self._tables, {"source_oid": oid, **row, "columns": columns})
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
    """Return a table from the stored form of its columns."""
    known = KnownTable(name, stale=tuple(fields.pop("stale", ())), source=fields.pop("source", ""))
    for number, (called, *of_type) in fields.items():
        known.columns[int(number)] = called
        if of_type:
            known.types[int(number)] = (str(of_type[0]), int(of_type[1]))
    return known


def _columns(position: Position | None) -> dict[str, object]:
    end = inside = None
    if position is not None:
        end = lsn_text(position.end_lsn)
        inside = lsn_text(position.commit_lsn) if position.commit_lsn else None
    return {"end_lsn": end, "commit_lsn": inside, "change_index": position.index if position else 0}


def _position(row: tuple[str | None, str | None, int, int]) -> Position | None:
    end_lsn, commit_lsn, index, _generation = row
    if end_lsn is None:
        return None
    return Position(parse_lsn(end_lsn), parse_lsn(commit_lsn) if commit_lsn else 0, int(index))
