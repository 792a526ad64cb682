"""What a sink promises of single records that its destination refuses: `waltap.sink.RecordsRefused`.

The engine's side of the contract is played here as the engine plays it: what was refused is kept, taken
out of the batch, and the same batch object is written again.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from waltap.format.record import Record
from waltap.sink.refusal import RecordsRefused, leave_out
from waltap.sink.sink import Sink
from waltap.source.position import Position
from waltap.transactions.transaction import Batch
from waltap_testing.sink_findings import values_of
from waltap_testing.sink_rig import SinkRig, sole
from waltap_testing.workload import ITEMS, ScriptedWorkload

__all__ = ["RefusesSingleRecords"]

UNFIT_ID = 4
WHOLE, CUT = 100, 2
"""Changes in a batch: all, or so few that a transaction is in several."""


class RefusesSingleRecords:
    """Promises of sinks whose rig has ``unfit``."""

    @pytest.fixture
    def tolerant(
        self, new_rig: Callable[[Path], SinkRig], tmp_path: Path
    ) -> tuple[SinkRig, ScriptedWorkload]:
        """Return a rig whose pipeline goes on without what is refused, and changes with one such."""
        rig = new_rig(tmp_path)
        if rig.unfit is None:
            pytest.skip("declares no value that its destination refuses")
        unfit, context = rig.unfit(), rig.context
        told = dataclasses.replace(
            rig, context=lambda given: dataclasses.replace(context(given), tolerant=True)
        )
        workload = ScriptedWorkload()
        workload.insert(ITEMS, 1, "first")
        workload.commit()
        for number in range(2, 8):
            workload.insert(ITEMS, number, unfit if number == UNFIT_ID else "fits")
        workload.commit()
        workload.insert(ITEMS, 8, "last")
        workload.commit()
        return told, workload

    @pytest.mark.parametrize("most", [WHOLE, CUT], ids=["one batch", "a cut transaction"])
    def test_a_record_that_is_refused_costs_no_other(
        self, tolerant: tuple[SinkRig, ScriptedWorkload], tmp_path: Path, most: int
    ) -> None:
        """It is named; the rest of its batch is delivered, once and in order."""
        rig, workload = tolerant
        sink = rig.build(tmp_path)
        sink.open()
        refused: list[int] = []
        for batch in workload.batches(most, records=sink.capabilities.records):
            refused += _written(sink, batch)
        assert refused == [UNFIT_ID]
        assert sole(sink.flush()) == Position(workload.parts[-1].end_lsn)
        sink.close()
        assert _ids(rig) == [1, 2, 3, 5, 6, 7, 8]

    def test_a_kill_between_a_refusal_and_the_rest_loses_nothing(
        self, tolerant: tuple[SinkRig, ScriptedWorkload], tmp_path: Path
    ) -> None:
        """What was refused is kept by then, and nothing else of the batch may count: it comes again."""
        rig, workload = tolerant
        sink = rig.build(tmp_path)
        sink.open()
        once = sink.capabilities.exactly_once
        (batch,) = workload.batches(WHOLE, records=sink.capabilities.records)
        with pytest.raises(RecordsRefused):
            sink.write(batch)
        if not once:
            assert sole(sink.flush()) is None, (
                "the batch was not taken, and its position not either"
            )
        sink.close()
        sink = rig.build(tmp_path, resumes=True)
        after = sole(sink.open()) or Position(0)
        for batch in workload.batches(WHOLE, after, records=sink.capabilities.records):
            _written(sink, batch)
        assert sole(sink.flush()) == Position(workload.parts[-1].end_lsn)
        sink.close()
        found = _ids(rig)
        assert list(dict.fromkeys(found)) == [1, 2, 3, 5, 6, 7, 8]
        if once:
            assert len(found) == len(set(found)), "doubled"


def _written(sink: Sink, batch: Batch) -> list[int]:
    """Write as the engine does; return the ids of what was refused."""
    refused: list[int] = []
    for _ in range(100):
        try:
            sink.write(batch)
        except RecordsRefused as error:
            for each in error.refused:
                if batch.records is not None:
                    refused.append(int(str(values_of(batch.records[each.index])["id"])))
                else:
                    refused.append(int(str(each.change.new[0])))  # type: ignore[union-attr] # inserts
            leave_out(batch, error.refused)
        else:
            return refused
    pytest.fail("it names records of the batch that are not there any more")


def _ids(rig: SinkRig) -> list[int]:
    found = [item for item in rig.read_back() if not isinstance(item, Record) or item.value]
    return [int(str(values_of(item)["id"])) for item in found]
