"""What a start would make on the server, and what it would read: the answer of `Connector.plan`."""

from dataclasses import dataclass

from waltap.decode.relation import Relation

__all__ = ["PlannedTable", "SetupPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """One captured table, described.

    ``rows`` is an estimate and ``bytes`` the size on the server, each None where nobody knows.
    ``read``: its rows are read by the snapshot of this start.
    """

    relation: Relation
    rows: int | None = None
    bytes: int | None = None
    read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """``statements`` are SQL that the start would run, in order; ``by_others`` what somebody else has to
    run before, since the role of the profile may not or nobody does it for it. ``slot`` is the command of
    the replication protocol that makes the slot, from when on the server keeps WAL; None: none is made.
    ``tables`` by name."""

    statements: tuple[str, ...]
    by_others: tuple[str, ...]
    slot: str | None
    tables: tuple[PlannedTable, ...]
