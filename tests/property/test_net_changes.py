"""The net changes of a set are the rows of the source, whatever transactions do with keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.changelog import WrittenLog, relation

from waltap_sinks.changelog.verification import CurrentRows
from waltap_spark.compact.log_columns import key_codes, log_columns
from waltap_spark.compact.net_changes import Fill, LogColumns, NetRows

Position = tuple[int, int, int, int]

Action = tuple[str, int, int, bool]
"""What is done, with which of the rows, a new key where there is one, and whether the value is sent."""

ACTIONS = st.tuples(
    st.sampled_from(("insert", "delete", "update", "move", "rotate", "truncate")),
    st.integers(0, 7), st.integers(0, 7), st.booleans(),
)  # fmt: skip
TRANSACTIONS = st.lists(st.lists(ACTIONS, min_size=1, max_size=6), min_size=1, max_size=8)


class Event(NamedTuple):
    """One row of the change log; the key of a truncate counts for nothing."""

    position: Position
    key: int
    op: str
    unsent: bool = False


def net_changes(
    events: Sequence[Event], *, key_reused: bool, exists: Callable[[Event], bool]
) -> NetRows:
    """Return the net changes of ``events``, of which some have no value of the column `large`."""

    def flags(values: Any) -> Any:
        return np.array(list(values), bool)

    log = LogColumns(
        keys=np.array([event.key for event in events], np.int64),
        positions=[np.array([event.position[n] for event in events], np.int64) for n in range(4)],
        puts=flags(event.op == "c" for event in events),
        deletes=flags(event.op == "d" for event in events),
        truncates=flags(event.op == "t" for event in events),
        unsent={
            "large": flags(event.unsent for event in events),
            "small": np.zeros(len(events), bool),
        },
    )

    def live(rows: Any) -> Any:
        return flags(exists(events[row]) for row in rows)

    return NetRows(log, key_reused=key_reused, live_keys=live)


@dataclass
class Source:
    """A table of the source, key → value of the column, that shows what it does as a change log does."""

    rows: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    brought: dict[tuple[Position, int], int] = field(default_factory=dict)
    moved: dict[Position, int] = field(default_factory=dict)
    """The values that rows had when they got a new key, and which were not sent."""
    key_reused: bool = False
    truncated: bool = False
    values: int = 100

    def does(self, lsn: int, actions: Sequence[Action], seq: int = 0) -> None:
        """Do ``actions`` in one transaction, from its change ``seq`` on."""
        for what, which, to, sends in actions:
            keys = sorted(self.rows)
            key = keys[which % len(keys)] if keys else None
            if what == "insert" and to not in self.rows:
                self.rows[to] = self._value()
                self.report((1, lsn, seq, 0), to, "c")
            elif what == "delete" and key is not None:
                del self.rows[key]
                self.report((1, lsn, seq, 0), key, "d")
            elif what == "update" and key is not None:
                if sends:
                    self.rows[key] = self._value()
                self.report((1, lsn, seq, 0), key, "u", unsent=not sends)
            elif what == "move" and key is not None and to not in self.rows:
                self._move(lsn, seq, [(key, to)], sends)
            elif what == "rotate" and len(keys) > 1:
                chosen = keys[: 2 + which % (len(keys) - 1)]
                self._move(lsn, seq, list(zip(chosen, chosen[1:] + chosen[:1], strict=True)), sends)
                seq += len(chosen)
            elif what == "truncate" and which == 7:
                self.rows.clear()
                self.truncated = True
                self.events.append(Event((1, lsn, seq, 0), 0, "t"))
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
            self.events.append(Event((1, lsn, seq + number, 0), key, "d"))
            if not sends:
                self.moved[arrival] = value
            self.brought[arrival, to] = value
            self.events.append(Event(arrival, to, "c", not sends))
        for key, _to in moves:
            del self.rows[key]
        self.rows |= {to: left[key] for key, to in moves}

    def _value(self) -> int:
        self.values += 1
        return self.values

    def report(self, position: Position, key: int, op: str, *, unsent: bool = False) -> None:
        if op != "d":
            self.brought[position, key] = self.rows[key]
        self.events.append(Event(position, key, op, unsent))


@given(TRANSACTIONS, st.integers(0, 6), st.booleans())
def test_a_row_has_the_value_that_it_had_in_the_source(transactions, preexisting, snapshot):
    """``snapshot``: the first rows are among the events, all of them at one position."""
    source = Source(rows={key: key for key in range(preexisting)})
    base = {} if snapshot else dict(source.rows)
    for key in source.rows if snapshot else ():
        source.report((1, 1, -1, 0), key, "r")
    for number, actions in enumerate(transactions):
        source.does(number + 10, actions)
    events = source.events[::-1]

    def values(fills: dict[str, Fill]) -> dict[int, int]:
        assert fills.keys() <= {"large"}
        found = {}
        for fill in fills.values():
            for row, at, asked in zip(fill.rows, fill.sources, fill.asked, strict=True):
                there = events[at]
                found[row] = (
                    base[events[asked].key] if at < 0 else source.brought[there.position, there.key]
                )
        return found

    net = net_changes(events, key_reused=source.key_reused, exists=lambda event: event.key in base)
    carried = {events[row].position: value for row, value in values(net.carried()).items()}
    assert carried == source.moved
    rows, fills = net.last_rows()
    filled = values(fills)
    last = {events[row].key: int(row) for row in rows}
    assert len(last) == len(rows)
    after = {} if source.truncated else {key: base[key] for key in base.keys() - last.keys()}
    for key, row in last.items():
        if events[row].op != "d":
            after[key] = filled[row] if row in filled else source.brought[events[row].position, key]
    assert after == source.rows


SEATS = msgspec.structs.replace(
    relation("public.seats", [("id", "int4"), ("name", "text")], identity="f"), deferrable=True
)
CHOICES = st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 5))


@given(st.lists(st.lists(CHOICES, max_size=9), min_size=1, max_size=3), st.integers(1, 40))
def test_rows_that_share_a_key_until_the_commit_keep_their_values(transactions, chunk):
    with (
        TemporaryDirectory() as folder,
        WrittenLog(Path(folder)).open({"chunk.rows": chunk}) as log,
    ):
        log.flush(log.db.inserted(SEATS, *[[str(n), f"row {n}"] for n in range(4)]))
        rows = log.db.rows["public.seats"]
        for choices in transactions:
            for at in range(
                len(rows)
            ):  # a row that nothing changes cannot be told from one that left
                log.db.update(SEATS, [rows[at][0]], name=f"{rows[at][1]}.")
            for what, which, to in choices:
                at = which % len(rows)
                old = {
                    "key": [rows[at][0]],
                    "which": [row[0] for row in rows[:at]].count(rows[at][0]),
                }
                if what == 0 and len(rows) > 2:
                    log.db.delete(SEATS, **old)
                elif what == 1:
                    log.db.insert(SEATS, [str(to), f"new {to}"])
                elif what < 5:
                    log.db.update(SEATS, **old, name="ab"[to % 2])
                else:
                    log.db.update(SEATS, **old, id=str(to))
            for at, row in enumerate(rows):
                if row[0] in (earlier := [each[0] for each in rows[:at]]):
                    log.db.update(SEATS, [row[0]], which=earlier.count(row[0]), id=str(log.db.lsn))
            log.flush(log.db.commit())
        expected = sorted((int(key), name) for key, name in rows)
        read = pa.concat_tables(log.log.rows("public", "seats"))
        current = CurrentRows(["id", "name"], ["id"])
        for row in read.to_pylist():
            current.apply(row["_op"], row, transaction=row["_commit_lsn"], second=row["_sub"] == 1)
        assert sorted(map(tuple, current.rows())) == expected
        net = NetRows(
            log_columns(read, ["id"], ()), key_reused=True, live_keys=lambda asked: asked < 0
        )
        last = read.take(net.last_rows()[0]).select(["id", "name", "_op"]).to_pylist()
        assert sorted((r["id"], r["name"]) for r in last if r["_op"] != "d") == expected


# --- keys and positions -----------------------------------------------------------------------------


NAN = float("nan")
SAME: list[tuple[pa.DataType, list[list[Any]]]] = [
    (pa.float64(), [[0.0, -0.0], [NAN, -NAN], [1.5], [None]]),
    (pa.float32(), [[0.0, -0.0], [NAN, -NAN], [1.5], [None]]),
    (pa.list_(pa.float64()), [[[0.0, 1.0], [-0.0, 1.0]], [[]], [[NAN]], [None], [[None]]]),
    (pa.struct([("x", pa.float32()), ("y", pa.string())]), [
        [{"x": 0.0, "y": "a"}, {"x": -0.0, "y": "a"}], [{"x": None, "y": "a"}], [{"x": 0.0, "y": "b"}],
    ]),
    (pa.list_(pa.string()), [[["a", "b"]], [["a, b"]], [["a', 'b"]]]),
]  # fmt: skip


def test_values_that_spark_takes_for_one_are_one_key():
    for kind, groups in SAME:
        values = [value for group in groups for value in group]
        numbers = [n for n, group in enumerate(groups) for _value in group]
        codes = key_codes([pa.chunked_array([values], kind)])
        assert len({*zip(codes.tolist(), numbers, strict=True)}) == len(groups), kind
        assert len(set(codes.tolist())) == len(groups), kind
