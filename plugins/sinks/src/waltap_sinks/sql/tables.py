"""Find and create the target's tables, and follow the source's DDL."""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

import msgspec

from waltap.base.text import sql_word
from waltap.changes.decode.builtin_types import BUILTIN_TYPES
from waltap.changes.decode.relation import (
    DataType,
    FormerOwner,
    as_text,
    may_change_values,
    type_name,
)
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap.errors import SinkError
from waltap_sinks.sql.errors import (
    SqlColumnMissing,
    SqlColumnNameTaken,
    SqlConstraintViolated,
    SqlNameTaken,
    SqlNameUnfit,
    SqlOwnColumnTaken,
    SqlPositionsCaptured,
    SqlTableGone,
    SqlTableUnfit,
    SqlValueUnfit,
)
from waltap_sinks.sql.metadata import KnownTable, SinkMetadata
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.rows import certainly_ignored
from waltap_sinks.sql.shape import (
    HistoryShape,
    TargetColumn,
    TargetName,
    TargetShape,
    target_name,
    with_suffix,
)
from waltap_sinks.sql.targets.target import (
    BoundColumn,
    BoundTable,
    ExistingColumn,
    SqlTarget,
    TargetDescription,
)

log = logging.getLogger(__name__)

# The suffix of columns that swap their names.
MOVING: Final = "_waltap_moves"

# The least OID of a type that a user created.
USERS: Final = 16_384


class TargetTables:
    """Bind shapes to tables of the target.

    With evolution ``basic`` missing tables and columns are created, types widened, and renames
    followed. Nothing is dropped: the column of a dropped one stays, under another name if a new
    column has its name. A table or column that was bound before must exist, unless the run
    ``repairs``.
    """

    def __init__(
        self,
        target: SqlTarget,
        metadata: SinkMetadata,
        properties: SqlProperties,
        types: TypeMapper | None,
        *,
        repairs: bool = False,
    ) -> None:
        self._types = types
        self._target, self._metadata, self._properties = target, metadata, properties
        self._rebuilds = repairs
        # Dead letters come again, with the names and types of their own time.
        self.redelivers = False
        self._bound: dict[TargetShape, BoundTable] = {}
        # The table of the last statement, for messages.
        self.at: BoundTable | None = None
        # The OID and name of the relation that owns each table.
        self._sources: dict[TargetName, tuple[int, str]] = {}
        self._shape_of: dict[int, TargetShape] = {}
        self._alike_of: dict[int, KnownTable] | None = None
        # The metadata that was read last, with its OIDs by folded names.
        self._alike: dict[TargetName, set[int]] = {}
        # Shapes that have the table's former names until the commit.
        self._delayed: list[TargetShape] = []
        # The bound shape keeps the names and types that the table has.
        self._keeps = False
        # Tables that the open transaction created.
        self._created: set[TargetName] = set()

    def forget(self) -> None:
        """Read the target again from now on."""
        self._bound.clear()
        self._shape_of.clear()
        self._created.clear()
        self._delayed = []

    def committed(self) -> Sequence[TargetShape]:
        """Return shapes to bind again, by names of their own."""
        self._created.clear()
        former, self._delayed = self._delayed, []
        for shape in former:
            self._bound.pop(shape, None)
        return former

    def rebuild(self) -> None:
        """Create missing tables again: a snapshot reads every row."""
        self._rebuilds = True

    def is_bound(self, shape: TargetShape) -> bool:
        """Return whether `of` has the table without a query."""
        return shape in self._bound

    def forget_relation(self, oid: int) -> None:
        """Forget a dropped relation; the target's table stays."""
        shape = self._shape_of.pop(oid, None)
        if shape is not None:
            self._bound.pop(shape, None)

    def of(self, shape: TargetShape, *, renewed: bool = False, former: bool = False) -> BoundTable:
        """Return the table for ``shape``. ``renewed``: a snapshot replaces its rows next.

        ``former``: by the names that the table has, until the commit.

        Raises: SqlNameTaken, SqlColumnMissing, SqlTableUnfit; exceptions of the driver.
        """
        found = self._bound.get(shape)
        if found is None:
            self.at = BoundTable(shape, str(shape.name), (), (), None)
            self._keeps = self.redelivers or former
            found = self._bind(shape, renewed=renewed)
            # Columns may have been renamed, so an earlier version must be bound again.
            before = self._shape_of.get(shape.relation.oid)
            if before is not None:
                self._bound.pop(before, None)
            self._shape_of[shape.relation.oid] = shape
            self._bound[shape] = found
            if former:
                self._delayed.append(shape)
        self.at = found
        return found

    def _bind(self, shape: TargetShape, *, renewed: bool) -> BoundTable:
        known = self._metadata.known.get(shape.relation.oid)
        if self._keeps and known is not None:
            shape = shape.called(known.name, known.source, known.columns)
        name, target = shape.name, self._target
        self._claim(shape)  # before any DDL: two sources of one table must not both alter it
        evolves = self._properties.evolution == "basic"
        snapshot_reason = self._release_name(shape, known, renewed=renewed)
        if evolves and known is not None:
            self._rename_table(known, name)
        described = self._described(shape)
        names = {} if known is None else _present_names(known, described)
        self._require_there(shape, described, known, names)
        if described is None:
            described = self._create(shape)
            if known is not None and known.name != name:
                snapshot_reason = f"its rows from before are in {known.name}"
        if not described.is_table:
            raise SqlTableUnfit(
                f"{name} is no table", statement=f"DROP VIEW {name}, or another name"
            )
        # A case-insensitive key would merge rows silently, so it fails before the first row.
        self._require_exact(shape, described)
        ignored = certainly_ignored(target, name)
        if ignored is not None:
            raise ignored
        before = described
        if evolves and self._evolve(shape, described, names, known, renewed=renewed):
            described = self._described(shape) or described
        if isinstance(shape, HistoryShape) and evolves and not target.transactional_ddl:
            target.index_history(shape)
        missing = [c.name for c in shape.columns if c.name not in described.columns]
        soft = self._soft(shape)
        if missing or (soft is not None and soft not in described.columns):
            column = missing[0] if missing else str(soft)
            raise SqlColumnMissing(
                f"{name} has no column {column}",
                statement=f"ALTER TABLE {name} ADD COLUMN {target.quoted(column)} …",
            )
        unique = frozenset(c.name for c in shape.key)
        if shape.key and shape.unique and unique not in described.unique:
            if name not in self._created:
                raise SqlTableUnfit(
                    f"{name} has no unique index on {', '.join(target.quoted(c.name) for c in shape.key)}",
                    statement=self._key_statement(shape, before),
                )
            # A statement of the user would not find the table, which is gone with the failure.
            target.run(self._index_statement(shape, name, [column.name for column in shape.key]))
            described = self._described(shape) or described
        if renewed:
            known = snapshot_reason = None
        self._note(shape, known, snapshot_reason, names)
        columns = {
            column.index: BoundColumn(
                column, target.quoted(column.name), described.columns[column.name]
            )
            for column in shape.columns
        }
        return BoundTable(
            shape,
            target.quoted_table(name),
            tuple(columns.values()),
            tuple(columns[column.index] for column in shape.key),
            None if soft is None else target.quoted(soft),
            only_key=len(set(described.unique)) <= 1,
            shared=len(described.columns) > len(columns) + (soft is not None),
            cascades=target.cascades(name),
        )

    def _key_statement(self, shape: TargetShape, described: TargetDescription) -> str:
        """Return the SQL that gives a table a key. ``described`` is as the sink found it."""
        target, name, called = self._target, shape.name, {}
        # Where DDL is transactional, columns that were added, and new names, are gone with the
        # failure.
        before = self._metadata.committed_table(shape.relation.oid)
        if before is not None and target.transactional_ddl:
            name, called = before.name, before.columns
        table = target.quoted_table(name)
        statements, names = [], []
        for column in shape.key:
            number = column.column.number
            if number is not None and number in called:
                names.append(called[number])
                continue
            names.append(column.name)
            if column.name not in described.columns and target.transactional_ddl:
                add = f"ALTER TABLE {table} ADD COLUMN {target.quoted(column.name)} "
                missing = column.column.missing
                value = "" if missing is None else " DEFAULT '" + missing.replace("'", "''") + "'"
                statements.append(add + target.type_for(column) + value)
        # A table has one primary key: the former one, if the key at the source is another by now.
        quoted = ", ".join(map(target.quoted, names))
        statements.append(
            self._index_statement(shape, name, names)
            if described.unique or not target.adds_keys
            else f"ALTER TABLE {table} ADD PRIMARY KEY ({quoted})"
        )
        return "; ".join(statements)

    def _index_statement(
        self, shape: TargetShape, table: TargetName, columns: Sequence[str]
    ) -> str:
        target = self._target
        # The table may have such an index for an earlier key, and so may one that had its name.
        identity = "\0".join([str(shape.relation.oid), *columns])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        index = target.quoted(with_suffix(table.name, f"_waltap_key_{digest}"))
        names = ", ".join(map(target.quoted, columns))
        return f"CREATE UNIQUE INDEX {index} ON {target.quoted_table(table)} ({names})"

    def _require_there(
        self,
        shape: TargetShape,
        described: TargetDescription | None,
        known: KnownTable | None,
        names: Mapping[int, str],
    ) -> None:
        """Check the bound table and its columns. Raises: SqlTableGone."""
        # A table that others dropped is not created again: it would lack all earlier rows.
        if self._rebuilds or known is None or known.name != shape.name:
            return
        if described is None:
            raise SqlTableGone(f"table {shape.name}, which had rows, is no longer in the target")
        now = {c.column.number: c.name for c in shape.columns}
        for number, column in names.items():
            if now.get(number) == column and column not in described.columns:
                raise SqlTableGone(
                    f"column {column} of {shape.name}, which had values, is no longer in the target"
                )

    def _require_exact(self, shape: TargetShape, described: TargetDescription) -> None:
        """Check that different keys of the source differ in the target.

        Raises: SqlTableUnfit.
        """
        for column in shape.key:
            existing = described.columns.get(column.name)
            if existing is not None and existing.collation:
                raise inexact(self._target, shape.name, existing, self._target.type_for(column))

    def _claim(self, shape: TargetShape) -> None:
        """Record the relation that owns the table.

        Raises: SqlNameTaken, SqlColumnNameTaken, SqlNameUnfit, SqlOwnColumnTaken,
        SqlPositionsCaptured.
        """
        target, name, oid = self._target, shape.name, shape.relation.oid
        if self._metadata.is_metadata(shape.relation):
            # In the sink's own database, each position that it stores would be a change to deliver.
            raise SqlPositionsCaptured(
                f"{shape.source} has positions of an SQL sink",
                pattern=re.escape(f"{shape.relation.schema}.{self._metadata.table.name}") + ".*",
            )
        for called in (name.name, *(column.name for column in shape.columns)):
            if not target.can_name(called):
                raise SqlNameUnfit(
                    f"{shape.source} leads to the name {called!r}, which the target cannot have",
                    table=re.escape(shape.source),
                )
        if target.ignores_column_case:
            for one, other in _alike(column.name for column in shape.columns):
                raise SqlColumnNameTaken(
                    f"the target takes columns {one} and {other} of {shape.source} for the same",
                    column="(?-i:" + rf"{shape.source}.{other}".replace(".", r"\.") + ")",
                )
        soft = self._soft(shape)
        if soft is not None and any(
            column.name == soft
            or (target.ignores_column_case and column.name.lower() == soft.lower())
            for column in shape.columns
        ):
            raise SqlOwnColumnTaken(
                f"{shape.source} has a column {soft} of its own",
                property="soft.delete.column",
                example=f"waltap_{soft}",
                column=re.escape(f"{shape.source}.{soft}"),
            )
        # A table per topic is shared on purpose when a transform routes tables to one topic.
        if "{topic}" in self._properties.table_format:
            return
        there, source = self._sources.setdefault(self._folded(name), (oid, shape.source))
        if source != shape.source:
            if there != oid and any(other.source == source for other in self._bound):
                raise SqlNameTaken(f"{source} and {shape.source} both lead to {name}")
            self._sources[self._folded(name)] = oid, shape.source
        if not target.ignores_table_case:
            return
        for number in self._known_alike().get(self._folded(name), ()):
            known = self._metadata.known[number]
            if known.name != name and number != oid:
                raise SqlNameTaken(
                    f"{shape.source} leads to {name}, which the target takes for {known.name}, the table "
                    "of another"
                )

    def _known_alike(self) -> dict[TargetName, set[int]]:
        """Return the OIDs of bound tables by folded names."""
        if self._alike_of is not self._metadata.known:
            self._alike_of, self._alike = self._metadata.known, {}
            for oid, known in self._alike_of.items():
                self._alike.setdefault(self._folded(known.name), set()).add(oid)
        return self._alike

    def _folded(self, name: TargetName) -> TargetName:
        """Return the name by which the target knows a table."""
        if not self._target.ignores_table_case:
            return name
        return TargetName(name.schema and name.schema.lower(), name.name.lower())

    def _described(self, shape: TargetShape) -> TargetDescription | None:
        """Return the description of the table of ``shape``.

        Columns have the shape's names where case makes no difference.
        """
        found = self._target.describe(shape.name)
        if found is None or not self._target.ignores_column_case:
            return found
        ours = {column.name.lower(): column.name for column in shape.columns}
        called = {name: ours.get(name.lower(), name) for name in found.columns}
        return replace(
            found,
            columns={called[name]: column for name, column in found.columns.items()},
            unique=tuple(frozenset(called.get(n, n) for n in names) for names in found.unique),
        )

    def _soft(self, shape: TargetShape) -> str | None:
        wanted = self._properties.delete_mode == "soft" and bool(shape.key) and shape.unique
        return self._properties.soft_column if wanted else None

    def _create(self, shape: TargetShape) -> TargetDescription:
        target, name = self._target, shape.name
        columns = [(column.name, target.type_for(column)) for column in shape.columns]
        key = [column.name for column in shape.key] if shape.unique else []
        if self._properties.delete_mode == "soft" and key:
            columns.append((self._properties.soft_column, target.time_type))
        if self._properties.evolution == "none":
            statement = target.create_statement(name, columns, key)
            raise SqlColumnMissing(f"the target has no table {name}", statement=statement)
        target.create(name, columns, key)
        if target.transactional_ddl:
            self._created.add(name)
        if isinstance(shape, HistoryShape):
            target.index_history(shape)
        log.info("created %s in the target", name)
        described = self._described(shape)
        assert described is not None
        return described

    # --- in step ----------------------------------------------------------------------------------

    def _release_name(
        self, shape: TargetShape, known: KnownTable | None, *, renewed: bool
    ) -> str | None:
        """Free the name of ``shape`` from its former owner.

        A snapshot replaces the rows of a dropped relation: then the table stays if it can have the new
        rows, with its views and grants. Return the reason why rows of the former relation under the
        name need a snapshot.
        """
        name, oid = shape.name, shape.relation.oid
        if not oid or "{topic}" in self._properties.table_format:
            return None
        if known is not None and known.name == name:
            return None
        tables = self._metadata.known
        former = next((n for n, table in tables.items() if table.name == name and n != oid), None)
        if former is None:
            return None
        owner = shape.relation.former_owner
        if owner is not None and owner.oid != abs(former):
            owner = None
        # A name that no table has, so that the former relation is not taken for this table's owner.
        away = TargetName(name.schema, with_suffix(name.name, f"@{abs(former)}"))
        gone = "dropped" if owner is None else f"renamed to {owner.name}"
        snapshot_reason = None
        # A table of another name may lead to this one, too, and need not be gone.
        succeeds = owner is not None or tables[former].source == shape.source
        evolves = self._properties.evolution == "basic" and self._target.transactional_ddl
        stays = renewed and owner is None and self._has_key_of(shape)
        if evolves and succeeds and not stays and not self._metadata.is_shared(name):
            wanted = away if owner is None else self._name_of(shape, owner)
            is_used = any(table.name == wanted for table in tables.values())
            if wanted.schema == name.schema and not is_used and self._is_free(wanted):
                away = wanted
            if not self._is_free(name):
                self._target.rename_table(name, away.name)
                log.warning(
                    "%s was %s at the source and another table has its name: the former rows are in %s "
                    "of the target",
                    name,
                    gone,
                    away,
                )
        else:
            snapshot_reason = f"it has rows of the table that had its name before and was {gone}"
        self._metadata.note(former, replace(tables[former], name=away))
        self._alike_of = None
        before = self._shape_of.pop(former, None)
        if before is not None:
            self._bound.pop(before, None)
        return snapshot_reason

    def _has_key_of(self, shape: TargetShape) -> bool:
        """Return whether the table exists, with this key or none."""
        described = self._described(shape)
        if described is None:
            return False
        key = frozenset(column.name for column in shape.key)
        return key in described.unique if key and shape.unique else not described.unique

    def _is_free(self, name: TargetName) -> bool:
        return self._target.describe(name) is None

    def _name_of(self, shape: TargetShape, owner: FormerOwner) -> TargetName:
        """Return the name of ``shape`` if its relation had ``owner``'s name."""
        relation = msgspec.structs.replace(shape.relation, schema=owner.schema, table=owner.table)
        pattern, schemas = self._properties.table_format, self._target.schemas
        name = target_name(relation, "", pattern, schemas=schemas)
        if isinstance(shape, HistoryShape):
            suffix = self._properties.history_suffix
            name = TargetName(name.schema, with_suffix(name.name, suffix))
        return name

    def _rename_table(self, known: KnownTable, name: TargetName) -> None:
        if known.name == name:
            return
        # Another source delivers to the old table, so it must keep its name.
        if any(k.name == known.name for k in self._metadata.known.values() if k is not known):
            return
        if not self._is_free(name) or self._is_free(known.name):
            return
        if known.name.schema == name.schema:
            self._target.rename_table(known.name, name.name)
        elif self._target.moves_tables:
            self._target.move_table(known.name, name)
        else:
            return
        if known.name in self._created:
            self._created.add(name)
        log.info("renamed %s to %s in the target", known.name, name)

    def _evolve(
        self,
        shape: TargetShape,
        described: TargetDescription,
        names: dict[int, str],
        known: KnownTable | None,
        *,
        renewed: bool,
    ) -> bool:
        """Change the table to fit ``shape``; return whether it changed.

        ``names`` has its columns by the source's numbers, and dropped ones by their new names after.
        """
        columns = dict(described.columns)
        done = self._rename_columns(shape, columns, names)
        if gone := columns.keys() & {*names.values()} - {c.name for c in shape.columns}:
            done |= self._target.allow_nulls(shape.name, sorted(gone))
        for column in shape.columns:
            existing = columns.get(column.name)
            wanted = self._target.type_for(column)
            if existing is None:
                self._add(shape, column, wanted)
                done = True
            # Computed columns of the target keep the type that their owner chose.
            elif existing.written:
                done |= self._retype(shape, column, existing, wanted, known, renewed=renewed)
        soft = self._soft(shape)
        if soft is not None and soft not in columns:
            self._target.add_column(shape.name, soft, self._target.time_type, None)
            done = True
        return done

    def _retype(
        self,
        shape: TargetShape,
        column: TargetColumn,
        existing: ExistingColumn,
        wanted: str,
        known: KnownTable | None,
        *,
        renewed: bool,
    ) -> bool:
        """Give a column a type for its values; return whether it changed."""
        target, name = self._target, shape.name
        before = None if self._keeps else self._former(column, known)
        if before is not None:
            target.convert(name, before, column)
        wider = target.widened(existing.type, wanted)
        # A type that the user chose stays.
        if wider is None and before is not None:
            wider = isinstance(shape, HistoryShape) or (
                target.widened(existing.type, target.type_for(before)) is False
            )
        if not wider:
            return False
        text = self._text_type(column)
        # Rows that the source has no longer, or as they were, keep their values.
        properties = self._properties
        keeps = properties.delete_mode != "delete" or properties.mode == "insert"
        if (keeps and not renewed) or self._keeps or isinstance(shape, HistoryShape):
            wanted = target.common_type(existing.type, wanted)
            wanted = text if wanted == target.text_type else wanted
        if wanted == existing.type:
            return False
        # Readers see the rows, which a snapshot replaces, until its commit.
        replaced = renewed and target.transactional_ddl and not column.key
        made = self._cast(name, column.name, wanted, text, replaced=replaced)
        log.info("changed %s of %s from %s to %s", column.name, name, existing.type, made)
        return True

    def _text_type(self, column: TargetColumn) -> str:
        """Return the type of texts, which a key may limit."""
        if not column.key or self._types is None:
            return self._target.text_type
        source = msgspec.structs.replace(as_text(column.column), typmod=-1)
        return self._target.type_for(
            replace(column, column=source, mapping=self._types.column(source))
        )

    def _cast(self, name: TargetName, column: str, type_: str, text: str, *, replaced: bool) -> str:
        """Cast a column, to ``text`` if values do not fit; return the type.

        Values of rows that are ``replaced`` are lost where they do not fit.

        Raises: SqlTableUnfit.
        """
        target = self._target
        tries = [type_] if replaced or target.holds(name, column, type_) else []
        for each in (*tries, *[type_] * replaced, text):
            try:
                with target.attempt() if target.transactional_ddl else nullcontext():
                    target.alter_type(name, column, each)
            except target.errors as error:
                meaning = target.meaning(error)
                if meaning is SqlValueUnfit and each != text:
                    if replaced:
                        target.run(f"DELETE FROM {target.quoted_table(name)}")
                    continue
                # As of a view that has the column.
                if meaning not in {None, SqlTableUnfit, SqlConstraintViolated}:
                    raise
                raise SqlTableUnfit(
                    f"column {column} of {name}: {target.error_text(error)}",
                    statement=f"drop what depends on column {target.quoted(column)}",
                ) from error
            else:
                return each
        return text

    def _former(self, column: TargetColumn, known: KnownTable | None) -> TargetColumn | None:
        """Return the column with its former type at the source, None if that is the same."""
        number = column.column.number
        if known is None or number is None:
            return None
        now = type_name(column.column), column.column.typmod
        name, typmod = known.types.get(number, now)
        if (name, typmod) == now:
            return None
        kind = _type_named(name)
        before = msgspec.structs.replace(
            column.column,
            type_oid=kind.oid,
            typmod=typmod,
            data_type=kind,
            type_text=f"{sql_word(kind.schema)}.{sql_word(kind.name)}",
        )
        assert self._types is not None
        return replace(column, column=before, mapping=self._types.column(before))

    def _add(self, shape: TargetShape, column: TargetColumn, type_: str) -> None:
        source = column.column
        value = (
            None if source.missing is None else self._target.value(shape, column, source.missing)
        )
        self._target.add_column(shape.name, column.name, type_, value)
        log.info("added column %s to %s in the target", column.name, shape.name)
        if source.default is not None and source.missing is None and not source.generated:
            log.warning(
                "column %s of %s has a default that the server filled old rows with and did not publish: "
                "they have null in the target until they are read again (waltap snapshot FILE %s)",
                column.name, shape.name, shape.source,
            )  # fmt: skip

    def _rename_columns(
        self, shape: TargetShape, columns: dict[str, ExistingColumn], names: dict[int, str]
    ) -> bool:
        """Follow renames by the source's column numbers, also of swapped names."""
        wanted = {c.column.number: c.name for c in shape.columns if c.column.number is not None}
        moved = {
            old: wanted[number]
            for number, old in names.items()
            if wanted.get(number, old) != old and old in columns
        }
        unchanged = {old for n, old in names.items() if wanted.get(n) == old}
        new_names = set(wanted.values())
        replaced = {
            number: old
            for number, old in names.items()
            if number not in wanted and old in new_names and old in columns and old not in unchanged
        }
        # A new column has a dropped one's name: the old values move aside under its number.
        for number, old in replaced.items():
            taken = {name.casefold() for name in (*columns, *new_names)}
            spare = with_suffix(old, f"_{number}")
            while spare.casefold() in taken:
                spare = with_suffix(spare, f"_{number}")
            self._rename(shape.name, columns, old, spare)
            names[number] = spare
        for old in [old for old, new in moved.items() if new in moved or new in columns]:
            if moved[old] in columns and moved[old] not in moved:
                del moved[old]  # the target has a column with that name already
                continue
            if old.endswith(MOVING):  # a crash came between
                moved[old] = moved.pop(old)
                continue
            # Columns that swap names need a third name in between.
            between = with_suffix(old, MOVING)
            self._rename(shape.name, columns, old, between)
            moved[between] = moved.pop(old)
            number = next(n for n, name in names.items() if name == old and n in wanted)
            names[number] = between
        if not self._target.transactional_ddl and any(old.endswith(MOVING) for old in moved):
            # The next rename commits it. After a crash the swapped names would be taken for theirs.
            known = self._metadata.known[shape.relation.oid]
            self._metadata.note(shape.relation.oid, replace(known, columns=dict(names)))
        for old, new in moved.items():
            self._rename(shape.name, columns, old, new)
        return bool(moved or replaced)

    def _rename(
        self, name: TargetName, columns: dict[str, ExistingColumn], old: str, new: str
    ) -> None:
        self._target.rename_column(name, old, new)
        columns[new] = columns.pop(old)
        log.info("renamed column %s of %s to %s in the target", old, name, new)

    def renewed(self, shape: TargetShape) -> BoundTable:
        """Return the table for ``shape`` before a snapshot replaces its rows."""
        found = self.of(shape, renewed=True)
        # All rows will be of the snapshot, so reasons for a new snapshot end here.
        self._note(shape, None, None, self._metadata.known[shape.relation.oid].columns)
        return found

    def _snapshot_reasons(
        self, shape: TargetShape, types: dict[int, tuple[str, int]], known: KnownTable
    ) -> tuple[str, ...]:
        """Return the reasons why older rows may differ from the source's."""
        stale = known.stale
        for column in shape.columns:
            number = column.column.number
            if number is None or number not in known.types:
                continue
            if may_change_values(known.types[number], types[number]):
                snapshot_reason = (
                    f"the type of {column.name} changed; ALTER TABLE … USING may have given older rows "
                    "other values"
                )
                log.warning("%s needs a new snapshot: %s", shape.name, snapshot_reason)
                stale = stale if snapshot_reason in stale else (*stale, snapshot_reason)
        return stale

    def _note(
        self,
        shape: TargetShape,
        known: KnownTable | None,
        snapshot_reason: str | None,
        names: Mapping[int, str],
    ) -> None:
        columns = {c.column.number: c.name for c in shape.columns if c.column.number is not None}
        # A dropped column stays in the target. Its name may return, as another column's.
        present = set(columns.values())
        dropped = {n: name for n, name in names.items() if n not in columns and name not in present}
        columns = {**dropped, **columns}
        types = {
            column.number: (type_name(column), column.typmod)
            for column in (each.column for each in shape.columns)
            if column.number is not None
        }
        if self._keeps and known is not None:
            types |= known.types
        stale: tuple[str, ...] = ()
        # A version in a history keeps the value it had, so a changed type affects nothing there.
        if not isinstance(shape, HistoryShape):
            stale = () if known is None else self._snapshot_reasons(shape, types, known)
            if snapshot_reason is not None:
                log.warning("%s needs a new snapshot: %s", shape.name, snapshot_reason)
                stale = (*stale, snapshot_reason)
        oid = shape.relation.oid
        if self._target.ignores_table_case:
            alike, before = self._known_alike(), self._metadata.known.get(oid)
            if before is not None:
                alike[self._folded(before.name)].discard(oid)
            alike.setdefault(self._folded(shape.name), set()).add(oid)
        self._metadata.note(oid, KnownTable(shape.name, columns, types, stale, shape.source))


def _type_named(name: str) -> DataType:
    """Return the type of a name by `type_name`."""
    builtin = BUILTIN_TYPES.get(name.removeprefix("_"))
    if builtin is not None:
        oid = builtin.array_oid if name.startswith("_") else builtin.oid
        return DataType(oid=oid, schema="pg_catalog", name=name)
    schema, _, own = name.rpartition(".")
    return DataType(oid=USERS, schema=schema or "pg_catalog", name=own)


def _present_names(known: KnownTable, described: TargetDescription | None) -> dict[int, str]:
    """Return names by number, even amid a broken swap."""
    there = () if described is None else described.columns
    moving = {number: with_suffix(name, MOVING) for number, name in known.columns.items()}
    return {
        number: moving[number] if name not in there and moving[number] in there else name
        for number, name in known.columns.items()
    }


def inexact(target: SqlTarget, table: TargetName, column: ExistingColumn, type_: str) -> SinkError:
    """Return the error for a key whose collation equates different texts.

    ``type_`` is the type that the column needs.
    """
    return SqlTableUnfit(
        f"{table} compares keys in {column.name} by the collation {column.collation}, for which different "
        "texts may be equal: rows would overwrite each other",
        statement=target.exact_statement(table, column.name, type_),
    )


def _alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of names that differ in case only."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            yield other, name
