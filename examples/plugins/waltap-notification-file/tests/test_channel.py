"""The conformance suite of waltap."""

import json

import pytest

from waltap.ports.notifications import Notification
from waltap_testing import (
    NotificationChannelRig,
    NotificationChannelSuite,
)
from waltap_notification_file.channel import NotificationFileProperties
from waltap_notification_file.plugin import register_notification_channels

(SPEC,) = register_notification_channels()


def read_back(path):
    """Read the destination by other means than the channel."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        item = json.loads(line)
        identifier, kind = item.pop("id"), item.pop("type")
        found.append(Notification(identifier=identifier, kind=kind, **item))
    return found


class TestNotificationFileChannel(NotificationChannelSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        path = tmp_path / "notifications"
        return NotificationChannelRig(
            SPEC, NotificationFileProperties(path=path), lambda: read_back(path)
        )
