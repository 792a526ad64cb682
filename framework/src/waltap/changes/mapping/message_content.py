"""The content of logical messages under ``binary.handling.mode``."""

import base64
from collections.abc import Callable

__all__ = ["CONTENT_FORMS", "MESSAGE_COLLECTION"]

# Transaction metadata counts logical messages under this name.
MESSAGE_COLLECTION = "LOGICAL_DECODING_MESSAGE"

# Value of `binary.handling.mode` → bytes to Connect value.
CONTENT_FORMS: dict[str, Callable[[bytes], object]] = {
    "bytes": bytes,
    "base64": lambda content: base64.b64encode(content).decode(),
    "base64-url-safe": lambda content: base64.urlsafe_b64encode(content).decode(),
    "hex": bytes.hex,
}
