"""Roles of sources and sinks: one has a role by its methods alone, and does without the others."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.simulated import new

from waltap.base.plugin_errors import RoleIncomplete, UnusableResult
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.cli.commands import offsets, slot
from waltap.pipeline.engine.build import require_whole_roles
from waltap.plugins.check_context import CheckContext
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import Offset
from waltap.ports.sink import roles as sinks
from waltap.ports.sink.sink import Sink
from waltap.ports.source import roles as sources
from waltap.ports.source.connector import (
    ChangeStream,
    Connector,
    PreflightCheck,
    SetupPlan,
    SourceLacks,
    StartPosition,
)

__all__ = ["new"]
NOTHING: Any = None


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


class LargerSource(SmallSource):
    """Has methods of three roles, which it does not name."""

    def plan(self, offset: Offset | None) -> SetupPlan:
        return SetupPlan(statements=(), by_others=(), slot=None, tables=())

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        return [(sql, *parameters)]

    def captured_tables(self) -> dict[str, str]:
        return {"1": "public.items"}

    def existing_tables(self) -> dict[str, tuple[str, str]]:
        return {"1": ("public", "items")}

    def estimate(self, relation: Relation) -> int | None:
        return 1


class SmallSink(Sink):
    """Has what every sink has."""

    def open(self) -> Position | None:
        return None

    def write(self, batch: Batch) -> None: ...

    def flush(self) -> Position | None:
        return None

    def close(self) -> None: ...


class LargerSink(SmallSink):
    """Has methods of two roles, which it does not name."""

    def stored_position(self) -> Position:
        return Position(1)

    def identity(self) -> str:
        return "log"


ROLES = [
    (small, role)
    for small, module, ending in ((SmallSource, sources, "Source"), (SmallSink, sinks, "Sink"))
    for name, role in vars(module).items()
    if name.endswith(ending) and getattr(role, "__module__", "") == module.__name__
]


@pytest.mark.parametrize(("small", "role"), ROLES)
def test_no_role_is_in_what_all_must_have(small, role):
    assert not isinstance(small(), role)


def members(role: type) -> dict[str, object]:
    found = {**vars(role), **vars(role).get("__annotations__", {})}
    return {name: found[name] for name in sorted(found) if name[0] != "_"}


@pytest.mark.parametrize(("small", "role"), [each for each in ROLES if len(members(each[1])) > 1])
def test_a_part_of_a_role_is_refused(small, role):
    """It would seem to have none of it: a source without `unsent`, to stream every table."""
    module = sources if small is SmallSource else sinks
    for name in members(role):
        others = {each: made for each, made in members(role).items() if each != name}
        with pytest.raises(RoleIncomplete) as refused:
            require_whole_roles(type("Part", (small,), others)(), module)
        assert refused.value.code == "WT-1113"
        assert f"add {name}, " in refused.value.advice()
        require_whole_roles(type("Whole", (small,), members(role))(), module)
    require_whole_roles(small(), module)


def context(connector: Connector) -> CheckContext:
    return CheckContext(profile=NOTHING, connector=connector, offset=None)


def test_a_source_without_a_role_is_refused_where_the_role_is_needed():
    for asks in (
        lambda: sources.planned(SmallSource(), None),
        lambda: context(SmallSource()).query("SELECT 1"),
        lambda: offsets._takeover_offset(SmallSource(), NOTHING, NOTHING, NOTHING),
    ):
        with pytest.raises(SourceLacks):
            asks()
    assert context(LargerSource()).query("SELECT %s", (1,)) == [("SELECT %s", 1)]
    assert sources.planned(LargerSource(), None).slot is None


def test_a_source_without_lists_of_tables_has_none_and_streams_everything():
    source: Connector = LargerSource()
    assert sources.tables_of(source) is source
    tables, published = sources.tables_of(SmallSource()), sources.published_by(source)
    assert (tables.captured_tables(), tables.existing_tables()) == ({}, {})
    assert published.streams_new("public", "items")
    assert not published.adds_tables()
    assert not (published.unsent() or published.writers("1") or published.streamed_as())
    published.check_publishable([("public", "items")])
    assert published.publish([("public", "items")], wanted=True) == []


def test_a_sink_without_a_role_is_asked_nothing():
    for sink, found in ((SmallSink(), ([], None, "")), (LargerSink(), ([], Position(1), "log"))):
        assert (
            sinks.checks_of(sink),
            sinks.stored_position_of(sink),
            sinks.identity_of(sink),
        ) == found


def test_drop_removes_the_stored_state_of_a_source_that_owns_no_slot(new, monkeypatch, capsys):
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


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        ("check", sinks.checks_of),
        ("identity", sinks.identity_of),
        ("stored_position", sinks.stored_position_of),
    ],
)
def test_a_role_that_gives_another_kind_is_named(call, ask):
    with pytest.raises(UnusableResult, match=f"Own.{call} gave int, not "):
        ask(type("Own", (), {call: lambda self: 7})())
