"""Names of a database reach terminals, pages, logs and labels as text that drives nothing."""

import json
import urllib.request
from pathlib import Path

import pytest
from waltap.monitor.server import Monitor

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database

EVIL = "x\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\nFORGED ok"
"""An escape sequence, a C1 control, a turn of direction, and a line of its own."""


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> PipelineRig:
    def quoted(name: str) -> str:
        return f'"{name}"'

    schema, table, column, kind = (quoted(f"{each}{EVIL}") for each in ("s", "t", "c", "k"))
    database.execute(f"CREATE SCHEMA {schema}")
    database.execute(f"CREATE TYPE {schema}.{kind} AS ENUM ('a')")
    database.execute(
        f"CREATE TABLE {schema}.{table} (id int PRIMARY KEY, {column} {schema}.{kind}, p point)"
    )
    database.execute(f"CREATE TABLE {schema}.no_key (id int, {column} text)")
    database.execute(f"ALTER TABLE {schema}.no_key REPLICA IDENTITY FULL")
    database.execute(f"INSERT INTO {schema}.{table} VALUES (1, 'a')")
    found = PipelineRig(database, tmp_path, {"waltap.state.dir": str(tmp_path / "state")})
    lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in found.settings.items()]
    sink = f'[sink]\ntype = "sql"\nurl = "sqlite:///{tmp_path}/target.db"\n'
    (tmp_path / "p.toml").write_text("\n".join(['name = "p"', "[source]", *lines, sink]))
    return found


def unprintable(text: str) -> list[str]:
    """Return the lines of ``text`` that drive a terminal, or that a name forged."""
    return [
        line
        for line in text.split("\n")
        if not line.replace("\t", " ").isprintable() or line.startswith("FORGED")
    ]


def test_every_command_prints_names_as_text(pipeline: PipelineRig) -> None:
    profile = pipeline.folder / "p.toml"
    commands = [
        ["doctor", profile],
        ["plan", profile],
        ["plan", profile, "--types"],
        ["run", profile, "--until-current"],
        ["status", profile],
        ["status", pipeline.folder],
        ["top", pipeline.folder, "--once"],
        ["tables", "list", profile],
        ["slot", "list", profile],
        ["offsets", "show", profile],
        ["verify", profile],
        ["explain", profile],
    ]
    shown = ""
    for command in commands:
        done = waltap(*command, cwd=pipeline.folder)
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        assert unprintable(said) == [], (command, said)
        shown += said
    assert "evil" in shown


def test_the_page_and_the_labels_have_names_as_text(pipeline: PipelineRig) -> None:
    run = Run(pipeline, limits=None, settings={})
    with Monitor(run.engine, "127.0.0.1:0", None) as monitor, run:
        run.until(lambda: run.engine.state == "streaming", "streaming")
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics") as answer:  # noqa: S310 - our own
            text = answer.read().decode()
        assert "evil" in text
        assert unprintable(text) == []
