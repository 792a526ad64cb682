"""Message streams on real servers: what an engine brings, and what can go wrong has its code."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import orjson
import pytest
from tests.conformance.test_streams_conform import messages
from tests.harness.changelog import context
from tests.harness.proxy import Proxy
from tests.harness.servers.nats import NatsServer
from tests.harness.servers.ports import free_ports
from tests.harness.servers.redis import RedisServer

from waltap.base.redaction import hide, redacted
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import ConfigurationError, SinkError
from waltap.ports.sink.refusal import RecordsRefused, leave_out
from waltap.ports.sink.sink import Sink
from waltap_streams.errors import (
    StreamFenced,
    StreamFull,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.plugin import register_sinks

SPECS = {spec.name: spec for spec in register_sinks()}
KEY, VALUE = b'{"id":1}', b'{"op":"c"}'


def sink(name: str, folder: Path, **given: Any) -> Sink:
    """Return a sink; names are given with _ for the dot."""
    named = {key.replace("_", "."): value for key, value in given.items()}
    spec = SPECS[name]
    return spec.factory(spec.properties.model_validate(named), context(folder, has_offset=True))


def batch(number: int, *records: Record) -> Batch:
    return Batch(parts=[], position=Position(number), events=0, records=list(records))


def record(topic: str, number: int = 1) -> Record:
    return Record(topic, b'{"id":%d}' % number, VALUE)


def refused(made: Sink, kind: type[SinkError], *calls: str) -> SinkError:
    """Every one of the calls raises ``kind``, with a remedy that has no gaps."""
    for call in calls:
        with pytest.raises(kind) as found:
            getattr(made, call)()
        assert found.value.code in str(found.value)
        assert "{" not in found.value.advice()
    made.close()
    return found.value


WRONG_HOSTS = (".", "a..b", "x" * 64, "[::1", "localhost:99999", "localhost:abc")


@pytest.mark.parametrize("host", WRONG_HOSTS)
def test_an_address_without_a_host_is_a_mistake_of_the_profile(host, tmp_path):
    good = "nats://localhost:4222"
    for name, given in (
        ("redis", {"address": host}),
        ("nats-jetstream", {"url": f"{good},tls://{host}"}),
        ("kinesis", {"region": "x", "endpoint": f"http://{host}"}),
    ):
        with pytest.raises(ValueError, match="cannot be read"):
            sink(name, tmp_path, **given)


# --- Redis ----------------------------------------------------------------------------------------


@pytest.fixture
def redis(redis_server) -> Iterator[Any]:
    client = redis_server.client()
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def redis_sink(redis_server, tmp_path) -> Callable[..., Sink]:
    return partial(sink, "redis", tmp_path, address=redis_server.address)


def flushed(into: Sink, number: int, *records: Record) -> Positions | None:
    into.write(batch(number, *records))
    return into.flush()


def test_redis_keeps_so_many_entries_and_has_debeziums_compact_form(redis, redis_sink):
    made = redis_sink(message_format="compact", stream_max_entries=100)
    made.open()
    records = [*(record("t", number) for number in range(1000)), Record("t", None, None)]
    assert flushed(made, 1, *records) == Positions({"": Position(1)})
    made.close()
    assert 100 <= redis.xlen("t") < 400
    assert redis.xrevrange("t", count=1)[0][1] == {b"default": b"default"}


def test_redis_that_is_away_at_the_start_or_later_is_reported(tmp_path):
    (port,) = free_ports(1)
    refused(
        sink("redis", tmp_path, address=f"127.0.0.1:{port}"), StreamUnavailable, "check", "open"
    )
    server = RedisServer.create()
    try:
        made = sink("redis", tmp_path, address=server.address, delivery_guarantee="exactly_once")
        made.open()
        flushed(made, 1, record("t"))
        made.write(batch(2, record("t", 2)))
        server.kill()
        with pytest.raises(StreamUnavailable):
            made.flush()
        with pytest.raises(SinkError):
            made.write(batch(3, record("t", 3)))
        made.close()
        server.start()
        assert made.open() == Positions({"": Position(1)})
        flushed(made, 2, record("t", 2))
        made.close()
        client = server.client()
        assert client.xlen("t") == 2
        client.close()
    finally:
        server.remove()


def test_redis_refuses_a_wrong_password_and_a_user_who_may_not_add(redis, redis_sink):
    redis.acl_setuser("reader", enabled=True, passwords=["+secret"], commands=["+ping", "+info"])
    try:
        wrong = redis_sink(user="reader", password="x")
        assert "XADD" in refused(wrong, StreamRefused, "check", "open").advice()
        made = redis_sink(user="reader", password="secret")
        made.open()
        with pytest.raises(StreamRefused, match="xadd"):
            made.write(batch(1, record("t")))
        made.close()
    finally:
        redis.acl_deluser("reader")


def test_redis_without_memory_and_a_key_that_is_no_stream_are_reported(redis, redis_sink):
    redis.set("taken", "text")
    with pytest.raises(ConfigurationError, match=r"ssl\.ca: /nowhere\.pem cannot be read"):
        redis_sink(ssl_enabled=True, ssl_ca="/nowhere.pem").open()
    made = redis_sink()
    made.open()
    with pytest.raises(StreamUnfit, match="WT-5564"):
        made.write(batch(1, record("taken")))
    made.close()
    made.open()
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StreamFull, match="stream.max.entries"):
            made.write(batch(1, record("t")))
    finally:
        redis.config_set("maxmemory", 0)
    made.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_redis_after_a_failover_is_waited_for(redis, redis_sink, guarantee):
    """The server is a replica now, or has fewer replicas than a write needs."""
    made = redis_sink(delivery_guarantee=guarantee)
    for begins, ends in (
        (("REPLICAOF", "127.0.0.1", *free_ports(1)), ("REPLICAOF", "NO", "ONE")),
        (
            ("CONFIG", "SET", "min-replicas-to-write", 1),
            ("CONFIG", "SET", "min-replicas-to-write", 0),
        ),
    ):
        made.open()
        redis.execute_command(*begins)
        try:
            with pytest.raises(StreamUnavailable):
                flushed(made, 1, record("t"))
        finally:
            redis.execute_command(*ends)
        made.close()
    made.open()
    flushed(made, 1, record("t"))
    made.close()
    assert redis.xlen("t") == 1


@pytest.mark.parametrize("name", ["shop.public.ROOMS", "READONLY"])
def test_names_and_rows_do_not_change_what_an_error_means(redis, redis_sink, name):
    redis.set(name, "text")
    made = redis_sink()
    made.open()
    with pytest.raises(StreamUnfit, match=f"XADD {name}: WRONGTYPE") as refused:
        made.write(batch(1, Record(name, KEY, b"MISCONF")))
    assert "MISCONF" not in str(refused.value)
    made.close()


def test_entries_beside_a_key_that_is_no_stream_are_not_promised(redis, redis_sink):
    """Redis undoes nothing of a transaction in which one command fails: the position must not be in it."""
    made = redis_sink(delivery_guarantee="exactly_once")
    made.open()
    flushed(made, 1, record("fine"))
    for stolen in ("new", "fine"):  # one that it never wrote to, and one that it knows as a stream
        redis.delete(stolen)
        redis.set(stolen, "text")
        made.write(batch(2, record("other"), record(stolen)))
        with pytest.raises(StreamUnfit, match="WT-5564"):
            made.flush()
        made.close()
        redis.delete(stolen)
        made = redis_sink(delivery_guarantee="exactly_once")
        held = made.open()
        assert max(each.end_lsn for each in held.values()) < 2
    flushed(made, 2, record("other"), record("fine"))
    made.close()
    assert redis.xlen("fine") == 1


def test_the_second_instance_on_redis_shuts_out_the_first(redis, redis_sink):
    one, two = (redis_sink(delivery_guarantee="exactly_once") for _ in range(2))
    one.open()
    one.write(batch(1, record("t")))
    two.open()
    with pytest.raises(StreamFenced, match="Leave one instance"):
        one.flush()
    one.close()
    two.close()
    assert redis.xlen("t") == 0


@pytest.mark.parametrize("command", [b"WATCH", b"GET", b"TYPE", b"EXEC"])
def test_a_link_to_redis_that_breaks_within_a_transaction_is_made_again(
    redis, redis_server, tmp_path, command
):
    armed: list[bytes] = []

    def heard(data: bytes) -> None:
        if armed and armed[0] in data:
            armed.clear()
            proxy.cut()

    host, port = redis_server.address.split(":")
    proxy = Proxy(host, int(port), heard)
    address = f"127.0.0.1:{proxy.port}"
    made = sink("redis", tmp_path, address=address, delivery_guarantee="exactly_once")
    if command != b"TYPE":
        armed.append(command)
        refused(made, StreamUnavailable, "open")
    made.open()
    made.write(batch(1, record("t")))
    armed.append(command)
    refused(made, StreamUnavailable, "flush")
    made.open()
    flushed(made, 1, record("t"))
    made.close()
    proxy.close()
    assert redis.xlen("t") == 1


# --- NATS -----------------------------------------------------------------------------------------


def held(server: NatsServer, stream: str) -> list[int]:
    """Return the ids of the keys in a stream, in order."""
    found = asyncio.run(messages(server.url, stream))
    return [orjson.loads(each.key or b"")["id"] for each in found]


async def bound(url: str, stream: str) -> None:
    client = await nats.connect(url, connect_timeout=60)
    await client.jetstream(timeout=60).update_stream(
        name=stream, subjects=[f"{stream}.>"], max_msg_size=1000
    )
    await client.close()


def nats_sink(folder: Path, url: str, name: str, **given: Any) -> Sink:
    made = {"url": url, "create-stream": True, "stream": name, "subjects": f"{name}.>", **given}
    return sink("nats-jetstream", folder, **made)


def test_messages_whose_acknowledgement_was_lost_come_again(nats_server, tmp_path):
    """Others may come before them: the stream takes none for a duplicate."""
    made = nats_sink(tmp_path, nats_server.url, "lost")
    made.open()
    first, second, other = (record("lost.t", number) for number in range(3))
    made._stream._timeout = 1e-9  # type: ignore[attr-defined]
    with pytest.raises(StreamUnavailable):
        made.write(batch(1, first, second))
    made.maintain()
    made.close()
    made.open()
    made.write(batch(1, other, first, second))
    made.close()
    assert held(nats_server, "lost") == [0, 1, 2, 0, 1]


def test_nats_without_a_stream_is_reported(nats_server, tmp_path):
    made = nats_sink(tmp_path, nats_server.url, "some")
    made.open()
    with pytest.raises(StreamMissing, match=r"no stream takes elsewhere\.t.*nats stream add"):
        made.write(batch(1, record("elsewhere.t")))
    made.close()


def test_a_stream_of_nats_that_does_not_answer_is_waited_for(nats_server, tmp_path, monkeypatch):
    """Until another server of its cluster leads, nobody answers a message, as if there were no stream."""
    made = nats_sink(tmp_path, nats_server.url, "led")
    made.open()

    async def unanswered(*_given: object, **_more: object) -> None:
        raise nats.js.errors.NoStreamResponseError

    monkeypatch.setattr(made._stream, "publish", unanswered)  # type: ignore[attr-defined]
    with pytest.raises(StreamUnavailable, match=r"the stream of led\.t does not answer"):
        made.write(batch(1, record("led.t")))
    # the answer where no majority is left, which takes a cluster a while to notice
    answer = nats.js.errors.ServiceUnavailableError(code=503, err_code=10008)
    assert isinstance(made._server.meaning(answer, ""), StreamUnavailable)  # type: ignore[attr-defined]
    made.close()


@pytest.mark.parametrize(
    ("name", "unfit"),
    [
        ("payload", Record("payload.t", b"2", b"x" * 2_000_000)),
        ("subject", Record("subject.of a row", b"2", VALUE)),
        ("header", Record("header.t", b"2", VALUE, headers=(("a:b", b"1"),))),
        ("limit", Record("limit.t", b"2", b"x" * 2_000)),
    ],
)
def test_a_message_that_nats_never_takes_is_one_of_the_batch(nats_server, tmp_path, name, unfit):
    made = nats_sink(tmp_path, nats_server.url, name)
    made.open()
    asyncio.run(bound(nats_server.url, name))
    others = [record(f"{name}.t", number) for number in (1, 3, 4)]
    given = batch(1, others[0], unfit, *others[1:])
    with pytest.raises(RecordsRefused) as refused:
        made.write(given)
    (event,) = refused.value.refused
    assert (event.index, event.error.code) == (1, "WT-5564")
    leave_out(given, refused.value.refused)
    made.write(given)
    assert made.flush() == Positions({"": Position(1)})
    made.close()
    keys = held(nats_server, name)
    assert list(dict.fromkeys(keys)) == [1, 3, 4]
    assert keys[-2:] == [3, 4]


def test_credentials_of_nats_need_a_library_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(
        ConfigurationError, match=r"auth\.credentials: needs nkeys.*pip install nkeys"
    ):
        nats_sink(tmp_path, "nats://127.0.0.1:1", "t", **{"auth.credentials": "x.creds"})


def test_nats_that_is_away_at_the_start_or_later_is_reported(tmp_path):
    (port,) = free_ports(1)
    url = f"nats://127.0.0.1:{port}"
    hide([url])  # as a profile does
    away = sink("nats-jetstream", tmp_path, url=url)
    found = refused(away, StreamUnavailable, "check", "open")
    assert f"server at 127.0.0.1:{port} is up" in redacted(found.advice())
    server = NatsServer.create(user="waltap", password="secret")
    try:
        for login in ({}, {"auth.user": "waltap", "auth.password": "wrong"}):
            wrong = nats_sink(tmp_path, server.url, "t", **login)
            assert "auth" not in refused(wrong, StreamRefused, "check", "open").problem[:4]
        login = {"auth.user": "waltap", "auth.password": "secret"}
        made = nats_sink(tmp_path, server.url, "t", timeout_ms=20_000, **login)
        made.check()
        made.open()
        made.write(batch(1, record("t.t")))
        server.kill()
        made._stream._timeout = 1.0  # type: ignore[attr-defined]  # nobody answers
        with pytest.raises(StreamUnavailable):
            made.write(batch(2, record("t.permissions")))  # a name that refusals have in them
        assert made.flush() == Positions({"": Position(1)})
        made.close()
        server.start()
        made.open()
        assert flushed(made, 2, record("t.t")) == Positions({"": Position(2)})
        made.maintain()
        made.close()
    finally:
        server.remove()


# --- Kinesis --------------------------------------------------------------------------------------


@pytest.fixture
def kinesis(moto, monkeypatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    import boto3

    client = boto3.client("kinesis", region_name="eu-west-1", endpoint_url=moto.url)
    yield client
    client.close()


def test_kinesis_without_the_stream_or_with_a_record_too_large_is_reported(moto, kinesis, tmp_path):
    kinesis.create_stream(StreamName="there", ShardCount=1)
    made = sink("kinesis", tmp_path, region="eu-west-1", endpoint=moto.url)
    made.check()
    made.open()
    with pytest.raises(StreamMissing, match=r"aws kinesis create-stream --stream-name none\.t"):
        made.write(batch(1, record("none.t")))
    made.close()
    made.open()
    large = Record("there", b"2", b"x" * 12_000_000), Record("there", b"4", b"x" * 2_000_000)
    given = batch(1, record("there", 1), large[0], record("there", 3), large[1], record("there", 5))
    for index in (1, 2):  # the batch comes again without each
        with pytest.raises(RecordsRefused) as refused:
            made.write(given)
        (event,) = refused.value.refused
        assert (event.index, event.error.code) == (index, "WT-5564")
        leave_out(given, refused.value.refused)
    assert len(given.records or ()) == 3
    made.write(given)
    assert made.flush() == Positions({"": Position(1)})
    made.close()
    (shard,) = kinesis.list_shards(StreamName="there")["Shards"]
    place = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    begin = kinesis.get_shard_iterator(StreamName="there", **place)["ShardIterator"]
    keys = [each["PartitionKey"] for each in kinesis.get_records(ShardIterator=begin)["Records"]]
    assert list(dict.fromkeys(orjson.loads(key)["id"] for key in keys)) == [1, 3, 5]
    assert orjson.loads(keys[-1])["id"] == 5


def test_kinesis_that_is_away_or_knows_nobody_is_reported(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    (port,) = free_ports(1)
    given = {"region": "eu-west-1", "endpoint": f"http://127.0.0.1:{port}"}
    refused(sink("kinesis", tmp_path, **given), StreamRefused, "check")
    unknown = sink("kinesis", tmp_path, **given, credentials_profile="nobody")
    refused(unknown, StreamRefused, "check", "open")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    away = sink("kinesis", tmp_path, **given)
    refused(away, StreamUnavailable, "check")
    away.open()
    with pytest.raises(StreamUnavailable):
        away.write(batch(1, record("t")))
    away.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ValidationException", RecordsRefused),
        ("InvalidArgumentException", RecordsRefused),
        ("ExpiredTokenException", StreamRefused),
        ("NotAuthorized", StreamRefused),
        ("RequestExpired", StreamRefused),
        ("RequestTimeoutException", StreamUnavailable),
    ],
)
def test_only_answers_of_kinesis_about_records_refuse_records(moto, kinesis, tmp_path, code, kind):
    """Another refusal concerns every request, so a tolerant pipeline would leave all records out."""
    made: Any = sink("kinesis", tmp_path, region="eu-west-1", endpoint=moto.url)
    made.open()
    body = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    answer = SimpleNamespace(status_code=400), body
    events = made._service.connected().meta.events
    events.register("before-call.kinesis.PutRecords", lambda **_: answer)
    with pytest.raises(kind):
        made.write(batch(1, record("there", 1), record("there", 2)))
    made.close()


def test_no_request_to_kinesis_has_a_key_twice(tmp_path):
    """A request may be taken in part: what is sent again must not come behind its successor."""
    made: Any = sink("kinesis", tmp_path, region="eu-west-1")
    order = [1, 2, 3, 1, 4, 5, 5, 6]
    requests = list(made._requests([record("t", number) for number in order]))
    keys = [[orjson.loads(key)["id"] for _, key, _ in request] for request in requests]
    assert keys == [[1, 2, 3], [1, 4, 5], [5, 6]]
    keyless = [Record("t", None, VALUE)] * 501
    assert [len(request) for request in made._requests(keyless)] == [500, 1]
