"""The lines of ``test_decoding``, as patterns, and the literals in them.

    BEGIN 731
    table public.t: INSERT: id[integer]:1 name[text]:'it''s' big[text]:null
    table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 name[text]:'x' …
    table public.t: DELETE: id[integer]:2
    table public.t, public.u: TRUNCATE: restart_seqs cascade
    message: transactional: 1 prefix: app, sz: 5 content:hello
    COMMIT 731 (at 2026-11-20 08:49:54.406736+00)

Source: contrib/test_decoding/test_decoding.c of PostgreSQL 15.
"""

import re

from waltap.changes.decode import UNCHANGED, Value

# [grammar]
NAME = r'(?:"[^"]*(?:""[^"]*)*"|[^"\s\[\].,:]+)'
TYPE = r'(?:[^"\[\]]|\[\]|"[^"]*(?:""[^"]*)*")*'
TEXT = r"B?'[^']*(?:''[^']*)*'"
BEGIN = re.compile(r"BEGIN ([0-9]{1,10})\Z")
COMMIT = re.compile(r"COMMIT ([0-9]{1,10}) \(at ([-+:. 0-9]+)\)\Z")
CHANGE = re.compile(rf"table ({NAME})\.({NAME}): (INSERT|UPDATE|DELETE):")
COLUMN = re.compile(rf" ({NAME})\[({TYPE})\]:({TEXT}|[^' ]+)(?= |\Z)")
TABLE = re.compile(rf"({NAME})\.({NAME})")
TABLES = rf"{NAME}\.{NAME}(?:, {NAME}\.{NAME})*"
FLAGS = r"(?: \(no-flags\)|( restart_seqs)?( cascade)?)"
TRUNCATE = re.compile(rf"table ({TABLES}): TRUNCATE:{FLAGS}\Z")
MESSAGE = re.compile(rb"message: transactional: ([01]) prefix: ")
CONTENT = re.compile(rb", sz: ([0-9]{1,10}) content:")
# [/grammar]

Pairs = list[tuple[str, str, Value]]
"""(name, type, value) of each column of one tuple, as the line has them."""


class Unexpected(Exception):
    """At this byte of the line, one thing was expected and another found."""


# [values]
def columns(line: str, at: int, mark: str) -> tuple[Pairs, int]:
    """Read the columns from character ``at`` up to ``mark``, or to the end; return them, and where
    what follows begins."""
    pairs = Pairs()
    while found := COLUMN.match(line, at):
        pairs.append((bare(found[1]), found[2], value(found[3], found[2])))
        at = found.end()
    if not pairs or not (line.startswith(mark, at) if mark else at == len(line)):
        offset = len(line[:at].encode())
        raise Unexpected(offset, f"columns, then {mark or 'the end'}", repr(line[at : at + 20]))
    return pairs, at + len(mark)


def value(text: str, kind: str) -> Value:
    """Return what PostgreSQL prints for the value: the line has literals of SQL."""
    if text == "null":
        return None
    if text == "unchanged-toast-datum":
        return UNCHANGED
    if text.endswith("'"):
        return text[text.index("'") + 1 : -1].replace("''", "'")
    return text[0] if kind == "boolean" else text


def bare(name: str) -> str:
    """Return an identifier without its quotes."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


# [/values]
