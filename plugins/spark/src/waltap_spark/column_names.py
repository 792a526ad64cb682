"""What columns are called in the tables: as in the source, or by rules of a profile. Knows no Spark.

Names change where rows of the change log are read, and nowhere else: keys, versions, what was not sent
and columns that the source renames all go by the names of the tables then. A column is its number in the
source, so that another rule is to a table what a rename in the source is.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap_spark.errors import NamesClash
from waltap_spark.modes import DELETED, VERSION, of_rules
from waltap_spark.schema import LOG_FIELDS

if TYPE_CHECKING:
    from waltap_spark.plan import SegmentGroup

__all__ = ["STYLES", "ColumnNames", "checked_renames"]

STYLES: Final = ("as-is", "lower", "snake")
RESERVED: Final = frozenset({*LOG_FIELDS, *VERSION, *DELETED})
"""What tables have for something else."""


class ColumnNames:
    """``renames``: COLUMN-REGEX:NAME, of ``schema.table.column`` as it is written, first match wins;
    ``styles``: TABLE-REGEX:STYLE, or STYLE for all others, of what no rename names."""

    def __init__(self, styles: Sequence[str] = (), renames: Sequence[str] = ()) -> None:
        self._styles, self._renames = tuple(styles), tuple(renames)

    def of(self, table: str, column: str, *, ruled_as: str = "") -> str:
        """Return what ``column`` of ``table`` (``schema.table``) is called. ``ruled_as``: the name that
        rules by table go by, where it is another."""
        for rule in self._renames:
            pattern, _colon, name = rule.rpartition(":")
            compiled = java_pattern(pattern, ignore_case=False)
            match = compiled.fullmatch(f"{table}.{column}")
            if match is not None:
                return match.expand(java_replacement(name.strip(), compiled))
        style = of_rules(self._styles, ruled_as or table, "as-is")
        return (
            column if style == "as-is" else column.lower() if style == "lower" else _snake(column)
        )

    def name(self, group: "SegmentGroup", table: str, *, ruled_as: str = "") -> None:
        """Let the columns of ``group``, one of ``table``, be called as rules say.

        Raises: NamesClash.
        """
        if group.called or not (self._styles or self._renames):
            return
        names = [column.name for column in group.columns]
        found = {name: self.of(table, name, ruled_as=ruled_as) for name in names}
        _require_apart(table, found)
        called = {name: new for name, new in found.items() if new != name}
        if not called:
            return
        group.called = called
        group.columns = tuple(
            msgspec.structs.replace(each, name=found[each.name]) for each in group.columns
        )
        group.key = tuple(found.get(name, name) for name in group.key)
        group.unchanged = {found.get(name, name): None for name in group.unchanged}
        told = "\n".join(f"{name}\t{new}" for name, new in sorted(called.items()))
        group.fingerprint += f"-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def _require_apart(table: str, found: dict[str, str]) -> None:
    """Raises: NamesClash, when two columns are called alike, or one as what tables have besides."""
    taken: dict[str, str] = {}
    for name, new in found.items():
        if not new or (new != name and new.lower() in RESERVED):
            raise NamesClash(f"column {name} of {table} would be called {new!r}, which is taken")
        other = taken.setdefault(new, name)
        if other != name:
            raise NamesClash(f"columns {other} and {name} of {table} would both be called {new}")


def _snake(name: str) -> str:
    """Return ``name`` in lower case, its words joined by underscores: ``OrderID`` is ``order_id``."""
    parted = re.sub(r"([^\W_A-Z])([A-Z])", r"\1_\2", name)
    parted = re.sub(r"([A-Z])([A-Z][a-z])", r"\1_\2", parted)
    return re.sub(r"\W+", "_", parted).lower()


def checked_renames(rules: Sequence[str]) -> None:
    """Raises: ValueError, when a rule is not COLUMN-REGEX:NAME."""
    for rule in rules:
        pattern, _colon, name = rule.rpartition(":")
        if not pattern or not name.strip():
            raise ValueError(f"{rule!r} is not COLUMN-REGEX:NAME")
        java_replacement(name.strip(), java_pattern(pattern, ignore_case=False))
