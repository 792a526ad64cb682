"""Several sinks of one pipeline: each gets everything once, whatever the others do."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.harness.changelog import logged_ids
from tests.harness.json_lines import records
from tests.harness.pipeline import Destination, PipelineRig
from tests.harness.shop import Shop

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.transaction import (
    Batch,
    SnapshotRows,
    TransactionPart,
    events_in,
)
from waltap.errors import ConfigurationError, RetryVerdict, SinkError
from waltap.pipeline.delivery.fan_out import SinkPausedTooLong
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.offsets.gaps import GapCertificates
from waltap.ports.sink.stored_position import DestinationBehind
from waltap.ports.specs import TransformSpec


class Unwell(SinkError):
    code = "WT-5901"


class Shaken(SinkError):
    code = "WT-5902"
    retry = RetryVerdict.SAME_BATCH


@pytest.fixture
def pipeline(database, tmp_path) -> PipelineRig:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made = PipelineRig(database, tmp_path)
    made.others["other"] = Destination()
    made.branches = [{"type": "kept"}, {"type": "other"}]
    return made


@pytest.fixture
def pausing(pipeline) -> PipelineRig:
    """A pipeline whose second sink may be paused, and is tried again at once."""
    pipeline.branches[1] |= {"on.failure": "pause", "pause.retry.ms": 100}
    return pipeline


def raising(error: SinkError) -> Callable[..., None]:
    """Return what raises ``error`` whatever it is given."""

    def fail(*_arguments: object) -> None:
        raise error

    return fail


def both(pipeline: PipelineRig) -> Iterator[Destination]:
    yield pipeline.destination
    yield pipeline.others["other"]


def test_each_sink_has_its_filter_format_and_place(database, tmp_path):
    database.psql(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1)"
    )
    pipeline = PipelineRig(database, tmp_path)
    pipeline.branches = [
        {"name": "lake", "type": "changelog", "path": str(tmp_path / "lake")},
        {
            "name": "some",
            "type": "jsonl",
            "path": str(tmp_path / "some.jsonl"),
            "transforms": [{"type": "filter", "tables": "public.b"}],
        },
        {
            "name": "schemas",
            "type": "jsonl",
            "path": str(tmp_path / "all.jsonl"),
            "format": {"type": "json", "value.converter.schemas.enable": True},
        },
    ]
    pipeline.catch_up()
    database.psql("INSERT INTO a VALUES (2, 'y'); INSERT INTO b VALUES (2)")
    pipeline.catch_up()
    some, every = records(tmp_path / "some.jsonl"), records(tmp_path / "all.jsonl")
    assert {each["value"]["source"]["table"] for each in some} == {"a"}
    assert [each["value"]["payload"]["source"]["table"] for each in every] == ["a", "b", "a", "b"]
    assert [each["value"]["after"]["id"] for each in some] == [1, 2]
    assert [logged_ids(tmp_path / "lake", table) for table in "ab"] == [[1, 2]] * 2


class InPlace:
    """A transform that changes the parts that it is given."""

    @hookimpl
    def register_transforms(self):
        return [TransformSpec(name="marks", summary="s", factory=lambda _properties: self.mark)]

    @staticmethod
    def mark(batch: Batch) -> Batch:
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                part.rows = [(row[0], f"{row[1]}!") for row in part.rows]
            elif isinstance(part, TransactionPart):
                part.changes[:] = [
                    msgspec.structs.replace(change, new=(change.new[0], f"{change.new[1]}!"))
                    for change in part.changes
                    if isinstance(change, Insert)
                ]
        batch.events = events_in(batch.parts)
        return batch


def test_a_transform_that_works_in_place_works_once_for_each_sink(pipeline):
    pipeline.database.psql(
        "CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'a')"
    )
    pipeline.tables["transforms"] = [{"type": "marks"}]
    for statement in ("", "INSERT INTO u VALUES (2, 'b'); UPDATE u SET v = 'c' WHERE id = 2"):
        with pipeline.running(InPlace()) as run:
            pipeline.database.psql(statement or "SELECT 1")
            count = 2 if statement else 1
            run.until(lambda n=count: all(len(d.of("u")) == n for d in both(pipeline)), "the rows")
    for destination in both(pipeline):
        assert [event.row["v"] for event in destination.of("u")] == ["a!", "b!"]


def test_what_one_sink_refuses_the_other_has_once(pipeline):
    """The first has the batch when the second fails; it is not given to the first again."""
    other, fails = pipeline.others["other"], [Shaken("no"), Shaken("no")]
    pipeline.catch_up()

    def refuse(_batch: object) -> None:
        if fails:
            raise fails.pop()

    other.before_write = refuse
    with pipeline.running() as run:
        pipeline.database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: other.ids("t") == [1], "the third try")
    for destination in both(pipeline):
        assert destination.ids("t") == [1]


def test_within_a_large_transaction_the_faster_sink_leaves_out_what_it_has(pipeline):
    """The second fails in the middle: the pipeline's position is its position, the first is ahead."""
    other, database = pipeline.others["other"], pipeline.database
    pipeline.catch_up()
    batches: list[object] = []

    def fail_third(batch: object) -> None:
        batches.append(batch)
        if len(batches) == 3:
            raise Unwell("no")

    other.before_write = fail_third
    with pytest.raises(Unwell), pipeline.running(**{"max.batch.size": 10}) as run:
        database.execute("INSERT INTO t SELECT generate_series(1, 100)")
        run.join()
    other.before_write = lambda _batch: None
    database.execute("INSERT INTO t VALUES (101)")
    pipeline.catch_up(**{"max.batch.size": 7})
    for destination in both(pipeline):
        assert destination.ids("t") == [*range(1, 102)]


def test_a_paused_sink_gets_what_it_missed_and_the_others_nothing_twice(pausing):
    other, database = pausing.others["other"], pausing.database
    pausing.catch_up()
    broken = [True]

    def fail(*_arguments: object) -> None:
        if broken:
            raise Unwell("no")

    other.before_write = other.before_open = fail
    with pausing.running() as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.until(lambda: pausing.destination.ids("t") == [1], "the first sink")
        database.execute("INSERT INTO t VALUES (2)")
        run.until(lambda: pausing.destination.ids("t") == [1, 2], "the first sink again")
        confirmed = pausing.slot_lsns()[0]
        assert other.ids("t") == []
        broken.clear()
        run.until(lambda: other.ids("t") == [1, 2], "the return of the second")
        run.until(lambda: pausing.slot_lsns()[0] > confirmed, "what it has is confirmed")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: other.ids("t") == [1, 2, 3], "both")
        broken.append(True)
        database.execute("INSERT INTO t VALUES (4)")
        run.until(lambda: pausing.destination.ids("t") == [1, 2, 3, 4], "the first sink alone")
    broken.clear()
    pausing.catch_up()  # what it lacks is held over a restart
    for destination in both(pausing):
        assert destination.ids("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("step", ["before_open", "before_write", "before_flush"])
def test_a_sink_that_lost_something_is_not_paused(pausing, step):
    other, database = pausing.others["other"], pausing.database
    pausing.catch_up()
    setattr(other, step, raising(DestinationBehind("it was emptied", replay="")))
    with pytest.raises(DestinationBehind), pausing.running(ready=False) as run:
        database.execute("INSERT INTO t VALUES (1)")
        run.join()
    (gap,) = GapCertificates(pausing.offset_file.parent).open()
    assert gap.code == DestinationBehind.code


def test_a_pause_ends_the_pipeline_when_the_server_keeps_too_much(pausing):
    other, database = pausing.others["other"], pausing.database
    pausing.branches[1] |= {"pause.max.bytes": 1000, "pause.retry.ms": 3_600_000}
    pausing.catch_up()
    other.before_write = raising(Unwell("the disk is away"))
    with pytest.raises(SinkPausedTooLong, match=r"other.*the disk is away"):
        with pausing.running() as run:
            database.execute("INSERT INTO t SELECT generate_series(1, 1000)")
            run.join()
    other.before_write = lambda _batch: None
    pausing.catch_up()
    for destination in both(pausing):
        assert destination.ids("t") == [*range(1, 1001)]


def test_a_failure_in_the_snapshot_stops_whatever_the_policy(pausing):
    other, database = pausing.others["other"], pausing.database
    database.execute("INSERT INTO t VALUES (1)")
    other.before_write = raising(Unwell("no"))
    with pytest.raises(Unwell):
        pausing.catch_up()
    other.before_write = lambda _batch: None
    pausing.catch_up()
    assert other.table("t") == pausing.destination.table("t")
    assert len(other.table("t")) == 1


@pytest.mark.parametrize(
    ("branches", "named"),
    [
        ([{"type": "kept"}, {"type": "kept"}], "two of them are called kept"),
        ([{"type": "kept", "on.failure": "ignore"}], "on.failure"),
        ([{"path": "x"}], "type"),
        ([{"type": "jsonl", "pth": "x", "path": "x"}], "pth"),
        (
            [{"name": name, "type": "jsonl", "path": "same.jsonl"} for name in ("a", "b")],
            "two of them write to .*same.jsonl",
        ),
    ],
)
def test_mistakes_are_reported_by_their_place(pipeline, branches, named):
    pipeline.branches = branches
    host, _ = pipeline.host()
    with pytest.raises(ConfigurationError, match=named):
        pipeline.profile(host)


def test_doctor_and_explain_look_at_every_sink(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (tmp_path / "folder").write_text("in the way")
    shop = Shop(tmp_path, database)
    shop.sinks = [
        {"name": "first", "type": "null"},
        {"name": "second", "type": "jsonl", "path": "folder/x.jsonl"},
    ]
    shop.variables = {"COLUMNS": "200"}
    assert "folder/x.jsonl" in shop.says("doctor FILE", code=1)
    explained = shop.says("explain FILE")
    assert "first, second" in explained
    assert "sinks[second].path" in explained
    assert "No sink is given" not in explained
