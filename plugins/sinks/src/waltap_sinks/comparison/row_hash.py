"""A text and a hash of each row, in SQL and in Python alike.

The hash of a table is the sum of a hash of each row, so that neither side has to sort. NULL is told apart
from every text by writing values with their length in front. Sans-IO.
"""

from collections.abc import Sequence
from hashlib import md5
from typing import Final

__all__ = [
    "HASH_DIGITS",
    "bucket_of",
    "hash_of",
    "line_of",
    "row_text",
    "short_hash",
    "source_bucket",
    "source_row_hash",
]

HASH_DIGITS: Final = 15
"""Hexadecimal digits of each row's MD5 that are summed up: 60 bits, positive in every database."""


def row_text(columns: Sequence[str]) -> str:
    """Return SQL, of any database, of one text for a row of ``columns`` (texts or NULLs)."""
    parts = [
        f"CASE WHEN ({text}) IS NULL THEN '-' ELSE concat(length({text}), ':', {text}) END"
        for text in columns
    ]
    return f"concat_ws(',', {', '.join(parts)})" if parts else "''"


def source_row_hash(columns: Sequence[str]) -> str:
    """Return the sum of row hashes as PostgreSQL computes it, a numeric without fraction."""
    text = f"convert_to({row_text(columns)}, 'UTF8')"
    one = f"('x' || substr(md5({text}), 1, {HASH_DIGITS}))::bit({4 * HASH_DIGITS})::bigint"
    return f"coalesce(sum({one}), 0)::text"


def source_bucket(key: Sequence[str]) -> str:
    """Return SQL of PostgreSQL for the bucket of a row."""
    return f"substr(md5(convert_to({row_text(key)}, 'UTF8')), 1, 3)"


def line_of(row: Sequence[str | None]) -> str:
    """Return what `row_text` gives for a row."""
    return ",".join(["-" if text is None else f"{len(text)}:{text}" for text in row])


def hash_of(row: Sequence[str | None]) -> int:
    """Return the hash of a row, of which `source_row_hash` is the sum."""
    digest = md5(line_of(row).encode(), usedforsecurity=False).hexdigest()
    return int(digest[:HASH_DIGITS], 16)


def bucket_of(key: Sequence[str | None]) -> str:
    """Return what `source_bucket` gives for a key."""
    return md5(line_of(key).encode(), usedforsecurity=False).hexdigest()[:3]


def short_hash(total: str) -> str:
    """Return a sum of hashes as 16 hexadecimal digits."""
    return f"{int(total) % (1 << 64):016x}"
