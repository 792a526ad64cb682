"""The contract of a notification channel: where notifications go."""

from typing import Protocol, runtime_checkable

from waltap.notifications.notification import Notification

__all__ = ["LossCounting", "NotificationChannel"]


class NotificationChannel(Protocol):
    """A place that notifications are sent to; what a `NotificationChannelSpec`'s factory returns.

    Called by one thread at a time, the engine's or the guardian's, a few times a second at most.
    """

    def send(self, notification: Notification) -> None:
        """Hand over one notification, in order.

        Raises: WaltapError when the place does not take it; that is logged and nothing more, since
        a notification must not stop a pipeline.
        """

    def close(self) -> None:
        """Hand over what is still held and release everything; may be called twice."""


@runtime_checkable
class LossCounting(Protocol):
    """A channel that sends after `NotificationChannel.send` has returned: what it loses is told here."""

    lost: int
    """How many notifications the place did not take; any thread may ask."""
