"""Rows that only the destination has: all are named in a file, with SQL that removes them."""

import stat
from pathlib import Path

import pytest

from tests.integration.test_verify import Destination, destination, duck, file, maria, postgres

__all__ = ["destination", "duck", "file", "maria", "postgres"]

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
