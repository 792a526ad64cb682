"""A stream whose positions count records or are commit times.

Its keepalives carry no position. Source: yugabyte-db, ``yb_virtual_wal_client.c`` (the flush
pointer is 2^64-1; the effect of a flushed LSN); Debezium's connector for YugabyteDB,
``PostgresStreamingChangeEventSource.java``.
"""

from bisect import bisect_left
from typing import Any

from waltap.decode.message import Commit, Message
from waltap_postgres.replication.stream import ReplicationStream

__all__ = ["YugabyteStream"]

# No slot's count is as high, and every commit time is higher.
CLOCK = 1 << 32


class YugabyteStream(ReplicationStream):
    """Report the server's progress by its commits, and acknowledge commits.

    Where LSNs are counts, the end of a commit acknowledges that commit and nothing after it. Where
    they are times, two transactions may have the same one.
    """

    def __init__(self, *arguments: Any, confirmed: int, position: int = 0, **options: Any) -> None:
        # Commit times that were received and not yet acknowledged.
        self._times: list[int] = []
        if max(confirmed, position) > CLOCK:
            # Only earlier times have certainly arrived completely, so this one confirms nothing yet.
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
        # Acknowledge the last time before the durable one: another transaction with the durable
        # time may still come.
        before = bisect_left(self._times, end_lsn - 1)
        if before:
            sure = self._times[before - 1]
            del self._times[: before - 1]
            super().confirm(sure)
