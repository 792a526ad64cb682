"""Servers of the tests by hand: ``python -m tests.harness.servers setup|kafka|registry``."""

import signal
import sys

from tests.harness.servers import (
    iceberg,
    kafka,
    linters,
    moto,
    nats,
    pgbouncer,
    prometheus,
    redis,
    registry,
    shared_classes,
    spark_jars,
)
from tests.harness.servers.child import ChildFailed
from tests.harness.servers.jars import MissingProgram

USAGE = """usage: python -m tests.harness.servers setup|kafka|registry
  setup     fetch what the broker, the registry and the other services are made of
  kafka     run an Apache Kafka broker until Ctrl-C
  registry  run an Apicurio registry until Ctrl-C"""


def main(command: str) -> str | None:
    """Do what ``command`` says; return the reason when it cannot be done."""
    try:
        if command == "setup":
            kafka.prepare()
            registry.prepare()
            spark_jars.prepare()
            for service in (
                redis.RedisServer, nats.NatsServer, prometheus.Prometheus, moto.Moto, pgbouncer.PgBouncer,
            ):  # fmt: skip
                service.prepare()
            iceberg.make_environment()
            linters.prepare()
            shared_classes.prepare()
        elif command == "kafka":
            with_broker = kafka.Kafka.create()
            print(f"bootstrap.servers={with_broker.bootstrap}")
            print(f"TLS: {with_broker.tls} with {with_broker.certificate}")
            print(f"SASL: {with_broker.sasl}, user admin, password admin-secret", flush=True)
            _wait(with_broker)
        elif command == "registry":
            with_registry = registry.Registry.create()
            print(f"schema.registry.url={with_registry.url}", flush=True)
            _wait(with_registry)
        else:
            return USAGE
    except (MissingProgram, ChildFailed) as reason:
        return str(reason)
    return None


def _wait(server: kafka.Kafka | registry.Registry) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        server.remove()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else ""))
