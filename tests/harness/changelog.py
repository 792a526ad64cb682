"""A change log's surroundings without a database: relations, transactions, and what they should give.

`Database` plays a server: it makes `TransactionPart`s and `SnapshotRows` with LSNs that grow as
PostgreSQL's do, and keeps the rows that its tables hold after each transaction, as a model that
shares no code with the change log.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from waltap.base.files.store import FileStore
from waltap.changes.decode.builtin_types import BUILTIN_TYPES
from waltap.changes.decode.message import Change, Delete, Insert, OldTuple, Truncate, Update
from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import PublicationCompleteness
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink
from waltap_sinks.changelog.manifest import Manifest
from waltap_sinks.changelog.table_version import LOG_COLUMNS

START = 0x1000000
COMMIT_TS = 1_700_000_000_000_000


def typed(text: str) -> dict[str, Any]:
    """Return the fields of a column of the type ``text``, such as ``numeric(9,2)``."""
    name, _, modifiers = text.partition("(")
    numbers = [int(part) for part in modifiers.rstrip(")").split(",") if part]
    if name == "numeric" and numbers:
        numbers = [(numbers[0] << 16) | numbers[1]]
    typmod = numbers[0] + 4 if numbers else -1
    found = BUILTIN_TYPES[name.removeprefix("_")]
    oid = found.array_oid if name.startswith("_") else found.oid
    kind = DataType(oid=oid, schema="pg_catalog", name=name)
    return {"type_oid": kind.oid, "typmod": typmod, "data_type": kind}


def relation(
    name: str,
    columns: Sequence[tuple[str, str]],
    *,
    numbers: Sequence[int] = (),
    more: Mapping[str, dict[str, Any]] | None = None,
    key: Sequence[str] = ("id",),
    identity: str = "d",
    oid: int | None = None,
) -> Relation:
    """Return a relation as the connector describes it. A column is (name, type[(p,s)]).

    ``numbers`` are the columns' in the source, ``more`` what else a column has, by name.
    """
    schema, _, table = name.rpartition(".")
    made = []
    for at, (column, text) in enumerate(columns):
        made.append(
            Column(
                name=column,
                **typed(text),
                in_identity=identity == "f" or (identity == "d" and column in key),
                nullable=column not in key and "default" not in (more or {}).get(column, {}),
                type_text=text,
                number=numbers[at] if numbers else None,
                **(more or {}).get(column, {}),
            )
        )
    return Relation(
        oid=oid if oid is not None else 16384 + sum(name.encode()),
        schema=schema or "public",
        table=table,
        columns=tuple(made),
        identity=identity,
        primary_key=tuple(key),
    )


def context(folder: Path, *, has_offset: bool = False, **more: Any) -> SinkContext:
    """Return what the engine gives a sink that takes changes."""
    from waltap.changes.mapping.type_registry import TypeRegistry
    from waltap_postgres.identity import REPLICA_IDENTITIES
    from waltap_postgres.types import TYPE_SPECS

    identities = {spec.letter: spec.factory for spec in REPLICA_IDENTITIES}
    more = {"types": TypeRegistry(TYPE_SPECS), **more}
    return SinkContext(
        pipeline="test",
        state_dir=folder,
        identity=lambda relation: identities[relation.identity](relation),
        has_offset=has_offset,
        **more,
    )


ALL: Final = PublicationCompleteness(others="all", continuous=True)
"""What a source says of which no change is missing."""


class Database:
    """A server whose transactions are made by hand. ``rows`` is the model: table → list of rows."""

    def __init__(self) -> None:
        self.lsn = START
        self.xid = 700
        self.rows: dict[str, list[Tuple]] = {}
        self.history: list[tuple[int, dict[str, list[Tuple]]]] = []
        self._changes: list[Change] = []

    # --- changes of the open transaction ----------------------------------------------------------

    def _step(self, size: int = 64) -> int:
        self.lsn += size
        return self.lsn

    def _table(self, table: Relation) -> list[Tuple]:
        return self.rows.setdefault(table.name, [])

    def insert(self, table: Relation, *rows: Sequence[str | None]) -> None:
        for row in rows:
            self._changes.append(Insert(table, self._step(), tuple(row)))
            self._table(table).append(tuple(row))

    def update(
        self,
        table: Relation,
        key: Sequence[str | None],
        unsent: Iterable[str] = (),
        which: int = 0,
        **values: Any,
    ) -> None:
        """UPDATE of the row whose key (or, without a key, whose whole row) is ``key``; ``which`` of
        several that a deferrable key lets be there until COMMIT.

        ``unsent`` are columns the server does not send since they are TOASTed and untouched.
        """
        rows = self._table(table)
        at = self._find(table, key, which)
        old = rows[at]
        names = [column.name for column in table.columns]
        new = tuple(values.get(name, value) for name, value in zip(names, old, strict=True))
        rows[at] = new
        unsent = set(unsent)
        sent = tuple(
            UNCHANGED if name in unsent else value for name, value in zip(names, new, strict=True)
        )
        identifying = [
            index for index, name in enumerate(names) if name in (table.primary_key or ())
        ]
        if table.identity == "f":
            image, kind = old, OldTuple.FULL
        elif any(old[index] != new[index] for index in identifying):
            image, kind = self._key_image(table, old), OldTuple.KEY
        else:
            image, kind = (), OldTuple.NONE
        self._changes.append(Update(table, self._step(), sent, image, kind))

    def delete(self, table: Relation, key: Sequence[str | None], which: int = 0) -> None:
        """DELETE of one row."""
        old = self._table(table).pop(self._find(table, key, which))
        full = table.identity == "f"
        image = old if full else self._key_image(table, old)
        kind = OldTuple.FULL if full else OldTuple.KEY
        self._changes.append(Delete(table, self._step(), image, kind))

    def truncate(self, *tables: Relation) -> None:
        for table in tables:
            self.rows[table.name] = []
        self._changes.append(Truncate(tables, self._step()))

    def _find(self, table: Relation, key: Sequence[str | None], which: int = 0) -> int:
        names = [column.name for column in table.columns]
        identifying = [names.index(name) for name in table.primary_key or ()] or range(len(names))
        for index, row in enumerate(self._table(table)):
            if [row[at] for at in identifying] == list(key):
                if which == 0:
                    return index
                which -= 1
        raise KeyError(key)

    def _key_image(self, table: Relation, row: Tuple) -> Tuple:
        return tuple(
            value if column.name in (table.primary_key or ()) else ABSENT
            for column, value in zip(table.columns, row, strict=True)
        )

    # --- what the engine would hand over ----------------------------------------------------------

    def commit(self) -> TransactionPart:
        """COMMIT: return the transaction as one part."""
        begin, commit = self.lsn, self._step(8)
        end = self._step(48)
        self.xid += 1
        part = TransactionPart(
            xid=self.xid,
            begin_lsn=begin,
            commit_lsn=commit,
            commit_ts=COMMIT_TS + commit,
            end_lsn=end,
            changes=self._changes,
        )
        self._changes = []
        self.history.append((end, {name: list(rows) for name, rows in self.rows.items()}))
        return part

    def inserted(self, table: Relation, *rows: Sequence[str | None]) -> TransactionPart:
        self.insert(table, *rows)
        return self.commit()

    def snapshot(self, *tables: Relation, rows_each: int = 3) -> list[Batch]:
        """Return a snapshot of ``tables`` as it stands, in batches of ``rows_each``."""
        parts = []
        for table in tables:
            rows = self._table(table)
            cut = [rows[at : at + rows_each] for at in range(0, len(rows), rows_each)] or [[]]
            for number, some in enumerate(cut):
                parts.append(
                    SnapshotRows(
                        relation=table,
                        rows=list(some),
                        ts=COMMIT_TS,
                        lsn=self.lsn,
                        xid=self.xid,
                        first_marker="first_in_data_collection" if number == 0 else "true",
                        last_marker="last_in_data_collection" if number == len(cut) - 1 else "true",
                        complete=number == len(cut) - 1,
                        chunk=number,
                        ends_chunk=True,
                    )
                )
        parts[0].opens, parts[0].first_marker = True, "first"
        parts[-1].last_marker = "last"
        pieces = [
            Batch(parts=[part], position=Position(self.lsn), events=len(part.rows), snapshot=True)
            for part in parts
        ]
        return [*pieces, Batch(parts=[], position=Position(self.lsn), events=0, snapshot=True)]


def batch(*parts: TransactionPart) -> Batch:
    """Return a batch of ``parts``; its position is that after the last one."""
    last = parts[-1]
    done = Position(last.end_lsn) if last.complete else Position(0, last.commit_lsn, 1)
    return Batch(
        parts=list(parts),
        position=done,
        events=sum(len(part.changes) for part in parts),
    )


def copy_of(part: TransactionPart) -> TransactionPart:
    """Return a part as it is delivered again: a sink may change it."""
    return msgspec.structs.replace(part, changes=list(part.changes))


def in_parts(part: TransactionPart, *sizes: int) -> list[TransactionPart]:
    """Cut a transaction as the engine does when it is larger than a batch."""
    assert sum(sizes) == len(part.changes)
    out, at = [], 0
    for number, size in enumerate(sizes):
        final = number == len(sizes) - 1
        out.append(
            msgspec.structs.replace(
                part,
                changes=part.changes[at : at + size],
                first_index=at,
                starts=number == 0,
                complete=final,
                end_lsn=part.end_lsn if final else 0,
            )
        )
        at += size
    return out


class WrittenLog:
    """A change log, and the server whose transactions one run after the other writes to it.

    A run is ``with log.open():``, or goes on until ``close``.
    """

    def __init__(self, folder: Path, location: str = "", *, store: FileStore | None = None) -> None:
        self.folder, self.db, self.store = folder, Database(), store
        self.path = location or str(folder / "log")

    def open(self, settings: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """Begin a run; ``settings`` are properties of the sink, ``more`` is what its context has besides."""
        properties = ChangeLogProperties.model_validate({"path": self.path, **(settings or {})})
        self.sink = ChangeLogSink(properties, context(self.folder, **more), store=self.store)
        self.opened_at = self.sink.open()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_of_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.sink.close()

    def write(self, *given: Batch | TransactionPart) -> None:
        """Write batches, or transactions as one batch."""
        parts = [each for each in given if isinstance(each, TransactionPart)]
        batches = [each for each in given if isinstance(each, Batch)]
        for each in [batch(*parts)] if parts else batches:
            self.sink.write(each)

    def flush(self, *given: Batch | TransactionPart) -> Position | None:
        """Write what is given, and flush; return what is promised."""
        self.write(*given)
        return self.sink.flush()

    def insert(self, table: Relation, *rows: Sequence[str | None]) -> TransactionPart:
        part = self.db.inserted(table, *rows)
        self.flush(part)
        return part

    @property
    def log(self) -> ChangeLog:
        """The log, as others read it."""
        return ChangeLog(self.store or self.path)

    @property
    def newest(self) -> Manifest:
        found = self.log.last()
        assert found is not None
        return found

    def manifests(self) -> list[Manifest]:
        return list(self.log.manifests())

    def rows(self, table: str = "people", **more: Any) -> list[dict[str, Any]]:
        return [row for part in self.log.rows("public", table, **more) for row in part.to_pylist()]


def replay(rows: Iterable[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows a table holds after the logged changes ``rows``: the plainest applier."""
    state: dict[Any, dict[str, Any]] = {}
    multiset: list[dict[str, Any]] = []
    own = {*LOG_COLUMNS, "_epoch", "_generation"}
    lifted: dict[str, Any] = {}
    for row in rows:
        operation, unchanged = row["_op"], row["_unchanged"] or ()
        values = {name: value for name, value in row.items() if name not in own}
        identity = tuple(values[name] for name in key)
        if operation == "t":
            state.clear()
            multiset.clear()
        elif not key:
            if operation == "d":
                multiset.remove(values)
            else:
                multiset.append(values)
        elif operation == "d":
            lifted = state.pop(identity)
        else:
            before = lifted if row["_sub"] == 1 else state.get(identity, {})
            for name in unchanged:
                values[name] = before[name]
            state[identity] = values
    return multiset if not key else list(state.values())


def logged(log: FileStore | Path, table: str = "t") -> list[dict[str, Any]]:
    """Return a table's rows in a change log, in its order."""
    parts = ChangeLog(log if isinstance(log, FileStore) else str(log)).rows("public", table)
    return [row for part in parts for row in part.to_pylist()]


def logged_ids(log: FileStore | Path, table: str = "t") -> list[int]:
    return [row["id"] for row in logged(log, table)]
