"""Every signal and notification channel of ours keeps the kit's promises."""

import json
import logging

import pytest
from tests.harness.http_receiver import Receiver, notification_of

import waltap.plugin
from waltap.ports.notifications import Notification
from waltap.ports.notifications.channel import KEYS
from waltap.ports.notifications.webhook_channel import WebhookProperties
from waltap.ports.signals.inbox import FileSignalProperties
from waltap_testing import (
    NotificationChannelRig,
    NotificationChannelSuite,
    SignalChannelRig,
    SignalChannelSuite,
)

(FILE,) = waltap.plugin.register_signal_channels()
LOG, WEBHOOK = waltap.plugin.register_notification_channels()


def rig_of_a_file(spec, properties, path):
    """Return a rig whose signals are lines that are added to the file at ``path``."""

    def put(line):
        with path.open("a") as file:
            file.write(line + "\n")

    def send(signal):
        data = json.loads(signal.data)
        put(json.dumps({"id": signal.identifier, "type": signal.kind, "data": data}))

    return SignalChannelRig(spec, properties, send, spoil=lambda: put('[{"id": "1", '))


class TestFileSignals(SignalChannelSuite):
    @pytest.fixture
    def rig(self, tmp_path):
        path = tmp_path / "file-signals.txt"
        return rig_of_a_file(FILE, FileSignalProperties(path=path), path)


def test_what_was_taken_and_not_read_when_the_process_died_is_read_by_the_next(tmp_path):
    path = tmp_path / "s"
    (tmp_path / "s.taken").write_text('{"id": "1", "type": "log"}\n')
    path.write_text('{"id": "2", "type": "log", "data": null}\n')
    channel = FILE.factory(FileSignalProperties(path=path))
    found = []
    while signals := channel.poll():
        found += [signal.identifier for signal in signals]
        channel.confirm()
    assert found == ["1", "2"]
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_being_written_is_left_until_it_is_whole(tmp_path):
    path = tmp_path / "s"
    channel = FILE.factory(FileSignalProperties(path=path))
    path.write_text('{"id": "1", "ty')
    assert channel.poll() == []
    with path.open("a") as file:
        file.write('pe": "log"}')
    assert channel.poll() == []
    (signal,) = channel.poll()  # it grew no more
    assert (signal.identifier, signal.kind, signal.data) == ("1", "log", "")


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe", b"[]", b"7", b'{"id": 1}', b'{"id": 1, "type": []}', b"[" * 100_000]
    + [rb'{"id": "\ud800", "type": "log"}', rb'{"id": 1, "type": "log", "data": "\ud800"}'],
)
def test_a_line_that_is_no_signal_is_reported_and_left_out(tmp_path, caplog, line):
    path = tmp_path / "s"
    path.write_bytes(line + b'\n{"id": "2", "type": "log"}\n')
    channel = FILE.factory(FileSignalProperties(path=path))
    assert [signal.identifier for signal in channel.poll()] == ["2"]
    assert caplog.records[0].error_code == "WT-4101"


class TestLogNotifications(NotificationChannelSuite):
    @pytest.fixture
    def rig(self, caplog):
        caplog.set_level(logging.INFO)

        def read_back():
            documents = (record.args[0] for record in caplog.records if record.args)
            return [notification_of(json.loads(document)) for document in documents]

        return NotificationChannelRig(LOG, None, read_back, leaves_out=frozenset(KEYS))


def test_no_key_of_a_row_comes_into_the_log(caplog):
    caplog.set_level(logging.INFO)
    data = {"maximum_key": "secret-7", "last_processed_key": "secret-3", "connector_name": "t"}
    LOG.factory(None).send(
        Notification(
            identifier="1", aggregate_type="Incremental Snapshot", kind="IN_PROGRESS",
            additional_data=data,
        )
    )  # fmt: skip
    assert "secret" not in caplog.text
    assert '"connector_name": "t"' in caplog.text


class TestWebhookNotifications(NotificationChannelSuite):
    @pytest.fixture
    def rig(self, monkeypatch):
        monkeypatch.setattr("waltap.ports.notifications.webhook_channel.CLOSE_S", 90.0)
        with Receiver() as receiver:
            properties = WebhookProperties.model_validate(
                {
                    "notification.webhook.url": receiver.url,
                    "notification.webhook.secret": "7",
                    "notification.webhook.queue.size": 2000,
                }
            )
            yield NotificationChannelRig(WEBHOOK, properties, receiver.notifications)
