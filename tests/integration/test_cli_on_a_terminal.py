"""A run on a terminal: bars for the snapshot, a line for the stream, a panel for an error."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.servers.postgres import Database


def on_terminal(*arguments: str, cwd: Path, term: str = "xterm") -> tuple[int, str]:
    """Run waltap on a pseudo-terminal; return its exit code and what is on the screen's roll.

    Control sequences are left out, but for a dumb terminal, which may get none.
    """
    master, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WALTAP_LOG")}
    process = subprocess.Popen(
        [sys.executable, "-m", "waltap", *arguments],
        cwd=cwd,
        env={**environment, "TERM": term, "COLUMNS": "100"}
        | ({} if term == "dumb" else {"NO_COLOR": "1"}),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # the last holder of the other end is gone
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    text = seen.decode("utf-8", "replace")
    if term != "dumb":
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return process.wait(90), text


@pytest.fixture
def profile(database: Database, tmp_path: Path) -> Path:
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 30000)"
    )
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    (tmp_path / "p.toml").write_text(
        f'[source]\ntype = "postgres"\n{source}\nslot.name = "{database.name}"\n'
        f'publication.name = "{database.name}"\n[sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )
    return tmp_path


def test_the_snapshot_has_a_bar_with_rows_rate_and_time_left(profile: Path) -> None:
    code, text = on_terminal("run", "p.toml", "--until-idle", "0.5", cwd=profile)
    assert code == 0, text
    last = [line for line in re.split(r"[\r\n]+", text) if "public.big" in line][-1]
    assert re.search(r"✓ public\.big .* 30,000 rows +[\d,]+/s +\d:\d\d:\d\d", last)
    assert "streaming" in text
    assert '"level"' not in text  # no structured logs here


def test_an_error_is_one_panel(profile: Path) -> None:
    code, text = on_terminal("run", "p.toml", "--set", "database.port=1", cwd=profile)
    assert code == 3
    assert "╭─ WT-2002" in text
    assert text.count("WT-2002") == 1


def test_changes_on_the_terminal_have_no_bars_between_them(profile: Path) -> None:
    code, text = on_terminal(
        "run", "p.toml", "--sink", "terminal", "--max-records", "5", cwd=profile
    )
    assert code == 0, text
    assert "READ     public.big  id=1" in text
    assert "━" not in text


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["run", "p.toml", "--until-idle", "0.3"], id="run"),
        pytest.param(["run", "p.toml", "--set", "database.port=1"], id="error"),
        pytest.param(["run", "p.toml", "--sink", "terminal", "--max-records", "3"], id="changes"),
        pytest.param(["doctor", "p.toml"], id="doctor"),
        pytest.param(["tail", "p.toml", "--snapshot", "--max-records", "3"], id="tail"),
        pytest.param(["--help"], id="help"),
        pytest.param(["run", "--no-such-option"], id="usage"),
    ],
)
def test_a_dumb_terminal_gets_plain_lines(profile: Path, command: list[str]) -> None:
    _, text = on_terminal(*command, cwd=profile, term="dumb")
    assert text.strip()
    assert "\x1b" not in text
    if not command[-1].startswith("--"):
        assert not [frame for frame in "╭│━⠋" if frame in text]
