"""Secrets never leave the process: what hides them in messages, logs and listings.

Two ways in which a secret can get into a text: it was given to a property that holds one (`hide` is
told its value), or it stands in a connection string that is quoted (recognised by its form).
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

__all__ = [
    "HIDDEN",
    "Secret",
    "hide",
    "hide_passing",
    "looks_secret",
    "masked",
    "redacted",
    "without",
    "without_frames",
]

HIDDEN = "***"
"""What stands for the value of a secret wherever values are shown."""

SHORTEST = 8
"""Shorter values would be found in half the words of a message: those are hidden where they are written,
as values of their properties, and where a message quotes them."""

SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|authorization|jaas|auth\.user|private|api.?key|scram|sas.?key|access.?key",
    re.IGNORECASE,
)
NO_SECRET_NAME = re.compile(r"profile$|\.timeout\.ms$", re.IGNORECASE)
"""The name of a profile of credentials, as AWS's, is none of them: ``default`` would go from all texts.
Neither is the longest time that one may take to be had."""

USERINFO = re.compile(r"(:/{1,2}[^:/@\s]*):\S*@")
ASSIGNED = re.compile(
    r"(?i)((?<![\w.])(?:\w*password|\w*passwd|\w*passphrase|pwd|\w*secret|\w*token)\s*=\s*)"
    r"('(?:[^'\\]|\\.)*'?|[^\s&;,'\"`]+)"
)
"""``password=…`` in a query or in libpq's key=value form."""

_hidden: set[str] = set()
_known = re.compile(r"(?!)")
_passing: tuple[tuple[str, tuple[str, ...]], ...] = ()

PASSING = 16
"""So many secrets that come and go, as tokens do, are hidden at a time: the latest."""


class Secret(str):
    """A text whose ``repr`` does not tell it: what debuggers, notebooks and reporters of crashes show.

    One that has a secret only in a part, as an address with a password does, shows the rest.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """Return how it may be shown."""
        plain = str(self)
        shown = redacted(plain)
        return repr(HIDDEN if shown == plain else shown)


def looks_secret(name: str) -> bool:
    """Tell whether a property is a secret by its name."""
    return SECRET_NAME.search(name) is not None and NO_SECRET_NAME.search(name) is None


def hide(secrets: Iterable[str]) -> None:
    """Hide these values in all texts from now on, in every form that a text may have them in."""
    global _known  # noqa: PLW0603 - what is hidden is hidden in the whole process
    new = {secret for secret in secrets if len(secret) >= SHORTEST}
    if new <= _hidden:
        return
    _hidden.update(new)
    forms = {form for secret in _hidden for form in _forms(str(secret))}
    _known = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))


def hide_passing(secret: str) -> None:
    """Hide a value that another follows before long, in every form, until `PASSING` others came."""
    global _passing  # noqa: PLW0603 - what is hidden is hidden in the whole process
    if len(secret) < SHORTEST or secret in _hidden or any(secret == each for each, _ in _passing):
        return
    forms = tuple(sorted(set(_forms(secret)), key=len, reverse=True))
    _passing = (*_passing[1 - PASSING :], (secret, forms))


def redacted(text: str) -> str:
    """Return ``text`` without the values that are to be hidden, and without passwords in URIs."""
    text = _known.sub(HIDDEN, text)
    for _, forms in _passing:
        for form in forms:
            text = text.replace(form, HIDDEN)
    text = USERINFO.sub(rf"\1:{HIDDEN}@", text)
    return ASSIGNED.sub(rf"\1{HIDDEN}", text)


def without(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without these values: short ones only where they are quoted."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
        else:
            quoted = rf"""(['"`]){re.escape(secret)}\1"""
            text = re.sub(quoted, rf"\1{HIDDEN}\1", text)
    return text


def without_frames(error: BaseException) -> BaseException:
    """Return ``error`` without the frames that raised it and what it came of.

    For errors of drivers that were given a password: whoever shows a traceback with its locals would show
    it from their frames.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        at = waiting.pop()
        if at is not None and id(at) not in seen:
            seen.add(id(at))
            at.__traceback__ = None
            waiting += (at.__cause__, at.__context__)
    return error


def masked(text: str) -> str:
    """Return ``text`` with a star for each character of the passwords that its form tells."""
    spans = [(found.end(1) + 1, found.end() - 1) for found in USERINFO.finditer(text)]
    spans += [found.span(2) for found in ASSIGNED.finditer(text)]
    for start, end in spans:
        text = text[:start] + "*" * (end - start) + text[end:]
    return text


def _forms(secret: str) -> Iterator[str]:
    """Give ``secret`` as it is, quoted for URLs, JSON, Python, libpq; in base64, wherever it begins."""
    yield secret
    yield from (quote(secret), quote(secret, safe=""), quote_plus(secret))
    for text in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        yield text[1:-1]
    yield secret.replace("\\", "\\\\").replace("'", "\\'")
    data = secret.encode("utf-8", "surrogatepass")
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        whole = b"\0" * before + data
        whole = whole[: len(whole) // 3 * 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            piece = encode(whole).decode()[dropped:]
            if len(piece) >= SHORTEST:
                yield piece
