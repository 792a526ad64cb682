"""A table that stands still goes on when somebody says how; the others never stood."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import relation
from tests.harness.spark import Rig
from tests.integration.test_spark_applier import PEOPLE
from typer.testing import CliRunner

from waltap_spark.commands import application
from waltap_spark.live import LiveTables

NUMBER = relation("public.odd", [("id", "int4"), ("v", "int4")])
TEXT = relation("public.odd", [("id", "int4"), ("v", "text")])


@pytest.fixture
def rig(spark: Any, tmp_path: Path) -> Iterator[Rig]:
    """Tables of which one stands still: a column of it has another type."""
    made = Rig(tmp_path, spark)
    made.db.insert(NUMBER, ["1", "5"])
    made.db.insert(PEOPLE, ["1", "Ann", None])
    made.commit()
    made.apply()
    for number in ("2", "3"):
        made.db.insert(TEXT, [number, "word"])
        made.db.insert(PEOPLE, [number, "x", None])
        made.commit()
        made.apply()
    yield made
    made.applier.close()
    made.sink.close()


def said(rig: Rig, *words: str) -> str:
    found = CliRunner().invoke(application, [words[0], str(rig.folder / "out"), *words[1:]])
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def resume(rig: Rig, *words: str, table: str = "public.odd") -> str:
    """Return what the command said, when it was answered."""
    told = said(rig, "resume", table, *words)
    requests = rig.folder / "out" / "_waltap" / "requests"
    limit = time.monotonic() + 60
    while list(requests.iterdir()):
        assert time.monotonic() < limit, "nobody answers"
        rig.apply()
    return told


def test_it_is_listed_with_its_mark_and_goes_on_as_text(rig: Rig) -> None:
    standing = rig.output.table("odd")
    assert standing.mark is not None
    told = said(rig, "status")
    assert f"stands still at {standing.mark}" in told
    assert "resume" in told
    resume(rig)
    assert rig.output.table("odd").failed, "a mere try finds what it found"
    assert rig.output.table("odd").mark == standing.mark
    resume(rig, "--as-text")
    rig.check(PEOPLE)
    assert rig.current(TEXT) == [("1", "5"), ("2", "word"), ("3", "word")]
    assert "does not stand still" in said(rig, "resume", "odd")
    rig.reopen()
    rig.db.insert(TEXT, ["4", "later"])
    rig.commit()
    rig.apply()
    assert rig.current(TEXT)[-1] == ("4", "later")


def test_it_is_begun_anew_and_a_snapshot_brings_the_older_rows(rig: Rig) -> None:
    told = resume(rig, "--anew")
    assert (
        "rows from before come with a new snapshot: `waltap run PROFILE --set snapshot.mode=always`"
        in told
    )
    rig.check(PEOPLE)
    assert rig.current(TEXT) == [("2", "word"), ("3", "word")]
    assert "needs a new snapshot" in said(rig, "status")
    rig.db.rows[TEXT.name] = [("1", "5"), ("2", "word"), ("3", "word")]
    for part in rig.db.snapshot(TEXT):
        rig.sink.write(part)
    rig.sink.flush()
    rig.apply()
    rig.check(PEOPLE, TEXT)
    assert rig.output.table("odd").stale == ()
    assert LiveTables(rig.spark, rig.output).changes("odd").count() == 2 + 3
