"""Conformance tests for notification channels.

Subclass `NotificationChannelSuite` and define the fixture ``rig``:

    class TestMyChannel(NotificationChannelSuite):
        @pytest.fixture
        def rig(self, tmp_path):
            return NotificationChannelRig(MY_SPEC, MyProperties(…), read_back=my_reader)
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waltap.changes.transactions.transaction import Notification
from waltap.ports.notifications.channel import NotificationChannel
from waltap.ports.specs import NotificationChannelSpec
from waltap_testing.suite import RigSuite

NOTIFICATIONS = [
    Notification(
        identifier="8e3f0a52-0000-4000-8000-000000000001",
        aggregate_type="Initial Snapshot",
        kind="STARTED",
        additional_data={"connector_name": "shop"},
        timestamp=1_767_225_600_000,
    ),
    Notification(
        identifier="ad-hoc-1",
        aggregate_type="Incremental Snapshot",
        kind="IN_PROGRESS",
        additional_data={
            "connector_name": "shöp 🐘",
            "data_collections": 'public.items,public."Odd, Name"',
            "last_processed_key": "<null>,1\n2",
        },
        timestamp=1_767_225_600_001,
    ),
    Notification(identifier="3", aggregate_type="Initial Snapshot", kind="COMPLETED", timestamp=1),
    Notification(
        identifier="4", aggregate_type="Initial Snapshot", kind="ABORTED", additional_data={}
    ),
]


@dataclass(frozen=True, slots=True)
class NotificationChannelRig:
    """The notification channel under test."""

    spec: NotificationChannelSpec
    properties: object
    # Return the delivered notifications without using the channel.
    read_back: Callable[[], Sequence[Notification]]
    # Members of the additional data that the channel omits on purpose.
    leaves_out: frozenset[str] = frozenset()

    def build(self) -> NotificationChannel:
        return self.spec.factory(self.properties)


class NotificationChannelSuite(RigSuite):
    """Rules for every notification channel."""

    needs = "a NotificationChannelRig"

    def test_nothing_arrives_unsent(self, rig: NotificationChannelRig) -> None:
        """Opening and closing a channel sends nothing."""
        rig.build().close()
        assert list(rig.read_back()) == []

    def test_notifications_arrive_whole_and_in_order(self, rig: NotificationChannelRig) -> None:
        channel, sent = rig.build(), copy.deepcopy(NOTIFICATIONS)
        for notification in sent:
            channel.send(notification)
        channel.close()
        assert _plain(rig.read_back()) == _plain(NOTIFICATIONS, rig)
        # Other channels get the same object.
        assert sent == NOTIFICATIONS, "a notification was changed"

    def test_a_later_channel_adds(self, rig: NotificationChannelRig) -> None:
        for notification in NOTIFICATIONS[:2]:
            channel = rig.build()
            channel.send(notification)
            channel.close()
        assert _plain(rig.read_back()) == _plain(NOTIFICATIONS[:2], rig)

    def test_many_notifications_arrive(self, rig: NotificationChannelRig) -> None:
        channel = rig.build()
        sent = [
            Notification(
                identifier=str(number),
                aggregate_type="Initial Snapshot",
                kind="IN_PROGRESS",
                timestamp=number,
            )
            for number in range(1_000)
        ]
        for notification in sent:
            channel.send(notification)
        channel.close()
        assert _plain(rig.read_back()) == _plain(sent)

    def test_close_may_be_called_twice(self, rig: NotificationChannelRig) -> None:
        channel = rig.build()
        channel.send(NOTIFICATIONS[0])
        channel.close()
        channel.close()
        assert _plain(rig.read_back()) == _plain(NOTIFICATIONS[:1])


def _plain(
    notifications: Sequence[Notification], rig: NotificationChannelRig | None = None
) -> list[object]:
    """Return notifications for comparison.

    No data and empty data are the same. With ``rig``, members that its channel omits are removed.
    """
    without: frozenset[str] = frozenset() if rig is None else rig.leaves_out
    return [
        (
            n.identifier,
            n.aggregate_type,
            n.kind,
            {k: v for k, v in (n.additional_data or {}).items() if k not in without},
            n.timestamp,
        )
        for n in notifications
    ]
