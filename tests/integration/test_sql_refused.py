"""Single changes that the target of the SQL sink refuses: they are named, and the rest goes in whole."""

from hashlib import sha256
from typing import Any

import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch
from tests.harness.sql import PEOPLE, Place

from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.ports.sink import RecordsRefused
from waltap.ports.sink.refusal import leave_out
from waltap_sinks.sql.sink import SqlSink

CHECKED = "CREATE TABLE people (id int PRIMARY KEY, name varchar(10) CHECK (name <> 'bad'), note varchar(5))"

Refusal = list[tuple[str, str]]


def opened(place: Place) -> SqlSink:
    return place.opened(tolerant=True, schema_evolution="none")


def written(target: SqlSink, given: Batch) -> Refusal:
    """Write as the engine does; return (id, code) of what was refused, in order."""
    refused: Refusal = []
    while True:
        try:
            target.write(given)
        except RecordsRefused as error:
            refused += [(identifier(each), each.error.code) for each in error.refused]
            leave_out(given, error.refused)
        else:
            return refused


def identifier(refused: Any) -> str:
    if refused.rows is not None:
        return str(refused.rows.rows[refused.index][0])
    change = refused.change
    return str((change.new if hasattr(change, "new") else change.old)[0])


def rows(*values: tuple[int, str, str]) -> list[list[str | None]]:
    return [[str(number), name, note] for number, name, note in values]


def test_a_broken_constraint_and_a_narrow_column_cost_their_rows_alone(postgres):
    postgres.execute(CHECKED)
    source, target = Model(), opened(postgres)
    # where none may be refused, so many would be applied while the next batch is made
    every = [(n, "ok", "fits") for n in range(1, 1001)]
    every[16] = (17, "bad", "fits")
    every[120] = (121, "ok", "too long for five")
    first = source.inserted(PEOPLE, *rows(*every))
    source.update(PEOPLE, ["5"], name="bad")
    source.delete(PEOPLE, ["6"])
    second = source.commit()
    refused = written(target, batch(first, second))
    assert refused == [("17", "WT-5703"), ("121", "WT-5705"), ("5", "WT-5703")]
    assert target.flush() == Position(second.end_lsn)
    found = {row[0]: row[1] for row in postgres.rows("people", "id", "name")}
    assert set(found) == {str(n) for n in range(1, 1001)} - {"17", "121", "6"}
    assert found["5"] == "ok"


def test_rows_of_a_snapshot_are_refused_by_themselves(postgres):
    postgres.execute(CHECKED)
    postgres.execute("INSERT INTO people VALUES (1, 'old', 'old'), (99, 'old', 'old')")
    target = opened(postgres)
    refused: Refusal = []
    for first in (1, 11, 21):
        piece = SnapshotRows(
            relation=PEOPLE,
            rows=[(str(n), "bad" if n in {1, 15} else "ok", "n") for n in range(first, first + 10)],
            ts=0,
            lsn=5,
            xid=None,
            opens=first == 1,
            complete=first == 21,
        )
        given = Batch(parts=[piece], position=Position(5), events=10, snapshot=True)
        refused += written(target, given)
    assert postgres.rows("people", "name") == [("old",), ("old",)]
    target.write(Batch(parts=[], position=Position(5), events=0, snapshot=True))
    assert refused == [("1", "WT-5703"), ("15", "WT-5703")]
    found = postgres.rows("people", "id", "name")
    assert len(found) == 28
    assert {name for _, name in found} == {"ok"}


TABLE = "CREATE TABLE people (id int PRIMARY KEY, name varchar(10), note text)"
RAISES = (
    TABLE,
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " IF NEW.name = 'bad' THEN RAISE 'no'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION f()",
    "ALTER TABLE people ENABLE ALWAYS TRIGGER t",
)
SIGNALS = (
    TABLE,
    "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW"
    " IF NEW.name = 'bad' THEN SIGNAL SQLSTATE '45000'; END IF",
)
# More than an entry of an index holds, and nothing that compresses.
WIDE = "".join(sha256(bytes([n])).hexdigest() for n in range(200))


@pytest.mark.parametrize(
    ("place", "made", "wide"),
    [
        ("file", (CHECKED,), ""),
        ("maria", (CHECKED,), ""),
        ("duck", (CHECKED,), ""),
        ("postgres", RAISES, ""),
        ("maria", SIGNALS, ""),
        ("postgres", (TABLE, "CREATE INDEX ON people (note)"), WIDE),
    ],
    indirect=["place"],
    ids=["sqlite", "mariadb", "duckdb", "trigger", "signal", "index"],
)
def test_each_target_names_what_it_refuses(place, made, wide):
    for statement in made:
        place.execute(statement)
    source, target = Model(), opened(place)
    code, bad = ("WT-5705", wide) if wide else ("WT-5703", "n")
    every = [(n, "bad", bad) if n in {3, 7} else (n, "ok", "n") for n in range(1, 11)]
    source.insert(PEOPLE, *rows(*every))
    part = source.commit()
    refused = written(target, batch(part))
    assert refused == [("3", code), ("7", code)]
    assert target.flush() == Position(part.end_lsn)
    found = [n for (n,) in place.rows("people", "id")]
    assert found == sorted(str(n) for n in range(1, 11) if n not in {3, 7})
