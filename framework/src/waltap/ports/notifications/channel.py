"""Define the contract of notification channels."""

import json
import logging
from typing import Protocol, runtime_checkable

from waltap.changes.transactions.transaction import Notification

log = logging.getLogger(__name__)

# these members hold values of rows, and a log must never have any
KEYS = {"maximum_key", "last_processed_key"}


class LogNotifications:
    """Write notifications to the log, a line each, as Debezium does."""

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


class NotificationChannel(Protocol):
    """A receiver of notifications, made by a `NotificationChannelSpec`.

    One thread at a time calls it, the engine's or the slot monitor's, at most a few times a second.
    """

    def send(self, notification: Notification) -> None:
        """Send one notification, in order.

        Raises: WaltapError when the receiver does not accept it. The engine only logs the error,
        because a notification must not stop a pipeline.
        """

    def close(self) -> None:
        """Send waiting notifications and release resources.

        May be called twice.
        """


@runtime_checkable
class LossCounting(Protocol):
    """A channel that sends in the background and counts its losses."""

    lost: int
    """How many notifications the receiver did not accept; any thread may read it."""
