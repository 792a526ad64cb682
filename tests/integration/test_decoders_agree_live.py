"""One workload on a real server, read through every decoder: equal changes, but for what is declared."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.harness.decoder_slots import VARIANTS, DecoderSlots
from tests.harness.servers.postgres import Database

from waltap.changes.decode import (
    DecoderCapabilities,
    Delete,
    Insert,
    LogicalMessage,
    Truncate,
    Update,
)
from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import START, Position

WORKLOAD = Path(__file__).parent.parent / "workloads" / "decoders.sql"
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s "fine"');
CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (x int, y text);
CREATE TABLE kinds (
  id int PRIMARY KEY, i2 smallint, i8 bigint, f4 real, f8 double precision, n numeric,
  n2 numeric(10,3), b boolean, c char(5), vc varchar(10), tx text, by bytea, d date, t time,
  ttz timetz, ts timestamp, tstz timestamptz, iv interval, u uuid, j json, jb jsonb, ia int[],
  ta text[], o oid, m money, pt point, ip inet, bt bit(4), vb varbit, r int4range, q "char", nm name,
  md mood, pi posint, pr pair);
CREATE TABLE by_key (id int PRIMARY KEY, a text, big text);
ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL;
CREATE TABLE whole (LIKE by_key INCLUDING ALL); ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, u varchar(20) NOT NULL, a text);
CREATE UNIQUE INDEX by_index_u ON by_index (u);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u;
CREATE SCHEMA "Odd Schema";
CREATE TABLE "Odd Schema"."Odd ""T.a,b" ("ID" int PRIMARY KEY, "sp ace" text, "q""uote" mood);
CREATE PUBLICATION p FOR ALL TABLES;
"""


@dataclass
class Reading:
    """What one decoder made of the workload: a list of changes per transaction, and how."""

    transactions: list[list[tuple[Any, ...]]]
    capabilities: DecoderCapabilities
    kinds: set[str]


class Rig(DecoderSlots):
    """A database with the workload done, and its slots."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database, [SETUP])
        self.folder = folder
        with database.connect() as writer:
            for statement in re.split(r";\n", WORKLOAD.read_text(encoding="utf-8")):
                for part in statement.split("; "):
                    writer.execute(part.encode())

    def read(self, variant: str, *, feed: int = 100) -> Reading:
        decoder = self.decoder(variant)
        frames = self.frames(variant, decoder)
        assembler = TransactionAssembler(START, None, self.folder / variant, 4096)
        found = Reading([], decoder.capabilities, set())
        changes: list[tuple[Any, ...]] = []
        position = Position(0)
        parts = []
        for at in range(0, len(frames), feed):
            messages = decoder.feed(frames[at : at + feed])
            found.kinds |= {type(message).__name__ for message in messages}
            parts += assembler.feed(messages)
            while assembler.backlog:
                parts += assembler.feed(())
        for part in parts:
            assert position < part.position(position)
            position = part.position(position)
            changes += [self.plain(change) for change in part.changes]
            if part.complete and changes:
                found.transactions.append(changes)
                changes = []
        assembler.close()
        return found

    @staticmethod
    def plain(change: Any) -> tuple[Any, ...]:
        if isinstance(change, Insert):
            return "I", change.relation.name, change.new
        if isinstance(change, Update):
            return "U", change.relation.name, change.new, change.old, change.old_kind
        if isinstance(change, Delete):
            return "D", change.relation.name, change.old, change.old_kind
        if isinstance(change, Truncate):
            names = [relation.name for relation in change.relations]
            return "T", names
        assert isinstance(change, LogicalMessage)
        return "M", change.transactional, change.prefix, change.content


@pytest.fixture
def rig(database: Database, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(database, tmp_path)
    yield made
    made.connection.close()


def carried(
    transactions: list[list[tuple[Any, ...]]], capabilities: DecoderCapabilities
) -> list[list[tuple[Any, ...]]]:
    """Return what a decoder with ``capabilities`` can tell of ``transactions``."""
    result = []
    for transaction in transactions:
        kept: list[tuple[Any, ...]] = []
        for change in transaction:
            if change[0] == "T":
                if capabilities.truncate:
                    names = change[1]
                    kept += [change] if capabilities.filters else [("T", [n]) for n in names]
            elif change[0] == "M":
                kept += [change] * capabilities.logical_messages
            elif not capabilities.special_numbers:
                kept.append(
                    tuple(
                        tuple(None if v in ("NaN", "Infinity", "-Infinity") else v for v in part)
                        if isinstance(part, tuple)
                        else part
                        for part in change
                    )
                )
            else:
                kept.append(change)
        if kept:
            result.append(kept)
    return result


def test_every_decoder_tells_the_same_changes_but_for_what_it_declares(rig: Rig) -> None:
    text = rig.read("pgoutput")
    assert len(text.transactions) > 25
    assert {change[0] for t in text.transactions for change in t} == {"I", "U", "D", "T", "M"}
    for variant in VARIANTS:
        if variant != "pgoutput":
            reading = rig.read(variant)
            wanted = carried(text.transactions, reading.capabilities)
            for found, expected in zip(reading.transactions, wanted, strict=False):
                assert found == expected, variant
            assert len(reading.transactions) == len(wanted), variant


def test_streaming_streams_and_savepoints_inside_it_are_exact(rig: Rig) -> None:
    reading = rig.read("pgoutput streaming", feed=7)
    assert {"StreamStart", "StreamAbort", "StreamCommit", "Begin", "Commit"} <= reading.kinds
    large = max(reading.transactions, key=len)
    assert len(large) == 1500 + 1000 + 500
    assert {change[2][1] for change in large if change[0] == "I"}.isdisjoint({"lost", "never"})
    assert large == max(rig.read("pgoutput").transactions, key=len)


@pytest.mark.parametrize("values", ["float8", "float4"])
def test_floats_of_decoderbufs_are_printed_like_the_server_does(
    database: Database, values: str
) -> None:
    """Thousands of numbers of all sizes: our digits against the server's own."""
    from waltap_decoders.decoderbufs.floats import float4_text, float8_text

    ours = float8_text if values == "float8" else float4_text
    with database.connect() as connection:
        connection.execute("SET extra_float_digits = 3")
        rows = connection.execute(
            f"""SELECT v, v::text FROM (
              SELECT (random() * 10 ^ (g % 70 - 35))::{values} AS v FROM generate_series(1, 7000) g
              UNION ALL SELECT (g * 10.0 ^ (g % 30 - 15))::{values} FROM generate_series(-500, 500) g
              UNION ALL SELECT (2.0 ^ (g % 120 - 60))::{values} FROM generate_series(1, 120) g
            ) numbers""",
            binary=True,
        ).fetchall()
    assert [text for _, text in rows] == [ours(value) for value, _ in rows]


def test_dates_and_times_of_decoderbufs_are_printed_like_the_server_does(
    database: Database,
) -> None:
    from waltap_decoders.decoderbufs.datums import date_text, time_text, timestamp_text

    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        dates = connection.execute(
            "SELECT d - '1970-01-01'::date, d::text FROM ("
            " SELECT '4714-11-24 BC'::date + g * 700001 FROM generate_series(0, 3065) g) x(d)"
        ).fetchall()
        stamps = connection.execute(
            "SELECT (extract(epoch FROM s) * 1000000)::int8, s::text, s::time::text FROM ("
            " SELECT '4714-11-24 00:00:00 BC'::timestamp + g * interval '40003 days 1.234567 s'"
            " FROM generate_series(0, 2600) g) x(s)"
        ).fetchall()
    assert [text for _, text in dates] == [date_text(days) for days, _ in dates]
    assert [row[1] for row in stamps] == [timestamp_text(micros) for micros, _, _ in stamps]
    assert [row[2] for row in stamps] == [
        time_text(micros % 86_400_000_000) for micros, _, _ in stamps
    ]
