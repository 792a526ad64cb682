"""Whose an offset of Kafka Connect's is: ``["CONNECTOR",{"server":"TOPIC_PREFIX"}]``. Sans-IO."""

from collections.abc import Iterable

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.offsets.debezium.errors import DebeziumOffsetMissing

__all__ = ["RecordKey", "chosen"]


class RecordKey(msgspec.Struct, frozen=True):
    """The connector's name, and its topic.prefix."""

    connector: str
    server: str

    @classmethod
    def parse(cls, data: bytes) -> "RecordKey | None":
        """Return what a key says, None where it is another connector's than one of Debezium's."""
        try:
            found = msgspec.json.decode(data)
        except UNREADABLE:
            return None
        if isinstance(found, dict) and "payload" in found:
            found = found["payload"]  # by a converter that writes schemas
        match found:
            case [str(connector), {"server": str(server)}]:
                return cls(connector, server)
        return None

    def encoded(self) -> bytes:
        """Return the key as Kafka Connect writes it."""
        return msgspec.json.encode([self.connector, {"server": self.server}])

    def __str__(self) -> str:
        return f"connector {self.connector} with topic.prefix {self.server}"


def chosen(keys: Iterable[bytes], *, server: str, connector: str | None, place: str) -> bytes:
    """Return the key of the profile's offset. ``connector``: its name, where that is known.

    Raises: DebeziumOffsetMissing.
    """
    known = {key: found for key in keys if (found := RecordKey.parse(key)) is not None}
    fit = [
        key
        for key, found in known.items()
        if found.server == server and connector in {None, found.connector}
    ]
    if len(fit) == 1:
        return fit[0]
    whose = f"topic.prefix {server}" + (f" and the connector {connector}" if connector else "")
    what = f"{place} has {len(fit) or 'no'} offset{'s' if fit else ''} of {whose}"
    found_text = "; ".join(sorted(map(str, known.values()))[:20]) or "no offset of a connector"
    raise DebeziumOffsetMissing(what, found=found_text)
