"""DDL under a savepoint, or in a block with EXCEPTION, which is one: its transaction id is later than
that of its transaction, as a later transaction's is. Rows of the transaction are described as it made the
table none the less, and rows of transactions before it as the table was.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.json_lines import DECODERS, Lines
from tests.harness.servers.postgres import Database

LARGE = {
    "pgoutput.streaming": "on",
    "driver.options": "-c logical_decoding_work_mem=64kB",
}
WAYS = DECODERS | {"streaming": LARGE, "two-phase": {"pgoutput.two_phase": "true"}}
FORMS = {
    "savepoint": "SAVEPOINT a; {}; RELEASE a",
    "block": "DO $d$ BEGIN {}; EXCEPTION WHEN division_by_zero THEN RAISE; END $d$",
    "nested": "SAVEPOINT a; SAVEPOINT b; SELECT txid_current(); {}; RELEASE b; RELEASE a",
    "again": "SAVEPOINT a; {}; ROLLBACK TO a; {}; RELEASE a",
    "undone": "SAVEPOINT a; {}; ROLLBACK TO a",
    "each": "SAVEPOINT a; {}; RELEASE a",
    "none": "{}",
}
"""``each`` puts every statement under a savepoint of its own."""

KEY = "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (v)"
FULL = "ALTER TABLE {t} REPLICA IDENTITY FULL"
DDL: dict[str, tuple[str, str, str]] = {
    "column": ("ALTER TABLE {t} ADD c int NOT NULL DEFAULT 7", "id", "id v c"),
    "not null": ("ALTER TABLE {t} ALTER w SET NOT NULL", "id", "id v w"),
    "key": (KEY, "v", "id v"),
    "no key": ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "", "id v"),
    "default and no key": (
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT; ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        "",
        "id v",
    ),
    "key renamed": ("ALTER TABLE {t} RENAME id TO n", "n", "n v"),
    "identity": (FULL, "id", "id v"),
    "key and identity": (f"{KEY}; {FULL}", "v", "id v"),
    "identity and key": (f"{FULL}; {KEY}", "v", "id v"),
    "made anew": (
        "DROP TABLE {t}; CREATE TABLE {t} (v text, id int NOT NULL, w int NOT NULL, PRIMARY KEY (v));"
        " ALTER TABLE {t} REPLICA IDENTITY {i}",
        "v",
        "v id w",
    ),
}
"""What is done, the key after it, and the columns that are required then."""

Case = tuple[str, str, str, str]
"""DDL, form, replica identity, and whether the rows come ``after`` it, or in a transaction ``before``."""

CASES: list[Case] = [
    (ddl, form, identity, rows)
    for identity in ("DEFAULT", "FULL")
    for rows in ("after", "before")
    for ddl in DDL
    for form in (FORMS if ddl == "key" else ("savepoint", "each"))
]

SILENT = {
    "pgoutput": {"not null", "FULL key", "FULL no key"},
    "wal2json": {"not null"},
    "wal2json-1": {
        "not null",
        "no key",
        "default and no key",
        "key and identity",
        "identity and key",
        "FULL key",
    },
    "decoderbufs": {"no key", "default and no key", "key", "key and identity", "identity and key"},
}
"""What the rows do not show, so that nothing shows a savepoint's id from that of a later transaction."""


def silent(decoder: str, case: Case) -> bool:
    """Return whether rows of the transaction itself do not show what it did."""
    ddl, _, identity, rows = case
    found = SILENT[decoder] if decoder in SILENT else SILENT["pgoutput"]
    full = {"FULL key", "key and identity", "identity and key"} if identity == "FULL" else set()
    if decoder.startswith("wal2json") and decoder != "wal2json-1":
        full = set()
    named = f"{identity} {ddl}"
    if rows == "before":
        return ddl.endswith("no key")  # it leaves nothing behind that shows when
    return ddl in found or named in found or bool(full & {ddl, named})


class Rig(Lines):
    """A pipeline of many tables, one for each case."""

    def __init__(self, database: Database, folder: Path, decoder: str) -> None:
        self.streaming = decoder == "streaming"
        all_tables = {"publication.autocreate.mode": "all_tables"}
        super().__init__(database, folder, **all_tables, **WAYS[decoder])
        database.run(
            "CREATE TABLE last (id int PRIMARY KEY)",
            *(
                f"CREATE TABLE t{n} (id int PRIMARY KEY, v text NOT NULL, w int);"
                f" ALTER TABLE t{n} REPLICA IDENTITY {identity}"
                for n, (_, _, identity, _) in enumerate(CASES)
            ),
        )
        self.catch_up()

    def work(self) -> None:
        statements = (text for n, case in enumerate(CASES) for text in self._work(n, case))
        self.database.run(*statements, "INSERT INTO last VALUES (1)")

    def _work(self, n: int, case: Case) -> Iterator[str]:
        ddl, form, identity, rows = case
        text = DDL[ddl][0].replace("{t}", f"t{n}").replace("{i}", identity)
        parts = text.split("; ") if form == "each" else [text]
        text = "; ".join(FORMS[form].replace("{}", part) for part in parts)
        rows_each = 300 if self.streaming and n % 3 == 0 else 1  # streamed, or not
        then = "n" if ddl == "key renamed" and form != "undone" else "id"

        def insert(name: str, start: int) -> str:
            return (
                f"INSERT INTO t{n} ({name}, v, w) SELECT g, g || repeat('x', 300), 1"
                f" FROM generate_series({start}, {start + rows_each - 1}) g"
            )

        if rows == "after":
            yield f"BEGIN; {text}; {insert(then, 1)}; COMMIT"
        else:
            yield insert("id", 1)
            yield f"BEGIN; {text}; COMMIT"
        yield insert(then, 1001)

    def reported(self) -> dict[str, list[tuple[str, str]]]:
        """Return, by table, key and required columns of its rows: rows of the same put together."""
        found: dict[str, list[tuple[str, str]]] = {}
        with self.out.open() as lines:  # too many to hold all
            for record in map(json.loads, lines):
                if record["value"] is None:
                    continue
                key = " ".join(record["key"]["payload"]) if record["key"] else ""
                fields = record["value"]["schema"]["fields"][1]["fields"]
                required = " ".join(f["field"] for f in fields if not f["optional"])
                of_table = found.setdefault(record["topic"].split(".")[-1], [])
                if of_table[-1:] != [(key, required)]:
                    of_table.append((key, required))
        return found

    def wrong(self, *, but: list[Case]) -> list[Any]:
        """Return what is not as it was in the transaction; but for cases of which the second half counts."""
        reported, found = self.reported(), list[Any]()
        for n, case in enumerate(CASES):
            ddl, form, _, rows = case
            before, after = ("id", "id v"), DDL[ddl][1:]
            after = before if form == "undone" else after
            wanted = [after] if rows == "after" or before == after else [before, after]
            got = reported.get(f"t{n}", [])
            if case in but:
                wanted, got = [], []
            if got != wanted:
                found.append((n, *case, got, wanted))
        return found


@pytest.mark.parametrize(
    ("decoder", "mode"),
    [(decoder, "lag") for decoder in WAYS]
    + [(decoder, "live") for decoder in ("pgoutput", "wal2json", "decoderbufs")],
)
def test_what_the_wire_shows_is_of_its_transaction(database, tmp_path, decoder, mode):
    rig = Rig(database, tmp_path, decoder)
    if mode == "lag":
        rig.work()
        rig.catch_up()
    else:
        with rig.running() as run:
            rig.work()
            run.until(lambda: "x.public.last" in rig.out.read_text(), "the last row")
    silently = [
        case for case in CASES if silent(decoder, case) and case[1] not in ("none", "undone")
    ]
    assert rig.wrong(but=silently) == []


@pytest.mark.parametrize(
    "decoder",
    [
        "pgoutput",
        pytest.param("wal2json-1", marks=pytest.mark.exhaustive),
        pytest.param("decoderbufs", marks=pytest.mark.exhaustive),
    ],
)
def test_commit_timestamps_show_what_the_wire_does_not(private_server, tmp_path, decoder):
    private_server.execute("ALTER SYSTEM SET track_commit_timestamp = on")
    private_server.restart()
    rig = Rig(private_server.create_database("timed"), tmp_path, decoder)
    rig.work()
    rig.catch_up()
    assert rig.wrong(but=[case for case in CASES if case[0].endswith("no key")]) == []


@pytest.mark.parametrize("ways", [{}, LARGE])
def test_a_message_of_a_streamed_savepoint_comes_though_it_was_rolled_back(
    pipeline, database, ways
):
    """The server names the transaction with it, and not the savepoint's, which is what it rolls back."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.settings |= {"publication.autocreate.mode": "all_tables", **ways}
    pipeline.catch_up()
    said = "SELECT pg_logical_emit_message(true, 'p', repeat('x', 99999))"  # streamed at once
    rows = "INSERT INTO t SELECT generate_series(1, 2)"
    pipeline.deliver(f"BEGIN; SAVEPOINT s; {said}; ROLLBACK TO s; {rows}; COMMIT")
    came = [event.op for event in pipeline.destination.events]
    assert came == (["m", "c", "c"] if ways else ["c", "c"])
