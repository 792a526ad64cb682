"""The broker and the registry of the tests keep their own promises."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.servers.kafka import Kafka
from tests.harness.servers.registry import Registry

WAIT_SECONDS = 90.0


def produce(settings: dict[str, str], topic: str, *values: bytes) -> None:
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_SECONDS)
    failed: list[object] = []
    producer = Producer({**settings, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(WAIT_SECONDS) == 0
    assert failed == []


def read(settings: dict[str, str], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**settings, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


def test_broker_serves_plain_tls_and_sasl_clients(kafka: Kafka) -> None:
    for settings in (
        {"bootstrap.servers": kafka.bootstrap},
        {
            "bootstrap.servers": kafka.tls,
            "security.protocol": "SSL",
            "ssl.ca.location": str(kafka.certificate),
        },
        {
            "bootstrap.servers": kafka.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "admin-secret",
        },
    ):
        topic = kafka.topic_name()
        produce(settings, topic, b"one", b"two")
        assert read(settings, topic, 2) == [b"one", b"two"]


def test_broker_keeps_records_over_kill_and_start(private_kafka: Kafka) -> None:
    settings = {"bootstrap.servers": private_kafka.bootstrap}
    produce(settings, "kept", b"one", b"two")
    private_kafka.kill()
    private_kafka.start()
    assert read(settings, "kept", 2) == [b"one", b"two"]


def test_registry_gives_one_schema_one_id(registry: Registry) -> None:
    def register(subject: str) -> int:
        body = json.dumps({"schema": '{"type": "string"}'}).encode()
        request = urllib.request.Request(
            f"{registry.url}/subjects/{subject}/versions",
            body,
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return int(json.load(answer)["id"])

    assert register("one-value") == register("one-value") == register("other-value")


def test_a_server_dies_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from tests.harness.servers.child import Child\n"
        "child = Child(['sleep', '600'], pathlib.Path(sys.argv[1]))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert run.stdout is not None
    server = psutil.Process(int(run.stdout.readline()))
    deadline = time.monotonic() + WAIT_SECONDS
    while server.name() != "sleep":  # it has asked to die by then
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    psutil.wait_procs([server], timeout=WAIT_SECONDS)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
