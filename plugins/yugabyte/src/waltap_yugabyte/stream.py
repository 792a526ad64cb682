"""A stream whose positions count records, or are commit times, and whose keepalives say nothing.

Source: yugabyte-db, ``yb_virtual_wal_client.c`` (the flush pointer is 2^64-1; what a flushed LSN
acknowledges); Debezium's connector for YugabyteDB, ``PostgresStreamingChangeEventSource.java``.
"""

from bisect import bisect_left
from typing import Any

from waltap.decode.message import Commit, Message
from waltap_postgres.replication.stream import ReplicationStream

__all__ = ["YugabyteStream"]

CLOCK = 1 << 32
"""No slot counts so far; every commit time lies beyond."""


class YugabyteStream(ReplicationStream):
    """Says how far the server has come by the commits that it sent, and acknowledges commits.

    Where LSNs count, the end of a commit acknowledges it and nothing behind it. Where they are times, two
    transactions may have one: what is acknowledged is the last time before that which is durable, so that
    nothing that is still to come is acknowledged with it.
    """

    def __init__(self, *arguments: Any, confirmed: int, position: int = 0, **options: Any) -> None:
        self._times: list[int] = []
        if max(confirmed, position) > CLOCK:
            # of a time only those before it are sure to have come whole: nothing is confirmed with it yet
            confirmed = position = 0
        super().__init__(*arguments, confirmed=confirmed, position=position, **options)

    def receive(self, timeout: float) -> list[Message]:
        messages = super().receive(timeout)
        if self.committed > CLOCK:
            self._times += [m.commit_lsn for m in messages if type(m) is Commit]
        return messages

    def idle_lsn(self) -> int:
        return self.committed

    def confirm(self, end_lsn: int) -> None:
        if end_lsn <= CLOCK:
            super().confirm(end_lsn)
            return
        before = bisect_left(self._times, end_lsn - 1)
        if before:
            sure = self._times[before - 1]
            del self._times[: before - 1]
            super().confirm(sure)
