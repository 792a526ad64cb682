"""Define the contract of notification channels."""

from typing import Protocol, runtime_checkable

from waltap.changes.transactions.notification import Notification

__all__ = ["LossCounting", "NotificationChannel"]


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
