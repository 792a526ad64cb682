"""Properties of the notification channel ``webhook``."""

from pydantic import field_validator

from waltap.base.address import whole_address
from waltap.base.property import Properties, declare, declare_family

__all__ = ["HEADER", "WebhookProperties"]

HEADER = "notification.webhook.header."


class WebhookProperties(Properties):
    """Where the notification channel `webhook` sends."""

    url: str = declare(
        "notification.webhook.url",
        pattern=r"^[hH][tT][tT][pP][sS]?://[^\s/?#]+\S*$",
        secret=True,
        summary="Address that gets each notification as an HTTP POST of JSON with id, type, "
        "aggregate_type, additional_data and timestamp. No message shows more of it than the host.",
        examples=("https://hooks.example.com/waltap",),
    )
    key: str | None = declare(
        "notification.webhook.secret",
        default=None,
        min_length=1,
        secret=True,
        summary="Key of the HMAC-SHA256 in the header webhook-signature, as Standard Webhooks defines it: "
        "any text, or whsec_ with base64 behind it; empty: no signature.",
    )
    timeout_ms: int = declare(
        "notification.webhook.timeout.ms",
        default=10_000,
        ge=1,
        summary="How long one try may take to connect, and to answer.",
        unit="ms",
        advanced=True,
    )
    retries: int = declare(
        "notification.webhook.max.retries",
        default=8,
        ge=0,
        summary="How often a notification is tried again; waits double from 0.2 s to 30 s.",
    )
    queue_size: int = declare(
        "notification.webhook.queue.size",
        default=1000,
        ge=1,
        summary="So many notifications may wait; further ones are counted and left out.",
    )
    headers: dict[str, str] = declare_family(
        "notification.webhook.header.NAME",
        pattern=r"notification\.webhook\.header\.[!#$%&'*+.^_`|~0-9A-Za-z-]+",
        summary="A header of each request, such as notification.webhook.header.Authorization. "
        "Its value is not shown.",
        secret=True,
    )

    _whole = field_validator("url")(whole_address)
