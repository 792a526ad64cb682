"""Parse the keys of Kafka Connect offsets. Sans-IO.

A key of Debezium is ``["CONNECTOR",{"server":"TOPIC_PREFIX"}]``.
"""

from collections.abc import Iterable

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap.services.debezium_offsets.errors import DebeziumOffsetMissing

__all__ = ["RecordKey", "chosen"]


class RecordKey(msgspec.Struct, frozen=True):
    """The connector's name and its topic.prefix."""

    connector: str
    server: str

    @classmethod
    def parse(cls, data: bytes) -> "RecordKey | None":
        """Return the parsed key, None for one of another kind of connector."""
        try:
            found = msgspec.json.decode(data)
        except UNREADABLE:
            return None
        if isinstance(found, dict) and "payload" in found:
            found = found["payload"]  # a converter with schemas wraps the key
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
    """Return the key of the profile's offset.

    ``connector`` is its name, None if unknown. Raises: DebeziumOffsetMissing.
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
