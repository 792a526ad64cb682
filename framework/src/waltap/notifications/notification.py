"""Notifications: what a pipeline tells of its snapshots, as Debezium words it."""

import msgspec

__all__ = ["Notification"]


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One notification.

    ``identifier`` is the signal's id for an incremental snapshot, a random UUID otherwise.
    ``aggregate_type`` is "Initial Snapshot" or "Incremental Snapshot", ``kind`` STARTED, IN_PROGRESS,
    COMPLETED and so on (Debezium's ``type``). ``additional_data`` is None where there is none.
    ``timestamp`` is in ms since 1970 UTC.
    """

    identifier: str
    aggregate_type: str
    kind: str
    additional_data: dict[str, str] | None = None
    timestamp: int = 0

    def document(self) -> dict[str, object]:
        """Return it with the names and the order of members that Debezium has."""
        return {
            "id": self.identifier,
            "type": self.kind,
            "aggregate_type": self.aggregate_type,
            "additional_data": self.additional_data,
            "timestamp": self.timestamp,
        }
