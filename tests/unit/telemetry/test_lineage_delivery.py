"""What OpenLineage is to be reported waits in bounded room, and arrives when its server is back."""

import threading
from collections.abc import Collection

import pytest
from tests.harness.pipeline import until

from waltap.changes.decode.relation import Relation
from waltap.services.telemetry.lineage import LineageEvent, LineageSender

TABLES = 50


def relation(number: int) -> Relation:
    return Relation(oid=number, schema="s", table=f"t{number}", identity="d", columns=())


class Server:
    """Takes events while it is ``there``."""

    def __init__(self, *, there: bool) -> None:
        self.there, self.refused = there, threading.Event()
        self.taken: list[tuple[str, list[str]]] = []

    def take(self, happening: LineageEvent, shapes: Collection[Relation]) -> None:
        if not self.there:
            self.refused.set()
            raise ConnectionError
        self.taken.append((happening.kind, [each.table for each in shapes]))


def change_often(delivery: LineageSender) -> None:
    """A run of ten thousand schema changes."""
    delivery.put(LineageEvent(kind="START"))
    for number in range(10_000):
        delivery.shape(relation(number % TABLES))
        delivery.put(LineageEvent(kind="RUNNING"))


def test_an_outage_takes_no_more_room_the_longer_it_lasts_and_nothing_is_lost():
    server = Server(there=False)
    with LineageSender(server.take, retry_s=0.01) as delivery:
        change_often(delivery)
        assert server.refused.wait(120)
        assert [each.kind for each in delivery.waiting] == ["START", "RUNNING"]
        server.there = True
        until(lambda: not delivery.waiting, "what waits to arrive")
        delivery.put(LineageEvent(kind="COMPLETE"))
    kinds = [kind for kind, _ in server.taken]
    assert (kinds[0], kinds[-1]) == ("START", "COMPLETE")
    named = [name for _, names in server.taken for name in names]
    assert sorted(named) == sorted(f"t{number}" for number in range(TABLES))


def test_what_never_arrived_is_counted_at_the_end(caplog):
    server = Server(there=False)
    with LineageSender(server.take) as delivery:
        change_often(delivery)
        delivery.put(LineageEvent(kind="COMPLETE"))
    assert len(delivery.waiting) == 3
    assert server.taken == []
    reported = [each.getMessage() for each in caplog.records]
    assert reported == [
        "OpenLineage: an event was not delivered, and is tried again: ConnectionError",
        "OpenLineage: 3 events of this run were not delivered",
    ]


def test_shapes_go_with_the_next_event_and_with_no_other():
    server = Server(there=True)
    with LineageSender(server.take) as delivery:
        delivery.put(LineageEvent(kind="START"))
        until(lambda: not delivery.waiting, "the start")
        delivery.put(LineageEvent(kind="RUNNING"))
        until(lambda: not delivery.waiting, "nothing to show")
        delivery.shape(relation(1))
        delivery.put(LineageEvent(kind="RUNNING"))
        until(lambda: not delivery.waiting, "the table")
        delivery.put(LineageEvent(kind="COMPLETE"))
    assert server.taken == [("START", []), ("RUNNING", ["t1"]), ("COMPLETE", [])]


@pytest.mark.parametrize("lost", [False, True])
def test_a_table_that_is_new_while_an_event_is_on_its_way_is_reported_at_once(lost):
    server, on_its_way, may_arrive = Server(there=True), threading.Event(), threading.Event()

    def send(happening: LineageEvent, shapes: Collection[Relation]) -> None:
        if not on_its_way.is_set():
            on_its_way.set()
            assert may_arrive.wait(120)
            if lost:
                raise ConnectionError
        server.take(happening, shapes)

    with LineageSender(send, retry_s=0.01) as delivery:
        delivery.shape(relation(1))
        delivery.put(LineageEvent(kind="RUNNING"))
        assert on_its_way.wait(120)
        delivery.shape(relation(2))
        for _ in range(3):
            delivery.put(LineageEvent(kind="RUNNING"))
        assert [each.kind for each in delivery.waiting] == ["RUNNING", "RUNNING"]
        may_arrive.set()
        until(lambda: not delivery.waiting, "what waits to arrive")
    reported = [("RUNNING", ["t1", "t2"])] if lost else [("RUNNING", ["t1"]), ("RUNNING", ["t2"])]
    assert server.taken == reported
