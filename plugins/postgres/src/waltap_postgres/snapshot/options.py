"""Options for a start's snapshot, from profile and snapshot mode."""

import logging
from collections.abc import Sequence
from types import UnionType
from typing import Any, Final

from waltap.base.text import sql_name
from waltap.changes.decode.relation import Relation
from waltap.ports.snapshot.snapshotter import ISOLATIONS, SnapshotFacts, SnapshotStart, Snapshotter
from waltap.ports.source.connector import ConnectorContext
from waltap.ports.source.published import EVERYTHING, Narrowed
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.errors import SnapshotModeUnclear
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.transaction import ISOLATION, ONE_FOR_ALL, SnapshotTable

log = logging.getLogger(__name__)

TEXT: Final = str | None


class SnapshotOptions:
    """Combine the profile with the snapshot mode and its plugins.

    `about` sets the start that the answers are for.
    """

    def __init__(
        self, properties: PostgresProperties, context: ConnectorContext, narrowed: Narrowed
    ) -> None:
        """Keep the plugins; ``narrowed`` returns the filtered tables."""
        self._properties, self._narrowed = properties, narrowed
        self._mode = context.snapshotter
        self._query = context.snapshot_query or context.snapshotter
        self._lock = context.snapshot_lock or context.snapshotter
        self._start: SnapshotStart | None = None
        self._begun = False
        self._overrides = overrides(properties)

    def about(self, start: SnapshotStart) -> None:
        """Set the start that the answers are for."""
        self._start, self._begun = start, False

    def reads(self, relation: Relation) -> bool:
        return self._start is None or _answer(self._mode, "reads", bool, relation, self._start)

    def targets(self, tables: Sequence[CatalogTable], *, deep: bool) -> list[SnapshotTable]:
        """Return the published parts of tables as targets.

        ``deep`` includes the children of tables that are not partitioned.
        """
        narrowed = self._narrowed()
        return [
            SnapshotTable.of(
                table,
                narrowed.get(table.relation.table_id, EVERYTHING),
                deep=deep or table.partitioned,
            )
            for table in tables
        ]

    def statements(self, targets: Sequence[SnapshotTable]) -> dict[str, str]:
        """Return schema.table → SELECT of the tables that have one.

        The SELECTs return only published rows. Raises: SnapshotModeUnclear.
        """
        found = {}
        for target in targets:
            name = target.table.relation.name
            given = self._overrides.get(name)
            statement = target.selected(given) if given else self.chosen(target)
            if statement is not None:
                found[name] = statement
        return found

    def chosen(self, target: SnapshotTable) -> str | None:
        """Return the mode's own SELECT for a table, None without any.

        It returns only published rows. Raises: SnapshotModeUnclear.
        """
        if self._start is None:
            return None
        given = _answer(self._query, "query", TEXT, target.table.relation, self._start)
        statement = (given or "").strip().rstrip(";")
        return target.selected(statement) if statement else None

    def locks(self, targets: Sequence[SnapshotTable]) -> list[str]:
        own: list[str] = []
        shared = []
        for target in targets:
            relation = target.table.relation
            statement = None
            if self._start is not None:
                statement = _answer(self._lock, "lock", TEXT, relation, self._start)
            if statement is not None and statement.strip():
                own.append(statement)
            elif self._properties.snapshot_locking_mode == "shared":
                only = "" if target.deep else "ONLY "
                shared.append(only + sql_name(relation.schema, relation.table))
        return [*([f"LOCK TABLE {', '.join(shared)} IN ACCESS SHARE MODE"] if shared else []), *own]

    @property
    def isolation(self) -> str:
        """Return the SQL isolation of a snapshot that is not exported."""
        return ISOLATION[self._isolation]

    @property
    def steady(self) -> bool:
        """Return whether all statements see the same rows."""
        return self._isolation in ONE_FOR_ALL

    @property
    def _isolation(self) -> str:
        given = None if self._start is None else self._mode.isolation(self._start)
        if given is None:
            return self._properties.snapshot_isolation_mode
        word = given.strip().casefold() if isinstance(given, str) else given
        if word not in ISOLATIONS:
            raise SnapshotModeUnclear(
                f"{_named(self._mode)}.isolation gave {given!r}; known: {', '.join(ISOLATIONS)}",
                mode=_named(self._mode),
            )
        return word

    def before(self, targets: Sequence[SnapshotTable]) -> None:
        """Notify the mode that the initial snapshot begins."""
        if self._start is not None:
            self._begun = True
            self._mode.before([target.table.relation for target in targets], self._start)

    def after(self, *, completed: bool) -> None:
        """Notify the mode once that the initial snapshot is over."""
        if self._start is not None and self._begun:
            self._begun = False
            self._mode.after(self._start, completed=completed)


def _answer(mode: Snapshotter, question: str, kinds: type | UnionType, *facts: object) -> Any:
    given = getattr(mode, question)(*facts)
    if not isinstance(given, kinds):
        about = "".join(f" for {each.name}" for each in facts if isinstance(each, Relation))
        raise SnapshotModeUnclear(
            f"{_named(mode)}.{question} gave {given!r}{about}", mode=_named(mode)
        )
    return given


def decision(mode: Snapshotter, question: str, *facts: SnapshotFacts) -> bool:
    """Return a mode's yes or no. Raises: SnapshotModeUnclear."""
    return bool(_answer(mode, question, bool, *facts))


def _named(mode: Snapshotter) -> str:
    return f"{type(mode).__module__}.{type(mode).__qualname__}"


def overrides(properties: PostgresProperties) -> dict[str, str]:
    """Return schema.table → SELECT of the profile."""
    found = {}
    for name in properties.snapshot_select_overrides:
        property_name = f"snapshot.select.statement.overrides.{name}"
        statement = (
            (properties.snapshot_select_statements.get(property_name) or "").strip().rstrip(";")
        )
        if statement:
            database, dot, rest = name.partition(".")
            # The name may begin with the database: database.schema.table.
            if dot and "." in rest and database.casefold() == properties.dbname.casefold():
                found[rest] = statement
            found[name] = statement
        else:
            log.warning(
                "there is no %s: all rows of %s are read",
                property_name,
                name,
                extra={"table": name, "property": property_name},
            )
    return found
