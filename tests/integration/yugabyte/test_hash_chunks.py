"""Incremental snapshots of tables whose key is hashed: chunks go up through ranges of hash codes. Double A.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest
from tests.harness.yugabyte.pipeline import YugabytePipeline

from waltap.pipeline.engine.build import PipelineStages
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import ChunkState
from waltap.ports.source.connector import MadeByRun
from waltap_yugabyte.chunks import HashedColumnGone

READS = {
    "snapshot.mode": "no_data",
    "incremental.snapshot.chunk.size": 16,
    "signal.data.collection": "public.signals",
    "table.include.list": "public.p",
    "yb.event.form": None,
}
P = SnapshotRequest(schema="public", table="p", signal="a")
RANGE = re.compile(r"yb_hash_code\(([^)]*)\) >= (\d+) AND yb_hash_code\([^)]*\) < (\d+)")


@pytest.fixture
def hashed(pipeline) -> YugabytePipeline:
    pipeline.server.database.execute(
        "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)"
    )
    pipeline.settings |= READS
    return pipeline


@contextmanager
def chunks_of(pipeline: YugabytePipeline, **settings: Any) -> Iterator[Any]:
    host, _ = pipeline.host()
    stages = PipelineStages(pipeline.profile(host, **settings), host, run_id="x")
    with closing(stages.open_connector(MadeByRun())) as connector:
        yield connector.chunk_source(("public", "signals"))


def read_on(
    source: Any, state: ChunkState | None, limit: int
) -> tuple[ChunkState, list[tuple[Any, ...]]]:
    """Read the next chunk as `ChunkReader` does; ``state`` as an offset has it."""
    relation = source.table(P)
    key = tuple(i for i, c in enumerate(relation.columns) if c.name in relation.primary_key)
    if state is None:
        found = source.maximum(P, relation, key)
        assert found.rows
        maximum = [str(found.rows[0][i]) for i in key]
        state = ChunkState(maximum=maximum, order=list(found.order))
    chunk = source.chunk(
        P, relation, key,
        after=None if state.last_key is None else tuple(state.last_key),
        maximum=tuple(state.maximum or ()), limit=limit, order=state.order,
    )  # fmt: skip
    last = [str(chunk.rows[-1][i]) for i in key] if chunk.rows else state.last_key
    return ChunkState(last, state.maximum, order=state.order), chunk.rows


KEYS: dict[str, tuple[str, str, Callable[[random.Random], tuple[object, ...]], str]] = {
    "int": ("id int", "id", lambda r: (r.randrange(10**6),), ""),
    "text": (
        "id text",
        "id",
        lambda r: (r.choice("aä'\\%\t z") * r.randrange(1, 9) + str(r.randrange(99)),),
        "",
    ),
    "two hashed, one ranged": (
        "a text, b int, c timestamp",
        "a, b, c",
        lambda r: (r.choice("abc"), r.randrange(9), f"2020-01-{r.randrange(1, 29):02} 00:00:00.5"),
        "a,b",
    ),
    "one hash for many": (
        "a boolean, b bigint",
        "a, b",
        lambda r: (r.random() < 0.5, r.randrange(10**9)),
        "",
    ),
}
"""Columns of keys with their types, their names, what makes one, and the columns of the hash where they are
not the first alone."""


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(3, 20))]
)
def test_each_row_is_read_once_whatever_changes_between_chunks(hashed, kind, seed):
    """Of rows that are there all the while each is read, once; over restarts too."""
    database, draw = hashed.server.database, random.Random(seed)
    columns, place, new_key, hash_columns = KEYS[kind]
    names = place.split(", ")
    database.execute(f"CREATE TABLE p ({columns}, v int, PRIMARY KEY ({place}))")
    insert = f"INSERT INTO p VALUES ({'%s, ' * len(names)} 0) ON CONFLICT DO NOTHING"
    for _ in range(draw.randrange(1, 120)):
        database.execute(insert, *new_key(draw))
    texts = ", ".join(f"replace(replace({n}::text, 'true', 't'), 'false', 'f')" for n in names)
    stays = set(database.execute(f"SELECT {texts} FROM p"))
    settings = {"primary.key.hash.columns": hash_columns} if hash_columns else {}
    state, read, limit, ends = None, [], draw.choice([5, 16, 50]), False
    while not ends:
        with chunks_of(hashed, **settings) as source:  # a start
            for _ in range(draw.randrange(1, 40)):
                state, rows = read_on(source, state, limit)
                assert len(state.order) == (2 if hash_columns else 1)
                read += [tuple(map(_text, row[: len(names)])) for row in rows]
                ends = not rows
                if ends:
                    break
                for gone in draw.sample(sorted(stays), min(len(stays), draw.randrange(3))):
                    equal = " AND ".join(f"{name} = %s" for name in names)
                    database.execute(f"DELETE FROM p WHERE {equal}", *gone)
                    stays.discard(gone)
                for _ in range(draw.randrange(4)):
                    database.execute(insert, *new_key(draw))
        state = msgspec.json.decode(msgspec.json.encode(state), type=ChunkState)
    assert len(read) == len(set(read)), "a row came twice"
    assert not stays - set(read)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_a_chunk_reads_a_range_of_hash_codes(hashed):
    """None sorts the whole table, nor looks through it for the greatest key."""
    server, database = hashed.server, hashed.server.database
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO p SELECT n, 0 FROM generate_series(1, 300) n")
    with chunks_of(hashed) as source:
        state, rows = read_on(source, None, 16)
        count = len(rows)
        while rows:
            state, rows = read_on(source, state, 16)
            count += len(rows)
    assert count == 300
    reads = server.asked(r"^COPY.* FROM .*\bp\b")
    assert all(RANGE.search(read) for read in reads)
    widths = [int(m[3]) - int(m[2]) for m in map(RANGE.search, reads) if m]
    assert max(widths) <= 11_000  # of 65536: some 50 rows for 16
    assert len(reads) < 4 * 300 / 16


def test_a_key_that_was_changed_meanwhile_ends_the_reading_and_is_read_anew(hashed):
    database = hashed.server.database
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO p VALUES (1, 0)")
    with chunks_of(hashed) as source:
        with pytest.raises(HashedColumnGone) as refused:
            read_on(source, ChunkState(["1"], ["9"], order=[99]), 16)
        assert "waltap snapshot FILE public.p" in refused.value.advice()
        _, rows = read_on(source, None, 16)
        assert len(rows) == 1


def test_what_an_earlier_version_began_goes_on_in_the_order_of_the_key(hashed):
    database = hashed.server.database
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO p SELECT n, 0 FROM generate_series(1, 100) n")
    with chunks_of(hashed) as source:
        state, rows = read_on(source, ChunkState(["40"], ["90"]), 32)
        assert [_text(row[0]) for row in rows] == [str(n) for n in range(41, 73)]
        _, rows = read_on(source, state, 32)
        assert [_text(row[0]) for row in rows] == [str(n) for n in range(73, 91)]
