"""How the tables of a start are read: what profile and snapshot mode say together."""

import logging
from collections.abc import Sequence
from typing import TypeVar

from waltap.decode.relation import Relation
from waltap.snapshot.snapshotter import ISOLATIONS, SnapshotStart, Snapshotter
from waltap.source.connector import ConnectorContext
from waltap.source.published import EVERYTHING, Narrowed, nothing_left_out
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import identifier
from waltap_postgres.snapshot.errors import SnapshotModeUnclear
from waltap_postgres.snapshot.transaction import ISOLATION, ONE_FOR_ALL, SnapshotTable

__all__ = ["SnapshotOptions", "overrides"]

log = logging.getLogger(__name__)

T = TypeVar("T", str, bool, str | None)


class SnapshotOptions:
    """Asks the snapshot mode, and the plugins that answer in its place, for one start after the other:
    `about` says which."""

    def __init__(
        self,
        properties: PostgresProperties,
        context: ConnectorContext,
        narrowed: Narrowed = nothing_left_out,
    ) -> None:
        """``narrowed`` gives what is published of tables of which not everything is."""
        self._properties, self._narrowed = properties, narrowed
        self._mode = context.snapshotter
        self._query = context.snapshot_query or context.snapshotter
        self._lock = context.snapshot_lock or context.snapshotter
        self._start: SnapshotStart | None = None
        self._begun = False
        self._overrides = overrides(properties)

    def about(self, start: SnapshotStart) -> None:
        """Answer for this start from now on."""
        self._start, self._begun = start, False

    def reads(self, relation: Relation) -> bool:
        """Tell whether a table is read."""
        return self._start is None or _answer(
            self._mode, "reads", bool, self._mode.reads(relation, self._start), relation
        )

    def targets(self, tables: Sequence[CatalogTable], *, deep: bool) -> list[SnapshotTable]:
        """Return what is read of tables, ``deep`` or not where they are not partitioned; no more than what
        is published."""
        narrowed = self._narrowed()
        return [
            SnapshotTable.of(
                table,
                narrowed.get((table.relation.schema, table.relation.table), EVERYTHING),
                deep=deep or table.partitioned,
            )
            for table in tables
        ]

    def statements(self, targets: Sequence[SnapshotTable]) -> dict[str, str]:
        """Return the SELECTs of those tables that have one, by schema.table, of no other rows than are
        published. Raises: SnapshotModeUnclear."""
        found = {}
        for target in targets:
            name = target.table.relation.name
            given = self._overrides.get(name)
            statement = target.selected(given) if given else self.chosen(target)
            if statement is not None:
                found[name] = statement
        return found

    def chosen(self, target: SnapshotTable) -> str | None:
        """Return the SELECT that the mode, not the profile, has for a table, of no other rows than are
        published. Raises: SnapshotModeUnclear."""
        if self._start is None:
            return None
        relation = target.table.relation
        given = self._query.query(relation, self._start)
        statement = _answer(self._query, "query", (str, type(None)), given, relation)
        statement = (statement or "").strip().rstrip(";")
        return target.selected(statement) if statement else None

    def locks(self, targets: Sequence[SnapshotTable]) -> list[str]:
        """Return the statements that lock tables, to be run before there is a snapshot."""
        own: list[str] = []
        shared = []
        for target in targets:
            relation = target.table.relation
            statement = None
            if self._start is not None:
                given = self._lock.lock(relation, self._start)
                statement = _answer(self._lock, "lock", (str, type(None)), given, relation)
            if statement is not None and statement.strip():
                own.append(statement)
            elif self._properties.snapshot_locking_mode == "shared":
                only = "" if target.deep else "ONLY "
                shared.append(only + identifier(relation.schema, relation.table))
        return [*([f"LOCK TABLE {', '.join(shared)} IN ACCESS SHARE MODE"] if shared else []), *own]

    @property
    def isolation(self) -> str:
        """Return the isolation of a transaction in a snapshot of its own, as the server takes it."""
        return ISOLATION[self._isolation]

    @property
    def steady(self) -> bool:
        """Tell whether all statements of such a transaction see the same."""
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
        """Tell the mode that the initial snapshot begins."""
        if self._start is not None:
            self._begun = True
            self._mode.before([target.table.relation for target in targets], self._start)

    def after(self, *, completed: bool) -> None:
        """Tell the mode, once, that the initial snapshot which began is over."""
        if self._start is not None and self._begun:
            self._begun = False
            self._mode.after(self._start, completed=completed)


def _answer(
    mode: Snapshotter,
    question: str,
    kinds: type | tuple[type, ...],
    given: T,
    relation: Relation,
) -> T:
    if not isinstance(given, kinds):
        raise SnapshotModeUnclear(
            f"{_named(mode)}.{question} gave {given!r} for {relation.name}", mode=_named(mode)
        )
    return given


def _named(mode: Snapshotter) -> str:
    return f"{type(mode).__module__}.{type(mode).__qualname__}"


def overrides(properties: PostgresProperties) -> dict[str, str]:
    """Return the SELECTs that the profile gives for tables, by schema.table."""
    found = {}
    for name in properties.snapshot_select_overrides:
        place = f"snapshot.select.statement.overrides.{name}"
        statement = (properties.snapshot_select_statements.get(place) or "").strip().rstrip(";")
        if statement:
            database, dot, rest = name.partition(".")
            if dot and "." in rest and database.casefold() == properties.dbname.casefold():
                found[rest] = statement
            found[name] = statement
        else:
            log.warning(
                "there is no %s: all rows of %s are read",
                place,
                name,
                extra={"relation": name, "property": place},
            )
    return found
