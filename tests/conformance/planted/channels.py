"""Signal and notification channels with one planted fault each; both kinds are a file of lines."""

import json
import time
from pathlib import Path
from typing import ClassVar

import pytest

from waltap.notifications.notification import Notification
from waltap.signals.signal import Signal
from waltap.specs import NotificationChannelSpec, SignalChannelSpec
from waltap_testing.notification_channel_suite import (
    NotificationChannelRig,
    NotificationChannelSuite,
)
from waltap_testing.signal_channel_suite import SignalChannelRig, SignalChannelSuite


class FileSignals:
    """One JSON object per line; the file is emptied when it was read. Right as it is."""

    def __init__(self, path):
        self.path = Path(path)

    def poll(self):
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        self.path.write_text("")
        return [signal for signal in map(self.parse, lines) if signal is not None]

    def parse(self, line):
        try:
            item = json.loads(line)
            return Signal(item["id"], item["type"], json.dumps(item["data"]))
        except (ValueError, KeyError, TypeError):
            return None

    def close(self):
        pass


class PlantedSignals(SignalChannelSuite):
    """The suite on a faulty channel of signals."""

    channel: ClassVar[type]

    @pytest.fixture
    def rig(self, tmp_path):
        path = tmp_path / "signals"

        def put(line):
            with path.open("a") as file:
                file.write(line + "\n")

        def send(signal):
            data = json.loads(signal.data)
            put(json.dumps({"id": signal.identifier, "type": signal.kind, "data": data}))

        spec = SignalChannelSpec(name="file", summary="A file.", factory=self.channel)
        return SignalChannelRig(spec, path, send, spoil=lambda: put('{"id": "x", "type'))


class TestSignalsWithoutFault(PlantedSignals):
    channel = FileSignals
    caught_by = ""


class NeverEmpties(FileSignals):
    def __init__(self, path):
        super().__init__(path)
        self.read = 0

    def poll(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        new, self.read = lines[self.read :], len(lines)
        return [signal for signal in map(self.parse, new) if signal is not None]


class TestHandsOldSignalsToTheNextRun(PlantedSignals):
    channel = NeverEmpties
    caught_by = "test_a_signal_arrives_once"


class StopsAtNonsense(FileSignals):
    def parse(self, line):
        item = json.loads(line)
        return Signal(item["id"], item["type"], json.dumps(item["data"]))


class TestStopsAtNonsense(PlantedSignals):
    channel = StopsAtNonsense
    caught_by = "test_what_is_no_signal_is_left_out"


class EmptiesAtTheStart(FileSignals):
    def __init__(self, path):
        super().__init__(path)
        self.path.write_text("")


class TestForgetsWhatWaited(PlantedSignals):
    channel = EmptiesAtTheStart
    caught_by = "test_a_signal_sent_before_the_start_is_not_lost"


class Waits(FileSignals):
    def poll(self):
        found = super().poll()
        if not found:
            time.sleep(1.2)
        return found


class TestWaitsForASignal(PlantedSignals):
    channel = Waits
    caught_by = "test_no_signal_is_an_empty_list_at_once"


class LatestFirst(FileSignals):
    def poll(self):
        return list(reversed(super().poll()))


class TestTurnsTheOrderAround(PlantedSignals):
    channel = LatestFirst
    caught_by = "test_signals_arrive_whole_and_in_order"


# --- notifications ---


class FileNotifications:
    """One JSON object per line. Right as it is."""

    mode = "a"

    def __init__(self, path):
        self.file = Path(path).open(self.mode)  # noqa: SIM115 - closed in close

    def send(self, notification):
        item = {
            "id": notification.identifier,
            "aggregate_type": notification.aggregate_type,
            "type": notification.kind,
            "additional_data": notification.additional_data,
            "timestamp": notification.timestamp,
        }
        self.file.write(json.dumps(item) + "\n")

    def close(self):
        self.file.close()


def read_notifications(path):
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        item = json.loads(line)
        found.append(
            Notification(
                identifier=item["id"],
                aggregate_type=item["aggregate_type"],
                kind=item["type"],
                additional_data=item["additional_data"],
                timestamp=item["timestamp"],
            )
        )
    return found


class PlantedNotifications(NotificationChannelSuite):
    """The suite on a faulty channel of notifications."""

    channel: ClassVar[type]

    @pytest.fixture
    def rig(self, tmp_path):
        path = tmp_path / "notifications"
        spec = NotificationChannelSpec(name="file", summary="A file.", factory=self.channel)
        return NotificationChannelRig(spec, path, lambda: read_notifications(path))


class TestNotificationsWithoutFault(PlantedNotifications):
    channel = FileNotifications
    caught_by = ""


class Overwrites(FileNotifications):
    mode = "w"


class TestOverwritesTheLastRun(PlantedNotifications):
    channel = Overwrites
    caught_by = "test_a_later_channel_adds"


class DropsData(FileNotifications):
    def send(self, notification):
        super().send(
            Notification(
                identifier=notification.identifier,
                aggregate_type=notification.aggregate_type,
                kind=notification.kind,
                timestamp=notification.timestamp,
            )
        )


class TestDropsAdditionalData(PlantedNotifications):
    channel = DropsData
    caught_by = "test_notifications_arrive_whole_and_in_order"


class SaysHello(FileNotifications):
    def __init__(self, path):
        super().__init__(path)
        self.send(Notification(identifier="0", aggregate_type="Channel", kind="OPENED"))


class TestSaysHello(PlantedNotifications):
    channel = SaysHello
    caught_by = "test_nothing_arrives_unsent"


class Keeps500(FileNotifications):
    def __init__(self, path):
        super().__init__(path)
        self.left = 500

    def send(self, notification):
        self.left -= 1
        if self.left >= 0:
            super().send(notification)


class TestLosesWhatIsMuch(PlantedNotifications):
    channel = Keeps500
    caught_by = "test_many_notifications_arrive"


class LosesItsBuffer(FileNotifications):
    def close(self):
        if self.file.closed:
            raise ValueError("closed already")
        super().close()


class TestClosesOnlyOnce(PlantedNotifications):
    channel = LosesItsBuffer
    caught_by = "test_close_may_be_called_twice"
