"""The sink ``http`` in pipelines, with a real HTTP server: outages, and how long a service may have it wait."""

from collections.abc import Iterator

import pytest
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import PipelineRig

from waltap_sinks.http.sink import HttpUnavailable


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def pipeline(database, tmp_path, receiver) -> PipelineRig:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sink = {"sink.type": "http", "sink.url": receiver.url, "sink.retry.interval.ms": 10}
    return PipelineRig(database, tmp_path, sink | {"snapshot.mode": "no_data"})


def ids(receiver: Receiver) -> list[int]:
    return [(each["after"] or each["before"])["id"] for each in receiver.documents()]


def insert(pipeline: PipelineRig, first: int, last: int) -> None:
    pipeline.database.execute(
        "INSERT INTO t SELECT i, 'v' || i FROM generate_series(%s::int, %s::int) i", first, last
    )


def test_a_receiver_that_is_down_loses_nothing(pipeline):
    """Nothing is confirmed meanwhile; the engine goes on with the same batch."""
    with Receiver(started=False) as receiver:
        pipeline.settings |= {"sink.url": receiver.url, "sink.retry.timeout.ms": 50}
        with pipeline.running() as run:
            insert(pipeline, 1, 3)
            run.until(lambda: run.notices.failures, "a failure that is reported")
            error, retried = run.notices.failures[0]
            assert isinstance(error, HttpUnavailable)
            assert retried
            assert "token" not in str(error)
            receiver.start()
            run.until(lambda: len(receiver.taken) == 3, "the records")
        assert ids(receiver) == [1, 2, 3]


def test_what_a_service_asks_to_wait_ends_with_the_time_for_a_request(pipeline, receiver):
    pipeline.settings["sink.retry.timeout.ms"] = 50
    with pipeline.running() as run:
        receiver.answers.extend([(503, {"Retry-After": "99999999"})] * 2)
        insert(pipeline, 1, 3)
        run.until(lambda: run.notices.failures, "a failure that is reported")
        run.until(lambda: len(receiver.taken) == 3, "the records")
    assert ids(receiver) == [1, 2, 3]
