"""What several users of HTTP share: signatures, and the waits that servers ask for. Sans-IO."""

from waltap.http.retry_after import TRIES_AGAIN, retry_after
from waltap.http.webhook_signature import WebhookSignature

__all__ = ["TRIES_AGAIN", "WebhookSignature", "retry_after"]
