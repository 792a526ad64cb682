"""Options of the JDBC driver become libpq's, have no effect, or are refused with what to write."""

import pytest
from pydantic import ValidationError

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


@pytest.mark.parametrize("name", sorted(REFUSED))
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
