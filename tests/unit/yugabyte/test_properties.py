"""Where connections go."""

import pytest
from waltap_postgres.connection import conninfo
from waltap_yugabyte import properties
from waltap_yugabyte.properties import YugabyteProperties

GIVEN = {"database.dbname": "d", "database.hostname": "a:1,b:2"}


def test_libpq_draws_a_host_for_each_connection() -> None:
    made = YugabyteProperties.model_validate(GIVEN)
    assert "load_balance_hosts=random" in conninfo(made, role="x")
    in_turn = YugabyteProperties.model_validate(GIVEN | {"yb.load.balance.connections": False})
    assert "load_balance_hosts" not in conninfo(in_turn, role="x")


def test_an_older_libpq_gets_the_hosts_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a connection string with the parameter."""
    monkeypatch.setattr(properties, "balances", lambda: False)
    made = YugabyteProperties.model_validate(GIVEN)
    assert "load_balance_hosts" not in conninfo(made, role="x")
    assert {made.addresses for _ in range(200)} == {("a,b", "1,2"), ("b,a", "2,1")}
    in_turn = YugabyteProperties.model_validate(GIVEN | {"yb.load.balance.connections": False})
    assert {in_turn.addresses for _ in range(200)} == {("a,b", "1,2")}
