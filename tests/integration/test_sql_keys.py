"""Keys that differ at the source differ in every target: case, accents, spaces at the end, length."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from waltap_sinks.sql.errors import SqlTableUnfit

from tests.integration.test_sql_dialects import Place, duck, file, maria  # noqa: F401 - fixtures
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, relation
from tests.harness.servers.mariadb import MariaDb
from tests.harness.servers.postgres import Database

WORDS = relation("public.words", [("word", "text"), ("v", "text")], key=("word",))
PAIRS = relation("public.pairs", [("one", "text"), ("two", "text")], key=("one", "two"))
ALIKE = ["a", "A", "b", "b ", "\u00e9", "e\u0301", "e", "\u00df", "ss", "\U0001f600", "\U0001f601"]
_numbers = itertools.count(1)


@pytest.fixture
def postgres(database: Database) -> Place:
    return Place(database.dsn, lambda: psycopg.connect(database.dsn), "text")


@pytest.fixture
def latin(mariadb: MariaDb) -> Iterator[Place]:
    """Return a MariaDB database whose default is neither UTF-8 nor exact."""
    name = f"latin_{next(_numbers)}"
    mariadb.execute(f"CREATE DATABASE {name} CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    yield Place(mariadb.url(name), lambda: mariadb.connect(name), "CHAR CHARACTER SET utf8mb4")
    mariadb.execute(f"DROP DATABASE {name}")


@pytest.fixture(params=["file", "duck", "maria", "latin", "postgres"])
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_keys_that_are_alike_are_rows_of_their_own(place: Place, tmp_path: Path) -> None:
    source, sink = Model(), place.opened(tmp_path)
    for table in (WORDS, PAIRS):
        for word in ALIKE:
            source.insert(table, [word, word])
    sink.write(batch(source.commit()))
    assert place.rows("words", "word") == sorted([(word,) for word in ALIKE], key=str)
    source.delete(WORDS, ["A"])
    source.delete(PAIRS, ["b ", "b "])
    sink.write(batch(source.commit()))
    sink.flush()
    sink.close()
    left = sorted([(word,) for word in ALIKE if word != "A"], key=str)
    assert place.rows("words", "word") == left
    assert len(place.rows("pairs", "one")) == len(ALIKE) - 1


def test_long_keys_fit(place: Place, tmp_path: Path) -> None:
    source, sink = Model(), place.opened(tmp_path)
    source.insert(WORDS, ["k" * 768, "\U0001f600" * 70_000])
    source.insert(PAIRS, ["k" * 384, "\u00e9" * 384])
    sink.write(batch(source.commit()))
    sink.flush()
    sink.close()
    assert place.rows("words", "word") == [("k" * 768,)]


LOOSE = {
    "file": "CREATE TABLE words (word TEXT COLLATE NOCASE PRIMARY KEY, v TEXT)",
    "duck": "CREATE TABLE words (word VARCHAR COLLATE NOCASE PRIMARY KEY, v VARCHAR)",
    "maria": "CREATE TABLE words (word varchar(99) COLLATE utf8mb4_general_ci PRIMARY KEY, v text)",
    "latin": "CREATE TABLE words (word varchar(99) PRIMARY KEY, v text)",
    "postgres": "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
    "CREATE TABLE words (word text COLLATE blind PRIMARY KEY, v text)",
}


@pytest.mark.parametrize("kind", LOOSE)
def test_a_table_that_takes_keys_for_the_same_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    place: Place = request.getfixturevalue(kind)
    for statement in LOOSE[kind].split(";"):
        place.execute(statement)
    source, sink = Model(), place.opened(tmp_path)
    source.insert(WORDS, ["a", "1"])
    part = source.commit()
    with pytest.raises(SqlTableUnfit, match="different texts may be equal") as error:
        sink.write(batch(part))
    sink.close()
    if kind in {"maria", "latin", "postgres"}:  # the statement that it names is the way out
        place.execute(str(error.value.fields["statement"]))
        again = place.opened(tmp_path)
        again.write(batch(part))
        again.close()
        assert place.rows("words", "word") == [("a",)]
