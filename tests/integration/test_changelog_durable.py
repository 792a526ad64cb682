"""The change log is durable before it is published; its crashes: the sink suite, tests/fault/test_engine_kill.py."""

import os
from typing import Any

import pytest
from tests.harness.changelog import context, relation

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink, FileStore


@pytest.fixture(autouse=True)
def one_folder(monkeypatch) -> None:
    """Have all manifests in one folder, as within ten minutes: each new one is a step more."""
    monkeypatch.setattr("waltap_sinks.changelog.sink.next_bucket", lambda *_of: "20260101T000")


@pytest.mark.parametrize("tables", [2, 40])
def test_all_that_a_manifest_names_is_durable_before_it_appears(tmp_path, monkeypatch, tables):
    """Files, and every folder on the way to them: with few tables, and with so many that they share."""
    durable: set[str] = set()
    fsync = os.fsync

    def noting(fd: int) -> None:
        fsync(fd)
        durable.add(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", noting)
    path = tmp_path / "log"
    made = FileStore(str(path))
    published: list[set[str]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            if name == "move":
                published.append(set(durable))
            return getattr(real, name)

    real = made._fs
    made._fs = Watched()
    sink = ChangeLogSink(ChangeLogProperties(path=str(path)), context(tmp_path), store=made)
    sink.open()
    published.clear()  # the log's id
    for lsn in (100, 200):
        changes = [
            Insert(relation(f"public.t{number}", [("id", "int4")]), lsn, (str(lsn),))
            for number in range(tables)
        ]
        part = TransactionPart(
            xid=lsn, begin_lsn=lsn, commit_lsn=lsn, commit_ts=0, end_lsn=lsn + 8, changes=changes
        )
        sink.write(Batch(parts=[part], position=Position(lsn + 8), events=tables))
        sink.flush()
    sink.close()
    log = ChangeLog(str(path))
    for manifest, before in zip(log.manifests(), published, strict=True):
        assert len(manifest.tables) == tables
        for entry in manifest.tables:
            file = path / entry.segments[0].path
            assert str(file) in before
            for folder in file.parents:
                if folder.is_relative_to(path):
                    assert str(folder) in before
