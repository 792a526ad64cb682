"""Share signatures and retry rules among users of HTTP.

Sans-IO, except `waltap.base.http.exchange`.
"""

from waltap.base.http.retry_after import TRIES_AGAIN, retry_after
from waltap.base.http.webhook_signature import WebhookSignature

__all__ = ["TRIES_AGAIN", "WebhookSignature", "retry_after"]
