"""Map tables of several sources to one target.

The table of each tenant, shard or partition keeps its own key, columns, position, history and suspension.
Only the place of its rows is shared: a *target*, with a column that names the row's source. So a truncate,
a snapshot or a delete of one source touches its own rows only. Knows no Spark.
"""

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

from waltap.changes.capture.java_regex import java_pattern, java_replacement
from waltap_spark.errors import SourcesDiffer
from waltap_spark.schema.schema import common_type
from waltap_spark.state.modes import describe_mode
from waltap_spark.state.output import COLUMN, TableState, TargetMapping


class TargetMappings:
    """The profile's rules TABLE-REGEX:SCHEMA.TABLE@SOURCE; the first match wins.

    Without @SOURCE the schema names the source. ``$1`` is a group of the pattern in all three parts; an
    unmatched group is empty.
    """

    def __init__(self, rules: Sequence[str] = (), column: str = COLUMN) -> None:
        self._rules, self._column = tuple(rules), column

    def of(self, schema: str, table: str) -> TargetMapping | None:
        """Return a shared table's mapping, else None; case counts."""
        for rule in self._rules:
            pattern, target, source = _parts(rule)
            compiled = java_pattern(pattern, ignore_case=False)
            match = compiled.fullmatch(f"{schema}.{table}")
            if match is not None:
                own, name, called = (
                    match.expand(java_replacement(part, compiled))
                    for part in (*target.split("."), source)
                )
                if not source:
                    called = schema
                return TargetMapping(schema=own, table=name, source=called, column=self._column)
        return None


def checked_places(rules: Sequence[str]) -> None:
    """Raises: ValueError if a rule is not TABLE-REGEX:SCHEMA.TABLE or …@SOURCE."""
    for rule in rules:
        pattern, target, source = _parts(rule)
        parts = target.split(".")
        unnamed = not source and "@" in rule.rpartition(":")[2]
        if not pattern or len(parts) != 2 or not all(parts) or unnamed:
            raise ValueError(f"{rule!r} is not TABLE-REGEX:SCHEMA.TABLE@SOURCE")
        compiled = java_pattern(pattern, ignore_case=False)
        for part in (*parts, source):
            java_replacement(part, compiled)


def _parts(rule: str) -> tuple[str, str, str]:
    pattern, _colon, rest = rule.rpartition(":")
    target, _at, source = rest.strip().partition("@")
    return pattern, target.strip().replace(r"\.", "."), source.strip()


def require_place(table: TableState, places: TargetMappings, columns: Iterable[str]) -> None:
    """Check that ``table`` still has the mapping of ``places``.

    Raises: SourcesDiffer.
    """
    wanted = places.of(table.schema, table.table)
    if wanted is not None and not all((wanted.schema, wanted.table, wanted.source)):
        into = f"schema {wanted.schema!r}, table {wanted.table!r}, source {wanted.source!r}"
        raise SourcesDiffer(f"source.into gives {table.name} no name: {into}")
    if wanted != table.place:
        was, now = (_mapping_text(each) for each in (table.place, wanted))
        raise SourcesDiffer(f"{table.name} was made {was}, and the profile asks for {now}")
    if table.place is not None:
        column = table.place.column
        # Spark and the formats ignore case.
        clash = next((name for name in columns if name.lower() == column.lower()), None)
        if clash is not None:
            raise SourcesDiffer(
                f"column {clash} of {table.name} is called as the column of sources is"
            )


def _mapping_text(place: TargetMapping | None) -> str:
    if place is None:
        return "a table by itself"
    return f"source {place.source} of {place.name}, in column {place.column}"


def sharers(tables: Iterable[TableState]) -> dict[str, list[TableState]]:
    """Return the tables with columns of each shared target."""
    found: dict[str, list[TableState]] = {}
    for table in sorted(tables, key=lambda each: each.name):
        if table.place is not None and table.columns:
            found.setdefault(table.place.name, []).append(table)
    return found


def union_columns(tables: Sequence[TableState]) -> dict[str, str]:
    """Return all columns of ``tables``, in types that hold all values.

    Raises: SourcesDiffer.
    """
    columns: dict[str, str] = {}
    for table in tables:
        _merge(columns, table.name, table.columns)
    return columns


class SharedShapes:
    """The tables of one commit, which several threads apply.

    ``tables``: the tables before it, by name.
    """

    def __init__(self, tables: Mapping[str, TableState]) -> None:
        self._tables, self._lock = dict(tables), Lock()

    def required(self, table: TableState) -> TableState:
        """Return ``table`` if it fits the other sources of its target.

        An unshared table must not have the name of a target.

        Raises: SourcesDiffer.
        """
        # Tables of one commit are applied by several threads, and each may add columns to a target.
        with self._lock:
            had = self._tables.get(table.name)
            if had is None or (had.columns, had.place) != (table.columns, table.place):
                self._check(table)
                self._tables[table.name] = table
        return table

    def _check(self, table: TableState) -> None:
        place, merged = table.place, dict[str, str]()
        for other in self._tables.values():
            if not other.columns or other.name == table.name:
                continue
            its = other.place
            if place is None and its is not None and its.name == table.name:
                raise SourcesDiffer(f"{table.name} is called as the target of other tables is")
            if its is None and place is not None and place.name == other.name:
                raise SourcesDiffer(
                    f"{table.name} would be a source of {other.name}, which is a table by itself"
                )
            if place is None or its is None or its.name != place.name:
                continue
            if its.source == place.source:
                text = f"would both be source {place.source} of {place.name}"
                raise SourcesDiffer(f"{table.name} and {other.name} {text}")
            if other.mode != table.mode:
                text = f"would be {describe_mode(table.mode)} in {place.name}, and {other.name}"
                raise SourcesDiffer(f"{table.name} {text} is {describe_mode(other.mode)} there")
            _merge(merged, other.name, other.columns)
        if place is not None:
            _merge(merged, f"{table.name}, a source of {place.name},", table.columns)


def _merge(columns: dict[str, str], owner: str, more: Mapping[str, str]) -> None:
    """Add ``more`` to ``columns``, with common types. Raises: SourcesDiffer."""
    for name, kind in more.items():
        had = columns.get(name, kind)
        common = common_type(had, kind)
        if common is None:
            raise SourcesDiffer(
                f"column {name} of {owner} is {kind.strip(chr(34))}, and {had.strip(chr(34))} in "
                "other sources"
            )
        columns[name] = common
