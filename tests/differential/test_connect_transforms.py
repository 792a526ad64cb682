"""Kafka Connect's transforms, ours beside the Java classes: equal records, and errors for the same ones."""

import json
from collections import Counter
from typing import Any

import pytest
from tests.differential.connect_transforms.cases import PACKAGE, questions
from tests.differential.connect_transforms.judge import Question, judged, ours, same
from tests.differential.connect_transforms.recorded import RECORDED

from waltap_transforms.connect import CONNECT

LINES = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()[1:]]
BY_CLASS = {name: [line for line in LINES if line["class"] == name] for name in {each["class"] for each in LINES}}  # fmt: skip


def assert_same(question: Question, answer: dict[str, Any]) -> None:
    found = ours(question)
    assert same(answer, found), f"{json.dumps(question)}\njava: {answer}\nours: {found}"


@pytest.mark.parametrize("name", sorted(BY_CLASS))
def test_answers_are_those_that_were_recorded(name: str) -> None:
    for line in BY_CLASS[name]:
        assert_same(line, line["answer"])


def test_every_class_was_recorded_and_mostly_answered() -> None:
    classes = {alias for spec in CONNECT for alias in spec.aliases if "." in alias}
    assert set(BY_CLASS) == classes
    answered = Counter("error" not in line["answer"] for line in LINES)
    assert answered[True] > answered[False] > 0


def test_a_field_that_is_named_twice_is_once_in_the_key() -> None:
    row = {"type": "struct", "fields": [{"field": "a", "type": "int32", "optional": False}]}
    value = {"schema": {**row, "optional": False}, "payload": {"a": 1}}
    record: dict[str, Any] = {
        "topic": "t", "key": None, "value": value, "headers": [], "partition": None, "timestamp": None,
    }  # fmt: skip
    question = {"class": f"{PACKAGE}ValueToKey", "config": {"fields": "a,a"}, "record": record}
    # This is the answer of Java's class.
    assert ours(question)["record"]["key"] == value


def test_a_far_day_wraps_as_javas_int() -> None:
    """Infinity of a column with milliseconds is such a day."""
    number = {"schema": {"type": "int64", "optional": False}, "payload": 9223372036854775807}
    record: dict[str, Any] = {
        "topic": "a", "key": None, "value": number, "headers": [], "partition": None, "timestamp": None,
    }  # fmt: skip
    name = f"{PACKAGE}TimestampConverter$Value"
    question = {"class": name, "config": {"target.type": "Date"}, "record": record}
    # This is the answer of Java's class.
    assert ours(question)["record"]["value"]["payload"] == -622191233


def test_blanks_around_values_of_properties_are_stripped() -> None:
    record: dict[str, Any] = {
        "topic": "a", "key": None, "value": None, "headers": [], "partition": None, "timestamp": None,
    }  # fmt: skip
    config = {"regex": " a ", "replacement": " b "}
    question = {"class": f"{PACKAGE}RegexRouter", "config": config, "record": record}
    # This is the answer of Java's class.
    assert ours(question)["record"]["topic"] == "b"


@pytest.mark.needs_java
@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("count", [10, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_answers_to_other_questions_are_those_of_the_classes(count: int) -> None:
    asked = list(questions("others", count))
    answers = judged(asked)
    assert len(answers) == len(asked) == count * len(CONNECT)
    for question, answer in zip(asked, answers, strict=True):
        assert_same(question, answer)
