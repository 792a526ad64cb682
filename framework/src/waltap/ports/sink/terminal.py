"""Print one readable line per change, or one JSON object per record.

The formatter of a relation version is made once, for the server's own text. Control characters in values
are escaped, so that data cannot control the terminal.
"""

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from waltap.base.environment import colours
from waltap.base.property import Properties, Switch, declare
from waltap.base.text import printable
from waltap.changes.decode.message import Delete, Insert, LogicalMessage, OldTuple, Truncate, Update
from waltap.changes.decode.relation import PerRelation, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value
from waltap.changes.events.plan import (
    CHANGED,
    DELETES,
    INSERTS,
    OPERATIONS,
    UPDATES,
    EventColumn,
    EventPlan,
    EventPlans,
    runs,
)
from waltap.changes.mapping.connect_schema import ConnectKind
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.encoders.json.lines import JsonLines
from waltap.ports.sink.sink import OutputClosed, Sink, SinkCapabilities, SinkContext

# Limits the memory: older rows are shown without their change.
MAX_ROWS: Final = 4096


class SeenRows:
    """The last shown row of each key, to compare updates with.

    The server may not send the old row of an update. The number of rows is limited; rows of tables
    without a key are not kept.
    """

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._keys = PerRelation(self._key)
        self._rows: OrderedDict[tuple[object, ...], Tuple] = OrderedDict()

    def add(self, relation: Relation, row: Tuple) -> None:
        """Store ``row`` as the last state of its key."""
        key = self._key_of(relation, row)
        if key is not None:
            self._rows[key] = row
            self._rows.move_to_end(key)
            if len(self._rows) > MAX_ROWS:
                self._rows.popitem(last=False)

    def drop(self, relation: Relation, row: Tuple) -> Tuple:
        """Remove and return the row with that key, () if unknown."""
        key = self._key_of(relation, row)
        return self._rows.pop(key, ()) if key is not None else ()

    def before(self, change: Update) -> Tuple:
        """Return the known old row of ``change``, and store the new one.

        Unknown and unsent values count as unchanged.
        """
        relation, new = change.relation, change.new
        key = change.old if change.old_kind is OldTuple.KEY else new
        known = self.drop(relation, key)
        old = known if len(known) == len(new) else key if key is not new else ()
        if known:
            pairs = zip(new, known, strict=False)
            new = tuple(was if now is UNCHANGED else now for now, was in pairs)
        self.add(relation, new)
        return old

    def forget(self, oid: int) -> None:
        """Drop the key columns of a dropped relation, but not its rows."""
        self._keys.forget(oid)

    def _key(self, relation: Relation) -> tuple[int, ...]:
        describe = self._context.describe
        named = (describe(relation) if describe else relation).primary_key or ()
        columns = [column.name for column in relation.columns]
        return tuple(columns.index(name) for name in named)

    def _key_of(self, relation: Relation, row: Tuple) -> tuple[object, ...] | None:
        key = self._keys.of(relation)
        if not key or len(row) <= max(key):
            return None
        values = tuple(row[index] for index in key)
        known = not any(value is ABSENT or value is UNCHANGED for value in values)
        return (relation.name, *values) if known else None


BARE_TYPES: Final = frozenset({16, 20, 21, 23, 26, 700, 701, 1700})
"""OIDs of bool, int8, int2, int4, oid, float4, float8, numeric: written without quotes."""

COLOURS: Final = {
    "READ": "\x1b[36m",
    "INSERT": "\x1b[32m",
    "UPDATE": "\x1b[33m",
    "DELETE": "\x1b[31m",
    "TRUNCATE": "\x1b[35m",
    "MESSAGE": "\x1b[34m",
}
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

WORDS: Final = {INSERTS: "INSERT", UPDATES: "UPDATE", CHANGED: "UPDATE", DELETES: "DELETE"}


class TerminalProperties(Properties):
    """The form of the shown changes."""

    json_lines: Switch = declare(
        "json", summary="Print records as JSON lines instead of readable lines."
    )
    width: int = declare(
        "width", default=60, ge=8, summary="Longest value before it is cut.", unit="characters"
    )


class TerminalSink(Sink):
    """Prints to standard output.

    Nothing is stored: printed lines count as durable.
    """

    def __init__(self, properties: TerminalProperties, context: SinkContext) -> None:
        self.capabilities = SinkCapabilities(records=properties.json_lines, resumes_snapshots=True)
        self._write = self._records if properties.json_lines else self._changes
        self._lines = JsonLines()
        coloured = sys.stdout.isatty() and colours()
        self._layout = TerminalLayout(context, width=properties.width, coloured=coloured)
        self._accepted: Position | None = None

    def open(self) -> Position | None:
        """Return no position: the sink stores none."""
        return None

    def write(self, batch: Batch) -> None:
        """Print the batch. Raises: OutputClosed."""
        view = memoryview(self._write(batch))
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError as cause:
            where = "standard output"
            raise OutputClosed(f"{where}: {cause.strerror}", output=where) from cause
        self._accepted = batch.position

    def flush(self) -> Position | None:
        """Return the position of the printed batches."""
        return self._accepted

    def forget(self, oid: int) -> None:
        self._layout.forget(oid)

    def close(self) -> None:
        """Do nothing: the sink holds no resource."""

    def _records(self, batch: Batch) -> bytes:
        return b"".join(self._lines.portions(batch.records or ()))

    def _changes(self, batch: Batch) -> bytes:
        lines: list[str] = []
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                lines += self._layout.transaction(part)
            elif isinstance(part, SnapshotRows):
                lines += self._layout.snapshot(part)
        return "".join(lines).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _LineLayout:
    """Format one relation version's rows: (row, old) → text."""

    plan: EventPlan
    lay_out: Callable[[Tuple, Tuple], str]


class TerminalStyle:
    """Formats the parts of a line."""

    def __init__(self, *, width: int, coloured: bool) -> None:
        self.width = width
        self.bold, self.dim, self.plain = (BOLD, DIM, PLAIN) if coloured else ("", "", "")
        self._colours = COLOURS if coloured else dict.fromkeys(COLOURS, "")

    def head(self, word: str) -> str:
        return f"{self._colours[word]}{word:<8}{self.plain} "

    def clock(self, ts: int) -> str:
        """Return the local time of day of ``ts``, microseconds since 1970."""
        at = datetime.fromtimestamp(ts / 1_000_000, UTC).astimezone()
        return f"{self.dim}{at:%H:%M:%S}.{at.microsecond // 1000:03d}{self.plain} "

    def cut(self, text: str) -> str:
        return text if len(text) <= self.width else text[: self.width - 1] + "…"


class TerminalLayout:
    """Formats changes as lines; constants of a relation are bound once."""

    def __init__(self, context: SinkContext, *, width: int, coloured: bool) -> None:
        self._ink = TerminalStyle(width=width, coloured=coloured)
        self._skipped = context.capture.skipped if context.capture else frozenset()
        self._lines = EventPlans(context.events, self._line)
        self._seen = SeenRows(context)

    def transaction(self, part: TransactionPart) -> Iterable[str]:
        """Return one line per change of ``part``."""
        clock = self._ink.clock(part.commit_ts)
        for kind, relation, run in runs(part.changes):
            if OPERATIONS[kind] in self._skipped:
                continue
            line = self._lines.of(relation) if relation is not None else None
            for change in run:
                if isinstance(change, Truncate):
                    names = ", ".join(printable(relation.name) for relation in change.relations)
                    yield f"{clock}{self._ink.head('TRUNCATE')}{self._ink.bold}{names}{self._ink.plain}\n"
                elif isinstance(change, LogicalMessage):
                    text = self._ink.cut(printable(change.content.decode("utf-8", "replace")))
                    prefix = f"{self._ink.bold}{printable(change.prefix)}{self._ink.plain}"
                    yield f"{clock}{self._ink.head('MESSAGE')}{prefix}  {text}\n"
                elif line is not None:
                    shown = self._shown(line, change)
                    if shown is not None:
                        yield f"{clock}{self._ink.head(WORDS[kind])}{line.lay_out(*shown)}\n"

    def forget(self, oid: int) -> None:
        self._lines.forget(oid)
        self._seen.forget(oid)

    def _shown(
        self, line: "_LineLayout", change: Insert | Update | Delete
    ) -> tuple[Tuple, Tuple] | None:
        """Return the row to show and its old row, () if unknown.

        Return None for a delete that identifies no row.
        """
        if isinstance(change, Insert):
            self._seen.add(change.relation, change.new)
            return change.new, ()
        if isinstance(change, Delete):
            images = line.plan.delete(change)
            if images is None:
                return None
            self._seen.drop(change.relation, images[0])
            return images[0], ()
        before, after = None, change.new
        if change.old_kind is not OldTuple.NONE:
            before, after, _ = line.plan.update(change)
        if before is None or ABSENT in before:
            return change.new, self._seen.before(change)
        return after, before

    def snapshot(self, rows: SnapshotRows) -> Iterable[str]:
        """Return one line per row."""
        clock, line = self._ink.clock(rows.ts), self._lines.of(rows.relation)
        for row in rows.rows if line is not None else ():
            self._seen.add(rows.relation, row)
            yield f"{clock}{self._ink.head('READ')}{line.lay_out(row, ())}\n"  # type: ignore[union-attr]

    def _line(self, plan: EventPlan) -> "_LineLayout":
        """Return the formatter of one relation version: key columns first."""
        dim, plain = self._ink.dim, self._ink.plain
        columns = [
            (column.index, f"{dim}{printable(column.field)}={plain}", self._value(column))
            for column in sorted(plan.columns, key=lambda column: column.index not in plan.keys)
        ]
        table = f"{self._ink.bold}{printable(plan.name)}{plain} "

        def lay_out(new: Tuple, old: Tuple) -> str:
            cells = [table]
            for index, name, value in columns:
                after = new[index] if index < len(new) else ABSENT
                if after is ABSENT or (after is UNCHANGED and not old):
                    continue
                before = old[index] if old and old[index] is not ABSENT else after
                if after is UNCHANGED or before == after:
                    cells.append(f"{name}{value(before)}")
                else:
                    cells.append(f"{name}{value(before)} {dim}→{plain} {value(after)}")
            return " ".join(cells)

        return _LineLayout(plan, lay_out)

    def _value(self, column: EventColumn) -> Callable[[Value], str]:
        """Return the formatter of a column, masked where the profile masks it."""
        quote = "" if column.column.type_oid in BARE_TYPES else "'"
        null = f"{self._ink.dim}NULL{self._ink.plain}"
        masked = _mask(column)

        def write(value: Value) -> str:
            if masked is not None:
                value = masked(value)
            if value is None:
                return null
            if isinstance(value, bytes):
                return self._ink.cut(f"\\x{value.hex()}")
            if isinstance(value, str):
                return f"{quote}{self._ink.cut(printable(value))}{quote}"
            return "?"

        return write


def _mask(column: EventColumn) -> Callable[[Value], Value] | None:
    kind = column.mapping.schema.kind if column.mapping is not None else ConnectKind.STRING
    if column.transform is None or column.transform.value is None:
        return None
    change = column.transform.value

    def masked(value: Value) -> Value:
        if kind is not ConnectKind.STRING or isinstance(value, bytes):
            return "***"  # what it would become is not known from its text
        return str(change(value)) if value is None or isinstance(value, str) else value

    return masked
