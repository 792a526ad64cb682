"""Conformance tests for snapshot modes.

Subclass `SnapshotterSuite` and define the fixture ``rig``:

    class TestMyMode(SnapshotterSuite):
        @pytest.fixture
        def rig(self):
            return SnapshotterRig(MY_SPEC, table=MY_TABLE)

``MY_TABLE`` is a text with a heading and one line for each of eight states:

    offset  incomplete  available   snapshot  stream
    no      no          yes         yes       yes
    …
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import pytest

from waltap.changes.decode.relation import Column, Relation
from waltap.changes.transactions.position import Position
from waltap.errors import SnapshotError
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.snapshot.snapshotter import ISOLATIONS, SnapshotFacts, SnapshotStart, Snapshotter
from waltap.ports.source.slot_status import SlotStatus
from waltap.ports.specs import SnapshotterSpec
from waltap_testing.suite import RigSuite

# The eight states; a mode must have an answer for each.
EVERYTHING = tuple(
    SnapshotFacts(offset=offset, snapshot_incomplete=incomplete, position_available=available)
    for offset, incomplete, available in product((False, True), repeat=3)
)
WORDS = {"yes": True, "no": False}
OIDS_END = 1 << 32


@dataclass(frozen=True, slots=True)
class SnapshotterRig:
    """The snapshot mode under test, with its truth table."""

    spec: SnapshotterSpec
    # A heading, then one line for each of the eight states of `SnapshotFacts` (offset, incomplete,
    # available: yes or no) with the mode's decision: snapshot and stream, yes or no. "refused" in
    # place of snapshot means that the mode raises SnapshotError.
    table: str
    properties: object = None
    # More tables that the mode decides about; the suite asks about each of them with its own and with
    # an unusual name, and about two of its own.
    relations: tuple[Relation, ...] = ()
    # The source's answers to the mode's queries (`SnapshotStart.query`); by default no rows.
    answers: Callable[[str, tuple[object, ...]], list[tuple[object, ...]]] | None = None

    def build(self) -> Snapshotter:
        return self.spec.factory(self.properties)

    def tables(self) -> tuple[Relation, ...]:
        odd = _relation("My Shop", 'Dots."Quotes"', "Id", "a b")
        named = [
            msgspec.structs.replace(each, schema=odd.schema, table=odd.table)
            for each in self.relations
        ]
        own = _relation("public", "orders", "id", "total"), odd, *named
        # A mode may know tables by their OIDs.
        numbered = (
            msgspec.structs.replace(each, oid=OIDS_END - n) for n, each in enumerate(own, 1)
        )
        return (*self.relations, *numbered)

    def starts(self) -> Iterator[SnapshotStart]:
        """Return the starts that read tables.

        They are with and without a slot, with an exported snapshot, and resumed.
        """
        for known, stored in product(EVERYTHING, (False, True)):
            # No snapshot is taken in these states, so the mode is not asked about tables.
            if _answer(self.build(), known) in {"refused", (False, True), (False, False)}:
                continue
            slot = SlotStatus(
                name="s",
                decoder="pgoutput",
                reader=None,
                restart_lsn=16,
                confirmed_lsn=32,
                server_lsn=64,
            )
            position = PartitionOffset(
                position=Position(32),
                slot="s",
                database="d",
                system_id="1",
                timeline=1,
                decoder="pgoutput",
            )
            yield SnapshotStart(
                known=known,
                offset=Offset.of(position) if known.offset else None,
                slot=slot if stored else None,
                exported=not stored,
                resumes=known.snapshot_incomplete and stored,
                query=self.ask,
            )

    def ask(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Answer a query instead of the source."""
        return [] if self.answers is None else self.answers(sql, parameters)

    def rows(self) -> dict[SnapshotFacts, tuple[str, str]]:
        """Return the parsed truth table."""
        found: dict[SnapshotFacts, tuple[str, str]] = {}
        for line in self.table.strip().splitlines()[1:]:
            offset, incomplete, available, snapshot, stream = line.split()
            known = SnapshotFacts(
                offset=WORDS[offset],
                snapshot_incomplete=WORDS[incomplete],
                position_available=WORDS[available],
            )
            found[known] = (snapshot, stream)
        return found


class SnapshotterSuite(RigSuite):
    """Rules for every snapshot mode."""

    needs = "a SnapshotterRig"

    def test_the_truth_table_is_total(self, rig: SnapshotterRig) -> None:
        assert set(rig.rows()) == set(EVERYTHING)
        assert len(rig.table.strip().splitlines()) == 1 + len(EVERYTHING)

    def test_it_does_what_its_table_says(self, rig: SnapshotterRig) -> None:
        """The mode snapshots, streams or refuses as its table says."""
        for known, (snapshot, stream) in rig.rows().items():
            found = _answer(rig.build(), known)
            if snapshot == "refused":
                assert found == "refused", known
            else:
                assert found == (WORDS[snapshot], WORDS[stream]), known

    def test_every_answer_is_a_bool_or_a_snapshot_error(self, rig: SnapshotterRig) -> None:
        """Also on a reconnection, and whether an interrupted snapshot resumes."""
        for known, reconnects in product(EVERYTHING, (False, True)):
            state = replace(known, reconnects=reconnects)
            answer = _answer(rig.build(), state)
            assert answer == "refused" or all(isinstance(part, bool) for part in answer), state
            if state.snapshot_incomplete and answer[0] is True:
                assert isinstance(rig.build().resumes(state), bool), state
        assert isinstance(rig.build().recovers_lost_position(), bool)

    def test_answers_do_not_depend_on_what_was_asked_before(self, rig: SnapshotterRig) -> None:
        """The same state has the same answer, in any order, from any object."""
        one = rig.build()
        first = [_answer(one, known) for known in EVERYTHING]
        again = [_answer(one, known) for known in reversed(EVERYTHING)]
        assert list(reversed(again)) == first
        assert [_answer(rig.build(), known) for known in EVERYTHING] == first

    def test_recovery_of_a_lost_position_is_a_snapshot(self, rig: SnapshotterRig) -> None:
        if not rig.build().recovers_lost_position():
            pytest.skip("leaves a lost position an error")
        lost = SnapshotFacts(offset=True, snapshot_incomplete=False, position_available=False)
        assert rig.build().takes_snapshot(lost)

    def test_an_interrupted_snapshot_is_not_passed_over(self, rig: SnapshotterRig) -> None:
        """An interrupted snapshot is repeated or refused.

        Rows that were never read would otherwise be missing silently.
        """
        for known in EVERYTHING:
            if known.offset and known.snapshot_incomplete:
                answer = _answer(rig.build(), known)
                assert answer == "refused" or answer[0] is True, known

    def test_every_table_is_read_or_not(self, rig: SnapshotterRig) -> None:
        """`reads` returns the same bool each time it is asked."""
        for start in rig.starts():
            mode = rig.build()
            found = [[mode.reads(table, start) for table in rig.tables()] for _ in range(2)]
            assert all(isinstance(answer, bool) for answer in found[0]), start
            assert found[0] == found[1], start

    def test_a_table_is_read_by_one_select(self, rig: SnapshotterRig) -> None:
        """`query` returns None, or always the same statement that returns rows."""
        for mode, start, table in _questions(rig):
            statement = mode.query(table, start)
            assert statement == mode.query(table, start), f"{table.name}: another SELECT"
            assert statement is None or isinstance(statement, str), table.name
            if statement is not None and statement.strip():
                words = statement.strip().rstrip(";").split()
                assert words[0].upper() in {"SELECT", "WITH", "TABLE", "VALUES"}, statement
                _assert_statement_of(statement, table)

    def test_a_lock_is_a_statement(self, rig: SnapshotterRig) -> None:
        """`lock` returns None, or a LOCK that snapshots may take."""
        for mode, start, table in _questions(rig):
            statement = mode.lock(table, start)
            assert statement == mode.lock(table, start), f"{table.name}: another lock"
            assert statement is None or (isinstance(statement, str) and statement.strip())
            if statement is not None:
                locks = LOCK.fullmatch(statement.strip())
                assert locks, f"no LOCK in a mode below ACCESS EXCLUSIVE: {statement}"
                _assert_statement_of(statement, table)

    def test_an_isolation_is_one_that_there_is(self, rig: SnapshotterRig) -> None:
        """`isolation` returns None or one of PostgreSQL's four levels."""
        for start in rig.starts():
            assert rig.build().isolation(start) in {None, *ISOLATIONS}

    def test_a_snapshot_begins_and_is_over(self, rig: SnapshotterRig) -> None:
        """`before` and `after` accept every start, several times.

        Also tables of a snapshot that was interrupted before it began.
        """
        for start, completed in product(rig.starts(), (False, True)):
            mode = rig.build()
            for _ in range(2):
                try:
                    read = [table for table in rig.tables() if mode.reads(table, start)]
                    mode.before(read, start)
                except SnapshotError:
                    continue
                mode.after(start, completed=completed)


def _questions(rig: SnapshotterRig) -> Iterator[tuple[Snapshotter, SnapshotStart, Relation]]:
    """Yield one mode for all tables of a start.

    Its answer for one table must not be that for another.
    """
    for start in rig.starts():
        mode = rig.build()
        yield from ((mode, start, table) for table in rig.tables())


TEXT = re.compile(r"'(?:[^']|'')*'")
QUOTED_NAME = re.compile(r'"((?:[^"]|"")*)"')
PLAIN_NAME = re.compile("[a-z_][a-z0-9_]*")
# Without a mode it is ACCESS EXCLUSIVE, which is refused: readers would wait.
LOCK = re.compile(r"(?is)LOCK\s.*\sIN\s+(?!\s*ACCESS\s+EXCLUSIVE)[A-Z\s]+\sMODE(\s+NOWAIT)?\s*;?")


def _assert_statement_of(statement: str, table: Relation) -> None:
    """Check for one quoted statement about ``table``."""
    bare = QUOTED_NAME.sub("?", TEXT.sub("?", statement)).strip().rstrip(";")
    assert ";" not in bare, f"more than one statement: {statement}"
    assert table.table in statement.replace('""', '"'), f"not about {table.name}: {statement}"
    names = TEXT.sub("?", statement)
    quoted = {name.replace('""', '"') for name in QUOTED_NAME.findall(names)}
    for name in (table.schema, table.table, *(column.name for column in table.columns)):
        if not PLAIN_NAME.fullmatch(name) and name not in quoted:
            found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", names)
            assert not found, f"{name} needs quotes, and doubled ones in it: {statement}"


def _relation(schema: str, table: str, *columns: str) -> Relation:
    named = tuple(Column(name=name, type_oid=20, number=n) for n, name in enumerate(columns, 1))
    return Relation(oid=0, schema=schema, table=table, columns=named, primary_key=columns[:1])


def _answer(snapshotter: Snapshotter, known: SnapshotFacts) -> tuple[bool, bool] | str:
    try:
        return snapshotter.takes_snapshot(known), snapshotter.streams(known)
    except SnapshotError:
        return "refused"
