"""A PgBouncer between waltap and the server is reported, whatever it lets through."""

from collections.abc import Iterator

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.pgbouncer import PgBouncer
from tests.harness.servers.requirement import missing

from waltap.errors import WaltapError


@pytest.fixture
def through(request, database, tmp_path) -> Iterator[PipelineRig]:
    """Return a pipeline that is given a PgBouncer's address, which ignores ``request.param``."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    try:
        pooler = PgBouncer.create(server=database.server, ignore_startup_parameters=request.param)
    except MissingProgram as reason:
        missing(str(reason))
    yield PipelineRig(database, tmp_path, {"database.port": pooler.port})
    pooler.remove()


IGNORING = [
    pytest.param("", id="as it is"),
    pytest.param("options", id="that takes our settings"),
    pytest.param("options,replication", id="that drops the wish for replication"),
]


@pytest.mark.parametrize("through", IGNORING, indirect=True)
def test_a_pooler_is_named_by_the_start_and_the_doctor(through):
    with pytest.raises(WaltapError) as caught:
        through.run()
    assert caught.value.code == "WT-2027", str(caught.value)
    assert "database.hostname" in caught.value.advice()
    try:
        found = [each.error for each in through.doctor().values() if each.error]
    except WaltapError as error:
        found = [error]
    assert [each.code for each in found] == ["WT-2027"]
