"""The transform ``reselect-columns``: read missing values from the table.

The server does not send large values that an update did not touch. The values read are the current
ones, so they may be newer than the rest of the event. If the row no longer exists, the placeholder
stays. A table that needs the values at the time of the change must have REPLICA IDENTITY FULL.
"""

import logging
from dataclasses import dataclass, field
from typing import Literal, Self

import msgspec
from pydantic import model_validator

from waltap.base.property import Properties, Switch, declare
from waltap.changes.capture.java_regex import NameMatcher, PatternList
from waltap.changes.decode.message import Change, Insert, Update
from waltap.changes.decode.relation import PerRelation, Relation
from waltap.changes.decode.tuple_image import UNCHANGED, MissingValue, Tuple
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.errors import ConnectionLost, RetryVerdict, SourceError, WaltapError
from waltap.ports.specs import SourceTransformContext

log = logging.getLogger(__name__)

# Limits the length of one query.
KEYS_PER_QUERY = 1000

# The profile requests an error with ``reselect.error.handling.mode=fail``.
ReselectFailed = WaltapError.define("ReselectFailed", "WT-3206", retry=RetryVerdict.NEVER)


class ReselectProperties(Properties):
    """Columns to read back, and the cases in which to do it."""

    include: PatternList = declare(
        "reselect.columns.include.list",
        summary="Patterns of columns, as schema.table:column; without any, all.",
        examples=("public.documents:body",),
        patterns="cells",
    )
    exclude: PatternList = declare(
        "reselect.columns.exclude.list",
        summary="Patterns of columns that are left alone.",
        patterns="cells",
    )
    unavailable: bool = declare(
        "reselect.unavailable.values",
        default=True,
        summary="Read back values that the server did not send: large ones that the update did not touch.",
    )
    nulls: bool = declare(
        "reselect.null.values",
        default=True,
        profile_default=False,
        summary="Read NULLs back too, except in columns with a default. Some databases "
        "send NULL for large values. PostgreSQL does not: there this costs a query.",
    )
    by_event_key: Switch = declare(
        "reselect.use.event.key",
        summary="Find rows by the columns of the event's key instead of the primary key.",
    )
    errors: Literal["warn", "fail"] = declare(
        "reselect.error.handling.mode",
        default="warn",
        summary="If a row is gone or a query fails: warn and leave the event as it is, or stop "
        "the pipeline.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.include and self.exclude:
            raise ValueError(
                "give reselect.columns.include.list or reselect.columns.exclude.list, not both"
            )
        return self


@dataclass(frozen=True, slots=True)
class _ReselectedTable:
    """Describe the columns of one relation version."""

    # Columns that may be read back.
    columns: frozenset[int]
    # Columns with a default; their NULLs are not read back.
    defaulted: frozenset[int]
    # Columns that identify a row.
    key: tuple[int, ...]


@dataclass(slots=True)
class _MissingColumns:
    """Collect the rows and columns to read back of one relation."""

    columns: set[int] = field(default_factory=set)
    # Key of a row → indexes of its changes.
    indexes: dict[Tuple, list[int]] = field(default_factory=dict)


class ColumnReselector:
    """Read columns back from the source.

    One query serves all rows of a table in a part of a batch.
    """

    def __init__(self, properties: ReselectProperties, context: SourceTransformContext) -> None:
        self._properties, self._context = properties, context
        self._chosen = NameMatcher(properties.include or properties.exclude)
        self._tables = PerRelation(self._table)

    def __call__(self, batch: Batch) -> Batch:
        """Return ``batch`` with the values that could be read.

        Raises: ReselectFailed, ConnectionLost.
        """
        parts = [
            self._part(part) if isinstance(part, TransactionPart) else part for part in batch.parts
        ]
        return msgspec.structs.replace(batch, parts=parts)

    def _part(self, part: TransactionPart) -> TransactionPart:
        wanted: dict[Relation, _MissingColumns] = {}
        for index, change in enumerate(part.changes):
            if isinstance(change, Insert | Update):
                self._note_missing(change, index, wanted)
        if not wanted:
            return part
        changes = list(part.changes)
        for relation, some in wanted.items():
            self._read(relation, some, changes)
        return msgspec.structs.replace(part, changes=changes)

    def _note_missing(
        self, change: Insert | Update, index: int, wanted: dict[Relation, _MissingColumns]
    ) -> None:
        """Record the columns of ``change`` to read back."""
        relation = change.relation
        # An insert has every value; only its NULLs can be of interest.
        if isinstance(change, Insert) and not self._properties.nulls:
            return
        table = self._tables.of(relation)
        if table is None:
            return
        missing = self._missing(change, table)
        if not missing:
            return
        key = _identifying(change.new, table.key)
        if key is None:
            return
        some = wanted.setdefault(relation, _MissingColumns())
        some.columns |= missing
        some.indexes.setdefault(key, []).append(index)

    def _missing(self, change: Insert | Update, table: _ReselectedTable) -> set[int]:
        row = self._after(change)
        found = set()
        if self._properties.unavailable:
            found = {at for at in table.columns if row[at] is UNCHANGED}
        if self._properties.nulls:
            found |= {at for at in table.columns if row[at] is None and at not in table.defaulted}
        return found

    def _after(self, change: Insert | Update) -> Tuple:
        """Return the new row as events will have it."""
        # Under REPLICA IDENTITY FULL the old row has the untouched values, which saves a query.
        if isinstance(change, Insert) or not change.old:
            return change.new
        after = self._context.identity(change.relation).update(change).after
        return change.new if after is None else after

    def forget(self, oid: int) -> None:
        self._tables.forget(oid)

    def _table(self, relation: Relation) -> _ReselectedTable | None:
        capture = self._context.capture
        if not capture.captures(relation.schema, relation.table):
            return None
        if (relation.schema, relation.table) == capture.signal_table:
            return None
        described = self._context.describe(relation)
        names = {column.name: at for at, column in enumerate(described.columns)}
        if self._properties.by_event_key:
            key = tuple(capture.keys(described))
        else:
            key = tuple(names[name] for name in described.primary_key or () if name in names)
        columns = frozenset(
            at
            for at in capture.columns(described)
            if at not in key and self._takes(described, described.columns[at].name)
        )
        # Without a key the row cannot be found again.
        if not columns or not key:
            return None
        defaulted = frozenset(
            at for at, column in enumerate(described.columns) if column.default is not None
        )
        return _ReselectedTable(columns, defaulted, key)

    def _takes(self, relation: Relation, column: str) -> bool:
        if not self._chosen:
            return True
        found = bool(self._chosen(f"{relation.schema}.{relation.table}:{column}"))
        return found if self._properties.include else not found

    def _read(self, relation: Relation, wanted: _MissingColumns, changes: list[Change]) -> None:
        table = self._tables.of(relation)
        assert table is not None
        names = [relation.columns[at].name for at in sorted(wanted.columns)]
        key_names = [relation.columns[at].name for at in table.key]
        width, found = len(table.key), dict[Tuple, Tuple]()
        keys = list(wanted.indexes)
        for at in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[at : at + KEYS_PER_QUERY]
            try:
                rows = self._context.rows_now(relation, [*key_names, *names], key_names, some)
            except ConnectionLost:
                raise  # a new connection may succeed, so this is no failure of the table
            except SourceError as error:
                self._failed(relation, f"columns of {relation.name} cannot be read back", error)
                return
            found |= {row[:width]: row[width:] for row in rows}
        gone = 0
        for key, indexes in wanted.indexes.items():
            values = found.get(key)
            if values is None:
                gone += 1
                continue
            read = dict(zip(sorted(wanted.columns), values, strict=True))
            for index in indexes:
                change = changes[index]
                assert isinstance(change, Insert | Update)
                missing = self._missing(change, table)
                new = tuple(
                    read[at] if at in missing else value for at, value in enumerate(change.new)
                )
                changes[index] = msgspec.structs.replace(change, new=new)
        if gone:
            self._failed(relation, f"{gone} rows of {relation.name} are gone: not read back", None)

    def _failed(self, relation: Relation, problem: str, cause: SourceError | None) -> None:
        if self._properties.errors == "fail":
            raise ReselectFailed(problem, table=relation.name) from cause
        text = problem if cause is None else f"{problem}: {cause.problem}"
        log.warning(text, extra={"table": relation.name})


def _identifying(row: Tuple, key: tuple[int, ...]) -> Tuple | None:
    values = tuple(row[at] for at in key)
    if any(value is None or isinstance(value, MissingValue) for value in values):
        return None
    return values
