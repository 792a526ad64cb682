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
from tests.servers.registry import Registry
from waltap.format.converter import ConverterContext
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.schema import avro_schema
from waltap_formats.cloudevents.converter import CloudEventsConverter
from waltap_formats.cloudevents.properties import CloudEventsProperties

CLOUD_EVENTS = "io.debezium.converters.CloudEventsConverter"
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


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(("form", "every"), [("json", 1), ("avro in json", 100), ("avro", 60)])
def test_cloud_events_are_those_of_debeziums_converter(
    typed: Any, registry: Registry, form: str, every: int
) -> None:
    config = {"json.schemas.enable": "true"}
    if "avro" in form:
        config |= {"avro.schema.registry.url": registry.url, "data.serializer.type": "avro"}
        config |= {"serializer.type": "avro"} if form == "avro" else {}
    records = [
        record
        for _, some in typed_records(typed)
        for record in some
        if record.value is not None and carried(record.value)
    ][::every]  # each asks the registry for schemas of its own
    topics = [f"{form} {number}".replace(" ", "_") for number in range(len(records))]
    answers = ask(
        Question(converter=CLOUD_EVENTS, data=with_schema(record), topic=topic, config=config)
        for record, topic in zip(records, topics, strict=True)
    )
    properties = CloudEventsProperties.model_validate(config)
    ours = CloudEventsConverter(properties, ConverterContext(side="value"))
    assert len(answers) == len(records) > 5
    for record, topic, answer in zip(records, topics, answers, strict=True):
        assert answer.data is not None, answer.error
        found = ours.encoder(topic, record.value_schema)(record.value)
        if form == "avro":
            assert found == answer.data
            continue
        assert found is not None
        assert ordered(found.decode()) == ordered(answer.data.decode())
