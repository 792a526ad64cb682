"""Compile a table version: its changes become rows of the log.

Everything that depends on the relation is decided once per relation version. A change costs a type
test and an append.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from waltap.base.files.store import safe_name
from waltap.base.import_rules import pa, spare_pandas
from waltap.changes.arrow.tuples import RelationCodec, schema_digest
from waltap.changes.capture.source_type import root_type
from waltap.changes.decode.message import Change, Truncate
from waltap.changes.decode.relation import (
    Column,
    DataType,
    PerRelation,
    Relation,
    TypeKind,
    as_text,
    type_name,
)
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple, Value
from waltap.changes.events import (
    CHANGED,
    DELETES,
    INSERTS,
    OPERATIONS,
    TRUNCATES,
    UPDATES,
    EventPlan,
    Run,
    runs,
)
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.errors import WaltapError
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.changelog.errors import ColumnNameTaken
from waltap_sinks.changelog.manifest import ColumnEntry

log = logging.getLogger(__name__)

# Columns of each segment behind its table's; see docs/explanation/changelog.md.
LOG_COLUMNS: Final = (
    "_op",
    "_commit_lsn",
    "_seq",
    "_sub",
    "_lsn",
    "_commit_ts",
    "_xid",
    "_unchanged",
)

Project = Callable[[Tuple], Tuple]


@dataclass(slots=True)
class LogRows:
    """Hold changes as rows, in parallel lists."""

    tuples: Sequence[Tuple]
    # One value may represent all rows.
    operations: str | list[str]
    subs: int | list[int] = 0
    # The index of each row's change; None if it is the row's own.
    source: list[int] | None = None
    updates: bool = False
    key_changes: int = 0


class TableVersion:
    """Compile one relation version for the change log."""

    def __init__(
        self,
        relation: Relation,
        context: SinkContext,
        warn: Callable[[str], None] = lambda _text: None,
        described: Relation | None = None,
    ) -> None:
        """Compile ``relation`` as the wire has it.

        ``described`` is its completed form. ``warn`` gets messages about values that are stored in
        another form. Raises: ColumnNameTaken; errors of the type mapping.
        """
        if context.types is None:
            raise WaltapError("the change log was made without a type mapper")
        plans = context.events
        described = described or plans.describe(relation)
        self._seen, self._described, self._context = relation, described, context
        self._plan = plan = EventPlan(relation, described, plans, by_row=True)
        names = self._names = plan.names
        identifying = frozenset(plan.identifying)
        column_indexes = tuple(sorted(identifying.union(each.index for each in plan.columns)))
        self.relation = msgspec.structs.replace(
            described,
            columns=tuple(
                _stored(described.columns[index], names[index], context.types, index in identifying)
                for index in column_indexes
            ),
        )
        self._warn = warn
        self._column_indexes = column_indexes
        self._masks = plan.masks(unmasked=identifying)
        self._project = _projection(plan, column_indexes, self._masks)
        spare_pandas()  # pyarrow would import pandas in the middle of the first batch, 1 s
        self.codec: RelationCodec = RelationCodec(self.relation, context.types)
        for name in self.codec.schema.names:
            if name in LOG_COLUMNS:
                raise ColumnNameTaken(
                    f"{relation.name} has a column {name}, which the change log uses itself",
                    column=rf"{relation.schema}\.{relation.table}\.{name}",
                )
        self.key: tuple[str, ...] = tuple(names[index] for index in plan.identifying)
        self._key_shared = bool(self.key) and described.identifies_shared_keys
        # Columns with composite types: their places in tuples, with mappings that raise for a new
        # attribute.
        self.grown = tuple(self._readers(described, context.types))
        self._asked = 0
        self._nothing: Tuple = (None,) * len(names)
        self.segment_schema = _segment_schema(self.codec.schema)
        self.folder = f"{safe_name(relation.schema)}/{safe_name(relation.table)}"
        self.columns = self._entries()
        self.fingerprint = self._fingerprint()

    def _entries(self) -> tuple[ColumnEntry, ...]:
        by_name = {column.name: column for column in self.relation.columns}
        found = []
        for field in self.codec.schema:
            column = by_name[field.name]
            missing = self._missing(column)
            entry = ColumnEntry(
                name=column.name,
                type=type_name(column),
                arrow=str(field.type),
                nullable=column.nullable,
                number=column.number,
                typmod=column.typmod,
                # Also where older rows alone have one that `missing` cannot say.
                default=column.default is not None
                or (missing is None and column.missing is not None),
                missing=missing,
                generated=column.generated,
            )
            found.append(_shared_entry(entry))
        return tuple(found)

    def _missing(self, column: Column) -> str | None:
        """Return `ColumnEntry.missing`, None for a nested type other than an array."""
        if column.missing is None:
            return None
        row: list[Value] = list(self._nothing)
        row[self._names.index(column.name)] = column.missing
        value = self.codec.batch(self.projected([tuple(row)])).column(column.name)
        self.codec.misfits = {}
        if pa.types.is_list(value.type) and not pa.types.is_nested(value.type.value_type):
            texts = _texts(value.flatten())
            return None if value.null_count else msgspec.json.encode(texts).decode()
        return None if pa.types.is_nested(value.type) else _texts(value)[0]

    def _fingerprint(self) -> str:
        # Without defaults of old rows, which change no row of a segment.
        columns = [msgspec.structs.replace(column, missing=None) for column in self.columns]
        content = msgspec.json.encode([self.relation.oid, self.key, columns])
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    # --- types that grow --------------------------------------------------------------------------

    def _readers(
        self, described: Relation, types: TypeMapper
    ) -> "Iterator[tuple[int, ColumnMapping]]":
        for index in self._column_indexes:
            column = described.columns[index]
            mapping = types.column(column)
            if mapping is not None and not mapping.opaque and _has_composite(column.data_type):
                yield index, mapping

    def is_outgrown(self, changes: Sequence[Change], batch: int) -> bool:
        """Return whether a composite value has other attributes than its type.

        The result is false if `renewed` was called in ``batch``: all its values are older than that
        answer.
        """
        # One catalogue query per batch: a value that is older than its type would ask for ever.
        return self._asked != batch and any(
            _outgrows(mapping, row[index])
            for change in changes
            if type(change) is not Truncate
            for row in (getattr(change, "old", None), getattr(change, "new", None))
            if row is not None and len(row) == len(self._names)
            for index, mapping in self.grown
        )

    def renewed(self, batch: int) -> "TableVersion":
        """Return the version with the present types.

        If they are unchanged, it is this version, which does not ask again for ``batch``.
        """
        renew = self._context.renew
        now = self._described if renew is None else renew(self._described)
        if now is self._described:
            self._asked = batch
            return self
        return TableVersion(self._seen, self._context, self._warn, now)

    # --- changes to rows --------------------------------------------------------------------------

    def rows(self, changes: Sequence[Change], commit_lsn: Sequence[int]) -> LogRows:
        """Convert ``changes`` to rows in order.

        A change of the key becomes a delete of the old key and an insert (sub 0 and 1). Without a
        key an update becomes a delete of the old row and an update, so that readers can keep a
        multiset. A delete that identifies no row is left out.
        """
        found = runs(changes)
        # Loads are inserts only: one list comprehension instead of three appends per row.
        if len(found) == 1 and found[0][0] is INSERTS:
            rows = LogRows([change.new for change in changes], "c")  # type: ignore[union-attr]
        else:
            rows = self._mixed(found)
            if self._key_shared:
                self._restate(rows, changes, commit_lsn)
        rows.tuples = self.projected(rows.tuples)
        return rows

    def _restate(self, rows: LogRows, changes: Sequence[Change], commit_lsn: Sequence[int]) -> None:
        """Add the row that stays under a key where another row of that key changed last.

        Readers take the last values of a key for the row that stays.
        """
        source = rows.source or list(range(len(rows.tuples)))
        key_of = itemgetter(*self._plan.identifying)
        found: list[tuple[int, Tuple]] = []
        end = 0
        steps = zip(rows.tuples, rows.operations, source, strict=True)
        for _, transaction in groupby(steps, lambda step: commit_lsn[step[2]]):
            held: dict[Any, list[Tuple]] = {}
            last: dict[Any, Tuple] = {}
            for row, operation, index in transaction:
                end += 1
                if operation == "t":
                    held.clear()
                    continue
                known = held.setdefault(key := key_of(row), [])
                before = changes[index].old if operation == "u" else row  # type: ignore[union-attr]
                if operation != "c" and before in known:
                    known.remove(before)
                if operation != "d":
                    known.append(row)
                    last[key] = row
            staying = ((key, each[0]) for key, each in held.items() if len(each) == 1)
            found += [(end, row) for key, row in staying if row != last[key]]
        if found:
            tuples, operations = list(rows.tuples), list(rows.operations)
            subs = rows.subs if isinstance(rows.subs, list) else [0] * len(source)
            for end, row in reversed(found):
                tuples.insert(end, row)
                operations.insert(end, "r")
                source.insert(end, source[end - 1])
                subs.insert(end, 2)
            rows.tuples, rows.operations, rows.source, rows.subs = tuples, operations, source, subs

    def key_reused(self, rows: LogRows, commit_lsn: Sequence[int]) -> bool:
        """Return whether a transaction deletes a key that it put before."""
        logged = [column.name for column in self.relation.columns]
        key_of = itemgetter(*map(logged.index, self.key))
        transaction = -1
        # Rows may exchange keys within such a transaction. Spark then takes values from the state
        # before it, which costs more, so the entry names these tables only.
        put: set[Any] = set()
        for row, operation, lsn in zip(rows.tuples, rows.operations, commit_lsn, strict=True):
            if operation == "c":
                if lsn != transaction:
                    transaction, put = lsn, set()
                put.add(key_of(row))
            elif operation == "d" and lsn == transaction and key_of(row) in put:
                return True
        return False

    def projected(self, tuples: Sequence[Tuple]) -> Sequence[Tuple]:
        """Return tuples with the columns of the log."""
        project = self._project
        return tuples if project is None else [project(row) for row in tuples]

    def block(self, block: RowBlock) -> RowBlock:
        """Return snapshot rows or inserts as log columns."""
        if self._project is None:
            return block
        masks = self._masks
        columns = [
            block.mapped(n, masks[n]) if n in masks else block.arrays[n]
            for n in self._column_indexes
        ]
        return RowBlock(columns, len(block))

    def _mixed(self, found: list[Run]) -> LogRows:
        operations: list[str] = []
        source: list[int] = []
        tuples: list[Tuple] = []
        rows, index = LogRows(tuples, operations), 0
        add, add_source, add_operation = tuples.append, source.append, operations.append
        for kind, _relation, run in found:
            letter = OPERATIONS[kind]
            if kind is INSERTS or kind is UPDATES:
                for row_index, change in enumerate(run, index):
                    add(change.new)  # type: ignore[union-attr]
                    add_operation(letter)
                    add_source(row_index)
            elif kind is CHANGED:
                self._changed(run, index, rows, tuples, operations, source)
            elif kind is DELETES:
                for row_index, change in enumerate(run, index):
                    images = self._plan.delete(change)  # type: ignore[arg-type]
                    if images is not None:
                        add(images[0])
                        add_operation(letter)
                        add_source(row_index)
            elif kind is TRUNCATES:
                tuples += [self._nothing] * len(run)
                operations += letter * len(run)
                source += range(index, index + len(run))
            index += len(run)
        rows.updates = "u" in operations or rows.key_changes > 0
        # Most runs have one row per change; `source` and `subs` are stored for the others only.
        if source != list(range(index)):
            rows.source = source
            rows.subs = [0, *(int(now == last) for last, now in pairwise(source))][: len(source)]
        return rows

    def _changed(
        self,
        run: Sequence[Change],
        index: int,
        rows: LogRows,
        tuples: list[Tuple],
        operations: list[str],
        source: list[int],
    ) -> None:
        """Append the rows of updates with an old tuple."""
        keyed = bool(self.key)
        for row_index, change in enumerate(run, index):
            before, new, old = self._plan.update(change)  # type: ignore[arg-type]
            # A table with FULL identity has the complete old row, better than its key alone.
            gone = before if not keyed or (old is not None and before is not None) else old
            operation = "u" if old is None or not keyed else "c"
            if gone is not None:
                tuples.append(gone)
                operations.append("d")
                source.append(row_index)
                rows.key_changes += operation == "c" and UNCHANGED in new
            tuples.append(new)
            operations.append(operation)
            source.append(row_index)

    # --- rows to Arrow ----------------------------------------------------------------------------

    def misfits(self) -> dict[str, int]:
        """Return the new misfits by column, and warn of them."""
        found = self.codec.misfits
        if not found:
            return {}
        self.codec.misfits = {}
        counts: dict[str, int] = {}
        for (column, reason), count in found.items():
            counts[column] = counts.get(column, 0) + count
            # Two keys that are both null are one key for readers.
            key = "; rows that differ there alone become one" if column in self.key else ""
            self._warn(
                f"column {column} of {self.relation.name}: {reason}; null is written for such "
                f"values{key} (waltap.arrow.out.of.range = string keeps them)"
            )
        return counts

    def unchanged(
        self, tuples: Sequence[Tuple]
    ) -> "tuple[list[list[str] | None], tuple[str, ...]]":
        """Return the unchanged columns of each row, and of all rows."""
        logged = set(self.codec.schema.names)
        columns = self.relation.columns
        names = [(n, column.name) for n, column in enumerate(columns) if column.name in logged]
        per_row: list[list[str] | None] = []
        seen: set[str] = set()
        for row in tuples:
            found = [name for n, name in names if row[n] is UNCHANGED] if UNCHANGED in row else None
            per_row.append(found or None)
            seen.update(found or ())
        return per_row, tuple(name for _n, name in names if name in seen)


class TableVersions(PerRelation["TableVersion | None"]):
    """Compile captured relations; the result for others is None."""

    __slots__ = ("_context", "_warn")

    def __init__(self, context: SinkContext) -> None:
        super().__init__(self._compiled)
        self._context = context
        # Each text is logged once in the life of the sink.
        self._warn: Callable[[str], None] = lru_cache(None)(log.warning)

    def _compiled(self, relation: Relation) -> TableVersion | None:
        capture = self._context.capture
        captured = capture is None or capture.captures(relation.schema, relation.table)
        return TableVersion(relation, self._context, self._warn) if captured else None


def _stored(column: Column, name: str, types: TypeMapper, identifies: bool) -> Column:
    """Return ``column`` with the name; mostly it has it already."""
    if identifies and types.column(column) is None:
        column = as_text(column)
    return column if column.name == name else msgspec.structs.replace(column, name=name)


def _texts(values: "pa.Array") -> list[str | None]:
    """Return values as `ColumnEntry.missing` has them."""
    if pa.types.is_binary(values.type):
        return [None if each is None else each.hex() for each in values.to_pylist()]
    found: list[str | None] = values.cast(pa.string()).to_pylist()
    return found


def _has_composite(data_type: DataType | None) -> bool:
    if data_type is None:
        return False
    root = root_type(data_type)
    if root.kind is TypeKind.COMPOSITE:
        return True
    return root.element is not None and _has_composite(root.element)


def _outgrows(mapping: ColumnMapping, value: Value) -> bool:
    if not isinstance(value, str):
        return False
    try:
        mapping.json(value)
    except ValueError:
        return True
    return False


# As in `RelationCodec`: equal schemas are one object.
_SEGMENT_SCHEMAS: "WeakValueDictionary[bytes, pa.Schema]" = WeakValueDictionary()


def _segment_schema(table: "pa.Schema") -> "pa.Schema":
    """Return the schema of segments.

    The table's columns are nullable, since deletes and truncates have no values. `LOG_COLUMNS` follow.
    """
    digest = schema_digest(table)
    if (known := _SEGMENT_SCHEMAS.get(digest)) is not None:
        return known
    own = (
        pa.string(),
        pa.int64(),
        pa.int32(),
        pa.int8(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int64(),
        pa.list_(pa.string()),
    )
    made = _SEGMENT_SCHEMAS[digest] = pa.schema(
        [field.with_nullable(True) for field in table]
        + [pa.field(name, kind) for name, kind in zip(LOG_COLUMNS, own, strict=True)]
    )
    return made


@lru_cache(maxsize=4096)
def _shared_entry(entry: ColumnEntry) -> ColumnEntry:
    """Return an equal entry; thousands of tables may be alike."""
    return entry


def _projection(
    plan: EventPlan, column_indexes: tuple[int, ...], masks: Mapping[int, Callable[[Value], Value]]
) -> Project | None:
    """Return the function that selects and masks columns, None if unneeded.

    Keys are never masked, since they identify rows.
    """
    if not masks and len(column_indexes) == len(plan.relation.columns):
        return None
    if not masks and len(column_indexes) > 1:
        return itemgetter(*column_indexes)
    steps = tuple((index, masks.get(index)) for index in column_indexes)

    def project(row: Tuple) -> Tuple:
        return tuple(row[index] if mask is None else mask(row[index]) for index, mask in steps)

    return project
