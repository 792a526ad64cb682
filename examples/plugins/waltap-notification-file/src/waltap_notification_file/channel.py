"""Notifications to a file: one JSON object per line, with Debezium's names."""

from pathlib import Path

import orjson

from waltap.config import Properties, declare
from waltap.ports.notifications import Notification


class NotificationFileProperties(Properties):
    """Where notifications go."""

    path: Path = declare("notification-file.path", summary="File to append to.")


class NotificationFileChannel:
    """Appends lines."""

    def __init__(self, properties: NotificationFileProperties) -> None:
        self._path = properties.path

    def send(self, notification: Notification) -> None:
        """Append one notification."""
        line = orjson.dumps(
            {
                "id": notification.identifier,
                "type": notification.kind,
                "aggregate_type": notification.aggregate_type,
                "additional_data": notification.additional_data,
                "timestamp": notification.timestamp,
            }
        )
        with self._path.open("ab") as file:
            file.write(line + b"\n")

    def close(self) -> None:
        """Nothing is held."""
