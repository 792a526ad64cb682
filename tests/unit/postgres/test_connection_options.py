"""Options of the JDBC driver become libpq's, have no effect, or are refused; names of hosts become addresses."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from waltap_postgres.connection import with_addresses
from waltap_postgres.jdbc_options import EQUIVALENT, NEEDLESS, OPTION_NAMES, REFUSED
from waltap_postgres.properties import PostgresProperties


def properties(**given: str) -> PostgresProperties:
    options = {name.replace("__", "."): value for name, value in given.items()}
    driver = {name: value for name, value in options.items() if name.startswith("driver.")}
    others = {name: value for name, value in options.items() if not name.startswith("driver.")}
    return PostgresProperties.model_validate(
        {"database.dbname": "d", "driver.NAME": driver, "database.OPTION": others}
    )


def test_options_with_an_equivalent_become_it():
    made = properties(
        driver__ApplicationName="shop",
        driver__targetServerType="preferSecondary",
        driver__loadBalanceHosts="true",
        driver__socketTimeout="30",
        driver__loginTimeout="0",
        driver__tcpKeepAlive="false",
        driver__channelBinding="require",
        driver__gssEncMode="allow",
        driver__autosave="always",
        database__connectTimeout="7",
    )
    assert made.parameters == {
        "application_name": "shop",
        "target_session_attrs": "prefer-standby",
        "load_balance_hosts": "random",
        "tcp_user_timeout": "30000",
        "keepalives": "0",
        "channel_binding": "require",
        "gssencmode": "prefer",
        "connect_timeout": "7",
    }


def test_libpqs_own_name_wins():
    made = properties(driver__connectTimeout="7", driver__connect_timeout="9")
    assert made.parameters == {"connect_timeout": "9"}


@pytest.mark.parametrize("name", ["sslfactory", "user"])
def test_a_refusal_says_what_to_write(name):
    with pytest.raises(ValidationError, match=f"driver.{name}: "):
        properties(**{f"driver__{name}": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("targetServerType", "preferPrimary"), ("connectTimeout", "soon"), ("noSuchOption", "x")],
)
def test_what_libpq_cannot_do_is_refused(name, value):
    with pytest.raises(ValidationError, match=f"driver.{name}: "):
        properties(**{f"driver__{name}": value})


def test_no_option_is_in_two_tables():
    tables = (set(EQUIVALENT), set(NEEDLESS), set(REFUSED))
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert {"autosave", "ApplicationName", "socketFactory"} <= OPTION_NAMES
    assert not {"tcpKeepAlive", "user", "password", "dbname"} & OPTION_NAMES


ADDRESSES = {"one": ["10.0.0.1"], "two": ["10.0.0.2", "::2"]}


def resolved(host: str, _port: str) -> list[str]:
    if host not in ADDRESSES:
        raise OSError("Name or service not known")
    return ADDRESSES[host]


@pytest.mark.parametrize(
    ("given", "host", "hostaddr", "port"),
    [
        ("host=one port=5433", "one", "10.0.0.1", "5433"),
        ("host=one,two port=1,2", "one,two,two", "10.0.0.1,10.0.0.2,::2", "1,2,2"),
        ("host=gone,one port=1", "one", "10.0.0.1", "1"),
        ("host=/tmp,one port=1", "/tmp,one", ",10.0.0.1", "1,1"),
        ("host=10.1.1.1,one port=1", "10.1.1.1,one", "10.1.1.1,10.0.0.1", "1,1"),
    ],
)
def test_names_become_addresses(given, host, hostaddr, port):
    found = conninfo_to_dict(with_addresses(f"{given} dbname=d", resolved))
    assert found == {"host": host, "hostaddr": hostaddr, "port": port, "dbname": "d"}


@pytest.mark.parametrize("given", ["host=::1", "host=/tmp", "host=gone hostaddr=10.1.1.1"])
def test_what_is_no_name_stays(given):
    assert with_addresses(given, resolved) == given


def test_a_name_without_address_is_an_error():
    with pytest.raises(
        psycopg.OperationalError, match="failed to resolve host 'gone': .*not known"
    ):
        with_addresses("host=gone", resolved)
