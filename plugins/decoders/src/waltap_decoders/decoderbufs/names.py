"""Names from the SQL identifiers that ``quote_identifier`` writes."""

import re

__all__ = ["unquoted", "unquoted_pair"]

_QUOTED = re.compile(r'"((?:[^"]|"")+)"').fullmatch
_PAIR = re.compile(r'("(?:[^"]|"")+"|[^".]+)\.("(?:[^"]|"")+"|[^".]+)').fullmatch


def unquoted(identifier: str) -> str:
    """Return the name that an identifier denotes.

    Raises: ValueError.
    """
    quoted = _QUOTED(identifier)
    if quoted:
        return quoted[1].replace('""', '"')
    if not identifier or '"' in identifier:
        message = "an identifier, quoted or plain"
        raise ValueError(message)
    return identifier


def unquoted_pair(identifier: str) -> tuple[str, str]:
    """Return schema and name of a qualified identifier.

    Raises: ValueError.
    """
    pair = _PAIR(identifier)
    if pair is None:
        message = "schema.table, each quoted or plain"
        raise ValueError(message)
    return unquoted(pair[1]), unquoted(pair[2])
