"""Whether a destination still has what its sink made durable there."""

from collections.abc import Mapping

from waltap.errors import SinkError
from waltap.source.position import Position, lsn_text

__all__ = ["DestinationBehind", "require_held"]


class DestinationBehind(SinkError):
    """The destination ends before the position that was durable there: changes are missing in it."""

    code = "WT-5003"
    loses = True
    remedy = (
        "It was restored from a backup, emptied or made anew. Bring it back as it was; or read the "
        "captured tables again by `waltap repair FILE`, or from the beginning by "
        "`waltap offsets clear FILE` and a start{replay}."
    )


def require_held(
    sink: str, recorded: Mapping[str, Position], found: Mapping[str, Position]
) -> None:
    """See that a sink has, in each partition, what it had: ``recorded`` is what `Sink.held` returned when
    the offset was stored, ``found`` what `Sink.open` returns. Raises: DestinationBehind."""
    for partition, had in recorded.items():
        has = found.get(partition)
        if has is not None and has >= had:
            continue
        ends, replay = "has no position of this pipeline", ""  # no slot goes back to the beginning
        if has is not None:
            ends = f"ends at {has}"
            replay = (
                "; where the slot still has the WAL, "
                f"`waltap offsets set FILE {lsn_text(has.end_lsn)}` and a start stream the changes again"
            )
        raise DestinationBehind(
            f"the destination of the sink {sink} {ends}, and had everything up to {had}",
            replay=replay,
        )
