"""Roles of a source: it has one by its methods alone, and does without the others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from tests.harness.simulated import New, new

from waltap.base.plugin_errors import RoleIncomplete
from waltap.changes.decode.decoder import Decoder
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.cli.commands import offsets, slot
from waltap.pipeline.setup.build import require_whole_roles
from waltap.plugins.check_context import CheckContext
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import Offset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import ChunkSource, SnapshotChunk
from waltap.ports.source import roles
from waltap.ports.source.connector import (
    ChangeStream,
    Connector,
    PreflightCheck,
    SetupPlan,
    SlotStatus,
    SourceLacks,
    StartPosition,
)

__all__ = ["new"]
ROLES = [getattr(roles, name) for name in vars(roles) if name.endswith("Source")]
NOTHING: Any = None


def members(role: type) -> list[str]:
    """Return the names of the methods and attributes that ``role`` adds."""
    found = {*vars(role), *vars(role).get("__annotations__", ())}
    return sorted(name for name in found if not name.startswith("_"))


class SmallSource(Connector):
    """Has what every source has."""

    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        return []

    def prepare(self, offset: Offset | None) -> StartPosition:
        raise NotImplementedError

    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        return iter(())

    def stream(self, position: Position) -> ChangeStream:
        raise NotImplementedError

    def describe(self, relation: Relation) -> Relation:
        return relation

    def undo(self) -> None: ...

    def close(self) -> None: ...


class SourceOfAllRoles(SmallSource):
    """Written for the contract that had these methods in `Connector`."""

    merges_within_s: float | None = None

    def plan(self, offset: Offset | None) -> SetupPlan:
        return SetupPlan(statements=(), by_others=(), slot=None, tables=())

    def offset_at(self, position: Position) -> Offset:
        raise NotImplementedError

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        return [(sql, *parameters)]

    def decoder(self) -> Decoder:
        raise NotImplementedError

    def column_names(self) -> Sequence[tuple[str, str, str | None, str | None]]:
        return ()

    def heartbeat(self) -> None: ...

    def wal_end(self) -> int | None:
        return None

    def xmin_reader(self) -> Callable[[], int | None] | None:
        return None

    def streams(self, positions: Positions) -> Mapping[str, ChangeStream]:
        return {}

    def snapshot_over(self, *, completed: bool) -> None: ...

    def chunks(self, start: StartPosition) -> Sequence[SnapshotChunk]:
        return ()

    def rows_now(
        self, relation: Relation, columns: Sequence[str], key: Sequence[str], keys: Sequence[Tuple]
    ) -> list[Tuple]:
        return list(keys)

    def read_tables(
        self, requests: Sequence[SnapshotRequest], refused: Callable[[SnapshotRequest, str], None]
    ) -> Iterator[SnapshotRows]:
        return iter(())

    def chunk_source(self, signal_table: tuple[str, str] | None) -> ChunkSource:
        raise NotImplementedError

    def slots(self) -> list[SlotStatus]:
        return []

    def drop_slot(self) -> bool:
        return False

    def belongings(self, offset: Offset | None) -> list[OwnedObject]:
        return []

    def belongings_elsewhere(self) -> list[OwnedObject]:
        return []

    def drop(self, belonging: OwnedObject) -> None: ...

    def captured_tables(self) -> dict[str, str]:
        return {"1": "public.items"}

    def existing_tables(self) -> dict[str, tuple[str, str]]:
        return {"1": ("public", "items")}

    def estimate(self, relation: Relation) -> int | None:
        return 1

    def publish(self, tables: Sequence[tuple[str, str]], *, wanted: bool) -> list[tuple[str, str]]:
        return list(tables)

    def adds_tables(self) -> bool:
        return True

    def streams_new(self, schema: str, table: str) -> bool:
        return False

    def writers(self, identifier: str) -> frozenset[str]:
        return frozenset({"7"})

    def unsent(self) -> frozenset[str]:
        return frozenset({"1"})

    def streamed_as(self) -> Mapping[str, Sequence[str | None]]:
        return {"1": ["text"]}

    def streamed_otherwise(
        self, before: Mapping[str, Sequence[str | None]], now: Mapping[str, Sequence[str | None]]
    ) -> frozenset[str]:
        return frozenset(now)


def context(connector: Connector) -> CheckContext:
    return CheckContext(profile=NOTHING, connector=connector, offset=None)


@pytest.mark.parametrize("role", ROLES)
def test_a_source_has_the_roles_whose_methods_it_has(role: type) -> None:
    assert isinstance(SourceOfAllRoles(), role)
    assert not isinstance(SmallSource(), role)


def test_a_source_without_a_role_is_refused_where_the_role_is_needed() -> None:
    for asks in (
        lambda: roles.planned(SmallSource(), None),
        lambda: context(SmallSource()).query("SELECT 1"),
        lambda: offsets._taken(SmallSource(), NOTHING, NOTHING, NOTHING),
    ):
        with pytest.raises(SourceLacks):
            asks()
    assert context(SourceOfAllRoles()).query("SELECT %s", (1,)) == [("SELECT %s", 1)]
    assert roles.planned(SourceOfAllRoles(), None).slot is None


def test_a_source_without_lists_of_tables_has_none_and_streams_everything() -> None:
    source: Connector = SourceOfAllRoles()
    assert roles.tables_of(source) is source and roles.published_by(source) is source
    tables, published = roles.tables_of(SmallSource()), roles.published_by(SmallSource())
    assert (tables.captured_tables(), tables.existing_tables()) == ({}, {})
    assert published.streams_new("public", "items")
    assert not published.adds_tables()
    assert not (published.unsent() or published.writers("1") or published.streamed_as())
    assert published.publish([("public", "items")], wanted=True) == []


def test_drop_removes_the_stored_state_of_a_source_that_owns_no_slot(
    new: New, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = new()
    pipeline.source.insert(at=1.0, rows=3)
    pipeline.run(stop_at=5.0)
    assert pipeline.store.load() is not None
    monkeypatch.setattr(
        slot, "at_rest", lambda _file, _set: (pipeline._profile(), Host(discover=False))
    )
    with pytest.raises(SourceLacks):
        slot.drop_slot("p", yes=True)
    slot.drop("p", yes=True)
    assert pipeline.store.load() is None
    assert "removed" in capsys.readouterr().out


@pytest.mark.parametrize("role", [role for role in ROLES if len(members(role)) > 1])
def test_a_source_with_a_part_of_a_role_is_refused(role: type) -> None:
    """It would seem to have none of it: a source without `unsent`, to stream every table."""
    for name in members(role):
        others = {each: getattr(SourceOfAllRoles, each) for each in members(role) if each != name}
        part = type("Part", (SmallSource,), others)()
        with pytest.raises(RoleIncomplete) as refused:
            require_whole_roles(part, roles)
        assert refused.value.code == "WT-1113"
        assert f"add {name}, " in refused.value.advice()
        whole = type("Whole", (type(part),), {name: getattr(SourceOfAllRoles, name)})()
        require_whole_roles(whole, roles)
    require_whole_roles(SmallSource(), roles)
