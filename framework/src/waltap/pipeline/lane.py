"""One partition's way from its stream to the sink, beside those of others."""

import logging
from dataclasses import dataclass

from waltap.offsets.state_folder import SPILL
from waltap.pipeline.delivery import Delivery
from waltap.pipeline.run import Run
from waltap.pipeline.setup import Stages
from waltap.source.connector import ChangeStream
from waltap.source.position import SOLE
from waltap.transactions.assembly import Assembler

__all__ = ["Lane", "lane"]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Lane:
    """The stream of ``partition``, and what makes transactions of its messages."""

    partition: str
    stream: ChangeStream
    assembler: Assembler

    def close(self) -> None:
        """End the stream; may be called twice."""
        self.stream.close()
        self.assembler.close()


def lane(
    run: Run, stages: Stages, delivery: Delivery, partition: str, stream: ChangeStream
) -> Lane:
    """Return the lane that goes on with what was delivered of ``partition``."""
    engine, folder = run.profile.engine, run.state_dir / SPILL
    assembler = Assembler(
        resume=delivery.written[partition],
        previous_end_lsn=delivery.previous_end_lsn[partition],
        spill_dir=folder if partition == SOLE else folder / partition,
        spill_memory_bytes=engine.spill_memory_bytes,
        two_phase=engine.two_phase_policy,
        describe=stages.relations.complete,
        warn=log.warning,
    )
    return Lane(partition, stream, assembler)
