"""`waltap run`: of a folder, each pipeline a process of its own; what SIGHUP changes; its log; and what it says when the
database or the operating system refuses: what, why, what fixes it."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.command import run_program
from tests.harness.json_lines import records
from tests.harness.pipeline import profile_text, until
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.linters import logrotate
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop, text_of

LOGROTATE = Path(__file__).parents[2] / "examples/deploy/waltap.logrotate"


class Fleet(Shop):
    """Profiles of tables a and b in the folder ``all``, and the log of what runs them."""

    def write(self, name: str, **more: object) -> Path:
        slot = f"{name}_{self.slot[-20:]}"
        settings = {
            **self.source,
            "slot.name": slot,
            "publication.name": slot,
            "table.include.list": f"public.{name}",
            "offset.flush.interval.ms": 0,
            **more,
        }
        path = self.folder / "all" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        sink = {"type": "jsonl", "path": f"{name}.jsonl"}
        path.write_text(profile_text(name, settings, sink))
        return path

    def ids(self, name: str) -> list[int]:
        found = records(self.folder / "all" / f"{name}.jsonl")
        return [each["value"]["after"]["id"] for each in found if "after" in each["value"]]

    def has(self, name: str, *ids: int) -> None:
        until(lambda: self.ids(name) == list(ids), f"{ids} of {name}")

    def beats(self, name: str) -> int:
        found = records(self.folder / "all" / f"{name}.jsonl")
        return sum("ts_ms" in each["value"] for each in found) - len(self.ids(name))

    def log(self, name: str = "stderr") -> list[dict[str, Any]]:
        """Return the log's lines; a faulty profile is reported in others, too."""
        text = (self.folder / name).read_text() if (self.folder / name).exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1] if line.startswith("{")]

    def says_that(self, words: str, log: str = "stderr", times: int = 1) -> dict[str, Any]:
        """Wait for a line with ``words``, ``times`` of them; return the last one."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.log(log) if words in line["message"]]

        until(lambda: len(found()) >= times, words)
        return found()[-1]


@pytest.fixture
def fleet(database, tmp_path) -> Fleet:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)"
    )
    return Fleet(tmp_path, database)


# --- a folder ----------------------------------------------------------------------------------------


def test_one_that_is_killed_starts_again_and_one_that_is_faulty_waits(fleet):
    fleet.write("a")
    fleet.write("b", **{"no.such.property": 1})
    with fleet.process("run --all all") as process:
        fleet.has("a", 1)
        fleet.says_that("b.toml has a faulty profile")
        started = re.search(r"process (\d+)", fleet.says_that("a.toml: process")["message"])
        os.kill(int(started[1]), signal.SIGKILL)
        fleet.says_that("starts again")
        fleet.database.execute("INSERT INTO a VALUES (2)")
        until(lambda: fleet.ids("a")[-1:] == [2], "the change of a")
        fleet.write("b")
        process.send_signal(signal.SIGHUP)
        fleet.has("b", 1)


def test_it_ends_when_all_are_done(fleet):
    fleet.write("a")
    fleet.write("b", **{"snapshot.mode": "initial_only"})
    fleet.says("run --all all --max-records 1")
    assert fleet.ids("a") == fleet.ids("b") == [1]


def test_a_folder_is_run_read_again_and_stopped(fleet):
    """Its profiles are taken as they are then, in a new process where they must."""
    first, log = fleet.write("a"), "all.log"
    (first.parent / "notes.toml").write_text("no = 'profile'\n")
    with fleet.process(f"run --all all --log-file {log}") as process:
        fleet.says_that("streaming", log)
        fleet.write("a", **{"heartbeat.interval.ms": 60000})
        process.send_signal(signal.SIGHUP)
        fleet.says_that("read again: heartbeat.interval.ms", log)
        assert sum("a.toml: process" in line["message"] for line in fleet.log(log)) == 1
        fleet.write("a", **{"max.batch.size": 5})
        fleet.write("b")
        process.send_signal(signal.SIGHUP)
        fleet.says_that("a.toml: process", log, times=2)
        fleet.database.execute("INSERT INTO a VALUES (2)")
        fleet.has("a", 1, 2)
        fleet.has("b", 1)
        first.unlink()
        process.send_signal(signal.SIGHUP)
        fleet.says_that("a.toml is gone", log)
        fleet.database.execute("INSERT INTO b VALUES (2)")
        fleet.has("b", 1, 2)
        process.terminate()
        assert process.wait(120) == 0
    assert fleet.ids("a") == [1, 2]


# --- one pipeline --------------------------------------------------------------------------------------


def test_a_run_takes_its_profile_anew(fleet):
    quiet = {"snapshot.mode": "no_data", "topic.heartbeat.prefix": "__beat"}
    profile = fleet.write("a", **quiet)
    with fleet.process("run all/a.toml") as process:
        fleet.says_that("streaming")
        profile.write_text("this is [no profile")
        process.send_signal(signal.SIGHUP)
        assert fleet.says_that("is refused")["error_code"] == "WT-1001"
        fleet.database.execute("INSERT INTO a VALUES (2)")
        fleet.has("a", 2)

        fleet.write("a", **quiet, **{"table.include.list": "public.other", "max.batch.size": 5})
        process.send_signal(signal.SIGHUP)
        named = fleet.says_that("needs a restart")["message"]
        assert named.endswith(": max.batch.size, table.include.list")

        level = {"waltap.log.file": "second.log", "waltap.log.level": "debug"}
        beat = {"heartbeat.interval.ms": 20, "waltap.wal.budget": "1GB"}
        fleet.write("a", **quiet, **beat, **{"waltap.log.file": "/dev/null/x"})
        process.send_signal(signal.SIGHUP)
        fleet.says_that("is refused", times=2)  # none of it applies
        fleet.write("a", **quiet, **level, **beat)
        process.send_signal(signal.SIGHUP)
        done = fleet.says_that("was read again", "all/second.log")["message"]
        assert done.endswith(
            ": heartbeat.interval.ms, waltap.log.level, waltap.log.file, waltap.wal.budget"
        )
        fleet.database.execute("INSERT INTO a VALUES (3)")
        fleet.has("a", 2, 3)  # of a table that is captured as before
        until(lambda: fleet.beats("a") > 2, "heartbeats")
        process.terminate()
        assert process.wait(120) == 0
    fleet.says_that("stopped", "all/second.log")


def test_a_log_is_rotated_under_a_run(fleet):
    fleet.write("a", **{"snapshot.mode": "no_data"})
    log = fleet.folder / "waltap.log"
    with fleet.process(f"run all/a.toml --log-file {log}") as process:
        fleet.says_that("streaming", "waltap.log")
        before = fleet.log("waltap.log")
        rotate(log)
        process.send_signal(signal.SIGHUP)
        fleet.says_that("nothing to change", "waltap.log")
        process.terminate()
        assert process.wait(120) == 0
    now, kept = fleet.log("waltap.log"), fleet.log("waltap.log.1")
    assert kept[: len(before)] == before
    assert not [line for line in kept if line in now], "each line is in one of the two"
    assert not [line for line in now if "streaming" in line["message"]]
    assert fleet.stderr == ""


def rotate(log: Path) -> None:
    """Rotate with logrotate where it is, as our file has it; else as it does it."""
    try:
        program = logrotate()
    except MissingProgram:
        log.rename(f"{log}.1")
        return
    ours = LOGROTATE.read_text().replace("/var/log/waltap/*.log", str(log))
    ours = "\n".join(line for line in ours.splitlines() if line.strip() != "su waltap waltap")
    rules = log.parent / "logrotate.conf"
    rules.write_text(ours)
    rules.chmod(0o644)
    run_program(*program, "--force", "--state", log.parent / "logrotate.state", rules)


# --- refusals, of which nothing is left behind ---------------------------------------------------------


pytestmark = pytest.mark.shop(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
    variables={"WALTAP_LOG_LEVEL": "ERROR"},
)
LONG = {"waltap.state.dir": "s" * 300}
SQL = {"sink.type": "sql", "sink.url": "sqlite:///rows.db"}
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (LONG, 1, "WT-6005 … shorter name"),
    ({"sink.type": "changelog", "sink.path": "o" * 300}, 3, "shorter name"),
    ({"sink.type": "changelog", "sink.segment.max.rows": 2**31}, 2, "segment.max.rows"),
    (SQL | {"sink.history.table.include.list": "("}, 2, "history.table.include.list … pattern"),
    (SQL | {"sink.lock.timeout.ms": 2**31}, 2, "lock.timeout.ms"),
    ({"database.query.timeout.ms": 2**31}, 2, "database.query.timeout.ms"),
    ({"database.initial.statements": "SET x TO"}, 2, "database.initial.statements … syntax error"),
]
"""Others: test_refusals.py."""


def test_what_is_refused_is_reported_and_leaves_nothing(shop):
    for changed, code, words in REFUSED:
        said = shop.run(*(f"--set={name}={value}" for name, value in changed.items()), code=code)
        assert all(word in said for word in words.split(" … ")), (words, said)
        assert shop.made() == [], words


@pytest.mark.parametrize(
    ("closed", "path", "code"),
    [("0<&- >&- 2>&-", "out", 0), (">&-", "-", 1)],
)
def test_what_is_written_goes_to_no_file_that_has_a_closed_streams_number(shop, closed, path, code):
    shop.sink = {"type": "jsonl", "path": path}
    line = f"{sys.executable} -m waltap run {shop.path} --until-idle 0.3 {closed}"
    done = run_program("sh", "-c", line, code=code, cwd=shop.folder)
    if code:
        assert "standard output cannot be written" in text_of(done)
        shop.sink["path"] = "out"
        shop.run()
    assert shop.operations("out") == [("r", 1)]


# --- a database that never checked its text ----------------------------------------------------------


@pytest.fixture
def ascii_shop(server, database, tmp_path) -> Iterator[Shop]:
    name = f"{database.name}_ascii"
    database.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    made = Database(server, name)
    made.execute("CREATE TABLE t (id int PRIMARY KEY, c text)")
    shop = Shop(tmp_path, made)
    shop.variables = {"COLUMNS": "400", "WALTAP_LOG_LEVEL": "ERROR"}
    yield shop
    made.drop()


@pytest.mark.parametrize(("plugin", "streamed"), [("pgoutput", False), ("wal2json", True)])
def test_the_remedy_for_bytes_that_are_no_utf_8_brings_every_row(ascii_shop, plugin, streamed):
    shop = ascii_shop
    shop.source["plugin.name"] = plugin
    if streamed:
        shop.run()
    shop.database.execute("INSERT INTO t VALUES (1, convert_from('\\xe9'::bytea, 'SQL_ASCII'))")
    said = shop.run(code=1)
    assert ("WT-3001" if plugin == "wal2json" else "WT-2020") in said
    assert "SQL_ASCII" in said
    mend = re.search(r"convert_from\(convert\(.*?'SQL_ASCII'\)(?=\.)", said)
    shop.database.execute(f"UPDATE t SET c = {mend[0]}")
    for command in re.findall(r"`waltap (\w+ \w+) FILE`", said):
        done = shop.waltap(f"{command} FILE --yes")
        assert done.returncode == 0 or not streamed, text_of(done)
    shop.run()
    last = json.loads((shop.folder / "out.jsonl").read_text().splitlines()[-1])
    assert last["value"]["after"] == {"id": 1, "c": "é"}
