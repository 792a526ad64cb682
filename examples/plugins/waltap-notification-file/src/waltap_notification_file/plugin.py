"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import NotificationChannelSpec
from waltap_notification_file.channel import NotificationFileChannel, NotificationFileProperties

WALTAP_API = 1


@hookimpl
def register_notification_channels() -> Iterable[NotificationChannelSpec]:
    """Contribute the channel."""
    yield NotificationChannelSpec(
        name="notification-file",
        summary="A file of JSON lines.",
        properties=NotificationFileProperties,
        factory=NotificationFileChannel,
    )
