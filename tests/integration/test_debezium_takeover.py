"""Debezium and waltap hand one slot over to each other: by file, under load, and by the topic of a worker; and header
values are as who ran the file before wrote them."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.differential.engines import peer_installed
from tests.harness.command import waltap
from tests.harness.kafka import IN_ORDER, create, read_all
from tests.harness.meanwhile import in_background
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop
from tests.hunt.takeover import SETUP, Handovers, play

from waltap.cli.commands.offsets import export_to, import_from
from waltap.config.layers import load
from waltap.config.resolve import resolve
from waltap.pipeline import Engine
from waltap.plugins.host import Host
from waltap.services.debezium_offsets import DebeziumStillReads, java_map, parse_java_map
from waltap_kafka.errors import KafkaTopicMissing

KEY = b'["shop-connector",{"server":"shop"}]'


class Takeover(Shop):
    """A slot that somebody else made, a connector's file, and where its offsets are."""

    def __init__(self, database: Database, folder: Path, **more: str) -> None:
        slot = f"{database.name}_dbz"
        database.run(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE PUBLICATION dbz FOR TABLE t",
            f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        )
        own = {"slot.name": slot, "publication.name": "dbz"}
        own |= {
            "publication.autocreate.mode": "disabled",
            "value.converter.schemas.enable": "false",
        }
        super().__init__(folder, database, **own, **more)
        self.name, self.offsets = "shop-connector", folder / "offsets.dat"
        self.file = self.connector(name=self.name)

    @property
    def slot(self) -> str:
        return f"{self.database.name}_dbz"

    def now(self) -> int:
        return self.database.wal_end()

    def imported(
        self, entries: dict[bytes, dict[str, object]], connector: str | None = None
    ) -> None:
        self.offsets.write_bytes(java_map({k: json.dumps(v).encode() for k, v in entries.items()}))
        import_from(str(self.file), str(self.offsets), connector, yes=True)

    def exported(self, place: object) -> None:
        until(lambda: not self.database.slots()[self.slot], "the reader of before to go")
        export_to(str(self.file), str(place), yes=True)

    def ids(self) -> list[int]:
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_lsn()::text")
        self.says("run", self.file, "--until-lsn", lsn)
        return [number for _, number in self.operations()]


@pytest.fixture
def shop(database, tmp_path) -> Takeover:
    return Takeover(database, tmp_path)


def test_debezium_and_waltap_take_turns_on_one_slot(database, java, tmp_path):
    if not peer_installed():
        pytest.skip("the Debezium peer is not installed: benchmarks/peer/run-peer --install")
    database.execute(SETUP)
    handovers = Handovers(database, tmp_path / "turns", seed=11, pause_s=0.2)
    found = play(handovers, turns=2)
    assert found.good, found
    assert found.events > 600
    assert found.repeated[0] == 0, "behind its snapshot Debezium has nothing open"


def test_offsets_go_back_and_other_connectors_keep_theirs(shop):
    other = b'["other",{"server":"elsewhere"}]'
    start = shop.now()
    shop.imported({KEY: {"lsn": start}, other: {"lsn": 1}})
    shop.database.execute("INSERT INTO t VALUES (1, 'a')")
    assert shop.ids() == [1]
    shop.exported(shop.offsets)
    kept = parse_java_map(shop.offsets.read_bytes())
    assert json.loads(kept[other]) == {"lsn": 1}
    assert json.loads(kept[KEY])["lsn"] > start
    fresh = shop.folder / "fresh.dat"
    shop.exported(fresh)
    assert list(parse_java_map(fresh.read_bytes())) == [KEY]


def test_a_file_of_a_worker_that_asks_for_exactly_once_needs_no_brokers(database, tmp_path):
    """Nor a sink; and where nobody answers, nothing is done, and the exit code says so."""
    shop = Takeover(database, tmp_path, **{"exactly.once.support": "required"})
    document = json.loads(shop.file.read_text())
    document["config"] = {k: v for k, v in document["config"].items() if "waltap.sink" not in k}
    shop.file.write_text(json.dumps(document))
    shop.offsets.write_bytes(java_map({KEY: json.dumps({"lsn": shop.now()}).encode()}))
    fresh = tmp_path / "fresh.dat"
    for words, done in (
        (("import", shop.file, "--from-debezium", shop.offsets), lambda: list(tmp_path.rglob("offset.json"))),
        (("export", shop.file, "--to-debezium", fresh), fresh.exists),
    ):  # fmt: skip
        assert "--yes" in shop.says("offsets", *words, code=1)
        assert not done()
        shop.says("offsets", *words, "--yes")
        assert done()


def test_a_slot_that_is_being_read_is_refused(shop):
    shop.imported({KEY: {"lsn": shop.now()}})
    overrides = {"snapshot.mode": "no_data", "waltap.state.dir": str(shop.folder / "elsewhere")}
    host = Host()
    engine = Engine(resolve(load(shop.file), host, sink="null", overrides=overrides), host)
    running = in_background(engine.run)
    try:
        until(lambda: shop.database.slots()[shop.slot], "another pipeline reads the slot")
        with pytest.raises(DebeziumStillReads):
            import_from(str(shop.file), str(shop.offsets), yes=True)
    finally:
        engine.stop()
        running.result(120)


def test_the_topic_of_a_worker_is_read_and_written(database, kafka, tmp_path):
    topic = kafka.topic_name("connect-offsets")
    create(kafka.bootstrap, NewTopic(topic, num_partitions=3, config={"cleanup.policy": "compact"}))
    shop = Takeover(database, tmp_path, **{"bootstrap.servers": kafka.bootstrap})
    gone = b'["gone",{"server":"shop"}]'
    settings = {"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"}
    producer = Producer(settings | IN_ORDER)
    early = shop.now()
    shop.database.execute("INSERT INTO t VALUES (1, 'a')")
    start = shop.now()
    shop.database.execute("INSERT INTO t VALUES (2, 'b')")
    for key, value in (
        (KEY, {"lsn": early}),
        (gone, {"lsn": early}),
        (KEY, {"lsn": start, "lsn_proc": start, "lsn_commit": start, "messageType": "COMMIT"}),
        (gone, None),
    ):
        producer.produce(topic, key=key, value=None if value is None else json.dumps(value))
    assert producer.flush(60) == 0
    place = f"kafka://{kafka.bootstrap}/{topic}"
    import_from(str(shop.file), place, yes=True)
    assert shop.ids() == [2]
    shop.exported(place)
    ours = [message for message in read_all(kafka.bootstrap, topic) if message.key() == KEY]
    assert json.loads(ours[-1].value())["lsn"] > start
    assert len({message.partition() for message in ours}) == 1
    with pytest.raises(KafkaTopicMissing):
        import_from(str(shop.file), f"{place}-not", yes=True)


# --- header values in Kafka, of Connect's worker, Debezium Server, its engine --------------------------


CONNECTOR = "io.debezium.connector.postgresql.PostgresConnector"
SCHEMALESS = {f"{side}.converter.schemas.enable": "false" for side in ("key", "value", "header")}
JSON_TEXT, PLAIN = '"{}"', "{}"


def connect(given: dict[str, str], servers: str) -> tuple[str, str]:
    return ".json", json.dumps({"config": {**given, "bootstrap.servers": servers}})


def standalone(given: dict[str, str], servers: str) -> tuple[str, str]:
    given = {"name": "inventory", **given, "bootstrap.servers": servers}
    return ".properties", "".join(f"{name}={value}\n" for name, value in given.items())


def engine(given: dict[str, str], servers: str) -> tuple[str, str]:
    store = "org.apache.kafka.connect.storage.MemoryOffsetBackingStore"
    given = {**given, "offset.storage": store, "waltap.sink.type": "kafka"}
    given["waltap.sink.bootstrap.servers"] = servers
    return ".properties", "".join(f"{name}={value}\n" for name, value in given.items())


def server(given: dict[str, str], servers: str) -> tuple[str, str]:
    lines = [f"debezium.source.{name}={value}" for name, value in given.items()]
    lines += [
        "debezium.sink.type=kafka",
        f"debezium.sink.kafka.producer.bootstrap.servers={servers}",
    ]
    return ".properties", "\n".join(lines)


@pytest.mark.parametrize(
    ("write", "form"),
    [
        (connect, PLAIN),
        (standalone, PLAIN),
        (engine, JSON_TEXT),
        (server, JSON_TEXT),
    ],
)
def test_header_values_are_as_the_kind_of_file_has_them(database, kafka, tmp_path, write, form):
    database.psql("CREATE TABLE items (id int, tag text, PRIMARY KEY (id, tag))")
    prefix = kafka.topic_name("heads").replace("-", "_")
    given = {
        "connector.class": CONNECTOR, "plugin.name": "pgoutput", "topic.prefix": prefix,
        "snapshot.mode": "no_data", **database.properties(), **SCHEMALESS,
    }  # fmt: skip
    ending, text = write(given, kafka.bootstrap)
    path = tmp_path / f"file{ending}"
    path.write_text(text)
    for change in ("", "INSERT INTO items VALUES (1, 'a\"b'); UPDATE items SET id = 1030"):
        database.psql(change)
        done = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    first, deleted, *_ = read_all(kafka.bootstrap, f"{prefix}.public.items")
    assert dict(first.headers() or [])["__debezium.context.taskId"] == form.format("0").encode()
    (moved,) = (v for n, v in deleted.headers() or [] if n == "__debezium.newkey")
    assert moved == b'{"id":1030,"tag":"a\\"b"}'
