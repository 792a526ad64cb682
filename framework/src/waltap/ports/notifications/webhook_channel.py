"""Send each notification as a signed HTTP POST.

This is the notification channel ``webhook``; signatures follow Standard Webhooks. The engine puts
notifications into a bounded queue and never waits. A thread sends them in order and retries each
until the receiver accepts it, refuses it, or the retries are used up. Lost notifications are
counted. The log has one line when the receiver fails and one when it recovers.
"""

import json
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from pydantic import field_validator

from waltap.base.network.retry import RetryBackoff
from waltap.base.plugin_errors import needing
from waltap.base.property import Maybe, Positive, Properties, Whole, declare, declare_family
from waltap.base.redaction import header_values, host_of, whole_address
from waltap.changes.transactions.transaction import Notification
from waltap.clock import SystemClock, new_identifier, system_chance
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from waltap.base.network.http import HttpAnswer

log = logging.getLogger(__name__)

HEADER = "notification.webhook.header."


class WebhookProperties(Properties):
    """Where the notification channel `webhook` sends."""

    url: str = declare(
        "notification.webhook.url",
        pattern=r"^[hH][tT][tT][pP][sS]?://[^\s/?#]+\S*$",
        secret=True,
        summary="Address that gets each notification as an HTTP POST of JSON with id, type, "
        "aggregate_type, additional_data and timestamp. Messages show only its host.",
        examples=("https://hooks.example.com/waltap",),
    )
    key: Maybe[str] = declare(
        "notification.webhook.secret",
        min_length=1,
        secret=True,
        summary="Key of the HMAC-SHA256 in the header webhook-signature, by Standard Webhooks: "
        "any text, or whsec_ and base64; empty: no signature.",
    )
    timeout_ms: Positive = declare(
        "notification.webhook.timeout.ms",
        default=10_000,
        le=2**31 - 1,
        summary="How long one try may take to connect, and to answer.",
    )
    retries: Whole = declare(
        "notification.webhook.max.retries",
        default=8,
        summary="How often a notification is tried again; waits double from 0.2 s to 30 s.",
    )
    queue_size: Positive = declare(
        "notification.webhook.queue.size",
        default=1000,
        summary="So many notifications may wait; further ones are counted and left out.",
    )
    headers: dict[str, str] = declare_family(
        "notification.webhook.header.NAME",
        pattern=r"notification\.webhook\.header\.[!#$%&'*+.^_`|~0-9A-Za-z-]+",
        summary="A header of each request, such as notification.webhook.header.Authorization. "
        "Its value is not shown.",
        secret=True,
    )

    _full_address = field_validator("url")(whole_address)
    _of_headers = field_validator("headers")(header_values)


LONGEST_WAIT_S: Final = 30.0
CLOSE_S: Final = 5.0
"""How long `close` waits for the queued notifications."""

WebhookDown = WaltapError.define("WebhookDown", "WT-4201")


class WebhookNotifications:
    """Send notifications to one address.

    ``lost`` counts the notifications that the receiver did not accept.
    """

    def __init__(self, properties: WebhookProperties) -> None:
        """Prepare the client. Raises: LibraryMissing."""
        with needing("the notification channel webhook needs httpx", extra="webhook"):
            from waltap.base.network.http import HttpClient, WebhookSignature
        self._properties = properties
        self.host = host_of(properties.url)
        key = properties.key
        self._signature = None if key is None else WebhookSignature(key)
        # made here, because it reads the trusted certificates, which must not fail in the thread
        self._client = HttpClient(
            timeout_s=properties.timeout_ms / 1000,
            stopping=lambda: self._cut,
            headers={
                "Content-Type": "application/json",
                # the rest of a property's name is the name of its header
                **{name[len(HEADER) :]: value for name, value in properties.headers.items()},
            },
        )
        self._clock, self._chance = SystemClock(), system_chance()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._change = threading.Condition()
        # closing: send the rest; cut: the time for the rest is over
        self._closing = self._cut = False
        self._thread: threading.Thread | None = None
        self.lost, self._down, self._lost_before = 0, False, 0

    def send(self, notification: Notification) -> None:
        """Queue a notification, or drop it from a full queue.

        Only the first loss is logged.
        """
        body = json.dumps(notification.document(), ensure_ascii=False).encode()
        with self._change:
            if self._closing:
                return
            full = len(self._queue) >= self._properties.queue_size
            if full:
                self.lost += 1
            else:
                self._queue.append((f"msg_{new_identifier(self._chance)}", body))
                self._change.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="waltap-webhook", daemon=True
                )
                self._thread.start()
        if full:
            self._warn(f"{self._properties.queue_size} notifications wait already")

    def close(self) -> None:
        """Send the queued notifications, for at most 5 s.

        May be called twice. Raises: WebhookDown, if notifications were lost.
        """
        with self._change:
            if self._closing:
                return
            self._closing = True
            self._change.notify()
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)
            # a receiver that still does not answer must not hold up the end of the run
            with self._change:
                self._cut = True
                self._change.notify()
            self._client.close()  # interrupts a request that still waits for its answer
            thread.join(1)
        else:
            self._client.close()
        lost = self.lost + len(self._queue)
        self._queue.clear()
        self.lost = lost
        if lost:
            raise WebhookDown(f"webhook {self.host}: {lost} notifications were not taken")

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._queue and not self._closing:
                    self._change.wait()
                if not self._queue or self._cut:
                    return
                # the head stays queued while it is sent, so that `close` can count it
                identifier, body = self._queue[0]
            accepted = self._deliver(identifier, body)
            with self._change:
                if self._cut:
                    return  # `close` counts the head of the queue as lost with the rest
                self._queue.popleft()
                self.lost += not accepted

    def _deliver(self, identifier: str, body: bytes) -> bool:
        """Send one notification with retries.

        Returns whether the receiver accepted it.
        """
        waits = RetryBackoff(
            self._wait,
            retries=self._properties.retries,
            ceiling_s=LONGEST_WAIT_S,
            chance=self._chance,
        )
        while True:
            answer = self._post(identifier, body)
            if not answer.problem:
                self._answers()
                return True
            if self._cut:
                return False
            self._warn(answer.problem)
            if not (answer.again and waits.wait(min(LONGEST_WAIT_S, answer.wait_s))):
                return False

    def _wait(self, seconds: float) -> bool:
        """Wait; return False once `close` cuts the wait."""
        with self._change:
            return not self._change.wait_for(lambda: self._cut, seconds)

    def _post(self, identifier: str, body: bytes) -> "HttpAnswer":
        now = self._clock.time_ns() // 1_000_000_000
        headers = {"webhook-id": identifier, "webhook-timestamp": str(now)}
        if self._signature is not None:
            headers |= self._signature.headers(identifier, now, body)
        try:
            return self._client.send("POST", self._properties.url, content=body, headers=headers)
        # such as a client that `close` has ended
        except Exception as cause:  # noqa: BLE001
            from waltap.base.network.http import HttpAnswer

            return HttpAnswer(problem=f"{type(cause).__name__}: {cause}")

    def _warn(self, text: str) -> None:
        with self._change:
            known, self._down = self._down, True
            if not known:
                self._lost_before = self.lost
        if not known:
            log.warning(
                "webhook %s does not take notifications: %s; the stream continues",
                self.host,
                text,
                extra={"error_code": WebhookDown.code},
            )

    def _answers(self) -> None:
        with self._change:
            known, self._down = self._down, False
            lost = self.lost - self._lost_before
        if known:
            log.info("webhook %s takes notifications again; %d were lost", self.host, lost)
