"""The judge: what was delivered against what was committed. Pure: values in, findings out.

It knows the committed transactions (`tests.hunt.oracle`), what a sink holds (`tests.hunt.delivered`),
and between which events the engine was restarted. It walks both in order:

- each event is the next committed change, with the same values, key and old row;
- it may go back only where the engine started or reconnected, and not before what was stored then;
- rows of an initial snapshot are the tables as they were before the first change that follows;
- rows of an incremental one are as the table is at that place of the stream;
- at the end the rows that a consumer has are the source's.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.hunt.consumer import Rows, canonical_row, differences, short
from tests.hunt.delivered import Event
from tests.hunt.expectation import Case, Expected, Finding, Life, Plan
from tests.hunt.oracle import UNSENT, Ddl, State, Table, Transaction
from tests.hunt.values import canonical, is_placeholder

__all__ = ["Case", "Finding", "Life", "judge"]

MOST = 12
"""Findings of one kind that are reported."""


def judge(
    case: Case,
    transactions: Sequence[Transaction],
    events: Sequence[Event],
    lives: Sequence[Life],
    source: dict[str, Table] | None,
) -> list[Finding]:
    """Return everything that is wrong; ``source`` is what the tables hold at the end, None where the
    pipeline was begun anew behind these events."""
    run = _Trial(case, transactions, lives)
    run.walk(events)
    if source is not None:
        run.finish(source)
    return run.reported()


class _Trial:
    def __init__(
        self, case: Case, transactions: Sequence[Transaction], lives: Sequence[Life]
    ) -> None:
        self.case = case
        self.lives = list(lives)
        self.plan = plan = Plan(case, transactions)
        self.items, self.loose, self.by_xid = plan.items, plan.loose, plan.by_xid
        self.first, self.early = plan.first, plan.early
        self.final = plan.final
        self.findings: dict[str, list[str]] = {}
        self.state = State()
        self.at: int | None = None
        self.applied = 0
        self.have: dict[str, Rows] = {}
        self.snapshot_open = False
        self.read_by = 0
        """The transaction in which the last snapshot was read."""
        self.highest = 0

    # --- walking ---------------------------------------------------------------------------------

    def walk(self, events: Sequence[Event]) -> None:
        lives = list(self.lives)
        life = lives.pop(0) if lives else Life(0)
        fresh = True
        for event in events:
            if event.op == "t" and not self.case.relations and not self._table(event.table):
                continue  # wal2json shows a partitioned table beside its partitions
            while lives and lives[0].first <= event.at:
                life, fresh = lives.pop(0), True
                self._check_confirmed(life)
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
        for life in lives:
            self._check_confirmed(life)

    def _check_confirmed(self, life: Life) -> None:
        """What was confirmed to the server must be in the sink when the life before ended."""
        if self.at is None or life.confirmed is None or self.case.logged:
            return
        for item in self.items[self.highest :]:
            if isinstance(item, Expected) and item.end_lsn <= life.confirmed and not item.optional:
                self._report("confirmed", f"{item} was confirmed and not delivered, at a start")
                return

    def _read(self, event: Event, *, anew: bool) -> None:
        if anew:
            self.have.clear()
        self.snapshot_open = True
        self.read_by = event.xid
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
        found = table.find(canonical_row(event.after, table.columns))
        if found is None:
            self._report("chunk", f"event {event.at}: row of {event.table} that the table does not"
                       f" have there: {short(event.after)}")  # fmt: skip
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
        if self.at is None and self.case.created:
            self._begin(event)
        self._catch_up_with_ddl(event)
        queue = self.loose[event.xid]
        if not queue:
            if self.case.exactly_once:
                self._report("twice", f"event {event.at} of transaction {event.xid} comes again")
            return
        wanted = queue[0]
        found = next((n for n, item in enumerate(queue) if self._fits(item, event)), None)
        if found is None or not all(item.optional for item in queue[:found]):
            self._report("order", f"event {event.at}: {_reported(event)}, expected {wanted}")
        else:
            del queue[: found + 1]
        self._place(event.table).put(event)

    def _catch_up_with_ddl(self, event: Event) -> None:
        """Take the DDL of the event's table that was before it: while a transaction is prepared there is
        none, so what was committed before that DDL has come."""
        until = self.by_xid[event.xid]
        for index in range(until - 1, self.applied - 1, -1):
            item = self.items[index]
            if isinstance(item, Ddl) and event.table in item.tables and id(item) not in self.early:
                return self._advance(index + 1)
        return None

    def _changed(self, event: Event, life: Life, *, may_repeat: bool) -> None:
        if self.at is None:
            self._begin(event)
        assert self.at is not None
        index = self._next(self.at)
        if index is not None and event.op == "t":
            self._reorder(index, event)
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
        if not again:  # what comes again was followed by what is known already
            self._place(event.table).put(event, half)

    def _reorder(self, index: int, event: Event) -> None:
        """Bring forward the table that comes first of those that one TRUNCATE names."""
        at = index
        while at < len(self.items):
            item = self.items[at]
            if not isinstance(item, Expected) or item.op != "t" or item.xid != event.xid:
                return
            if self._fits(item, event):
                self.items.insert(index, self.items.pop(at))
                return
            at += 1

    def _next(self, at: int) -> int | None:
        """The next event that must come; one that may be missing is skipped by `_elsewhere`."""
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
        self._start(min(start, self._after_snapshot()))

    def _after_snapshot(self) -> int:
        """Where the first transaction begins that is younger than the one that read the tables."""
        if not self.read_by:
            return len(self.items)
        younger = (at for xid, at in self.by_xid.items() if xid > self.read_by)
        return min(younger, default=len(self.items))

    def _start(self, start: int) -> None:
        self._advance(start)
        self.at = self.highest = start
        self.snapshot_open = False
        if not self.case.snapshot:
            self._take_over()
        else:
            self._check_snapshot(start)

    def _take_over(self) -> None:
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
                self._report(
                    "repeat", f"event {event.at} of {item} was stored at the start already"
                )
            return back
        if back is not None:
            self._report("twice", f"event {event.at}: {_reported(event)} comes again")
            return back
        if found is not None:
            for item in missed:
                self._report(
                    "lost", f"{item} is missing before event {event.at}: {_reported(event)}"
                )
            return found
        self._report("foreign", f"event {event.at}: {_reported(event)} is no change of that transaction"
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
        """Return whether the event is that change: transaction, table, operation, row."""
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

    def _table(self, name: str) -> Table | None:
        return self.state.tables.get(name) or self.final.tables.get(name)

    def _place(self, name: str) -> Rows:
        if name not in self.have:
            self.have[name] = Rows(name, self._table)
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
            self._report("old", f"event {event.at}: {_reported(event)} has no before")
        elif item.op == "d" and change.old and event.before and item.half == "":
            for name, wanted in change.old.items():
                got = canonical(change.types.get(name, ""), event.before.get(name))
                if name not in table.generated and got != wanted and not (
                    name not in event.before and not self.case.relations
                ):  # fmt: skip
                    self._report("old", f"event {event.at}: {_reported(event)}: before.{name} is"
                               f" {got!r}, it was {wanted!r}")  # fmt: skip
        if (
            event.op == "u"
            and table.identity == "f"
            and change.old is not None
            and not self.case.logged
        ):
            if event.before is None:
                self._report(
                    "old", f"event {event.at}: {_reported(event)} has no before under FULL"
                )
            else:
                whole = {n: change.old.get(n) for n in table.columns}
                self._compare(event, event.before, whole, table, "old", {}, change.types)

    def _check_key(self, item: Expected, event: Event, table: Table) -> None:
        if not self.plan.key_is_reported(table):
            if event.key and not table.key:  # a key that is no more: rows that share it become one
                self._place(event.table).unknown = True
            return
        if table.primary_key:
            if event.key is None:
                self._report("key", f"event {event.at}: {_reported(event)}: key is null, the table has"
                           f" ({', '.join(table.primary_key)})")  # fmt: skip
            elif set(event.key) != set(table.primary_key) and table.identity != "i":
                self._report("key", f"event {event.at}: {_reported(event)}: key {short(event.key)}, the"
                           f" table has ({', '.join(table.primary_key)})")  # fmt: skip
        if event.optional is not None and table.required and event.op in "cur":
            mute = [n for n in table.required if n in event.optional]
            if mute and all(event.optional[n] for n in event.optional) and len(mute) > 0:
                self._report("schema", f"event {event.at}: {_reported(event)}: every column is optional,"
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
                self._report(
                    kind, f"event {event.at}: {_reported(event)}: column {name} is missing"
                )
                continue
            held = canonical(types.get(name, table.columns.get(name, "")), got[name])
            unsent = is_placeholder(got[name]) or name in event.unsent
            if value is UNSENT:
                known = (before or {}).get(name, UNSENT)
                if not unsent and known is not UNSENT and held != known:
                    self._report(kind, f"event {event.at}: {_reported(event)}: {name} was not sent and is"
                               f" {short(held)}")  # fmt: skip
            elif unsent and kind != "old":
                self._report(kind, f"event {event.at}: {_reported(event)}: {name} holds the placeholder, it"
                           f" is {short(value)}")  # fmt: skip
            elif held != value and not unsent:
                self._report(kind, f"event {event.at}: {_reported(event)}: {name} is {short(held)}, it is"
                           f" {short(value)}")  # fmt: skip
        if self.case.relations and kind == "value":
            extra = set(got) - set(wanted) - table.generated
            if extra:
                self._report(kind, f"event {event.at}: {_reported(event)}: columns {sorted(extra)} are not"
                           " the table's")  # fmt: skip

    # --- states ----------------------------------------------------------------------------------

    def _check_snapshot(self, start: int) -> None:
        later = self._renamed_after(start)
        for name, table in self.state.tables.items():
            if table.oid in self.case.late:
                continue
            place = later.get(table.oid, name)
            rows = self.have.get(name)
            if rows is None and place is not None and place not in self.state.tables:
                rows = self.have.get(place)
            moved = self.case.restarts and rows is not None and differences(name, rows, table)
            if (table.oid in later or moved) and self._read_later(start, name, table, rows):
                continue
            if place is None or self.case.floating:
                continue  # gone, perhaps before it was read; or not known what was reported by then
            self._difference("snapshot", name, rows, table, loosely=table.oid in later)

    def _read_later(self, start: int, name: str, table: Table, rows: Rows | None) -> bool:
        """Return whether a table that DDL touches, or that was read again when a snapshot went on, is what it
        was at some later moment: the changes of it until then may be left out."""
        scratch, until = State(), None
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
                break
            if not differences(name, rows, now):
                until = index + 1  # the last such moment: what lies between may come, or not
        if until is None:
            return False
        rows = rows or self._place(name)  # none where the table was empty then
        rows.ahead, rows.unknown = (
            until,
            not table.key,
        )  # then their number is all that was compared
        for skipped in self.items[start:until]:
            if isinstance(skipped, Expected) and skipped.oid == table.oid:
                skipped.optional = True
        return True

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
        self, kind: str, name: str, rows: Rows | None, table: Table, *, loosely: bool = False
    ) -> None:
        for text in differences(name, rows, table, loosely=loosely):
            self._report(kind, text)

    def finish(self, source: dict[str, Table]) -> None:
        """Judge the end: nothing is missing, and the rows are the source's."""
        if self.at is None:
            first = self.first if self.case.created else self._after_snapshot()
            self._start(len(self.items) if first is None else first)
        assert self.at is not None
        for item in self.items[max(self.at, 0) :]:
            if isinstance(item, Expected) and not item.optional:
                self._report("lost", f"{item} never came")
        for queue in self.loose.values():
            for item in queue:
                if not item.optional:
                    self._report("lost", f"{item} never came")
        self._advance(len(self.items))
        for name, table in source.items():
            reported = name in self.case.announced
            if not (table.oid in self.case.late and reported):
                kind = "late table" if table.oid in self.case.late else "state"
                self._difference(kind, name, self.have.get(name), table)
        for name, rows in self.have.items():
            if name not in source and rows.rows and name not in self.final.tables:
                self._report("state", f"{name} has {len(rows.rows)} rows, there is no such table")

    # --- findings --------------------------------------------------------------------------------

    def _report(self, kind: str, text: str) -> None:
        self.findings.setdefault(kind, []).append(text)

    def reported(self) -> list[Finding]:
        out = []
        for kind, texts in self.findings.items():
            out += [Finding(kind, text) for text in texts[:MOST]]
            if len(texts) > MOST:
                out.append(Finding(kind, f"… and {len(texts) - MOST} more"))
        return out


def _reported(event: Event) -> str:
    return f"{event.op} {event.table} xid {event.xid} {short(event.key)}"
