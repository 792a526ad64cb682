"""The change log says between which entries of a table no change is missing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import ALL, Database, batch, context, relation

from waltap.capture.capture import CaptureProperties, CaptureRules
from waltap.sink.sink import SinkContext
from waltap.source.completeness import PublicationCompleteness
from waltap.source.position import Position
from waltap.transactions.transaction import Batch, SnapshotRows
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
PLACES = relation("public.places", [("id", "int4"), ("name", "text")])


class Log:
    """A database, and a change log that one run after the other writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.db, self.keys = folder, Database(), 0

    def run(
        self,
        coverage: PublicationCompleteness | None = ALL,
        *tables: Any,
        resumes: bool = True,
        **more: Any,
    ) -> None:
        """Start, and deliver a transaction with a row of each table."""
        self.sink = self.opened(context(self.folder, resumes=resumes, **{"whole": True, **more}))
        if coverage is not None:
            self.sink.begins(coverage)
        for table in tables:
            self.insert(table)
        self.sink.close()

    def opened(self, place: SinkContext) -> ChangeLogSink:
        sink = ChangeLogSink(ChangeLogProperties(path=str(self.folder / "log")), place)
        sink.open()
        return sink

    def insert(self, table: Any) -> None:
        self.keys += 1
        self.db.insert(table, [str(self.keys), "x"])
        self.sink.write(batch(self.db.commit()))
        self.sink.flush()

    def stretches(self, name: str = PEOPLE.name) -> Sequence[str]:
        log = ChangeLog(str(self.folder / "log"))
        return [e.stretch for m in log.manifests() for e in m.tables if e.name == name]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def without_people() -> CaptureRules:
    given = {"topic.prefix": "server", "table.exclude.list": "public.people"}
    return CaptureRules(CaptureProperties.model_validate(given))


HOLES: dict[str, Callable[[Log], None]] = {
    "a position is lost": lambda log: log.run(replace(ALL, goes_on=False)),
    "the publication is another": lambda log: log.run(replace(ALL, others="less")),
    "nobody knows what comes": lambda log: log.run(PublicationCompleteness()),
    "something filters": lambda log: log.run(None, whole=False),
    "the table is left out": lambda log: log.run(ALL, capture=without_people()),
    "another history begins": lambda log: log.run(ALL, resumes=False),
}


def test_a_stretch_goes_on_over_starts(log: Log) -> None:
    for _run in range(3):
        log.run(ALL, PEOPLE, PLACES)
    assert len(set(log.stretches())) == 1
    assert "" not in log.stretches()


@pytest.mark.parametrize("hole", HOLES)
def test_a_run_in_which_changes_may_be_missing_ends_it_and_need_write_nothing(
    log: Log, hole: str
) -> None:
    log.run(ALL, PEOPLE)
    HOLES[hole](log)
    log.run(ALL, PEOPLE)
    log.run(ALL, PEOPLE)
    before, behind, last = log.stretches()
    assert before
    assert behind == last != ""
    assert before != behind


def test_other_tables_go_on_where_one_is_left_out(log: Log) -> None:
    log.run(ALL, PEOPLE, PLACES)
    log.run(ALL, PLACES, capture=without_people())
    log.run(ALL, PEOPLE, PLACES)
    assert len(set(log.stretches(PLACES.name))) == 1
    assert len(set(log.stretches())) == 2


@pytest.mark.parametrize(
    "said", [PublicationCompleteness(), PublicationCompleteness(tables={("public", "people"): ""})]
)
def test_nothing_is_promised_that_the_source_does_not(
    log: Log, said: PublicationCompleteness
) -> None:
    log.run(replace(said, goes_on=True), PEOPLE)
    log.run(replace(said, goes_on=True), PEOPLE)
    assert log.stretches() == ["", ""]


def test_it_begins_where_what_the_source_says_holds(log: Log) -> None:
    """What committed before may have been published otherwise; in one flush, too."""
    log.sink = log.opened(context(log.folder, resumes=True, whole=True))
    log.sink.begins(replace(ALL, since=log.db.lsn + 200))
    parts = []
    for key in range(1, 9):
        log.db.insert(PEOPLE, [str(key), "x"])
        parts.append(log.db.commit())
    log.sink.write(batch(*parts))
    log.sink.flush()
    log.sink.close()
    early, late = log.stretches()
    assert early == ""
    assert late
    log.run(replace(ALL, since=2**40), PEOPLE)
    assert log.stretches()[-1] == late, "it had begun, and goes on"


def test_a_table_that_is_made_between_starts_has_one_from_its_first_row_on(log: Log) -> None:
    log.run(ALL, PEOPLE)
    log.run(replace(ALL, since=2**40), PLACES)
    log.run(ALL, PLACES)
    first, second = log.stretches(PLACES.name)
    assert first == second != ""


def test_a_link_that_is_made_again_ends_it_where_something_was_lost_meanwhile(log: Log) -> None:
    log.sink = log.opened(context(log.folder, resumes=True, whole=True))
    for coverage in (ALL, ALL, replace(ALL, goes_on=False)):
        log.sink.begins(coverage)
        log.insert(PEOPLE)
    log.sink.close()
    first, second, third = log.stretches()
    assert first == second
    assert third not in {"", first}


def blocking(db: Database, table: Any) -> Batch:
    piece = SnapshotRows(relation=table, rows=[("9", "x")], ts=0, lsn=1, xid=1, kind="blocking")
    return Batch(parts=[piece], position=Position(db.lsn), events=1, snapshot=True)


@pytest.mark.parametrize("at_once", [True, False])
def test_rows_of_a_blocking_snapshot_stand_between_stretches(log: Log, at_once: bool) -> None:
    """What was inserted between their position and the reading comes again; in one flush, too."""
    log.sink = log.opened(context(log.folder, resumes=True, whole=True))
    log.sink.begins(ALL)
    for number in range(4):
        for table in (PEOPLE, PLACES):
            log.db.insert(table, [str(number), "x"])
            log.sink.write(batch(log.db.commit()))
        for _piece in range(2 if number == 1 else 0):
            log.sink.write(blocking(log.db, PEOPLE))
        if not at_once:
            log.sink.flush()
    log.sink.flush()
    log.sink.close()
    found = list(dict.fromkeys(log.stretches()))
    assert len(found) == 3, found
    assert found[1] == ""
    assert "" not in {found[0], found[2]}
    assert len(set(log.stretches(PLACES.name))) == 1
