"""Partitions that come and go while a pipeline streams."""

import pytest

from waltap.cli.profile_source import connected
from waltap_postgres.replication.publication import plan_publication

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE m2 (id int PRIMARY KEY);"
    "INSERT INTO m VALUES (1)",
    settings={"table.include.list": r"public\.m.*", "status.update.interval.ms": 100},
)


@pytest.mark.parametrize(
    ("root", "mode", "before"),
    [
        pytest.param(True, "all_tables", "", id="root, all tables"),
        pytest.param(False, "filtered", "", id="partitions"),
        pytest.param(
            False, "filtered", "CREATE PUBLICATION {} FOR TABLE m1, m2", id="without root"
        ),
    ],
)
def test_a_partition_is_attached_and_detached_in_mid_stream(pipeline, root, mode, before):
    database, destination = pipeline.database, pipeline.destination
    database.execute(before.format(pipeline.slot))
    settings = {
        "publish.via.partition.root": root,
        "publication.autocreate.mode": mode,
        "waltap.new.tables": "snapshot" if root else "warn",
    }
    with pipeline.running(**settings) as run:
        database.execute("INSERT INTO m2 VALUES (101)")
        database.execute("ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM (100) TO (200)")
        database.execute("INSERT INTO m VALUES (2), (102)")
        database.execute("CREATE TABLE m3 PARTITION OF m FOR VALUES FROM (200) TO (300)")
        database.execute("INSERT INTO m VALUES (202)")
        database.execute("ALTER TABLE m DETACH PARTITION m1")
        database.execute("INSERT INTO m1 VALUES (3); INSERT INTO m VALUES (103)")
        run.until(
            lambda: {3, 103} <= {int(event.row["id"]) for event in destination.events},
            "the last rows",
        )
        if root:  # the rows from before are read under the new name
            run.until(lambda: 1 in destination.ids("m1", "r"), "the rows of the detached partition")
    streamed = [
        (event.table, int(event.row["id"])) for event in destination.events if event.op == "c"
    ]
    whole = "public.m" if root else None
    assert streamed == [
        ("public.m2", 101),
        (whole or "public.m1", 2),
        (whole or "public.m2", 102),
        (whole or "public.m3", 202),
        ("public.m1", 3),
        (whole or "public.m2", 103),
    ]


def test_a_server_before_13_is_asked_to_publish_no_root(pipeline):
    profile = pipeline.profile(pipeline.host()[0], **{"publication.autocreate.mode": "filtered"})
    with connected(profile, pipeline.host()[0]) as (connector, _):
        plan = plan_publication(
            connector.catalogue,
            connector.properties,
            connector.captured(),
            operations=None,
            version_num=120022,
        )
    (statement,) = plan.statements
    assert statement.endswith(' FOR TABLE "public"."m1", "public"."m2"')
