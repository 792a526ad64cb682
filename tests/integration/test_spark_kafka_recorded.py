"""Events that the real Debezium wrote, through a real broker into Spark's tables: those of the database."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.differential.corpus import CORPORA
from tests.harness.kafka import create
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.topics import Reader

from waltap_spark.kafka import KafkaTopics

FAR = r"infinity|BC|^\d{5,}"
CASES = {
    # corpus, variant: table → (until this statement, columns with another SQL than text; "": left out)
    ("toast", "schemas"): {
        "big": ("(update big set id|delete from big)", {"h": "hstore_to_json(h)", "j": "j::jsonb", "jb": "jb"})
    },
    ("pk_change", ""): {"single": ("", {}), "nopk": ("", {})},
    ("types_default", "schemas"): {
        "numbers": ("", {"m": "m::numeric", "r4": "r4::float8"}),
        "times": ("", {"ttz": "", "ttz3": "", "iv": ""}),
    },
}  # fmt: skip


def number(text: Any) -> Any:
    """Return a position as a number again: ranks are 10 apart."""
    if not isinstance(text, str):
        return text
    rank = 10 * int(text.rpartition("#")[2])
    return rank + 5 if text.startswith("after") else rank


def events(corpus: str, variant: str) -> list[dict[str, Any]]:
    """Return the recorded events, with all that was left out of them and numbers for positions."""
    name = f"expected.{variant}.jsonl" if variant else "expected.jsonl"
    found, known = [], dict[tuple[str, str], Any]()
    for line in (CORPORA / corpus / name).read_text().split("\n")[:-1]:
        event = json.loads(line)
        for side in ("key", "value"):
            part = event[side]
            if isinstance(part, dict) and "schema" in part:
                place = event["topic"], side
                known[place] = known[place] if part["schema"] == "$same" else part["schema"]
                part["schema"] = known[place]
        place = event["topic"], "headers"
        known[place] = known[place] if event.get("headers") == "$same" else event.get("headers")
        event["headers"] = known[place]
        if event["value"] is not None:
            body = event["value"].get("payload", event["value"])
            source = body.get("source", {})
            if "sequence" in source:
                pair = [number(each) for each in source["sequence"]]
                source["sequence"] = json.dumps(
                    [None if each is None else str(each) for each in pair]
                )
            source["lsn"] = number(source.get("lsn"))
            if isinstance(source.get("txId"), str):
                source["txId"] = int(source["txId"].partition(":")[0].partition("#")[2])
            for name, per_second in (("ts_ms", 10**3), ("ts_us", 10**6), ("ts_ns", 10**9)):
                if name in source:
                    source[name] = 1_700_000_000 * per_second
        found.append(event)
    return found


def upto(found: list[dict[str, Any]], until: str) -> list[dict[str, Any]]:
    """Return the events of one table before its first delete, where that is where to end."""
    if not until:
        return found
    operations = [(each["value"] or {}).get("payload", {}).get("op") for each in found]
    return found[: operations.index("d")]


def canonical(value: Any) -> Any:
    """Return a value of either side in one form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, dict):
        value = json.dumps(value)
    if isinstance(value, str):
        if value[:1] in "{[" or value[:1] == '"' or value == "null":
            try:
                return json.dumps(json.loads(value, parse_float=str, parse_int=str), sort_keys=True)
            except ValueError:
                return value
        if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00", value):
            return value.removesuffix("+00")
        if re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", value):
            return Decimal(value).normalize()
    return value


def statements(corpus: str, tables: dict[str, Any]) -> str:
    """Return the corpus's SQL, up to where the events of its tables are taken."""
    folder = CORPORA / corpus
    script = (folder / "workload.sql").read_text()
    for until, _other in tables.values():
        if until:
            script = re.sub(rf"^{until}.*\n", "", script, flags=re.MULTILINE)
    made = (folder / "setup.sql").read_text()
    return made.replace("create extension", "create extension if not exists") + script


def columns(connection: Any, table: str, other: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return what to select of a table in the database, and of Spark's."""
    listed = connection.execute(
        "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum", (table,)
    ).fetchall()  # fmt: skip
    theirs, mine = [], []
    for name, kind in listed:
        text = other.get(name, f"{name}::text")
        plain = kind in ("bytea", "real", "double precision") or kind.endswith("[]")
        if kind.startswith(("date", "time")) and text:
            text = f"CASE WHEN {name}::text !~ '{FAR}' THEN {name}::text END"
        if text:
            theirs.append(f"{text if name in other or not plain else name} AS {name}")
            mine.append(name if plain else f"cast({name} as string) AS {name}")
    return theirs, mine


def test_tables_of_recorded_events_are_those_of_the_database(
    database: Database, kafka: Kafka, spark_of_topics: Any, tmp_path: Path
) -> None:
    """Unsent values of every type, keys that move with them, tables without key, types."""
    topics = {table: kafka.topic_name() for tables in CASES.values() for table in tables}
    create(kafka.bootstrap, *(NewTopic(topic, 1) for topic in topics.values()))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for (corpus, variant), tables in CASES.items():
        database.psql(statements(corpus, tables))
        recorded = events(corpus, variant)
        for table, (until, _other) in tables.items():
            own = [each for each in recorded if each["topic"] == f"t.public.{table}"]
            for each in upto(own, until):
                sides = (each["key"], each["value"])
                key, value = (None if side is None else json.dumps(side) for side in sides)
                headers = [(header["key"], b"{}") for header in each["headers"] or ()]
                producer.produce(topics[table], value, key, partition=0, headers=headers)
    assert producer.flush(120) == 0
    wanted = KafkaTopics(bootstrap=kafka.bootstrap, topics=tuple(topics.values()))
    reader = Reader(spark_of_topics, tmp_path, wanted)
    assert reader.pull()
    with database.connect() as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        for table, (_until, other) in (pair for each in CASES.values() for pair in each.items()):
            theirs, mine = columns(connection, table, other)
            rows = connection.execute(f"SELECT {', '.join(theirs)} FROM {table}").fetchall()
            found = reader.frame(table, "public").selectExpr(*mine).collect()
            expected = sorted((tuple(map(canonical, row)) for row in rows), key=str)
            assert sorted((tuple(map(canonical, row)) for row in found), key=str) == expected, table
