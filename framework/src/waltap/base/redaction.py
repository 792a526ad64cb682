"""Hide secrets in messages, logs and listings.

A secret gets into a text in two ways. It is the value of a secret property: `hide` knows these values.
Or it is part of a quoted connection string: a pattern recognizes its form.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, urlsplit

HIDDEN = "***"
"""Replaces the value of a secret in every text."""

SHORTEST = 8
"""Least length of a value that is hidden everywhere.

A shorter value would match half the words of a message. It is hidden where its property is shown, and
where a message quotes it.
"""

SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|authorization|jaas|auth\.user|private|api.?key|scram|sas.?key|access.?key",
    re.IGNORECASE,
)
# The name of a credentials profile, such as AWS's ``default``, is not secret: hiding it would remove the
# word from all texts. A time limit of a login is not secret either.
NO_SECRET_NAME = re.compile(r"profile$|\.timeout\.ms$", re.IGNORECASE)

USERINFO = re.compile(r"(:/{1,2}[^:/@\s]*):\S*@")
ASSIGNED = re.compile(
    r"(?i)((?<![\w.])(?:\w*password|\w*passwd|\w*passphrase|pwd|\w*secret|\w*token)\s*=\s*)"
    r"('(?:[^'\\]|\\.)*'?|[^\s&;,'\"`]+)"
)
"""``password=…`` in a query or in libpq's key=value form."""
SALT = re.compile(r"(\.with\.salt\.)(?!SALT\b)[^\s=,;)'\"`]+")
"""The salt of hashes, which is a part of its property's name."""

HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")

_hidden: set[str] = set()
_known = re.compile(r"(?!)")
_passing: tuple[tuple[str, tuple[str, ...]], ...] = ()

PASSING = 16
"""Number of the latest short-lived secrets, such as tokens, that are hidden."""


class Secret(str):
    """A text whose ``repr`` hides its secret.

    Debuggers, notebooks and crash reporters show the ``repr``. If only a part is secret, such as the
    password in an address, the rest is shown.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        plain = str(self)
        shown = redacted(plain)
        return repr(HIDDEN if shown == plain else shown)


def looks_secret(name: str) -> bool:
    """Return whether a property is secret by its name."""
    return SECRET_NAME.search(name) is not None and NO_SECRET_NAME.search(name) is None


def hide(secrets: Iterable[str]) -> None:
    """Hide these values, in every written form, in all later texts."""
    global _known  # noqa: PLW0603 - the values are hidden in the whole process
    new = {secret for secret in secrets if len(secret) >= SHORTEST}
    if new <= _hidden:
        return
    _hidden.update(new)
    forms = {form for secret in _hidden for form in _forms(str(secret))}
    _known = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))


def hide_passing(secret: str) -> None:
    """Hide a short-lived value in all texts until `PASSING` others follow."""
    global _passing  # noqa: PLW0603 - the values are hidden in the whole process
    if len(secret) < SHORTEST or secret in _hidden or any(secret == each for each, _ in _passing):
        return
    forms = tuple(sorted(set(_forms(secret)), key=len, reverse=True))
    _passing = (*_passing[1 - PASSING :], (secret, forms))


def redacted(text: str) -> str:
    """Return ``text`` without hidden values and passwords in URIs."""
    text = _known.sub(HIDDEN, text)
    for _, forms in _passing:
        for form in forms:
            text = text.replace(form, HIDDEN)
    text = USERINFO.sub(rf"\1:{HIDDEN}@", text)
    return ASSIGNED.sub(rf"\1{HIDDEN}", SALT.sub(rf"\1{HIDDEN}", text))


def without(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without these values.

    Short values are removed only where they are quoted.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
        else:
            quoted = rf"""(['"`]){re.escape(secret)}\1"""
            text = re.sub(quoted, rf"\1{HIDDEN}\1", text)
    return text


def without_frames(error: BaseException) -> BaseException:
    """Return ``error`` and its causes without their frames.

    It is for errors of drivers that have a password in a frame: a traceback with local variables would
    show it.
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
    """Return ``text`` with a star for each character of its passwords."""
    spans = [(found.end(1) + 1, found.end() - 1) for found in USERINFO.finditer(text)]
    spans += [found.span(2) for found in ASSIGNED.finditer(text)]
    for start, end in spans:
        text = text[:start] + "*" * (end - start) + text[end:]
    return text


def _forms(secret: str) -> Iterator[str]:
    """Yield the written forms of ``secret``.

    They are the plain text, the quoted forms of URLs, JSON, Python and libpq, and base64.
    """
    yield secret
    yield from (quote(secret), quote(secret, safe=""), quote_plus(secret))
    for text in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        yield text[1:-1]
    yield secret.replace("\\", "\\\\").replace("'", "\\'")
    data = secret.encode("utf-8", "surrogatepass")
    # base64 encodes three bytes at a time, so the secret's offset in the data changes its form.
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        padded = b"\0" * before + data
        padded = padded[: len(padded) // 3 * 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            piece = encode(padded).decode()[dropped:]
            if len(piece) >= SHORTEST:
                yield piece


def whole_address(text: str | None) -> str | None:
    """Return an address unchanged if its parts can be read.

    Raises: ValueError, which quotes no part of it: the address may contain a password.
    """
    try:
        # A special character in a password splits the address at the wrong character.
        parts = urlsplit(text if text and "://" in text else f"//{text or ''}")
        port = parts.port
        (parts.hostname or "").encode("idna")  # as the resolver does, with errors of its own
    except ValueError:
        port = 0
    if port == 0:
        what = "cannot be read; characters such as / ? # @ : in a password are written %2F %3F …"
        raise ValueError(what)
    return text


def header_value(text: str | None) -> str | None:
    """Return a header's value unchanged if HTTP can send it.

    Raises: ValueError, which quotes no part of it.
    """
    if HEADER_VALUE.fullmatch(text or "") is None:
        what = "is no HTTP header's value: printable ASCII, without a blank or line end around it"
        raise ValueError(what)
    return text


def header_values(named: dict[str, str]) -> dict[str, str]:
    """Return properties that are HTTP headers unchanged if HTTP can send them.

    Raises: ValueError with the first name, and no value.
    """
    for name, value in named.items():
        try:
            header_value(value)
        except ValueError as cause:
            raise ValueError(f"{name} {cause}") from cause
    return named


def host_of(url: str) -> str:
    """Return the scheme and the host of an address.

    Messages leave the rest out: user, path and query may have secrets.
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
