"""What differs between two profiles, and what of it a run takes."""

from typing import Any

import pytest

from waltap.base.property import declarations
from waltap.cli.reference.properties import components
from waltap.config.layers import read_tables
from waltap.config.pipeline_properties import EngineProperties
from waltap.config.profile import Profile, changes
from waltap.config.resolve import resolve
from waltap.pipeline.engine.engine import reloaded
from waltap.plugins.host import Host


def profile(sink: dict[str, Any] | None = None, **source: Any) -> Profile:
    given = {
        "type": "postgres",
        "database.hostname": "h",
        "database.dbname": "d",
        "database.user": "u",
        **source,
    }
    tables = {"name": "p", "source": given, "sink": sink or {"type": "jsonl", "path": "a.jsonl"}}
    return resolve(read_tables(tables), Host())


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ({}, {}, []),
        ({}, {"database.password": "other"}, ["database.password"]),
        ({}, {"table.include.list": "public.a"}, ["table.include.list"]),
        ({}, {"waltap.wal.budget": "10GB"}, ["waltap.wal.budget"]),
        ({"sink": {"type": "null"}}, {}, ["sink.type", "sink.path"]),
        ({}, {"sink": {"type": "jsonl", "path": "b.jsonl"}}, ["sink.path"]),
        ({"driver.application_name": "x"}, {}, ["driver.application_name"]),
    ],
    ids=str,
)
def test_what_differs_is_named(before, after, names):
    found = [change.name for change in changes(profile(**before), profile(**after))]
    assert set(names) <= set(found), found
    assert not [name for name in found if not name.startswith(("sink.", *names))]


def test_a_run_takes_what_is_declared_so_and_keeps_the_rest():
    running = profile()
    wanted = profile(
        **{"heartbeat.interval.ms": 5, "max.batch.size": 7, "waltap.log.level": "debug"}
    )
    now, reported = reloaded(running, wanted)
    assert set(reported.applied) == {"heartbeat.interval.ms", "waltap.log.level"}
    assert reported.restart == ("max.batch.size",)
    assert (now.engine.heartbeat_interval_ms, now.engine.log_level) == (5, "debug")
    assert now.engine.batch_events == running.engine.batch_events
    _, again = reloaded(now, wanted)
    assert (again.applied, again.restart) == ((), ("max.batch.size",)), "reported until it is done"


def test_only_the_engine_declares_such_properties():
    """A component keeps the values that it was made with; it would promise what nobody does."""
    for heading, _, model in components(Host()):
        if model is not EngineProperties:
            assert [d.name for d in declarations(model) if d.reloadable] == [], heading
