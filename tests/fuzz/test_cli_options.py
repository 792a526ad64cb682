"""Every command with options and arguments of any kind, whole: never a traceback, never WT-9000.

The commands and their options are those of the command tree, plugins' included. Nothing listens at the
addresses that are used, and whatever is written goes to an empty folder. ``WALTAP_FUZZ_COMMANDS`` says
how many command lines; each has a seed, which a failure names.
"""

import io
import os
import random
from typing import Any

import click
import pytest
from tests.unit.cli.test_command_parts import every_command

from waltap.cli import application as module

COMMANDS = int(os.environ.get("WALTAP_FUZZ_COMMANDS", "300"))
QUICK = 92
"""Seeds that `make test` tries, two for each command."""

LATER = [pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(QUICK, COMMANDS)]
SLOW = {"demo"}
"""Starts servers."""

ENDS = {("spark", "apply"): ("--once",)}
"""What ends a command that would wait for ever."""

PROFILE = (
    '[source]\ntype = "postgres"\n"database.hostname" = "127.0.0.1"\n"database.port" = 1\n'
    '"database.dbname" = "d"\n"database.user" = "u"\n"errors.max.retries" = 0\n'
    '[sink]\ntype = "null"\n'
)
FILES: dict[str, bytes] = {
    "good.toml": PROFILE.encode(),
    "torn.toml": PROFILE.encode()[:50],
    "empty.toml": b"",
    "bytes.toml": bytes(range(256)),
    "good.properties": b"connector.class=io.debezium.connector.postgresql.PostgresConnector\n"
    b"database.hostname=127.0.0.1\ndatabase.port=1\ndatabase.dbname=d\nplugin.name=pgoutput\n",
    "list.json": b"[1, 2]",
    "nested.json": b"[" * 5000,
}
VALUES = (
    *FILES, *FILES, "good.toml", "good.toml", "absent.toml", "folder", "", " ", "-", "--", ".", "/dev/null/x",
    "a" * 5000, "\udcff", "ünï", "a\nb", "{}", "[x", "${env:NONE}", "${file:good.toml}", "0", "-1",
    "1e309", "nan", "99999999999999999999", "true", "NULL", "0/0", "0/1", "G/1", "jsonl:", "jsonl:-",
    "jsonl:folder", "changelog:", "changelog:lake", "changelog:s3://", "changelog:foo://x", "spark:",
    "null", "terminal", "nosuch:x", "a=b", "=", "=x", "plugin.name=", "plugin.name=wal2json",
    "database.port=x", "waltap.state.dir=", "waltap.state.dir=/dev/null/x", "sink.type=jsonl",
    "sink.path=", "snapshot.mode=never", "table.include.list=[", "postgres://127.0.0.1:1/d",
    "postgres://h:port/d", "postgres://", "mysql://h/d", "yugabyte://127.0.0.1:1/d", "://",
    "host=x dbname=d", "public.t", "%00", "a'b\"c",
)  # fmt: skip


LINES = [
    (tuple(name.split()), command)
    for name, command in sorted(every_command().items())
    if not SLOW.intersection(name.split())
]


def arguments(chance: random.Random, command: Any) -> list[str]:
    """Return a command line, more often right than wrong in its shape."""
    words: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument) or not parameter.opts[0].startswith("-"):
            words += [chance.choice(VALUES) for _ in range(chance.choice((0, 1, 1, 1, 1, 2)))]
        elif chance.random() < 0.35 and "--help" not in parameter.opts:
            words.append(chance.choice(parameter.opts))
            if not getattr(parameter, "is_flag", False):
                words.append(chance.choice(VALUES))
    if chance.random() < 0.1:
        words.insert(chance.randrange(len(words) + 1), chance.choice(("--nonsense", "-x", *VALUES)))
    return words


@pytest.mark.parametrize("seed", [*range(QUICK), *LATER])
def test_no_command_line_ends_in_a_bug(seed, tmp_path, monkeypatch, capfd):
    chance = random.Random(seed)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    path, command = LINES[seed % len(LINES)]
    words = [*path, *arguments(chance, command), *ENDS.get(path, ())]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["waltap", *words])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as end:
        module.run()
    said = capfd.readouterr()
    reported = said.out + said.err
    assert end.value.code in {None, 0, 1, 2, 3, 130}, (words, reported)
    assert "Traceback" not in reported, (words, reported)
    assert "WT-9000" not in reported, (words, reported)
    assert "WT-1108" not in reported, (words, reported)
