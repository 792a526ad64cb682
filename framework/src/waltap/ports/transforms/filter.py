"""The transform ``filter``: drop changes.

It selects them by table, operation, or a function of the user.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.plugin_errors import interrupts
from waltap.base.property import Maybe, MaybeList, Properties, declare
from waltap.base.text import in_brief
from waltap.changes.capture.java_regex import NameMatcher, PatternList
from waltap.changes.decode.message import Change, Delete, Insert, Truncate, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.events import OPERATIONS, TRUNCATES, ChangeEvent, EventRow, EventTransform, runs
from waltap.changes.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart
from waltap.errors import ConfigurationError, RecordError, RetryVerdict
from waltap.ports.transforms.rewrite import RowChange, RowView

RowCondition = Callable[[RowChange], object]
LETTERS = "cudrtm"

FilterFailed = RecordError.define("FilterFailed", "WT-3201", retry=RetryVerdict.NEVER)


class FilterProperties(Properties):
    """Tables and operations whose changes are dropped; a function may keep some rows."""

    tables: PatternList = declare(
        "tables",
        summary="Patterns of tables (schema.table) whose changes are left out; without any, of all.",
        patterns="tables",
    )
    operations: MaybeList = declare(
        "operations",
        summary="Operations that are left out: c, u, d, r, t, m; without any, all.",
        words=tuple(LETTERS),
    )
    function: Maybe[str] = declare(
        "function",
        summary="Function module:name of a RowChange; of those rows, the ones for which it is true stay.",
        examples=("my_filters:is_wanted",),
    )

    @field_validator("function")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        module, colon, name = (value or "m:n").partition(":")
        if not (module and colon and name.isidentifier()):
            raise ValueError("must be module:name")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.tables or self.operations or self.function):
            raise ValueError(
                "says nothing of what it leaves out, which would be everything: tables, operations or "
                "function is missing"
            )
        return self


class TableFilter:
    """The transform that drops changes.

    It decides once for each table, and for rows only by a function.
    """

    def __init__(self, properties: FilterProperties) -> None:
        """Raises: ConfigurationError if the function cannot be imported."""
        self._all_tables, self._matches = not properties.tables, _concerned(properties.tables)
        self._operations = frozenset(properties.operations or LETTERS)
        self._name = properties.function or ""
        self._function: RowCondition | None = None
        if properties.function:
            try:
                self._function = user_function(properties.function)
            except ValueError as cause:
                raise ConfigurationError.of("function", str(cause)) from cause

    def __call__(self, batch: Batch) -> Batch:
        parts: list[TransactionPart | SnapshotRows | Heartbeat] = []
        for part in batch.parts:
            passed: TransactionPart | SnapshotRows | Heartbeat = part
            if isinstance(part, TransactionPart):
                passed = msgspec.structs.replace(part, changes=self._changes(part.changes))
            elif isinstance(part, SnapshotRows):
                passed = msgspec.structs.replace(part, rows=self._rows(part))
            parts.append(passed)
        # The pipeline counts the events and finds the dropped changes (applied.py).
        return msgspec.structs.replace(batch, parts=parts)

    def _concerns(self, relation: Relation, operation: str) -> bool:
        return operation in self._operations and self._matches(relation.schema, relation.table)

    def _changes(self, changes: Sequence[Change]) -> list[Change]:
        passed: list[Change] = []
        judged, operations = self._function is not None, self._operations
        # Changes of one kind and relation follow each other, so one decision serves a whole run.
        for kind, relation, run in runs(changes):
            operation = OPERATIONS[kind]
            # A function judges rows; truncates and logical messages have none and stay.
            if kind is TRUNCATES:
                passed += run if judged else filter(None, map(self._truncate, run))  # type: ignore[arg-type]
            elif relation is None:
                passed += () if self._all_tables and "m" in operations and not judged else run
            elif not self._concerns(relation, operation):
                passed += run
            elif judged:
                passed += [change for change in run if self._wanted(operation, change)]  # type: ignore[arg-type]
        return passed

    def _truncate(self, change: Truncate) -> Truncate | None:
        """Return the truncate without the dropped tables, None if none stays."""
        relations = tuple(r for r in change.relations if not self._concerns(r, "t"))
        if len(relations) == len(change.relations):
            return change
        return msgspec.structs.replace(change, relations=relations) if relations else None

    def _wanted(self, operation: str, change: Insert | Update | Delete) -> bool:
        new = None if isinstance(change, Delete) else change.new
        old = None if isinstance(change, Insert) else change.old
        # An empty old image means that the server did not send one.
        return self._keeps_row(operation, change.relation, old or None, new)

    def _rows(self, part: SnapshotRows) -> list[tuple[object, ...]]:
        relation = part.relation
        if not self._concerns(relation, "r"):
            return part.rows  # type: ignore[return-value]
        if self._function is None:
            return []
        return [row for row in part.rows if self._keeps_row("r", relation, None, row)]

    def _keeps_row(
        self,
        operation: str,
        relation: Relation,
        old: Sequence[object] | None,
        new: Sequence[object] | None,
    ) -> bool:
        assert self._function is not None
        before = None if old is None else RowView(relation, old)  # type: ignore[arg-type]
        after = None if new is None else RowView(relation, new)  # type: ignore[arg-type]
        try:
            return bool(self._function(RowChange(operation, relation, before, after)))
        except Exception as cause:
            # Only the type of the error: its text may have values of the row.
            raise FilterFailed(
                f"the filter {self._name} raised {type(cause).__name__} for a row of "
                f"{relation.name}",
                function=self._name,
            ) from cause


def user_function(path: str, load: Callable[[], object] | None = None) -> Callable[..., Any]:
    """Import the function ``module:name``, or the result of ``load``.

    The module may be in the working directory. Raises: ValueError.
    """
    module_name, _, name = path.partition(":")
    # The command `waltap` does not have the working directory on its path.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = load() if load else getattr(importlib.import_module(module_name), name)
    except BaseException as cause:
        # A module of the user may fail in any way.
        if interrupts(cause):
            raise
        raise ValueError(f"{path!r} cannot be imported: {in_brief(cause)}") from cause
    if not callable(found):
        raise ValueError(f"{path!r} is not a function")  # noqa: TRY004 - it is a setting that is wrong
    return found


# The transform ``fields`` works on events: formats can follow it, but a sink that takes changes cannot.
class FieldsProperties(Properties):
    """Fields to drop or rename, and their tables."""

    tables: PatternList = declare(
        "tables",
        summary="Patterns of tables (schema.table) to change; without any, all.",
        patterns="tables",
    )
    exclude: MaybeList = declare(
        "exclude",
        summary="Fields that before and after are written without. Keys stay as they are.",
        examples=("note",),
    )
    renames: MaybeList = declare(
        "renames",
        summary="Fields that before and after have under another name, as old:new.",
        examples=("id:customer_id",),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        names = [new for _old, new in self.pairs()]
        if len(set(names)) < len(names):
            raise ValueError("renames: two fields would get one name")
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """Return (old name, new name) of each renamed field.

        Raises: ValueError for an entry that is not ``old:new``.
        """
        found = []
        for entry in self.renames:
            old, colon, new = (part.strip() for part in entry.partition(":"))
            if not (old and colon and new):
                raise ValueError(f"renames: {entry!r} is not old:new")
            found.append((old, new))
        return found


def fields_changer(properties: FieldsProperties) -> EventTransform:
    """Return the transform that drops and renames fields.

    Fields that a table lacks are ignored, so one list can serve many tables.
    """
    concerned = _concerned(properties.tables)
    exclude, renames = properties.exclude, properties.pairs()

    def change(row: EventRow) -> None:
        for name in exclude:
            if name in row.fields():
                del row[name]
        for old, new in renames:
            if old in row.fields():
                row.rename(old, new)

    def transform(events: list[ChangeEvent]) -> list[ChangeEvent]:
        for event in events:
            if concerned(event.relation.schema, event.relation.table):
                for row in (event.before, event.after):
                    if row is not None:
                        change(row)
        return events

    return transform


def _concerned(patterns: tuple[str, ...]) -> Callable[[str, str], bool]:
    """Return the cached test of table names."""
    matches, known = NameMatcher(patterns), dict[tuple[str, str], bool]()

    def concerned(schema: str, table: str) -> bool:
        found = known.get((schema, table))
        if found is None:
            found = not patterns or bool(matches(f"{schema}.{table}"))
            known[schema, table] = found
        return found

    return concerned
