"""Send notifications about snapshots through channels."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.changes.transactions.transaction import Notification
    from waltap.ports.notifications.channel import NotificationChannel

__all__ = ["Notification", "NotificationChannel"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
