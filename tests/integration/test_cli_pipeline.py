"""The command line against a real server: run, resume, offsets, slot, drop, doctor, explain, tail."""

import json
import re
import signal
import sys

import pytest
from tests.harness.command import run_program
from tests.harness.pipeline import WAIT_S, until

pytestmark = pytest.mark.shop(
    sql="CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(10,2));"
    "INSERT INTO orders SELECT g, 'new', g * 1.5 FROM generate_series(1, 20) g"
)


# --- run -------------------------------------------------------------------------------------------


def test_sink_limits_and_properties_can_be_given_on_the_command_line(shop):
    logged = shop.waltap(
        "run FILE --sink jsonl:other.jsonl --max-records 5 --set topic.prefix=mine"
        " --set snapshot.fetch.size=5 --http 127.0.0.1:0"
    ).stderr
    assert "shows the pipeline" in logged
    (created,) = re.findall(r".*\bslot\b.*\bcreated\b.*", logged)
    fields = json.loads(created)
    assert (fields["message"], fields["slot"]) == ("slot created", shop.slot)
    assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", fields["lsn"])
    found = shop.records("other.jsonl")
    assert len(found) >= 5
    assert {each["topic"] for each in found} == {"mine.public.orders"}
    assert shop.records() == []


# --- offsets and slots -----------------------------------------------------------------------------


def test_a_slot_can_be_shown_and_dropped_and_its_loss_is_reported(shop):
    shop.run()
    for line, code, words in (
        ("slot show FILE", 0, shop.slot),
        ("slot drop FILE", 1, "--yes skips the question"),
        ("slot drop FILE --yes", 0, shop.slot),
        ("slot show FILE", 1, ""),
        ("status FILE", 1, "waltap run FILE --set snapshot.mode=when_needed"),
        ("run FILE --until-idle 0.3", 1, "WT-2103"),
    ):
        assert words in shop.says(line, code=code)
    assert shop.database.slots() == {}


def test_offsets_can_be_shown_moved_back_and_forgotten(shop):
    assert "WT-6003" in shop.says("offsets set FILE 0/1 --yes", code=1)
    shop.run()
    shown = shop.json("offsets show FILE")
    assert shown["slot"] == shop.slot
    (offset,) = shop.folder.rglob("offset.json")
    positions = offset.with_name("sinks.json")
    positions.write_text("{}")
    for line, code, words in (
        (
            "offsets set FILE FFFF/0",
            1,
            "TiB of WAL: changes in them are never delivered … will refuse this position (WT-6103)",
        ),
        ("offsets set FILE 0/1 --yes", 0, "will refuse this position (WT-6101)"),
        ("run FILE --until-idle 0.3", 1, "WT-6101"),
        (f"offsets set FILE {shown['lsn']} --yes", 0, ""),
        ("run FILE --until-idle 0.3", 0, ""),
        ("offsets set FILE FFFF/0 --yes", 0, ""),
    ):
        said = shop.says(line, code=code)
        assert all(word in said for word in words.split(" … "))
        assert "refuse" not in said or shown["lsn"] not in line
    assert not positions.exists(), "each sink is to get the changes again"
    again = shop.json("offsets show FILE")
    assert (again["lsn"], again["slot"]) == ("FFFF/0", shown["slot"])
    shop.says("offsets clear FILE --yes")
    shop.says("offsets show FILE", code=1)


# --- drop ------------------------------------------------------------------------------------------


def test_drop_shows_asks_and_removes_everything_but_the_output(shop):
    shop.run()
    shop.database.execute("CREATE PUBLICATION of_somebody_else")
    asked = shop.says("drop FILE", code=1)  # nobody answers
    for shown in (
        f"slot {shop.slot}",
        f"publication {shop.slot}",
        "offset.json",
        "--yes skips the question",
    ):
        assert shown in asked
    assert "Aborted" not in asked
    assert list(shop.database.slots()) == [shop.slot]
    shop.says("drop FILE --yes")
    assert shop.made() == ["of_somebody_else"]
    assert sorted(path.name for path in shop.folder.iterdir()) == ["out.jsonl", "shop.toml"]
    assert "nothing to remove" in shop.says("drop FILE --yes")
    shop.run()  # and it can start over
    assert len(shop.records()) == 40


def test_a_pipeline_at_rest_needs_no_plugin_of_sink_format_or_transform(shop):
    shop.run()
    shop.source["notification.enabled.channels"] = "acme"
    shop.sink = {"type": "acme-sink", "url": "x"}
    shop.more = '[format]\ntype = "acme-format"\n[[transforms]]\ntype = "acme-transform"\n'
    refused = shop.run(code=2)
    for gone in ("acme-sink", "acme-format", "acme-transform"):
        assert gone in refused
    for looks in ("status", "slot show", "offsets show"):
        shop.says(f"{looks} FILE --set sink.url=y")
    shop.says("drop FILE --yes")
    assert shop.database.slots() == {}


def test_drop_leaves_a_slot_and_a_publication_that_were_there_before(shop):
    shop.database.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE orders")
    shop.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
    shop.run("--set", "slot.takeover=true")
    assert f"(stays: slot {shop.slot}" in shop.says("drop FILE --yes")
    assert shop.made() == [shop.slot] * 2


def test_what_runs_is_left_alone(shop):
    with shop.process("run FILE", ready=True):
        for line in ("drop FILE", "slot drop FILE", "offsets clear FILE", "offsets set FILE 0/1"):
            assert "WT-6004" in shop.says(f"{line} --yes", code=1)
        assert list(shop.database.slots()) == [shop.slot]
        shop.says("offsets show FILE")


def test_what_is_in_a_database_that_the_profile_left_stays_and_is_remembered(shop):
    """A slot that nobody knows of any more would keep WAL until the disk is full."""
    shop.run()
    other = shop.database.server.create_database(f"{shop.database.name}_b")
    try:
        there = ("--set", f"database.dbname={other.name}")
        for again in range(2):
            dropped = shop.says("drop FILE --yes", *there)
            for kind in ("slot", "publication"):
                place = f"in database {shop.database.name} of system"
                assert f"(stays: {kind} {shop.slot} {place}" in dropped
            assert ("nothing to remove" in dropped) == bool(again)
        assert list(shop.database.slots()) == [shop.slot]
        assert "(stays" not in shop.says("drop FILE --yes")
        assert shop.made() == []
        assert sorted(path.name for path in shop.folder.iterdir()) == ["out.jsonl", "shop.toml"]
    finally:
        other.drop()


# --- doctor and explain ----------------------------------------------------------------------------


def test_explain_prints_the_code_that_is_generated_for_a_table(shop):
    code = shop.waltap("explain FILE --code public.orders").stdout
    compile(code, "all of it", "exec")
    assert "# waltap JSON codec of 3 columns #" in code
    assert "# waltap pgoutput reader: insert of 3 columns #" in code
    shop.database.execute("CREATE TABLE keyless (a int)")  # a run would refuse it, a look does not
    assert "JSON codec of 1 columns #" in shop.says("explain FILE --code public.keyless")
    missing = shop.says("explain FILE --code public.nothing", code=2)
    assert "finds no table 'public.nothing'" in missing
    assert shop.made() == []


# --- tail ------------------------------------------------------------------------------------------

WHOLE = """
SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn > '0/0'
"""
"""A slot in the making counts as read, and gets what is committed once it is whole."""


def test_tail_shows_changes_of_all_tables_and_leaves_nothing_behind(shop):
    database = shop.database
    database.execute("CREATE TABLE keyless (a int, b text)")
    lines: list[str] = []
    with shop.process(f"tail {database.dsn}") as process:
        until(lambda: database.execute(WHOLE), "the slot")
        for statement in (
            "INSERT INTO orders VALUES (50, 'it''s new', 1.25)",
            "INSERT INTO keyless VALUES (1, 'x'); UPDATE keyless SET b = 'y'",  # watching lets it
            "UPDATE orders SET status = 'paid' WHERE id = 50",
            "DELETE FROM orders WHERE id = 50",
        ):
            database.execute(statement)
        assert process.stdout is not None
        while len(lines) < 4:
            lines.append(process.stdout.readline().rstrip())
            assert process.poll() is None or lines[-1], shop.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0, shop.stderr
    assert [re.sub(r"^\d\d:\d\d:\d\d\.\d{3} ", "", line) for line in lines] == [
        "INSERT   public.orders  id=50 status='it's new' total=1.25",
        "INSERT   public.keyless  a=1 b='x'",
        "UPDATE   public.orders  id=50 status='it's new' → 'paid' total=1.25",
        "DELETE   public.orders  id=50",
    ]
    watched = f"all tables of {database.name} on "
    assert [line.rpartition(": ")[2] for line in shop.stderr.splitlines() if watched in line] == [
        "connecting",
        "waiting for changes; Ctrl-C ends",
    ]
    until(lambda: database.slots() == {}, "the temporary slot to go")
    assert shop.made() == []
    assert not (shop.folder / ".waltap").exists()


def test_tail_as_json_prints_records(shop):
    line = f"tail {shop.database.dsn} --json --snapshot --table public[.]orders --until-idle 0.3"
    found = [json.loads(each) for each in shop.waltap(line).stdout.splitlines()]
    assert [each["value"]["after"]["id"] for each in found] == list(range(1, 21))
    assert {each["topic"] for each in found} == {"tail.public.orders"}


@pytest.mark.parametrize("line", ["tail DSN --snapshot", "run FILE --sink jsonl:-"])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(shop, line):
    """``| head -1``: what it did not take comes with the next run; no disk is blamed."""
    shop.database.execute("INSERT INTO orders SELECT generate_series(21, 20000)")
    words = line.replace("DSN", shop.database.dsn).replace("FILE", str(shop.path))
    piped = f"{sys.executable} -m waltap {words} | head -1; exit ${{PIPESTATUS[0]}}"
    done = run_program("bash", "-c", piped, cwd=shop.folder, wait=2 * WAIT_S)
    assert done.stdout.count("\n") == 1, done.stderr
    for word in ("disk", "error", "failed", "Traceback", "WT-"):
        assert word not in done.stderr
    if line.startswith("run"):
        assert "standard output" in done.stderr
        assert "stopped" in done.stderr
