"""Write each notification as one log line.

This is the notification channel ``log``; the text is Debezium's.
"""

import json
import logging

from waltap.changes.transactions.notification import Notification

__all__ = ["LogNotifications"]

log = logging.getLogger(__name__)

# these members hold values of rows, and a log must never have any
KEYS = {"maximum_key", "last_processed_key"}


class LogNotifications:
    """Write notifications to the log."""

    def __init__(self, _properties: object = None) -> None:
        pass

    def send(self, notification: Notification) -> None:
        """Log a notification without the values of keys."""
        document = notification.document()
        data = document["additional_data"]
        if isinstance(data, dict):
            document["additional_data"] = {k: v for k, v in data.items() if k not in KEYS}
        log.info("[Notification Service] %s", json.dumps(document, ensure_ascii=False))

    def close(self) -> None:
        """Do nothing: every line is already written."""
