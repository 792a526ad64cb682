"""What a run says when the database refuses: what, why, what fixes it, and nothing left behind."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(database: Database, tmp_path: Path) -> Run:
    """Return what runs a profile of ``database``, with properties changed."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    (tmp_path / "p.toml").write_text(
        f'[source]\ntype = "postgres"\n{source}\nslot.name = "{database.name}"\n'
        f'publication.name = "{database.name}"\n[sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )

    def waltap(**properties: str) -> subprocess.CompletedProcess[str]:
        settings = [f"--set={k.replace('__', '.')}={v}" for k, v in properties.items()]
        command = [sys.executable, "-m", "waltap", "run", "p.toml", "--until-idle", "0.3"]
        return subprocess.run(
            [*command, *settings],
            cwd=tmp_path,
            env={**os.environ, "WALTAP_LOG_LEVEL": "ERROR"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return waltap


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """Return a role that may log in and nothing else."""
    name = f"{database.name}_poor"
    database.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    yield name
    database.execute(f"DROP OWNED BY {name}")
    database.execute(f"DROP ROLE {name}")


def publications(database: Database) -> list[str]:
    return [name for (name,) in database.execute("SELECT pubname FROM pg_publication")]


def refused(
    answer: subprocess.CompletedProcess[str], database: Database, *, code: int, words: list[str]
) -> None:
    text = " ".join(answer.stderr.split())
    assert answer.returncode == code, text
    assert "Traceback" not in text
    for word in words:
        assert word in text
    assert database.slots() == {}
    assert publications(database) == []


def test_a_database_that_does_not_exist(run: Run, database: Database) -> None:
    answer = run(database__dbname="not_there")
    refused(answer, database, code=1, words=["WT-2004", "not_there", "database.dbname"])


def test_a_server_that_cannot_be_reached(run: Run, database: Database) -> None:
    answer = run(database__port="1")
    refused(answer, database, code=3, words=["WT-2002", "database.port"])


def test_a_role_that_does_not_exist(run: Run, database: Database) -> None:
    answer = run(database__user="nobody_at_all", database__password="x")
    refused(answer, database, code=1, words=["WT-2003", "database.user"])


def test_a_role_without_replication(run: Run, database: Database, role: str) -> None:
    database.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"')
    answer = run(database__user=role, database__password="x", plugin__name="wal2json")
    refused(answer, database, code=1, words=["WT-2005", "WITH REPLICATION"])


def test_a_publication_that_is_not_there(run: Run, database: Database) -> None:
    answer = run(publication__autocreate__mode="disabled")
    refused(answer, database, code=1, words=["WT-2106", "CREATE PUBLICATION"])


def test_a_table_whose_identity_cannot_support_updates(run: Run, database: Database) -> None:
    database.execute("CREATE TABLE keyless (a int)")
    answer = run()
    refused(answer, database, code=1, words=["WT-2107", "public.keyless", "REPLICA IDENTITY FULL"])


def test_an_output_plugin_that_the_server_does_not_have(run: Run, database: Database) -> None:
    answer = run(plugin__name="yboutput")
    refused(answer, database, code=1, words=["WT-2008", "yboutput"])


def test_a_slot_that_somebody_else_reads(run: Run, database: Database, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "waltap", "run", "p.toml", "--ready-file", "ready"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as other:
        until((tmp_path / "ready").exists, "the ready file")
        answer = run(
            waltap__state__dir="elsewhere",
            snapshot__mode="no_data",
            slot__adopt="true",
            slot__max__retries="0",
            errors__max__retries="0",
        )
        other.terminate()
    text = " ".join(answer.stderr.split())
    assert answer.returncode == 3, text
    assert "WT-2101" in text
    assert "slot.name" in text


def test_a_sink_that_cannot_be_written(run: Run, database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run(sink__path="file/out.jsonl")
    refused(answer, database, code=1, words=["WT-5001", "file/out.jsonl"])


@pytest.mark.parametrize("sink", ["jsonl:-", "terminal"])
def test_a_reader_that_has_seen_enough_ends_a_run_quietly(
    run: Run, database: Database, tmp_path: Path, sink: str
) -> None:
    """``| head -1``: what it did not take comes with the next run; no disk is blamed."""
    database.execute("INSERT INTO t SELECT generate_series(2, 20000)")
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "waltap", "run", "p.toml", "--sink", sink]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        assert select.select([reader], [], [], 60)[0]
        os.close(reader)
        text = process.communicate(timeout=90)[1]
    assert process.returncode == 0, text
    assert "standard output" in text
    assert "stopped" in text
    for word in ("disk", "error", "failed", "Traceback", "WT-"):
        assert word not in text
