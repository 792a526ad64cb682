"""Where rows that got a new key have their unsent values from, for as many as fit here. Knows no Spark.

What `waltap_spark.compact.key_changes` has Spark find out, for sets of changes that are read faster than
plans are made: their positions, keys and operations come here, and values stay where they are.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LogEvent", "Place", "ValueSource", "ValueSources", "stands"]

Place = tuple[int, int, int, int]
"""Epoch, commit LSN, sequence and part of an update: what rows are put in order by."""


@dataclass(slots=True, frozen=True)
class LogEvent:
    """One row of the change log. ``key`` is equal where keys are; ``held``: columns that were not sent;
    ``number``: of the row, for who has them in a table."""

    place: Place
    key: int
    op: str
    held: frozenset[str] = frozenset()
    number: int = 0

    @property
    def arrives(self) -> bool:
        """Tell whether it is the new key of an update."""
        return self.op == "c" and self.place[3] == 1


@dataclass(slots=True, frozen=True)
class ValueSource:
    """The value of the row that arrives by ``move`` is that which ``source`` brought under the key that
    ``leaving`` is about; without one, that of the row which was there before all events."""

    move: LogEvent
    leaving: LogEvent
    source: LogEvent | None


@dataclass(slots=True)
class _KeyStep:
    """What a transaction has under one key. ``numbers``: which of the rows under it each event is about; 1
    is the one that was there before, where ``was``. ``left``: the one that is there afterwards."""

    events: list[LogEvent]
    numbers: list[int]
    was: bool
    left: int


class ValueSources:
    """``events``: in any order. ``crossed``: keys may be taken before the row there has gone;
    ``standing``: of those events, which are of different keys, the keys under which there is a row before
    all of them."""

    def __init__(
        self,
        events: Iterable[LogEvent],
        *,
        crossed: bool,
        standing: Callable[[Sequence[LogEvent]], set[int]],
    ) -> None:
        ordered = sorted(events, key=lambda event: (event.key, event.place))
        self._keys = [
            _transactions(own) for _key, own in itertools.groupby(ordered, lambda event: event.key)
        ]
        self._leaves = {event.place[:3]: event for event in ordered if _departs(event)}
        self._moves = [event for event in ordered if event.arrives and event.held]
        asked = [key[0][0] for key in self._keys if crossed and _asks(key)]
        there = standing(asked) if asked else set()
        self._steps = [_steps(key, key[0][0].key in there, crossed=crossed) for key in self._keys]

    def of(self, name: str) -> list[ValueSource]:
        """Return where moved rows have their unsent values of the column ``name`` from."""
        moves = {move.place[:3]: move for move in self._moves if name in move.held}
        moves = {number: move for number, move in moves.items() if number in self._leaves}
        if not moves:
            return []
        before = self._before(name)
        found = []
        for number, move in moves.items():
            root: tuple[int, int, int] | None = number
            source = None
            while root in moves:
                left = self._leaves[root]
                source = before.get(left.place)
                if source is None or name not in source.held:
                    found.append(ValueSource(move, left, source))
                    break
                root = source.place[:3]
        return found

    def _before(self, name: str) -> dict[Place, LogEvent]:
        """Return for rows that leave their key the last event that brought, or carried along, the value of
        ``name``; those whose value the base has are not in it."""
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
                    if event.op != "d" and (name not in event.held or event.arrives):
                        last[number] = event
                        leaves = event if number == step.left else leaves
                earlier = leaves or earlier
        return found


def stands(events: Sequence[LogEvent]) -> bool | None:
    """Tell whether there is a row under a key after its ``events``, in order; None: as before them."""
    verdicts = [_verdict(part) for part in _transactions(events)]
    return next((each for each in reversed(verdicts) if each is not None), None)


def _transactions(events: Iterable[LogEvent]) -> list[list[LogEvent]]:
    return [list(part) for _at, part in itertools.groupby(events, lambda event: event.place[:2])]


def _departs(event: LogEvent) -> bool:
    return event.op == "d" and event.place[3] == 0


def _asks(key: list[list[LogEvent]]) -> bool:
    """Tell whether it has to be known if there is a row under a key before all of its events: it is put
    there, and goes, in transactions of which none before says what is there."""
    for events in key:
        if events[0].op == "c" and any(event.op == "d" for event in events):
            return True
        if _verdict(events) is not None:
            return False
    return False


def _steps(key: list[list[LogEvent]], in_base: bool, *, crossed: bool) -> list[_KeyStep]:
    """Return the steps of a key, transaction by transaction."""
    found: list[_KeyStep] = []
    earlier: bool | None = None
    for events in key:
        gone_in_all = sum(event.op == "d" for event in events)
        was = events[0].op != "c"
        if crossed and not was and gone_in_all:
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
    """Tell whether there is a row under a key after a transaction's ``events``; None: as before it."""
    if events[-1].op != "d":
        return True
    more = sum((event.op == "c") - (event.op == "d") for event in events)
    if events[0].op != "c":
        return more >= 0
    return None if more == 0 else more > 0
