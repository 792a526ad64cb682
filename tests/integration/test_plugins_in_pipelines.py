"""Plugins where they meet a pipeline: one that raises, ends the process or gives what nobody can use, wherever it is
called, is named in one clear error and is never a bug of waltap; checks get what they ask; notifications lie among the records of a sink."""

import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.shop import Shop, install_plugin

from waltap.plugins.check_context import CheckContext
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.sink import Sink, SinkCapabilities
from waltap.ports.source import Connector, PreflightCheck
from waltap.ports.specs import CheckSpec, SinkSpec

PLUGIN = """
import os
import sys
import time

from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.offsets.file_store import MemoryOffsetStore
from waltap.ports.sink.sink import Sink, SinkCapabilities
from waltap.ports.snapshot.snapshotter import Snapshotter
from waltap.ports.source.connector import PreflightCheck
from waltap.ports.specs import (
    CheckSpec, DecoderSpec, FormatSpec, OffsetStoreSpec, SignalChannelSpec, SinkSpec, SnapshotterSpec,
    TopicNamingSpec, TransformSpec,
)

PLACE, HOW = os.environ["PLACE"], os.environ.get("HOW", "raises")


def here(place, answer=None):
    if place != PLACE:
        return answer
    if HOW == "exits":
        sys.exit(0)
    if HOW == "gives 7":
        return 7
    if HOW == "blocks":
        time.sleep(0.15)
        return answer
    if HOW == "leaves":
        raise Mute
    raise ValueError(f"boom in {place}")


class Mute(BaseException):
    def __str__(self):
        raise RuntimeError


class Bad(Sink):
    def __init__(self):
        here("sink factory")
        self.capabilities = SinkCapabilities(records=False)
        self._position = None

    def open(self):
        pass

    def write(self, batch):
        self._position = batch.position
        here("sink write")

    def flush(self):
        return here("sink flush", self._position)

    def close(self):
        here("sink close")


class Store(MemoryOffsetStore):
    def load(self):
        return here("store load", super().load())

    def store(self, offset):
        here("store store")
        super().store(offset)


class Channel:
    def poll(self):
        return here("poll", [])

    def close(self):
        pass


class Mode(Snapshotter):
    def takes_snapshot(self, known):
        return here("snapshot mode", True)

    def streams(self, known):
        return True


def transform(properties):
    return here("transform factory", lambda batch: here("transform", batch))


def made(spec, factory, **more):
    return hookimpl(lambda: [spec(name="bad", summary="s", factory=factory, **more)])


register_sinks = made(SinkSpec, lambda p, c: Bad())
register_signal_channels = made(SignalChannelSpec, lambda p: Channel())
register_offset_stores = made(OffsetStoreSpec, lambda p, f: here("store factory", Store()))
register_snapshotters = made(SnapshotterSpec, lambda p: here("snapshot factory", Mode()))
register_transforms = made(TransformSpec, transform)
register_topic_naming = made(TopicNamingSpec, lambda p: lambda s, t: here("naming", f"{s}.{t}"))
register_decoders = made(
    DecoderSpec, lambda c: here("decoder"), output_plugin="pgoutput", capabilities=DecoderCapabilities()
)
register_formats = made(
    FormatSpec, (lambda p: 7) if PLACE == "format factory" else lambda p, c: here("format")
)
register_checks = made(CheckSpec, lambda profile: here("check", []))
choose_topic = hookimpl(lambda relation: here("choose hook"))
"""


RUN = ["sink factory", "sink write", "sink close", "store store", "transform", "choose hook"]
"""Others: USELESS."""


pytestmark = pytest.mark.shop(sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")


def raising(shop: Shop, place: str, how: str = "raises") -> None:
    """Choose the plugin for all it has, but for what would be called before ``place``, where it does ``how``."""
    shop.source |= {
        "plugin.name": "bad" if place == "decoder" else "pgoutput",
        "snapshot.mode": "bad"
        if "snapshot" in place
        else "no_data"
        if place == "decoder"
        else "initial",
        "topic.naming.strategy": "bad",
        "skip.messages.without.change": True,
    }
    shop.sink = {"type": "bad"}
    if place in {"format", "format factory", "naming", "choose hook"}:
        shop.sink = {"type": "jsonl", "path": "out.jsonl"}
    form = "bad" if place.startswith("format") else "json"
    shop.more = (
        f'[format]\ntype = "{form}"\n[offsets]\ntype = "bad"\n[[transforms]]\ntype = "bad"\n'
    )
    shop.variables = {"PLACE": place, "HOW": how, "COLUMNS": "500", "WALTAP_LOG_LEVEL": "ERROR"}


def forget(shop: Shop) -> None:
    until(lambda: not any(shop.database.slots().values()), "its reader to be gone")
    shop.database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = current_database()")  # fmt: skip


def test_a_run_names_the_plugin_that_raised(shop):
    install_plugin(shop.folder, PLUGIN, "raising")
    for place in RUN:
        raising(shop, place)
        text = shop.run(code=2 if place == "choose hook" else 1)
        assert f"acme 1.0 raised ValueError: boom in {place}" in text, place
        assert "WT-9000" not in text
        if place == "choose hook":
            assert "WT-1103" in text
        else:
            said = "WT-1108", "plugin 'raising' of acme", "acme_raising.py:", "acme has a bug"
            assert [words for words in said if words not in text] == [], place
        forget(shop)
    raising(shop, "check")
    text = shop.says("doctor FILE", code=1)
    for words in ("bad", "plugin 'raising' of acme 1.0 raised ValueError: boom in check"):
        assert words in text
    assert "wal_level" in text, "the other checks"


USELESS = {
    "sink flush": "acme_raising.Bad.flush gave int, not Position or Positions or None",
    "store factory": "<lambda> gave int, no OffsetStore: clear, load, store is missing",
    "store load": "acme_raising.Store.load gave int, not Offset or None",
    "snapshot factory": "<lambda> gave int, no Snapshotter: after, before",
    "transform factory": "acme_raising.transform gave int, not a function",
    "transform": "<lambda> gave int, not Batch",
    "decoder": "<lambda> gave int, no Decoder: capabilities",
    "format": "<lambda> gave int, no Format: ",
    "format factory": "<lambda> refuses its arguments: ",
    "naming": "<lambda> gave int, not str",
}


def test_a_run_names_the_plugin_that_gave_what_nobody_can_use(shop):
    install_plugin(shop.folder, PLUGIN, "raising")
    for place, words in USELESS.items():
        raising(shop, place, "gives 7")
        text = shop.run(code=1)
        assert "WT-1108" in text, place
        assert "plugin 'raising' of acme 1.0: acme_raising." in text, place
        assert words in text
        forget(shop)
    for place, words in {
        "choose hook": "WT-1103 hook raised choose_topic of acme 1.0 raised TypeError: it gave int, not text",
        "snapshot mode": "acme_raising.Mode.takes_snapshot gave 7",
    }.items():
        raising(shop, place, "gives 7")
        assert words in shop.run(code=2 if place == "choose hook" else 1)
        forget(shop)


def test_a_plugin_that_ends_the_process_is_named_and_the_run_has_failed(shop):
    """A run that ends with 0 counts as a clean end."""
    install_plugin(shop.folder, PLUGIN, "raising")
    raising(shop, "sink write", "exits")
    assert "plugin 'raising' of acme 1.0 raised SystemExit: 0" in shop.run(code=1)
    forget(shop)
    raising(shop, "sink write", "leaves")
    assert "plugin 'raising' of acme 1.0 raised Mute (" in shop.run(code=1)
    raising(shop, "check", "exits")
    assert "raised SystemExit: 0" in shop.says("doctor FILE", code=1)


@pytest.mark.parametrize("how", ["gives 7", "exits", "blocks"])
def test_a_bad_signal_channel_stops_no_pipeline(shop, how):
    install_plugin(shop.folder, PLUGIN, "raising")
    shop.source |= {"signal.enabled.channels": "bad", "signal.poll.interval.ms": 1}
    shop.source["waltap.stall.ms"] = 100
    shop.variables = {"PLACE": "poll", "HOW": how}
    text = shop.run()
    assert shop.operations() == [("r", 1)]
    blamed = "the pipeline waited" if how == "blocks" else "WT-1108 plugin 'raising' of acme 1.0"
    assert f"channel bad: {blamed}" in text


# --- checks ------------------------------------------------------------------------------------------


class Looks:
    """A plugin with a check that asks the server, and a sink that applies no truncates."""

    def __init__(self) -> None:
        self.contexts: list[CheckContext] = []

    @hookimpl
    def register_checks(self):
        return [CheckSpec(name="looks", summary="Looks.", factory=self.look)]

    def look(self, context: CheckContext) -> list[PreflightCheck]:
        self.contexts.append(context)
        ((name,),) = context.query("SELECT current_database() WHERE %s", (True,))
        return [
            PreflightCheck(name="looks", verdict="warning", found=f"{name} was seen", remedy="none")
        ]

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


def test_a_check_gets_profile_connection_and_offset_and_a_start_asks_it_too(shop, caplog):
    plugin, pipeline = Looks(), PipelineRig(shop.database, shop.folder)
    (seen,) = [check.found for check in pipeline.checked(plugin) if check.name == "looks"]
    assert seen == f"{shop.database.name} was seen"
    (context,) = plugin.contexts
    assert isinstance(context.connector, Connector)
    assert (context.profile.name, context.offset) == ("p", None)
    assert context.connector.server.version_num >= 100000
    for skipped, reported in (("none", ["warning"]), ("t", [])):
        settings = {"sink.type": "keeps", "skipped.operations": skipped}
        said = [c for c in pipeline.checked(Looks(), **settings) if c.name == "sink keeps"]
        assert [check.verdict for check in said] == reported, "a sink without truncates"
    with pipeline.running(plugin):
        pass
    assert len(plugin.contexts) == 2
    assert "was seen; none" in caplog.text


# --- the notification channel ``sink`` ---------------------------------------------------------------

TOPIC = "shop.notifications"


def reported(shop: Shop) -> list[str]:
    """Return the records in order: rows by their ids, notifications by their types."""
    found = []
    for record in shop.records():
        if record["topic"] == TOPIC:
            assert record["key"] == {"id": record["value"]["id"]}
            assert record["value"]["additional_data"]["connector_name"] == "shop"
            found.append(record["value"]["type"])
        else:
            found.append(str(record["key"]["id"]))
    return found


def test_notifications_stand_between_the_rows_that_they_are_about(shop):
    shop.source["notification.enabled.channels"] = "sink"
    assert "notification.sink.topic.name" in shop.run(code=2)
    shop.source["notification.sink.topic.name"] = TOPIC
    shop.sink = {"type": "changelog", "path": "log"}
    refused = shop.waltap("run FILE --until-idle 0.3")
    assert refused.returncode != 0
    assert "takes the changes themselves" in " ".join(refused.stderr.split())
    shop.sink = {"type": "jsonl", "path": "out.jsonl"}
    shop.run()
    snapshot = ["STARTED", "IN_PROGRESS", "1", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert reported(shop) == snapshot
    shop.run()
    assert reported(shop)[5:] == ["SKIPPED"]
    shop.says("drop FILE --yes")
    shop.run("--set", "snapshot.mode=initial_only")  # without a stream the last one arrives, too
    assert reported(shop)[6:] == snapshot
