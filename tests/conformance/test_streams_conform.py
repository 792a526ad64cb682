"""The sinks of message streams keep the kit's promises on real servers."""

import asyncio
import base64
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats
import orjson
import pytest
from tests.conformance.test_sinks_conform import record

from waltap.changes.events.event import Record
from waltap.ports.sink.sink import SinkContext
from waltap_streams.nats import NatsSink
from waltap_streams.plugin import register_sinks
from waltap_streams.properties import KinesisProperties, NatsProperties, RedisProperties
from waltap_testing.suites.sink import SinkRig, SinkSuite

SPECS = {spec.name: spec for spec in register_sinks()}

_numbers = itertools.count(1)


class OnRedis(SinkSuite):
    """Each rig has a database of its own; the last ones are emptied first."""

    guarantee: str

    @pytest.fixture
    def new_rig(self, redis_server) -> Callable[[Path], SinkRig]:
        def make(_folder: Path) -> SinkRig:
            database = next(_numbers) % 16
            client = redis_server.client(database)
            client.flushdb()

            def read_back() -> list[Record]:
                found = []
                for key in sorted(client.keys("server.*")):
                    for _, fields in client.xrange(key):
                        headers = tuple(
                            (name.decode().removeprefix("header."), value)
                            for name, value in fields.items()
                            if name.startswith(b"header.")
                        )
                        topic = key.decode()
                        found.append(
                            Record(topic, fields.get(b"key"), fields.get(b"value"), headers)
                        )
                return found

            @contextlib.contextmanager
            def full() -> Iterator[None]:
                client.config_set("maxmemory", 1)
                try:
                    yield
                finally:
                    client.config_set("maxmemory", 0)

            properties = RedisProperties.model_validate(
                {
                    "address": redis_server.address,
                    "db.index": database,
                    "delivery.guarantee": self.guarantee,
                }
            )

            def keep() -> Callable[[], None]:
                kept = {key: client.dump(key) for key in client.keys()}

                def put_back() -> None:
                    client.flushdb()
                    for key, value in kept.items():
                        client.restore(key, 0, value)

                return put_back

            return SinkRig(SPECS["redis"], properties, read_back, asks=True, outage=full, keep=keep)

        return make


class TestRedisAtLeastOnce(OnRedis):
    guarantee = "at_least_once"


class TestRedisExactlyOnce(OnRedis):
    guarantee = "exactly_once"


del OnRedis


def plain(headers: dict[str, str], name: str) -> bytes | None:
    """Return a header of a message: as it is, or out of base64."""
    if name in headers:
        return headers[name].encode()
    coded = headers.get(f"{name}-base64")
    return None if coded is None else base64.b64decode(coded)


async def messages(url: str, stream: str) -> list[Record]:
    """Return what a stream of JetStream holds."""
    client = await nats.connect(url, connect_timeout=60)
    try:
        jetstream = client.jetstream(timeout=60)
        try:
            state = (await jetstream.stream_info(stream)).state
        except nats.js.errors.NotFoundError:
            return []
        found = []
        for number in range(state.first_seq, state.last_seq + 1):
            message = await jetstream.get_msg(stream, number)
            headers = message.headers or {}
            names = [name for name in headers if name.startswith("header-")]
            found.append(
                Record(
                    str(message.subject).partition(".")[2],
                    plain(headers, "waltap-key"),
                    None if "waltap-tombstone" in headers else message.data,
                    tuple(
                        (bare, plain(headers, f"header-{bare}") or b"")
                        for bare in (name[7:].removesuffix("-base64") for name in names)
                    ),
                )
            )
        return found
    finally:
        await client.close()


async def limit(url: str, stream: str, size: int) -> None:
    """Let a stream take messages of so many bytes; -1: of any size."""
    client = await nats.connect(url, connect_timeout=60)
    try:
        jetstream = client.jetstream(timeout=60)
        config = (await jetstream.stream_info(stream)).config
        await jetstream.update_stream(dataclasses.replace(config, max_msg_size=size))
    finally:
        await client.close()


class Prefixed(NatsSink):
    """Topics of the kit below a subject of the rig's own: subjects belong to one stream of a server."""

    prefix = ""

    def _send(self, records: Sequence[Record]) -> None:
        super()._send(
            [msgspec.structs.replace(r, topic=f"{self.prefix}.{r.topic}") for r in records]
        )


class TestNats(SinkSuite):
    @pytest.fixture
    def new_rig(self, nats_server) -> Callable[[Path], SinkRig]:
        def make(_folder: Path) -> SinkRig:
            name = f"rig{next(_numbers)}"

            def factory(properties: Any, context: SinkContext) -> NatsSink:
                made = Prefixed(properties, context)
                made.prefix = name
                return made

            given = {
                "url": nats_server.url,
                "create-stream": True,
                "stream": name,
                "subjects": (f"{name}.>",),
                "storage": "memory",
            }

            @contextlib.contextmanager
            def refusing() -> Iterator[None]:
                asyncio.run(limit(nats_server.url, name, 1))
                yield
                asyncio.run(limit(nats_server.url, name, -1))

            return SinkRig(
                dataclasses.replace(SPECS["nats-jetstream"], factory=factory),
                NatsProperties.model_validate(given),
                lambda: asyncio.run(messages(nats_server.url, name)),
                asks=True,
                outage=refusing,
            )

        return make


class TestKinesis(SinkSuite):
    @pytest.fixture
    def new_rig(self, moto, monkeypatch) -> Iterator[Callable[[Path], SinkRig]]:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        import boto3

        client = boto3.client("kinesis", region_name="us-east-1", endpoint_url=moto.url)

        def make(_folder: Path) -> SinkRig:
            name = f"rig{next(_numbers)}"
            client.create_stream(StreamName=name, ShardCount=1)

            def read_back() -> list[Record]:
                (shard,) = client.list_shards(StreamName=name)["Shards"]
                iterator = client.get_shard_iterator(
                    StreamName=name,
                    ShardId=shard["ShardId"],
                    ShardIteratorType="TRIM_HORIZON",
                )["ShardIterator"]
                found: list[Record] = []
                while True:
                    answer = client.get_records(ShardIterator=iterator)
                    found += [record(orjson.loads(each["Data"])) for each in answer["Records"]]
                    if not answer["Records"]:
                        return found
                    iterator = answer["NextShardIterator"]

            given = {
                "region": "us-east-1",
                "endpoint": moto.url,
                "stream.name.format": name,
                "body": "line",
            }
            return SinkRig(
                SPECS["kinesis"],
                KinesisProperties.model_validate(given),
                read_back,
                asks=True,
                forks=False,  # each process would read boto3's models: a second each, for thirty
            )

        yield make
        client.close()
