"""Send notifications about snapshots through channels."""

from typing import TYPE_CHECKING

from waltap.public_names import on_first_use

if TYPE_CHECKING:
    from waltap.notifications.channel import NotificationChannel
    from waltap.notifications.notification import Notification

__all__ = ["Notification", "NotificationChannel"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
