"""Records as they are stored, and the contracts of who reaches and who decodes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["CONSUMER", "DecodedDocument", "RecordDecoder", "RecordStream", "StoredRecord"]

CONSUMER = "consumer."
"""Settings that begin so are the stream's; all others are the decoder's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record of a topic. ``timestamp``: milliseconds since 1970, None where it has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedDocument:
    """What bytes mean: a document as JSON has them (dict, list, str, int, float, bool, None), besides
    bytes and Decimal. ``form``: avro, protobuf, …. ``problem``: why they were not read; the document is
    None then."""

    document: Any
    form: str
    problem: str | None = None


class RecordStream(Protocol):
    """Topics from a place on. Nothing is kept there of who reads."""

    @property
    def topics(self) -> Sequence[str]:
        """Return which topics are read."""

    def read(self, seconds: float) -> Sequence[StoredRecord]:
        """Return records that have come, waiting for them that long at most. It connects when it is asked
        first. Raises: WaltapError."""

    @property
    def at_end(self) -> bool:
        """Tell whether all that was there has been returned."""

    def close(self) -> None:
        """Let go of the connection; may be called twice."""


class RecordDecoder(Protocol):
    """Reads bytes that name their schema."""

    def decode(self, data: bytes) -> DecodedDocument | None:
        """Return what ``data`` means, None where it is nothing for this decoder. A schema that is not
        known, or bytes that do not fit theirs, are a `DecodedDocument` with a problem.

        Raises: WaltapError when schemas cannot be asked for.
        """
