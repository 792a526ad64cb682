"""Each command that prints a table has --json, and prints valid JSON with it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from waltap.cli.application import COMMANDS, application
from waltap.plugins.host import Host

TABLES = {
    "changelog list", "changelog readers", "dead-letters list", "doctor", "explain", "plan", "plugins",
    "signal", "slot list", "slot show", "spark maintain", "spark sql", "spark status", "spark top",
    "spark verify", "sql verify", "status", "tail", "top", "verify",
}  # fmt: skip
"""Commands whose answer is a table or a list of facts."""

OTHERS = {
    "changelog expire", "changelog vacuum", "dead-letters drop", "dead-letters redeliver", "docs",
    "docs schema", "drop", "init", "offsets clear", "offsets export", "offsets import", "offsets set",
    "plugins new", "record", "repair", "replay", "run", "slot drop", "snapshot", "spark apply",
    "spark resume", "sql sequences", "tables add", "tables remove",
    "dead-letters show", "offsets show",  # they print JSON always
    "demo",  # its screen changes while it works; `waltap verify --json` repeats its comparison
}  # fmt: skip
"""Commands that do something and report it in lines."""


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    for child, nested in children.items():
        yield from leaves(f"{name} {child}", nested)
    if not children or getattr(command, "invoke_without_command", False):
        yield name, command


def every_command() -> dict[str, Any]:
    root: Any = get_command(application)
    context = root.make_context("waltap", ["plugins"])
    found = {}
    for name in COMMANDS:
        found.update(leaves(name, root.get_command(context, name)))
    for name in set(Host().commands) - set(COMMANDS):
        found.update(leaves(name, root.plugin_command(name)))
    return found


def test_each_command_that_prints_a_table_has_json():
    commands = every_command()
    assert commands.keys() == TABLES | OTHERS, "name each command in one of the two sets"
    missing = {
        name for name in TABLES if not any("--json" in p.opts for p in commands[name].params)
    }
    assert missing == set()


@pytest.fixture
def profile(tmp_path) -> Path:
    path = tmp_path / "waltap.toml"
    path.write_text(
        "[source]\ntype = 'postgres'\nname = 'shop'\ntopic.prefix = 'shop'\n"
        "database.dbname = 'shop'\n[sink]\ntype = 'jsonl'\npath = 'out'\n"
    )
    return path


@pytest.mark.parametrize(
    "command",
    [
        "plugins --json",
        "explain PROFILE --json",
        "dead-letters list PROFILE --json",
        "top FOLDER --json",
    ],
)
def test_json_is_valid(command, profile, tmp_path):
    given = {"PROFILE": str(profile), "FOLDER": str(tmp_path)}
    words = [given.get(word, word) for word in command.split()]
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) is not None
