"""A plugin that raises, wherever it is called: one clear error that names it, never a bug of waltap."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.servers.postgres import Database

PLUGIN = """
import os

from waltap.decode.decoder import DecoderCapabilities
from waltap.hookspecs import hookimpl
from waltap.offsets.memory_store import MemoryOffsetStore
from waltap.sink.sink import Sink, SinkCapabilities
from waltap.snapshot.snapshotter import Snapshotter
from waltap.source.connector import Check
from waltap.specs import (
    CheckSpec, DecoderSpec, FormatSpec, OffsetStoreSpec, SinkSpec, SnapshotterSpec,
    TopicNamingSpec, TransformSpec,
)

PLACE = os.environ["PLACE"]


def here(place, answer=None):
    if place == PLACE:
        raise ValueError(f"boom in {place}")
    return answer


class Bad(Sink):
    def __init__(self):
        here("sink factory")
        self.capabilities = SinkCapabilities(records=False)
        self._position = None

    def open(self):
        return here("sink open")

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


class Mode(Snapshotter):
    def takes_snapshot(self, known):
        return here("snapshot mode", True)

    def streams(self, known):
        return True


def transform(properties):
    here("transform factory")
    return lambda batch: here("transform", batch)


@hookimpl
def register_sinks():
    return [SinkSpec(name="bad", summary="s", factory=lambda p, c: Bad())]


@hookimpl
def register_offset_stores():
    return [OffsetStoreSpec(name="bad", summary="s", factory=lambda p, f: here("store factory", Store()))]


@hookimpl
def register_snapshotters():
    return [SnapshotterSpec(name="bad", summary="s", factory=lambda p: here("snapshot factory", Mode()))]


@hookimpl
def register_transforms():
    return [TransformSpec(name="bad", summary="s", factory=transform)]


@hookimpl
def register_topic_naming():
    naming = here("naming factory", lambda schema, table: here("naming", f"{schema}.{table}"))
    return [TopicNamingSpec(name="bad", summary="s", factory=lambda p: naming)]


@hookimpl
def register_decoders():
    capable = DecoderCapabilities()
    return [DecoderSpec(name="bad", summary="s", output_plugin="pgoutput", capabilities=capable,
                        factory=lambda context: here("decoder"))]


@hookimpl
def register_formats():
    return [FormatSpec(name="bad", summary="s", factory=lambda p, c: here("format"))]


@hookimpl
def register_checks():
    return [CheckSpec(name="acme check", summary="s", factory=lambda profile: here("check", []))]


@hookimpl
def choose_topic(relation):
    return here("choose hook")
"""

PROFILE = """
[source]
type = "postgres"
{source}
"slot.name" = "{name}"
"publication.name" = "{name}"
"plugin.name" = "{decoder}"
"snapshot.mode" = "{mode}"
"topic.naming.strategy" = "bad"
"skip.messages.without.change" = true
[format]
type = "{form}"
[offsets]
type = "bad"
[sink]
type = "{sink}"
[[transforms]]
type = "bad"
"""

RUN = [
    "sink factory", "sink open", "sink write", "sink flush", "sink close", "store factory", "store load",
    "store store", "snapshot mode", "snapshot factory", "transform factory", "transform", "decoder",
    "format", "naming",
]  # fmt: skip


def waltap(
    command: str, place: str, database: Database, folder: Path
) -> subprocess.CompletedProcess[str]:
    (folder / "acme_raising.py").write_text(PLUGIN)
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[waltap]\nraising = acme_raising\n")
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    decoder = "bad" if place == "decoder" else "pgoutput"
    text = PROFILE.format(
        source=source,
        name=database.name,
        decoder=decoder,
        mode="bad" if "snapshot" in place else "no_data" if place == "decoder" else "initial",
        form="bad" if place == "format" else "json",
        sink="jsonl" if place in {"format", "naming", "choose hook"} else "bad",
    )
    (folder / "p.toml").write_text(text)
    limits = ["--max-seconds", "3"] if command == "run" else []
    return subprocess.run(
        [sys.executable, "-m", "waltap", command, "p.toml", *limits],
        cwd=folder,
        env={
            **os.environ,
            "PLACE": place,
            "PYTHONPATH": str(folder),
            "COLUMNS": "500",
            "WALTAP_LOG_LEVEL": "ERROR",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("place", RUN)
def test_a_run_names_the_plugin_that_raised(place: str, database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    answer = waltap("run", place, database, tmp_path)
    text = answer.stderr
    assert answer.returncode == 1, text
    assert "WT-1108" in text
    assert f"plugin 'raising' of acme 1.0 raised ValueError: boom in {place}" in text
    assert "acme_raising.py:" in text
    assert "fault of acme" in text
    assert "WT-9000" not in text
    assert "Traceback" not in text


def test_a_hook_that_chooses_and_raises_is_named(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    text = waltap("run", "choose hook", database, tmp_path).stderr
    assert "WT-1103" in text
    assert "acme 1.0 raised ValueError: boom in choose hook" in text


def test_a_check_that_raises_is_an_error_beside_the_other_checks(
    database: Database, tmp_path: Path
) -> None:
    answer = waltap("doctor", "check", database, tmp_path)
    text = " ".join((answer.stdout + answer.stderr).split())
    assert answer.returncode == 1, text
    assert "acme check" in text
    assert "plugin 'raising' of acme 1.0 raised ValueError: boom in check" in text
    assert "wal_level" in text
