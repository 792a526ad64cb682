"""A plugin's snapshot mode decides per table how an initial snapshot reads it, on a real server."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database, queries

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import Batch
from waltap.errors import SnapshotError
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.snapshot import SnapshotStart, Snapshotter
from waltap.ports.specs import SnapshotterSpec
from waltap_postgres.errors import (
    SnapshotLockRefused,
    SnapshotModeUnclear,
    SnapshotReadFailed,
)

MODE = {"snapshot.mode": "custom", "snapshot.mode.custom.name": "mine"}


class Mine(Snapshotter):
    """As ``initial``, but for its ``answers`` to questions; keeps what it was asked."""

    def __init__(self, database: Database, **answers: Callable[..., object]) -> None:
        self.database = database
        for question, answer in answers.items():
            setattr(self, question, answer)
        self.heard: list[tuple[Any, ...]] = []
        self.starts: list[SnapshotStart] = []

    def before(self, relations: Sequence[Relation], start: SnapshotStart) -> None:
        self.starts.append(start)
        self.heard.append(("before", [relation.table for relation in relations]))

    def after(self, start: SnapshotStart, *, completed: bool) -> None:
        assert start is self.starts[-1]
        self.heard.append(("after", completed))


class Plugin:
    """Contributes modes by name."""

    def __init__(self, **modes: Snapshotter) -> None:
        self.modes = modes

    @hookimpl
    def register_snapshotters(self) -> Iterable[SnapshotterSpec]:
        return [
            SnapshotterSpec(name=name, summary="A mode.", factory=lambda _, mode=mode: mode)
            for name, mode in self.modes.items()
        ]


pytestmark = pytest.mark.pipeline(
    sql="".join(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {table} SELECT g, 'v' || g FROM generate_series(1, 5) g;"
        for table in "abc"
    ),
    settings=MODE,
)
plain = pytest.mark.pipeline(settings=dict.fromkeys(MODE))
"""The mode is Debezium's ``initial``."""


def run_once(
    pipeline: PipelineRig, plugin: object, write: Callable[[], None] = lambda: None, **settings: Any
) -> None:
    """Run until what ``write`` commits while it streams has arrived."""
    with pipeline.running(plugin, **settings) as run:
        write()
        before = len(pipeline.destination.of("a"))
        pipeline.database.execute("INSERT INTO a SELECT max(id) + 1, 'end' FROM a")
        run.until(lambda: len(pipeline.destination.of("a")) > before, "the last change")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_mode_skips_tables_and_reads_others_by_its_own_select(pipeline, threads):
    selects = {"c": "SELECT v, id FROM c WHERE id > 3;"}
    mode = Mine(
        pipeline.database,
        reads=lambda relation, _start: relation.table != "b",
        query=lambda relation, _start: selects.get(relation.table),
    )
    run_once(
        pipeline,
        Plugin(mine=mode),
        lambda: pipeline.database.execute("INSERT INTO b VALUES (6, 'six')"),
        **{"snapshot.max.threads": threads},
    )
    read = pipeline.destination
    assert read.ids("a", "r") == [1, 2, 3, 4, 5]
    assert [event.row for event in read.of("b")] == [{"id": "6", "v": "six"}]
    assert [event.row for event in read.of("c")] == [{"id": "4", "v": "v4"}, {"id": "5", "v": "v5"}]
    assert mode.heard == [("before", ["a", "c"]), ("after", True)]


def test_a_mode_has_offset_slot_and_source_at_hand(pipeline):
    """At the first start there is neither; at a later one both, and a snapshot of its own."""

    def query(relation: Relation, start: SnapshotStart) -> None:
        count = "SELECT count(*) FROM pg_class WHERE relname = %s"
        assert start.query(count, (relation.table,)) == [(1,)]

    mode = Mine(pipeline.database, takes_snapshot=lambda _known: True, query=query)
    run_once(pipeline, Plugin(mine=mode))
    stored = pipeline.offset()
    assert stored is not None
    run_once(pipeline, Plugin(mine=mode))
    first, second = mode.starts
    assert (first.offset, first.slot, first.exported) == (None, None, True)
    assert second.offset == stored
    assert second.slot is not None
    assert second.slot.name == pipeline.slot
    assert second.slot.confirmed_lsn > 0
    assert not second.exported
    assert not second.resumes


def test_an_interrupted_snapshot_ends_too(pipeline):
    class Killed(BaseException):
        pass

    def die(_batch: Batch) -> None:
        raise Killed

    mode = Mine(pipeline.database)
    pipeline.destination.before_write = die
    with pytest.raises(Killed):
        pipeline.run(Plugin(mine=mode))
    assert mode.heard == [("before", ["a", "b", "c"]), ("after", False)]


def test_a_mode_that_fails_behind_its_snapshot_changes_nothing(pipeline, caplog):
    def after(_start: SnapshotStart, *, completed: bool) -> None:
        raise ValueError("behind")

    run_once(pipeline, Plugin(mine=Mine(pipeline.database, after=after)))
    assert pipeline.destination.ids("a") == [1, 2, 3, 4, 5, 6]
    assert "the snapshot mode failed behind its snapshot: ValueError: behind" in caplog.text


def test_a_mode_refuses_its_snapshot_before_a_row_is_read(pipeline):
    class TooLarge(SnapshotError):
        code = "WT-4999"
        remedy = "Read it elsewhere."

    def before(*_given: object) -> None:
        raise TooLarge("no")

    with pytest.raises(TooLarge):
        pipeline.run(Plugin(mine=Mine(pipeline.database, before=before)))
    assert pipeline.destination.events == []


LOCKS_SQL = (
    "SELECT DISTINCT c.relname::text, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
    " JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database()"
    " AND l.granted AND c.relname = ANY(%s) AND l.pid <> pg_backend_pid() ORDER BY 1, 2"
)


class Watches(Mine):
    """Sees at the beginning of the snapshot which locks are held, and how the transaction reads."""

    def before(self, relations: Sequence[Relation], start: SnapshotStart) -> None:
        super().before(relations, start)
        with contextlib.closing(self.database.connect()) as other:
            self.locks = other.execute(LOCKS_SQL.encode(), [["a", "b", "c"]]).fetchall()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", [("b", "ShareLock")]),
        ("shared", [("a", "AccessShareLock"), ("b", "ShareLock"), ("c", "AccessShareLock")]),
    ],
)
def test_a_mode_locks_tables_as_it_likes(pipeline, mode, expected):
    statements = {"b": 'LOCK TABLE "public"."b" IN SHARE MODE'}
    own = Watches(pipeline.database, lock=lambda relation, _start: statements.get(relation.table))
    run_once(pipeline, Plugin(mine=own), **{"snapshot.locking.mode": mode})
    assert own.locks == expected
    assert pipeline.destination.ids("b", "r") == [1, 2, 3, 4, 5]


def test_an_own_isolation_counts_where_the_snapshot_is_not_the_slots(pipeline):
    """A reader that sees what others commit while it reads shows it."""

    own = Mine(
        pipeline.database,
        streams=lambda _known: False,
        isolation=lambda start: None if start.exported else "read_committed",
    )

    def write(batch: Batch) -> None:
        pipeline.destination.before_write = lambda batch: None
        pipeline.database.execute("INSERT INTO c VALUES (100, 'later')")

    pipeline.destination.before_write = write
    pipeline.run(Plugin(mine=own), **{"snapshot.fetch.size": 1})
    assert pipeline.destination.ids("c") == [1, 2, 3, 4, 5, 100]


@plain
def test_queries_and_locks_may_be_those_of_other_plugins(pipeline):
    """The mode is Debezium's ``initial``; what the profile itself says of a table comes first."""

    def query(relation: Relation, _start: SnapshotStart) -> str:
        return f"SELECT id FROM {relation.table} WHERE id = 2"

    locked: list[str] = []

    def lock(relation: Relation, _start: SnapshotStart) -> str:
        locked.append(relation.table)
        return f"LOCK TABLE {relation.table} IN SHARE ROW EXCLUSIVE MODE"

    selecting, locks = Mine(pipeline.database, query=query), Mine(pipeline.database, lock=lock)
    run_once(
        pipeline,
        Plugin(queries=selecting, locks=locks),
        **{
            "snapshot.query.mode": "custom",
            "snapshot.query.mode.custom.name": "queries",
            "snapshot.locking.mode": "custom",
            "snapshot.locking.mode.custom.name": "locks",
            "snapshot.select.statement.overrides": "public.b",
            "snapshot.select.statement.overrides.public.b": "SELECT * FROM b WHERE id = 4",
        },
    )
    assert pipeline.destination.ids("a", "r") == [2]
    assert pipeline.destination.ids("b", "r") == [4]
    assert pipeline.destination.of("c")[0].row == {"id": "2", "v": None}
    assert locked == ["a", "b", "c"]


def test_a_blocking_snapshot_is_read_by_the_modes_select(pipeline):
    selects = {"c": "SELECT * FROM c WHERE id < 3"}
    mode = Mine(pipeline.database, query=lambda relation, _start: selects.get(relation.table))
    with pipeline.running(Plugin(mine=mode)) as run:
        run.engine.signal(
            "execute-snapshot", {"type": "blocking", "data-collections": ["public.c"]}
        )
        run.until(lambda: pipeline.destination.ids("c") == [1, 2, 1, 2], "the rows, twice")


@pytest.mark.parametrize(
    ("question", "answer", "error", "words"),
    [
        ("reads", None, SnapshotModeUnclear, "reads gave None for public.a"),
        ("query", 5, SnapshotModeUnclear, "query gave 5 for public.a"),
        ("lock", ["x"], SnapshotModeUnclear, "lock gave ['x'] for public.a"),
        ("isolation", "chaos", SnapshotModeUnclear, "isolation gave 'chaos'; known: serializable"),
        ("query", "SELECT nothing FROM a", SnapshotReadFailed, 'column "nothing" does not exist'),
        ("lock", "LOCK TABLE nothing", SnapshotLockRefused, 'relation "nothing" does not exist'),
        ("lock", "LOCK TABLE c", SnapshotLockRefused, "EXCLUSIVE keeps all writers away"),
    ],
)
def test_a_wrong_answer_is_reported_with_its_plugin_and_leaves_nothing(
    pipeline, question, answer, error, words
):
    streams = {"streams": lambda _known: False} if question == "isolation" else {}
    mode = Mine(pipeline.database, **{question: lambda *_: answer}, **streams)
    with pytest.raises(error) as caught:
        pipeline.run(Plugin(mine=mode))
    assert words in str(caught.value)
    assert pipeline.destination.events == []


@plain
def test_a_missing_select_of_the_profile_is_reported(pipeline, caplog):
    pipeline.settings |= {"snapshot.select.statement.overrides": "public.a"}
    run_once(pipeline, Plugin())
    assert pipeline.destination.ids("a") == [1, 2, 3, 4, 5, 6]
    name = "snapshot.select.statement.overrides.public.a"
    assert f"there is no {name}: all rows of public.a are read" in caplog.text


@plain
def test_a_lock_that_somebody_else_has_is_waited_for_so_long(pipeline):
    pipeline.settings |= {
        "snapshot.locking.mode": "shared",
        "snapshot.lock.timeout.ms": 100,
        "publication.autocreate.mode": "all_tables",
    }
    with pipeline.database.connect() as other, pipeline.database.connect() as bystander:
        bystander.execute("BEGIN; LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
        other.execute("BEGIN; LOCK TABLE b IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SnapshotLockRefused) as caught:
            pipeline.run()
        (query,) = queries(caught.value.advice())
        assert [(pid, mode) for pid, _, mode in pipeline.database.execute(query)] == [
            (other.info.backend_pid, "AccessExclusiveLock")
        ]
        other.execute("ROLLBACK")
    assert "lock timeout" in str(caught.value)
    assert "snapshot.lock.timeout.ms (100 now)" in str(caught.value)
    assert pipeline.destination.events == []
    assert pipeline.database.slots() == {}
    run_once(pipeline, Plugin())
    assert pipeline.destination.ids("b") == [1, 2, 3, 4, 5]
