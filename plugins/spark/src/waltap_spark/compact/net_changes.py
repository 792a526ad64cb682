"""Compute the net change of each key: the algorithm, on arrays.

It gets keys as numbers, positions, operations and unsent columns, but no values. It returns the row
that each key has afterwards, and where the unsent values of rows are: in another row, or in the
table. `waltap_spark.compact.compact_changes` reads the arrays and moves the values, for sets of any
size.

A transaction may insert a row under a key before it deletes the row that is there (a deferrable
key, or rows that exchange keys in one statement). It may also insert a row under a key and
change that key again. The same operations, `c` then `d` of one key, leave a row in the first
case and none in the second: the difference is whether the key existed before the transaction.
When two rows have one key, a delete means the older one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Flags: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.integer[Any]]
Array: TypeAlias = Integers | Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumns:
    """Rows of the change log without their values, in any order."""

    # Equal numbers for equal keys.
    keys: Integers
    # Epoch, commit LSN, sequence and part of an update: the order of rows.
    positions: Sequence[Integers]
    puts: Flags
    deletes: Flags
    truncates: Flags
    # Column → rows that did not send it.
    unsent: Mapping[str, Flags]


@dataclass(frozen=True, slots=True)
class Fill:
    """Rows without values of one column, and their sources.

    A row with neither a source nor a question has no value.
    """

    rows: Integers
    # The rows that have the values, or -1.
    sources: Integers
    # The first rows of the keys under which the table has the values, or -1.
    asked: Integers


class NetRows:
    """The net changes of a set of rows.

    ``key_reused``: a key may be reused before its row is deleted. ``live_keys`` gets the first rows of
    different keys, and returns whether these keys exist before all rows.
    """

    def __init__(
        self, log: LogColumns, *, key_reused: bool, live_keys: Callable[[Integers], Flags]
    ) -> None:
        keys, self._eras, self._last_era = log.keys, None, int(log.truncates.sum())
        if self._last_era:
            # the same key before and after a truncate counts as two keys
            eras = _eras(log)
            keys = keys + eras * (keys.max() + 1)
        order = _ordered(keys, log.positions)
        if self._last_era:
            order = order[~log.truncates[order]]
            self._eras = eras[order]
        self._order, self._key_reused, self._live_keys = order, key_reused, live_keys
        self._positions = [each[order] for each in log.positions]
        self._puts, self._deletes = log.puts[order], log.deletes[order]
        # The parts of a key change: 0 is its delete, 1 its insert.
        part = self._positions[3]
        self._leaves, self._arrives = self._deletes & (part == 0), self._puts & (part == 1)
        self._unsent = {name: flags[order] for name, flags in log.unsent.items()}
        self._keys = _Runs(_starts(keys[order]))
        self._at = np.arange(len(order))

    def last_rows(self) -> tuple[Integers, dict[str, Fill]]:
        """Return a row for each key, and the columns they lack.

        The row is a delete where the key has no row afterwards.
        """
        rows, alive = self._keys.last, ~self._deletes[self._keys.last]
        if self._key_reused:
            alive = self._alive()
            # such a transaction may report the delete after the row's insert
            rows = np.where(alive, self._keys.last_of(~self._deletes), rows)
        if self._eras is not None:
            final = self._eras[rows] == self._last_era
            rows, alive = rows[final], alive[final]
        fills = {}
        for name, unsent in self._unsent.items():
            # a row that is gone needs no values
            missing = rows[alive & unsent[rows]]
            if len(missing):
                fills[name] = self._last_values(name, missing)
        return self._order[rows], fills

    def carried(self) -> dict[str, Fill]:
        """Return the values that rows had under earlier keys."""
        found = {name: self._carried(name) for name in self._unsent}
        return {name: self._fill(*each) for name, each in found.items() if len(each[0])}

    def _last_values(self, name: str, rows: Integers) -> Fill:
        """Return column ``name``'s last values of the keys of ``rows``."""
        moves, origins, leaving = self._carried(name)
        origin, left_keys = np.full((2, len(self._at)), -1)
        origin[moves], left_keys[moves] = origins, leaving
        keys = self._keys.number[rows]
        has = ~self._deletes & (~self._unsent[name] | (left_keys >= 0))
        sources = self._keys.last_of(has)[keys]
        # a row with a changed key has its value from an earlier key
        moved = (sources >= 0) & (left_keys[sources] >= 0)
        asked = np.where(moved, left_keys[sources], self._keys.first[keys])
        return self._fill(rows, np.where(moved, origin[sources], sources), asked)

    def _fill(self, rows: Integers, sources: Integers, asked: Integers) -> Fill:
        """Return the fill of ``rows``.

        ``asked`` are rows of the keys whose values those without source have.
        """
        first = self._keys.first[self._keys.number[asked]]
        ask = sources < 0
        if self._eras is not None:
            ask &= self._eras[first] == 0
        order = self._order
        return Fill(
            order[rows], np.where(sources < 0, -1, order[sources]), np.where(ask, order[first], -1)
        )

    @cached_property
    def _transactions(self) -> "_Runs":
        """The rows that a transaction has under one key."""
        starts = _starts(*self._positions[:2])
        starts[self._keys.first] = True
        return _Runs(starts)

    @cached_property
    def _verdicts(self) -> "tuple[_Runs, Integers]":
        """The transactions of each key, and their results.

        A result is whether the key has a row afterwards: 1 and 0 mean yes and no, and -1: as before
        the transaction.
        """
        runs = self._transactions
        more = runs.sum(self._puts.astype(int) - self._deletes)
        # Anything but a delete at the end leaves a row. A first operation other than an insert
        # proves an earlier row, which one more delete than inserts removes. With as many inserts
        # as deletes the key is as it was before.
        decided = np.where(self._puts[runs.first] & (more == 0), -1, more >= 0)
        verdicts = np.where(self._deletes[runs.last], decided, 1)
        return _Runs(_starts(self._keys.number[runs.first])), verdicts

    def _alive(self) -> Flags:
        """Return whether each key has a row after all rows."""
        keys, verdicts = self._verdicts
        last = keys.last_of(verdicts >= 0)
        alive = np.where(last >= 0, verdicts[last] == 1, False)
        # the rows alone do not decide: the base knows whether the row was there before
        unknown = np.flatnonzero(last < 0)
        alive[unknown] = self._existed(unknown)
        return alive

    @cached_property
    def _existed_before(self) -> Flags:
        """Whether a transaction's first row of a key existed before."""
        runs, (keys, verdicts) = self._transactions, self._verdicts
        puts = self._puts[runs.first]
        if not self._key_reused:
            return ~puts
        earlier = keys.last_before(verdicts >= 0)
        there = np.where(earlier >= 0, verdicts[earlier] == 1, False)
        doubtful = puts & (runs.sum(self._deletes) > 0)
        asked = np.unique(keys.number[doubtful & (earlier < 0)])
        existed = np.zeros(len(keys.first), bool)
        existed[asked] = self._existed(asked)
        found: Flags = ~puts | (doubtful & (there | (existed[keys.number] & (earlier < 0))))
        return found

    def _existed(self, keys: Integers) -> Flags:
        """Return whether the base has ``keys``, given by their numbers."""
        first, found = self._keys.first[keys], np.zeros(len(keys), bool)
        asked = (
            np.arange(len(keys)) if self._eras is None else np.flatnonzero(self._eras[first] == 0)
        )
        if len(asked):
            found[asked] = self._live_keys(self._order[first[asked]])
        return found

    @cached_property
    def _partners(self) -> Integers:
        """The old key's delete for each new key's insert.

        -1 where there is none.
        """
        epoch, lsn, seq, sub = self._positions
        order = np.lexsort((sub, seq, lsn, epoch))
        one, other = order[:-1], order[1:]
        pairs = ~_starts(*(each[order] for each in (epoch, lsn, seq)))[1:]
        pairs &= self._leaves[one] & self._arrives[other]
        found = np.full(len(order), -1)
        found[other[pairs]] = one[pairs]
        return found

    @cached_property
    def _row_numbers(self) -> tuple[Integers, Integers]:
        """Each event's row, and the row its transaction leaves.

        Several rows may have the key within a transaction, one after the other. Row 1 existed
        before it where `_existed_before` is true.
        """
        runs = self._transactions
        gone, was = runs.counted(self._deletes), self._existed_before[runs.number]
        number = np.where(self._deletes, gone, gone + 1)
        number = np.where(self._puts, runs.counted(self._puts) + was, number)
        return number, (gone[runs.last] + 1)[runs.number]

    def _before(self, name: str) -> Integers:
        """Return each deleted old key's last event with ``name``.

        -1 means that the base has the value.
        """
        runs, (number, left_as) = self._transactions, self._row_numbers
        brings = ~self._deletes & (~self._unsent[name] | self._arrives)
        order = np.lexsort((number, runs.number))
        same_row = _Runs(_starts(runs.number[order], number[order])).last_before(brings[order])
        within = np.empty_like(same_row)
        within[order] = np.where(same_row >= 0, order[same_row], -1)
        # the last event of the row that an earlier transaction left
        first = runs.first[runs.number]
        earlier = self._keys.last_before(brings & (number == left_as))[first]
        started_there = self._existed_before[runs.number] & (number == 1)
        return np.where((within < 0) & started_there, earlier, within)

    def _carried(self, name: str) -> tuple[Integers, Integers, Integers]:
        """Return rows with changed keys, sources, and earlier keys' deletes.

        The source had the value of ``name`` under that earlier key. Without source (-1) the base
        has it.
        """
        none = self._at[:0]
        unsent = self._unsent[name]
        if not (self._arrives & unsent).any():
            return none, none, none
        moves = np.flatnonzero(self._arrives & unsent & (self._partners >= 0))
        before = self._before(name)
        # A row may change its key several times: follow the chain to an event with the value.
        # Each step doubles the distance.
        root, source = self._at.copy(), before[self._partners[moves]]
        root[moves] = np.where((source >= 0) & unsent[source], source, moves)
        while not np.array_equal(further := root[root], root):
            root = further
        # a chain may end at a row whose old key the set lacks
        moves = moves[self._partners[root[moves]] >= 0]
        leaving = self._partners[root[moves]]
        return moves, before[leaving], leaving


class _Runs:
    """Runs of neighbouring rows; ``starts`` flags each first row."""

    def __init__(self, starts: Flags) -> None:
        self.first = np.flatnonzero(starts)
        self.last = np.append(self.first, len(starts))[1:] - 1
        # The number of each row's run.
        self.number = np.cumsum(starts) - 1

    def last_before(self, flags: Flags) -> Integers:
        """Return the last flagged row before each, or -1."""
        before = np.concatenate(([-1], _last_flagged(flags)))[:-1]
        return np.where(before >= self.first[self.number], before, -1)

    def last_of(self, flags: Flags) -> Integers:
        """Return the last flagged row of each run, or -1."""
        last = _last_flagged(flags)[self.last]
        return np.where(last >= self.first, last, -1)

    def counted(self, flags: Array) -> Integers:
        """Return running counts of flagged rows, by run; sums of numbers."""
        total = np.cumsum(flags)
        found: Integers = total - (total - flags.astype(int))[self.first][self.number]
        return found

    def sum(self, flags: Array) -> Integers:
        """Return each run's number of flagged rows, or sum."""
        found: Integers = self.counted(flags)[self.last]
        return found


def _last_flagged(flags: Flags) -> Integers:
    """Return each row's last flagged row so far, or -1."""
    found: Integers = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
    return found


def _starts(*columns: Integers) -> Flags:
    """Return whether each row differs from the one before."""
    found = np.ones(len(columns[0]), bool)
    if len(found):
        found[1:] = False
    for each in columns:
        found[1:] |= each[1:] != each[:-1]
    return found


def _ordered(keys: Integers, positions: Sequence[Integers]) -> Integers:
    """Return the rows by key, then by log order."""
    ahead = np.ones(max(0, len(keys) - 1), bool)
    for position in reversed(positions):
        ahead = (position[1:] > position[:-1]) | ((position[1:] == position[:-1]) & ahead)
    # segments are in order as a rule, and one sort is enough
    if ahead.all():
        return np.argsort(keys, kind="stable")
    return np.lexsort((*reversed(positions), keys))


def _eras(log: LogColumns) -> Integers:
    """Return the number of truncates before each row."""
    order = np.lexsort((*reversed(log.positions),))
    truncates = log.truncates[order]
    found = np.empty_like(order)
    found[order] = np.cumsum(truncates) - truncates
    return found


def numbered(columns: Sequence[Integers]) -> Integers:
    """Number rows from 0; equal rows get equal numbers."""
    order = np.lexsort((*reversed(columns),))
    found = np.empty_like(order)
    found[order] = np.cumsum(_starts(*(column[order] for column in columns))) - 1
    return found
