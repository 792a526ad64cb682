"""The state of signals beside rows of snapshots that may not be durable."""

from tests.unit.pipeline.test_delivery import ROWS, OnePosition, Rig, transactions

from waltap.changes.transactions.position import Position, Positions


def test_rows_that_are_not_durable_hold_back_requests_of_every_partition():
    sink, (one, two), asked = OnePosition(), transactions(2), {"queue": ["asked"]}
    rig = Rig("a", "b", sink=sink)
    rig.delivery.write([ROWS, one], partition="a", signals={"queue": []})
    rig.delivery.write([two], partition="b", signals=asked)
    reached = {"a": Position(one.end_lsn), "b": Position(two.end_lsn)}
    for durable, stored in (({"b": reached["b"]}, {}), (reached, reached)):
        sink.flush = lambda durable=durable: Positions(durable)
        assert rig.delivery.flush() == stored
    assert rig.store.load().signals == asked


def test_rows_at_the_stored_position_count_for_a_sink_that_promises_nothing():
    sink = OnePosition()
    sink.flush = lambda: None
    rig = Rig(sink=sink)
    rig.delivery.write([ROWS], signals={"queue": ["next"]})
    rig.delivery.flush()
    assert rig.store.load().signals == {"queue": ["next"]}
