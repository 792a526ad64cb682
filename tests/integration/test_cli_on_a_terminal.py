"""Commands on a terminal: bars for the snapshot, a line for the stream, a panel for an error; and names of a
database reach terminals, pages, logs and labels as text that drives nothing."""

import os
import pty
import re
import urllib.request

import pytest
from tests.harness import command
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop


def on_terminal(shop: Shop, *arguments: str, term: str = "xterm") -> tuple[int, str]:
    """Run waltap on a pseudo-terminal; return its exit code and what is on the screen's roll.

    Control sequences are left out, but for a dumb terminal, which may get none.
    """
    master, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WALTAP_LOG")}
    colors = {} if term == "dumb" else {"NO_COLOR": "1"}
    with os.fdopen(terminal, "wb", buffering=0) as screen:
        process = command.start(
            *arguments, cwd=shop.path.parent, out=screen, errors=screen,
            environment={**environment, "TERM": term, "COLUMNS": "100", **colors},
        )  # fmt: skip
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
    return process.wait(120), text


pytestmark = pytest.mark.shop(
    sql="CREATE TABLE big (id int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 30000)"
)


def test_a_run_has_bars_an_error_a_panel_and_changes_lines_of_their_own(shop):
    code, text = on_terminal(shop, "run", "shop.toml", "--set", "database.port=1")
    assert (code, text.count("WT-2002")) == (3, 1)
    assert "╭─ WT-2002" in text
    code, text = on_terminal(shop, "run", "shop.toml", "--until-idle", "0.5")
    assert code == 0, text
    last = [line for line in re.split(r"[\r\n]+", text) if "public.big" in line][-1]
    assert re.search(r"✓ public\.big .* 30,000 rows +[\d,]+/s +\d:\d\d:\d\d", last)
    assert "streaming" in text
    assert '"level"' not in text  # no structured logs here
    shop.says("drop FILE --yes")
    code, text = on_terminal(shop, "run", "shop.toml", "--sink", "terminal", "--max-records", "5")
    assert code == 0, text
    assert "READ     public.big  id=1" in text
    assert "━" not in text


def test_a_dumb_terminal_gets_plain_lines(shop):
    for line in (
        "run shop.toml --set database.port=1",
        "run shop.toml --until-idle 0.3",
        "doctor shop.toml",
        "--help",
    ):
        _, text = on_terminal(shop, *line.split(), term="dumb")
        assert text.strip()
        assert "\x1b" not in text
        if line != "--help":
            assert not [frame for frame in "╭│━⠋" if frame in text], line


EVIL = "x\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\nFORGED ok"
"""An escape sequence, a C1 control, a turn of direction, and a line of its own."""


def unprintable(text: str) -> list[str]:
    """Return the lines of ``text`` that drive a terminal, or that a name forged."""
    return [
        line
        for line in text.split("\n")
        if not line.replace("\t", " ").isprintable() or line.startswith("FORGED")
    ]


@pytest.fixture
def evil(database) -> Database:
    """Return a database whose names are all so."""
    schema, table, column, kind = (f'"{each}{EVIL}"' for each in ("s", "t", "c", "k"))
    for statement in (
        f"CREATE SCHEMA {schema}",
        f"CREATE TYPE {schema}.{kind} AS ENUM ('a')",
        f"CREATE TABLE {schema}.{table} (id int PRIMARY KEY, {column} {schema}.{kind}, p point)",
        f"CREATE TABLE {schema}.no_key (id int, {column} text)",
        f"ALTER TABLE {schema}.no_key REPLICA IDENTITY FULL",
        f"INSERT INTO {schema}.{table} VALUES (1, 'a')",
    ):
        database.execute(statement)
    return database


def test_every_command_prints_names_as_text(evil, tmp_path):
    shop = Shop(tmp_path, evil, **{"waltap.state.dir": str(tmp_path / "state")})
    shop.sink = {"type": "sql", "url": f"sqlite:///{tmp_path}/target.db"}
    shown = ""
    for line in (
        "doctor FILE", "plan FILE --types", "run FILE --until-idle 0.3", "top . --once", "verify FILE",
    ):  # fmt: skip
        done = shop.waltap(line)
        said = done.stdout + done.stderr
        assert done.returncode == 0, (line, said)
        assert unprintable(said) == [], (line, said)
        shown += said
    assert "evil" in shown


def test_labels_of_metrics_are_text(evil, tmp_path):
    with PipelineRig(evil, tmp_path).monitored() as (_run, monitor):
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics") as answer:
            text = answer.read().decode()
    assert "evil" in text
    assert unprintable(text) == []
