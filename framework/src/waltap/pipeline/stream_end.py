"""When streaming ends by itself: at an LSN, after a silence, or with the limits of the run."""

from waltap.pipeline.delivery import Delivery
from waltap.pipeline.limits import Silence
from waltap.pipeline.run import Run
from waltap.source.connector import ChangeStream, Connector
from waltap.transactions.assembly import Assembler

__all__ = ["StreamEnd"]


class StreamEnd:
    """Looks for the end of one stream that the run's limits set."""

    def __init__(
        self,
        run: Run,
        connector: Connector,
        stream: ChangeStream,
        assembler: Assembler,
        delivery: Delivery,
    ) -> None:
        self._run, self._stream = run, stream
        self._assembler, self._delivery = assembler, delivery
        self._lsn, self._silence = run.limits.until_lsn, _silence(run, connector)

    @property
    def asks(self) -> bool:
        """Tell whether it needs to know how far the server has read."""
        if self._lsn is not None:
            return True
        return self._silence is not None and not self._silence.caught_up

    def changes_came(self, now: float) -> None:
        """Take note that it was not silent."""
        if self._silence is not None:
            self._silence.broken(now)

    def reached(self, now: float) -> bool:
        """Tell whether it is over."""
        return self._run.over() or self._at_lsn() or self._silent(now)

    def _at_lsn(self) -> bool:
        if self._lsn is None:
            return False
        read = self._stream.idle_lsn() if self._assembler.idle else 0
        return max(read, self._delivery.written[self._delivery.partition].end_lsn) >= self._lsn

    def _silent(self, now: float) -> bool:
        if self._silence is None or not self._assembler.idle:
            return False
        return self._silence.lasted(now, self._stream.idle_lsn())


def _silence(run: Run, connector: Connector) -> Silence | None:
    if run.limits.until_idle is None:
        return None
    slot = connector.slot()
    target = slot.server_lsn if slot else 0
    return Silence(run.limits.until_idle, target, now=run.clock.monotonic())
