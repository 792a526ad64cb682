"""Names of relations as users write them.

A name is ``schema.table``; parts are quoted as in SQL where they need it.
"""

import re

__all__ = ["name_parts", "schema_and_table"]

PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def name_parts(text: str) -> list[str]:
    """Return the unquoted parts between the dots outside quotes.

    The list is empty where ``text`` is not a well-formed name.
    """
    parts, at = [], 0
    while match := PART.match(text, at):
        parts.append((match[1] or match[2]).replace('""', '"'))
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            break
        at += 1
    return []


def schema_and_table(text: str) -> tuple[str, str] | None:
    """Return (schema, table), or None when ``text`` lacks one of them."""
    parts = name_parts(text) if '"' in text else []
    if len(parts) == 2:
        return parts[0], parts[1]
    # Without quotes the first dot separates: a table may have dots in its name.
    schema, _, table = text.partition(".")
    return (schema, table) if schema and table else None
