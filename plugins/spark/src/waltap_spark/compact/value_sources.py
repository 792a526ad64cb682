"""Find the sources of changed keys' unsent values, without Spark.

`waltap_spark.compact.key_changes` does the same as a Spark plan. For small sets of changes the plan takes
longer than the reading. Here positions, keys and operations are enough; values have numbers.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# Epoch, commit LSN, sequence and part of an update: the order of rows.
Place = tuple[int, int, int, int]


@dataclass(slots=True, frozen=True)
class LogEvent:
    """One row of the change log."""

    place: Place
    # Equal for equal keys.
    key: int
    op: str
    # Columns that were not sent.
    unchanged: frozenset[str] = frozenset()
    # The row's index in the caller's table.
    number: int = 0

    @property
    def arrives(self) -> bool:
        """Return whether it is the new key of an update."""
        return self.op == "c" and self.place[3] == 1


@dataclass(slots=True, frozen=True)
class ValueSource:
    """The source of an unsent value of a changed key."""

    # The event with the new key.
    move: LogEvent
    # The event that deletes the old key.
    leaving: LogEvent
    # The event that has the value under the old key; None: the table has it.
    source: LogEvent | None


@dataclass(slots=True)
class _KeyStep:
    """The events of one transaction under one key."""

    events: list[LogEvent]
    # The row of each event: several rows may have the key within a transaction, one after the
    # other.
    numbers: list[int]
    # Whether row 1 existed before.
    was: bool
    # The row that exists afterwards.
    left: int


class ValueSources:
    """Finds sources in ``events``, given in any order.

    ``key_reused``: a key may be reused before its row is deleted. ``live_keys`` returns the keys of
    its argument, events of different keys, that exist before all of them.
    """

    def __init__(
        self,
        events: Iterable[LogEvent],
        *,
        key_reused: bool,
        live_keys: Callable[[Sequence[LogEvent]], set[int]],
    ) -> None:
        ordered = sorted(events, key=lambda event: (event.key, event.place))
        self._keys = [
            _transactions(own) for _key, own in itertools.groupby(ordered, lambda event: event.key)
        ]
        self._leaves = {event.place[:3]: event for event in ordered if _departs(event)}
        self._moves = [event for event in ordered if event.arrives and event.unchanged]
        # Only these keys need a look into the table, which is a query of Spark.
        asked = [key[0][0] for key in self._keys if key_reused and _asks(key)]
        there = live_keys(asked) if asked else set()
        self._steps = [
            _steps(key, key[0][0].key in there, key_reused=key_reused) for key in self._keys
        ]

    def of(self, name: str) -> list[ValueSource]:
        """Return the sources of unsent values of the column ``name``."""
        moves = {move.place[:3]: move for move in self._moves if name in move.unchanged}
        moves = {number: move for number, move in moves.items() if number in self._leaves}
        if not moves:
            return []
        before = self._before(name)
        found = []
        for number, move in moves.items():
            root: tuple[int, int, int] | None = number
            source = None
            # A row may change its key several times: follow the chain to an event with the value.
            while root in moves:
                left = self._leaves[root]
                source = before.get(left.place)
                if source is None or name not in source.unchanged:
                    found.append(ValueSource(move, left, source))
                    break
                root = source.place[:3]
        return found

    def _before(self, name: str) -> dict[Place, LogEvent]:
        """Return each deleted old key's last event with the value.

        Rows whose value only the base has are left out.
        """
        found: dict[Place, LogEvent] = {}
        for steps in self._steps:
            earlier = None
            for step in steps:
                last: dict[int, LogEvent] = {}
                leaves = None
                for event, number in zip(step.events, step.numbers, strict=True):
                    if _departs(event):
                        source = last.get(number) or (earlier if step.was and number == 1 else None)
                        if source is not None:
                            found[event.place] = source
                    if event.op != "d" and (name not in event.unchanged or event.arrives):
                        last[number] = event
                        leaves = event if number == step.left else leaves
                earlier = leaves or earlier
        return found


def exists_after(events: Sequence[LogEvent]) -> bool | None:
    """Return whether a row exists under a key after its ``events``; None: as before."""
    verdicts = [_verdict(part) for part in _transactions(events)]
    return next((each for each in reversed(verdicts) if each is not None), None)


def _transactions(events: Iterable[LogEvent]) -> list[list[LogEvent]]:
    return [list(part) for _at, part in itertools.groupby(events, lambda event: event.place[:2])]


def _departs(event: LogEvent) -> bool:
    return event.op == "d" and event.place[3] == 0


def _asks(key: list[list[LogEvent]]) -> bool:
    """Return whether the base decides if a row exists under a key.

    So it is if a transaction inserts and deletes the key before any event shows its state.
    """
    for events in key:
        if events[0].op == "c" and any(event.op == "d" for event in events):
            return True
        if _verdict(events) is not None:
            return False
    return False


def _steps(key: list[list[LogEvent]], in_base: bool, *, key_reused: bool) -> list[_KeyStep]:
    """Return the steps of a key, transaction by transaction."""
    found: list[_KeyStep] = []
    earlier: bool | None = None
    for events in key:
        gone_in_all = sum(event.op == "d" for event in events)
        was = events[0].op != "c"
        if key_reused and not was and gone_in_all:
            was = in_base if earlier is None else earlier
        put = gone = 0
        numbers = []
        for event in events:
            put += event.op == "c"
            gone += event.op == "d"
            numbers.append(put + was if event.op == "c" else gone if event.op == "d" else gone + 1)
        found.append(_KeyStep(events, numbers, was, gone_in_all + 1))
        verdict = _verdict(events)
        earlier = earlier if verdict is None else verdict
    return found


def _verdict(events: Sequence[LogEvent]) -> bool | None:
    """Return whether a row exists under a key after a transaction; None: as before."""
    # As `waltap_spark.compact.key_changes.verdict`, which has the reasons.
    if events[-1].op != "d":
        return True
    more = sum((event.op == "c") - (event.op == "d") for event in events)
    if events[0].op != "c":
        return more >= 0
    return None if more == 0 else more > 0
