"""`waltap drop` removes what a pipeline made and nothing else; what runs is left alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command import waltap
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database


@pytest.fixture
def profile(database: Database, tmp_path: Path) -> Path:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    path = tmp_path / f"{database.name}.toml"
    path.write_text(
        f'[source]\ntype = "postgres"\n{source}\n[sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )
    return path


def run(path: Path, *more: object) -> None:
    done = waltap("run", path, "--until-idle", 0.3, *more, cwd=path.parent)
    assert done.returncode == 0, done.stderr


def publications(database: Database) -> list[str]:
    return [name for (name,) in database.execute("SELECT pubname::text FROM pg_publication")]


def test_drop_shows_asks_and_removes_everything_but_the_output(
    profile: Path, database: Database
) -> None:
    run(profile)
    database.execute("CREATE PUBLICATION of_somebody_else")
    asked = waltap("drop", profile, cwd=profile.parent)  # nobody answers
    assert asked.returncode == 1
    assert "--yes goes on unasked" in asked.stderr
    assert "Aborted" not in asked.stderr
    for shown in (f"slot {database.name}", f"publication {database.name}", "offset.json"):
        assert shown in asked.stdout
    assert list(database.slots()) == [database.name]
    done = waltap("drop", profile, "--yes", cwd=profile.parent)
    assert done.returncode == 0, done.stderr
    assert database.slots() == {}
    assert publications(database) == ["of_somebody_else"]
    assert sorted(path.name for path in profile.parent.iterdir()) == ["out.jsonl", profile.name]
    again = waltap("drop", profile, "--yes", cwd=profile.parent)
    assert (again.returncode, "nothing to remove" in again.stdout) == (0, True)
    run(profile)  # and it can start over
    assert (profile.parent / "out.jsonl").read_text().count("\n") == 2
    assert waltap("drop", profile, "--yes", cwd=profile.parent).returncode == 0


def test_a_pipeline_at_rest_needs_no_plugin_of_sink_format_or_transform(
    profile: Path, database: Database
) -> None:
    run(profile)
    text = profile.read_text().replace("[sink]\n", "[gone]\n").partition("[gone]")[0]
    profile.write_text(
        f'{text}"notification.enabled.channels" = "acme"\n[sink]\ntype = "acme-sink"\nurl = "x"\n'
        '[format]\ntype = "acme-format"\nlevel = 3\n[[transforms]]\ntype = "acme-transform"\n'
    )
    refused = waltap("run", profile, cwd=profile.parent)
    assert refused.returncode == 2
    for gone in ("acme-sink", "acme-format", "acme-transform"):
        assert gone in refused.stderr
    for looks in (["status"], ["slot", "show"], ["offsets", "show"]):
        done = waltap(*looks, profile, "--set", "sink.url=y", cwd=profile.parent)
        assert done.returncode == 0, done.stderr
    done = waltap("drop", profile, "--yes", cwd=profile.parent)
    assert done.returncode == 0, done.stderr
    assert database.slots() == {}


def test_drop_leaves_a_slot_and_a_publication_that_were_there_before(
    profile: Path, database: Database
) -> None:
    name = database.name
    database.execute(f"CREATE PUBLICATION {name} FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    run(profile, "--set", "slot.adopt=true")
    done = waltap("drop", profile, "--yes", cwd=profile.parent)
    assert done.returncode == 0, done.stderr
    assert f"(stays: slot {name}" in done.stdout
    assert list(database.slots()) == [name]
    assert publications(database) == [name]


@pytest.fixture
def running(profile: Path) -> Iterator[Path]:
    process = subprocess.Popen(
        [sys.executable, "-m", "waltap", "run", str(profile), "--ready-file", "ready"],
        cwd=profile.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until((profile.parent / "ready").exists, "the ready file")
        yield profile
    finally:
        process.terminate()
        process.wait(timeout=90)


def test_what_runs_is_left_alone(running: Path, database: Database) -> None:
    for command in (("drop",), ("slot", "drop"), ("offsets", "clear"), ("offsets", "set")):
        more = ["0/1"] if command[-1] == "set" else []
        refused = waltap(*command, running, *more, "--yes", cwd=running.parent)
        assert refused.returncode == 1
        assert "WT-6004" in refused.stderr
    assert list(database.slots()) == [database.name]
    assert waltap("offsets", "show", running, cwd=running.parent).returncode == 0


def test_what_is_in_a_database_that_the_profile_left_stays_and_is_remembered(
    profile: Path, database: Database
) -> None:
    """A slot that nobody knows of any more would keep WAL until the disk is full."""
    run(profile)
    name, other = database.name, database.server.create_database(f"{database.name}_b")
    there = ("--set", f"slot.name={name}", "--set", f"publication.name={name}")
    there += ("--set", f"database.dbname={other.name}")
    try:
        for again in range(2):
            dropped = waltap("drop", profile, "--yes", *there, cwd=profile.parent)
            assert dropped.returncode == 0, dropped.stderr
            for kind in ("slot", "publication"):
                assert f"(stays: {kind} {name} in database {name} of system" in dropped.stdout
            assert ("nothing to remove" in dropped.stdout) == bool(again)
        assert list(database.slots()) == [name]
        done = waltap("drop", profile, "--yes", cwd=profile.parent)
        assert (done.returncode, "(stays" in done.stdout) == (0, False)
        assert (database.slots(), publications(database)) == ({}, [])
        assert sorted(path.name for path in profile.parent.iterdir()) == ["out.jsonl", profile.name]
    finally:
        other.drop()


def test_a_role_that_reads_by_default_runs_and_drops(profile: Path, database: Database) -> None:
    database.execute(f'ALTER DATABASE "{database.name}" SET default_transaction_read_only = on')
    run(profile)
    assert (profile.parent / "out.jsonl").read_text().count("\n") == 1
    assert waltap("drop", profile, "--yes", cwd=profile.parent).returncode == 0
    assert publications(database) == []
