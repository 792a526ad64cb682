"""Represent notifications in Debezium's form."""

import msgspec


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One notification about the state of a pipeline."""

    # the signal's id for an incremental snapshot, else a random UUID
    identifier: str
    # such as "Initial Snapshot" or "Incremental Snapshot"
    aggregate_type: str
    # Debezium's ``type``: STARTED, IN_PROGRESS, COMPLETED and so on
    kind: str
    additional_data: dict[str, str] | None = None
    # ms since 1970 UTC
    timestamp: int = 0

    def document(self) -> dict[str, object]:
        """Return the members with Debezium's names and order."""
        return {
            "id": self.identifier,
            "type": self.kind,
            "aggregate_type": self.aggregate_type,
            "additional_data": self.additional_data,
            "timestamp": self.timestamp,
        }
