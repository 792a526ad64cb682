"""The judge: what was delivered against what was committed. Pure: values in, findings out.

It knows the committed transactions (`tests.hunt.oracle`), what a sink holds (`tests.hunt.delivered`),
and between which events the engine was restarted. It walks both in order:

- each event is the next committed change, with the same values, key and old row;
- it may go back only where the engine started or reconnected, and not before what was stored then;
- rows of an initial snapshot are the tables as they were before the first change that follows;
- rows of an incremental one are as the table is at that place of the stream;
- at the end the rows that a consumer has are the source's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.hunt.delivered import Event
from tests.hunt.oracle import UNSENT, Change, Ddl, State, Table, Transaction
from tests.hunt.values import canonical, is_placeholder

__all__ = ["Case", "Finding", "Life", "judge"]

MOST = 12
"""Findings of one kind that are told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; ``kind`` groups what has one cause."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Life:
    """One run of the engine: ``first`` is `Event.at` of the first event it wrote; ``stored`` the end
    LSN of its stored offset at the start (None: there was none); ``reconnects``: it may have."""

    first: int
    stored: int | None = None
    reconnects: bool = False


@dataclass(slots=True)
class Case:
    """What the judge must know of the scenario.

    ``exactly_once``: the sink never repeats. ``relations``: the wire announces relations, so columns
    are exact. ``wire_keys``: it tells the key of its moment. ``late``: tables that joined a filtered
    publication after it was made; ``announced``: those of them the user was told of. ``floating``:
    transactions that may be delivered at PREPARE. ``snapshot``: whether initial data is read.
    ``unkeyed_updates``: changes of rows without identity come as they may.
    """

    exactly_once: bool = False
    relations: bool = True
    wire_keys: bool = True
    late: frozenset[int] = frozenset()
    announced: frozenset[str] = frozenset()
    floating: frozenset[int] = frozenset()
    snapshot: bool = True
    created: int = 0
    """Where the slot began: what ends later must come. 0: it is found from the first change."""
    logged: bool = False
    """The events are a change log's rows."""
    not_told: frozenset[str] = frozenset()
    """Operations the decoder does not tell."""


@dataclass(slots=True)
class Expected:
    """One event that must come. ``key``: None where none can be known, {} where there is none."""

    op: str
    change: Change
    xid: int
    end_lsn: int
    optional: bool
    oid: int
    half: str = ""
    """"d" or "c" of a key change."""
    either: bool = False
    """One update, or a delete and an insert: without a primary key, what the key is is a choice."""
    begun: bool = False
    """The delete of such a one came."""

    def __str__(self) -> str:
        row = self.change.old if self.op == "d" else self.change.new
        return f"{self.op} {self.change.table} xid {self.xid} {_short(row)}"


def _short(row: Any) -> str:
    text = repr(row)
    return text if len(text) < 160 else text[:157] + "…"


def judge(
    case: Case,
    transactions: Sequence[Transaction],
    events: Sequence[Event],
    lives: Sequence[Life],
    source: dict[str, Table],
) -> list[Finding]:
    """Return everything that is wrong; ``source`` is what the tables hold at the end."""
    run = _Trial(case, transactions, lives)
    run.walk(events)
    run.finish(source)
    return run.told()


class _Trial:
    def __init__(
        self, case: Case, transactions: Sequence[Transaction], lives: Sequence[Life]
    ) -> None:
        self.case = case
        self.lives = list(lives)
        self.items: list[Expected | Ddl] = []
        self.loose: dict[int, list[Expected]] = {}
        self.by_xid: dict[int, int] = {}
        self.first: int | None = None
        """Where the stream begins, when the slot's beginning is known."""
        self.early: set[int] = set()
        self.key_changed: set[int] = set()
        self._expand(transactions)
        self.findings: dict[str, list[str]] = {}
        self.state = State()
        self.at: int | None = None
        self.applied = 0
        self.have: dict[str, _Rows] = {}
        self.snapshot_open = False
        self.highest = 0

    # --- what must come --------------------------------------------------------------------------

    def _expand(self, transactions: Sequence[Transaction]) -> None:
        state = State()
        for transaction in transactions:
            start = len(self.items)
            if self.first is None and 0 < self.case.created < transaction.commit_lsn:
                self.first = start
            floating = transaction.xid in self.case.floating
            for item in transaction.items:
                if isinstance(item, Ddl):
                    self._watch_keys(state, item)
                    if floating:
                        self.early.add(id(item))
                    self.items.append(item)
                    state.apply(item)
                    continue
                table = state.tables.get(item.table)
                if table is None:
                    continue  # no table of ours: a materialized view, the signal table
                for made in self._expected(item, table, transaction):
                    if floating:
                        self.loose.setdefault(transaction.xid, []).append(made)
                    else:
                        self.items.append(made)
                state.apply(item)
            self.by_xid[transaction.xid] = start
        self.final = state

    def _watch_keys(self, state: State, item: Ddl) -> None:
        by_oid = {table.oid: table for table in state.tables.values()}
        for table in item.tables.values():
            before = by_oid.get(table.oid)
            if before is not None and (
                before.primary_key != table.primary_key or before.key != table.key
            ):
                self.key_changed.add(table.oid)
        moved = () if self.case.wire_keys else item.renamed
        for name in (*item.gone, *moved):
            if name in state.tables:
                self.key_changed.add(state.tables[name].oid)

    def _expected(
        self, change: Change, table: Table, transaction: Transaction
    ) -> Iterator[Expected]:
        if change.op in self.case.not_told:
            return
        about = (transaction.xid, transaction.commit_lsn, table.oid in self.case.late, table.oid)
        key = table.primary_key or (table.key if table.identity == "i" else ())
        if change.op == "u" and change.old and change.new and key:
            sent = [n for n in key if n in change.old]
            if len(sent) == len(key) and any(change.old[n] != change.new[n] for n in key):
                yield Expected("d", change, *about, half="d")
                yield Expected("c", change, *about, half="c")
                return
        either = change.op == "u" and not key and change.old is not None
        yield Expected(change.op, change, *about, either=either)

    # --- walking ---------------------------------------------------------------------------------

    def walk(self, events: Sequence[Event]) -> None:
        lives = list(self.lives)
        life = lives.pop(0) if lives else Life(0)
        fresh = True
        for event in events:
            while lives and lives[0].first <= event.at:
                life, fresh = lives.pop(0), True
                if life.stored is None:
                    self.snapshot_open = False  # it is taken anew
            if event.snapshot == "initial":
                again = event.first and (life.reconnects or self.case.logged)
                self._read(event, anew=again or not self.snapshot_open)
            elif event.snapshot:
                self._chunk(event)
            elif event.xid in self.loose:
                self._floating(event)
            else:
                self._changed(event, life, may_repeat=fresh or life.reconnects)
                fresh = False

    def _read(self, event: Event, *, anew: bool) -> None:
        if anew:
            self.have.clear()
        self.snapshot_open = True
        if event.op == "g":
            self.have.pop(event.table, None)
            return
        self._place(event.table).put(event)

    def _chunk(self, event: Event) -> None:
        self._place(event.table).put(event)
        if self.at is None or self.case.floating:
            return
        table = self._present(event)
        if table is None or table.oid in self.case.late:
            return
        assert event.after is not None
        found = table.find(_canonical_row(event.after, table.columns))
        if found is None:
            self._tell("chunk", f"event {event.at}: row of {event.table} that the table does not"
                       f" have there: {_short(event.after)}")  # fmt: skip
            return
        self._compare(event, event.after, table.rows[found], table, "chunk value")

    def _present(self, event: Event) -> Table | None:
        """The table as a chunk may show it: with the DDL that follows, up to the next change."""
        assert self.at is not None
        at = self.at
        while at < len(self.items):
            item = self.items[at]
            if isinstance(item, Ddl):
                self._advance(at + 1)
                self.at = at + 1
            elif not item.optional:
                break
            at += 1
        return self.state.tables.get(event.table)

    def _floating(self, event: Event) -> None:
        queue = self.loose[event.xid]
        if not queue:
            if self.case.exactly_once:
                self._tell("twice", f"event {event.at} of transaction {event.xid} comes again")
            return
        wanted = queue[0]
        if self._fits(wanted, event):
            queue.pop(0)
        else:
            self._tell("order", f"event {event.at}: {_told(event)}, expected {wanted}")
        self._place(event.table).put(event)

    def _changed(self, event: Event, life: Life, *, may_repeat: bool) -> None:
        if self.at is None:
            self._begin(event)
        assert self.at is not None
        index = self._next(self.at)
        if index is None or not self._fits(self.items[index], event):
            index = self._elsewhere(event, index, life, may_repeat)
            if index is None:
                return
        wanted = self.items[index]
        assert isinstance(wanted, Expected)
        if wanted.either and event.op == "d":
            wanted.begun = True
            self._place(event.table).put(event, "d")
            return
        again = index < self.highest
        if not again:
            self._advance(index)
            self._values(wanted, event)
            self._advance(index + 1)
            self.highest = index + 1
        self.at = index + 1
        half = "c" if wanted.begun else wanted.half
        if event.key or not again:  # rows without key that come again cannot be told from others
            self._place(event.table).put(event, half)

    def _next(self, at: int) -> int | None:
        """The next event that must come; one that may be missing is passed over by `_elsewhere`."""
        while at < len(self.items):
            if isinstance(self.items[at], Expected):
                return at
            at += 1
        return None

    def _begin(self, event: Event) -> None:
        """Find where the stream begins, and hold the snapshot against the tables of that moment."""
        if self.case.created:
            self._start(len(self.items) if self.first is None else self.first)
            return
        start = self._search(event, 0)
        if start is None:
            start = len(self.items)
        else:  # a whole transaction, from its first change on
            first = self.by_xid.get(event.xid, start)
            while first < start:
                item = self.items[first]
                if isinstance(item, Expected) and not item.optional:
                    start = first
                    break
                first += 1
        self._start(start)

    def _start(self, start: int) -> None:
        self._advance(start)
        self.at = self.highest = start
        self.snapshot_open = False
        if not self.case.snapshot:
            self._adopt()
        elif not self.case.floating:
            self._check_snapshot(start)

    def _adopt(self) -> None:
        """Without initial data a consumer is thought to have the tables of that moment."""
        for name, table in self.state.tables.items():
            rows = self._place(name)
            rows.fill(table)

    def _elsewhere(
        self, event: Event, index: int | None, life: Life, may_repeat: bool
    ) -> int | None:
        assert self.at is not None
        found = self._search(event, self.at)
        if found is not None:
            missed = [
                item
                for item in self.items[self.at : found]
                if isinstance(item, Expected) and not item.optional
            ]
            if not missed:
                return found
        back = self._search(event, 0, self.at)
        if back is not None and may_repeat and not self.case.exactly_once:
            item = self.items[back]
            assert isinstance(item, Expected)
            if life.stored is not None and item.end_lsn <= life.stored:
                self._tell("repeat", f"event {event.at} of {item} was stored at the start already")
            return back
        if back is not None:
            self._tell("twice", f"event {event.at}: {_told(event)} comes again")
            return back
        if found is not None:
            for item in missed:
                self._tell("lost", f"{item} is missing before event {event.at}: {_told(event)}")
            return found
        self._tell("foreign", f"event {event.at}: {_told(event)} is no change of that transaction"
                   f" (expected {self.items[index] if index is not None else 'nothing'})")  # fmt: skip
        return None

    def _search(self, event: Event, low: int, high: int | None = None) -> int | None:
        start = self.by_xid.get(event.xid)
        if start is None:
            return None
        at = max(start, low)
        while at < (len(self.items) if high is None else high):
            item = self.items[at]
            if isinstance(item, Expected):
                if item.xid != event.xid:
                    return None
                if self._fits(item, event):
                    return at
            at += 1
        return None

    def _fits(self, item: Expected | Ddl, event: Event) -> bool:
        """Tell whether the event is that change: transaction, table, operation, row."""
        if not isinstance(item, Expected) or item.xid != event.xid:
            return False
        change = item.change
        if event.table != change.table:
            return False
        if item.either and (event.op in "cu" if item.begun else event.op == "d"):
            return self._same(item, event)
        if item.op != event.op:
            return (
                item.half != ""
                and event.op in "uc"
                and item.half == "c"
                and self._same(item, event)
            )
        return item.op == "t" or self._same(item, event)

    def _same(self, item: Expected, event: Event) -> bool:
        change = item.change
        wanted = change.old if event.op == "d" else change.new
        row = event.before if event.op == "d" else event.after
        if wanted is None or row is None:
            return True
        names = [n for n in wanted if wanted[n] is not UNSENT and n in row]
        if item.op == "d" and event.key:
            names = [n for n in names if n in event.key] or names
        return all(canonical(change.types.get(n, ""), row[n]) == wanted[n] for n in names) or (
            self._same_key(item, event)
        )

    @staticmethod
    def _same_key(item: Expected, event: Event) -> bool:
        change = item.change
        row = change.old if item.op == "d" else change.new
        if not event.key or row is None:
            return False
        return all(
            n in row and canonical(change.types.get(n, ""), v) == row[n]
            for n, v in event.key.items()
        )

    def _advance(self, to: int) -> None:
        while self.applied < to:
            item = self.items[self.applied]
            self.applied += 1
            if isinstance(item, Ddl):
                self._follow(item)
                self.state.apply(item)
            elif item.half != "d":
                self.state.apply(item.change)

    def _follow(self, item: Ddl) -> None:
        """A consumer that follows DDL: it renames, drops, and takes what a new definition gives old
        rows. Rows that it lacks it does not get."""
        if self.at is None:
            return
        old = {table.oid for table in self.state.tables.values()}
        for name in item.gone:
            self.have.pop(name, None)
        moving = {n: self.have.pop(o) for o, n in item.renamed.items() if o in self.have}
        for name, rows in moving.items():
            rows.name = name
        self.have.update(moving)
        for name, image in item.tables.items():
            if image.oid not in old:
                if id(item) not in self.early:  # its rows may have come before it
                    self.have.pop(name, None)
            elif name in self.have and self.applied > self.have[name].ahead:
                before = next(t for t in self.state.tables.values() if t.oid == image.oid)
                self.have[name].follow(image, before, self._row_names(image))

    def _row_names(self, image: Table) -> dict[str, str]:
        """Return new → old column names, where a column was renamed: same place, other name."""
        before = next((t for t in self.state.tables.values() if t.oid == image.oid), None)
        if before is None or len(before.columns) != len(image.columns):
            return {}
        pairs = zip(image.columns, before.columns, strict=True)
        return {new: old for new, old in pairs if new != old}

    def _place(self, name: str) -> "_Rows":
        if name not in self.have:
            self.have[name] = _Rows(self, name)
        return self.have[name]

    # --- values ----------------------------------------------------------------------------------

    def _values(self, item: Expected, event: Event) -> None:
        table = self.state.tables.get(item.change.table)
        if table is None or item.op == "t":
            return
        self._check_key(item, event, table)
        change = item.change
        if event.after is not None and change.new is not None:
            at = table.find(change.new if change.old is None else change.old)
            before = table.rows[at] if at is not None else {}
            self._compare(event, event.after, change.new, table, "value", before, change.types)
        if item.op == "d" and change.old is not None and event.before is None:
            self._tell("old", f"event {event.at}: {_told(event)} has no before")
        elif item.op == "d" and change.old and event.before and item.half == "":
            for name, wanted in change.old.items():
                got = canonical(change.types.get(name, ""), event.before.get(name))
                if name not in table.generated and got != wanted and not (
                    name not in event.before and not self.case.relations
                ):  # fmt: skip
                    self._tell("old", f"event {event.at}: {_told(event)}: before.{name} is"
                               f" {got!r}, it was {wanted!r}")  # fmt: skip
        if (
            event.op == "u"
            and table.identity == "f"
            and change.old is not None
            and not self.case.logged
        ):
            if event.before is None:
                self._tell("old", f"event {event.at}: {_told(event)} has no before under FULL")
            else:
                whole = {n: change.old.get(n) for n in table.columns}
                self._compare(event, event.before, whole, table, "old", {}, change.types)

    def _check_key(self, item: Expected, event: Event, table: Table) -> None:
        known = (self.case.wire_keys and table.identity != "f") or table.oid not in self.key_changed
        if not known:
            if event.key and not table.key:  # a key that is no more: rows that share it become one
                self._place(event.table).unknown = True
            return
        if table.primary_key:
            if event.key is None:
                self._tell("key", f"event {event.at}: {_told(event)}: key is null, the table has"
                           f" ({', '.join(table.primary_key)})")  # fmt: skip
            elif set(event.key) != set(table.primary_key) and table.identity != "i":
                self._tell("key", f"event {event.at}: {_told(event)}: key {_short(event.key)}, the"
                           f" table has ({', '.join(table.primary_key)})")  # fmt: skip
        if event.optional is not None and table.required and event.op in "cur":
            mute = [n for n in table.required if n in event.optional]
            if mute and all(event.optional[n] for n in event.optional) and len(mute) > 0:
                self._tell("schema", f"event {event.at}: {_told(event)}: every column is optional,"
                           f" but {', '.join(sorted(mute))} is NOT NULL")  # fmt: skip

    def _compare(
        self,
        event: Event,
        got: dict[str, Any],
        wanted: dict[str, Any],
        table: Table,
        kind: str,
        before: dict[str, Any] | None = None,
        types: dict[str, str] | None = None,
    ) -> None:
        types = types or table.columns
        for name, value in wanted.items():
            if name in table.generated:
                continue
            if name not in got:
                self._tell(kind, f"event {event.at}: {_told(event)}: column {name} is missing")
                continue
            held = canonical(types.get(name, table.columns.get(name, "")), got[name])
            unsent = is_placeholder(got[name]) or name in event.unsent
            if value is UNSENT:
                known = (before or {}).get(name, UNSENT)
                if not unsent and known is not UNSENT and held != known:
                    self._tell(kind, f"event {event.at}: {_told(event)}: {name} was not sent and is"
                               f" {_short(held)}")  # fmt: skip
            elif unsent and kind != "old":
                self._tell(kind, f"event {event.at}: {_told(event)}: {name} holds the placeholder, it"
                           f" is {_short(value)}")  # fmt: skip
            elif held != value and not unsent:
                self._tell(kind, f"event {event.at}: {_told(event)}: {name} is {_short(held)}, it is"
                           f" {_short(value)}")  # fmt: skip
        if self.case.relations and kind == "value":
            extra = set(got) - set(wanted) - table.generated
            if extra:
                self._tell(kind, f"event {event.at}: {_told(event)}: columns {sorted(extra)} are not"
                           " the table's")  # fmt: skip

    # --- states ----------------------------------------------------------------------------------

    def _check_snapshot(self, start: int) -> None:
        later = self._renamed_after(start)
        for name, table in self.state.tables.items():
            if table.oid in self.case.late:
                continue
            place = later.get(table.oid, name)
            if place is None:
                continue
            rows = self.have.get(name)
            if rows is None and place not in self.state.tables:
                rows = self.have.get(place)
            if table.oid in later and self._read_later(start, name, table, rows):
                continue
            self._difference("snapshot", name, rows, table, loosely=table.oid in later)

    def _read_later(self, start: int, name: str, table: Table, rows: "_Rows | None") -> bool:
        """Tell whether a table that DDL touches is what it was at some later moment: it was read anew
        then, and the changes of it until then may be left out."""
        scratch = State()
        scratch.tables[name] = replace(table, rows=[dict(row) for row in table.rows])
        for index in range(start, len(self.items)):
            item = self.items[index]
            if isinstance(item, Ddl):
                own = {n: image for n, image in item.tables.items() if image.oid == table.oid}
                scratch.apply(Ddl(item.gone, item.renamed, own))
            elif item.oid == table.oid and item.half != "d":
                scratch.apply(item.change)
            else:
                continue
            now = next((t for t in scratch.tables.values() if t.oid == table.oid), None)
            if now is None:
                return False
            if rows is not None and not self._differences(name, rows, now):
                rows.ahead = index + 1
                for skipped in self.items[start : index + 1]:
                    if isinstance(skipped, Expected) and skipped.oid == table.oid:
                        skipped.optional = True
                return True
        return False

    def _renamed_after(self, start: int) -> dict[int, str | None]:
        """Return oid → name for tables that DDL touched later; None where they are gone."""
        found: dict[int, str | None] = {}
        state = State()
        state.tables = {n: Table(t.oid, t.columns, t.key, t.primary_key, t.identity)
                        for n, t in self.state.tables.items()}  # fmt: skip
        for item in self.items[start:]:
            if not isinstance(item, Ddl):
                continue
            for name in item.gone:
                if name in state.tables:
                    found[state.tables[name].oid] = None
            for old, new in item.renamed.items():
                if old in state.tables:
                    found[state.tables[old].oid] = new
            for name, image in item.tables.items():
                found.setdefault(image.oid, name)
            state.apply(item)
        return found

    def _difference(
        self, kind: str, name: str, rows: "_Rows | None", table: Table, *, loosely: bool = False
    ) -> None:
        for text in self._differences(name, rows, table, loosely=loosely):
            self._tell(kind, text)

    @staticmethod
    def _differences(
        name: str, rows: "_Rows | None", table: Table, *, loosely: bool = False
    ) -> list[str]:
        """Return what tells a consumer's rows from a table's; ``loosely``: rows and keys alone."""
        if rows is not None and rows.unknown:
            return []
        have = rows.rows if rows is not None else []
        if not table.key or (loosely and have and any(n not in have[0] for n in table.key)):
            if len(have) != len(table.rows):
                return [f"{name} has {len(table.rows)} rows, {len(have)} were delivered"]
            return []
        told = []
        have = [_canonical_row(row, table.columns) for row in have]
        index = {tuple(_plain(row.get(n)) for n in table.key): row for row in have}
        wanted = {tuple(_plain(row.get(n)) for n in table.key): row for row in table.rows}
        missing, extra = wanted.keys() - index.keys(), index.keys() - wanted.keys()
        if missing:
            one = min(missing, key=repr)
            told.append(f"{name}: {len(missing)} of {len(wanted)} rows are missing, one is {one}")
        if extra:
            told.append(f"{name}: {len(extra)} rows are too many, one is {min(extra, key=repr)}")
        if loosely:
            return told
        for key in wanted.keys() & index.keys():
            for column in table.columns:
                if column in table.generated:
                    continue
                if column not in index[key]:
                    told.append(f"{name} {key}: column {column} is missing")
                    continue
                got, value = index[key][column], wanted[key].get(column)
                if got is not UNSENT and value is not UNSENT and got != value:
                    told.append(
                        f"{name} {key}: {column} is {_short(got)}, in the source {_short(value)}"
                    )
        return told

    def finish(self, source: dict[str, Table]) -> None:
        """Judge the end: nothing is missing, and the rows are the source's."""
        if self.at is None:
            known = self.case.created and self.first is not None
            self._start(self.first if known and self.first is not None else len(self.items))
        assert self.at is not None
        for item in self.items[max(self.at, 0) :]:
            if isinstance(item, Expected) and not item.optional:
                self._tell("lost", f"{item} never came")
        for queue in self.loose.values():
            for item in queue:
                if not item.optional:
                    self._tell("lost", f"{item} never came")
        self._advance(len(self.items))
        for name, table in source.items():
            told = name in self.case.announced
            if not (table.oid in self.case.late and told):
                kind = "late table" if table.oid in self.case.late else "state"
                self._difference(kind, name, self.have.get(name), table)
        for name, rows in self.have.items():
            if name not in source and rows.rows and name not in self.final.tables:
                self._tell("state", f"{name} has {len(rows.rows)} rows, there is no such table")

    # --- findings --------------------------------------------------------------------------------

    def _tell(self, kind: str, text: str) -> None:
        self.findings.setdefault(kind, []).append(text)

    def told(self) -> list[Finding]:
        out = []
        for kind, texts in self.findings.items():
            out += [Finding(kind, text) for text in texts[:MOST]]
            if len(texts) > MOST:
                out.append(Finding(kind, f"… and {len(texts) - MOST} more"))
        return out


class _Rows:
    """The rows of one table as a consumer has them, as they came. ``unknown``: they cannot be known."""

    def __init__(self, trial: _Trial, name: str) -> None:
        self._trial, self.name = trial, name
        self.rows: list[dict[str, Any]] = []
        self.unknown = False
        self.ahead = 0
        """The item up to which the table's changes are in the rows that a snapshot read."""
        self._lifted: dict[str, Any] | None = None

    def fill(self, table: Table) -> None:
        self.rows = [dict(row) for row in table.rows]

    def put(self, event: Event, half: str = "") -> None:
        table = self._trial.state.tables.get(self.name) or self._trial.final.tables.get(self.name)
        columns = table.columns if table is not None else {}
        generated = table.generated if table is not None else frozenset()
        key = tuple(event.key) if event.key else (table.key if table is not None else ())
        if event.op == "t":
            self.rows.clear()
            return
        before = event.before
        if event.op == "d":
            taken = self._take(before or {}, key, columns, generated)
            if half == "d":
                self._lifted = taken
            return
        assert event.after is not None
        after = dict(event.after)
        for name, value in event.after.items():
            if is_placeholder(value) or name in event.unsent:
                after[name] = UNSENT
        held: dict[str, Any] = {}
        if event.op == "u" and not event.key and before is not None and table is not None:
            held = self._take(before, table.key or tuple(columns), columns, generated) or {}
        elif key:
            held = self._take(after, key, columns, generated) or {}
            if half == "c":
                held, self._lifted = self._lifted or {}, None
        self.rows.append({n: held.get(n, UNSENT) if v is UNSENT else v for n, v in after.items()})

    def _take(
        self,
        image: dict[str, Any],
        key: Iterable[str],
        types: dict[str, str],
        generated: frozenset[str],
    ) -> dict[str, Any] | None:
        def form(row: dict[str, Any]) -> list[Any]:
            return [canonical(types.get(n, ""), row.get(n)) for n in names]

        names = tuple(n for n in key or image if n not in generated)
        wanted = form(image)
        for index, row in enumerate(self.rows):
            if [row.get(n) for n in names] == [image.get(n) for n in names] or form(row) == wanted:
                return self.rows.pop(index)
        return None

    def follow(self, image: Table, before: Table, old_names: dict[str, str]) -> None:
        """Take the columns of a new definition, and what it gives to rows that are there.

        ``old_names`` is new → old column names. Rows are found by the key they had.
        """
        new_names = {old: new for new, old in old_names.items()}
        key = [new_names.get(n, n) for n in before.key]
        if not key or any(n not in image.columns for n in key):
            key = []
            self.unknown = self.unknown or bool(self.rows and image.columns != before.columns)
        fresh = {tuple(_plain(row.get(n)) for n in key): row for row in image.rows}
        followed = []
        for row in self.rows:
            place = tuple(
                _plain(canonical(image.columns[n], row.get(old_names.get(n, n)))) for n in key
            )
            known = (fresh.get(place) if key else None) or {}
            followed.append(
                {
                    n: known.get(n, row.get(n, row.get(old_names.get(n, n), UNSENT)))
                    for n in image.columns
                }
            )
        self.rows = followed


def _canonical_row(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    return {name: canonical(columns.get(name, ""), value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, list) else value


def _told(event: Event) -> str:
    return f"{event.op} {event.table} xid {event.xid} {_short(event.key)}"
