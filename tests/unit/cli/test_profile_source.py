"""A database's URI in the place of a profile."""

import pytest
from waltap.cli.profile_source import any_sink, overrides, read
from waltap.config.layers import read_debezium, read_tables
from waltap.config.resolve import resolve
from waltap.errors import ConfigurationError
from waltap.host import Host


def settings(uri: str) -> dict[str, object]:
    raw = read(uri)
    return {n: s.value for n, s in raw.settings.items()} | {"type": raw.types["source"].value}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        pytest.param(
            "postgres://h/d", {"database.hostname": "h", "database.dbname": "d"}, id="short"
        ),
        pytest.param(
            "postgres://u%40x:p%2Fw%3A@h:6000/d%20b",
            {
                "database.user": "u@x",
                "database.password": "p/w:",
                "database.hostname": "h",
                "database.port": 6000,
                "database.dbname": "d b",
            },
            id="encoded",
        ),
        pytest.param(
            "postgres:///d?host=/run/postgresql",
            {"database.hostname": "/run/postgresql", "database.dbname": "d"},
            id="socket",
        ),
        pytest.param(
            "postgres://h/d?sslmode=verify-full&sslrootcert=ca.pem&options=-c%20x%3D1",
            {
                "database.hostname": "h",
                "database.dbname": "d",
                "database.sslmode": "verify-full",
                "database.sslrootcert": "ca.pem",
                "driver.options": "-c x=1",
            },
            id="parameters",
        ),
        pytest.param(
            "postgres://[::1]:5433/d",
            {"database.hostname": "::1", "database.port": 5433, "database.dbname": "d"},
            id="ipv6",
        ),
    ],
)
def test_a_uri_becomes_the_source_section(uri: str, expected: dict[str, object]) -> None:
    assert settings(uri) == {**expected, "type": "postgres"}


def test_the_origin_of_its_settings_shows_no_password() -> None:
    raw = read("postgres://ann:geheim@h/d")
    assert raw.origin == "postgres://ann@h/d"
    assert not [s for s in raw.settings.values() if "geheim" in s.origin]


@pytest.mark.parametrize(
    "uri", ["postgres://h:port/d", "postgres://[::1/d", "postgres://h:99999/d"]
)
def test_a_uri_that_is_none_is_a_configuration_error_without_its_password(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="DSN: cannot be read"):
        read(uri)


def test_set_options_are_split_at_the_first_equals_sign() -> None:
    raw = read_debezium({})
    assert overrides(raw, ["a=b=c", " x = y", "e="]) == {"a": "b=c", "x": " y", "e": ""}
    assert overrides(raw, None) == {}
    assert not raw.problems


def test_set_options_without_a_value_are_all_named() -> None:
    raw = read_tables({"source": {"type": "postgres", "nonsense": 1}, "sink": {"type": "null"}})
    assert overrides(raw, ["a", "b=1", "=c"]) == {"b": "1"}
    with pytest.raises(ConfigurationError) as error:  # with everything else that is wrong
        resolve(raw, Host(), overrides={"b": "1"})
    told = [problem.property for problem in error.value.problems]
    assert told.count("--set") == 2
    assert {"b", "nonsense", "database.dbname"} <= set(told)


def test_a_command_that_writes_nowhere_needs_no_sink() -> None:
    assert any_sink(read_debezium({})) == "terminal"
    assert any_sink(read_debezium({}), "null") == "null"
    assert any_sink(read_tables({"sink": {"type": "jsonl"}})) is None
    assert any_sink(read_tables({"sinks": [{"type": "jsonl"}]})) is None
