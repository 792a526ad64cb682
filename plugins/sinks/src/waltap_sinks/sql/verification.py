"""Read a SQL target for a comparison."""

import abc
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waltap.ports.sink.sink import SinkContext
from waltap.ports.sink.verification import ComparedTable, Row, TableReader, VerificationSource
from waltap_sinks.comparison.common_text import reader_of, source_text
from waltap_sinks.comparison.table_readers import (
    PostgresTableReader,
    RowTableReader,
    configure_session,
    row_texts,
)
from waltap_sinks.sql.metadata import KnownTable, SinkMetadata
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetName
from waltap_sinks.sql.targets import target_of
from waltap_sinks.sql.targets.target import SqlTarget, TargetDescription

if TYPE_CHECKING:
    from waltap_sinks.sql.targets.postgresql import PostgresTarget


PRIMARY = """
    SELECT a.attname::text, format_type(a.atttypid, NULL) FROM pg_index i JOIN pg_attribute a
      ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)
"""
# Sequences of a table, with their columns.
OWNED = """
    SELECT format('%%I.%%I', n.nspname, s.relname), quote_ident(a.attname)
    FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
      JOIN pg_namespace n ON n.oid = s.relnamespace
      JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.refobjid = to_regclass(%s) AND d.classid = 'pg_class'::regclass
      AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
"""


def open_verification_source(properties: SqlProperties, pipeline: str) -> VerificationSource:
    """Connect to the target of a pipeline. Raises: SinkError."""
    target = target_of(properties, SinkContext(pipeline=pipeline, state_dir=Path()))
    metadata = SinkMetadata(
        target, TargetName.parsed(properties.position_table, schemas=target.schemas), pipeline
    )
    kind = PostgresVerification if target.prints_as_source else _GenericTarget
    soft = properties.soft_column if properties.delete_mode == "soft" else ""
    found: _SqlSource = kind(target, metadata, soft)
    try:
        target.open()
        found.prepare()
        metadata.read()
    except Exception as error:
        target.close()
        if not target.speaks(error):
            raise
        raise target.failure(
            error, table=None, position="the start", positions=metadata.name
        ) from error
    return found


class _SqlSource(abc.ABC):
    """Read the tables that the metadata names."""

    def __init__(self, target: SqlTarget, metadata: SinkMetadata, soft: str) -> None:
        self._target, self._metadata, self._soft = target, metadata, soft
        self._described: dict[TargetName, TargetDescription | None] = {}
        self._written: dict[int, KnownTable] = {}

    def prepare(self) -> None:
        """Configure the session."""

    # Returns the source's text of a column (SQL and type).
    text_of: Callable[[str, str], str]

    def common(self, table: ComparedTable, column: str, called: str, type_: str) -> str | None:
        """Return the source's SQL by which a column is compared."""
        described = self._columns(table)
        return self.text_of(column, type_) if described and called in described.columns else None

    @abc.abstractmethod
    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        """Return columns of a table."""

    def close(self) -> None:
        self._target.close()

    def _from(self, table: ComparedTable) -> str:
        """Return the text behind FROM, without soft-deleted rows."""
        quoted, described = self._target.quoted_table, self._columns(table)
        name = self._written[table.oid].name
        if not (self._soft and table.key and described and self._soft in described.columns):
            return quoted(name)
        where = f"{self._target.quoted(self._soft)} IS NULL"
        return f"(SELECT * FROM {quoted(name)} WHERE {where}) AS present"

    def position(self) -> int | None:
        found = self._metadata.read()
        return None if found is None else found.end_lsn

    def tables(self) -> list[ComparedTable]:
        if self._metadata.read() is None and not self._metadata.made:
            return []
        self._metadata.forget()
        self._described.clear()
        found = self._metadata.current_tables
        self._written |= found
        return [
            ComparedTable(
                name="",
                oid=oid,
                key=self.key(known.name),
                columns=known.columns,
                removal=partial(self._removal, known.name),
            )
            for oid, known in sorted(found.items())
            if self._target.describe(known.name) is not None
        ]

    def _removal(
        self, name: TargetName, columns: Sequence[tuple[str, str]], keys: Collection[Row]
    ) -> Iterator[str]:
        table = self._target.quoted_table(name)
        names = [self._target.quoted(called) for called, _ in columns]
        for literals in sorted(self._literals(name, columns, keys)):
            tests = (f"{called} = {each}" for called, each in zip(names, literals, strict=True))
            yield f"DELETE FROM {table} WHERE {' AND '.join(tests)};"

    @abc.abstractmethod
    def _literals(
        self, name: TargetName, columns: Sequence[tuple[str, str]], keys: Collection[Row]
    ) -> Iterator[tuple[str, ...]]:
        """Yield ``keys`` as literals of the target."""

    def _columns(self, table: ComparedTable) -> TargetDescription | None:
        name = self._written[table.oid].name
        if name not in self._described:
            self._described[name] = self._target.describe(name)
        return self._described[name]

    def key(self, name: TargetName) -> tuple[str, ...]:
        described = self._target.describe(name)
        unique = () if described is None else described.unique
        return tuple(sorted(unique[0])) if unique else ()


class PostgresVerification(_SqlSource):
    """Compare texts of the server, since the types are the source's."""

    _target: "PostgresTarget"
    text_of = staticmethod(lambda column, _type: f"{column}::text")

    def prepare(self) -> None:
        self._target.raw.autocommit = True
        self._target.reads_whole_tables()
        configure_session(self._target.raw)

    def key(self, name: TargetName) -> tuple[str, ...]:
        rows = self._target.run(PRIMARY, [self._target.quoted_table(name)])
        return tuple(row[0] for row in rows)

    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        quoted = self._target.quoted
        written = self._target.quoted_table(self._written[table.oid].name)
        types = dict(self._target.run(PRIMARY, [written]))
        keys = [(quoted(name), types[name], f"{quoted(name)}::text") for name in key]
        texts = [f"{quoted(called)}::text" for called, _ in columns]
        return PostgresTableReader(self._target.raw, self._from(table), texts, keys)

    def move_sequences(self) -> list[tuple[str, int]]:
        """Move each sequence to the largest value of its column.

        Return the moved sequences with their new last values. No sequence moves back.
        """
        moved = []
        for table in self._metadata.current_tables.values():
            table_name = self._target.quoted_table(table.name)
            for sequence, column in self._target.raw.execute(OWNED, [table_name]).fetchall():
                query = (
                    f"SELECT setval('{sequence.replace(chr(39), chr(39) * 2)}', top) FROM"
                    f" (SELECT max({column})::bigint AS top FROM {table_name}) rows, {sequence} held "
                    "WHERE top > held.last_value OR (top = held.last_value AND NOT held.is_called)"
                )
                moved += [
                    (sequence, int(last)) for (last,) in self._target.raw.execute(query.encode())
                ]
        return moved

    def _literals(
        self, name: TargetName, columns: Sequence[tuple[str, str]], keys: Collection[Row]
    ) -> Iterator[tuple[str, ...]]:
        for key in keys:
            yield tuple(self._target.text_literal(part or "") for part in key)


class _GenericTarget(_SqlSource):
    """Read the rows and hash them here."""

    text_of = staticmethod(source_text)

    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        described = self._columns(table)
        assert described is not None
        read = partial(self._read, self._from(table), described, columns)
        return RowTableReader(read, columns, key)

    def _read(
        self, from_clause: str, described: TargetDescription, columns: Sequence[tuple[str, str]]
    ) -> Iterator[Sequence[Any]]:
        target = self._target
        names = ", ".join(
            target.read_as(target.quoted(called), described.columns[called].type)
            for called, _ in columns
        )
        return target.read(f"SELECT {names or '1'} FROM {from_clause}")

    def _literals(
        self, name: TargetName, columns: Sequence[tuple[str, str]], keys: Collection[Row]
    ) -> Iterator[tuple[str, ...]]:
        # The text of the comparison is often no literal of the type, so read the values as stored.
        described = self._target.describe(name)
        assert described is not None
        readers = [reader_of(type_) for _, type_ in columns]
        for row in self._read(self._target.quoted_table(name), described, columns):
            if row_texts(readers, row) in keys:
                yield tuple(self._target.literal(part) for part in row)
