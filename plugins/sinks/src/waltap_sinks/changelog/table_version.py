"""One table under one schema, compiled: how its changes become rows of the change log.

Everything that depends on the relation is decided here, once per relation version; per change there
is a type test and an append.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from waltap.decode.message import Change, Delete, Insert, OldTuple, Truncate, Update
from waltap.decode.relation import Column, Relation
from waltap.decode.replica_identity import ReplicaIdentity
from waltap.decode.tuple_image import UNCHANGED, Missing, Tuple, Value
from waltap.errors import WaltapError
from waltap.sink.sink import SinkContext
from waltap_sinks.changelog.errors import ColumnNameTaken
from waltap_sinks.changelog.manifest import ColumnEntry
from waltap_sinks.changelog.spared_pandas import spare_pandas
from waltap_sinks.changelog.store import safe_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LOG_COLUMNS", "Rows", "TableVersion"]

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
"""Columns that every segment has after those of its table; docs/explanation/changelog.md."""

Project = Callable[[Tuple], Tuple]


@dataclass(slots=True)
class Rows:
    """Changes spread out to rows, as parallel lists.

    ``source`` gives for each row the index of the change it came from, None when row n comes from
    change n. ``operations`` and ``subs`` may be one value for all rows.
    """

    tuples: list[Tuple]
    operations: str | list[str]
    subs: int | list[int] = 0
    source: list[int] | None = None
    updates: bool = False
    moved: int = 0


class TableVersion:
    """What the change log knows of one relation version.

    ``codec`` turns rows into Arrow columns; ``key`` names the columns that identify a row;
    ``folder`` is where segments of the table lie, below that of their time.
    """

    def __init__(
        self,
        relation: Relation,
        context: SinkContext,
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """Compile ``relation`` as the wire gave it; ``warn`` is told what is kept otherwise than the
        source has it. Raises: ColumnNameTaken, and what the type mapping raises.
        """
        from waltap.arrow.tuples import RelationCodec

        if context.types is None:
            raise WaltapError("the change log was made without a type mapper")
        described = relation if context.describe is None else context.describe(relation)
        names = self._names = [column.name for column in described.columns]
        self._identity = None if context.identity is None else context.identity(relation)
        identifying = _identifying(described, self._identity)
        kept = self._kept(described, context, identifying)
        self.relation = msgspec.structs.replace(
            described, columns=tuple(described.columns[index] for index in kept)
        )
        self._warn = warn
        self._project = _projection(described, kept, context, identifying)
        spare_pandas()
        self.codec: RelationCodec = RelationCodec(self.relation, context.types)
        columns = self.codec.schema.names
        for name in columns:
            if name in LOG_COLUMNS:
                raise ColumnNameTaken(
                    f"{relation.name} has a column {name}, which the change log uses itself",
                    column=rf"{relation.schema}\.{relation.table}\.{name}",
                )
        self.key: tuple[str, ...] = tuple(name for name in identifying if name in columns)
        self._key_indexes = tuple(names.index(name) for name in self.key)
        self._keyed = bool(self.key)
        self._key_of: Callable[[Tuple], Any] | None = (
            itemgetter(*self._key_indexes) if self._keyed else None
        )
        logged = [column.name for column in self.relation.columns]
        self._logged_key: Callable[[Tuple], Any] | None = (
            itemgetter(*(logged.index(name) for name in self.key)) if self._keyed else None
        )
        self._nothing: Tuple = (None,) * len(names)
        self.segment_schema = _segment_schema(self.codec.schema)
        self.folder = f"{safe_name(relation.schema)}/{safe_name(relation.table)}"
        self.columns = self._entries()
        self.fingerprint = self._fingerprint()

    @staticmethod
    def _kept(
        relation: Relation, context: SinkContext, identifying: tuple[str, ...]
    ) -> tuple[int, ...]:
        """Return the indexes of the columns that the log has: those captured, and the key's."""
        if context.capture is None:
            return tuple(range(len(relation.columns)))
        wanted = set(context.capture.columns(relation))
        return tuple(
            index
            for index, column in enumerate(relation.columns)
            if index in wanted or column.name in identifying
        )

    def _entries(self) -> tuple[ColumnEntry, ...]:
        by_name = {column.name: column for column in self.relation.columns}
        return tuple(
            ColumnEntry(
                name=field.name,
                type=_type_text(by_name[field.name]),
                arrow=str(field.type),
                nullable=by_name[field.name].nullable,
                number=by_name[field.name].number,
                typmod=by_name[field.name].typmod,
                default=by_name[field.name].default is not None,
                missing=self._missing(by_name[field.name]),
                generated=by_name[field.name].generated,
            )
            for field in self.codec.schema
        )

    def _missing(self, column: Column) -> str | None:
        """Return `ColumnEntry.missing`, None also for a type that has no text in Arrow."""
        import pyarrow as pa

        if column.missing is None:
            return None
        row: list[Value] = list(self._nothing)
        row[self._names.index(column.name)] = column.missing
        value = self.arrow(self.snapshot([tuple(row)]).tuples).column(column.name)
        self.codec.misfits = {}
        if pa.types.is_binary(value.type):
            found: bytes = value[0].as_py()
            return found.hex()
        if pa.types.is_nested(value.type):
            return None
        text: str | None = value.cast(pa.string())[0].as_py()
        return text

    def _fingerprint(self) -> str:
        columns = [msgspec.structs.replace(column, missing=None) for column in self.columns]
        content = msgspec.json.encode([self.relation.oid, self.key, columns])
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    # --- changes to rows --------------------------------------------------------------------------

    def rows(self, changes: Sequence[Change]) -> Rows:
        """Spread ``changes`` of this relation version out to rows, in order.

        A change of the key becomes a delete of the old key and an insert (sub 0 and 1). Without a
        key an update becomes a delete of the old row and an update (sub 0 and 1), so that a
        multiset of rows can follow. A delete that identifies no row is left out.
        """
        kinds = set(map(type, changes))
        if kinds == {Insert}:
            found = Rows([change.new for change in changes], "c")  # type: ignore[union-attr]
        else:
            found = self._mixed(changes)
        project = self._project
        if project is not None:
            found.tuples = [project(row) for row in found.tuples]
        return found

    def crossed(self, rows: Rows, commit_lsn: Sequence[int]) -> bool:
        """Tell whether one transaction of ``rows`` deletes a key that it put before.

        ``commit_lsn`` is that of each row.
        """
        key_of = self._logged_key
        if key_of is None:
            return False
        transaction = -1
        put: set[Any] = set()
        for row, operation, lsn in zip(rows.tuples, rows.operations, commit_lsn, strict=True):
            if operation == "c":
                if lsn != transaction:
                    transaction, put = lsn, set()
                put.add(key_of(row))
            elif operation == "d" and lsn == transaction and key_of(row) in put:
                return True
        return False

    def snapshot(self, tuples: list[Tuple]) -> Rows:
        """Return rows that a snapshot read."""
        project = self._project
        return Rows(tuples if project is None else [project(row) for row in tuples], "r")

    def _mixed(self, changes: Sequence[Change]) -> Rows:
        tuples: list[Tuple] = []
        operations: list[str] = []
        subs: list[int] = []
        source: list[int] = []
        moved = 0
        one_each = True
        add, add_op, add_sub, add_source = (
            tuples.append,
            operations.append,
            subs.append,
            source.append,
        )
        none = OldTuple.NONE
        for index, change in enumerate(changes):
            kind = type(change)
            if kind is Update:
                if change.old_kind is none:  # type: ignore[union-attr]
                    add(change.new)  # type: ignore[union-attr]
                    add_op("u")
                else:
                    old, new, operation = self._update(change)  # type: ignore[arg-type]
                    if old is not None:
                        one_each = False
                        add(old)
                        add_op("d")
                        add_sub(0)
                        add_source(index)
                        moved += operation == "c" and UNCHANGED in new
                        add_sub(1)
                    else:
                        add_sub(0)
                    add(new)
                    add_op(operation)
                    add_source(index)
                    continue
            elif kind is Insert:
                add(change.new)  # type: ignore[union-attr]
                add_op("c")
            elif kind is Delete:
                before = self._delete(change)  # type: ignore[arg-type]
                if before is None:
                    one_each = False
                    continue
                add(before)
                add_op("d")
            elif kind is Truncate:
                add(self._nothing)
                add_op("t")
            else:
                one_each = False
                continue
            add_sub(0)
            add_source(index)
        return Rows(
            tuples,
            operations,
            subs,
            None if one_each else source,
            updates="u" in operations or moved > 0,
            moved=moved,
        )

    def _update(self, change: Update) -> tuple[Tuple | None, Tuple, str]:
        """Return (row to delete or None, row, operation) of an update with an old tuple."""
        images = self._require_identity().update(change)
        new = change.new if images.after is None else images.after
        old = images.old_key
        if not self._keyed:
            return images.before, new, "u"
        if old is None or self._key_of is None:
            return None, new, "u"
        key_of = self._key_of
        if key_of(old) == key_of(new):
            return None, new, "u"
        new = self._complete_key(old, new)
        if key_of(_without_gaps(old, new, self._key_indexes)) == key_of(new):
            return None, new, "u"
        whole = images.before if images.before is not None else old
        return whole, new, "c"

    def _complete_key(self, old: Tuple, new: Tuple) -> Tuple:
        """Fill key columns that were too long to be sent again (UNCHANGED) from the old tuple."""
        if all(new[index] is not UNCHANGED for index in self._key_indexes):
            return new
        filled = list(new)
        for index in self._key_indexes:
            if filled[index] is UNCHANGED:
                filled[index] = old[index]
        return tuple(filled)

    def _delete(self, change: Delete) -> Tuple | None:
        images = self._require_identity().delete(change)
        return None if images is None else images.before

    def _require_identity(self) -> ReplicaIdentity:
        if self._identity is None:
            raise WaltapError("the change log was made without replica identities")
        return self._identity

    # --- rows to Arrow ----------------------------------------------------------------------------

    def arrow(self, tuples: list[Tuple]) -> "pa.RecordBatch":
        """Return ``tuples`` as columns of the table's types."""
        return self.codec.batch(tuples)

    def misfits(self) -> dict[str, int]:
        """Return column → values of it that became null since the last time, and warn of them."""
        found = self.codec.misfits
        if not found:
            return {}
        self.codec.misfits = {}
        counts: dict[str, int] = {}
        for (column, reason), count in found.items():
            counts[column] = counts.get(column, 0) + count
            key = "; rows that differ there alone become one" if column in self.key else ""
            self._warn(
                f"column {column} of {self.relation.name}: {reason}; null is written for such "
                f"values{key} (waltap.arrow.misfit = string keeps them)"
            )
        return counts

    def unchanged(self, tuples: list[Tuple]) -> "tuple[list[list[str] | None], tuple[str, ...]]":
        """Return per row the names of its unchanged columns (None: none), and all such names."""
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


def _segment_schema(table: "pa.Schema") -> "pa.Schema":
    """Return the schema of segments: the table's columns, all nullable (deletes and truncates have
    no values), then `LOG_COLUMNS`.
    """
    import pyarrow as pa

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
    return pa.schema(
        [field.with_nullable(True) for field in table]
        + [pa.field(name, kind) for name, kind in zip(LOG_COLUMNS, own, strict=True)]
    )


def _identifying(relation: Relation, identity: ReplicaIdentity | None) -> tuple[str, ...]:
    """Return the columns by which updates and deletes name a row."""
    if identity is None:
        return relation.primary_key or ()
    return tuple(relation.columns[index].name for index in identity.identifying)


def _without_gaps(old: Tuple, new: Tuple, indexes: tuple[int, ...]) -> Tuple:
    """Return ``old`` with the key values that it does not have taken from ``new``."""
    if not any(isinstance(old[index], Missing) for index in indexes):
        return old
    filled: list[Value] = list(old)
    for index in indexes:
        if isinstance(filled[index], Missing):
            filled[index] = new[index]
    return tuple(filled)


def _projection(
    relation: Relation, kept: tuple[int, ...], context: SinkContext, identifying: tuple[str, ...]
) -> Project | None:
    """Return what leaves out and masks columns of a tuple, None when nothing does."""
    masks: dict[int, Callable[[Value], Value]] = {}
    if context.capture is not None and context.types is not None:
        for index in kept:
            column = relation.columns[index]
            mapping = None if column.name in identifying else context.types.column(column)
            if mapping is None:
                continue
            transform = context.capture.transform(relation, column, mapping.schema.kind)
            if transform is not None and transform.value is not None:
                masks[index] = _mask(transform.value, mapping.from_binary)
    if not masks:
        if len(kept) == len(relation.columns):
            return None
        if len(kept) == 1:
            only = kept[0]
            return lambda row: (row[only],)
        return itemgetter(*kept)
    steps = tuple((index, masks.get(index)) for index in kept)

    def project(row: Tuple) -> Tuple:
        return tuple(row[index] if mask is None else mask(row[index]) for index, mask in steps)

    return project


def _mask(
    transform: Callable[[object], object], from_binary: Callable[[bytes], str] | None
) -> Callable[[Value], Value]:
    """Return the mask of one text column; what was not sent stays not sent."""

    def mask(value: Value) -> Value:
        if isinstance(value, Missing):
            return value
        if isinstance(value, bytes) and from_binary is not None:
            value = from_binary(value)
        masked = transform(value)
        return None if masked is None else str(masked)

    return mask


def _type_text(column: Column) -> str:
    if column.type_text is not None:
        return column.type_text
    return column.data_type.name if column.data_type is not None else f"oid {column.type_oid}"
