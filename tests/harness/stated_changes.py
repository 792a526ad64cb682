"""What a history of changes says, as lines of text: the expectations of recorded sessions.

    I t_default 1|one|NULL              the new row
    + U t_full 2|=|x <- 1|-|a           a further change of the same transaction: new row, and the old one
    T t_parent,t_child 11               tables, with CASCADE, with RESTART IDENTITY
    M prefix content                    a message that is not transactional

``=`` is a value that was not sent, ``-`` one that the image does not have; ``{T}`` stands for a long text.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from waltap.changes.decode import ABSENT, UNCHANGED

WORDS: dict[str, Any] = {"NULL": None, "=": UNCHANGED, "-": ABSENT}


def stated_changes(text: str, long: Mapping[str, str] | None = None) -> list[tuple[Any, ...]]:
    """Return what `tests.harness.captures.reported` returns of messages that say the same."""

    def row(written: str) -> tuple[Any, ...]:
        return tuple(
            WORDS[value] if value in WORDS else (long or {}).get(value, value)
            for value in written.split("|")
        )

    found: list[tuple[Any, ...]] = []
    for line in textwrap.dedent(text).strip("\n").split("\n"):
        if found and not line.startswith("+ ") and found[-1][0] != "M":
            found.append(("C",))
        kind, name, rest = line.removeprefix("+ ").split(" ", 2)
        new, _, old = rest.partition(" <- ")
        tables = [f"public.{each}" for each in name.split(",")]
        match kind:
            case "M":
                found.append((kind, False, name, rest.encode()))
            case "T":
                found.append((kind, tables, rest[0] == "1", rest[1] == "1"))
            case "U":
                found.append((kind, *tables, row(new), row(old) if old else ()))
            case _:
                found.append((kind, *tables, row(new)))
    return [*found, ("C",)]
