"""Values of rows that moved come from where they were last brought, whatever a transaction does with keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from waltap_spark.compact.value_sources import LogEvent, ValueSources

HELD = frozenset({"large"})
Place = tuple[int, int, int, int]

Action = tuple[str, int, int, bool]
"""What is done, with which of the rows, a new key where there is one, and whether the value is sent."""

ACTIONS = st.tuples(
    st.sampled_from(("insert", "delete", "update", "move", "rotate")),
    st.integers(0, 7), st.integers(0, 7), st.booleans(),
)  # fmt: skip
TRANSACTIONS = st.lists(st.lists(ACTIONS, min_size=1, max_size=6), min_size=1, max_size=8)


@dataclass
class Source:
    """A table of the source, key → value of the column, that shows what it does as a change log does."""

    rows: dict[int, int] = field(default_factory=dict)
    events: list[LogEvent] = field(default_factory=list)
    brought: dict[tuple[Place, int], int] = field(default_factory=dict)
    moved: dict[Place, int] = field(default_factory=dict)
    """The values that rows had when they got a new key, and which were not sent."""
    key_reused: bool = False
    values: int = 100

    def does(self, lsn: int, actions: Sequence[Action], seq: int = 0) -> None:
        """Do ``actions`` in one transaction, from its change ``seq`` on."""
        for what, which, to, sends in actions:
            keys = sorted(self.rows)
            key = keys[which % len(keys)] if keys else None
            if what == "insert" and to not in self.rows:
                self.rows[to] = self._value()
                self._report((1, lsn, seq, 0), to, "c", unchanged=False)
            elif what == "delete" and key is not None:
                del self.rows[key]
                self._report((1, lsn, seq, 0), key, "d", unchanged=False)
            elif what == "update" and key is not None:
                if sends:
                    self.rows[key] = self._value()
                self._report((1, lsn, seq, 0), key, "u", unchanged=not sends)
            elif what == "move" and key is not None and to not in self.rows:
                self._move(lsn, seq, [(key, to)], sends)
            elif what == "rotate" and len(keys) > 1:
                chosen = keys[: 2 + which % (len(keys) - 1)]
                self._move(lsn, seq, list(zip(chosen, chosen[1:] + chosen[:1], strict=True)), sends)
                seq += len(chosen)
            seq += 1

    def _move(self, lsn: int, seq: int, moves: list[tuple[int, int]], sends: bool) -> None:
        """Give rows new keys in one statement: a key may be taken before the row there has gone."""
        left = {key: self.rows[key] for key, _to in moves}
        gone: set[int] = set()
        for number, (key, to) in enumerate(moves):
            self.key_reused |= to in self.rows and to in left and to not in gone
            gone.add(key)
            value = self._value() if sends else left[key]
            left[key] = value
            arrival = (1, lsn, seq + number, 1)
            self.events.append(LogEvent((1, lsn, seq + number, 0), key, "d"))
            if not sends:
                self.moved[arrival] = value
            self.brought[arrival, to] = value
            self.events.append(LogEvent(arrival, to, "c", frozenset() if sends else HELD))
        for key, _to in moves:
            del self.rows[key]
        self.rows |= {to: left[key] for key, to in moves}

    def _value(self) -> int:
        self.values += 1
        return self.values

    def _report(self, place: Place, key: int, op: str, *, unchanged: bool) -> None:
        if op != "d":
            self.brought[place, key] = self.rows[key]
        self.events.append(LogEvent(place, key, op, HELD if unchanged else frozenset()))


@given(TRANSACTIONS, st.integers(0, 6), st.booleans())
def test_the_value_of_a_moved_row_is_the_one_it_had(
    transactions: list[list[Action]], preexisting: int, snapshot: bool
) -> None:
    """``snapshot``: the first rows are among the events, all of them at one place."""
    source = Source(rows={key: key for key in range(preexisting)})
    base = {} if snapshot else dict(source.rows)
    for key in source.rows if snapshot else ():
        source._report((1, 1, -1, 0), key, "r", unchanged=False)
    for number, actions in enumerate(transactions):
        source.does(number + 10, actions)

    def there(asked: Sequence[LogEvent]) -> set[int]:
        return {event.key for event in asked if event.key in base}

    origins = ValueSources(reversed(source.events), key_reused=source.key_reused, live_keys=there)
    found = {}
    for origin in origins.of("large"):
        key = origin.leaving.key
        found[origin.move.place] = (
            base[key] if origin.source is None else source.brought[origin.source.place, key]
        )
    assert found == source.moved
    assert origins.of("small") == []
