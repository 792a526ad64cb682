"""Histories of the SQL sink, on every kind of target: held against a model that only appends."""

import random
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, copy_of, in_parts, relation
from tests.harness.sql import (
    PEOPLE,
    VISITS,
    Place,
    micros,
    some_of_everything,
)

from waltap.changes.decode.message import Delete, Insert, Truncate, Update
from waltap.changes.decode.relation import DataType, Relation
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap_sinks.sql.errors import SqlNameTaken, SqlOwnColumnTaken

OWN = ("op", "commit_lsn", "seq", "sub", "commit_ts", "xid", "valid_from", "valid_to", "is_current")

Known = dict[Any, Any]


class Annals:
    """The plain model: a list of versions, and of each row the one that is open."""

    def __init__(self) -> None:
        self.versions: dict[str, list[Known]] = {}
        self._open: dict[str, list[Known]] = {}

    def take(self, part: TransactionPart) -> None:
        """Go through the changes of a transaction, one by one."""
        for number, change in enumerate(part.changes):
            if isinstance(change, Truncate):
                for table in change.relations:
                    for version in list(self._open.get(table.name, ())):
                        self._end(table, version, part.commit_ts)
                    self._add(table, (None,) * len(table.columns), "t", part, number, opens=False)
                continue
            assert isinstance(change, Insert | Update | Delete)
            table, own = change.relation, _own(change.relation)
            if isinstance(change, Insert):
                self._add(table, change.new, "c", part, number)
                continue
            old = change.old if isinstance(change, Delete) or change.old else change.new
            version = self._find(table, [old[n] for n in own], own)
            self._end(table, version, part.commit_ts)
            if isinstance(change, Delete):
                seen = [old[n] if n in own else None for n in range(len(old))]
                self._add(table, seen, "d", part, number, opens=False)
                continue
            row = [
                v if n is UNCHANGED else n for n, v in zip(change.new, version["row"], strict=True)
            ]
            moved = bool(table.primary_key) and any(old[n] != row[n] for n in own)
            if moved:
                seen = [old[n] if n in own else None for n in range(len(old))]
                self._add(table, seen, "d", part, number, opens=False)
            self._add(table, row, "c" if moved else "u", part, number, sub=int(moved))

    def read(self, table: Relation, rows: list[Tuple], ts: int, lsn: int) -> None:
        """A snapshot: every version ends, and each row begins one."""
        for version in list(self._open.get(table.name, ())):
            self._end(table, version, ts)
        for row in rows:
            made = {
                "row": tuple(row), "op": "r", "commit_lsn": lsn, "seq": -1, "sub": 0, "commit_ts": None,
                "xid": None, "valid_from": ts, "valid_to": None, "is_current": True,
            }  # fmt: skip
            self.versions.setdefault(table.name, []).append(made)
            self._open.setdefault(table.name, []).append(made)

    def _add(
        self,
        table: Relation,
        row: Any,
        op: str,
        part: TransactionPart,
        number: int,
        *,
        sub: int = 0,
        opens: bool = True,
    ) -> None:
        ts = part.commit_ts
        made = {
            "row": tuple(row), "op": op, "commit_lsn": part.commit_lsn, "seq": number, "sub": sub,
            "commit_ts": ts, "xid": part.xid, "valid_from": ts, "valid_to": None if opens else ts,
            "is_current": opens,
        }  # fmt: skip
        self.versions.setdefault(table.name, []).append(made)
        if opens:
            self._open.setdefault(table.name, []).append(made)

    def _find(self, table: Relation, values: list[Any], own: list[int]) -> Known:
        return next(v for v in self._open[table.name] if [v["row"][n] for n in own] == values)

    def _end(self, table: Relation, version: Known, ts: int) -> None:
        version["valid_to"], version["is_current"] = ts, False
        self._open[table.name].remove(version)

    def reported(self, table: Relation) -> list[tuple[Any, ...]]:
        found = self.versions.get(table.name, [])
        return sorted((*v["row"], *(v[name] for name in OWN)) for v in map(_texts, found))


def _own(table: Relation) -> list[int]:
    names = [column.name for column in table.columns]
    return [names.index(name) for name in table.primary_key or ()] or list(range(len(names)))


def _texts(version: Known) -> Known:
    def text(value: Any) -> str:
        return "-" if value is None else str(value)

    return {n: tuple(map(text, v)) if n == "row" else text(v) for n, v in version.items()}


def reported(place: Place, table: Relation, suffix: str = "_history") -> list[tuple[Any, ...]]:
    """Return the history that the target has of ``table``, times as µs, sorted."""
    columns = [column.name for column in table.columns]
    names = ", ".join(
        [f"CAST({name} AS {place.text})" for name in columns] + [f"_{n}" for n in OWN]
    )
    rows = place.execute(f"SELECT {names} FROM {table.table}{suffix}")
    found = []
    for row in rows:
        values = dict(zip((*columns, *OWN), row, strict=True))
        for name in ("commit_ts", "valid_from", "valid_to"):
            values[name] = micros(values[name])
        values["is_current"] = bool(values["is_current"])
        found.append(tuple("-" if v is None else str(v) for v in values.values()))
    return sorted(found)


def _work(source: Model, chance: random.Random) -> TransactionPart:
    """A transaction on rows that are known by a key, by two columns, and as a whole."""
    rows = source.rows.setdefault("public.visits", [])
    for _ in range(chance.choice((0, 1, 3))):
        kind = chance.random()
        if kind < 0.5 or not rows:
            source.insert(VISITS, [str(chance.randrange(3)), chance.choice("abc")])
        elif kind < 0.8:
            source.update(VISITS, list(chance.choice(rows)), page=chance.choice("defg"))
        else:
            source.delete(VISITS, list(chance.choice(rows)))
    return some_of_everything(source, chance)


def test_random_work_leads_to_the_versions_of_the_model(place):
    """Of every change one version; batches of any size, transactions in parts, crashes between. At the end
    the versions that were valid at the time of a commit are the rows that the source had then."""
    chance = random.Random(41)
    source, annals = Model(), Annals()
    target = place.opened(history_mode="beside")
    states = []
    for _ in range(10):
        parts = []
        for _ in range(chance.choice((1, 1, 3, 8))):
            part = _work(source, chance)
            annals.take(part)
            parts.append(part)
            states.append((part.commit_ts, list(source.rows["public.people"])))
        *whole, last = parts
        half = len(last.changes) // 2
        if half and chance.random() < 0.3:
            one, two = in_parts(last, half, len(last.changes) - half)
            target.write(batch(*whole, one))
            target.write(batch(two))
        else:
            target.write(batch(*parts))
        if chance.random() < 0.2:
            target.close()
            target = place.sink(history_mode="beside")
            assert target.open() == Position(last.end_lsn)
            target.write(batch(*map(copy_of, parts)))
    assert reported(place, PEOPLE) == annals.reported(PEOPLE)
    ours, theirs = reported(place, VISITS), annals.reported(VISITS)
    assert [v[:-2] for v in ours] == [v[:-2] for v in theirs]
    # which one of several equal rows ends is nobody's to say
    assert sorted(v[:2] + v[-2:] for v in ours) == sorted(v[:2] + v[-2:] for v in theirs)
    in_order = "SELECT a, b, _op, _seq FROM pairs_history ORDER BY _commit_lsn, _seq, _sub"
    assert [(str(a), *more) for a, *more in place.execute(in_order)] == [
        (*v["row"][:2], v["op"], v["seq"])
        for v in sorted(
            annals.versions["public.pairs"], key=lambda v: (v["commit_lsn"], v["seq"], v["sub"])
        )
    ]
    held = reported(place, PEOPLE)
    for ts, rows in chance.sample(states, 20):
        valid = [v[:3] for v in held if int(v[9]) <= ts and (v[10] == "-" or ts < int(v[10]))]
        assert valid == sorted(tuple("-" if x is None else x for x in row) for row in rows)
    assert len(place.rows("people", "id")) == len(source.rows["public.people"])


def test_a_history_alone_and_of_chosen_tables(place):
    source, annals = Model(), Annals()
    target = place.opened(history_mode="instead", history_table_include_list="public.pe.*")
    source.insert(PEOPLE, ["1", "a", "long"])
    source.insert(VISITS, ["1", "x"])
    parts = [source.commit()]
    source.update(PEOPLE, ["1"], name="b", unsent=["note"])
    parts.append(source.commit())
    source.delete(PEOPLE, ["1"])
    parts.append(source.commit())
    for part in parts:
        annals.take(part)
        target.write(batch(part))
    target.close()
    assert reported(place, PEOPLE) == annals.reported(PEOPLE)
    assert ("1", "b", "long", "u") in [row[:4] for row in reported(place, PEOPLE)]
    assert place.rows("visits", "page") == [("x",)]
    for missing in ("people", "visits_history"):
        with pytest.raises(Exception, match=missing):
            place.execute(f"SELECT * FROM {missing}")


def test_snapshots_end_versions_and_begin_others(place):
    """A second one too; one that broke off leaves nothing."""
    source, annals = Model(), Annals()
    target = place.opened(history_mode="beside")
    source.insert(PEOPLE, *[[str(n), "old", None] for n in range(5)])
    source.commit()
    for piece in source.snapshot(PEOPLE):
        target.write(piece)
    annals.read(PEOPLE, source.rows["public.people"], TS, source.lsn)
    assert reported(place, PEOPLE) == annals.reported(PEOPLE)
    source.update(PEOPLE, ["1"], name="new")
    source.delete(PEOPLE, ["2"])
    part = source.commit()
    annals.take(part)
    target.write(batch(part))
    *pieces, end = source.snapshot(PEOPLE)
    target.write(pieces[0])
    target.close()
    assert reported(place, PEOPLE) == annals.reported(PEOPLE)
    target = place.opened(history_mode="beside")
    for piece in [*pieces, end]:
        target.write(piece)
    annals.read(PEOPLE, source.rows["public.people"], TS, source.lsn)
    assert reported(place, PEOPLE) == annals.reported(PEOPLE)


TS = 1_700_000_000_000_000


def test_rows_read_while_their_table_is_streamed_begin_versions(place):
    source = Model()
    target = place.opened(history_mode="beside")
    part = source.inserted(PEOPLE, ["1", "a", None])
    target.write(batch(part))
    rows = SnapshotRows(
        relation=PEOPLE, rows=[("1", "a", "n"), ("2", "b", None)], ts=part.commit_ts + 5,
        lsn=None, xid=None, kind="incremental",
    )  # fmt: skip
    target.write(Batch(parts=[rows], position=Position(part.end_lsn), events=2))
    found = [(row[0], row[3], row[4], row[-1]) for row in reported(place, PEOPLE)]
    lsn, end = str(part.commit_lsn), str(part.end_lsn)
    assert found == [("1", "c", lsn, "False"), ("1", "r", end, "True"), ("2", "r", end, "True")]


def test_a_history_follows_the_columns_of_its_table(place):
    before = relation("public.t", [("id", "int4"), ("a", "text")], numbers=[1, 2], oid=77)
    after = relation(
        "public.t", [("id", "int4"), ("b", "text"), ("c", "int8")], numbers=[1, 2, 3], oid=77
    )
    source, target = Model(), place.opened(history_mode="beside")
    target.write(batch(source.inserted(before, ["1", "x"])))
    source.rows["public.t"] = [("1", "x", None)]
    source.update(after, ["1"], c="7", unsent=["b"])
    target.write(batch(source.commit()))
    assert place.rows("t", "id", "b", "c") == [("1", "x", "7")]
    assert place.rows("t_history", "id", "b", "c", "_op") == [
        ("1", "x", "7", "u"),
        ("1", "x", None, "c"),
    ]


def test_a_key_of_an_extensions_type_finds_its_unsent_values(postgres):
    postgres.execute("CREATE EXTENSION ltree")
    ((oid,),) = postgres.execute("SELECT 'ltree'::regtype::oid::int")
    kind = DataType(oid=oid, schema="public", name="ltree")
    plain = relation("public.t", [("id", "text"), ("a", "text"), ("b", "text")])
    key = msgspec.structs.replace(plain.columns[0], type_oid=oid, data_type=kind, type_text="ltree")
    table = msgspec.structs.replace(plain, columns=(key, *plain.columns[1:]))
    source = Model()
    first = source.inserted(table, ["x.y", "1", "long"])
    source.update(table, ["x.y"], a="2", unsent=["b"])
    postgres.deliver(first, source.commit(), history_mode="beside")
    assert postgres.rows("t_history", "a", "b") == [("1", "long"), ("2", "long")]


def test_names_that_are_taken_are_reported(file):
    odd = relation("public.odd", [("id", "int4"), ("_op", "text")])
    source, target = Model(), file.opened(history_mode="beside")
    source.insert(odd, ["1", "x"])
    with pytest.raises(SqlOwnColumnTaken, match=r"history\.column\.prefix"):
        target.write(batch(source.commit()))
    target.close()
    target = file.opened(history_mode="beside", history_column_prefix="h_")
    target.write(batch(source.inserted(odd, ["2", "y"])))
    assert file.rows("odd_history", "id", "_op", "h_op") == [("2", "y", "c")]
    alike = relation("public.odd_history", [("id", "int4")])
    source.insert(alike, ["1"])
    source.insert(odd, ["3", "z"])
    with pytest.raises(SqlNameTaken, match="odd_history"):
        target.write(batch(source.commit()))
    target.close()
    long = relation("public." + "n" * 63, [("id", "int4")])
    file.deliver(source.inserted(long, ["1"]), history_mode="beside")
    ((name,),) = file.execute("SELECT name FROM sqlite_master WHERE name LIKE 'nnn%_history'")
    assert len(name) == 63


def test_a_table_that_takes_the_name_of_another_has_its_own_history(file):
    """Names of SQLite's indexes are those of the database, and stay when a table is renamed."""
    here = relation("public.orders", [("id", "int4")])
    there = msgspec.structs.replace(here, table="orders_old")
    other = msgspec.structs.replace(relation("public.orders", [("id", "int4")]), oid=here.oid + 1)
    source = Model()
    target = file.opened(history_mode="beside")
    for number, each in enumerate((here, there, other)):
        target.write(batch(source.inserted(each, [str(number)])))
    target.flush()
    assert file.rows("orders_old_history", "id") == [("0",), ("1",)]
    assert file.rows("orders_history", "id") == [("2",)]


def test_an_insert_of_a_row_that_may_be_there_ends_its_version(place):
    """A dead letter is redelivered behind what came after it; or a delete was left out before."""
    source = Model()
    target = place.opened(tolerant=True, history_mode="beside")
    target.write(batch(source.inserted(PEOPLE, ["1", "a", None])))
    source.rows["public.people"].clear()
    target.write(batch(source.inserted(PEOPLE, ["1", "b", None])))
    target.flush()
    assert place.rows("people_history", "name", "_is_current") in (
        [("a", "false"), ("b", "true")],
        [("a", "f"), ("b", "t")],
        [("a", "0"), ("b", "1")],
    )


def test_the_index_of_a_history_is_made_where_a_crash_prevented_it(maria):
    """Table and index are two transactions of MariaDB; a new key has an index of its own."""
    indexes = (
        "SELECT group_concat(column_name ORDER BY seq_in_index) FROM information_schema.statistics"
        " WHERE table_schema = database() AND table_name = 't_history' GROUP BY index_name"
    )
    columns = [("id", "int4"), ("n", "int4"), ("s", "text")]
    source = Model()
    for key, lost in (("id", True), ("id", False), ("n", False), ("s", False), ("s,n", False)):
        table = relation("public.t", columns, key=key.split(","))
        source.insert(table, [str(source.lsn)] * 3)
        maria.deliver(source.commit(), history_mode="instead")
        assert (f"{key},_is_current",) in maria.execute(indexes)
        if lost:
            ((name,),) = maria.execute(
                "SELECT DISTINCT index_name FROM information_schema.statistics"
                " WHERE table_schema = database() AND table_name = 't_history'"
            )
            maria.execute(f"DROP INDEX {name} ON t_history")
