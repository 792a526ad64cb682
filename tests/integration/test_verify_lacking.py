"""`waltap verify` is not quiet about captured tables that the destination lacks."""

import contextlib
import threading
from collections.abc import Iterator

import pytest
from tests.harness.servers.postgres import Database
from tests.integration.test_verify import Destination, destination, postgres

from waltap.errors import SourceError

__all__ = ["destination", "postgres"]

LATER = """
CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1), (2);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY); INSERT INTO other.t VALUES (1);
CREATE TEMP TABLE passing (id int); INSERT INTO passing VALUES (1);
CREATE UNLOGGED TABLE unlogged (id int); INSERT INTO unlogged VALUES (1);
"""


def test_a_captured_table_with_rows_that_the_destination_never_saw_is_a_difference(
    destination: Destination,
) -> None:
    destination.pipeline.catch_up()
    destination.database.execute(LATER)
    code, output = destination.verify()
    assert code == 1, output
    assert output.count("DIFFERENT") == 1
    assert "public.later 2 0 DIFFERENT" in output
    assert "has no such table" in output
    assert "--without public.later" in output
    for name in ("public.empty", "other.t", "passing", "unlogged"):
        assert name not in output, "it has no rows, or is not captured"
    code, output = destination.verify("--without", "public.later")
    assert code == 0, output
    assert "public.later" not in output
    assert destination.verify("--table", "public.later")[0] == 1
    assert destination.verify("--table", "public.empty")[0] == 0
    code, output = destination.verify("--table", "public.pairs")
    assert (code, "public.later" in output) == (0, False)
    code, output = destination.verify("--table", "other.t")
    assert code == 1
    assert "other.t is not in" in output


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_tables_of_which_no_snapshot_was_taken_are_a_difference(destination: Destination) -> None:
    settings = {"snapshot.mode": "no_data", "signal.data.collection": "public.signals"}
    destination.database.execute(
        "CREATE TABLE signals (id varchar(42) PRIMARY KEY, type varchar(32), data varchar(2048));"
        " INSERT INTO signals VALUES ('1', 'log', '{}')"
    )
    destination.settings |= settings
    destination.pipeline.settings |= settings
    destination.pipeline.catch_up()
    destination.database.execute("UPDATE bag SET b = b")
    destination.pipeline.catch_up()
    code, output = destination.verify()
    assert code == 1
    for told in ("public.kinds 3 0", "public.pairs 300 0"):
        assert told in output
    assert "public.signals" not in output
    without = ("--without", "public.kinds", "--without", "public.pairs")
    code, output = destination.verify(*without, "--without", "public.bag")
    assert (code, "DIFFERENT" in output) == (1, False)
    assert "no table of this pipeline is in" in output, "nothing is left to compare"


@pytest.mark.parametrize("destination", ["postgres", "file"], indirect=True)
def test_a_table_whose_first_rows_are_on_their_way_is_waited_for(destination: Destination) -> None:
    destination.database.execute("CREATE TABLE empty (id int PRIMARY KEY)")
    destination.pipeline.catch_up()
    destination.database.execute("INSERT INTO empty VALUES (1)")
    code, output = destination.verify(patience=0.3)
    assert code == 5, output
    assert "public.empty" in output
    later = threading.Timer(0.5, destination.pipeline.catch_up)
    later.start()
    code, output = destination.verify(patience=120.0)
    later.join()
    assert code == 0, output
    assert "public.empty 1 1" in output


PARTS = """
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE part_b PARTITION OF parts FOR VALUES FROM (10) TO (20);
CREATE TABLE part_c PARTITION OF parts FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id);
CREATE TABLE part_d PARTITION OF part_c FOR VALUES FROM (20) TO (30);
INSERT INTO parts VALUES (1), (11), (21);
"""


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
@pytest.mark.parametrize("whole", [True, False], ids=["via root", "by partition"])
def test_rows_of_partitions_are_there_under_the_name_that_they_are_sent_by(
    destination: Destination, *, whole: bool
) -> None:
    settings = {"publish.via.partition.root": str(whole).lower()}
    destination.settings |= settings
    destination.pipeline.settings |= settings
    destination.database.execute(PARTS)
    destination.pipeline.catch_up()
    code, output = destination.verify()
    assert code == 0, output
    assert ("public.parts " in output) is whole
    assert ("public.part_d " in output) is not whole
    destination.database.execute(PARTS.replace("part", "piece"))
    code, output = destination.verify()
    assert code == 1
    told = ["public.pieces 3 0"] if whole else [f"public.piece_{n} 1 0" for n in "abd"]
    assert all(each in output for each in told), output
    assert output.count("DIFFERENT") == len(told)


@contextlib.contextmanager
def role(database: Database, *tables: str) -> Iterator[str]:
    """Make a role that may read ``tables`` alone; give how to connect as it."""
    name = f"narrow_{database.name}"[:63]
    database.execute(f'CREATE ROLE "{name}"; GRANT SELECT ON {", ".join(tables)} TO "{name}"')
    try:
        yield f"{database.dsn}?options=-c%20role%3D{name}"
    finally:
        database.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


@pytest.mark.parametrize("destination", ["file"], indirect=True)
def test_what_may_be_missing_on_purpose_or_may_not_be_read_is_told_and_does_not_count(
    destination: Destination,
) -> None:
    destination.pipeline.catch_up()
    destination.database.execute(LATER)
    with role(destination.database, "kinds", "bag", "pairs") as dsn:
        code, output = destination.verify("--dsn", dsn)
    assert code == 0, output
    assert "public.later" in output
    assert "may not read" in output
    destination.transforms = ["[[transforms]]", 'type = "filter"', 'tables = "public.later"']
    code, output = destination.verify()
    assert code == 0, output
    assert "public.later" in output
    assert "not compared" in output
    assert "DIFFERENT" not in output


@pytest.mark.parametrize("destination", ["changelog"], indirect=True)
def test_a_captured_table_that_the_role_may_not_read_is_told_with_a_code(
    destination: Destination,
) -> None:
    destination.pipeline.catch_up()
    denied = pytest.raises(SourceError, match="permission denied for table pairs")
    with role(destination.database, "kinds", "bag") as dsn, denied as refused:
        destination.verify("--dsn", dsn, refused=SourceError)
    assert str(refused.value).startswith("WT-2000")
