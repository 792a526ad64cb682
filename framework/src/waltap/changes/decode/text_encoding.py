"""Encodings of text that output plugins send unconverted.

Such plugins send text in the encoding of the database.
"""

from collections.abc import Mapping

# PostgreSQL's name → Python's. Only encodings of one byte a character: for these Python's tables
# equal the server's, which a test verifies. For encodings of more bytes the tables differ.
SINGLE_BYTE: Mapping[str, str] = {
    **{
        f"LATIN{n}": f"iso8859-{part}"
        for n, part in enumerate((1, 2, 3, 4, 9, 10, 13, 14, 15, 16), 1)
    },
    **{f"ISO_8859_{part}": f"iso8859-{part}" for part in (5, 6, 7, 8)},
    **{f"WIN{page}": f"cp{page}" for page in (866, 874, *range(1250, 1259))},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}

# SQL_ASCII is unknown bytes: the server converts nothing, so text counts as UTF-8.
_AS_IT_IS = frozenset(("UTF8", "SQL_ASCII"))


def is_converted(encoding: str) -> bool:
    """Return whether text of a database in ``encoding`` can be read."""
    return encoding in _AS_IT_IS or encoding in SINGLE_BYTE


def codec_of(encoding: str) -> str | None:
    """Return Python's codec for ``encoding``, or None for UTF-8."""
    return SINGLE_BYTE.get(encoding)
