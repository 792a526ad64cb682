"""Name columns in Spark tables by the rules of a profile.

Names change where Spark reads rows of the change log, and nowhere else. From there on, keys,
versions, unsent values and renames use the table's names. A column is its number in the source,
so another rule has the effect of a rename in the source. Knows no Spark.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap_spark.errors import NamesClash
from waltap_spark.schema.schema import LOG_FIELDS
from waltap_spark.state.modes import DELETED, VERSION, of_rules

if TYPE_CHECKING:
    from waltap_spark.planning.plan import SegmentGroup


STYLES: Final = ("as-is", "lower", "snake")
# Names of columns that waltap adds to tables.
RESERVED: Final = frozenset({*LOG_FIELDS, *VERSION, *DELETED})


class ColumnNames:
    """Names columns by rules; without a rule they keep their names.

    ``renames`` are COLUMN-REGEX:NAME for ``schema.table.column`` as the source writes it; the
    first match decides. ``styles`` are TABLE-REGEX:STYLE, or STYLE alone for all other tables.
    They apply to columns that no rename names.
    """

    def __init__(self, styles: Sequence[str] = (), renames: Sequence[str] = ()) -> None:
        self._styles, self._renames = tuple(styles), tuple(renames)

    def of(self, table: str, column: str, *, ruled_as: str = "") -> str:
        """Return the name of ``column`` of ``table`` (``schema.table``).

        ``ruled_as`` is the table name that style rules match, where it differs.
        """
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
        """Rename the columns of ``group`` by the rules.

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
        # files with other names need another version of the schema, so another fingerprint
        renamed = "\n".join(f"{name}\t{new}" for name, new in sorted(called.items()))
        group.fingerprint += f"-{hashlib.sha256(renamed.encode()).hexdigest()[:8]}"


def _require_apart(table: str, found: dict[str, str]) -> None:
    """Require distinct column names that waltap does not use itself.

    Raises: NamesClash.
    """
    taken: dict[str, str] = {}
    for name, new in found.items():
        # a source's own column may have a reserved name; only a rule must not create one
        if not new or (new != name and new.lower() in RESERVED):
            raise NamesClash(f"column {name} of {table} would be called {new!r}, which is taken")
        other = taken.setdefault(new, name)
        if other != name:
            raise NamesClash(f"columns {other} and {name} of {table} would both be called {new}")


def _snake(name: str) -> str:
    """Return ``name`` as words in lower case, joined by underscores.

    ``OrderID`` becomes ``order_id``.
    """
    parted = re.sub(r"([^\W_A-Z])([A-Z])", r"\1_\2", name)
    parted = re.sub(r"([A-Z])([A-Z][a-z])", r"\1_\2", parted)
    return re.sub(r"\W+", "_", parted).lower()


def checked_renames(rules: Sequence[str]) -> None:
    """Check that each rule is COLUMN-REGEX:NAME.

    Raises: ValueError.
    """
    for rule in rules:
        pattern, _colon, name = rule.rpartition(":")
        if not pattern or not name.strip():
            raise ValueError(f"{rule!r} is not COLUMN-REGEX:NAME")
        java_replacement(name.strip(), java_pattern(pattern, ignore_case=False))
