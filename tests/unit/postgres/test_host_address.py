"""Names of hosts become addresses before libpq sees them; what is no name stays as it is."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from waltap_postgres.connection import with_addresses

ADDRESSES = {"one": ["10.0.0.1"], "two": ["10.0.0.2", "::2"]}


def resolved(host: str, _port: str) -> list[str]:
    if host not in ADDRESSES:
        raise OSError("Name or service not known")
    return ADDRESSES[host]


@pytest.mark.parametrize(
    ("given", "host", "hostaddr", "port"),
    [
        ("host=one port=5433", "one", "10.0.0.1", "5433"),
        ("host=two port=5432", "two,two", "10.0.0.2,::2", "5432,5432"),
        ("host=one,two port=1,2", "one,two,two", "10.0.0.1,10.0.0.2,::2", "1,2,2"),
        ("host=gone,one port=1", "one", "10.0.0.1", "1"),
        ("host=/tmp,one port=1", "/tmp,one", ",10.0.0.1", "1,1"),
        ("host=10.1.1.1,one port=1", "10.1.1.1,one", "10.1.1.1,10.0.0.1", "1,1"),
    ],
)
def test_names_become_addresses(given, host, hostaddr, port):
    found = conninfo_to_dict(with_addresses(f"{given} dbname=d", resolved))
    assert found == {"host": host, "hostaddr": hostaddr, "port": port, "dbname": "d"}


@pytest.mark.parametrize(
    "given", ["host=10.1.1.1", "host=::1", "host=/tmp", "host=gone hostaddr=10.1.1.1", "dbname=d"]
)
def test_what_is_no_name_stays(given):
    assert with_addresses(given, resolved) == given


def test_a_name_without_address_is_an_error():
    with pytest.raises(
        psycopg.OperationalError, match="failed to resolve host 'gone': .*not known"
    ):
        with_addresses("host=gone", resolved)
