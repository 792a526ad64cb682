"""Read the stream of one partition, beside those of others."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import SOLE
from waltap.pipeline.delivery.sink_writer import SinkWriter
from waltap.pipeline.runtime.run_state import RunState
from waltap.ports.offsets.state_folder import SPILL
from waltap.ports.source.connector import ChangeStream

__all__ = ["PartitionReader", "lane"]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PartitionReader:
    """Hold a partition's stream, and the assembler of its transactions."""

    partition: str
    stream: ChangeStream
    assembler: TransactionAssembler

    def close(self) -> None:
        """End the stream; may be called twice."""
        self.stream.close()
        self.assembler.close()


def lane(
    state: RunState,
    describe: Callable[[Relation], Relation],
    delivery: SinkWriter,
    partition: str,
    stream: ChangeStream,
) -> PartitionReader:
    """Return the reader that continues behind the delivered changes."""
    engine, folder = state.profile.engine, state.state_dir / SPILL
    assembler = TransactionAssembler(
        resume=delivery.written[partition],
        previous_end_lsn=delivery.previous_end_lsn[partition],
        spill_dir=folder if partition == SOLE else folder / partition,
        spill_memory_bytes=engine.spill_memory_bytes,
        two_phase=engine.two_phase_policy,
        describe=describe,
        warn=log.warning,
    )
    return PartitionReader(partition, stream, assembler)
