"""Numbers of a relation's columns as of a change.

The wire lists columns in the order of their numbers, which it lacks. The catalogue has the present
columns by number and the rows of dropped ones, memory has the columns of the last description. Of
all assignments in order, the one that supposes the fewest other events is chosen. It is ambiguous
where another one supposes hardly more.
"""

from collections.abc import Collection, Mapping
from itertools import count
from operator import itemgetter
from typing import Final

from waltap.changes.decode.relation import Column, DataType, Relation
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.catalog.evidence import WRAP, CatalogVersion

# Costs: no change can do it; the order of transactions forbids it; a column has no number, or one
# that is made up; memory should have had it; it got another type, another name or a dropped
# column's name; a change of another column's type wrote a dropped one's row, which memory shows or
# not; a savepoint's id is of the transaction itself; the transaction's own DDL comes later.
_IMPOSSIBLE: Final = 1000
_FORBIDDEN: Final = 10
_UNKNOWN: Final = 8
_MADE: Final = 1
_UNSEEN: Final = 8
_RETYPED: Final = 4
_RENAMED: Final = 1
_REWRITTEN: Final = 4
_REWRITTEN_BESIDE: Final = 0.5
_NESTED: Final = 1.5
_OWN: Final = 0.5

# An assignment is ambiguous if another one costs at most so much more.
_MARGIN: Final = 2

# Savepoints that a transaction is supposed to have between its first command and a drop.
_SAVEPOINTS: Final = 3

# Wire columns without a number that are considered where every column could have one.
_SLACK: Final = 3

# Numbers above those that PostgreSQL gives.
_BEYOND: Final = 1600

# A cost, and the numbers in a linked list.
_Way = tuple[float, object]


class ColumnNumbers:
    """Number the columns of ``wire``; ``table`` is its description now.

    ``listed`` are the only numbers that the publication has now, if it lists columns.
    ``gone``: the relation no longer exists. Its columns need only differ from each other, so also
    columns that nothing describes get numbers.
    """

    def __init__(
        self,
        wire: Relation,
        table: CatalogTable | None,
        remembered: Relation | None,
        moment: CatalogVersion,
        types: Mapping[int, DataType],
        *,
        listed: Collection[int] = (),
        gone: bool = False,
    ) -> None:
        self._gone, self._unknown = gone, _MADE if gone else _UNKNOWN
        self._now = by_number(table.relation) if table else {}
        self._then = by_number(remembered) if remembered else {}
        # A longer wire is from before the list.
        self._listed = listed if len(wire.columns) <= len(listed) else range(1 << 31)
        self._names = {column.name for column in self._then.values()}
        self._newest = max(self._then, default=0)
        self._types, self._layouts = types, table.layouts if table else {}
        # Number → the cost of a drop before the change, and of an addition after it.
        self._early, self._late = dict[int, float](), dict[int, float]()
        if table is not None and moment.xid:
            self._date(table, moment)
        ways = self._ways(wire.columns)
        chain = ways[0][1]
        # Index in ``wire`` → number.
        self.found = dict[int, int]()
        while isinstance(chain, tuple):
            chain, at, number = chain
            self.found[at] = number
        # Without its transaction, or a table, nothing decides and nothing could be read again.
        self.ambiguous = bool(table and moment.xid) and (
            len(self.found) < len(wire.columns)
            or (len(ways) > 1 and ways[1][0] <= ways[0][0] + _MARGIN)
        )
        if gone:
            free = count(max(_BEYOND, self._newest) + 1 if self._then else 1)
            self.found = {
                n: self.found.get(n) or next(free) for n, _column in enumerate(wire.columns)
            }

    def _date(self, table: CatalogTable, moment: CatalogVersion) -> None:
        """Find costs of additions and drops from rows' writers."""
        written = {n: xids[0] for n, xids in table.changed.items() if xids} | table.dropped
        for number, xid in written.items():
            # The transaction's own DDL may precede the change or follow it.
            later, before = moment.precedes(xid), _older(xid, moment.xid)
            if number in self._now:
                self._late[number] = 0 if later else _IMPOSSIBLE if before else _OWN
            elif later:
                cost = self._rewritten(number, xid, written)
                nested = (xid - moment.xid) % WRAP <= _SAVEPOINTS
                self._early[number] = min(cost, _NESTED) if nested else cost
            elif not before:
                self._early[number] = 0

    def _rewritten(self, number: int, xid: int, written: Mapping[int, int]) -> float:
        """Return the cost of ``xid`` having only rewritten a dropped column's row.

        Up to PostgreSQL 17, ALTER COLUMN TYPE writes the rows of all columns from its own on.
        """
        oldest = max((n for n, other in written.items() if _older(other, xid)), default=0)
        altered = [n for n in written if oldest < n < number]
        known = [n for n in altered if n in self._now and n in self._then]
        retyped = [n for n in known if self._now[n].type_oid != self._then[n].type_oid]
        if any(written[n] == xid for n in retyped):
            return _REWRITTEN_BESIDE
        return _REWRITTEN if retyped or len(known) < len(altered) else _FORBIDDEN

    def _ways(self, columns: tuple[Column, ...]) -> list[_Way]:
        """Return the cheapest assignments, the best one first."""
        numbers = sorted(self._now.keys() | self._early.keys() if self._now else self._then)
        spare = abs(len(numbers) - len(columns)) + _SLACK
        # Number of assigned columns → the two cheapest ways.
        best: dict[int, list[_Way]] = {0: [(0, None)]}
        for place, number in enumerate(numbers):
            found: dict[int, list[_Way]] = {}
            for done in range(max(0, place - spare), min(place + spare, len(columns)) + 1):
                left_out = self._left_out(number, last=done == len(columns))
                ways = [(cost + left_out, chain) for cost, chain in best.get(done, ())]
                if done:
                    cost = self._is(columns[done - 1], number)
                    ways += [
                        (cost + so_far, (chain, done - 1, number))
                        for so_far, chain in best.get(done - 1, ())
                    ]
                    # New columns follow those that were known of a table that is gone.
                    if not self._gone:
                        ways += [(c + _UNKNOWN, chain) for c, chain in found.get(done - 1, ())]
                found[done] = sorted(ways, key=itemgetter(0))[:2]
            best = found
        return sorted(
            (
                (cost + self._unknown * (len(columns) - done), chain)
                for done, ways in best.items()
                for cost, chain in ways
            ),
            key=itemgetter(0),
        )

    def _is(self, column: Column, number: int) -> float:
        """Return the cost of ``column`` being the one with ``number``."""
        now, then, cost = self._now.get(number), self._then.get(number), 0.0
        if now is not None:
            cost = _differs(column, now)
            if cost and (now.generated or self._late.get(number) == _IMPOSSIBLE):
                return _IMPOSSIBLE
        elif number in self._layouts:
            data_type = self._types.get(column.type_oid)
            layout = data_type.layout if data_type is not None else ""
            if layout and (layout, column.typmod) != self._layouts[number]:
                cost = _RETYPED
            cost += 0 if self._early[number] else _OWN
        cost += _UNSEEN * (number not in self._listed)
        if then is not None:
            return cost + _differs(column, then)
        if self._then and number <= self._newest:
            return cost + _UNSEEN
        return cost + _RENAMED * (column.name in self._names)

    def _left_out(self, number: int, *, last: bool) -> float:
        """Return the cost of ``number`` being of no column of the wire.

        ``last``: all columns of the wire have lower ones.
        """
        now, known = self._now.get(number), number in self._then
        if number not in self._listed:
            return 0
        if now is None:
            return 0 if last and not known else self._early.get(number, 1)
        if now.generated or (number < self._newest and not known):
            return 0
        return self._late.get(number, 0) if last and not known else _FORBIDDEN


def by_number(relation: Relation) -> dict[int, Column]:
    """Return the columns with a number, by it."""
    return {column.number: column for column in relation.columns if column.number is not None}


def _differs(column: Column, other: Column) -> float:
    """Return the rarer explanation's cost: rename or other type."""
    renamed, retyped = column.name != other.name, column.type_oid != other.type_oid
    return _RENAMED * renamed + _RETYPED * retyped


def _older(xid: int, than: int) -> bool:
    return 0 < (than - xid) % WRAP < WRAP // 2
