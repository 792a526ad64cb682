"""Secrets never leave the process: what hides them in messages, logs and listings.

Two ways in which a secret can get into a text: it was given to a property that holds one (`hide` is
told its value), or it stands in a connection string that is quoted (recognised by its form).
"""

import re
from collections.abc import Iterable

__all__ = ["HIDDEN", "hide", "looks_secret", "redacted"]

HIDDEN = "***"
"""What stands for the value of a secret wherever values are shown."""

SHORTEST = 4
"""Shorter values would be found in half the words of a message, and keep nobody out."""

SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|authorization|jaas|auth\.user|private|api.?key|scram|sas.?key|access.?key",
    re.IGNORECASE,
)
USERINFO = re.compile(r"(:/{1,2}[^:/@\s]*):\S*@")
ASSIGNED = re.compile(
    r"(?i)((?<![\w.])(?:\w*password|\w*passwd|\w*passphrase|pwd|\w*secret|\w*token)\s*=\s*)"
    r"('(?:[^'\\]|\\.)*'?|[^\s&;,'\"`]+)"
)
"""``password=…`` in a query or in libpq's key=value form."""

_hidden: set[str] = set()


def looks_secret(name: str) -> bool:
    """Tell whether a property is a secret by its name."""
    return SECRET_NAME.search(name) is not None


def hide(secrets: Iterable[str]) -> None:
    """Hide these values in all texts from now on."""
    _hidden.update(secret for secret in secrets if len(secret) >= SHORTEST)


def redacted(text: str) -> str:
    """Return ``text`` without the values that are to be hidden, and without passwords in URIs."""
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = USERINFO.sub(rf"\1:{HIDDEN}@", text)
    return ASSIGNED.sub(rf"\1{HIDDEN}", text)
