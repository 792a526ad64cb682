"""What a replication stream says of how far the server has read."""

from struct import pack

from waltap.changes.decode.decoder import Decoder, Frame
from waltap.changes.decode.message import Message
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.replication.transport import SocketTransport
from waltap_testing.walsender.wire import message


class Early(SocketTransport):
    """A transport that got frames, and a keepalive behind them, with the answer to its command."""

    def __init__(self, data: bytes) -> None:
        from waltap_postgres.replication.wire import ReplicationSplitter

        self.splitter = ReplicationSplitter()
        self._early = self.splitter.split(data)

    def _receive(self, timeout: float) -> list[Frame]:
        return []

    def send(self, message: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class Nothing(Decoder):
    def start_options(self) -> dict[str, str]:
        return {}

    def feed(self, frames: list[Frame]) -> list[Message]:  # type: ignore[override]
        self.fed = len(frames)
        return []


def test_what_came_before_the_first_call_is_not_passed_over():
    """Whoever stops before the first call must not confirm what a keepalive behind the frames says."""
    data = message(b"W", b"\0\0\0")
    data += message(b"d", b"w" + pack("!qqq", 0x1000, 0x1000, 0) + b"B")
    data += message(b"d", b"k" + pack("!qqb", 0x2000, 0, 0))
    stream = ReplicationStream(Early(data), Nothing(), confirmed=0x800, status_interval=60)
    try:
        assert stream.idle_lsn() < 0x1000
        stream.receive(0)
        assert stream.idle_lsn() == 0x2000
    finally:
        stream.close()
