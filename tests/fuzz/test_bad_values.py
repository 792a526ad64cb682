"""Bad values of every property, and bad files: reported as what they are, never as a bug of waltap."""

import random
from typing import Any

import pytest

from waltap.base.property import declarations
from waltap.cli.reference.properties import components
from waltap.config.layers import load, read_tables
from waltap.config.resolve import survey
from waltap.errors import ConfigurationError
from waltap.plugins.host import Host

HOST = Host()
BAD = [
    "", "\0", "a\0b", "\ud800", "x" * 5000, "-1", "1e400", "9" * 5000, "[", "(", "{", "${env:NOPE_}",
    "${file:/}", "${file:\0}", "/", ".", "true", "," * 300, "\u0663", "nan", "inf", "-", "a:b:c", "%s",
    "\n", "'", '"', "\\", "*", "=", " ", ["\0"], [[]], {"a": 1}, 1979, -1, 1e300, True, None,
]  # fmt: skip
PLACES = sorted(
    {
        (heading.startswith("Sink"), name)
        for heading, _, model in components(HOST)
        for declaration in declarations(model)
        if declaration.family is None
        for name in declaration.names
    }
)


@pytest.mark.parametrize("count", [1, pytest.param(len(BAD), marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("sink", "name"), PLACES, ids=lambda value: str(value))
def test_a_bad_value_is_a_problem_or_is_taken(sink, name, count):
    for value in random.Random(name).sample(BAD, count):
        tables = {
            "source": {"type": "postgres", "database.dbname": "d"},
            "sink": {"type": "changelog", "path": "x"},
        }
        tables["sink" if sink else "source"][name] = value
        found = survey(read_tables(tables, "p.toml"), HOST)
        text = "".join(map(str, found.problems)) + "".join(e.value for e in found.explained)
        assert len(text) < 200_000
        for problem in found.problems:
            str(problem).encode()


HTTP = {"type": "http", "url": "http://h/"}
AVRO = {"type": "avro", "schema.registry.url": "http://h"}
HOOK = "notification.webhook."
LATE = [
    ("sink", {"type": "files", "path": "x"}, "layout", "{table:d}"),
    ("sink", {"type": "files", "path": "x"}, "layout", "{table!x}"),
    ("sink", {"type": "sql", "url": "sqlite:///x"}, "table.name.format", "{table:{x}}"),
    ("sink", HTTP, "header.X-Own", "Grüße-und-Küsse"),
    ("sink", HTTP, "header.X-Own", "secret-9\n"),
    ("sink", HTTP, "auth.token", "schlüssel-9"),
    ("sink", HTTP, "auth.token", "secret-9\n"),
    ("sink", HTTP, "url", "http://secret-9..example/"),
    ("sink", HTTP, "timeout.ms", 2**31),
    ("sink", {"type": "redis", "address": "h"}, "socket.timeout.ms", 2**31),
    ("source", {"type": "postgres", "database.dbname": "d"}, "snapshot.lock.timeout.ms", 2**31),
    ("source", {"type": "postgres", "database.dbname": "d"}, "money.fraction.digits", 2**15),
    ("source", {"type": "postgres", "database.dbname": "d"}, f"column.mask.with.{10**20}.chars", "a"),
    ("engine", {"waltap.standby": True}, "waltap.lease.ms", 2**31),
    ("format", AVRO, "schema.registry.request.timeout.ms", 2**31),
    ("engine", {f"{HOOK}url": "http://h/"}, f"{HOOK}timeout.ms", 2**31),
    ("format", AVRO, "schema.registry.url", "http://registry:port"),
    ("format", AVRO, "bearer.auth.token", "schlüssel-9"),
    ("engine", {"notification.enabled.channels": "webhook"}, f"{HOOK}url", "http://secret-9..example/"),
    ("engine", {f"{HOOK}url": "http://h/"}, f"{HOOK}header.X", "schlüssel-9"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "others", "name", "value"), LATE)
def test_a_value_that_only_its_user_could_refuse_is_refused_at_the_start(
    section, others, name, value
):
    tables: dict[str, Any] = {
        "source": {"type": "postgres", "database.dbname": "d"},
        "sink": {"type": "null"},
    }
    engine = {"notification.enabled.channels": "webhook"} if section == "engine" else {}
    tables |= {section: engine | others | {name: value}}
    found = [str(problem) for problem in survey(read_tables(tables, "p.toml"), HOST).problems]
    assert found
    assert all(name in problem for problem in found)
    assert not any("9" in problem for problem in found)


FILES = [
    b"", b"\0", b"\xff\xfe", b"{", b"[", b'{"a":{"b":1}}', b'{"config":{}}', b"name=[1]\n[source]\n",
    b'{"name":[],"config":{"a":null}}', b"[source]\ntype=1\n", b"[sink]\ntype={a=1}\n", b"source=1\n",
    b"[[transforms]]\ntype=[1]\n", b"transforms=1\n", b"transforms=[1]\n", b"[labels]\na=[1]\n",
    b'[source]\ntype="postgres"\n"database.port"=1979-05-27\n', b'{"a":' + b"[" * 100_000,
    b"a=\\u12", b"x=" + b"9" * 5000, b'[source]\n"database.hostname"={a=1}\n', b"a=" + b"{a=" * 5000,
    b'{"connector.class":"\\ud800","topic.prefix":"\\u0000"}', b"a=[" * 5000,
    b'{"transforms":"a,a,","transforms.a.type":1,"connector.class":1e999}', b'name="\\u0000"\n',
    b'{"name":"\\ud800","connector.class":"postgres"}', b'{"a":' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("ending", ["toml", "json", "properties", "x"])
def test_a_bad_file_is_reported(tmp_path, ending):
    numbers = random.Random(7)
    path = tmp_path / f"p.{ending}"
    noise = [numbers.randbytes(numbers.randrange(200)) for _ in range(20)]
    torn = [each[: numbers.randrange(len(each) + 1)] for each in FILES]
    for data in [*FILES, *noise, *torn]:
        path.write_bytes(data)
        try:
            found = survey(load(path), HOST)
        except ConfigurationError as error:
            str(error).encode()
        else:
            assert found.problems
