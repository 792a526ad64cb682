"""The change log says between which entries of a table no change is missing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from tests.harness.changelog import ALL, WrittenLog, relation

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.ports.source.connector import PublicationCompleteness

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text")])
PLACES = relation("public.places", [("id", "int4"), ("name", "text")])


class Log(WrittenLog):
    """A change log whose runs know which changes of the source are complete."""

    keys = 0

    def begin(self, completeness: PublicationCompleteness | None, **more: Any) -> Self:
        self.open(**{"has_offset": True, "gets_every_change": True, **more})
        if completeness is not None:
            self.sink.begins(completeness)
        return self

    def run(
        self, completeness: PublicationCompleteness | None = ALL, *tables: Any, **more: Any
    ) -> None:
        with self.begin(completeness, **more):
            for table in tables:
                self.row(table)

    def row(self, table: Any) -> None:
        self.keys += 1
        self.insert(table, [str(self.keys), "x"])

    def continuity(self, name: str = PEOPLE.name) -> Sequence[str]:
        return [e.continuity_id for m in self.manifests() for e in m.tables if e.name == name]


@pytest.fixture
def log(tmp_path) -> Log:
    return Log(tmp_path)


def without_people() -> CaptureRules:
    given = {"topic.prefix": "server", "table.exclude.list": "public.people"}
    return CaptureRules(CaptureProperties.model_validate(given))


HOLES: dict[str, Callable[[Log], None]] = {
    "a position is lost": lambda log: log.run(replace(ALL, continuous=False)),
    "the publication is another": lambda log: log.run(replace(ALL, others="less")),
    "nobody knows what comes": lambda log: log.run(PublicationCompleteness()),
    "something filters": lambda log: log.run(None, gets_every_change=False),
    "the table is left out": lambda log: log.run(ALL, capture=without_people()),
    "another history begins": lambda log: log.run(ALL, has_offset=False),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_run_in_which_changes_may_be_missing_ends_it_and_need_write_nothing(log, hole):
    log.run(ALL, PEOPLE)
    HOLES[hole](log)
    log.run(ALL, PEOPLE)
    log.run(ALL, PEOPLE)
    before, behind, last = log.continuity()
    assert before
    assert behind == last != ""
    assert before != behind


def test_it_begins_where_what_the_source_says_holds(log):
    """What committed before may have been published otherwise; in one flush, too."""
    parts = []
    since = log.db.lsn + 200
    for key in range(1, 9):
        parts.append(log.db.inserted(PEOPLE, [str(key), "x"]))
    with log.begin(replace(ALL, since=since)):
        log.flush(*parts)
    early, late = log.continuity()
    assert early == ""
    assert late
    log.run(replace(ALL, since=2**40), PEOPLE)
    assert log.continuity()[-1] == late, "it had begun, and goes on"


def test_a_link_that_is_made_again_ends_it_where_something_was_lost_meanwhile(log):
    with log.begin(None):
        for completeness in (ALL, ALL, replace(ALL, continuous=False)):
            log.sink.begins(completeness)
            log.row(PEOPLE)
    first, second, third = log.continuity()
    assert first == second
    assert third not in {"", first}


@pytest.mark.parametrize("at_once", [True, False])
def test_rows_of_a_blocking_snapshot_stand_between_stretches(log, at_once):
    """What was inserted between their position and the reading comes again; in one flush, too."""
    piece = SnapshotRows(relation=PEOPLE, rows=[("9", "x")], ts=0, lsn=1, xid=1, kind="blocking")
    with log.begin(ALL):
        for number in range(4):
            for table in (PEOPLE, PLACES):
                log.write(log.db.inserted(table, [str(number), "x"]))
            for _piece in range(2 if number == 1 else 0):
                position = Position(log.db.lsn)
                log.write(Batch(parts=[piece], position=position, events=1, snapshot=True))
            if not at_once:
                log.flush()
        log.flush()
    found = list(dict.fromkeys(log.continuity()))
    assert len(found) == 3, found
    assert found[1] == ""
    assert "" not in {found[0], found[2]}
    assert len(set(log.continuity(PLACES.name))) == 1


@pytest.mark.parametrize("covered", [True, False])
def test_a_table_that_a_blocking_snapshot_reads_whole_is_a_generation_of_its_own(log, covered):
    """Its rows are between the changes before and after it, also in one flush; a reading that broke off leaves
    nothing."""

    def piece(*rows: str, first: bool = False, last: bool = False) -> None:
        part = SnapshotRows(
            relation=PEOPLE, rows=[(each, "x") for each in rows], ts=0, lsn=1, xid=1,
            kind="blocking", all_rows=True, restarts=first, complete=last,
        )  # fmt: skip
        log.write(
            Batch(parts=[part], position=Position(log.db.lsn), events=1, ends_transaction=True)
        )

    def insert(number: str) -> None:
        log.write(log.db.inserted(PEOPLE, [number, "x"]))

    with log.begin(ALL if covered else None):
        insert("1")
        piece("7", first=True)
        log.flush()
        piece("8", first=True)
        piece("9", last=True)
        insert("2")
        log.flush()
        piece(first=True, last=True)
        log.flush()
    entries = [each for manifest in log.log.manifests() for each in manifest.tables]
    reported = [(each.snapshot_id is not None, each.complete, each.rows) for each in entries]
    assert reported == [(False, False, 1), (True, True, 2), (False, False, 1), (True, True, 0)]
    assert entries[1].snapshot_id != entries[3].snapshot_id
    live = log.log.rows("public", "people", skip_replaced=True)
    assert sum(each.num_rows for each in live) == 0
