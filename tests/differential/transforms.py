"""Debezium's and Kafka Connect's own transforms, as judges of waltap's."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential import judges

from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.converter import ConverterContext
from waltap.encoders.format.record_transform import ConnectRecord
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties

_PROPERTIES = JsonConverterProperties.model_validate({"replace.null.with.default": False})
_JSON = JsonConverter(_PROPERTIES, ConverterContext(record_part="value"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A transform, and records that go through one instance of it, in order."""

    java: str
    config: Mapping[str, str]
    records: Sequence[ConnectRecord]


@dataclass(frozen=True, slots=True)
class Answer:
    """The records that came of it, as `written` has them; with ``error`` those before it."""

    records: list[Any]
    error: str | None
    taken: int | None


def ask(questions: Iterable[Question]) -> list[Answer]:
    """Return what the transforms answer, in order. Raises: ChildProcessError."""
    answers = []
    for found in asked(
        {
            "class": each.java,
            "config": dict(each.config),
            "records": [json.loads(record_text(record)) for record in each.records],
        }
        for each in questions
    ):
        records = [
            json.loads(json.dumps(each), object_pairs_hook=tuple) for each in found["records"]
        ]
        answers.append(Answer(records, found.get("error"), found.get("taken")))
    return answers


def asked(questions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the transforms answer to questions that are JSON already, in order: ``class``, ``config``
    and ``records``; ``records``, ``error`` and ``taken``. Raises: ChildProcessError."""
    return [json.loads(line) for line in judges.asked("--transforms", map(json.dumps, questions))]


def written(record: ConnectRecord) -> Any:
    """Return a record with its schemas as the JSON converter writes them, members in their order."""
    return json.loads(record_text(record), object_pairs_hook=tuple)


def record_text(record: ConnectRecord) -> str:
    """Return a record as the judge reads it. Raises: ValueError for values that do not fit."""
    headers = ",".join(
        f'{{"name":{json.dumps(name)},"data":{_data(schema, value)}}}'
        for name, schema, value in record.headers
    )
    return (
        f'{{"topic":{json.dumps(record.topic)},"key":{_data(record.key_schema, record.key)},'
        f'"value":{_data(record.value_schema, record.value)},"headers":[{headers}],'
        f'"partition":{json.dumps(record.partition)},"timestamp":{json.dumps(record.timestamp)}}}'
    )


def _data(schema: Schema | None, value: Any) -> str:
    if schema is None and value is None:
        return "null"
    text = _JSON.encoder("t", schema)(value)
    assert text is not None
    return text.decode()
