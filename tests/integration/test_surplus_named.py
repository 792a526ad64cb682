"""Rows that only the destination has: all are named in a file, with SQL that removes them."""

import stat
from pathlib import Path

import pytest
from tests.integration.test_verify import Destination, destination, postgres

__all__ = ["destination", "postgres"]

KEYS = ["it''s", r"back\slash", "line\nend", "ü😀", "-- no; comment", "g", "h", "i", "j", "k", "l"]


@pytest.mark.parametrize("destination", ["postgres", "file", "maria", "duck"], indirect=True)
def test_the_file_names_all_and_its_sql_removes_them(
    destination: Destination, tmp_path: Path
) -> None:
    for number, key in enumerate(KEYS):
        destination.database.execute(f"INSERT INTO pairs VALUES ({1000 + number}, '{key}', 1)")
    destination.pipeline.catch_up()
    destination.database.execute("SELECT pg_drop_replication_slot(%s)", destination.pipeline.slot)
    destination.database.execute("DELETE FROM pairs WHERE a >= 1000")
    code, output = destination.verify()
    assert code == 1
    assert f"all {len(KEYS)} rows of public.pairs that only the target has" in output
    (place,) = tmp_path.rglob("differences/*.sql")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    text = place.read_text()
    assert text.count("DELETE FROM") == len(KEYS)
    first, _, statements = text.partition("\n")
    assert first.startswith(f"-- {len(KEYS)} rows of public.pairs")
    for statement in filter(None, statements.split(";\n")):
        destination.spoil(statement)
    code, output = destination.verify()
    assert code == 0, output
    assert not list(tmp_path.rglob("differences/*"))


TYPED = {
    "boolean": ("false", "true"),
    "double precision": ("3", "1.5"),
    "real": ("3", "0.1"),
    "bytea": (r"'\x30'", r"'\x00ff27'"),
    "numeric(20,4)": ("3", "1.5000"),
    "date": ("'2024-01-01'", "'2024-02-29'"),
    "time": ("'10:00'", "'10:00:00.25'"),
    "timestamp": ("'2024-01-01 00:00'", "'2024-02-29 10:00:00.25'"),
    "timestamptz": ("'2024-01-01 00:00+00'", "'2024-02-29 10:00:00.25+02'"),
    "uuid": (
        "'00000000-0000-0000-0000-000000000003'",
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    ),
    "interval": ("'3 days'", "'1 month 2 days 00:00:01.5'"),
    "character(5)": ("'a'", "'b'"),
    "inet": ("'10.0.0.1'", "'10.0.0.0/8'"),
}
"""Types of keys: a key that stays, and one whose row goes at the source."""


@pytest.mark.parametrize("destination", ["postgres", "file", "maria", "duck"], indirect=True)
def test_the_sql_removes_the_row_with_a_key_of_any_type_and_no_other(
    destination: Destination, tmp_path: Path
) -> None:
    database = destination.database
    for number, (type_, (stays, goes)) in enumerate(TYPED.items()):
        database.psql(
            f"CREATE TABLE keyed_{number} (k {type_}, n int, PRIMARY KEY (k, n));"
            f"INSERT INTO keyed_{number} VALUES ({stays}, 1), ({goes}, 1)"
        )
    destination.pipeline.catch_up()
    database.execute("SELECT pg_drop_replication_slot(%s)", destination.pipeline.slot)
    for number, (_, goes) in enumerate(TYPED.values()):
        database.execute(f"DELETE FROM keyed_{number} WHERE k = {goes}")
    code, output = destination.verify()
    assert code == 1, output
    for place in tmp_path.rglob("differences/*.sql"):
        for statement in filter(None, place.read_text().partition("\n")[2].split(";\n")):
            destination.spoil(statement)
    code, output = destination.verify()
    assert code == 0, output
