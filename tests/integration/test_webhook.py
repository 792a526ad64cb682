"""The notification channel ``webhook``, against a real HTTP server, alone and in a running pipeline."""

import base64
import hashlib
import hmac
import logging
import sys
from collections.abc import Iterator

import pytest
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import PipelineRig, until

from waltap.base.plugin_errors import LibraryMissing
from waltap.ports.notifications import Notification
from waltap.ports.notifications.webhook_channel import (
    WebhookDown,
    WebhookNotifications,
    WebhookProperties,
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def late() -> Iterator[Receiver]:
    with Receiver(started=False) as made:
        yield made


@pytest.fixture(autouse=True)
def _closes_late(monkeypatch) -> None:
    monkeypatch.setattr("waltap.ports.notifications.webhook_channel.CLOSE_S", 90.0)


def channel(receiver: Receiver, **options: object) -> WebhookNotifications:
    given = {f"notification.webhook.{k.replace('_', '.')}": v for k, v in options.items()}
    properties = {"notification.webhook.url": receiver.url, **given}
    return WebhookNotifications(WebhookProperties.model_validate(properties))


def numbered(number: int) -> Notification:
    return Notification(
        identifier=str(number), aggregate_type="Initial Snapshot", kind="IN_PROGRESS"
    )


def identifiers(receiver: Receiver) -> list[str]:
    return [document["id"] for document in receiver.documents()]


@pytest.mark.parametrize(
    ("secret", "key"),
    [("a long secret", b"a long secret"), ("whsec_c2VjcmV0LTc=", b"secret-7"), (None, b"")],
    ids=["text", "base64", "none"],
)
def test_a_request_is_signed_over_its_id_time_and_body(receiver, secret, key):
    given = {"notification.webhook.secret": secret} if secret else {}
    properties = {
        "notification.webhook.url": receiver.url,
        "headers": {"notification.webhook.header.Authorization": "Bearer b-1"},
        **given,
    }
    sent = WebhookNotifications(WebhookProperties.model_validate(properties))
    sent.send(numbered(7))
    sent.close()
    ((headers, body),) = receiver.taken
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer b-1"
    if not secret:
        assert "webhook-signature" not in headers
        return
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"


@pytest.mark.parametrize(
    ("answer", "times", "tries"),
    [
        (None, 2, 3),
        ((500, {}), 2, 3),
        ((503, {"Retry-After": "0"}), 2, 3),
        ((429, {}), 2, 3),
        ((408, {}), 2, 3),
        ((500, {}), 3, 0),  # they come to an end
        *(((status, {"Location": "/hook"}), 1, 0) for status in (301, 400, 401, 404, 410)),
    ],
)
def test_what_may_pass_is_tried_again_with_the_same_id(receiver, caplog, answer, times, tries):
    """And what is refused for good is not."""
    receiver.answers.extend([answer] * times)
    sent = channel(receiver, max_retries=2)
    sent.send(numbered(1))
    sent.send(numbered(2))
    until(lambda: "2" in identifiers(receiver), "the second notification")
    assert len(receiver.refused) == times
    if tries:
        sent.close()
        (first, _), _ = receiver.taken
        assert {headers["webhook-id"] for headers, _ in receiver.refused} == {first["webhook-id"]}
    else:
        with pytest.raises(WebhookDown, match="1 notifications were not taken"):
            sent.close()
        assert f"it answers {answer[0]}" in caplog.text
        sent.close()  # shows nothing again
    assert identifiers(receiver) == (["1", "2"] if tries else ["2"])
    assert sent.lost == (0 if tries else 1)


def test_a_full_queue_holds_nobody_up_and_what_it_lacks_is_counted(receiver, caplog):
    receiver.hold.clear()
    sent = channel(receiver, queue_size=5)
    for number in range(50):
        sent.send(numbered(number))  # nobody takes them, and this ends
    assert sent.lost == 45
    receiver.hold.set()
    until(lambda: len(receiver.taken) == 5, "what the queue held")
    with pytest.raises(WebhookDown, match="45 notifications were not taken"):
        sent.close()
    assert identifiers(receiver) == ["0", "1", "2", "3", "4"]
    assert [r.error_code for r in caplog.records if r.levelno == logging.WARNING] == ["WT-4201"]


def test_close_does_not_wait_for_an_address_that_hangs(receiver, monkeypatch):
    monkeypatch.setattr("waltap.ports.notifications.webhook_channel.CLOSE_S", 0.05)
    receiver.hold.clear()
    sent = channel(receiver)
    for number in range(3):
        sent.send(numbered(number))
    with pytest.raises(WebhookDown, match="3 notifications were not taken"):
        sent.close()


def test_without_httpx_the_extra_is_named(receiver, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    # As in an installation without httpx: the client is not imported yet.
    monkeypatch.delitem(sys.modules, "waltap.base.network.http", raising=False)
    with pytest.raises(LibraryMissing, match=r"pip install 'waltap\[webhook\]'"):
        channel(receiver)


def test_what_is_no_address_is_refused():
    for url in ("", "ftp://h/x", "https:/h", "http://", "hooks.example.com"):
        with pytest.raises(ValueError, match="pattern"):
            WebhookProperties.model_validate({"notification.webhook.url": url})


@pytest.mark.needs_postgres
def test_a_pipeline_streams_on_while_its_webhook_is_down(database, tmp_path, late, caplog):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    pipeline = PipelineRig(
        database,
        tmp_path,
        {
            "notification.enabled.channels": "webhook",
            "notification.webhook.url": late.url,
            "notification.webhook.max.retries": 0,
        },
    )
    with pipeline.running() as run:
        run.until(lambda: run.engine.status().notifications_lost == 4, "the snapshot's steps")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "the stream")
        late.start()
        run.engine.signal("nonsense")
        run.until(lambda: late.taken, "a notification behind the outage")
        assert run.engine.status().notifications_lost == 4
    assert [d["aggregate_type"] for d in late.documents()] == ["Signal"]
    assert sum("does not take notifications" in r.getMessage() for r in caplog.records) == 1
