"""Sign requests as https://www.standardwebhooks.com defines it."""

import base64
import binascii
import hashlib
import hmac
from typing import Final

PREFIXED: Final = "whsec_"


class WebhookSignature:
    """Sign requests with one secret.

    The secret is any text, or ``whsec_`` and base64.
    """

    def __init__(self, secret: str) -> None:
        self._key = _key_of(secret)

    def headers(self, identifier: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return the headers of a signed request.

        ``seconds`` is the time since 1970 UTC. A repeated request keeps its ``identifier``.
        """
        signed = f"{identifier}.{seconds}.".encode() + body
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        return {
            "webhook-id": identifier,
            "webhook-timestamp": str(seconds),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def _key_of(secret: str) -> bytes:
    if secret.startswith(PREFIXED):
        try:
            return base64.b64decode(secret[len(PREFIXED) :], validate=True)
        except binascii.Error:
            # The secret only looks like an encoded one; its text is the key.
            pass
    return secret.encode()
