"""What must come: the committed changes as the events that they become. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.hunt.consumer import short
from tests.hunt.oracle import Change, Ddl, State, Table, Transaction


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
    confirmed: int | None = None
    """What the slot says that it may forget, at the start."""


@dataclass(slots=True)
class Case:
    """What the judge must know of the scenario.

    ``exactly_once``: the sink never repeats. ``relations``: the wire announces relations, so columns
    are exact. ``wire_keys``: it shows the key of its moment. ``late``: tables that joined a filtered
    publication after it was made; ``announced``: those of them the user was reported. ``floating``:
    transactions that may be delivered at PREPARE. ``snapshot``: whether initial data is read.
    ``restarts``: a snapshot broke off and went on, in a sink that then has some tables read again.
    """

    exactly_once: bool = False
    relations: bool = True
    wire_keys: bool = True
    late: frozenset[int] = frozenset()
    announced: frozenset[str] = frozenset()
    floating: frozenset[int] = frozenset()
    snapshot: bool = True
    restarts: bool = False
    created: int = 0
    """Where the slot began: what ends later must come. 0: it is found from the first change."""
    logged: bool = False
    """The events are a change log's rows."""
    not_reported: frozenset[str] = frozenset()
    """Operations the decoder does not show."""


@dataclass(slots=True)
class Expected:
    """One event that must come."""

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
        return f"{self.op} {self.change.table} xid {self.xid} {short(row)}"


class Plan:
    """The events of all transactions, in order, DDL between them.

    ``loose``: those of transactions that may come at PREPARE. ``by_xid``: where a transaction begins.
    ``first``: where the stream begins, when the slot's beginning is known. ``early``: DDL (id) of
    such loose transactions. ``key_changed``: tables (OIDs) that got another key, or went. ``final``:
    the tables at the end.
    """

    def __init__(self, case: Case, transactions: Sequence[Transaction]) -> None:
        self.case = case
        self.items: list[Expected | Ddl] = []
        self.loose: dict[int, list[Expected]] = {}
        self.by_xid: dict[int, int] = {}
        self.first: int | None = None
        self.early: set[int] = set()
        self.key_changed: set[int] = set()
        self._watch_keys(transactions)
        self._expand(transactions)

    def _expand(self, transactions: Sequence[Transaction]) -> None:
        state = State()
        for transaction in transactions:
            start = len(self.items)
            if self.first is None and 0 < self.case.created < transaction.commit_lsn:
                self.first = start
            floating = (
                transaction.xid in self.case.floating
                and transaction.commit_lsn > self.case.created  # else the snapshot has it
            )
            for item in transaction.items:
                if isinstance(item, Ddl):
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

    def _watch_keys(self, transactions: Sequence[Transaction]) -> None:
        state = State()
        for item in (item for transaction in transactions for item in transaction.items):
            if not isinstance(item, Ddl):
                continue
            by_oid = {table.oid: table for table in state.tables.values()}
            for table in item.tables.values():
                before = by_oid.get(table.oid)
                if before is not None and (
                    before.primary_key != table.primary_key or before.key != table.key
                ):
                    self.key_changed.add(table.oid)
            for name in (*item.gone, *item.renamed):
                table = state.tables.get(name)
                if table is not None and (name in item.gone or self._found_by_name(table)):
                    self.key_changed.add(table.oid)
            state.apply(item)

    def _found_by_name(self, table: Table) -> bool:
        """Return whether the key of rows is looked up by the name that they were written under. wal2json
        shows it in each row, but format 1 not under FULL."""
        return not self.case.wire_keys or (not self.case.relations and table.identity == "f")

    def key_is_reported(self, table: Table) -> bool:
        """Return whether the key of the moment is known: from the wire, or because there never was another."""
        reported = self.case.wire_keys and table.identity != "f"
        return reported or table.oid not in self.key_changed

    def _expected(
        self, change: Change, table: Table, transaction: Transaction
    ) -> Iterator[Expected]:
        if change.op in self.case.not_reported:
            return
        about = (transaction.xid, transaction.commit_lsn, table.oid in self.case.late, table.oid)
        key = table.primary_key or (table.key if table.identity == "i" else ())
        if change.op == "u" and change.old and change.new and key:
            sent = [n for n in key if n in change.old]
            if len(sent) == len(key) and any(change.old[n] != change.new[n] for n in key):
                gone = Expected("d", change, *about, half="d")
                gone.optional = gone.optional or not self.key_is_reported(table)
                yield gone
                yield Expected("c", change, *about, half="c")
                return
        either = change.op == "u" and not key and change.old is not None
        yield Expected(change.op, change, *about, either=either)
