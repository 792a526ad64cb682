"""A driver, run as a process by `test_spark_kafka_kill`: it follows topics until it is killed.

The first portion it takes and applies. The second is in the change log and not in the tables, and the rows
of the third are written, but no manifest names them, when it says ``held``.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.harness.profile_query import small_session
from tests.harness.topics import Reader

from waltap_spark.kafka import KafkaTopics


def main(folder: Path, topics: KafkaTopics) -> None:
    """Follow ``topics`` until killed."""
    from tests.harness.servers.spark_kafka import spark_jars

    from waltap_spark.apply.applier import OutputApplier
    from waltap_spark.state.output import SparkOutput

    session = small_session(spark_jars=spark_jars(), spark_sql_shuffle_partitions="1")
    reader = Reader(session, folder, topics)
    with reader.feed() as feed:
        applier = OutputApplier(reader.spark, feed.log, SparkOutput(str(folder / "out")))
        applier.open()
        assert feed.pull()
        applier.apply(list(feed.log.manifests(applier.state.log_position)))
        assert feed.pull()

        def hold(_path: str, _data: Any) -> None:
            print("held", flush=True)
            sys.stdin.read()

        feed._store.publish = hold  # type: ignore[method-assign]
        feed.pull()


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.argv[2])
    main(Path(sys.argv[1]), KafkaTopics(**{**given, "topics": tuple(given["topics"])}))
