"""The notification channel ``log``: one line of the log per notification, as Debezium words it."""

import json
import logging

from waltap.notifications.notification import Notification

__all__ = ["LogNotifications"]

log = logging.getLogger(__name__)

KEYS = {"maximum_key", "last_processed_key"}
"""Members that hold values of rows, which no log has."""


class LogNotifications:
    """Writes notifications into the log."""

    def __init__(self, _properties: object = None) -> None:
        pass

    def send(self, notification: Notification) -> None:
        """Log it, less the values of keys."""
        document = notification.document()
        data = document["additional_data"]
        if isinstance(data, dict):
            document["additional_data"] = {k: v for k, v in data.items() if k not in KEYS}
        log.info("[Notification Service] %s", json.dumps(document, ensure_ascii=False))

    def close(self) -> None:
        """Nothing is held."""
