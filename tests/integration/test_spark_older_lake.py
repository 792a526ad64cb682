"""A lake whose commits are all whole, as they were before they said what differs, goes on as it is.

``whole-commits.tar.gz`` was written by that version: a change log of twelve transactions and the tables
after eleven, with folded and merged sets, what commits dropped, and a table that stands still.
"""

import tarfile
from pathlib import Path
from typing import Any

from waltap_sinks.changelog import ChangeLog
from waltap_spark.applier import ApplyOptions, OutputApplier
from waltap_spark.live import LiveTables
from waltap_spark.modes import ModeRules
from waltap_spark.output import SparkOutput
from waltap_spark.resume_requests import ResumeRequests
from waltap_spark.session import prepare

LAKE = Path(__file__).parents[1] / "golden" / "lakes" / "whole-commits.tar.gz"
PEOPLE = sorted((n, f"n{n}" if n == 12 else "changed", "x") for n in range(1, 13) if n != 3)


def test_it_is_read_and_goes_on(spark: Any, tmp_path: Path) -> None:
    with tarfile.open(LAKE) as archive:
        archive.extractall(tmp_path, filter="data")
    session, output = prepare(spark), SparkOutput(str(tmp_path / "out"))

    def rows(name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in LiveTables(session, output).current(name).collect())

    assert len(rows("people")) == 10, "before its twelfth transaction"
    assert output.table("odd").failed
    log = ChangeLog(str(tmp_path / "log"))
    options = ApplyOptions(
        fold_rows=0, merge_sets=2, grace_s=0.0, modes=ModeRules(modes=("public[.]past:scd2",))
    )
    applier = OutputApplier(session, log, output, options)
    before = applier.open()
    assert before.version == 2
    assert before.garbage, "as the older version kept it"
    ResumeRequests(output).ask(output.table("odd"), "text")
    applier.apply(list(log.manifests(before.mark)))
    applier.maintain()
    for _each in ("as it is", "opened again"):
        assert rows("people") == PEOPLE
        assert rows("odd") == [(1, "5"), (2, "word")]
        tables = LiveTables(session, output)
        versions = tables.current("past").select("id", "name", "_current").collect()
        assert sorted(row["id"] for row in versions if row["_current"]) == list(range(1, 13))
        assert sum(row["name"] == "first" for row in versions) == 12
        assert len(versions) == 12 + 11
        assert tables.changes("people").count() == 12 + 11 + 1
        applier.close()
        applier = OutputApplier(session, log, output, options)
        applier.open()
    state = applier.state
    applier.close()
    assert state.garbage == {}
    there = {
        str(path.relative_to(tmp_path / "out"))
        for path in (tmp_path / "out").glob("tables/*/*/*/*")
    }
    named = {path for table in state.tables.values() for path in table.paths()}
    assert there == named | output.garbage.paths()
