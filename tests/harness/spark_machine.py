"""Spark tables as a machine: what happens to a source as data, and what its tables must hold after it.

A script is a list of steps (`tests.harness.spark_steps`). `Machine` plays it: it makes changes by `Database`, writes them to a change log, has
them applied, and compares what the tables show with what it knows of the source. It goes through the surface that
users have: the sink of the change log, the applier, and `LiveTables`. Every table of a machine gets the same
changes; they differ in how they are kept (`KINDS`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.harness.changelog import batch, copy_of, in_parts, relation
from tests.harness.spark import Died, Rig, dying
from tests.harness.spark_steps import (
    ADDED,
    NAMES,
    SCHEMAS,
    WIDER,
    Action,
    Add,
    Again,
    Apply,
    Commit,
    Delete,
    Drop,
    Gap,
    Insert,
    Move,
    Recreate,
    Rename,
    Reopen,
    Replace,
    Reread,
    Rotate,
    SetSchema,
    Snapshot,
    Step,
    Truncate,
    Update,
    Widen,
)

from waltap.changes.decode.relation import Relation, is_wider
from waltap.changes.transactions.position import Position, SnapshotProgress
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.ports.source.connector import PublicationCompleteness
from waltap_spark.apply.maintenance import maintain
from waltap_spark.errors import HistoryMissing
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.read.live import LiveTables
from waltap_spark.state.modes import ModeRules
from waltap_spark.state.output import SparkOutput

KINDS: Final = ("plain", "whole", "alone", "bare", "soft", "kept", "versions", "logged")
"""What tables are called, and how they are kept: `RULES`. "whole" sends whole old rows, "alone" keeps no history,
"bare" has no key, and each row that is inserted twice."""
RULES: Final = ModeRules(
    modes=(r".*\.versions:scd2", r".*\.logged:append", "scd1"),
    deletes=(r".*\.soft:soft", r".*\.kept:kept", "hard"),
    history=(r".*\.alone:none", "keep"),
)
ENGINES: Final[dict[str, dict[str, int]]] = {
    "here": {},
    "spark": {
        "waltap_spark.compact.compact_changes.FEW": 0,
        "waltap_spark.compact.compact_changes.SLICE": 5,
        "waltap_spark.compact.log_columns.MOST": 0,
        "waltap_spark.compact.small_sets.SMALL_ROWS": 0,
    },
    "last rows": {"waltap_spark.compact.compact_changes.FEW": 0},
}
"""Sizes up to which changes are compacted in some way; each engine gets all changes by these."""
NOTE: Final = 3
"""The column whose values are long, and may be unsent."""


# --- what is known of the source --------------------------------------------------------------------


@dataclass
class Column:
    """A column of the source. ``ident`` is its own, also in a table that was created again."""

    number: int
    name: str
    kind: str
    ident: int
    default: str | None = None


Row = dict[int, str | None]
"""Ident of a column → value."""
At = tuple[int, int]
"""Epoch, LSN."""


@dataclass
class Past:
    """What becomes of rows by their keys."""

    open: dict[str, tuple[Row, At]] = field(default_factory=dict)
    closed: list[tuple[Row, At, At]] = field(default_factory=list)
    gone: dict[str, Row] = field(default_factory=dict)
    """Rows that are there no more, as they were behind the last transaction with them."""
    kept: dict[str, Row] = field(default_factory=dict)
    """Rows that were deleted, as they were then."""

    def see(self, rows: Mapping[str, Row], at: At) -> None:
        """The source holds ``rows``."""
        for key, (row, since) in list(self.open.items()):
            if key not in rows:
                self.gone[key] = row
            if rows.get(key) != row:
                del self.open[key]
                self.closed.append((row, since, at))
        for key, row in rows.items():
            self.open.setdefault(key, (row, at))
            self.gone.pop(key, None)
            self.kept.pop(key, None)

    def every(self) -> list[Row]:
        closed = [row for row, _since, _to in self.closed]
        live = [row for row, _since in self.open.values()]
        return [*live, *closed, *self.gone.values(), *self.kept.values()]


def playground(
    folder: Path, spark: Any, table_format: str | FormatChoice = "parquet", **options: Any
) -> Rig:
    """Return what machines play on; tables are folded and merged after every second commit."""
    few = {"compact_rows": 0, "compact_sets": 2, "merge_sets": 2, "parallel": 2, "retention_s": 0.0}
    return Rig(folder, spark, table_format, **{"modes": RULES, **few, **options})


class Machine:
    """Tables of ``kinds`` that follow one source, which has them in ``schema``."""

    def __init__(self, rig: Rig, kinds: Sequence[str] = KINDS, schema: str = "public") -> None:
        self.rig, self.db, self.schema, self.born = rig, rig.db, schema, schema
        self.kinds, self.past = tuple(kinds), Past()
        self.columns = self._first_columns()
        self.made, self.last_number, self.idents = 0, 3, 3
        self.end = self.db.lsn
        self.sent: list[TransactionPart] = []
        self.history: dict[str, Counter[Any]] = {kind: Counter() for kind in kinds}
        self.doubts: dict[str, str] = {}
        """Kind → "must" or "may" be said to need a snapshot; "lacks": may, and lacks rows then; "unsure":
        must, and nobody knows its rows."""
        self.cuts: list[tuple[Any, list[str], dict[str, list[Any]]]] = []
        self.steps: dict[type, Callable[[Any], None]] = {
            Commit: self.commit, Snapshot: self.snapshot, Reread: self.reread, Again: self.again,
            Apply: self.apply, Reopen: self.reopen,
        }  # fmt: skip
        self.reported = True
        """Whether a row reports the columns as they are."""
        for kind in kinds:
            self.db.rows[self.name(kind)] = []

    def run(self, script: Iterable[Step]) -> None:
        for step in script:
            self.take(step)
        self.end_here()

    def take(self, step: Step) -> None:
        self.steps[type(step)](step)

    def end_here(self) -> None:
        """Compare all there is."""
        self.apply(Apply(), whole=True)
        self.look_back()

    @property
    def epoch(self) -> int:
        return self.rig.epoch

    # --- tables ---------------------------------------------------------------------------------------

    @staticmethod
    def _first_columns() -> list[Column]:
        kinds = (("id", "int4"), ("name", "text"), ("note", "text"))
        return [Column(n, name, kind, n) for n, (name, kind) in enumerate(kinds, 1)]

    @property
    def key(self) -> str:
        return self.columns[0].name

    def name(self, kind: str) -> str:
        return f"{self.schema}.{kind}"

    def table(self, kind: str) -> Relation:
        """Return the relation that is called ``kind``, as it is now."""
        more = {
            c.name: {"default": c.default, "missing": c.default} for c in self.columns if c.default
        }
        return relation(
            self.name(kind),
            [(column.name, column.kind) for column in self.columns],
            numbers=[column.number for column in self.columns],
            more=more,
            key=() if kind == "bare" else (self.key,),
            identity="f" if kind in {"bare", "whole"} else "d",
            oid=20_000 + 1000 * (sum(self.born.encode()) % 97) + 10 * self.made + KINDS.index(kind),
        )

    def held(self, kind: str = "") -> list[Any]:
        return self.db.rows[self.name(kind or self.keyed[0])]

    @property
    def keyed(self) -> list[str]:
        return [kind for kind in self.kinds if kind != "bare"]

    def there(self, key: int) -> str | None:
        """Return a key that is there: this one, or another."""
        keys = sorted({row[0] for row in self.held()}, key=int)
        if not keys:
            return None
        return str(key) if str(key) in keys else keys[key % len(keys)]

    def free(self, key: int) -> str:
        """Return a key that is not there: this one, or a later."""
        taken = {row[0] for row in self.held()}
        return next(str(n) for n in range(key, key + len(taken) + 1) if str(n) not in taken)

    def row(self, key: str, word: str, note: str | None) -> tuple[str | None, ...]:
        """Return a row with ``word`` in every text but the long one."""
        values: dict[str, str] = {
            "int4": "11",
            "int8": "5000000000",
            "date": "2024-03-01",
            "text": word,
        }
        found: list[str | None] = [key]
        for column in self.columns[1:]:
            value = values.get(column.kind, "2.50")
            found.append(note if column.ident == NOTE else value)
        return tuple(found)

    def long(self) -> str | None:
        return next((column.name for column in self.columns if column.ident == NOTE), None)

    # --- changes --------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Do ``action`` to every table, in the open transaction."""
        getattr(self, f"_{type(action).__name__.lower()}")(action)

    def _note(self, kind: str, *events: tuple[str, str | None]) -> None:
        self.history[kind].update(events)

    def _insert(self, action: Insert) -> str:
        key = self.free(action.key)
        self._put(key, action.word, action.note)
        return key

    def _put(self, key: str, word: str, note: str | None) -> None:
        for kind in self.kinds:
            for _each in range(2 if kind == "bare" else 1):
                self.db.insert(self.table(kind), self.row(key, word, note))
                self._note(kind, ("c", key))
        self.reported = True

    def _changed(self, key: str, values: dict[str, str], sent: bool, which: int = 0) -> None:
        """UPDATE of one row, also of its key."""
        if sent and (long := self.long()):
            values = {**values, long: f"long {self.db.lsn}"}
        unsent = [] if sent or not self.long() else [self.long() or ""]
        to = values.get(self.key, key)
        for kind in self.kinds:
            if kind != "bare":
                self.db.update(self.table(kind), [key], unsent, which, **values)
                self._note(kind, *([("u", key)] if to == key else [("d", key), ("c", to)]))
                continue
            row = next((row for row in self.held("bare") if row[0] == key), None)
            if row is not None:
                self.db.update(self.table("bare"), row, unsent, **values)
                self._note("bare", ("d", key), ("u", to))
        self.reported = True

    def _word(self, word: str) -> dict[str, str]:
        """Return values of columns that an UPDATE sets."""
        texts = [c.name for c in self.columns[1:] if c.kind == "text" and c.ident != NOTE]
        numbers = [c.name for c in self.columns[1:] if c.kind in {"int4", "int8"}]
        return {name: word for name in texts[:1]} | {
            name: str(len(word) + 20) for name in numbers[:1]
        }

    def _update(self, action: Update) -> None:
        key = self.there(action.key)
        if key is not None:
            self._changed(key, self._word(action.word), action.sent)

    def _delete(self, action: Delete) -> None:
        key = self.there(action.key)
        if key is not None:
            self._take(key)

    def _take(self, key: str) -> None:
        row = next(row for row in self.held() if row[0] == key)
        self.past.kept[key] = self._by_ident(row)
        for kind in self.kinds:
            if kind != "bare":
                self.db.delete(self.table(kind), [key])
                self._note(kind, ("d", key))
                continue
            row = next((row for row in self.held("bare") if row[0] == key), None)
            if row is not None:
                self.db.delete(self.table("bare"), row)
                self._note("bare", ("d", key))

    def _move(self, action: Move) -> None:
        key = self.there(action.key)
        if key is not None:
            self._changed(key, {self.key: self.free(action.to)}, action.sent)

    def _rotate(self, action: Rotate) -> None:
        keys = sorted({str(row[0]) for row in self.held()}, key=int)[: action.count]
        if len(keys) < 2:
            return
        last = keys[0] if action.to is None else self.free(action.to)
        came: set[int] = set()
        for key, to in zip(keys, [*keys[1:], last], strict=True):
            at = [place for place, row in enumerate(self.held()) if row[0] == key]
            old = next(place for place in at if place not in came)
            came.add(old)
            self._changed(key, {self.key: to}, action.sent, at.index(old))

    def _replace(self, action: Replace) -> None:
        key = self.there(action.key)
        if key is None:
            return
        self._put(key, action.word, "beside")
        self._take(key)

    def _truncate(self, _action: Truncate) -> None:
        self.past.kept |= self.rows()
        self.db.truncate(*map(self.table, self.kinds))
        for kind, doubt in self.doubts.items():
            self.doubts[kind] = "may" if doubt == "must" else doubt

    def _gap(self, action: Gap) -> None:
        key = self.there(action.key)
        if key is None or self.db._changes:
            return
        for kind in self.keyed:
            self.db.rows[self.name(kind)] = [row for row in self.held(kind) if row[0] != key]
        if "bare" in self.kinds:
            for row in [row for row in self.held("bare") if row[0] == key]:
                self.db.delete(self.table("bare"), row)
                self._note("bare", ("d", key))
        self.rig.sink.begins(PublicationCompleteness())
        self._put(key, action.word, "after the gap")

    # --- columns --------------------------------------------------------------------------------------

    def _each_row(self, become: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        """Let every row of the source be another tuple."""
        for kind in self.kinds:
            self.db.rows[self.name(kind)] = [become(row) for row in self.held(kind)]
        self.reported = False

    def _other(self, which: int) -> int:
        """Return the place of a column that is no key, 0 where there is none."""
        return 1 + which % (len(self.columns) - 1) if len(self.columns) > 1 else 0

    def _unused(self, to: int) -> str | None:
        names = {column.name for column in self.columns}
        found = [name for name in NAMES if name not in names]
        return found[to % len(found)] if found else None

    def _number(self) -> int:
        self.last_number += 1
        return self.last_number

    def _add(self, action: Add) -> None:
        kind, default = ADDED[action.which % len(ADDED)]
        name = self._unused(action.which)
        if name is None or len(self.columns) > 5:
            return
        self.idents += 1
        column = Column(self._number(), name, kind, self.idents, default)
        self.columns.append(column)
        self._each_row(lambda row: (*row, default))
        for row in self.past.every():
            row[column.ident] = default

    def _drop(self, action: Drop) -> None:
        at = self._other(action.which)
        if not at or len(self.columns) < 3:
            return
        column = self.columns.pop(at)
        self._each_row(lambda row: row[:at] + row[at + 1 :])
        for key, (row, since) in self.past.open.items():
            self.past.open[key] = ({n: v for n, v in row.items() if n != column.ident}, since)

    def _rename(self, action: Rename) -> None:
        name = self._unused(action.to)
        if name is not None:
            self.columns[action.which % len(self.columns)].name = name
            self.reported = False

    def _widen(self, action: Widen) -> None:
        found = [column for column in self.columns if column.kind in WIDER]
        if not found:
            return
        column = found[action.which % len(found)]
        before, column.kind = column.kind, WIDER[column.kind]
        self.reported = False
        if is_wider((before, -1), (column.kind, -1)):
            return  # the table says so in a note
        for kind in self.kinds:
            self._doubt(kind, "may" if kind == "logged" else "must")

    def _recreate(self, action: Recreate) -> None:
        self.past.kept |= self.rows()
        self.made += 1
        self.columns, self.last_number = self._first_columns(), 3
        for kind in self.kinds:
            self.db.rows[self.name(kind)] = []
            self.doubts.pop(kind, None)
        self._put(str(action.key), "e", "created again")

    def _setschema(self, action: SetSchema) -> None:
        if self.born not in SCHEMAS:
            return  # what a target has of a table is chosen by its schema
        rows = {kind: self.db.rows.pop(self.name(kind)) for kind in self.kinds}
        self.schema = SCHEMAS[(SCHEMAS.index(self.schema) + action.to) % len(SCHEMAS)]
        self.db.rows |= {self.name(kind): held for kind, held in rows.items()}
        self._insert(Insert(30, f"in {self.schema} {self.db.lsn}"))

    def _doubt(self, kind: str, how: str) -> None:
        """Take note that a table must, or may, be reported to need a snapshot."""
        if self.doubts.get(kind) != "lacks":
            self.doubts[kind] = how

    # --- what the source holds --------------------------------------------------------------------------

    def _by_ident(self, row: Sequence[Any]) -> Row:
        return {column.ident: value for column, value in zip(self.columns, row, strict=True)}

    def rows(self) -> dict[str, Row]:
        return {str(row[0]): self._by_ident(row) for row in self.held()}

    # --- steps ------------------------------------------------------------------------------------------

    def commit(self, step: Commit) -> None:
        """Do what ``step`` says, COMMIT, and flush to the change log."""
        for action in step.actions:
            self.act(action)
        if not self.reported:
            self._insert(Insert(20))
        if not self.db._changes:
            return
        part = self.db.commit()
        self.sent.append(part)
        self.end = part.end_lsn
        self.past.see(self.rows(), (self.epoch, part.commit_lsn))
        count = len(part.changes)
        size = -(-count // min(step.parts, count))
        sizes = [min(size, count - at) for at in range(0, count, size)]
        parts = in_parts(copy_of(part), *sizes)
        for number, each in enumerate(parts):
            if step.breaks and number == len(parts) - 1 > 0:
                self.rig.sink.flush()
                self._start_sink()
                for before in in_parts(copy_of(part), *sizes)[:number]:
                    self.rig.sink.write(batch(before))
            self.rig.sink.write(batch(each))
        self.rig.sink.flush()

    def _start_sink(self, **more: Any) -> None:
        """Start the engine again."""
        self.rig.sink.close()
        self.rig.start_sink(has_offset=True, **more)

    def _unseen(self, actions: Iterable[Action]) -> None:
        """Do ``actions`` where the stream does not see it."""
        history = {kind: events.copy() for kind, events in self.history.items()}
        for action in actions:
            self.act(action)
        self.db._changes.clear()
        self.history = history

    def snapshot(self, step: Snapshot) -> None:
        """Deliver a snapshot; look at the tables within it."""
        before = {kind: list(self.held(kind)) for kind in self.kinds}
        self._unseen(step.unseen)
        self.reported = True
        tables = [self.table(kind) for kind in self.kinds]
        batches = self.db.snapshot(*tables)
        first = min(step.first, len(batches) - 2)
        begun, rest = batches[:first], batches[first:]
        self._deliver(begun)
        complete = {piece.relation.table for piece in pieces(begun) if piece.complete}
        if begun:
            self._look_within(complete, before)
        if begun and step.then == "goes on after a start":
            self._start_sink(snapshot=SnapshotProgress(kind="initial", lsn=self.db.lsn))
            rest = [*begun, *rest]
            rest[0].parts = [msgspec.structs.replace(*pieces(rest[:1]), opens=False, resumed=True)]
        elif begun and step.then == "restarts":
            (piece,) = pieces(rest[:1])
            own = [
                b
                for b in batches
                if [p.relation.name for p in pieces([b])] == [piece.relation.name]
            ]
            own[0].parts = [msgspec.structs.replace(*pieces(own[:1]), opens=False, restarts=True)]
            rest = [*own, *(each for each in rest if each not in own)]
        elif begun and step.then == "anew":
            self._read(complete)
            complete, rest = set(), self.db.snapshot(*tables)
        self._deliver(rest)
        self._read(self.kinds)
        self.doubts.clear()
        rows = self.rows()
        self.past.kept |= {
            key: row for key, (row, _at) in self.past.open.items() if key not in rows
        }
        self.past.see(rows, (self.epoch, self.db.lsn))

    def _deliver(self, batches: Iterable[Batch]) -> None:
        for each in batches:
            self.rig.sink.write(each)
        self.rig.sink.flush()

    def _read(self, kinds: Iterable[str]) -> None:
        """Take note that whole tables were read."""
        for kind in kinds:
            self._note(kind, *(("r", str(row[0])) for row in self.held(kind)))

    def _look_within(self, complete: set[str], before: Mapping[str, list[Any]]) -> None:
        """Tables of which all was read have what was read, and others what they had."""
        self.rig.apply()
        tables = LiveTables(self.rig.spark, self.rig.output, allow_stale=True)
        for kind in ("plain", "bare"):
            if kind not in self.kinds or kind in self.doubts:
                continue
            if self.name(kind) not in tables.names:
                assert kind not in complete, f"{kind} within a snapshot"
                continue
            assert kind in complete or self.history[kind], f"{kind} is there before all was read"
            names = [f"cast({quoted(column.name)} as string)" for column in self.columns]
            found = tables.current(self.name(kind)).selectExpr(*names).collect()
            wanted = self.held(kind) if kind in complete else before[kind]
            assert in_order(found) == in_order(wanted), f"{kind} within a snapshot"

    def reread(self, step: Reread) -> None:
        """Let rows be read that the stream continues to change: of tables with a key, which shows them again."""
        bare = list(self.db.rows.get(self.name("bare"), []))
        self._unseen(step.unseen)
        if "bare" in self.kinds:
            self.db.rows[self.name("bare")] = bare
        keys = {self._insert(Insert(key, "read first")) for key in step.brings}
        keys |= {self.there(key) for key in step.keys}
        keys |= self.rows().keys() if step.unseen else set()
        for kind in (*self.keyed, *(("bare",) if step.bare and "bare" in self.kinds else ())):
            rows = [row for row in self.held(kind) if row[0] in keys]
            if kind == "bare":  # nobody can show which of them it has
                self.doubts[kind] = "unsure"
            piece = SnapshotRows(
                relation=self.table(kind), rows=rows, ts=1, lsn=None, xid=None, kind=step.kind
            )
            position = Position(self.end)
            self.rig.sink.write(
                Batch(parts=[piece], position=position, events=len(rows), snapshot=True)
            )
            self._note(kind, *(("r", str(row[0])) for row in rows))
        self.rig.sink.flush()
        self.reported = True
        self.past.see(self.rows(), (self.epoch, self.end))
        if step.brings:
            self.commit(Commit(()))

    def again(self, step: Again) -> None:
        """Deliver the last transactions again, in a new epoch of the log."""
        self.rig.start_over()
        for part in self.sent[-step.count :]:
            self.rig.sink.write(batch(copy_of(part)))
        self.rig.sink.flush()
        if "alone" in self.kinds and self.sent:
            self._doubt("alone", "lacks")

    def apply(self, step: Apply, *, whole: bool = False) -> None:
        """Apply, and compare; ``whole``: the histories, too."""
        if step.dies:
            self._die(step.dies)
        self.rig.apply()
        self.check(whole=whole)
        rows = {
            kind: in_order(self.held(kind))
            for kind in ("plain", "bare")
            if kind in self.kinds and self.doubts.get(kind) not in {"lacks", "unsure"}
        }
        self.cuts.append(
            (self.rig.applier.state.log_position, [c.name for c in self.columns], rows)
        )

    def _die(self, moment: int) -> None:
        """Apply by a driver that dies before its write number ``moment``, if it makes so many."""
        output = self.rig.output
        writes = (output, "sync"), (output, "commit"), (output.store, "publish")
        try:
            with dying(*writes, at=moment):
                self.rig.apply()
        except Died:
            self._another_driver()

    def _another_driver(self) -> None:
        """Another driver: what no commit names is removed at its start, where there is a commit."""
        self.rig.reopen()
        if self.rig.choice.name == "parquet" and self.rig.applier.state.number:
            assert self.rig.folders() <= self.rig.named_folders()

    def reopen(self, step: Reopen) -> None:
        """Have another driver."""
        if step.maintains:
            self.rig.applier.close()
            list(maintain(self.rig.spark, SparkOutput(self.rig.output.location), retention_s=0.0))
        self._another_driver()

    # --- what the tables hold ---------------------------------------------------------------------------

    def check(self, *, whole: bool) -> None:
        """Compare every table with the source, and, where that is ``whole``, its history."""
        tables = LiveTables(self.rig.spark, self.rig.output, allow_stale=True)
        wanted, frames = {}, []
        for kind in self.kinds:
            name = self.name(kind)
            if name not in tables.names:
                assert not self.history[kind], f"{kind} is not there"
                continue
            state = self.rig.output.table(name)
            assert state.failed == "", kind
            doubt = self.doubts.get(kind)
            assert bool(state.stale) == (doubt in {"must", "unsure"}) or doubt in {
                "may",
                "lacks",
            }, (
                kind,
                state.stale,
            )
            if kind == "alone":
                self._check_no_history(tables, name)
            elif kind == "logged" or whole:
                wanted[kind, "history"] = Counter(
                    {(*event, ""): n for event, n in self.history[kind].items()}
                )
                frames.append(reported(self._events(tables.changes(name)), kind, "history"))
            if kind == "logged" or (doubt in {"lacks", "unsure"} and state.stale):
                continue
            wanted[kind, "rows"] = Counter(self.wanted(kind))
            frames.append(reported(self.shown(tables, kind), kind, "rows"))
        found: dict[Any, Counter[Any]] = {what: Counter() for what in wanted}
        if frames:
            for row in reduce(lambda one, other: one.union(other), frames).collect():
                found[row[0], row[1]][tuple(map(canonical, row[2]))] += 1
        for what, rows in wanted.items():
            rows = Counter({tuple(map(canonical, row)): n for row, n in rows.items()})
            assert not (rows - found[what]) and not (found[what] - rows), (
                f"{what}: lacks {rows - found[what]}, has {found[what] - rows}"
            )

    def _events(self, changes: Any) -> Any:
        """Return what the history has of each change of a row: its operation, the key, and names of columns that
        were not sent which the table does not have."""
        names = ", ".join("'" + name.replace("'", "\\'") + "'" for name in changes.columns)
        unknown = f"array_join(array_except(coalesce(_unchanged, array()), array({names})), ' ')"
        key = f"cast({quoted(self.key)} as string)"
        return changes.where("_op <> 't'").selectExpr("_op", key, unknown)

    def _check_no_history(self, tables: LiveTables, name: str) -> None:
        with pytest.raises(HistoryMissing, match="history = keep"):
            tables.changes(name)
        state = self.rig.output.table(name)
        used = {each.path for each in (*state.base, *state.pending)}
        assert {each.path for each in state.changes} <= used
        assert not state.stored_table.targets or set(state.stored_table.targets) == {"current"}

    def shown(self, tables: LiveTables, kind: str) -> Any:
        """Return what a table shows, as columns."""
        names = [quoted(column.name) for column in self.columns]
        if kind == "versions":
            names += ["_from_epoch", "_from_lsn", "_to_epoch", "_to_lsn", "_current"]
        if kind == "soft":
            names += ["_deleted", "_deleted_at is not null"]
        return tables.current(self.name(kind)).selectExpr(*names)

    def wanted(self, kind: str) -> list[tuple[Any, ...]]:
        """Return the rows that `shown` must have."""

        def values(row: Row) -> tuple[Any, ...]:
            return tuple(row.get(column.ident) for column in self.columns)

        past = self.past
        if kind == "versions":
            closed = [(*values(row), *since, *to, "false") for row, since, to in past.closed]
            live = [(*values(row), *since, None, None, "true") for row, since in past.open.values()]
            return closed + live
        if kind == "soft":
            gone = [(*values(row), "true", "true") for row in past.gone.values()]
            return gone + [(*values(row), "false", "false") for row in self.rows().values()]
        if kind == "kept":
            return [values(row) for row in (*past.kept.values(), *self.rows().values())]
        return list(self.held(kind))

    def look_back(self) -> None:
        """Compare tables that are written in place as they were at earlier commits, where columns are the same."""
        names = [column.name for column in self.columns]
        for log_position, called, rows in (
            self.cuts[-3:-1] if self.rig.choice.name != "parquet" else ()
        ):
            then = LiveTables(self.rig.spark, self.rig.output, allow_stale=True).at(log_position)
            for kind, held in rows.items() if called == names else ():
                shown = [f"cast({quoted(name)} as string)" for name in names]
                found = then.current(self.name(kind)).selectExpr(*shown).collect()
                assert in_order(found) == held, f"{kind} at {log_position}"


def pieces(batches: Iterable[Batch]) -> list[SnapshotRows]:
    return [part for each in batches for part in each.parts if isinstance(part, SnapshotRows)]


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def reported(frame: Any, kind: str, what: str) -> Any:
    """Return the rows of a frame as texts, with what they are."""
    columns = ", ".join(f"cast({quoted(name)} as string)" for name in frame.columns)
    return frame.selectExpr(
        f"'{kind}' as kind", f"'{what}' as what", f"array({columns}) as reported"
    )


def canonical(value: Any) -> str | None:
    """Return a value as both sides show it: a number without zeros at its end."""
    if value is None:
        return None
    try:
        return str(Decimal(str(value)).normalize())
    except ArithmeticError:
        return str(value)


def in_order(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(canonical, row)) for row in rows), key=str)
