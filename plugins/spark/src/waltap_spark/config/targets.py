"""Names of tables in a catalogue, their owners, and file layout.

A table has its source's name unless a rule gives another; its history has that name with a suffix.
Two tables can get one name: ``orders_changes`` and the history of ``orders``, or ``Orders`` and
``orders`` in a catalogue that ignores case. The first table gets the name; waltap refuses the other
before it writes anything. This module does not import Spark.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap_spark.errors import FormatLimit, LayoutUnfit, NameTaken
from waltap_spark.schema.expression import quoted

if TYPE_CHECKING:
    from waltap_spark.state.output import TableState


# Suffix of the name of a table's history.
HISTORY: Final = "_changes"

# In file layout rules a history is ``schema.table`` with this suffix.
OF_HISTORY: Final = "/changes"

_TRANSFORM: Final = re.compile(
    r"(?P<plain>years|months|days|hours)\((?P<column>.+)\)"
    r"|(?P<counted>bucket|truncate)\(\s*(?P<count>\d+)\s*,\s*(?P<of>.+)\)",
    re.DOTALL,
)


def named(rules: Sequence[str], schema: str, table: str) -> tuple[str, str]:
    """Return a table's schema and name; the first rule wins.

    A rule is TABLE-REGEX:NAME; NAME is TABLE or SCHEMA.TABLE, with ``$1`` for groups. Patterns
    match ``schema.table`` with case. Raises: LayoutUnfit for an empty name.
    """
    for rule in rules:
        pattern, _colon, name = rule.rpartition(":")
        compiled = java_pattern(pattern, ignore_case=False)
        match = compiled.fullmatch(f"{schema}.{table}")
        if match is not None:
            own, dot, last = match.expand(java_replacement(name.strip(), compiled)).partition(".")
            found = (own, last) if dot else (schema, own)
            if not all(found):
                raise LayoutUnfit(f"{rule} gives {schema}.{table} no name: {'.'.join(found)!r}")
            return found
    return schema, table


def checked_names(rules: Sequence[str]) -> None:
    """Raises: ValueError, when a rule is not TABLE-REGEX:NAME."""
    for rule in rules:
        pattern, colon, name = rule.rpartition(":")
        parts = name.strip().split(".")
        if not colon or not pattern or not all(parts) or len(parts) > 2:
            raise ValueError(
                f"{rule!r} is not TABLE-REGEX:NAME, with NAME as TABLE or SCHEMA.TABLE"
            )
        java_replacement(name.strip(), java_pattern(pattern, ignore_case=False))


class NameClaims:
    """Owners of names in a catalogue; several threads create tables.

    ``tables`` returns the tables of the last commit, which own their names.
    """

    def __init__(self, tables: "Callable[[], Mapping[str, TableState]]") -> None:
        self._tables, self._lock = tables, Lock()
        # Owner → the names that it claimed, and its source.
        self._made: dict[str, tuple[Sequence[str], str]] = {}

    def take(
        self, owner: str, targets: Sequence[str], *, is_case_sensitive: bool, source: str = ""
    ) -> None:
        """Claim all ``targets`` for the table ``owner``, or none.

        Tables with a ``source`` may share a target with tables of other sources. Raises: NameTaken.
        """

        def comparable(at: str) -> str:
            return at if is_case_sensitive else at.casefold()

        wanted = {comparable(at): at for at in targets}
        with self._lock:
            for other, had, part in self._claims():
                at = wanted.get(comparable(had))
                # Only tables with different sources may share a name, and only in the same spelling.
                shares = had == at and part and source and part != source
                if at is None or other == owner or shares:
                    continue
                as_well = "" if had == at else f", which the catalogue may take for {had}"
                text = f"{owner} would be stored as {at}{as_well}: that is {other}'s already"
                raise NameTaken(text, table=owner)
            self._made[owner] = targets, source

    def _claims(self) -> Iterator[tuple[str, str, str]]:
        """Yield each claim's owner, name ("" if unshared) and source."""
        tables = self._tables()
        for name, table in tables.items():
            source = "" if table.place is None else table.place.source
            yield from ((name, each.at, source) for each in table.stored_table.targets.values())
        # Names that another thread claimed in this commit are not in the last commit yet.
        for name, (ats, source) in self._made.items():
            if name not in tables or not tables[name].stored_table.targets:
                yield from ((name, at, source) for at in ats)

    def release(self, owner: str) -> None:
        """Release claimed names that ``owner`` did not create."""
        with self._lock:
            self._made.pop(owner, None)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A column, or a transform of it, that partitions files.

    ``count`` is the number of ``bucket`` or ``truncate``, else 0.
    """

    column: str
    transform: str = ""
    count: int = 0

    @property
    def sql(self) -> str:
        """Return it as in PARTITIONED BY."""
        if not self.transform:
            return quoted(self.column)
        count = f"{self.count}, " if self.count else ""
        return f"{self.transform}({count}{quoted(self.column)})"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Partition and clustering of one table's files."""

    partition: tuple[PartitionField, ...] = ()
    cluster: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, partition: str, cluster: str) -> "FileLayout":
        """Return the layout that the rules give ``name``.

        ``name`` is ``schema.table``, with `OF_HISTORY` for its history.
        """
        found = tuple(_of(cluster, name))
        return cls(tuple(_of(partition, name)), tuple(each.column for each in found))

    @property
    def columns(self) -> set[str]:
        return {each.column for each in self.partition} | set(self.cluster)

    def require(self, name: str, columns: Iterable[str]) -> None:
        """Raises: LayoutUnfit if ``columns`` of ``name`` lack one."""
        missing = sorted(self.columns - set(columns))
        if missing:
            text = f"the layout of {name} names {', '.join(missing)}, which it does not have"
            raise LayoutUnfit(text)


def checked_divisions(rules: str, *, transforms: bool) -> None:
    """Raises: ValueError if rules are not TABLE-REGEX:COLUMN,COLUMN;….

    ``transforms``: whether transforms of columns are allowed.
    """
    for rule in _rules(rules):
        pattern, colon, _columns = rule.rpartition(":")
        found = _divisions(rule)
        if not colon or not pattern or not found or not all(each.column for each in found):
            raise ValueError(f"{rule!r} is not TABLE-REGEX:COLUMN,COLUMN")
        java_pattern(pattern, ignore_case=False)
        of = [each for each in found if each.transform]
        if of and not transforms:
            raise ValueError(f"{of[0].transform}(…) is not to be had here, columns alone are")


def _rules(text: str) -> list[str]:
    return [rule.strip() for rule in text.split(";") if rule.strip()]


def _of(rules: str, name: str) -> list[PartitionField]:
    for rule in _rules(rules):
        if java_pattern(rule.rpartition(":")[0], ignore_case=False).fullmatch(name):
            return _divisions(rule)
    return []


def _divisions(rule: str) -> list[PartitionField]:
    parts = re.split(r",(?![^()]*\))", rule.rpartition(":")[2])
    return [_division(part.strip()) for part in parts]


def _division(text: str) -> PartitionField:
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        return PartitionField(text)
    if match["plain"]:
        return PartitionField(match["column"].strip(), match["plain"])
    return PartitionField(match["of"].strip(), match["counted"], int(match["count"]))


def refuse_alike(table: str, names: Iterable[str]) -> None:
    """Refuse columns that differ only by case. Raises: FormatLimit."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise FormatLimit(f"{table} has columns {other} and {name}, which differ by case alone")
