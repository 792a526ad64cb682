"""Define the answer of `Connector.plan`: the setup of a start."""

from dataclasses import dataclass

from waltap.changes.decode.relation import Relation

__all__ = ["PlannedTable", "SetupPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """One captured table, described."""

    relation: Relation
    # An estimate; None if unknown.
    rows: int | None = None
    # Size on the server; None if unknown.
    bytes: int | None = None
    # Whether the snapshot of this start reads its rows.
    read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """The objects that a start would create, and the tables."""

    # SQL that the start would run, in order.
    statements: tuple[str, ...]
    # SQL that the operator must run before: the start may not, or does not, run it.
    by_others: tuple[str, ...]
    # Replication command that creates the slot; the server then retains WAL. None: no new slot.
    slot: str | None
    # Sorted by name.
    tables: tuple[PlannedTable, ...]
