"""Numbers of a relation's columns as of a change.

The wire lists columns in the order of their numbers, which it lacks. The catalogue has the present
columns by number and the numbers of dropped ones, memory has the columns of the last description.
Of all assignments in order, the one that supposes the fewest other events is chosen.
"""

from collections.abc import Mapping
from itertools import count
from typing import Final

from waltap.changes.decode.relation import Column, Relation
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.catalog.evidence import WRAP, CatalogVersion

# Costs: no change can do it; a column of that time is not in the wire; a column has no number;
# it has one that is made up; memory should have had it; the transaction adds it later; a column
# was dropped before the transaction that last wrote its row; a column got another type.
_IMPOSSIBLE: Final = 1000
_ABSENT: Final = 10
_UNKNOWN: Final = 6
_MADE: Final = 0.5
_UNSEEN: Final = 4
_OWN: Final = 1.5
_REWRITTEN: Final = 0.5
_RETYPED: Final = 3.5

# Wire columns without a number that are considered where every column could have one.
_SLACK: Final = 3

# Numbers above those that PostgreSQL gives.
_BEYOND: Final = 1600


class ColumnNumbers:
    """Number the columns of one relation; ``table`` is its description now.

    ``gone``: the relation no longer exists. Its columns need only differ from each other, so also
    columns that nothing describes get numbers.
    """

    def __init__(
        self,
        table: CatalogTable | None,
        remembered: Relation | None,
        moment: CatalogVersion,
        *,
        gone: bool = False,
    ) -> None:
        self._missing = gone
        self._unknown = _MADE if gone else _UNKNOWN
        self._now = by_number(table.relation) if table else {}
        self._then = by_number(remembered) if remembered else {}
        self._names = {column.name for column in self._then.values()}
        self._newest = max(self._then, default=0)
        # Number of a present column → whether its last change is later, None if that is unknown;
        # the same of columns that were dropped, if that may be later.
        self._later = dict[int, bool | None]()
        self._gone = dict[int, bool | None]()
        if table is None:
            return
        written = {n: xids[0] for n, xids in table.changed.items() if xids} | table.dropped
        certain = _dropped_by_last_writer(written, table.dropped)
        for number, xid in written.items() if moment.xid else ():
            # The transaction's own DDL may precede the change or follow it.
            later = True if moment.precedes(xid) else False if _older(xid, moment.xid) else None
            if number in self._now:
                self._later[number] = later
            elif later is not False:
                self._gone[number] = later if number in certain else None

    def of(self, wire: Relation) -> dict[int, int]:
        """Return index in ``wire`` → number."""
        columns = wire.columns
        numbers = sorted(self._now.keys() | self._gone.keys() if self._now else self._then)
        spare = abs(len(numbers) - len(columns)) + _SLACK
        # Number of assigned columns → the least cost, and numbers in a linked list.
        best: dict[int, tuple[float, object]] = {
            n: (n * self._unknown, None) for n in range(_SLACK)
        }
        for place, number in enumerate(numbers):
            found: dict[int, tuple[float, object]] = {}
            for done in range(max(0, place - spare), min(place + spare, len(columns)) + 1):
                if done in best:
                    cost, chain = best[done]
                    last = done == len(columns)
                    found[done] = cost + self._left_out(number, last=last), chain
                if done and done - 1 in best:
                    cost, chain = best[done - 1]
                    cost += self._is(columns[done - 1], number)
                    if done not in found or cost <= found[done][0]:
                        found[done] = cost, (chain, done - 1, number)
                if done and done - 1 in found:
                    cost, chain = found[done - 1]
                    if done not in found or cost + self._unknown < found[done][0]:
                        found[done] = cost + self._unknown, chain
            best = found
        costs = (
            (cost + self._unknown * (len(columns) - done), chain)
            for done, (cost, chain) in best.items()
        )
        chain = min(costs, key=lambda each: each[0], default=(0, None))[1]
        numbered: dict[int, int] = {}
        while isinstance(chain, tuple):
            chain, at, number = chain
            numbered[at] = number
        if self._missing:
            free = count(max(_BEYOND, self._newest) + 1 if self._then else 1)
            numbered = {n: numbered.get(n) or next(free) for n in range(len(columns))}
        return numbered

    def _is(self, column: Column, number: int) -> float:
        """Return the cost of ``column`` being the one with ``number``."""
        now, then, cost = self._now.get(number), self._then.get(number), 0.0
        if now is not None:
            cost += _differs(column, now)
            if cost and self._later.get(number) is False:
                return _IMPOSSIBLE
        if then is not None:
            return cost + _differs(column, then)
        if self._then and number <= self._newest:
            return cost + _UNSEEN
        return cost + (now is None or column.name in self._names)

    def _left_out(self, number: int, *, last: bool) -> float:
        """Return the cost of ``number`` being of no column of the wire.

        ``last``: all columns of the wire have lower ones.
        """
        now = self._now.get(number)
        if now is None:
            later, known = self._gone.get(number), number in self._then
            if later and not last:
                return _ABSENT
            if known:
                return _UNSEEN if later else 1
            return _REWRITTEN if number in self._gone and not (later or last) else 0
        if now.generated or (number < self._newest and number not in self._then):
            return 0
        later = self._later.get(number, True)
        if later is False or not last:
            return _ABSENT
        return _UNSEEN if number in self._then else 0 if later else _OWN


def by_number(relation: Relation) -> dict[int, Column]:
    """Return the columns with a number, by it."""
    return {column.number: column for column in relation.columns if column.number is not None}


def _differs(column: Column, other: Column) -> float:
    """Return the cost of a rename and of another type, which is the rarer one."""
    return (column.name != other.name) + _RETYPED * (column.type_oid != other.type_oid)


def _dropped_by_last_writer(written: Mapping[int, int], dropped: Mapping[int, int]) -> set[int]:
    """Return the dropped columns whose row was last written by the drop.

    Up to PostgreSQL 17, ALTER COLUMN TYPE writes the rows of all columns from its own on. An older
    row shows that it did not.
    """
    found, downwards = set(), sorted(written, reverse=True)
    for number, xid in dropped.items():
        # The first column below that another transaction wrote, or that may have been altered.
        stop = next(
            (n for n in downwards if n < number and (written[n] != xid or n not in dropped)), None
        )
        if (
            stop is None
            or _older(written[stop], xid)
            or any(_older(written[n], xid) for n in written if n > number)
        ):
            found.add(number)
    return found


def _older(xid: int, than: int) -> bool:
    return 0 < (than - xid) % WRAP < WRAP // 2
