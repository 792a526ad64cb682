"""Part of the sink suite: dead letters that are delivered after all, at a position that was passed."""

from pathlib import Path

from waltap.decode.message import Insert
from waltap.format.record import Record
from waltap.sink.sink import Sink
from waltap.source.position import Position
from waltap.transactions.transaction import Batch, TransactionPart
from waltap_testing.scenarios import mixed
from waltap_testing.sink_rig import SinkRig, sole
from waltap_testing.workload import ITEMS

__all__ = ["TakesReplays"]

LETTER = "16B3-1#1"
ROW = ("900001", "900001", "a letter")


class TakesReplays:
    """What a sink does with `Batch.replays`; a base of the suite."""

    def test_a_replayed_letter_is_new_and_known_again(self, rig: SinkRig, tmp_path: Path) -> None:
        """It arrives though its position was passed; a sink that keeps letters names it when opened."""
        sink = rig.build(tmp_path)
        sink.open()
        promised: Position | None = None
        for batch in mixed(truncate=False).batches(4, records=sink.capabilities.records):
            sink.write(batch)
            promised = sole(sink.flush())
        sink.close()
        assert promised is not None
        before = len(rig.read_back())
        again = rig.build(tmp_path, resumes=True)
        held = sole(again.open()) or promised
        assert LETTER not in again.replayed()
        again.write(_letter(again, held))
        again.flush()
        again.close()
        last = rig.build(tmp_path, resumes=True)
        last.open()
        assert set(last.replayed()) <= {LETTER}
        last.close()
        assert len(rig.read_back()) == before + 1, "it is there, once"


def _letter(sink: Sink, position: Position) -> Batch:
    batch = Batch(parts=[], position=position, events=1, replays=(LETTER,))
    if sink.capabilities.records:
        batch.records = [
            Record("server.public.items", b'{"id":"900001"}', b'{"op":"c","serial":"900001"}')
        ]
        return batch
    change = Insert(ITEMS, position.end_lsn, ROW)
    part = TransactionPart(
        xid=0,
        begin_lsn=position.end_lsn,
        commit_lsn=position.end_lsn,
        commit_ts=0,
        end_lsn=position.end_lsn,
        changes=[change],
    )
    batch.parts = [part]
    return batch
