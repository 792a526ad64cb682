"""Slots are listed beside pipelines that start: what is in the making is nobody's orphan."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from waltap.cli.connection import connected
from waltap.pipeline.delivery import Delivery
from waltap.pipeline.setup import Stages
from waltap.pipeline.slot_owners import orphan_slots
from waltap.source.connector import Connector

from tests.harness.pipeline import WAIT_S, PipelineRig
from tests.harness.servers.postgres import Database
from threading import Event


class Shop:
    """A pipeline ``p``, which looks at the slots, and another one in the same folder of states."""

    def __init__(self, database: Database, folder: Path) -> None:
        database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        self.database = database
        self.looks = PipelineRig(database, folder)
        self.starts = PipelineRig(database, folder, {"slot.name": f"{database.name[:55]}_other"})
        self.starts.tables = {"name": "other"}

    @contextmanager
    def looking(self) -> Iterator[tuple[Connector, Stages]]:
        host, _ = self.looks.host()
        with connected(self.looks.profile(host), host) as found:
            yield found

    def unread(self) -> bool:
        return self.database.slots().get(self.starts.slot) is False


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Shop:
    return Shop(database, tmp_path)


def orphans(connector: Connector, stages: Stages) -> list[str]:
    return [each.name for each in orphan_slots(stages.profile, connector, stages.store)]


def test_a_pipeline_that_starts_while_slots_are_listed_has_no_orphan(shop: Shop) -> None:
    """It is in its snapshot, in which nobody reads the slot, when the list is asked for."""
    release = Event()
    shop.starts.destination.before_write = lambda _batch: release.wait(WAIT_S)
    with shop.looking() as (connector, stages), ExitStack() as stack:
        listed = connector.slots

        def late() -> Any:
            run = stack.enter_context(shop.starts.running(ready=False))
            stack.callback(release.set)
            run.until(lambda: run.engine.state == "snapshot" and shop.unread(), "the snapshot")
            return listed()

        connector.slots = late  # type: ignore[method-assign]
        assert orphans(connector, stages) == []


def test_a_slot_that_was_made_just_now_is_no_orphan(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is there, the offset that names it is not stored yet."""
    made, release, store = Event(), Event(), Delivery.store

    def held(delivery: Delivery, *arguments: Any) -> None:
        made.set()
        assert release.wait(WAIT_S)
        store(delivery, *arguments)

    monkeypatch.setattr(Delivery, "store", held)
    with shop.looking() as (connector, stages), shop.starts.running(ready=False) as run:
        try:
            run.until(lambda: made.is_set() and shop.unread(), "the slot")
            assert orphans(connector, stages) == []
        finally:
            release.set()
        monkeypatch.setattr(Delivery, "store", store)
