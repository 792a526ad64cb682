"""Names of relations as people write them: ``schema.table``, parts quoted as in SQL where they need it."""

import re

__all__ = ["name_parts", "schema_and_table"]

PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def name_parts(text: str) -> list[str]:
    """Return the parts that dots outside quotes separate, unquoted; [] when they cannot be told."""
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
    """Return (schema, table); None when ``text`` does not have both.

    Without quotes the first dot parts them: a table may have dots in its name.
    """
    parts = name_parts(text) if '"' in text else []
    if len(parts) == 2:
        return parts[0], parts[1]
    schema, _, table = text.partition(".")
    return (schema, table) if schema and table else None
