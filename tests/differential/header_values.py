"""Values of headers, as Kafka Connect's converters of headers write them.

    python -m tests.differential.header_values     # header_values.jsonl anew

The engine that the peer runs in writes headers as JSON, as Debezium Server does. What a worker of Connect
writes comes from its own classes, which are asked here: by default SimpleHeaderConverter.
"""

import json
from pathlib import Path
from typing import Any

from tests.differential.converters import Question, ask

RECORDED = Path(__file__).with_name("header_values.jsonl")
CONVERTERS: dict[str, tuple[str, dict[str, str]]] = {
    "simple-header": ("org.apache.kafka.connect.storage.SimpleHeaderConverter", {}),
    "json": ("org.apache.kafka.connect.json.JsonConverter", {}),
    "json without schemas": (
        "org.apache.kafka.connect.json.JsonConverter",
        {"schemas.enable": "false"},
    ),
    "string": ("org.apache.kafka.connect.storage.StringConverter", {}),
}
"""What records the answer, by its name here."""

DATA = "org.apache.kafka.connect.data."


def _of(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": False, **more}


KEY = _of(
    "struct",
    name="t.public.items.Key",
    fields=[{"field": "id", **_of("int32")}, {"field": "tag", **_of("string")}],
)
VALUES: list[tuple[dict[str, Any], Any]] = [
    (_of("string"), "0"),
    (_of("string"), ""),
    (_of("string"), 'a "b" \\ \n é'),
    (_of("string", optional=True), None),
    (
        _of("string", name="io.debezium.data.Uuid", version=1),
        "0e37df36-f698-11e6-8dd4-cb9ced3df976",
    ),
    (KEY, {"id": 1030, "tag": 'a"b'}),
    *((_of(kind), number) for kind in ("int8", "int16", "int32", "int64") for number in (0, -7)),
    *((_of(kind), number) for kind in ("float", "double") for number in (0.5, 1e21, -3.0)),
    (_of("boolean"), True),
    (_of("array", items=_of("int32")), [1, 2]),
    (_of("array", items=_of("string", optional=True)), ["a", None]),
    (_of("map", keys=_of("string"), values=_of("int64")), {"a": 1}),
    (_of("int32", name=f"{DATA}Date", version=1), 19_000),
    (_of("int64", name=f"{DATA}Timestamp", version=1), 1_700_000_000_123),
    (_of("int32", name=f"{DATA}Time", version=1), 3_600_000),
    (_of("int64", name=f"{DATA}Timestamp", version=1), -1),
    (_of("bytes", name=f"{DATA}Decimal", version=1, parameters={"scale": "2"}), "AJY="),
]
"""Schemas and payloads as JsonConverter writes them: what Debezium's headers hold, and other types."""


def main() -> None:
    """Write what the converters answer."""
    asked = [
        (name, {"schema": schema, "payload": payload})
        for name in CONVERTERS
        for schema, payload in VALUES
    ]
    answers = ask(
        Question(
            converter=CONVERTERS[name][0],
            config=CONVERTERS[name][1],
            data=json.dumps(data).encode(),
            topic="t",
            header="h",
        )
        for name, data in asked
    )
    lines = [
        {"converter": name, **data, "text": None if answer.data is None else answer.data.decode()}
        for (name, data), answer in zip(asked, answers, strict=True)
        if answer.error is None
    ]
    RECORDED.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))


if __name__ == "__main__":
    main()
