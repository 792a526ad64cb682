"""The command line against a real server: run, resume, status, offsets, slot, doctor, tail."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.command import waltap
from tests.harness.json_lines import records
from tests.harness.pipeline import WAIT_S, until
from tests.harness.servers.postgres import Database


SCHEMA = """
CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(10,2));
INSERT INTO orders SELECT g, 'new', g * 1.5 FROM generate_series(1, 20) g;
"""


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Path:
    """Return a folder with ``shop.toml``, a profile of a database with one table."""
    database.execute(SCHEMA)
    source = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in database.properties().items())
    slot = f"cli_{database.name}"[:63]
    (tmp_path / "shop.toml").write_text(
        f'[source]\ntype = "postgres"\n{source}\n'
        f'slot.name = "{slot}"\npublication.name = "{slot}"\n'
        '[sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )
    return tmp_path


def operations(folder: Path) -> list[tuple[str, int]]:
    """Return (operation, id) of the row events."""
    found = [r["value"] for r in records(folder / "out.jsonl") if r["value"] is not None]
    return [(v["op"], (v["after"] or v["before"])["id"]) for v in found]


# --- run -------------------------------------------------------------------------------------------


def test_a_run_takes_a_snapshot_streams_and_the_next_goes_on_from_there(
    shop: Path, database: Database
) -> None:
    first = waltap("run", "shop.toml", "--until-idle", 0.5, cwd=shop)
    assert first.returncode == 0, first.stderr
    assert operations(shop) == [("r", n) for n in range(1, 21)]
    database.execute("INSERT INTO orders VALUES (21, 'new', 1); DELETE FROM orders WHERE id = 3")
    second = waltap("run", "shop.toml", "--until-idle", 0.5, cwd=shop)
    assert second.returncode == 0, second.stderr
    assert operations(shop)[20:] == [("c", 21), ("d", 3)]


def test_sink_limits_and_properties_can_be_given_on_the_command_line(
    shop: Path, database: Database
) -> None:
    done = waltap(
        "run", "shop.toml", "--sink", "jsonl:other.jsonl", "--max-records", 5,
        "--set", "topic.prefix=mine", "--set", "snapshot.fetch.size=5", cwd=shop,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = records(shop / "other.jsonl")
    assert len(found) >= 5
    assert {r["topic"] for r in found} == {"mine.public.orders"}
    assert records(shop / "out.jsonl") == []


def test_until_lsn_ends_when_everything_before_it_is_delivered(
    shop: Path, database: Database
) -> None:
    waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    database.execute("INSERT INTO orders SELECT g, 'x', 1 FROM generate_series(101, 150) g")
    ((lsn,),) = database.execute("SELECT pg_current_wal_lsn()::text")
    done = waltap("run", "shop.toml", "--until-lsn", lsn, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert [n for op, n in operations(shop) if op == "c"] == list(range(101, 151))


@pytest.fixture
def started(shop: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "waltap", *map(str, arguments)],
            cwd=shop,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["sigint", "sigterm"])
def test_a_signal_ends_a_run_cleanly_with_everything_stored(
    shop: Path, database: Database, started: Callable[..., subprocess.Popen[str]], number: int
) -> None:
    process = started("run", "shop.toml", "--ready-file", "ready")
    until((shop / "ready").exists, "the ready file")
    database.execute("INSERT INTO orders VALUES (21, 'new', 1)")
    until(lambda: ("c", 21) in operations(shop), "the change")
    process.send_signal(number)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    again = waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    assert again.returncode == 0
    assert operations(shop)[20:] == [("c", 21)]


def test_a_debezium_file_runs_unchanged_but_for_the_sink(shop: Path, database: Database) -> None:
    properties = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t",
        "plugin.name": "pgoutput",
        "slot.name": f"dbz_{database.name}"[:63],
        "snapshot.mode": "initial",
        "tasks.max": "1",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        **database.properties(),
    }
    (shop / "c.json").write_text(json.dumps({"name": "shop", "config": properties}))
    text = "\n".join(f"{k}={v}" for k, v in {**properties, "name": "shop2"}.items())
    (shop / "c.properties").write_text(text)
    for file in ("c.json", "c.properties"):
        done = waltap(
            "run", file, "--sink", f"jsonl:{file}.jsonl", "--until-idle", 0.3,
            "--set", f"slot.name=dbz_{file[2:6]}_{database.name}"[:63 + len("slot.name=")],
            cwd=shop,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert {r["topic"] for r in records(shop / f"{file}.jsonl")} == {"t.public.orders"}


# --- status, offsets, slot -------------------------------------------------------------------------


def status(shop: Path) -> dict:
    return json.loads(waltap("status", "shop.toml", "--json", cwd=shop).stdout)


def test_status_names_tables_that_the_next_start_will_find_to_be_new(
    shop: Path, database: Database
) -> None:
    assert status(shop)["new_tables"] == []
    waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    assert status(shop)["new_tables"] == []
    database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    assert status(shop)["new_tables"] == ["public.later"]
    told = waltap("status", "shop.toml", cwd=shop).stdout
    assert "public.later" in told
    assert "waltap.new.tables" in told
    run = waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    assert "public.later" in run.stderr
    assert status(shop)["new_tables"] == []


def test_status_tells_offset_slot_and_lag(shop: Path, database: Database) -> None:
    before = status(shop)
    assert (before["offset"], before["slot"], before["resumable"]) == (None, None, True)
    waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    database.execute("INSERT INTO orders SELECT g, 'x', 1 FROM generate_series(101, 999) g")
    after = status(shop)
    assert after["slot"]["lag_bytes"] > 10_000
    assert after["offset"]["snapshot"] == "complete"
    table = waltap("status", "shop.toml", cwd=shop)
    assert table.returncode == 0
    assert "nobody reads it" in table.stdout


def test_a_slot_can_be_shown_and_dropped_and_its_loss_is_told(
    shop: Path, database: Database
) -> None:
    waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    (slot,) = database.slots()
    assert slot in waltap("slot", "show", "shop.toml", cwd=shop).stdout
    refused = waltap("slot", "drop", "shop.toml", cwd=shop)  # nobody answers the question
    assert refused.returncode == 1
    assert database.slots()
    assert waltap("slot", "drop", "shop.toml", "--yes", cwd=shop).returncode == 0
    assert database.slots() == {}
    assert waltap("slot", "show", "shop.toml", cwd=shop).returncode == 1
    lost = waltap("status", "shop.toml", cwd=shop)
    assert lost.returncode == 1
    assert "waltap offsets clear FILE" in lost.stdout
    run = waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    assert run.returncode == 1
    assert "WT-2103" in run.stderr


def test_offsets_can_be_shown_moved_back_and_forgotten(shop: Path, database: Database) -> None:
    absent = waltap("offsets", "set", "shop.toml", "0/1", "--yes", cwd=shop)
    assert absent.returncode == 1
    assert "WT-6003" in absent.stderr
    waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    shown = json.loads(waltap("offsets", "show", "shop.toml", cwd=shop).stdout)
    assert shown["slot"] in database.slots()
    asked = waltap("offsets", "set", "shop.toml", "FFFF/0", cwd=shop)
    assert asked.returncode == 1
    assert "never delivered" in asked.stdout
    assert "will refuse this position (WT-6103)" in asked.stderr
    back = waltap("offsets", "set", "shop.toml", "0/1", "--yes", cwd=shop)
    assert back.returncode == 0
    assert "will refuse this position (WT-6101)" in back.stderr
    run = waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    assert "WT-6101" in run.stderr
    again = waltap("offsets", "set", "shop.toml", shown["text"], "--yes", cwd=shop)
    assert "refuse" not in again.stderr
    run = waltap("run", "shop.toml", "--until-idle", 0.3, cwd=shop)
    assert run.returncode == 0, run.stderr
    moved = waltap("offsets", "set", "shop.toml", "FFFF/0", "--yes", cwd=shop)
    assert moved.returncode == 0, moved.stderr
    again = json.loads(waltap("offsets", "show", "shop.toml", cwd=shop).stdout)
    assert (again["text"], again["slot"]) == ("FFFF/0", shown["slot"])
    assert waltap("offsets", "clear", "shop.toml", "--yes", cwd=shop).returncode == 0
    assert waltap("offsets", "show", "shop.toml", cwd=shop).returncode == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00"])
def test_what_is_stored_can_be_forgotten_though_it_cannot_be_read(
    shop: Path, content: bytes
) -> None:
    assert waltap("run", "shop.toml", "--until-idle", "0.3", cwd=shop).returncode == 0
    (offset,) = shop.rglob("offset.json")
    offset.write_bytes(content)
    failed = waltap("run", "shop.toml", "--until-idle", "0.3", cwd=shop)
    assert "`waltap offsets clear FILE`" in failed.stderr
    cleared = waltap("offsets", "clear", "shop.toml", "--yes", cwd=shop)
    assert cleared.returncode == 0, cleared.stderr
    assert "no offset is stored" in waltap("offsets", "clear", "shop.toml", cwd=shop).stdout


# --- doctor ----------------------------------------------------------------------------------------


def test_doctor_says_ready_when_nothing_is_wrong(shop: Path) -> None:
    done = waltap("doctor", "shop.toml", cwd=shop)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ready to run" in done.stdout
    checks = json.loads(waltap("doctor", "shop.toml", "--json", cwd=shop).stdout)
    assert {c["verdict"] for c in checks} <= {"ok", "warning"}


def test_doctor_takes_a_dsn_names_what_is_wrong_and_what_mends_it(
    shop: Path, database: Database
) -> None:
    database.execute("CREATE TABLE keyless (a int)")
    done = waltap("doctor", database.dsn, cwd=shop)
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "public.keyless" in text
    assert "REPLICA IDENTITY FULL" in text
    assert database.slots() == {}
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]


# --- explain ---------------------------------------------------------------------------------------


def test_explain_prints_the_code_that_is_generated_for_a_table(
    shop: Path, database: Database
) -> None:
    done = waltap("explain", "shop.toml", "--code", "public.orders", cwd=shop)
    assert done.returncode == 0, done.stderr
    compile(done.stdout, "all of it", "exec")
    assert "# waltap JSON codec of public.orders #" in done.stdout
    assert "# waltap pgoutput reader: insert of 3 columns #" in done.stdout
    assert database.slots() == {}
    database.execute("CREATE TABLE keyless (a int)")  # a run would refuse it, a look does not
    done = waltap("explain", "shop.toml", "--code", "public.keyless", cwd=shop)
    assert "# waltap JSON codec of public.keyless #" in done.stdout, done.stderr
    missing = waltap("explain", "shop.toml", "--code", "public.nothing", cwd=shop)
    assert missing.returncode == 2
    assert "finds no table 'public.nothing'" in missing.stderr


# --- tail ------------------------------------------------------------------------------------------


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """Return lines of standard output up to one with ``last``; fewer when the process ends first."""
    assert process.stdout is not None
    impatient = threading.Timer(WAIT_S, process.kill)
    impatient.start()
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if last in line:
                break
        return lines
    finally:
        impatient.cancel()


def test_tail_shows_changes_of_all_tables_and_leaves_nothing_behind(
    shop: Path, database: Database, started: Callable[..., subprocess.Popen[str]]
) -> None:
    database.execute("CREATE TABLE keyless (a int, b text)")
    process = started("tail", database.dsn)
    # a slot in the making counts as read, and gets what is committed once it is whole
    whole = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn > '0/0'"
    until(lambda: database.execute(whole), "the slot")
    database.execute("INSERT INTO orders VALUES (50, 'it''s new', 1.25)")
    database.execute("INSERT INTO keyless VALUES (1, 'x')")
    database.execute("UPDATE keyless SET b = 'y'")  # watching must not make this fail
    database.execute("UPDATE orders SET status = 'paid' WHERE id = 50")
    database.execute("DELETE FROM orders WHERE id = 50")
    database.execute("TRUNCATE orders")
    lines = lines_until(process, "TRUNCATE")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, (lines, errors)
    assert [re.sub(r"^\d\d:\d\d:\d\d\.\d{3} ", "", line) for line in lines] == [
        "INSERT   public.orders  id=50 status='it's new' total=1.25",
        "INSERT   public.keyless  a=1 b='x'",
        "UPDATE   public.orders  id=50 status='it's new' → 'paid' total=1.25",
        "DELETE   public.orders  id=50",
        "TRUNCATE public.orders",
    ]
    watched = f"all tables of {database.name} on "
    assert [line.rpartition(": ")[2] for line in errors.splitlines() if watched in line] == [
        "connecting",
        "waiting for changes; Ctrl-C ends",
    ]
    until(lambda: database.slots() == {}, "the temporary slot to go")
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert not (shop / ".waltap").exists()


def test_tail_as_json_prints_records(shop: Path, database: Database) -> None:
    done = waltap(
        "tail", database.dsn, "--json", "--snapshot", "--table", r"public\.orders",
        "--until-idle", 0.3, cwd=shop,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["value"]["after"]["id"] for r in found] == list(range(1, 21))
    assert {r["topic"] for r in found} == {"tail.public.orders"}


def test_tail_ends_quietly_when_its_reader_has_seen_enough(shop: Path, database: Database) -> None:
    command = (
        f"{sys.executable} -m waltap tail '{database.dsn}' --snapshot --max-seconds 20 | head -1"
    )
    done = subprocess.run(
        command, shell=True, cwd=shop, capture_output=True, text=True, timeout=2 * WAIT_S
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
