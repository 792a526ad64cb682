"""What waltap's formats write against what Kafka Connect's converters write of the same values."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.differential.converters import Question, ask
from tests.differential.engines import peer_installed
from tests.rigs.typed_records import typed_records, with_schema
from tests.rigs.typed_values import typed  # noqa: F401 - a fixture
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.schema import avro_schema

AVRO = "io.confluent.connect.avro.AvroConverter"


@pytest.fixture(scope="module")
def peer(java: Path) -> None:
    """Skip without Debezium's jars; they are fetched by set-up, not by a test."""
    if not peer_installed():
        pytest.skip("the Debezium peer is not installed: benchmarks/peer/run-peer --install")


def ordered(schema: str) -> object:
    """Return a schema with the order of its members, which registries take as a difference."""
    return json.loads(schema, object_pairs_hook=lambda pairs: pairs)


def carried(value: object) -> bool:
    """Tell whether JSON carries ``value`` to the judge as it is: NaN, infinities and -0.0 do not arrive."""
    if isinstance(value, float):
        return math.isfinite(value) and not (value == 0 and math.copysign(1, value) < 0)
    if isinstance(value, dict):
        return all(map(carried, value.values()))
    return all(map(carried, value)) if isinstance(value, list) else True


@pytest.mark.usefixtures("peer")
def test_avro_of_every_type_is_what_confluents_converter_writes(typed: Any) -> None:
    records = [
        (name, record, metadata)
        for name, some in typed_records(typed)
        for record in some
        for metadata in (True, False)
        if record.value is not None and carried(record.value)
    ]
    answers = ask(
        Question(
            converter=AVRO,
            data=with_schema(record),
            topic=f"topic {number}",
            config={"schema.registry.url": "mock://", "connect.meta.data": str(metadata).lower()},
        )
        for number, (_, record, metadata) in enumerate(records)
    )
    assert len(answers) == len(records) > 1200
    wrong = []
    for (name, record, metadata), answer in zip(records, answers, strict=True):
        assert record.value_schema is not None
        assert answer.data is not None, f"{name}: {answer.error}"
        assert answer.schema is not None
        made = avro_schema(record.value_schema, connect_metadata=metadata)
        if ordered(json.dumps(made)) != ordered(answer.schema):
            wrong.append(f"{name}: {json.dumps(made)} is not {answer.schema}")
        if avro_writer(record.value_schema)(record.value) != answer.data[5:]:
            wrong.append(f"{name}: bytes of {record.value['after']}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:10])
