"""What checks of plugins get, and what a start says of a sink's capabilities."""

from pathlib import Path

import pytest
from waltap.cli.connection import connected
from waltap.hookspecs import hookimpl
from waltap.pipeline.preflight import checks
from waltap.sink import Sink, SinkCapabilities
from waltap.source import Check, CheckContext, Connector
from waltap.specs import CheckSpec, SinkSpec

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


class Looks:
    """A plugin with a check that asks the server, and a sink that applies no truncates."""

    def __init__(self) -> None:
        self.contexts: list[CheckContext] = []

    @hookimpl
    def register_checks(self):
        return [CheckSpec(name="looks", summary="Looks.", factory=self.look)]

    def look(self, context: CheckContext) -> list[Check]:
        self.contexts.append(context)
        ((name,),) = context.connector.query("SELECT current_database() WHERE %s", (True,))
        return [Check(name="looks", verdict="warning", found=f"{name} was seen", remedy="none")]

    @hookimpl
    def register_sinks(self):
        return [SinkSpec(name="keeps", summary="s", factory=lambda _p, _c: KeepsRows())]


class KeepsRows(Sink):
    capabilities = SinkCapabilities(truncate=False)

    def open(self) -> None:
        pass

    def write(self, batch) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


pytestmark = pytest.mark.pipeline(sql="CREATE TABLE t (id int PRIMARY KEY)")


def found(pipeline: PipelineRig, plugin: Looks, **settings: object) -> list[Check]:
    host, _ = pipeline.host(plugin)
    profile = pipeline.profile(host, **settings)
    with connected(profile, host) as (connector, stages):
        return checks(stages, connector, locked=False)


def test_a_check_gets_profile_connection_and_offset(
    pipeline: PipelineRig, database: Database
) -> None:
    plugin = Looks()
    (check,) = [c for c in found(pipeline, plugin) if c.name == "looks"]
    assert check.found == f"{database.name} was seen"
    (context,) = plugin.contexts
    assert isinstance(context.connector, Connector)
    assert (context.profile.name, context.offset) == ("p", None)
    assert context.connector.server.version_num >= 100000


def test_a_start_asks_it_too_and_says_what_it_warns_of(
    pipeline: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Looks()
    with pipeline.running(plugin):
        pass
    assert len(plugin.contexts) == 1
    assert "was seen; none" in caplog.text


@pytest.mark.parametrize(("skipped", "told"), [("none", True), ("t", False)])
def test_a_sink_without_truncates_is_told_of(
    pipeline: PipelineRig, skipped: str, told: bool
) -> None:
    settings = {"sink.type": "keeps", "skipped.operations": skipped}
    said = [c for c in found(pipeline, Looks(), **settings) if c.name == "sink keeps"]
    assert [c.verdict for c in said] == ["warning"] * told
